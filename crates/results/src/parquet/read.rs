// SPDX-License-Identifier: GPL-2.0-only
//! The reader of files that `write` made, whole or damaged.

use std::io::Read;

use flate2::read::GzDecoder;

use super::thrift::{Bytes, Value};
use super::{
    BOOLEAN, BYTE_ARRAY, Column, DATA_PAGE, DOUBLE, GZIP, INT64, MAGIC, PLAIN, ParquetError, Table,
    Values,
};

/// Largest size of a page in bytes, so that a damaged file cannot fill the memory.
const PAGE_MAX: u64 = 1 << 30;

/// Largest number of rows in a page, for the same reason.
const ROWS_MAX: usize = 1 << 22;

const SHORT: ParquetError = ParquetError::Damaged("a column ends too early");

/// Reads a file.
pub fn read(file: &[u8]) -> Result<Table, ParquetError> {
    read_columns(file, &|_| true)
}

/// Reads those columns of a file whose names `is_wanted` accepts.
pub fn read_columns(file: &[u8], is_wanted: &dyn Fn(&str) -> bool) -> Result<Table, ParquetError> {
    let meta = metadata(file)?;
    let schema = meta.list(2).unwrap_or_default();
    let mut columns = Vec::new();
    for element in schema.get(1..).unwrap_or_default() {
        let name = element.string(4).ok_or(ParquetError::Damaged("a column has no name"))?;
        let values = match element.int(1) {
            Some(BYTE_ARRAY) => Values::Text(Vec::new()),
            Some(INT64) => Values::Int(Vec::new()),
            Some(DOUBLE) => Values::Float(Vec::new()),
            Some(BOOLEAN) => Values::Bool(Vec::new()),
            other => {
                let why = format!("column \"{name}\" has a type that is not expected ({other:?})");
                return Err(ParquetError::Foreign(why));
            }
        };
        columns.push(Column { name, values });
    }
    for group in meta.list(4).unwrap_or_default() {
        let chunks = group.list(1).unwrap_or_default();
        if chunks.len() != columns.len() {
            return Err(ParquetError::Damaged("a group of rows lacks columns"));
        }
        for (chunk, column) in chunks.iter().zip(&mut columns) {
            if is_wanted(&column.name) {
                read_chunk(file, chunk, column)?;
            }
        }
    }
    columns.retain(|column| is_wanted(&column.name));
    let rows = columns.first().map_or(0, |column| column.values.len());
    if columns.iter().any(|column| column.values.len() != rows) {
        return Err(ParquetError::Damaged("its columns differ in length"));
    }
    let note = |note: &Value| Some((note.string(1)?, note.string(2).unwrap_or_default()));
    let notes = meta.list(5).unwrap_or_default().iter().filter_map(note).collect();
    Ok(Table { columns, notes })
}

fn metadata(file: &[u8]) -> Result<Value, ParquetError> {
    let rest = file.strip_prefix(MAGIC).and_then(|rest| rest.strip_suffix(MAGIC));
    let (rest, len) =
        rest.and_then(<[u8]>::split_last_chunk::<4>).ok_or(ParquetError::NoParquet)?;
    let len = u32::from_le_bytes(*len) as usize;
    let begin = rest.len().checked_sub(len).ok_or(ParquetError::NoParquet)?;
    Bytes(&rest[begin..]).structure()
}

fn read_chunk(file: &[u8], chunk: &Value, column: &mut Column) -> Result<(), ParquetError> {
    let meta = chunk.field(3).ok_or(ParquetError::Damaged("a column has no metadata"))?;
    if meta.int(4) != Some(GZIP) || meta.field(11).is_some() {
        let why = format!("column \"{}\" is compressed or encoded in another way", column.name);
        return Err(ParquetError::Foreign(why));
    }
    let at = |id| meta.int(id).and_then(|n| usize::try_from(n).ok()).ok_or(SHORT);
    let (begin, rows) = (at(9)?, at(5)?);
    let end = column.values.len() + rows;
    let mut bytes = Bytes(file.get(begin..).ok_or(SHORT)?);
    while column.values.len() < end {
        let before = column.values.len();
        read_page(&mut bytes, column)?;
        if column.values.len() == before {
            return Err(SHORT);
        }
    }
    if column.values.len() > end { Err(SHORT) } else { Ok(()) }
}

fn read_page(bytes: &mut Bytes<'_>, column: &mut Column) -> Result<(), ParquetError> {
    let header = bytes.structure()?;
    let data = header.field(5).filter(|_| header.int(1) == Some(DATA_PAGE));
    let data = data.filter(|data| data.int(2) == Some(PLAIN)).ok_or_else(|| {
        ParquetError::Foreign(format!("column \"{}\" has an unexpected encoding", column.name))
    })?;
    let len = |id| header.int(id).and_then(|n| u64::try_from(n).ok()).ok_or(SHORT);
    let packed = bytes.take(usize::try_from(len(3)?).map_err(|_| SHORT)?)?;
    let size = len(2)?;
    if size > PAGE_MAX {
        return Err(ParquetError::Damaged("a page is too large"));
    }
    let mut page = Vec::new();
    let unpacked = GzDecoder::new(packed).take(size + 1).read_to_end(&mut page);
    unpacked.map_err(|_| ParquetError::Damaged("a page cannot be decompressed"))?;
    if page.len() as u64 != size {
        return Err(ParquetError::Damaged("a page has another length than it says"));
    }
    let rows = data.int(1).and_then(|n| usize::try_from(n).ok()).ok_or(SHORT)?;
    values(&page, rows, &mut column.values)
}

fn values(page: &[u8], rows: usize, into: &mut Values) -> Result<(), ParquetError> {
    let mut bytes = Bytes(page);
    let len = u32::from_le_bytes(bytes.take(4)?.try_into().expect("4 bytes"));
    let there = levels(Bytes(bytes.take(len as usize)?), rows)?;
    match into {
        Values::Text(all) => {
            for is_there in there {
                all.push(is_there.then(|| text(&mut bytes)).transpose()?);
            }
        }
        Values::Int(all) => {
            let mut one = || Ok(i64::from_le_bytes(bytes.take(8)?.try_into().expect("8 bytes")));
            for is_there in there {
                all.push(is_there.then(&mut one).transpose()?);
            }
        }
        Values::Float(all) => {
            let mut one = || Ok(f64::from_le_bytes(bytes.take(8)?.try_into().expect("8 bytes")));
            for is_there in there {
                all.push(is_there.then(&mut one).transpose()?);
            }
        }
        Values::Bool(all) => {
            let mut at = 0;
            let mut one = || {
                let byte = bytes.0.get(at / 8).ok_or(SHORT)?;
                at += 1;
                Ok(byte >> ((at - 1) % 8) & 1 == 1)
            };
            for is_there in there {
                all.push(is_there.then(&mut one).transpose()?);
            }
        }
    }
    Ok(())
}

fn text(bytes: &mut Bytes<'_>) -> Result<String, ParquetError> {
    let len = u32::from_le_bytes(bytes.take(4)?.try_into().expect("4 bytes"));
    let text = bytes.take(len as usize)?.to_vec();
    String::from_utf8(text).map_err(|_| ParquetError::Damaged("a text is not UTF-8"))
}

/// Reads which of the rows have a value: runs of equal levels, or levels packed as bits.
fn levels(mut bytes: Bytes<'_>, rows: usize) -> Result<Vec<bool>, ParquetError> {
    if rows > ROWS_MAX {
        return Err(ParquetError::Damaged("a page has too many rows"));
    }
    let mut there = Vec::new();
    while there.len() < rows {
        let head = bytes.varint()?;
        let left = rows - there.len();
        if head & 1 == 0 {
            let run = usize::try_from(head >> 1).unwrap_or(usize::MAX);
            let value = bytes.byte()? & 1 == 1;
            if run == 0 || run > left {
                return Err(SHORT);
            }
            there.resize(there.len() + run, value);
        } else {
            let groups = usize::try_from(head >> 1).map_err(|_| SHORT)?;
            for byte in bytes.take(groups)? {
                let bits = (0..8).map(|at| byte >> at & 1 == 1);
                there.extend(bits.take(rows - there.len()));
            }
            if groups == 0 {
                return Err(SHORT);
            }
        }
    }
    Ok(there)
}

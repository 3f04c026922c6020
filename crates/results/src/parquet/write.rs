// SPDX-License-Identifier: GPL-2.0-only
//! The writer: groups of rows, in each a page per column, then the metadata.

use std::io::Write;

use flate2::Compression;
use flate2::write::GzEncoder;

use super::thrift::{Value, varint};
use super::{DATA_PAGE, GZIP, MAGIC, OPTIONAL, PLAIN, RLE, Table, UTF8, Values};

/// Rows of a group. The page of a column must not exceed 2 GiB.
const GROUP_ROWS: usize = 1 << 18;

/// Returns the file. All columns must have the same length.
pub fn write(table: &Table) -> Vec<u8> {
    let rows = table.rows();
    let lengths = table.columns.iter().map(|column| column.values.len());
    assert!(lengths.into_iter().all(|len| len == rows), "columns of different lengths");
    let mut out = MAGIC.to_vec();
    let mut groups = Vec::new();
    for from in (0..rows).step_by(GROUP_ROWS) {
        groups.push(group(&mut out, table, from, (from + GROUP_ROWS).min(rows)));
    }
    let notes = table
        .notes
        .iter()
        .map(|(name, value)| Value::structure([(1, Value::text(name)), (2, Value::text(value))]));
    let meta = Value::structure([
        (1, Value::Int32(1)),
        (2, Value::List(schema(table))),
        (3, Value::Int(rows as i64)),
        (4, Value::List(groups)),
        (5, Value::List(notes.collect())),
        (6, Value::text(concat!("scxlab version ", env!("CARGO_PKG_VERSION")))),
    ]);
    let begin = out.len();
    meta.encode(&mut out);
    let len = u32::try_from(out.len() - begin).expect("metadata of less than 4 GiB");
    out.extend(len.to_le_bytes());
    out.extend(MAGIC);
    out
}

fn schema(table: &Table) -> Vec<Value> {
    let root = Value::structure([
        (4, Value::text("schema")),
        (5, Value::Int32(table.columns.len() as i64)),
    ]);
    let columns = table.columns.iter().map(|column| {
        let mut fields = vec![
            (1, Value::Int32(column.values.physical_type())),
            (3, Value::Int32(OPTIONAL)),
            (4, Value::text(&column.name)),
        ];
        if matches!(column.values, Values::Text(_)) {
            fields.push((6, Value::Int32(UTF8)));
        }
        Value::structure(fields)
    });
    std::iter::once(root).chain(columns).collect()
}

fn group(out: &mut Vec<u8>, table: &Table, from: usize, to: usize) -> Value {
    let begin = out.len();
    let mut whole = 0;
    let mut columns = Vec::new();
    for column in &table.columns {
        let offset = out.len() as i64;
        let page = page(&column.values, from, to);
        let packed = gzip(&page);
        let header = Value::structure([
            (1, Value::Int32(DATA_PAGE)),
            (2, Value::Int32(i64::from(size(&page)))),
            (3, Value::Int32(i64::from(size(&packed)))),
            (
                5,
                Value::structure([
                    (1, Value::Int32((to - from) as i64)),
                    (2, Value::Int32(PLAIN)),
                    (3, Value::Int32(RLE)),
                    (4, Value::Int32(RLE)),
                ]),
            ),
        ]);
        let before = out.len();
        header.encode(out);
        let header_len = (out.len() - before) as i64;
        out.extend(&packed);
        whole += header_len + page.len() as i64;
        columns.push(Value::structure([
            (2, Value::Int(offset)),
            (
                3,
                Value::structure([
                    (1, Value::Int32(column.values.physical_type())),
                    (2, Value::List(vec![Value::Int32(PLAIN), Value::Int32(RLE)])),
                    (3, Value::List(vec![Value::text(&column.name)])),
                    (4, Value::Int32(GZIP)),
                    (5, Value::Int((to - from) as i64)),
                    (6, Value::Int(header_len + page.len() as i64)),
                    (7, Value::Int(header_len + packed.len() as i64)),
                    (9, Value::Int(offset)),
                ]),
            ),
        ]));
    }
    Value::structure([
        (1, Value::List(columns)),
        (2, Value::Int(whole)),
        (3, Value::Int((to - from) as i64)),
        (6, Value::Int((out.len() - begin) as i64)),
    ])
}

fn size(bytes: &[u8]) -> i32 {
    i32::try_from(bytes.len()).expect("a page of less than 2 GiB")
}

/// Definition levels (which values are there), then the values.
fn page(values: &Values, from: usize, to: usize) -> Vec<u8> {
    let mut out = Vec::new();
    match values {
        Values::Text(all) => {
            levels(&mut out, &all[from..to]);
            for text in all[from..to].iter().flatten() {
                let len = u32::try_from(text.len()).expect("a text of less than 4 GiB");
                out.extend(len.to_le_bytes());
                out.extend(text.as_bytes());
            }
        }
        Values::Int(all) => {
            levels(&mut out, &all[from..to]);
            all[from..to].iter().flatten().for_each(|n| out.extend(n.to_le_bytes()));
        }
        Values::Float(all) => {
            levels(&mut out, &all[from..to]);
            all[from..to].iter().flatten().for_each(|x| out.extend(x.to_le_bytes()));
        }
        Values::Bool(all) => {
            levels(&mut out, &all[from..to]);
            let bits: Vec<bool> = all[from..to].iter().copied().flatten().collect();
            out.extend(bits.chunks(8).map(|byte| {
                byte.iter().enumerate().fold(0, |sum, (at, bit)| sum | u8::from(*bit) << at)
            }));
        }
    }
    out
}

/// Appends the levels as runs of equal values.
fn levels<T>(out: &mut Vec<u8>, values: &[Option<T>]) {
    let mut runs = Vec::new();
    for run in values.chunk_by(|a, b| a.is_some() == b.is_some()) {
        varint(&mut runs, (run.len() as u64) << 1);
        runs.push(u8::from(run[0].is_some()));
    }
    out.extend((runs.len() as u32).to_le_bytes());
    out.extend(runs);
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut out = GzEncoder::new(Vec::new(), Compression::default());
    out.write_all(bytes).expect("memory takes all");
    out.finish().expect("memory takes all")
}

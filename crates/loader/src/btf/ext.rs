// SPDX-License-Identifier: GPL-2.0-only
//! `.BTF.ext`: the FUNC types, source lines and CO-RE relocations of instructions.
//!
//! Owns: parsing of the three record lists, section by section.
//! Does not: resolve names (offsets point into the object's `.BTF` strings) or apply relocations.

use super::{BtfError, read_u32};

/// Function record: the FUNC type of the function that starts at `insn_off` (bytes).
#[derive(Clone, Copy, Debug)]
pub struct FuncRec {
    pub insn_off: u32,
    pub type_id: u32,
}

/// Line record, for the instructions from `insn_off` (bytes) up to the next record.
#[derive(Clone, Copy, Debug)]
pub struct LineRec {
    pub insn_off: u32,
    pub file_off: u32,
    pub text_off: u32,
    pub line: u32,
    pub column: u32,
}

/// CO-RE record: the type and access path on which the instruction at `insn_off` (bytes) depends.
#[derive(Clone, Copy, Debug)]
pub struct CoreRec {
    pub insn_off: u32,
    pub type_id: u32,
    pub access_off: u32,
    pub kind: u32,
}

/// Records of one ELF section; the name is an offset into the `.BTF` strings.
#[derive(Clone, Debug)]
pub struct SectionRecs<T> {
    pub section_name_off: u32,
    pub records: Vec<T>,
}

#[derive(Clone, Debug, Default)]
pub struct BtfExt {
    pub funcs: Vec<SectionRecs<FuncRec>>,
    pub lines: Vec<SectionRecs<LineRec>>,
    pub core: Vec<SectionRecs<CoreRec>>,
}

impl BtfExt {
    pub fn parse(blob: &[u8]) -> Result<BtfExt, BtfError> {
        let bad = |what| BtfError::Ext { what };
        if blob.len() < 24 {
            return Err(bad("the header is truncated"));
        }
        let magic = u16::from_le_bytes([blob[0], blob[1]]);
        if magic != super::MAGIC {
            return Err(BtfError::Magic { found: magic });
        }
        let header_len = read_u32(blob, 4).unwrap_or(0) as usize;
        let part = |slot: usize| -> Result<&[u8], BtfError> {
            if slot + 8 > header_len {
                return Ok(&[]);
            }
            let off = read_u32(blob, slot).ok_or(bad("the header is truncated"))? as usize;
            let len = read_u32(blob, slot + 4).ok_or(bad("the header is truncated"))? as usize;
            let start = header_len.checked_add(off).ok_or(bad("a list is out of range"))?;
            let end = start.checked_add(len).ok_or(bad("a list is out of range"))?;
            blob.get(start..end).ok_or(bad("a list is out of range"))
        };
        Ok(BtfExt {
            funcs: parse_list(part(8)?, 8, |w| FuncRec { insn_off: w(0), type_id: w(1) })?,
            lines: parse_list(part(16)?, 16, |w| LineRec {
                insn_off: w(0),
                file_off: w(1),
                text_off: w(2),
                line: w(3) >> 10,
                column: w(3) & 0x3ff,
            })?,
            core: parse_list(part(24)?, 16, |w| CoreRec {
                insn_off: w(0),
                type_id: w(1),
                access_off: w(2),
                kind: w(3),
            })?,
        })
    }
}

/// Parses a list: the record size, then sections of (name, count, records). Records may be longer
/// than `known_len`, the part that `decode` reads.
fn parse_list<T>(
    list: &[u8],
    known_len: usize,
    decode: impl Fn(&dyn Fn(usize) -> u32) -> T,
) -> Result<Vec<SectionRecs<T>>, BtfError> {
    if list.is_empty() {
        return Ok(Vec::new());
    }
    let truncated = BtfError::Ext { what: "a record list is truncated" };
    let record_len = read_u32(list, 0).ok_or(truncated.clone())? as usize;
    if record_len < known_len || !record_len.is_multiple_of(4) {
        return Err(BtfError::Ext { what: "records are shorter than the format says" });
    }
    let mut sections = Vec::new();
    let mut rest = &list[4..];
    while !rest.is_empty() {
        let name = read_u32(rest, 0).ok_or(truncated.clone())?;
        let count = read_u32(rest, 4).ok_or(truncated.clone())? as usize;
        let len = count.checked_mul(record_len).ok_or(truncated.clone())?;
        let body = rest.get(8..).and_then(|b| b.get(..len)).ok_or(truncated.clone())?;
        let records = body
            .chunks_exact(record_len)
            .map(|raw| decode(&|i| read_u32(raw, i * 4).unwrap_or(0)))
            .collect();
        sections.push(SectionRecs { section_name_off: name, records });
        rest = &rest[8 + len..];
    }
    Ok(sections)
}

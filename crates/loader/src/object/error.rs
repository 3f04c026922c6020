// SPDX-License-Identifier: GPL-2.0-only
//! Errors in an object file.

use crate::btf::BtfError;

/// Name of the object and the error in it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("object \"{object}\": {what}")]
pub struct ObjectError {
    pub object: String,
    #[source]
    pub what: ObjectErrorKind,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectErrorKind {
    #[error("not a readable ELF file: {0}")]
    Elf(String),
    #[error("the ELF file is for machine {machine}, not for little-endian 64-bit BPF")]
    Machine { machine: u16 },
    #[error("it has no BTF type information (compile with -g)")]
    NoBtf,
    #[error(transparent)]
    Btf(#[from] BtfError),
    #[error("section \"{section}\": legacy map definitions are not supported; use .maps")]
    LegacyMaps { section: String },
    #[error(
        "section \"{section}\": function `{function}` at {offset}+{size} does not fit \
             ({len} bytes) or is not whole instructions"
    )]
    FunctionRange { section: String, function: String, offset: u64, size: u64, len: u64 },
    #[error("section \"{section}\": functions `{first}` and `{second}` overlap")]
    FunctionOverlap { section: String, first: String, second: String },
    #[error("section \"{section}\": static program `{function}`; a program must be global")]
    StaticProgram { section: String, function: String },
    #[error("section \"{section}\", insn {insn}: {what}")]
    Reloc { section: String, insn: u64, what: String },
    #[error("BTF: the relocation at offset {offset} of the section {what}")]
    BtfReloc { offset: u64, what: &'static str },
    #[error("section \"{section}\" has more than {max} {things}")]
    TooMany { section: String, things: &'static str, max: usize },
    #[error("extern `{name}`: {what}")]
    Extern { name: String, what: String },
    #[error("map `{map}`: {what}")]
    Map { map: String, what: String },
    #[error("struct_ops `{name}`: {what}")]
    StructOps { name: String, what: String },
    #[error(
        "section \"{section}\": variable `{variable}` at {offset}+{size} lies outside \
             its {len} bytes"
    )]
    Variable { section: String, variable: String, offset: u64, size: u64, len: u64 },
    #[error("more than one arena map (`{first}` and `{second}`)")]
    TwoArenas { first: String, second: String },
    #[error("section \"{section}\" holds arena variables, but the object defines no arena map")]
    NoArena { section: String },
}

impl ObjectErrorKind {
    pub fn map(map: &str, what: impl Into<String>) -> ObjectErrorKind {
        ObjectErrorKind::Map { map: map.to_owned(), what: what.into() }
    }

    pub fn struct_ops(name: &str, what: impl Into<String>) -> ObjectErrorKind {
        ObjectErrorKind::StructOps { name: name.to_owned(), what: what.into() }
    }

    pub fn external(name: &str, what: impl Into<String>) -> ObjectErrorKind {
        ObjectErrorKind::Extern { name: name.to_owned(), what: what.into() }
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! Errors in a type table, or in a query of one.

use super::BtfKind;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BtfError {
    #[error("BTF: magic is {found:#06x}, not 0xeb9f (big-endian objects are not supported)")]
    Magic { found: u16 },
    #[error("BTF: version {found} is not 1")]
    Version { found: u8 },
    #[error("BTF: {what} at offset {at} runs past the end ({len} bytes)")]
    Truncated { what: &'static str, at: usize, len: usize },
    #[error("BTF: more than {max} types")]
    TooManyTypes { max: usize },
    #[error("BTF: the string section does not start and end with a NUL")]
    StringSection,
    #[error("BTF: type [{id}] is of unknown kind {kind}")]
    UnknownKind { id: u32, kind: u8 },
    #[error("BTF: type [{at}] refers to type [{id}], but there are only {len}")]
    DanglingType { at: u32, id: u32, len: usize },
    #[error("BTF: type [{at}] has a name at {off}, past the string section")]
    DanglingString { at: u32, off: u32 },
    #[error("BTF: there is no type [{id}] ({len} types)")]
    NoSuchType { id: u32, len: usize },
    #[error("BTF: type [{id}] is nested too deep or refers to itself")]
    Cycle { id: u32 },
    #[error("BTF: the size of type [{id}] overflows")]
    SizeOverflow { id: u32 },
    #[error("BTF: type [{id}] ({kind:?}) has no size")]
    NoSize { id: u32, kind: BtfKind },
    #[error("BTF: walking type [{id}] takes too many steps")]
    TooComplex { id: u32 },
    #[error("BTF: type [{id}]: {what}")]
    BadSpecialField { id: u32, what: &'static str },
    #[error("BTF.ext: {what}")]
    Ext { what: &'static str },
}

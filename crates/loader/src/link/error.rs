// SPDX-License-Identifier: GPL-2.0-only
//! Errors that prevent loading an object into a simulation.

use crate::btf::BtfError;
use crate::core_relo::{CoreError, PatchError};
use scxlab_bpf::insn::DecodeError;
use scxlab_bpf::map::MapError;

/// Name of the object and the error that prevents loading it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("object \"{object}\": {what}")]
pub struct LinkError {
    pub object: String,
    #[source]
    pub what: LinkErrorKind,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LinkErrorKind {
    #[error("{}", missing(.0))]
    MissingExterns(Vec<MissingExtern>),
    #[error("extern `{name}`: {what}")]
    Extern { name: String, what: String },
    #[error("section \"{section}\", insn {insn}: {source}")]
    Core { section: String, insn: u32, source: CoreError },
    #[error("section \"{section}\", insn {insn}: CO-RE relocation of {field}: {source}")]
    Patch { section: String, insn: u32, field: String, source: PatchError },
    #[error("section \"{section}\", insn {insn}: {what}")]
    Code { section: String, insn: u32, what: String },
    #[error(transparent)]
    Decode(#[from] DecodeError),
    #[error(transparent)]
    Map(#[from] MapError),
    #[error("{0}")]
    Arena(String),
    #[error("struct_ops `{name}`: {what}")]
    StructOps { name: String, what: String },
    #[error(
        "its licence is \"{licence}\"; the kernel loads struct_ops programs only under one that is \
         compatible with the GPL (a section \"license\" with \"GPL\")"
    )]
    Licence { licence: String },
    /// libbpf loads no struct_ops program that no table has as a callback.
    #[error(
        "program `{program}` is a struct_ops program that no table names; name it in the table of \
         operations (SCX_OPS_DEFINE), or remove it"
    )]
    Unreferenced { program: String },
    #[error("program `{program}`: section \"{section}\" stands for no known program type")]
    ProgramType { program: String, section: String },
    #[error(transparent)]
    Btf(#[from] BtfError),
}

/// A strong extern that the kernel does not satisfy, so that the object does not load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MissingExtern {
    pub name: String,
    pub why: &'static str,
}

fn missing(list: &[MissingExtern]) -> String {
    let names: Vec<_> = list.iter().map(|m| format!("`{}` ({})", m.name, m.why)).collect();
    format!("the kernel lacks symbols that the object requires: {}", names.join(", "))
}

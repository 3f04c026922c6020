// SPDX-License-Identifier: GPL-2.0-only
//! Attachment of a linked object's `struct sched_ext_ops`.
//!
//! Owns: conversion of this struct, the ops table, into an `ExtProgram` and its `OpsData`.
//! Models: libbpf `bpf_map__attach_struct_ops()` and kernel `bpf_scx_reg()`, 7.3.

use super::OpsData;
use super::enable::AttachError;
use super::op::Op;
use super::program::ExtProgram;
use crate::kernel::Kernel;
use scxlab_bpf::vm::FuncId;
use scxlab_loader::link::{Loaded, LoadedStructOps};
use scxlab_loader::object::ProgramKind;
use std::rc::Rc;

/// Name of the kernel's struct whose instances, the ops tables of objects, can be attached.
const OPS_TYPE: &str = "sched_ext_ops";
/// Name of the form of `struct sched_ext_ops` in which CPUs are numbered by topology (cids). This
/// form is not modelled.
const OPS_CID_TYPE: &str = "sched_ext_ops_cid";

/// Reason why a linked object could not be attached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ObjectAttachError {
    #[error("the object has no struct_ops table named `{wanted}`; it has: {present}")]
    NoTable { wanted: String, present: String },
    #[error("the object has no struct sched_ext_ops, so it is not a scheduler")]
    NoScheduler,
    #[error(
        "struct_ops `{table}` is a struct sched_ext_ops_cid (CPUs numbered by topology), which is not modelled"
    )]
    CidForm { table: String },
    #[error("program `{program}` is sleepable (struct_ops.s), and ops.{member}() must not sleep")]
    Sleepable { member: &'static str, program: String },
    #[error(transparent)]
    Refused(#[from] AttachError),
}

impl Kernel {
    /// Attaches the ops table named `table` of a linked object, or its first ops table if None.
    pub fn attach_object(
        &mut self,
        loaded: &Loaded,
        table: Option<&str>,
    ) -> Result<(), ObjectAttachError> {
        let table = find_table(loaded, table)?;
        let mut funcs: [Option<FuncId>; Op::COUNT] = [None; Op::COUNT];
        for op in Op::ALL {
            funcs[op as usize] = table.callback(op.name());
        }
        check_sleepable(loaded, &funcs)?;
        let program = ExtProgram::Bpf { instance: loaded.instance, funcs: Rc::new(funcs) };
        if self.ext.root.is_none() {
            self.attach_tracing(loaded);
        }
        Ok(self.attach(program, ops_data(table))?)
    }
}

/// `bpf_scx_check_member()`: refuses a sleepable program in an operation that must not sleep.
fn check_sleepable(
    loaded: &Loaded,
    funcs: &[Option<FuncId>; Op::COUNT],
) -> Result<(), ObjectAttachError> {
    for (func, name, kind) in loaded.programs() {
        let ProgramKind::StructOps { sleepable: true } = kind else { continue };
        let at = Op::ALL.into_iter().find(|op| funcs[*op as usize] == Some(func));
        if let Some(op) = at.filter(|op| !op.may_be_sleepable()) {
            return Err(ObjectAttachError::Sleepable { member: op.name(), program: name.into() });
        }
    }
    Ok(())
}

/// Returns the scheduler's ops table named `wanted`, or the object's first one if None.
pub fn find_table<'a>(
    loaded: &'a Loaded,
    wanted: Option<&str>,
) -> Result<&'a LoadedStructOps, ObjectAttachError> {
    let schedulers = || loaded.struct_ops.iter().filter(|t| t.type_name.starts_with(OPS_TYPE));
    let found = match wanted {
        None => schedulers().next().ok_or(ObjectAttachError::NoScheduler)?,
        Some(name) => schedulers().find(|t| t.name == name).ok_or_else(|| {
            let present: Vec<&str> = schedulers().map(|t| &*t.name).collect();
            ObjectAttachError::NoTable { wanted: name.into(), present: present.join(", ") }
        })?,
    };
    // A flavour suffix (`___x`) of a type's name does not make another type.
    if scxlab_loader::btf::essential_name(&found.type_name) == OPS_CID_TYPE {
        return Err(ObjectAttachError::CidForm { table: found.name.clone() });
    }
    Ok(found)
}

fn ops_data(table: &LoadedStructOps) -> OpsData {
    OpsData {
        name: table.str("name"),
        flags: table.u64("flags"),
        timeout_ms: table.u64("timeout_ms") as u32,
        dispatch_max_batch: table.u64("dispatch_max_batch") as u32,
        exit_dump_len: table.u64("exit_dump_len") as u32,
        hotplug_seq: table.u64("hotplug_seq"),
    }
}

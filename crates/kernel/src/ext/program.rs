// SPDX-License-Identifier: GPL-2.0-only
//! The code of a scheduler: a linked BPF object, or Rust code that replaces one in tests.
//!
//! Owns: the map from operations to code.

use super::op::Op;
use crate::kernel::Kernel;
use scxlab_bpf::vm::{FuncId, InstanceId};
use std::rc::Rc;

/// A scheduler written in Rust. It calls the functions that implement the kfuncs
/// (`Kernel::kf_*`).
pub trait NativeOps {
    fn has(&self, op: Op) -> bool;
    /// Carries out an operation. Tasks and cgroups in `args` are guest addresses, as in a BPF
    /// context.
    fn call(&self, k: &mut Kernel, op: Op, args: &[u64]) -> u64;
}

/// The code of a scheduler.
#[derive(Clone)]
pub enum ExtProgram {
    Bpf { instance: InstanceId, funcs: Rc<[Option<FuncId>; Op::COUNT]> },
    Native(Rc<dyn NativeOps>),
}

impl ExtProgram {
    pub fn has(&self, op: Op) -> bool {
        match self {
            ExtProgram::Bpf { funcs, .. } => funcs[op as usize].is_some(),
            ExtProgram::Native(ops) => ops.has(op),
        }
    }
}

impl std::fmt::Debug for ExtProgram {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            ExtProgram::Bpf { instance, .. } => write!(f, "Bpf({instance:?})"),
            ExtProgram::Native(_) => f.write_str("Native"),
        }
    }
}

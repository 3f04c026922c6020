// SPDX-License-Identifier: GPL-2.0-only
//! Running a function of an instance, by whichever engine has it.
//!
//! Owns: what is checked before either engine starts. Does not: execute (see `interp.rs` and `crate::jit`).

use std::sync::Arc;

use super::interp::{self, MAX_FRAMES, Start};
use super::{FuncId, Host, InstanceId};
use crate::fault::{Fault, FaultKind};
use crate::jit;

/// Run `func` in frame `depth` of the current stack level until it returns.
pub(crate) fn run<H: Host>(
    h: &mut H,
    instance: InstanceId,
    func: FuncId,
    depth: u32,
    args: [u64; 5],
) -> Result<u64, Fault> {
    let vm = h.vm();
    let max_depth = vm.limits.call_depth.min(MAX_FRAMES as u32);
    if depth >= max_depth {
        return Err(Fault::new(FaultKind::CallDepth { max: max_depth }));
    }
    let Some(found) = vm.instance(instance) else {
        return Err(missing(format!("no instance {}", instance.0)));
    };
    // SAFETY: while a program runs, its instance keeps its image and code: `Vm::install` and `remove_instance` refuse.
    // Counted references instead would cost two atomic operations each per call of a program.
    let (image, code) = unsafe {
        (&*Arc::as_ptr(&found.image), found.code.as_ref().map(|code| &*Arc::as_ptr(code)))
    };
    let arena_base = found.arena_base;
    // A helper may call a straight line back very often: nothing in it would stop.
    if vm.executed >= vm.deadline {
        return Err(Fault::new(FaultKind::InsnLimit { limit: vm.limits.insns_per_call }));
    }
    let start = Start { instance, image, arena_base, func, depth, max_depth };
    match code {
        Some(code) => jit::run(h, &start, &args, code),
        None => interp::run(h, &start, &args),
    }
}

/// What is called is not there: the host's mistake.
#[cold]
pub(crate) fn missing(what: String) -> Fault {
    Fault::new(FaultKind::Other(what))
}

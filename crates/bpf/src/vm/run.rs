// SPDX-License-Identifier: GPL-2.0-only
//! Running a function of an instance, by whichever engine has it.
//!
//! Owns: what is checked before either engine starts. Does not: execute (see `interp.rs` and `crate::jit`).
//!
//! An operation of a scheduler executes some ten instructions, so what stands around it counts: a function that has
//! machine code is entered without a call on the way, and everything else is out of line.

use std::sync::Arc;

use super::interp::{self, Start};
use super::{FuncId, Host, InstanceId, Vm};
use crate::fault::{Fault, FaultKind};
use crate::jit::{self, Entry};

/// Run `func` in frame `depth` of the current stack level until it returns.
#[inline(always)]
pub(crate) fn run<H: Host>(
    h: &mut H,
    instance: InstanceId,
    func: FuncId,
    depth: u32,
    args: [u64; 5],
) -> Result<u64, Fault> {
    match h.vm().ready(instance, func, depth) {
        Some(entry) => jit::call(h, entry, depth, &args),
        None => begin(h, instance, func, depth, &args),
    }
}

impl Vm {
    /// The function's machine code, if it has any and nothing forbids to enter it.
    #[inline(always)]
    fn ready(&self, instance: InstanceId, func: FuncId, depth: u32) -> Option<Entry> {
        if self.executed >= self.deadline {
            return None;
        }
        let found = self.instance(instance)?;
        found.code()?.entry(func, found, self.stacks.max_depth().saturating_sub(depth))
    }
}

/// As `run`, where there is no machine code yet, or something is wrong.
#[inline(never)]
fn begin<H: Host>(
    h: &mut H,
    instance: InstanceId,
    func: FuncId,
    depth: u32,
    args: &[u64; 5],
) -> Result<u64, Fault> {
    let vm = h.vm();
    let max_depth = vm.stacks.max_depth();
    if depth >= max_depth {
        return Err(Fault::new(FaultKind::CallDepth { max: max_depth }));
    }
    let Some(found) = vm.instance(instance) else {
        return Err(missing(format!("no instance {}", instance.0)));
    };
    // A helper may call a straight line back very often: nothing in it would stop.
    if vm.executed >= vm.deadline {
        return Err(Fault::new(FaultKind::InsnLimit { limit: vm.limits.insns_per_call }));
    }
    if let Some(entry) = found.code().and_then(|code| code.due(func, found, max_depth - depth)) {
        return jit::call(h, entry, depth, args);
    }
    // SAFETY: while a program runs, its instance keeps its image and code: `Vm::install` and `remove_instance` refuse.
    // Counted references instead would cost two atomic operations each per call of a program.
    let (image, code) = unsafe {
        (&*Arc::as_ptr(&found.image), found.code.as_ref().map(|code| &*Arc::as_ptr(code)))
    };
    let start = Start { instance, image, arena_base: found.arena_base, func, depth, max_depth };
    let before = vm.executed;
    let result = interp::run(h, &start, args);
    if let Some(code) = code {
        code.warm(func, h.vm().executed.saturating_sub(before));
    }
    result
}

/// What is called is not there: the host's mistake.
#[cold]
pub(crate) fn missing(what: String) -> Fault {
    Fault::new(FaultKind::Other(what))
}

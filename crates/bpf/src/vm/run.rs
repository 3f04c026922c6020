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
use crate::jit::{self, Entry, Place};

/// Run `func` in frame `depth` of the current stack level until it returns. `setup` gives it r1 to r5.
#[inline(always)]
pub(crate) fn run<H: Host>(
    h: &mut H,
    instance: InstanceId,
    func: FuncId,
    depth: u32,
    setup: impl FnOnce(&mut Vm) -> [u64; 5],
) -> Result<u64, Fault> {
    let vm = h.vm();
    let Some(entry) = vm.ready(instance, func, depth) else {
        let args = setup(vm);
        return begin(h, instance, func, depth, &args);
    };
    let args = setup(vm);
    jit::call(h, entry, args)
}

impl Vm {
    /// The function's machine code, if it has any and nothing forbids to enter it.
    #[inline(always)]
    fn ready(&mut self, instance: InstanceId, func: FuncId, depth: u32) -> Option<Entry> {
        let (executed, deadline) = (self.executed, self.deadline);
        if executed >= deadline {
            return None;
        }
        let fp = self.stacks.frame_pointer(depth);
        if !self.contexts.next().is_for(instance, fp) && !self.introduce(instance, depth) {
            return None;
        }
        let ctx = self.contexts.next();
        ctx.entry(func, executed, deadline)
    }

    /// The next entry into code is one of `instance`, in frame `depth`; false if it cannot be.
    #[cold]
    #[inline(never)]
    fn introduce(&mut self, instance: InstanceId, depth: u32) -> bool {
        let Some(found) = self.instances.get(instance.idx()).and_then(Option::as_ref) else {
            return false;
        };
        let max_depth = self.stacks.max_depth();
        if depth >= max_depth {
            return false;
        }
        let place = Place {
            depth,
            frames: max_depth - depth,
            fp: self.stacks.frame_pointer(depth),
            fp_min: self.stacks.frame_pointer(max_depth - 1),
            may_goto: self.limits.may_goto.into(),
        };
        self.contexts.stranger(&self.mem).introduce(found, &place)
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
    if found.code().is_some_and(|code| code.due(func))
        && let Some(entry) = h.vm().ready(instance, func, depth)
    {
        return jit::call(h, entry, *args);
    }
    let vm = h.vm();
    let Some(found) = vm.instance(instance) else {
        return Err(missing(format!("no instance {}", instance.0)));
    };
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

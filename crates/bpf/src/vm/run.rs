// SPDX-License-Identifier: GPL-2.0-only
//! Entry into a function of an instance: into its machine code, or into the interpreter if the
//! function has no machine code.
//!
//! Owns: the checks before either engine starts. Does not: execute (see `interp.rs` and
//! `crate::jit`).
//!
//! A scheduler callback executes about ten instructions, so the overhead of an entry matters: the
//! path into machine code is inlined into the caller, and everything else is out of line.

use std::ptr;
use std::sync::Arc;

use super::interp::{self, Invocation};
use super::{FuncId, Host, InstanceId, Vm};
use crate::fault::{Fault, FaultKind};
use crate::jit::{self, Args, CodeEntry, EntryFrame};

/// Runs `func` until it returns, in frame `depth` of the guest stack of the innermost program.
/// `setup` supplies r1 to r5.
#[inline(always)]
pub(crate) fn run<H: Host>(
    h: &mut H,
    instance: InstanceId,
    func: FuncId,
    depth: u32,
    setup: impl FnOnce(&mut Vm) -> Args,
) -> Result<u64, Fault> {
    let vm = h.vm();
    let args = setup(vm);
    match vm.ready(instance, func, &args, depth) {
        Some(entry) => jit::call(h, entry, args),
        None => begin(h, instance, func, depth, &args.all()),
    }
}

/// Does what `run` does, for a program that the kernel calls while no other program runs. The
/// instruction limit counts from this call on.
#[inline(always)]
pub(crate) fn run_outermost<H: Host>(
    h: &mut H,
    instance: InstanceId,
    func: FuncId,
    setup: impl FnOnce(&mut Vm) -> Args,
) -> Result<u64, Fault> {
    let vm = h.vm();
    let args = setup(vm);
    let executed = vm.executed;
    let deadline = executed.saturating_add(vm.limits.insns_per_call);
    vm.deadline = deadline;
    let known = vm.contexts.outermost().is_of(instance) || vm.prepare_outermost_context(instance);
    if known
        && executed < deadline
        && let Some(entry) = vm.contexts.outermost().entry(func, &args, executed, deadline)
    {
        let at = ptr::from_mut(vm.contexts.outermost());
        // SAFETY: the entry was found for this context, and the kernel enters no other outermost
        // program until this one has ended.
        return unsafe { jit::call_in(h, at, entry, args) };
    }
    begin_outermost(h, instance, func, args.all(), known)
}

/// Does what `run_outermost` does, for a function that takes more arguments than r1, such as one
/// that calls a helper before it has set r2 to r5, and for a function without machine code. `known`
/// tells that the outermost context is set up for the instance.
#[inline(never)]
fn begin_outermost<H: Host>(
    h: &mut H,
    instance: InstanceId,
    func: FuncId,
    args: [u64; 5],
    known: bool,
) -> Result<u64, Fault> {
    let vm = h.vm();
    let (executed, deadline, all) = (vm.executed, vm.deadline, Args::All(args));
    if known
        && executed < deadline
        && let Some(entry) = vm.contexts.outermost().entry(func, &all, executed, deadline)
    {
        let at = ptr::from_mut(vm.contexts.outermost());
        // SAFETY: as in `run_outermost`.
        return unsafe { jit::call_in(h, at, entry, all) };
    }
    begin(h, instance, func, 0, &args)
}

impl Vm {
    /// Returns the entry into the function's machine code; None if the function has no machine
    /// code, or if a limit forbids the entry now.
    #[inline(always)]
    fn ready(
        &mut self,
        instance: InstanceId,
        func: FuncId,
        args: &Args,
        depth: u32,
    ) -> Option<CodeEntry> {
        let (executed, deadline) = (self.executed, self.deadline);
        if executed >= deadline {
            return None;
        }
        let fp = self.stacks.frame_pointer(depth);
        if !self.contexts.next().is_for(instance, fp) && !self.prepare_context(instance, depth) {
            return None;
        }
        let ctx = self.contexts.next();
        ctx.entry(func, args, executed, deadline)
    }

    /// Prepares the next context for code of `instance` in frame `depth`. Returns false if `depth`
    /// is too deep, or if the instance has no machine code.
    #[cold]
    #[inline(never)]
    fn prepare_context(&mut self, instance: InstanceId, depth: u32) -> bool {
        let Some(place) = self.place(depth) else { return false };
        let found = self.instances.get(instance.idx()).and_then(Option::as_ref);
        found.is_some_and(|found| self.contexts.next_for_setup(&self.mem).set_up(found, &place))
    }

    /// Does what `prepare_context` does, for a program that the kernel calls while no other program
    /// runs.
    #[cold]
    #[inline(never)]
    fn prepare_outermost_context(&mut self, instance: InstanceId) -> bool {
        let Some(place) = self.place(0) else { return false };
        let found = self.instances.get(instance.idx()).and_then(Option::as_ref);
        found.is_some_and(|found| self.contexts.outermost().set_up(found, &place))
    }

    /// Describes frame `depth` of the guest stack of the innermost program; None if `depth` is
    /// beyond the limit on the number of frames.
    fn place(&self, depth: u32) -> Option<EntryFrame> {
        let max_depth = self.stacks.max_depth();
        let frames = max_depth.checked_sub(depth).filter(|frames| *frames > 0)?;
        let fp = self.stacks.frame_pointer(depth);
        let fp_min = self.stacks.frame_pointer(max_depth - 1);
        Some(EntryFrame { depth, frames, fp, fp_min, may_goto: self.limits.may_goto.into() })
    }
}

/// Does what `run` does, for a function without machine code and for entries that end in a fault.
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
    // Check the limit here: a helper may call back a function without loops very often, and no
    // instruction of such a function checks the limit.
    if vm.executed >= vm.deadline {
        return Err(Fault::new(FaultKind::InsnLimit { limit: vm.limits.insns_per_call }));
    }
    if found.code().is_some_and(|code| code.compile_if_due(func))
        && let Some(entry) = h.vm().ready(instance, func, &Args::All(*args), depth)
    {
        return jit::call(h, entry, Args::All(*args));
    }
    let vm = h.vm();
    let Some(found) = vm.instance(instance) else {
        return Err(missing(format!("no instance {}", instance.0)));
    };
    // SAFETY: while a program runs, its instance keeps its image and code: `Vm::install` and
    // `remove_instance` refuse to change them. Reference counting would cost two atomic operations
    // per call of a program.
    let (image, code) = unsafe {
        (&*Arc::as_ptr(&found.image), found.code.as_ref().map(|code| &*Arc::as_ptr(code)))
    };
    let start =
        Invocation { instance, image, arena_base: found.arena_base, func, depth, max_depth };
    let before = vm.executed;
    let result = interp::run(h, &start, args);
    if let Some(code) = code {
        code.count_interpreted(func, h.vm().executed.saturating_sub(before));
    }
    result
}

/// Returns the fault for a missing instance or function, which is a mistake of the host.
#[cold]
pub(crate) fn missing(what: String) -> Fault {
    Fault::new(FaultKind::Other(what))
}

// SPDX-License-Identifier: GPL-2.0-only
//! Between Rust and machine code: the call into it, and the ways out of it, for each type of host.
//!
//! Owns: the context during a call, faults' places, and that no panic unwinds through code that has no tables for it.
//! Does not: decide which engine runs (see `crate::jit`).
//!
//! A panic of the host is caught where the code called out, travels out of it as a failure, and goes on where the code
//! was entered. While code runs, it and the ways out take turns: nothing else refers to the context or the host.

use std::any::Any;
use std::mem::{MaybeUninit, transmute};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;

use super::Code;
use super::ctx::{Calls, Ctx, FAILED, Pair, Refused, WHY_DEPTH};
use super::memory::is_atomic;
use crate::fault::{Fault, FaultKind};
use crate::insn::uses::is_load;
use crate::insn::{Op, access_size, func_of_addr};
use crate::kfunc::KfuncId;
use crate::mem::GUEST_BASE;
use crate::vm::interp::{Start, call_kfunc, load_slow, locate, probes, signed, store_slow};
use crate::vm::stack::FRAME;
use crate::vm::{CallSite, FuncId, Host, run};

/// The address of a compiled function and of what its refused accesses call, and how many of r1 to r5 it takes.
#[derive(Clone, Copy)]
pub struct Entry {
    pub code: *const u8,
    pub access: *const u8,
    pub arguments: u8,
}

/// Run a compiled function until it returns.
#[inline]
pub fn call<H: Host>(
    h: &mut H,
    start: &Start<'_>,
    args: &[u64; 5],
    code: &Code,
    entry: Entry,
) -> Result<u64, Fault> {
    let vm = h.vm();
    let (base, perms) = vm.mem.raw();
    let fp = vm.stacks.frame_pointer(start.depth);
    let executed = vm.executed;
    let mut ctx = Ctx {
        base: base.wrapping_sub(GUEST_BASE as usize),
        perms,
        deadline: vm.deadline,
        fp_min: vm.stacks.frame_pointer(start.max_depth - 1),
        arena_base: start.arena_base,
        may_goto: vm.limits.may_goto.into(),
        calls: Ways::<H>::TABLE,
        access: entry.access,
        refused: Refused::default(),
        args: MaybeUninit::uninit(),
        target: 0,
        executed: 0,
        why: 0,
        nr_pcs: 0,
        pcs: [0; 8],
        regs: [0; 10],
        host: ptr::from_mut(h).cast(),
        start: ptr::from_ref(start).cast(),
        code,
        fp,
        fault: None,
        panic: None,
    };
    // SAFETY: `entry` is of this image's code, compiled for the memory's size and with so many arguments; `code` keeps it.
    // Everything that the context points to outlives the call, and the host is not touched here until it is over.
    let pair = unsafe { jump(entry, &mut ctx, executed, fp, args) };
    if pair.executed == FAILED {
        return Err(failed(h, start, ctx));
    }
    // Only a failure puts something there.
    std::mem::forget((ctx.fault, ctx.panic));
    h.vm().executed = pair.executed;
    Ok(pair.value)
}

/// # Safety
/// The code must take that many arguments, and the context fit it.
#[inline]
unsafe fn jump(entry: Entry, ctx: *mut Ctx, executed: u64, fp: u64, args: &[u64; 5]) -> Pair {
    type C = *mut Ctx;
    type R = u64;
    let [a, b, c, d, e] = *args;
    let code = entry.code;
    // SAFETY: the caller says how many arguments the code takes.
    unsafe {
        match entry.arguments {
            0 => transmute::<*const u8, extern "C" fn(C, R, R) -> Pair>(code)(ctx, executed, fp),
            1 => transmute::<*const u8, extern "C" fn(C, R, R, R) -> Pair>(code)(
                ctx, executed, fp, a,
            ),
            2 => transmute::<*const u8, extern "C" fn(C, R, R, R, R) -> Pair>(code)(
                ctx, executed, fp, a, b,
            ),
            3 => transmute::<*const u8, extern "C" fn(C, R, R, R, R, R) -> Pair>(code)(
                ctx, executed, fp, a, b, c,
            ),
            4 => transmute::<*const u8, extern "C" fn(C, R, R, R, R, R, R) -> Pair>(code)(
                ctx, executed, fp, a, b, c, d,
            ),
            _ => transmute::<*const u8, extern "C" fn(C, R, R, R, R, R, R, R) -> Pair>(code)(
                ctx, executed, fp, a, b, c, d, e,
            ),
        }
    }
}

/// What stopped the code: a panic goes on, a fault gets the places of the code's frames.
#[cold]
fn failed<H: Host>(h: &mut H, start: &Start<'_>, ctx: Ctx) -> Fault {
    if let Some(panic) = ctx.panic {
        resume_unwind(panic);
    }
    let vm = h.vm();
    vm.executed = ctx.executed;
    let limit = vm.limits.insns_per_call;
    let fault = ctx.fault.unwrap_or_else(|| {
        Fault::new(match ctx.why {
            WHY_DEPTH => FaultKind::CallDepth { max: start.max_depth },
            _ => FaultKind::InsnLimit { limit },
        })
    });
    let pcs = &ctx.pcs[..ctx.nr_pcs as usize];
    let innermost = ctx.fp.wrapping_sub((pcs.len() as u64).saturating_sub(1) * FRAME);
    locate(h, start.instance, fault, pcs, |reg| ctx.regs.get(reg).copied().unwrap_or(innermost))
}

/// The ways out for hosts of one type.
struct Ways<H>(std::marker::PhantomData<H>);

impl<H: Host> Ways<H> {
    const TABLE: &'static Calls = &Calls {
        helper: helper::<H>,
        kfunc: kfunc::<H>,
        func: func::<H>,
        func_reg: func_reg::<H>,
        access: access::<H>,
    };
}

/// Runs a part of the host for the code. A fault or a panic is kept for when the code has been left.
///
/// # Safety
/// `ctx` is the context that `call` made for this type of host, and its code is waiting for the result.
unsafe fn outside<H: Host, T>(
    ctx: *mut Ctx,
    work: impl FnOnce(&mut H, &Ctx, &Start<'_>) -> Result<T, Fault>,
) -> Option<T> {
    // SAFETY: as the caller says; all three live on in `call`.
    let (context, host, start) = unsafe { (&*ctx, &mut *(*ctx).host.cast::<H>(), &*(*ctx).start) };
    let result = catch_unwind(AssertUnwindSafe(|| work(host, context, start)));
    let (fault, panic): (Option<Fault>, Option<Box<dyn Any + Send>>) = match result {
        Ok(Ok(value)) => return Some(value),
        Ok(Err(fault)) => (Some(fault), None),
        Err(panic) => (None, Some(panic)),
    };
    // SAFETY: as above; the shared borrow has ended.
    unsafe {
        ((*ctx).fault, (*ctx).panic) = (fault, panic);
        (*ctx).executed = (*(*ctx).host.cast::<H>()).vm().executed;
    }
    None
}

const STOPPED: Pair = Pair { value: 0, executed: FAILED };

/// A call out of the program: the counter is up to date meanwhile, and may have moved afterwards.
///
/// # Safety
/// As `outside`.
unsafe fn call_out<H: Host>(
    ctx: *mut Ctx,
    executed: u64,
    work: impl FnOnce(&mut H, &Ctx, &Start<'_>) -> Result<u64, Fault>,
) -> Pair {
    let counted = |h: &mut H, ctx: &Ctx, start: &Start<'_>| {
        h.vm().executed = executed;
        let value = work(h, ctx, start)?;
        let vm = h.vm();
        if vm.executed >= vm.deadline {
            return Err(Fault::new(FaultKind::InsnLimit { limit: vm.limits.insns_per_call }));
        }
        Ok(Pair { value, executed: vm.executed })
    };
    // SAFETY: as the caller says.
    unsafe { outside(ctx, counted) }.unwrap_or(STOPPED)
}

/// Where a call comes from: its slot is in the lower half of `which`.
fn site(ctx: &Ctx, start: &Start<'_>, which: u64, fp: u64) -> CallSite {
    let frames = ctx.fp.wrapping_sub(fp) / FRAME;
    CallSite { instance: start.instance, pc: which as u32, depth: start.depth + frames as u32 }
}

unsafe extern "C" fn helper<H: Host>(ctx: *mut Ctx, which: u64, fp: u64, executed: u64) -> Pair {
    let work = |h: &mut H, ctx: &Ctx, start: &Start<'_>| {
        let vm = h.vm();
        vm.helper_calls = vm.helper_calls.wrapping_add(1);
        let site = site(ctx, start, which, fp);
        crate::helper::call(h, site, (which >> 32) as u32, arguments(ctx))
    };
    // SAFETY: compiled code passes its context.
    unsafe { call_out::<H>(ctx, executed, work) }
}

unsafe extern "C" fn kfunc<H: Host>(ctx: *mut Ctx, which: u64, fp: u64, executed: u64) -> Pair {
    let work = |h: &mut H, ctx: &Ctx, start: &Start<'_>| {
        let vm = h.vm();
        vm.kfunc_calls = vm.kfunc_calls.wrapping_add(1);
        let site = site(ctx, start, which, fp);
        call_kfunc(h, site, KfuncId((which >> 32) as u32), arguments(ctx))
    };
    // SAFETY: compiled code passes its context.
    unsafe { call_out::<H>(ctx, executed, work) }
}

/// The caller has checked depth and limit, and `fp` is the new frame's.
unsafe extern "C" fn func<H: Host>(ctx: *mut Ctx, which: u64, fp: u64, executed: u64) -> Pair {
    let work = |h: &mut H, ctx: &Ctx, start: &Start<'_>| {
        h.vm().executed = executed;
        // SAFETY: `call` was given the code by reference.
        let func = unsafe { &*ctx.code }.func_at((which >> 32) as u32);
        let depth = site(ctx, start, which, fp).depth;
        let value = run(h, start.instance, func, depth, arguments(ctx))?;
        Ok(Pair { value, executed: h.vm().executed })
    };
    // SAFETY: compiled code passes its context.
    unsafe { outside::<H, Pair>(ctx, work) }.unwrap_or(STOPPED)
}

/// `fp` is the caller's frame.
unsafe extern "C" fn func_reg<H: Host>(ctx: *mut Ctx, which: u64, fp: u64, executed: u64) -> Pair {
    let work = |h: &mut H, ctx: &Ctx, start: &Start<'_>| {
        let vm = h.vm();
        vm.executed = executed;
        let (deadline, limit) = (vm.deadline, vm.limits.insns_per_call);
        let addr = ctx.target;
        let known = |func: &FuncId| start.image.func(*func).is_some();
        let Some(func) = func_of_addr(addr).filter(known) else {
            return Err(Fault::new(FaultKind::BadCall { addr }));
        };
        let depth = site(ctx, start, which, fp).depth + 1;
        if depth >= start.max_depth {
            return Err(Fault::new(FaultKind::CallDepth { max: start.max_depth }));
        }
        if executed >= deadline {
            return Err(Fault::new(FaultKind::InsnLimit { limit }));
        }
        let value = run(h, start.instance, func, depth, arguments(ctx))?;
        Ok(Pair { value, executed: h.vm().executed })
    };
    // SAFETY: compiled code passes its context.
    unsafe { outside::<H, Pair>(ctx, work) }.unwrap_or(STOPPED)
}

/// r1 to r5 of the call out that is under way.
fn arguments(ctx: &Ctx) -> [u64; 5] {
    // SAFETY: the code writes all five before it calls out, and only calls out come here.
    unsafe { ctx.args.assume_init() }
}

/// An access that the code's check refused: it is done here if it may be.
unsafe extern "C" fn access<H: Host>(ctx: *mut Ctx) {
    let work = |h: &mut H, ctx: &Ctx, start: &Start<'_>| {
        let Refused { addr, slot, value, r0, executed, .. } = ctx.refused;
        let op = start.image.code[slot as usize].op;
        let size = access_size(op).unwrap_or(8) as u32;
        let load = |h: &mut H| load_slow(h, addr, size, probes(op), start.arena_base);
        if is_load(op) {
            let value = load(h)?;
            return Ok(if signed(op) { extended(value, size) } else { value });
        }
        h.vm().executed = executed;
        if !is_atomic(op) {
            store_slow(h, addr, size, value, start.arena_base)?;
            return Ok(0);
        }
        let old = load(h)?;
        let new = changed(op, old, value, r0, size);
        store_slow(h, addr, size, new, start.arena_base)?;
        Ok(old)
    };
    // SAFETY: compiled code passes its context.
    let result = unsafe { outside::<H, u64>(ctx, work) };
    // SAFETY: as above; no reference to the context is left.
    let refused = unsafe { &mut (*ctx).refused };
    refused.failed = u64::from(result.is_none());
    refused.result = result.unwrap_or(0);
}

/// The sign of a value of so many bytes, upwards.
fn extended(value: u64, size: u32) -> u64 {
    let above = 64 - 8 * size;
    ((value << above) as i64 >> above) as u64
}

/// What an atomic operation writes; the store takes as many bytes of it as there are.
fn changed(op: Op, old: u64, operand: u64, r0: u64, size: u32) -> u64 {
    use Op::*;
    let mask = u64::MAX >> (64 - 8 * size);
    match op {
        AtomicAddW | AtomicAddDw | AtomicFetchAddW | AtomicFetchAddDw => old.wrapping_add(operand),
        AtomicOrW | AtomicOrDw | AtomicFetchOrW | AtomicFetchOrDw => old | operand,
        AtomicAndW | AtomicAndDw | AtomicFetchAndW | AtomicFetchAndDw => old & operand,
        AtomicXorW | AtomicXorDw | AtomicFetchXorW | AtomicFetchXorDw => old ^ operand,
        AtomicCmpxchgW | AtomicCmpxchgDw if old != r0 & mask => old,
        _ => operand,
    }
}

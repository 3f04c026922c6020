// SPDX-License-Identifier: GPL-2.0-only
//! Between Rust and machine code: the call into it, and the ways out of it, for each type of host.
//!
//! Owns: the context during a call, faults' places, and that no panic unwinds through code that has no tables for it.
//! Does not: decide which engine runs (see `crate::jit`).
//!
//! A panic of the host is caught where the code called out, travels out of it as a failure, and goes on where the code
//! was entered. While code runs, it and the ways out take turns: nothing else refers to the context or the host.

use std::any::Any;
use std::mem::transmute;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;

use super::Code;
use super::ctx::{Calls, Ctx, FAILED, Pair, Refused, WHY_DEPTH};
use super::memory::is_atomic;
use crate::fault::{Fault, FaultKind};
use crate::insn::uses::is_load;
use crate::insn::{Op, access_size, func_of_addr};
use crate::kfunc::KfuncId;
use crate::vm::interp::{call_kfunc, load_slow, locate, probes, signed, store_slow};
use crate::vm::stack::FRAME;
use crate::vm::{FuncId, Host, Vm, run};

/// A compiled function's address, and the count so far.
#[derive(Clone, Copy)]
pub struct Entry {
    pub code: *const u8,
    pub executed: u64,
}

/// What a function is entered with.
#[derive(Clone, Copy)]
pub enum Args {
    /// r1; r2 to r5 are 0.
    One(u64),
    All([u64; 5]),
}

impl Args {
    #[inline(always)]
    pub fn all(self) -> [u64; 5] {
        match self {
            Args::One(r1) => [r1, 0, 0, 0, 0],
            Args::All(all) => all,
        }
    }
}

/// Run a compiled function until it returns: in the next context, which `entry` has just been found for.
#[inline(always)]
pub fn call<H: Host>(h: &mut H, entry: Entry, args: Args) -> Result<u64, Fault> {
    let at = h.vm().contexts.take();
    // SAFETY: nobody else has it until it is given back.
    let value = unsafe { call_in(h, at, entry, args) }?;
    h.vm().contexts.give_back(at);
    Ok(value)
}

/// As `call`, in that context. After a fault it has been left.
///
/// # Safety
/// `entry` has just been found for the context, and nobody else uses that until it is left.
#[inline(always)]
pub unsafe fn call_in<H: Host>(
    h: &mut H,
    at: *mut Ctx,
    entry: Entry,
    args: Args,
) -> Result<u64, Fault> {
    let (host, cpu) = (ptr::from_mut(h).cast(), h.cpu());
    // SAFETY: as the caller says.
    let ctx = unsafe { &mut *at };
    (ctx.calls, ctx.host, ctx.cpu) = (Ways::<H>::TABLE, host, cpu.into());
    let fp = ctx.fp;
    // SAFETY: `entry` is of the instance's code, compiled for the memory's size; the instance keeps it. Everything that the
    // context points to outlives the call, and the host is not touched here until it is over.
    let pair = unsafe { jump(entry, at, fp, args) };
    if pair.executed == FAILED {
        return Err(failed(h, at));
    }
    h.vm().executed = pair.executed;
    Ok(pair.value)
}

/// Passes all arguments that code may take; both calling conventions let it ignore those that it does not.
///
/// # Safety
/// The code must be a function's, which takes no more than one argument if that is all, and the context fit it.
#[inline(always)]
unsafe fn jump(entry: Entry, ctx: *mut Ctx, fp: u64, args: Args) -> Pair {
    type R = u64;
    type Simple = extern "C" fn(*mut Ctx, R, R, R) -> Pair;
    type Code = extern "C" fn(*mut Ctx, R, R, R, R, R, R, R) -> Pair;
    match args {
        Args::One(r1) => {
            // SAFETY: compiled functions have this signature, or it without the last argument.
            let code = unsafe { transmute::<*const u8, Simple>(entry.code) };
            code(ctx, entry.executed, fp, r1)
        }
        Args::All([a, b, c, d, e]) => {
            // SAFETY: as above, without some of the last arguments.
            let code = unsafe { transmute::<*const u8, Code>(entry.code) };
            code(ctx, entry.executed, fp, a, b, c, d, e)
        }
    }
}

/// What stopped the code: a panic goes on, a fault gets the places of the code's frames. The context is left.
#[cold]
#[inline(never)]
fn failed<H: Host>(h: &mut H, at: *mut Ctx) -> Fault {
    let vm = h.vm();
    vm.contexts.left(at);
    // SAFETY: the code has been left, so nobody else uses it; nothing takes it before this returns.
    let ctx = unsafe { &mut *at };
    let (fault, panic, pcs, regs) = (ctx.fault.take(), ctx.panic.take(), ctx.pcs, ctx.regs);
    let (executed, why, nr_pcs) = (ctx.executed, ctx.why, ctx.nr_pcs as usize);
    ctx.recover();
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
    vm.executed = executed;
    let limit = vm.limits.insns_per_call;
    let max_depth = vm.stacks.max_depth();
    let fault = fault.unwrap_or_else(|| {
        Fault::new(match why {
            WHY_DEPTH => FaultKind::CallDepth { max: max_depth },
            _ => FaultKind::InsnLimit { limit },
        })
    });
    let pcs = &pcs[..nr_pcs];
    let innermost = ctx.fp.wrapping_sub((pcs.len() as u64).saturating_sub(1) * FRAME);
    locate(h, ctx.instance, fault, pcs, |reg| regs.get(reg).copied().unwrap_or(innermost))
}

/// The ways out for hosts of one type.
struct Ways<H>(std::marker::PhantomData<H>);

impl<H: Host> Ways<H> {
    const TABLE: &'static Calls = &Calls {
        helper: helper::<H>,
        kfunc: kfunc::<H, true>,
        kfunc4: kfunc::<H, false>,
        func: func::<H>,
        func_reg: func_reg::<H>,
        access: access::<H>,
    };
}

/// Runs a part of the host for the code. A fault or a panic is kept for when the code has been left.
///
/// # Safety
/// `ctx` is the context that `call` made for this type of host, and its code is waiting for the result.
#[inline(always)]
unsafe fn outside<H: Host, T>(
    ctx: *mut Ctx,
    work: impl FnOnce(&mut H, &Ctx) -> Result<T, Fault>,
) -> Option<T> {
    // SAFETY: as the caller says; both live on in `call`.
    let (context, host) = unsafe { (&*ctx, &mut *(*ctx).host.cast::<H>()) };
    let why = match catch_unwind(AssertUnwindSafe(|| work(host, context))) {
        Ok(Ok(value)) => return Some(value),
        Ok(Err(fault)) => Ok(fault),
        Err(panic) => Err(panic),
    };
    // SAFETY: as the caller says; the borrows have ended.
    unsafe { keep::<H>(ctx, why) };
    None
}

/// Notes why the code is to stop: a fault or a panic.
///
/// # Safety
/// As `outside`.
#[cold]
#[inline(never)]
unsafe fn keep<H: Host>(ctx: *mut Ctx, why: Result<Fault, Box<dyn Any + Send>>) {
    // SAFETY: as the caller says; nothing else refers to either.
    let (ctx, host) = unsafe { (&mut *ctx, &mut *(*ctx).host.cast::<H>()) };
    ctx.executed = host.vm().executed;
    match why {
        Ok(fault) => ctx.fault = Some(fault),
        Err(panic) => ctx.panic = Some(panic),
    }
}

const STOPPED: Pair = Pair { value: 0, executed: FAILED };

/// A call out of the program: the counter is up to date meanwhile, and may have moved afterwards.
///
/// # Safety
/// As `outside`.
#[inline(always)]
unsafe fn call_out<H: Host>(
    ctx: *mut Ctx,
    executed: u64,
    args: [u64; 5],
    work: impl FnOnce(&mut H, &Ctx, &[u64; 5]) -> Result<u64, Fault>,
) -> Pair {
    let counted = |h: &mut H, ctx: &Ctx| {
        h.vm().executed = executed;
        let value = work(h, ctx, &args)?;
        let vm = h.vm();
        let executed = vm.executed;
        if executed >= vm.deadline { Err(over_limit(vm)) } else { Ok(Pair { value, executed }) }
    };
    // SAFETY: as the caller says.
    unsafe { outside(ctx, counted) }.unwrap_or(STOPPED)
}

#[cold]
#[inline(never)]
fn over_limit(vm: &Vm) -> Fault {
    Fault::new(FaultKind::InsnLimit { limit: vm.limits.insns_per_call })
}

unsafe extern "C" fn helper<H: Host>(
    ctx: *mut Ctx,
    executed: u64,
    a: u64,
    b: u64,
    c: u64,
    d: u64,
) -> Pair {
    let work = |h: &mut H, ctx: &Ctx, args: &[u64; 5]| {
        let vm = h.vm();
        vm.helper_calls = vm.helper_calls.wrapping_add(1);
        crate::helper::call(h, ctx.site(), ctx.out.number, *args)
    };
    // SAFETY: compiled code passes its context.
    unsafe { call_out::<H>(ctx, executed, [a, b, c, d, (*ctx).out.r5], work) }
}

/// Without `FIVE` it is the host's, and takes no more than four arguments.
unsafe extern "C" fn kfunc<H: Host, const FIVE: bool>(
    ctx: *mut Ctx,
    executed: u64,
    a: u64,
    b: u64,
    c: u64,
    d: u64,
) -> Pair {
    let work = |h: &mut H, ctx: &Ctx, args: &[u64; 5]| {
        let vm = h.vm();
        vm.kfunc_calls = vm.kfunc_calls.wrapping_add(1);
        vm.contexts.set_calling(ctx);
        let (site, id) = (ctx.site(), KfuncId(ctx.out.number));
        if FIVE { call_kfunc(h, site, id, args) } else { h.kfunc(site, id, args) }
    };
    // SAFETY: compiled code passes its context.
    unsafe {
        let e = if FIVE { (*ctx).out.r5 } else { 0 };
        call_out::<H>(ctx, executed, [a, b, c, d, e], work)
    }
}

/// The caller has checked depth and limit.
unsafe extern "C" fn func<H: Host>(
    ctx: *mut Ctx,
    executed: u64,
    a: u64,
    b: u64,
    c: u64,
    d: u64,
) -> Pair {
    let work = |h: &mut H, ctx: &Ctx| {
        h.vm().executed = executed;
        let func = code_of(ctx).func_at(ctx.out.number);
        let args = Args::All([a, b, c, d, ctx.out.r5]);
        let value = run(h, ctx.instance, func, ctx.site().depth, |_| args)?;
        Ok(Pair { value, executed: h.vm().executed })
    };
    // SAFETY: compiled code passes its context.
    unsafe { outside::<H, Pair>(ctx, work) }.unwrap_or(STOPPED)
}

unsafe extern "C" fn func_reg<H: Host>(
    ctx: *mut Ctx,
    executed: u64,
    a: u64,
    b: u64,
    c: u64,
    d: u64,
) -> Pair {
    let work = |h: &mut H, ctx: &Ctx| {
        let args = Args::All([a, b, c, d, ctx.out.r5]);
        let vm = h.vm();
        vm.executed = executed;
        let max_depth = vm.stacks.max_depth();
        let addr = ctx.out.target;
        let known = |func: &FuncId| code_of(ctx).image.func(*func).is_some();
        let Some(func) = func_of_addr(addr).filter(known) else {
            return Err(Fault::new(FaultKind::BadCall { addr }));
        };
        let depth = ctx.site().depth + 1;
        if depth >= max_depth {
            return Err(Fault::new(FaultKind::CallDepth { max: max_depth }));
        }
        if executed >= h.vm().deadline {
            return Err(over_limit(h.vm()));
        }
        h.vm().waits_for(depth - 1, ctx.site().pc);
        let value = run(h, ctx.instance, func, depth, |_| args)?;
        Ok(Pair { value, executed: h.vm().executed })
    };
    // SAFETY: compiled code passes its context.
    unsafe { outside::<H, Pair>(ctx, work) }.unwrap_or(STOPPED)
}

/// The code that runs.
fn code_of(ctx: &Ctx) -> &Code {
    // SAFETY: an instance whose code runs has code, and keeps it.
    unsafe { &*ctx.code }
}

/// An access that the code's check refused: it is done here if it may be.
unsafe extern "C" fn access<H: Host>(ctx: *mut Ctx) {
    let work = |h: &mut H, ctx: &Ctx| {
        let Refused { addr, slot, value, r0, executed, .. } = ctx.refused;
        let op = code_of(ctx).image.code[slot as usize].op;
        let size = access_size(op).unwrap_or(8) as u32;
        let load = |h: &mut H| load_slow(h, addr, size, probes(op), ctx.arena_base);
        if is_load(op) {
            let value = load(h)?;
            return Ok(if signed(op) { extended(value, size) } else { value });
        }
        h.vm().executed = executed;
        if !is_atomic(op) {
            store_slow(h, addr, size, value, ctx.arena_base)?;
            return Ok(0);
        }
        let old = load(h)?;
        let new = changed(op, old, value, r0, size);
        store_slow(h, addr, size, new, ctx.arena_base)?;
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

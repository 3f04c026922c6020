// SPDX-License-Identifier: GPL-2.0-only
//! Calls between Rust and machine code: the entry into the code, and the ways out of it (the
//! functions that it calls), for each type that implements `Host`.
//!
//! Owns: the context during a call, the locations in faults, the guarantee that no panic unwinds
//! through machine code, which has no unwind tables.
//! Does not: decide which engine runs (see `crate::jit`).
//!
//! Each way out catches a panic of the `Host` and reports a failure to the code. The code then
//! returns, and `failed` resumes the panic in the function that entered the code. While a way out
//! runs, the code only waits, and nothing else refers to the context or the host.

use std::any::Any;
use std::mem::transmute;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr;

use super::Code;
use super::ctx::{Calls, Ctx, FAILED, Pair, RefusedAccess, WHY_DEPTH};
use super::memory::is_atomic;
use crate::fault::{Fault, FaultKind};
use crate::insn::uses::is_load;
use crate::insn::{Op, access_size, func_of_addr};
use crate::kfunc::KfuncId;
use crate::vm::interp::{call_kfunc, load_slow, locate, probes, signed, store_slow};
use crate::vm::stack::FRAME;
use crate::vm::{FuncId, Host, Vm, run};

/// Address of a compiled function, and the number of instructions executed so far.
#[derive(Clone, Copy)]
pub struct CodeEntry {
    pub code: *const u8,
    pub executed: u64,
}

/// Arguments of a function.
#[derive(Clone, Copy)]
pub enum Args {
    /// Only r1; r2 to r5 are 0.
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

/// Runs a compiled function until it returns. The caller has just obtained `entry` from
/// `Contexts::next`, the context in which the function runs.
#[inline(always)]
pub fn call<H: Host>(h: &mut H, entry: CodeEntry, args: Args) -> Result<u64, Fault> {
    let at = h.vm().contexts.take();
    // SAFETY: nothing else uses the context until it is given back.
    let value = unsafe { call_in(h, at, entry, args) }?;
    h.vm().contexts.give_back(at);
    Ok(value)
}

/// Runs a compiled function, as `call` does, in a given context. If the function faults, `call_in`
/// gives the context back.
///
/// # Safety
/// `entry` was just obtained for the context, and nothing else uses the context until the call
/// ends.
#[inline(always)]
pub unsafe fn call_in<H: Host>(
    h: &mut H,
    at: *mut Ctx,
    entry: CodeEntry,
    args: Args,
) -> Result<u64, Fault> {
    let (cpu, clock) = (h.cpu(), ptr::from_mut(h.clock_mut()));
    let rq_clock = h.rq_clock().map_or(ptr::null(), ptr::from_ref);
    let host = ptr::from_mut(h).cast();
    // SAFETY: as the caller guarantees.
    let ctx = unsafe { &mut *at };
    // SAFETY: the virtual machine keeps the shared state longer than its contexts.
    unsafe { (*ctx.in_place).clock = clock };
    (ctx.calls, ctx.host, ctx.cpu) = (Ways::<H>::TABLE, host, cpu.into());
    ctx.rq_clock = rq_clock;
    let fp = ctx.fp;
    // SAFETY: `entry` is of the instance's code, compiled for the memory's size; the instance keeps
    // it. Everything that the context points to outlives the call, and the host is not touched here
    // until the call is over.
    let pair = unsafe { jump(entry, at, fp, args) };
    if pair.executed == FAILED {
        return Err(failed(h, at));
    }
    h.vm().executed = pair.executed;
    Ok(pair.value)
}

/// Enters compiled code with all arguments that it may take. The calling conventions of x86-64 and
/// aarch64 let the code ignore arguments that it does not take.
///
/// # Safety
/// The context is set up for the function that `entry` belongs to. If `args` holds only one
/// argument, the function takes at most one.
#[inline(always)]
unsafe fn jump(entry: CodeEntry, ctx: *mut Ctx, fp: u64, args: Args) -> Pair {
    type R = u64;
    type Simple = extern "C" fn(*mut Ctx, R, R, R) -> Pair;
    type Code = extern "C" fn(*mut Ctx, R, R, R, R, R, R, R) -> Pair;
    match args {
        Args::One(r1) => {
            // SAFETY: compiled functions have this signature, perhaps without the last argument.
            let code = unsafe { transmute::<*const u8, Simple>(entry.code) };
            code(ctx, entry.executed, fp, r1)
        }
        Args::All([a, b, c, d, e]) => {
            // SAFETY: compiled functions have this signature, perhaps without some of the last
            // arguments.
            let code = unsafe { transmute::<*const u8, Code>(entry.code) };
            code(ctx, entry.executed, fp, a, b, c, d, e)
        }
    }
}

/// Returns the fault that stopped the code, with the locations of the code's frames, or resumes the
/// host's panic. Gives the context back.
#[cold]
#[inline(never)]
fn failed<H: Host>(h: &mut H, at: *mut Ctx) -> Fault {
    let vm = h.vm();
    vm.contexts.release(at);
    // SAFETY: the code has ended, so nothing else uses the context, and nothing takes it before
    // this returns.
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

/// Table of the functions that machine code calls out to, for one type that implements `Host`.
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

/// Runs `work`, which uses the host, for machine code. If `work` faults or panics, stores the fault
/// or panic in the context, where `failed` finds it after the code has ended.
///
/// # Safety
/// `ctx` is the context that `call` set up for this type of host, and its code is waiting for the
/// result.
#[inline(always)]
unsafe fn outside<H: Host, T>(
    ctx: *mut Ctx,
    work: impl FnOnce(&mut H, &Ctx) -> Result<T, Fault>,
) -> Option<T> {
    // SAFETY: as the caller guarantees; context and host both live until `call` returns.
    let (context, host) = unsafe { (&*ctx, &mut *(*ctx).host.cast::<H>()) };
    let why = match catch_unwind(AssertUnwindSafe(|| work(host, context))) {
        Ok(Ok(value)) => return Some(value),
        Ok(Err(fault)) => Ok(fault),
        Err(panic) => Err(panic),
    };
    // SAFETY: as the caller guarantees; the borrows for `work` have ended.
    unsafe { keep::<H>(ctx, why) };
    None
}

/// Stores the fault or panic that is to stop the code.
///
/// # Safety
/// The caller guarantees what `outside` requires.
#[cold]
#[inline(never)]
unsafe fn keep<H: Host>(ctx: *mut Ctx, why: Result<Fault, Box<dyn Any + Send>>) {
    // SAFETY: as the caller guarantees; nothing else refers to the context or the host.
    let (ctx, host) = unsafe { (&mut *ctx, &mut *(*ctx).host.cast::<H>()) };
    ctx.executed = host.vm().executed;
    match why {
        Ok(fault) => ctx.fault = Some(fault),
        Err(panic) => ctx.panic = Some(panic),
    }
}

const STOPPED: Pair = Pair { value: 0, executed: FAILED };

/// Calls a helper or kfunc for machine code. `Vm::executed` is up to date during the call, and the
/// call may advance it.
///
/// # Safety
/// The caller guarantees what `outside` requires.
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
        Ok(Pair { value, executed: h.vm().executed })
    };
    // SAFETY: as the caller guarantees.
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
        match crate::helper::call_frequent(h, ctx.out.number, args) {
            Some(result) => result,
            None => crate::helper::call(h, ctx.site(), ctx.out.number, *args),
        }
    };
    // SAFETY: machine code passes the context in which it runs.
    unsafe { call_out::<H>(ctx, executed, [a, b, c, d, (*ctx).out.r5], work) }
}

/// Calls a kernel function. If `FIVE` is false, it is a function of the `Host` and takes at most
/// four arguments.
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
    // SAFETY: machine code passes the context in which it runs.
    unsafe {
        let e = if FIVE { (*ctx).out.r5 } else { 0 };
        call_out::<H>(ctx, executed, [a, b, c, d, e], work)
    }
}

/// Runs a function that is not compiled. The machine code that calls has already checked the call
/// depth and the instruction limit.
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
    // SAFETY: machine code passes the context in which it runs.
    unsafe { outside::<H, Pair>(ctx, work) }.unwrap_or(STOPPED)
}

/// Runs the function with a given address, after the checks of a call: that there is such a
/// function, the call depth, and the instruction limit.
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
        h.vm().record_pending_call(depth - 1, ctx.site().pc);
        let value = run(h, ctx.instance, func, depth, |_| args)?;
        Ok(Pair { value, executed: h.vm().executed })
    };
    // SAFETY: machine code passes the context in which it runs.
    unsafe { outside::<H, Pair>(ctx, work) }.unwrap_or(STOPPED)
}

/// Returns the code that runs in a context.
fn code_of(ctx: &Ctx) -> &Code {
    // SAFETY: an instance whose code runs has code, and keeps it.
    unsafe { &*ctx.code }
}

/// Performs an access that the code's own check refused. If the access is invalid, the program
/// stops with its fault.
unsafe extern "C" fn access<H: Host>(ctx: *mut Ctx) {
    let work = |h: &mut H, ctx: &Ctx| {
        let RefusedAccess { addr, slot, value, r0, executed, .. } = ctx.refused;
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
    // SAFETY: machine code passes the context in which it runs.
    let result = unsafe { outside::<H, u64>(ctx, work) };
    // SAFETY: machine code passes the context in which it runs, and no other reference to it is
    // left.
    let refused = unsafe { &mut (*ctx).refused };
    refused.failed = u64::from(result.is_none());
    refused.result = result.unwrap_or(0);
}

/// Sign-extends a value of `size` bytes.
fn extended(value: u64, size: u32) -> u64 {
    let above = 64 - 8 * size;
    ((value << above) as i64 >> above) as u64
}

/// Returns the value that an atomic operation writes. The store truncates it to the size of the
/// access.
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

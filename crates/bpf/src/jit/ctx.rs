// SPDX-License-Identifier: GPL-2.0-only
//! The context of machine code: one structure with all that the code needs to know of its run. Its
//! address is the first argument of every compiled function.
//!
//! Owns: the layout of the context, the types of the functions that the code calls out to, one
//! context for each active entry into code.
//! Does not: generate or call code.
//!
//! The code knows nothing of the type that implements `Host`, so runs with different types share
//! machine code. A virtual machine keeps its contexts: an entry into code writes only the fields
//! that differ from the previous entry, which was mostly of the same instance and in the same
//! frame.

use std::any::Any;
use std::cell::Cell;
use std::mem::offset_of;
use std::ptr;

use super::in_place::{InPlace, Shared};
use super::native::{Args, CodeEntry};
use super::{Code, FuncEntry};
use crate::fault::Fault;
use crate::mem::{GUEST_BASE, Memory};
use crate::vm::interp::MAX_FRAMES;
use crate::vm::stack::FRAME;
use crate::vm::{CallSite, FuncId, Instance, InstanceId};

/// Two results in registers: a value, and the number of instructions executed so far or `FAILED`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Pair {
    pub value: u64,
    pub executed: u64,
}

/// Value of `Pair::executed` if the program was stopped.
pub const FAILED: u64 = u64::MAX;

/// Arguments: context, instructions executed, r1 to r4. These fit in registers. The other
/// parameters are in `Ctx::out`.
pub type CallFn = unsafe extern "C" fn(*mut Ctx, u64, u64, u64, u64, u64) -> Pair;
/// Argument: the context. The other parameters are in `Ctx::refused`.
pub type AccessFn = unsafe extern "C" fn(*mut Ctx);

/// Functions that machine code calls out to, for one type that implements `Host`.
#[repr(C)]
pub struct Calls {
    pub helper: CallFn,
    /// Calls any kernel function. `kfunc4` serves only functions of the `Host` that take no fifth
    /// argument.
    pub kfunc: CallFn,
    pub kfunc4: CallFn,
    /// Calls a function of the program that is not compiled yet.
    pub func: CallFn,
    /// Calls the function of the program whose address is in `CallOut::target`.
    pub func_reg: CallFn,
    /// Performs an access that the code's own check refused. The code calls it by way of
    /// `Ctx::access`.
    pub access: AccessFn,
}

/// Values of `Ctx::why`: the code stopped at the instruction limit, or at the call depth limit.
pub const WHY_LIMIT: u64 = 1;
pub const WHY_DEPTH: u64 = 2;

/// Parameters and result of an access that the code's own check refused. The code passes them in
/// memory, so that the code around the access need not move any register.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct RefusedAccess {
    pub addr: u64,
    pub slot: u64,
    /// Value to store, or the operand of an atomic operation.
    pub value: u64,
    pub r0: u64,
    pub executed: u64,
    /// Loaded value.
    pub result: u64,
    /// Non-zero if the program was stopped.
    pub failed: u64,
}

/// Bit in `CallOut::pc`: the caller is the frame in which the code was entered.
pub const AT_ENTRY: u32 = 1 << 31;

/// Parameters of a call from machine code to a function of `Calls`. The code writes only those that
/// the callee reads, because in a short callback these stores are most of the work.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct CallOut {
    /// Frame pointer of the caller, which the code does not write if `pc` has `AT_ENTRY`; for
    /// `Calls::func`, frame pointer of the callee.
    pub fp: u64,
    /// Argument r5; 0 if the callee does not take it. `Calls::kfunc4` does not read it.
    pub r5: u64,
    /// Slot of the call, possibly with `AT_ENTRY`.
    pub pc: u32,
    /// Id of the helper or kernel function, or first slot of the called function of the program.
    pub number: u32,
    /// Address that `Calls::func_reg` is to call.
    pub target: u64,
}

/// Context of one entry into machine code.
#[repr(C)]
pub struct Ctx {
    /// Host address of guest address 0 (which lies outside the mapping).
    pub base: *mut u8,
    /// Host address of the first byte of guest memory.
    pub mem: *mut u8,
    /// Permission bytes, one per page, from the first page of the memory on.
    pub perms: *const u8,
    pub deadline: u64,
    /// Frame pointer of the deepest frame allowed.
    pub fp_min: u64,
    pub arena_base: u64,
    pub may_goto: u64,
    pub calls: *const Calls,
    /// Address of code that calls `Calls::access` and preserves every register.
    pub access: *const u8,
    /// The entries of the image's functions, indexed by `FuncId`; `nr_entries` of them.
    pub(super) entries: *const FuncEntry,
    pub refused: RefusedAccess,
    pub out: CallOut,
    /// CPU that the program runs on.
    pub cpu: u64,
    /// Number of helper calls that the code performed itself, over all entries.
    pub helper_calls: u64,
    /// State of the virtual machine that all its contexts share.
    pub in_place: *mut Shared,
    /// `Host::rq_clock`; null if the host has none.
    pub rq_clock: *const u64,
    /// A failure sets these five fields: `executed` is the instruction count, `why` the reason if
    /// `fault` is None, `pcs` the slots of the `nr_pcs` frames, innermost first, and `regs` r0 to
    /// r9.
    pub executed: u64,
    pub why: u64,
    pub nr_pcs: u64,
    pub pcs: [u32; MAX_FRAMES],
    pub regs: [u64; 10],
    /// Machine code does not access the fields from here on.
    pub host: *mut (),
    /// Instance whose code runs, and depth and r10 of the frame in which the code is entered. While
    /// `instance` is not `NO_INSTANCE`, all fields that `set_up` writes are valid.
    pub instance: InstanceId,
    pub depth: u32,
    pub fp: u64,
    pub code: *const Code,
    /// 0 while the context is set up for no instance.
    nr_entries: usize,
    /// Number of frames available from the entry's frame on.
    frames: u32,
    /// The next context of the stack of contexts; null if it does not exist yet.
    next: Cell<*mut Ctx>,
    pub fault: Option<Fault>,
    pub panic: Option<Box<dyn Any + Send>>,
}

/// Frame in which code is entered, and the limits that apply there.
pub struct EntryFrame {
    pub depth: u32,
    pub frames: u32,
    pub fp: u64,
    pub fp_min: u64,
    pub may_goto: u64,
}

impl Ctx {
    fn new(mem: &Memory, in_place: *mut Shared) -> Ctx {
        let (mem, perms) = mem.raw();
        Ctx {
            base: mem.wrapping_sub(GUEST_BASE as usize),
            mem,
            perms,
            deadline: 0,
            fp_min: 0,
            arena_base: 0,
            may_goto: 0,
            calls: ptr::null(),
            access: ptr::null(),
            entries: ptr::null(),
            refused: RefusedAccess::default(),
            out: CallOut::default(),
            cpu: 0,
            helper_calls: 0,
            in_place,
            rq_clock: ptr::null(),
            executed: 0,
            why: 0,
            nr_pcs: 0,
            pcs: [0; MAX_FRAMES],
            regs: [0; 10],
            host: ptr::null_mut(),
            instance: NO_INSTANCE,
            depth: 0,
            fp: 0,
            code: ptr::null(),
            nr_entries: 0,
            frames: 0,
            next: Cell::new(ptr::null_mut()),
            fault: None,
            panic: None,
        }
    }

    /// Returns whether the context is set up for code of this instance, in any frame.
    #[inline(always)]
    pub fn is_of(&self, instance: InstanceId) -> bool {
        self.instance == instance
    }

    /// Returns whether the context is set up for code of this instance in the frame that ends at
    /// `fp`.
    #[inline(always)]
    pub fn is_for(&self, instance: InstanceId, fp: u64) -> bool {
        self.instance == instance && self.fp == fp
    }

    /// Sets the context up for code of an instance. Returns false if the instance has no code yet.
    pub fn set_up(&mut self, found: &Instance, place: &EntryFrame) -> bool {
        let Some(code) = found.code().filter(|code| !code.access().is_null()) else {
            return false;
        };
        (self.instance, self.arena_base) = (found.id, found.arena_base);
        (self.code, self.access) = (ptr::from_ref(code), code.access());
        (self.entries, self.nr_entries) = (code.slots().as_ptr(), code.slots().len());
        let EntryFrame { depth, frames, fp, fp_min, may_goto } = *place;
        (self.depth, self.frames, self.fp) = (depth, frames, fp);
        (self.fp_min, self.may_goto) = (fp_min, may_goto);
        true
    }

    /// Returns the entry into a function of the instance that the context is set up for; None if
    /// the function has no machine code, or if it needs more stack frames than are left.
    #[inline(always)]
    pub fn entry(
        &mut self,
        func: FuncId,
        args: &Args,
        executed: u64,
        deadline: u64,
    ) -> Option<CodeEntry> {
        if func.idx() >= self.nr_entries {
            return None;
        }
        // SAFETY: there are `nr_entries` entries. An instance keeps its code until it gets another
        // or is removed; then `Contexts::forget` sets the number to 0.
        let code = unsafe { &*self.entries.add(func.idx()) }.entry(args, self.frames)?;
        self.deadline = deadline;
        Some(CodeEntry { code, executed })
    }

    /// Returns the call site (instance, slot and frame) of the call out that the code is making.
    #[inline(always)]
    pub fn site(&self) -> CallSite {
        let CallOut { fp, pc, .. } = self.out;
        let frames = if pc & AT_ENTRY == 0 { self.fp.wrapping_sub(fp) / FRAME } else { 0 };
        let depth = self.depth.wrapping_add(frames as u32);
        CallSite { instance: self.instance, pc: pc & !AT_ENTRY, depth }
    }

    /// Resets the fields that only a failure writes.
    pub fn recover(&mut self) {
        (self.executed, self.why, self.nr_pcs) = (0, 0, 0);
        self.regs = [0; 10];
    }
}

/// Instance id of a context that is set up for no instance.
const NO_INSTANCE: InstanceId = InstanceId(u32::MAX);

/// The contexts of a virtual machine: one for the program that the kernel calls while no other
/// runs, and a stack of them for entries nested inside it, which end in reverse order.
pub struct Contexts {
    all: Vec<*mut Ctx>,
    outermost: *mut Ctx,
    /// The next free context of the stack. It always exists, because `next_for_setup` creates the
    /// successor of a context before `take` takes that context.
    free: *mut Ctx,
    /// Context whose code made the last kernel function call; null if the interpreter made it.
    calling: *const Ctx,
    in_place: *mut Shared,
}

// SAFETY: the contexts belong to this value alone, and the memory they refer to is used only while
// code runs.
unsafe impl Send for Contexts {}

impl Contexts {
    /// Creates the contexts of a virtual machine with this memory and shared state, which outlive
    /// them.
    pub fn new(mem: &Memory, in_place: &InPlace) -> Contexts {
        let mut contexts = Contexts {
            all: Vec::new(),
            outermost: ptr::null_mut(),
            free: ptr::null_mut(),
            calling: ptr::null(),
            in_place: in_place.as_ptr(),
        };
        contexts.outermost = contexts.make(mem);
        contexts.free = contexts.make(mem);
        contexts
    }

    /// Returns the context of a program that the kernel calls while no other runs. The program
    /// keeps the context as long as it runs.
    #[inline(always)]
    pub fn outermost(&mut self) -> &mut Ctx {
        // SAFETY: `all` owns the context, which nothing uses, because no program runs.
        unsafe { &mut *self.outermost }
    }

    /// Returns the next free context of the stack, which `take` will take.
    #[inline(always)]
    pub fn next(&mut self) -> &mut Ctx {
        // SAFETY: `all` owns the context, which nothing uses before `take` takes it.
        unsafe { &mut *self.free }
    }

    /// Returns the next free context of the stack, to be set up with `set_up` and then taken with
    /// `take`. Creates its successor if necessary.
    pub fn next_for_setup(&mut self, mem: &Memory) -> &mut Ctx {
        if self.next().next.get().is_null() {
            self.make(mem);
        }
        self.next()
    }

    /// Takes the context that `next` returned. `give_back` ends its use.
    #[inline(always)]
    pub fn take(&mut self) -> *mut Ctx {
        let ctx = self.free;
        // SAFETY: `all` owns the context, which nothing uses yet.
        self.free = unsafe { (*ctx).next.get() };
        ctx
    }

    /// Gives back the context that was taken last.
    #[inline(always)]
    pub fn give_back(&mut self, ctx: *mut Ctx) {
        self.free = ctx;
    }

    /// Gives back a context that code was entered with, which may be the outermost one.
    pub fn release(&mut self, ctx: *mut Ctx) {
        if ctx != self.outermost {
            self.give_back(ctx);
        }
    }

    /// Records that code in this context makes a kernel function call.
    #[inline(always)]
    pub fn set_calling(&mut self, ctx: *const Ctx) {
        self.calling = ctx;
    }

    /// Returns the context whose code made the last kernel function call; null if the interpreter
    /// made it.
    pub fn code_calling(&self) -> *const Ctx {
        self.calling
    }

    /// Returns the call site of the last kernel function call, if machine code made the call.
    pub fn calling(&self) -> Option<CallSite> {
        // SAFETY: `all` owns the context. While the host carries out the call, the code only waits.
        (!self.calling.is_null()).then(|| unsafe { (*self.calling).site() })
    }

    #[cold]
    fn make(&mut self, mem: &Memory) -> *mut Ctx {
        let ctx = Box::into_raw(Box::new(Ctx::new(mem, self.in_place)));
        if let Some(last) = self.all.last() {
            // SAFETY: `all` owns the context, and machine code does not access `next`.
            unsafe { (**last).next.set(ctx) };
        }
        self.all.push(ctx);
        ctx
    }

    /// Returns the number of helper calls that machine code performed itself.
    pub fn helper_calls(&self) -> u64 {
        // SAFETY: `all` owns the contexts. Code that uses a context now only waits for the host.
        self.all.iter().fold(0, |sum, ctx| sum.wrapping_add(unsafe { (**ctx).helper_calls }))
    }

    /// Invalidates all contexts, because an instance gets other code or is removed. No code may
    /// run.
    pub fn forget(&mut self) {
        for ctx in &self.all {
            // SAFETY: `all` owns the context, and no code runs in it.
            let ctx = unsafe { &mut **ctx };
            ctx.instance = NO_INSTANCE;
            ctx.nr_entries = 0;
        }
    }
}

impl Drop for Contexts {
    fn drop(&mut self) {
        for ctx in self.all.drain(..) {
            // SAFETY: `make` created the context from a box.
            drop(unsafe { Box::from_raw(ctx) });
        }
    }
}

/// Field offsets for the code generator.
pub mod at {
    use super::*;
    pub const BASE: i32 = offset_of!(Ctx, base) as i32;
    pub const MEM: i32 = offset_of!(Ctx, mem) as i32;
    pub const PERMS: i32 = offset_of!(Ctx, perms) as i32;
    pub const DEADLINE: i32 = offset_of!(Ctx, deadline) as i32;
    pub const FP_MIN: i32 = offset_of!(Ctx, fp_min) as i32;
    pub const ARENA_BASE: i32 = offset_of!(Ctx, arena_base) as i32;
    pub const MAY_GOTO: i32 = offset_of!(Ctx, may_goto) as i32;
    pub const CALLS: i32 = offset_of!(Ctx, calls) as i32;
    pub const ACCESS: i32 = offset_of!(Ctx, access) as i32;
    pub const ENTRIES: i32 = offset_of!(Ctx, entries) as i32;
    pub const CALLS_ACCESS: i32 = offset_of!(Calls, access) as i32;
    const REFUSED: i32 = offset_of!(Ctx, refused) as i32;
    pub const ADDR: i32 = REFUSED + offset_of!(RefusedAccess, addr) as i32;
    pub const SLOT: i32 = REFUSED + offset_of!(RefusedAccess, slot) as i32;
    pub const VALUE: i32 = REFUSED + offset_of!(RefusedAccess, value) as i32;
    pub const R0: i32 = REFUSED + offset_of!(RefusedAccess, r0) as i32;
    pub const COUNT: i32 = REFUSED + offset_of!(RefusedAccess, executed) as i32;
    pub const RESULT: i32 = REFUSED + offset_of!(RefusedAccess, result) as i32;
    pub const REFUSED_FAILED: i32 = REFUSED + offset_of!(RefusedAccess, failed) as i32;
    const OUT: i32 = offset_of!(Ctx, out) as i32;
    pub const OUT_FP: i32 = OUT + offset_of!(CallOut, fp) as i32;
    pub const OUT_R5: i32 = OUT + offset_of!(CallOut, r5) as i32;
    /// Offset of `pc` and `number`, which the code writes as one 64-bit word.
    pub const OUT_PC: i32 = OUT + offset_of!(CallOut, pc) as i32;
    const _: () = assert!(offset_of!(CallOut, number) == offset_of!(CallOut, pc) + 4);
    pub const OUT_TARGET: i32 = OUT + offset_of!(CallOut, target) as i32;
    pub const CPU: i32 = offset_of!(Ctx, cpu) as i32;
    pub const HELPER_CALLS: i32 = offset_of!(Ctx, helper_calls) as i32;
    pub const IN_PLACE: i32 = offset_of!(Ctx, in_place) as i32;
    pub const RQ_CLOCK: i32 = offset_of!(Ctx, rq_clock) as i32;
    pub const EXECUTED: i32 = offset_of!(Ctx, executed) as i32;
    pub const WHY: i32 = offset_of!(Ctx, why) as i32;
    pub const NR_PCS: i32 = offset_of!(Ctx, nr_pcs) as i32;
    pub const PCS: i32 = offset_of!(Ctx, pcs) as i32;
    pub const REGS: i32 = offset_of!(Ctx, regs) as i32;
}

/// A way out of machine code: one of the functions of `Calls`, except `access`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Helper,
    Kfunc,
    Kfunc4,
    Func,
    FuncReg,
}

impl Way {
    /// Returns the offset of the way out in `Calls`.
    pub fn at(self) -> i32 {
        let at = match self {
            Way::Helper => offset_of!(Calls, helper),
            Way::Kfunc => offset_of!(Calls, kfunc),
            Way::Kfunc4 => offset_of!(Calls, kfunc4),
            Way::Func => offset_of!(Calls, func),
            Way::FuncReg => offset_of!(Calls, func_reg),
        };
        at as i32
    }
}

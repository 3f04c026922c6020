// SPDX-License-Identifier: GPL-2.0-only
//! What machine code knows of the run that it is in: one structure, whose address is each function's first argument.
//!
//! Owns: its layout, the types of what the code calls, and that there is one for each entry that is under way. Does not:
//! generate or call code. The code itself knows nothing of the host's type, so runs with any host share it.
//! A virtual machine keeps its contexts: an entry into code writes only what differs from the last, which mostly was of the
//! same instance and in the same frame.

use std::any::Any;
use std::cell::Cell;
use std::mem::offset_of;
use std::ptr;

use super::native::{Args, Entry};
use super::{Code, Slot};
use crate::fault::Fault;
use crate::mem::{GUEST_BASE, Memory};
use crate::vm::interp::MAX_FRAMES;
use crate::vm::stack::FRAME;
use crate::vm::{CallSite, FuncId, Instance, InstanceId};

/// Two results in registers: a value, and the instructions executed so far or `FAILED`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Pair {
    pub value: u64,
    pub executed: u64,
}

/// In place of a count: something stopped the program.
pub const FAILED: u64 = u64::MAX;

/// Context, instructions executed, r1 to r4: what registers have room for. The rest is in `Ctx::out`.
pub type CallFn = unsafe extern "C" fn(*mut Ctx, u64, u64, u64, u64, u64) -> Pair;
/// Context; the rest is in `Ctx::refused`.
pub type AccessFn = unsafe extern "C" fn(*mut Ctx);

/// The ways out of the code, for one type of host.
#[repr(C)]
pub struct Calls {
    pub helper: CallFn,
    /// Any kernel function, and one of the host's that takes no fifth argument.
    pub kfunc: CallFn,
    pub kfunc4: CallFn,
    /// A function of the program that is not compiled.
    pub func: CallFn,
    /// A function by its address, which is in `Out::target`.
    pub func_reg: CallFn,
    /// An access that the code's own check refused. The code calls it by way of `Ctx::access`.
    pub access: AccessFn,
}

/// Why code stopped by itself.
pub const WHY_LIMIT: u64 = 1;
pub const WHY_DEPTH: u64 = 2;

/// An access that goes out. In memory, so that the code around it need not move anything.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Refused {
    pub addr: u64,
    pub slot: u64,
    /// What is stored, or the operand.
    pub value: u64,
    pub r0: u64,
    pub executed: u64,
    /// What was loaded.
    pub result: u64,
    /// Not 0: something stopped the program.
    pub failed: u64,
}

/// In `Out::pc`: the call is made in the frame in which the code was entered.
pub const AT_ENTRY: u32 = 1 << 31;

/// A call out: the code writes it before it makes one, and no more than is looked at: a short operation is made of stores.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub struct Out {
    /// The caller's frame, unless `pc` says that it is the entry's; of `Calls::func`, the callee's.
    pub fp: u64,
    /// 0 if the call does not take it. Not looked at by `Calls::kfunc4`.
    pub r5: u64,
    /// The call's slot, and perhaps `AT_ENTRY`.
    pub pc: u32,
    /// Of the helper or kernel function, or the first slot of a function of the program.
    pub number: u32,
    /// The address that `Calls::func_reg` is to call.
    pub target: u64,
}

#[repr(C)]
pub struct Ctx {
    /// Where guest address 0 would be on the host.
    pub base: *mut u8,
    /// Where the memory begins there.
    pub mem: *mut u8,
    /// A byte per page, from the first page of the memory on.
    pub perms: *const u8,
    pub deadline: u64,
    /// Frame pointer of the deepest frame that may be.
    pub fp_min: u64,
    pub arena_base: u64,
    pub may_goto: u64,
    pub calls: *const Calls,
    /// Calls `Calls::access` and leaves every register as it was.
    pub access: *const u8,
    pub refused: Refused,
    pub out: Out,
    /// On which the program runs.
    pub cpu: u64,
    /// Calls of helpers that the code did itself, over all entries.
    pub helper_calls: u64,
    /// After a failure: the count, why if `fault` is None, the slots of the frames, innermost first, and r0 to r9.
    pub executed: u64,
    pub why: u64,
    pub nr_pcs: u64,
    pub pcs: [u32; MAX_FRAMES],
    pub regs: [u64; 10],
    /// From here on the code looks at nothing.
    pub host: *mut (),
    /// Whose code runs, and in which frame it was entered. What is said above of them, and `code`, is true while there is an instance.
    pub instance: InstanceId,
    pub depth: u32,
    pub fp: u64,
    pub code: *const Code,
    /// Of that code.
    slots: *const [Slot],
    /// How many frames there may be from that one on.
    frames: u32,
    /// The next free context, if there is one already.
    next: Cell<*mut Ctx>,
    pub fault: Option<Fault>,
    pub panic: Option<Box<dyn Any + Send>>,
}

/// Where code is entered, and what it may use there.
pub struct Place {
    pub depth: u32,
    pub frames: u32,
    pub fp: u64,
    pub fp_min: u64,
    pub may_goto: u64,
}

impl Ctx {
    fn new(mem: &Memory) -> Ctx {
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
            refused: Refused::default(),
            out: Out::default(),
            cpu: 0,
            helper_calls: 0,
            executed: 0,
            why: 0,
            nr_pcs: 0,
            pcs: [0; MAX_FRAMES],
            regs: [0; 10],
            host: ptr::null_mut(),
            instance: NOBODY,
            depth: 0,
            fp: 0,
            code: ptr::null(),
            slots: &[],
            frames: 0,
            next: Cell::new(ptr::null_mut()),
            fault: None,
            panic: None,
        }
    }

    /// Whether it is for code of this instance, in whichever frame it was introduced.
    #[inline(always)]
    pub fn is_of(&self, instance: InstanceId) -> bool {
        self.instance == instance
    }

    /// Whether it is for code of this instance in the frame that ends at `fp`.
    #[inline(always)]
    pub fn is_for(&self, instance: InstanceId, fp: u64) -> bool {
        self.instance == instance && self.fp == fp
    }

    /// It is for such code from now on; false if the instance has none yet.
    pub fn introduce(&mut self, found: &Instance, place: &Place) -> bool {
        let Some(code) = found.code().filter(|code| !code.access().is_null()) else {
            return false;
        };
        (self.instance, self.arena_base) = (found.id, found.arena_base);
        (self.code, self.slots, self.access) = (ptr::from_ref(code), code.slots(), code.access());
        let Place { depth, frames, fp, fp_min, may_goto } = *place;
        (self.depth, self.frames, self.fp) = (depth, frames, fp);
        (self.fp_min, self.may_goto) = (fp_min, may_goto);
        true
    }

    /// The way into a function, for an entry that `is_of` or `is_for` agrees with or `introduce` has made possible.
    #[inline(always)]
    pub fn entry(
        &mut self,
        func: FuncId,
        args: &Args,
        executed: u64,
        deadline: u64,
    ) -> Option<Entry> {
        // SAFETY: an instance has its code until it gets another or is removed, and then `Contexts::forget` takes them away.
        let slots = unsafe { &*self.slots };
        let code = slots.get(func.idx())?.entry(args, self.frames)?;
        self.deadline = deadline;
        Some(Entry { code, executed })
    }

    /// Where the call out comes from that the code is making.
    #[inline(always)]
    pub fn site(&self) -> CallSite {
        let Out { fp, pc, .. } = self.out;
        let frames = if pc & AT_ENTRY == 0 { self.fp.wrapping_sub(fp) / FRAME } else { 0 };
        let depth = self.depth.wrapping_add(frames as u32);
        CallSite { instance: self.instance, pc: pc & !AT_ENTRY, depth }
    }

    /// As new, of what only a failure writes.
    pub fn recover(&mut self) {
        (self.executed, self.why, self.nr_pcs) = (0, 0, 0);
        self.regs = [0; 10];
    }
}

/// In place of an instance: the context is for none.
const NOBODY: InstanceId = InstanceId(u32::MAX);

/// The contexts of a virtual machine: one for programs that the kernel calls, of which one runs at a time, and for what runs
/// inside of them a stack, as entries into code end in reverse order.
pub struct Contexts {
    all: Vec<*mut Ctx>,
    outermost: *mut Ctx,
    /// The next one. There is one: what is taken has been introduced, and then has another after it.
    free: *mut Ctx,
    /// Whose code made the last call of a kernel function; null if the interpreter did.
    calling: *const Ctx,
}

// SAFETY: the contexts belong to this value alone, and what they refer to is only used while code runs.
unsafe impl Send for Contexts {}

impl Contexts {
    /// Of a virtual machine with this memory.
    pub fn new(mem: &Memory) -> Contexts {
        let mut contexts = Contexts {
            all: Vec::new(),
            outermost: ptr::null_mut(),
            free: ptr::null_mut(),
            calling: ptr::null(),
        };
        contexts.outermost = contexts.make(mem);
        contexts.free = contexts.make(mem);
        contexts
    }

    /// The one of programs that run inside of no other. It is theirs as long as they run.
    #[inline(always)]
    pub fn outermost(&mut self) -> &mut Ctx {
        // SAFETY: `all` keeps it, and nobody uses it: no program runs.
        unsafe { &mut *self.outermost }
    }

    /// The next one that `take` takes.
    #[inline(always)]
    pub fn next(&mut self) -> &mut Ctx {
        // SAFETY: `all` keeps it, and nobody uses it.
        unsafe { &mut *self.free }
    }

    /// The next one, to be introduced.
    pub fn stranger(&mut self, mem: &Memory) -> &mut Ctx {
        if self.next().next.get().is_null() {
            self.make(mem);
        }
        self.next()
    }

    /// The one that `next` has just shown, for code that it is for; `give_back` ends its use.
    #[inline(always)]
    pub fn take(&mut self) -> *mut Ctx {
        let ctx = self.free;
        // SAFETY: as above.
        self.free = unsafe { (*ctx).next.get() };
        ctx
    }

    /// The last one that was taken.
    #[inline(always)]
    pub fn give_back(&mut self, ctx: *mut Ctx) {
        self.free = ctx;
    }

    /// As `give_back`, of any one that code was entered with.
    pub fn left(&mut self, ctx: *mut Ctx) {
        if ctx != self.outermost {
            self.give_back(ctx);
        }
    }

    /// Code in this context makes a call of a kernel function.
    #[inline(always)]
    pub fn set_calling(&mut self, ctx: *const Ctx) {
        self.calling = ctx;
    }

    /// Whose code made the last one; null if the interpreter did.
    pub fn code_calling(&self) -> *const Ctx {
        self.calling
    }

    /// That call, if code made it.
    pub fn calling(&self) -> Option<CallSite> {
        // SAFETY: `all` keeps it; while the host carries out the call, its code only waits.
        (!self.calling.is_null()).then(|| unsafe { (*self.calling).site() })
    }

    #[cold]
    fn make(&mut self, mem: &Memory) -> *mut Ctx {
        let ctx = Box::into_raw(Box::new(Ctx::new(mem)));
        if let Some(last) = self.all.last() {
            // SAFETY: as above; machine code does not look at `next`.
            unsafe { (**last).next.set(ctx) };
        }
        self.all.push(ctx);
        ctx
    }

    /// Calls of helpers that code did itself.
    pub fn helper_calls(&self) -> u64 {
        // SAFETY: as above.
        self.all.iter().fold(0, |sum, ctx| sum.wrapping_add(unsafe { (**ctx).helper_calls }))
    }

    /// An instance gets other code or is removed: what is known of it is not true any more. No code runs.
    pub fn forget(&mut self) {
        for ctx in &self.all {
            // SAFETY: as above.
            let ctx = unsafe { &mut **ctx };
            ctx.instance = NOBODY;
            ctx.slots = &[];
        }
    }
}

impl Drop for Contexts {
    fn drop(&mut self) {
        for ctx in self.all.drain(..) {
            // SAFETY: `make` got it from a box.
            drop(unsafe { Box::from_raw(ctx) });
        }
    }
}

/// Offsets, as the code generator wants them.
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
    pub const CALLS_ACCESS: i32 = offset_of!(Calls, access) as i32;
    const REFUSED: i32 = offset_of!(Ctx, refused) as i32;
    pub const ADDR: i32 = REFUSED + offset_of!(Refused, addr) as i32;
    pub const SLOT: i32 = REFUSED + offset_of!(Refused, slot) as i32;
    pub const VALUE: i32 = REFUSED + offset_of!(Refused, value) as i32;
    pub const R0: i32 = REFUSED + offset_of!(Refused, r0) as i32;
    pub const COUNT: i32 = REFUSED + offset_of!(Refused, executed) as i32;
    pub const RESULT: i32 = REFUSED + offset_of!(Refused, result) as i32;
    pub const REFUSED_FAILED: i32 = REFUSED + offset_of!(Refused, failed) as i32;
    const OUT: i32 = offset_of!(Ctx, out) as i32;
    pub const OUT_FP: i32 = OUT + offset_of!(Out, fp) as i32;
    pub const OUT_R5: i32 = OUT + offset_of!(Out, r5) as i32;
    /// Slot and number, as one word.
    pub const OUT_PC: i32 = OUT + offset_of!(Out, pc) as i32;
    const _: () = assert!(offset_of!(Out, number) == offset_of!(Out, pc) + 4);
    pub const OUT_TARGET: i32 = OUT + offset_of!(Out, target) as i32;
    pub const CPU: i32 = offset_of!(Ctx, cpu) as i32;
    pub const HELPER_CALLS: i32 = offset_of!(Ctx, helper_calls) as i32;
    pub const EXECUTED: i32 = offset_of!(Ctx, executed) as i32;
    pub const WHY: i32 = offset_of!(Ctx, why) as i32;
    pub const NR_PCS: i32 = offset_of!(Ctx, nr_pcs) as i32;
    pub const PCS: i32 = offset_of!(Ctx, pcs) as i32;
    pub const REGS: i32 = offset_of!(Ctx, regs) as i32;
}

/// Which way out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Helper,
    Kfunc,
    Kfunc4,
    Func,
    FuncReg,
}

impl Way {
    /// Offset in `Calls`.
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

// SPDX-License-Identifier: GPL-2.0-only
//! Machine code for another kind of machine: generated here, run elsewhere.
//!
//! Owns: the description that a runner of the code needs.
//! Does not: run it (`tests/aarch64` does, in an emulator).

use std::mem::offset_of;

use super::compile::{Compiler, Isa, named_isa};
use super::ctx::{CallOut, Calls, Ctx, RefusedAccess};
use super::frames_below;
use super::in_place::InPlaceFuncs;
use super::keeps_memory::KeepsMemory;
use super::translate::Input;
use super::{Refusal, SLOTS_MAX, arguments, entered, live};
use crate::insn::Op;
use crate::vm::interp::MAX_FRAMES;
use crate::vm::{Func, Image};

/// Machine code of all functions of an image, in the image's order.
#[derive(Clone, Debug)]
pub struct CrossCompiled {
    pub funcs: Vec<CrossCompiledFunc>,
    /// Code that `Ctx::access` must point to.
    pub access_thunk: Vec<u8>,
}

#[derive(Clone, Debug)]
pub struct CrossCompiledFunc {
    pub code: Vec<u8>,
    /// Number of the registers r1 to r5 that the function takes as arguments, after the arguments
    /// context, count and frame pointer.
    pub arguments: usize,
}

/// Generates machine code of each function of an image for the named machine, for a linear memory
/// of `nr_pages` pages. The code finds the addresses of other functions in a table, 8 bytes each,
/// indexed by `FuncId`. Returns None if there is no machine of that name.
pub fn generate(image: &Image, isa: &str, nr_pages: u64) -> Option<Result<CrossCompiled, Refusal>> {
    let isa = named_isa(isa)?;
    // The runner does not check the number of frames when it enters a function. Calls may therefore
    // omit their check of the call depth only if a whole stack has enough frames for every function
    // and all that it calls, and if no function is called by its address, because such a call
    // enters the function in a deeper frame.
    let fits = |counts: Vec<u8>| counts.iter().all(|count| usize::from(*count) < MAX_FRAMES);
    let by_address = image.code.iter().any(|insn| insn.op == Op::CallReg);
    let bounded = !by_address && frames_below::all(image).is_some_and(fits);
    let keeps = KeepsMemory::of(image, InPlaceFuncs::default());
    Some(Generator { image, isa, nr_pages, bounded, keeps }.all())
}

/// Returns the offsets of the fields that the code uses: `Ctx` up to `refused`, then
/// `RefusedAccess`, the rest of `Ctx`, `CallOut`, `Calls`.
pub fn layout() -> Vec<usize> {
    macro_rules! offsets {
        ($type:ty: $($field:ident),*) => { [$(offset_of!($type, $field)),*] };
    }
    let head = offsets!(Ctx: base, mem, perms, deadline, fp_min, arena_base, may_goto, calls, access, entries, refused);
    let refused = offsets!(RefusedAccess: addr, slot, value, r0, executed, result, failed);
    let tail = offsets!(Ctx: out, cpu, helper_calls, in_place, rq_clock, executed, why, nr_pcs, pcs, regs, host);
    let out = offsets!(CallOut: fp, r5, pc, number, target);
    let calls = offsets!(Calls: helper, kfunc, kfunc4, func, func_reg, access);
    [&head[..], &refused, &tail, &out, &calls].concat()
}

struct Generator<'a> {
    image: &'a Image,
    isa: Isa,
    nr_pages: u64,
    /// Whether calls need no check of the call depth, because the stack has frames for all of them.
    bounded: bool,
    keeps: KeepsMemory,
}

impl Generator<'_> {
    fn all(&self) -> Result<CrossCompiled, Refusal> {
        let mut compiler = Compiler::default();
        let funcs = self.image.funcs.iter().map(|func| self.func(&mut compiler, func));
        let funcs = funcs.collect::<Result<_, _>>()?;
        let access_thunk = compiler.access_thunk(&*self.isa)?;
        Ok(CrossCompiled { funcs, access_thunk })
    }

    fn func(&self, compiler: &mut Compiler, func: &Func) -> Result<CrossCompiledFunc, Refusal> {
        if func.len > SLOTS_MAX {
            return Err(Refusal::TooLong { len: func.len, max: SLOTS_MAX });
        }
        let live = live(&self.image.code, func);
        let arguments = arguments(&self.image.code, func);
        let input = Input {
            code: &self.image.code,
            func,
            live: &live,
            call_conv: self.isa.default_call_conv(),
            data: &[],
            bounded: self.bounded,
            entered: entered(&self.image.code, func),
            nr_pages: self.nr_pages,
            in_place: InPlaceFuncs::default(),
            keeps: &|call| self.keeps.call(call),
            callee: &|pc| self.callee(pc),
        };
        let code = compiler.bytes(&*self.isa, input, arguments)?;
        Ok(CrossCompiledFunc { code, arguments })
    }

    /// Returns the offset of the table's entry and the number of arguments of the function that
    /// begins at a slot.
    fn callee(&self, pc: u32) -> (i32, usize) {
        let at = self.image.funcs.iter().position(|func| func.start == pc);
        let taken = at.map_or(0, |at| arguments(&self.image.code, &self.image.funcs[at]));
        (8 * at.unwrap_or(0) as i32, taken)
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! Machine code for a machine of another kind: made here, run elsewhere.
//!
//! Owns: what whoever runs it must know. Does not: run it (`tests/aarch64` does, in an emulator).

use std::mem::offset_of;

use super::compile::{Compiler, Isa, named_isa};
use super::ctx::{Calls, Ctx, Out, Refused};
use super::height::heights;
use super::translate::Input;
use super::{Refusal, SLOTS_MAX, arguments, entered, live};
use crate::insn::Op;
use crate::vm::interp::MAX_FRAMES;
use crate::vm::{Func, Image};

/// What the code of an image has in it of the place where it runs.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings {
    /// Pages of the linear memory.
    pub nr_pages: u64,
    /// Address of the table in which the code finds other functions' addresses, 8 bytes by `FuncId`.
    pub entries: u64,
}

/// The code of all functions of an image, in their order.
#[derive(Clone, Debug)]
pub struct Foreign {
    pub funcs: Vec<ForeignFunc>,
    /// What `access` of the context points to.
    pub access_thunk: Vec<u8>,
}

#[derive(Clone, Debug)]
pub struct ForeignFunc {
    pub code: Vec<u8>,
    /// How many of r1 to r5 follow context, count and frame pointer.
    pub arguments: usize,
}

/// Machine code of each function of an image for a machine of that name; None if there is no such machine.
pub fn generate(
    image: &Image,
    isa: &str,
    surroundings: Surroundings,
) -> Option<Result<Foreign, Refusal>> {
    let isa = named_isa(isa)?;
    // Whoever enters the code does not look whether there are frames enough: there must be, from the first frame on, and
    // no function may be entered in a later one by its address.
    let fits = |heights: Vec<u8>| heights.iter().all(|height| usize::from(*height) < MAX_FRAMES);
    let by_address = image.code.iter().any(|insn| insn.op == Op::CallReg);
    let bounded = !by_address && heights(image).is_some_and(fits);
    Some(Generator { image, isa, surroundings, bounded }.all())
}

/// Offsets of what the code uses: the context's fields to `access`, those of a refused access, the rest of the
/// context's, those of a call out, the ways out.
pub fn layout() -> Vec<usize> {
    macro_rules! offsets {
        ($type:ty: $($field:ident),*) => { [$(offset_of!($type, $field)),*] };
    }
    let head = offsets!(Ctx: base, mem, perms, deadline, fp_min, arena_base, may_goto, calls, access, refused);
    let refused = offsets!(Refused: addr, slot, value, r0, executed, result, failed);
    let tail = offsets!(Ctx: out, cpu, helper_calls, executed, why, nr_pcs, pcs, regs, host);
    let out = offsets!(Out: fp, r5, pc, number, target);
    let calls = offsets!(Calls: helper, kfunc, kfunc4, func, func_reg, access);
    [&head[..], &refused, &tail, &out, &calls].concat()
}

struct Generator<'a> {
    image: &'a Image,
    isa: Isa,
    surroundings: Surroundings,
    /// Calls need no check of their depth.
    bounded: bool,
}

impl Generator<'_> {
    fn all(&self) -> Result<Foreign, Refusal> {
        let mut compiler = Compiler::default();
        let funcs = self.image.funcs.iter().map(|func| self.func(&mut compiler, func));
        let funcs = funcs.collect::<Result<_, _>>()?;
        let access_thunk = compiler.access_thunk(&*self.isa)?;
        Ok(Foreign { funcs, access_thunk })
    }

    fn func(&self, compiler: &mut Compiler, func: &Func) -> Result<ForeignFunc, Refusal> {
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
            nr_pages: self.surroundings.nr_pages,
            callee: &|pc| self.callee(pc),
        };
        let code = compiler.bytes(&*self.isa, input, arguments)?;
        Ok(ForeignFunc { code, arguments })
    }

    /// Of the function that begins at a slot.
    fn callee(&self, pc: u32) -> (u64, usize) {
        let at = self.image.funcs.iter().position(|func| func.start == pc);
        let taken = at.map_or(0, |at| arguments(&self.image.code, &self.image.funcs[at]));
        (self.surroundings.entries + 8 * at.unwrap_or(0) as u64, taken)
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! Register reads and writes of instructions, their successors, and liveness.
//!
//! Owns: these analyses.
//! Does not: execute.
//!
//! Fault reports show only live registers, because machine code does not keep the value of a
//! register that no path reads.

use super::{Insn, Op};
use crate::vm::Func;

/// A set of registers: bit n stands for rn.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RegSet(pub u16);

impl RegSet {
    /// r1 to r5, the argument registers.
    pub const ARGS: RegSet = RegSet(0b11_1110);
    /// r0 to r5, which a call changes.
    pub const CALLER_SAVED: RegSet = RegSet(0b11_1111);

    /// Returns the first `nr` of r1 to r5.
    fn args(nr: usize) -> RegSet {
        RegSet(RegSet::ARGS.0 & ((2 << nr) - 1))
    }

    pub fn of(reg: u8) -> RegSet {
        RegSet(1 << (reg & 15))
    }

    pub fn has(self, reg: u8) -> bool {
        self.0 & RegSet::of(reg).0 != 0
    }

    pub fn and(self, other: RegSet) -> RegSet {
        RegSet(self.0 | other.0)
    }

    pub fn without(self, other: RegSet) -> RegSet {
        RegSet(self.0 & !other.0)
    }
}

/// Returns how many of r1 to r5 the called kernel function takes.
pub(crate) fn taken(call: &Insn) -> usize {
    5usize.saturating_sub(call.dst.into())
}

/// Returns the registers that an instruction reads.
pub fn reads(insn: &Insn) -> RegSet {
    use Op::*;
    let (dst, src) = (RegSet::of(insn.dst), RegSet::of(insn.src));
    match insn.op {
        Mov64K | Mov32K | LdImm64 | Pad | Ja | MayGoto => RegSet(0),
        Mov64X | Mov32X | MovSx8To64 | MovSx16To64 | MovSx32To64 | MovSx8To32 | MovSx16To32
        | CastKern | CastUser => src,
        CallKfunc => RegSet::args(taken(insn)),
        CallFunc | CallHelper => RegSet::ARGS,
        CallReg => RegSet::ARGS.and(dst),
        TailCall => RegSet(0b1110),
        Exit => RegSet::of(0),
        AtomicCmpxchgW | AtomicCmpxchgDw => dst.and(src).and(RegSet::of(0)),
        op if is_load(op) => src,
        op if has_constant(op) => dst,
        _ => dst.and(src),
    }
}

/// Returns the registers that an instruction writes, including those it sets to zero.
pub fn writes(insn: &Insn) -> RegSet {
    use Op::*;
    match insn.op {
        CallFunc | CallReg | CallHelper | CallKfunc => RegSet::CALLER_SAVED,
        AtomicCmpxchgW | AtomicCmpxchgDw => RegSet::of(0),
        op if in_range(op, AtomicFetchAddW, AtomicXchgDw) => RegSet::of(insn.src),
        op if is_load(op) || (op as u8) <= LdImm64 as u8 => RegSet::of(insn.dst),
        _ => RegSet(0),
    }
}

/// Returns the slots that may run after the one at `pc`.
pub fn successors(insn: &Insn, pc: u32) -> [Option<u32>; 2] {
    let target = insn.off as u32;
    match insn.op {
        Op::Exit | Op::Pad => [None, None],
        Op::Ja => [Some(target), None],
        Op::LdImm64 => [Some(pc + 2), None],
        op if super::decode::is_jump(op) => [Some(pc + 1), Some(target)],
        _ => [Some(pc + 1), None],
    }
}

/// Returns the live registers before each slot of a function. `after` gives the successors of the
/// function's nth slot. The analysis recomputes a slot only after the live registers of a successor
/// have changed, and the live registers of a slot change at most eleven times.
pub fn live(code: &[Insn], func: &Func, after: impl Fn(usize) -> [Option<u32>; 2]) -> Vec<RegSet> {
    let start = func.start as usize;
    let slots = code.get(start..start + func.len as usize).unwrap_or_default();
    let next = |at: usize| {
        let all = after(at).into_iter().flatten();
        all.map(|pc| pc.wrapping_sub(func.start) as usize).filter(|at| *at < slots.len())
    };
    let mut preds: Vec<Vec<u32>> = vec![Vec::new(); slots.len()];
    for at in 0..slots.len() {
        next(at).for_each(|to| preds[to].push(at as u32));
    }
    let mut live = vec![RegSet(0); slots.len()];
    let mut queue: Vec<u32> = (0..slots.len() as u32).collect();
    while let Some(at) = queue.pop() {
        let at = at as usize;
        let after = next(at).fold(RegSet(0), |all, to| all.and(live[to]));
        let before = after.without(writes(&slots[at])).and(reads(&slots[at]));
        if live[at] != before {
            live[at] = before;
            queue.extend_from_slice(&preds[at]);
        }
    }
    live
}

pub(crate) fn is_load(op: Op) -> bool {
    in_range(op, Op::LdxB, Op::LdxProbeWs) || in_range(op, Op::LoadAcqB, Op::LoadAcqDw)
}

/// Returns whether an operation has a constant as its second operand, or no second operand.
pub(crate) fn has_constant(op: Op) -> bool {
    use Op::*;
    let paired = (op as u8) < Neg64 as u8 || in_range(op, Jeq64K, Jset32X);
    if paired {
        // In `Op`, the constant and the register form of each operation alternate, from `Add64K`
        // on for arithmetic and from `Jeq64K` on for jumps. A constant form is therefore at an even
        // distance from `Add64K` or `Jeq64K`.
        let first = if (op as u8) < Neg64 as u8 { Add64K } else { Jeq64K };
        return (op as u8 - first as u8).is_multiple_of(2);
    }
    in_range(op, Neg64, Neg32) || in_range(op, Le16, Bswap64) || in_range(op, StB, StDw)
}

fn in_range(op: Op, first: Op, last: Op) -> bool {
    (first as u8..=last as u8).contains(&(op as u8))
}

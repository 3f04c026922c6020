// SPDX-License-Identifier: GPL-2.0-only
//! Analysis of a function before its translation: reachable slots, starts of blocks, and the known
//! range of each register at the start of a block.
//!
//! Owns: that analysis.
//! Does not: define the effect of an instruction on a value (see `range.rs`); generate code.
//!
//! The machine code checks every access through a register of which the analysis knows nothing.

#[cfg(test)]
mod tests;

use super::Data;
use super::alu::condition;
use super::helper::found;
use super::range::{Known, compared, result};
use super::translate::I64;
use crate::insn::uses::{has_constant, successors, writes};
use crate::insn::{Insn, Op};
use crate::vm::Func;
use cranelift_codegen::ir::condcodes::IntCC;

pub type Regs = [Known; 11];

/// Number of visits of a block in which the ranges of its values may grow by plain joins, as the
/// range of a loop counter does at each visit. In the next `WIDENINGS_MAX` visits, a growing range
/// extends to the next number that the function compares with, where a loop probably ends. A value
/// whose range grows after these visits may be anything.
const JOINS_BEFORE_WIDENING: u32 = 4;
const WIDENINGS_MAX: u32 = 12;

/// Returns what is known of the registers on entry to a function. r10 is the frame pointer, nothing
/// is known of the argument registers r1 to r5, and the other registers are zero.
fn entry() -> Regs {
    let mut regs = [Known::constant(0); 11];
    regs[1..6].fill(Known::NOTHING);
    regs[10] = Known::Frame(0, 0);
    regs
}

/// Input of the analysis.
struct Function<'a> {
    code: &'a [Insn],
    func: &'a Func,
    data: &'a [Data],
    leaders: &'a [bool],
}

/// Results of the analysis, indexed by slot of the function.
pub struct FunctionAnalysis {
    /// Known ranges of the registers before the first slot of each block; None for slots that begin
    /// no block or are never reached.
    pub blocks: Vec<Option<Regs>>,
    pub reached: Vec<bool>,
    /// Slots that may follow each slot.
    pub next: Vec<[Option<u32>; 2]>,
    /// Number of jumps and fall-throughs that lead to each slot.
    pub preds: Vec<u32>,
}

impl FunctionAnalysis {
    pub fn of(code: &[Insn], func: &Func, data: &[Data]) -> FunctionAnalysis {
        let len = func.len as usize;
        let mut facts = FunctionAnalysis {
            blocks: vec![None; len],
            reached: vec![false; len],
            next: vec![[None; 2]; len],
            preds: vec![0; len],
        };
        let leaders = leaders(code, func);
        let widening_stops = widening_stops(&code[func.start as usize..][..len]);
        let mut growths = vec![0; len];
        let mut queue = vec![(0usize, entry())];
        while let Some((first, regs)) = queue.pop() {
            let joined = |old| join(&old, &regs, growths[first], &widening_stops);
            let merged = facts.blocks[first].map_or(regs, joined);
            if facts.blocks[first] == Some(merged) {
                continue;
            }
            growths[first] += 1;
            facts.blocks[first] = Some(merged);
            facts.walk(Function { code, func, data, leaders: &leaders }, first, merged, &mut queue);
        }
        facts.count(func);
        facts
    }

    /// Follows one block to its end and queues its successors.
    fn walk(
        &mut self,
        Function { code, func, data, leaders }: Function<'_>,
        first: usize,
        mut regs: Regs,
        queue: &mut Vec<(usize, Regs)>,
    ) {
        let mut at = first;
        loop {
            self.reached[at] = true;
            let pc = func.start + at as u32;
            let insn = &code[pc as usize];
            self.next[at] = next(insn, pc, &regs);
            step(insn, pc, &mut regs, data);
            match self.next[at].map(|pc| pc.map(|pc| (pc - func.start) as usize)) {
                [Some(next), None] if !leaders[next] => at = next,
                [next, target] => {
                    queue.extend(next.map(|next| (next, after(insn, regs, false))));
                    queue.extend(target.map(|target| (target, after(insn, regs, true))));
                    return;
                }
            }
        }
    }

    /// Returns whether any jump leads backward.
    pub fn loops(&self, func: &Func) -> bool {
        let mut all = self.next.iter().zip(func.start..);
        all.any(|(next, pc)| next.iter().flatten().any(|to| *to <= pc))
    }

    fn count(&mut self, func: &Func) {
        for next in self.next.iter().flatten().flatten() {
            self.preds[(next - func.start) as usize] += 1;
        }
    }
}

/// Returns the slots that may run after an instruction, given the known registers before it.
fn next(insn: &Insn, pc: u32, known: &Regs) -> [Option<u32>; 2] {
    let [next, target] = successors(insn, pc);
    match known_outcome(insn, known) {
        Some(true) => [None, target],
        Some(false) => [next, None],
        None => [next, target],
    }
}

/// Returns whether a conditional jump is taken, if the known registers decide it. Such jumps come
/// from headers that choose between versions of a kernel function by whether the kernel has them.
pub fn known_outcome(insn: &Insn, known: &Regs) -> Option<bool> {
    if !is_conditional(insn.op) {
        return None;
    }
    let may_be = |taken| compared(insn, known[usize::from(insn.dst)], taken).is_some();
    match (may_be(false), may_be(true)) {
        (false, _) => Some(true),
        (true, false) => Some(false),
        (true, true) => None,
    }
}

/// Returns, for each slot, whether it would begin a block if reached.
fn leaders(code: &[Insn], func: &Func) -> Vec<bool> {
    let mut leaders = vec![false; func.len as usize];
    leaders[0] = true;
    for pc in func.start..func.start + func.len {
        let insn = &code[pc as usize];
        let next = successors(insn, pc);
        if insn.op == Op::Ja || next[1].is_some() {
            for next in next.into_iter().flatten() {
                leaders[(next - func.start) as usize] = true;
            }
        }
    }
    leaders
}

/// Returns what is known of the registers after a jump. `taken` tells whether the program takes the
/// jump. If the instruction is no conditional jump, the registers stay as they are.
fn after(insn: &Insn, mut regs: Regs, taken: bool) -> Regs {
    if !is_conditional(insn.op) {
        return regs;
    }
    let reg = &mut regs[usize::from(insn.dst)];
    match (*reg, null_if(insn)) {
        (found @ Known::Found(of), Some(null_if)) => {
            let null = null_if == taken;
            let value = if null { Known::constant(0) } else { Known::Number(of.first, of.last) };
            regs.iter_mut().filter(|reg| **reg == found).for_each(|reg| *reg = value);
        }
        (value, _) => *reg = compared(insn, value, taken).unwrap_or(value),
    }
    regs
}

/// Returns, for a jump that compares with 0, whether the program takes the jump if the value is 0;
/// None for other instructions.
fn null_if(insn: &Insn) -> Option<bool> {
    let with_zero = has_constant(insn.op) && insn.imm == 0;
    match condition(insn.op) {
        (Some(IntCC::Equal), I64) if with_zero => Some(true),
        (Some(IntCC::NotEqual), I64) if with_zero => Some(false),
        _ => None,
    }
}

fn join(a: &Regs, b: &Regs, growths: u32, widening_stops: &[u64]) -> Regs {
    let mut joined = *a;
    for (to, from) in joined.iter_mut().zip(b) {
        let both = to.join(*from);
        *to = match growths {
            _ if both == *to => both,
            0..JOINS_BEFORE_WIDENING => both,
            _ if growths < JOINS_BEFORE_WIDENING + WIDENINGS_MAX => {
                both.widened(*to, widening_stops)
            }
            _ => both.unbounded(),
        };
    }
    joined
}

/// Returns the sorted numbers at which a growing range may stop: the constants that the function
/// compares with, the numbers just below them, and the largest 32-bit and 64-bit numbers.
fn widening_stops(code: &[Insn]) -> Vec<u64> {
    let compares = |insn: &&Insn| is_conditional(insn.op) && has_constant(insn.op);
    let both = |insn: &Insn| [insn.imm as u64, (insn.imm as u64).wrapping_sub(1)];
    let mut widening_stops: Vec<u64> = code.iter().filter(compares).flat_map(both).collect();
    widening_stops.extend([u64::from(u32::MAX), u64::MAX]);
    widening_stops.sort_unstable();
    widening_stops.dedup();
    widening_stops
}

fn is_conditional(op: Op) -> bool {
    (Op::Jeq64K as u8..=Op::Jset32X as u8).contains(&(op as u8))
}

/// Applies the effect of an instruction to the known registers.
pub fn step(insn: &Insn, pc: u32, regs: &mut Regs, data: &[Data]) {
    if matches!(insn.op, Op::CallFunc | Op::CallReg | Op::CallHelper | Op::CallKfunc) {
        // The known registers cannot include the result (`Known::Found`) of an earlier execution of
        // this same call: on the first path to the call no register is known to hold it, and a join
        // keeps only facts that hold on all paths.
        regs[0] = found(insn, pc, regs[1], data).map_or(Known::NOTHING, Known::Found);
        regs[1..6].fill(Known::constant(0));
        return;
    }
    let (dst, src) = (regs[usize::from(insn.dst)], regs[usize::from(insn.src)]);
    let written = writes(insn);
    for (reg, value) in regs.iter_mut().enumerate() {
        if written.has(reg as u8) {
            // Only an atomic operation writes a register other than `dst`: the old value from
            // memory, of which nothing is known.
            let own = reg == usize::from(insn.dst);
            *value = if own { result(insn, dst, src) } else { Known::NOTHING };
        }
    }
}

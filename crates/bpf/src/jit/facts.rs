// SPDX-License-Identifier: GPL-2.0-only
//! What is known of a function before it is translated: which slots are reached, where blocks begin, and which registers
//! hold an address in the frame or a constant there.
//!
//! Owns: that analysis. Does not: generate code. A register of which nothing is known is checked at every use.

use crate::insn::uses::{RegSet, successors, writes};
use crate::insn::{Insn, Op};
use crate::vm::Func;

/// The value of a register.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Known {
    #[default]
    Nothing,
    /// r10 and so much.
    Frame(i32),
    Const(u64),
}

pub type Regs = [Known; 11];

/// The values of registers on entry to a function: those that carry no argument are zero.
fn entry() -> Regs {
    let mut regs = [Known::Const(0); 11];
    regs[1..6].fill(Known::Nothing);
    regs[10] = Known::Frame(0);
    regs
}

/// Of each slot of a function, None where nothing leads.
pub struct Facts {
    /// Before the first slot of each block.
    pub blocks: Vec<Option<Regs>>,
    pub reached: Vec<bool>,
    /// How many jumps and fall-throughs lead to each block.
    pub preds: Vec<u32>,
}

impl Facts {
    pub fn of(code: &[Insn], func: &Func) -> Facts {
        let len = func.len as usize;
        let mut facts =
            Facts { blocks: vec![None; len], reached: vec![false; len], preds: vec![0; len] };
        let leaders = leaders(code, func);
        let mut queue = vec![(0usize, entry())];
        while let Some((first, regs)) = queue.pop() {
            let merged = facts.blocks[first].map_or(regs, |old| join(&old, &regs));
            if facts.blocks[first] == Some(merged) {
                continue;
            }
            facts.blocks[first] = Some(merged);
            facts.walk(code, func, &leaders, first, merged, &mut queue);
        }
        facts.count(code, func);
        facts
    }

    /// Follows one block to its end and queues what comes after.
    fn walk(
        &mut self,
        code: &[Insn],
        func: &Func,
        leaders: &[bool],
        first: usize,
        mut regs: Regs,
        queue: &mut Vec<(usize, Regs)>,
    ) {
        let mut at = first;
        loop {
            self.reached[at] = true;
            let pc = func.start + at as u32;
            let insn = &code[pc as usize];
            step(insn, &mut regs);
            let next = successors(insn, pc).map(|pc| pc.map(|pc| (pc - func.start) as usize));
            match next {
                [Some(next), None] if !leaders[next] => at = next,
                next => {
                    queue.extend(next.into_iter().flatten().map(|next| (next, regs)));
                    return;
                }
            }
        }
    }

    fn count(&mut self, code: &[Insn], func: &Func) {
        for at in (0..func.len as usize).filter(|at| self.reached[*at]) {
            let pc = func.start + at as u32;
            for next in successors(&code[pc as usize], pc).into_iter().flatten() {
                self.preds[(next - func.start) as usize] += 1;
            }
        }
    }
}

/// Slots at which a block begins, were they reached.
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

fn join(a: &Regs, b: &Regs) -> Regs {
    let mut joined = *a;
    for (to, from) in joined.iter_mut().zip(b) {
        if *to != *from {
            *to = Known::Nothing;
        }
    }
    joined
}

/// The effect of an instruction on what is known.
pub fn step(insn: &Insn, regs: &mut Regs) {
    let (dst, src) = (usize::from(insn.dst), usize::from(insn.src));
    let value = match insn.op {
        Op::Mov64X => regs[src],
        Op::Mov64K | Op::LdImm64 => Known::Const(insn.imm as u64),
        Op::Mov32K => Known::Const(u64::from(insn.imm as u32)),
        Op::Add64K => moved(regs[dst], insn.imm),
        Op::Sub64K => moved(regs[dst], insn.imm.wrapping_neg()),
        Op::CallFunc | Op::CallReg | Op::CallHelper | Op::CallKfunc => {
            regs[0] = Known::Nothing;
            regs[1..6].fill(Known::Const(0));
            return;
        }
        _ => {
            let written = writes(insn);
            for (reg, value) in regs.iter_mut().enumerate() {
                if written != RegSet::default() && written.has(reg as u8) {
                    *value = Known::Nothing;
                }
            }
            return;
        }
    };
    regs[dst] = value;
}

fn moved(from: Known, by: i64) -> Known {
    match from {
        Known::Const(value) => Known::Const(value.wrapping_add(by as u64)),
        Known::Frame(off) => {
            i32::try_from(i64::from(off).saturating_add(by)).map_or(Known::Nothing, Known::Frame)
        }
        Known::Nothing => Known::Nothing,
    }
}

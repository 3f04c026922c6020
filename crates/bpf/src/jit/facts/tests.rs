// SPDX-License-Identifier: GPL-2.0-only
//! What is known before a slot, in loops.

use super::*;
use crate::insn::asm::assemble;

/// Before the first slot whose text the program marks by `r0 = 99`.
fn marked(text: &str) -> Regs {
    let image = assemble(text).expect("text").image("facts").expect("image");
    let facts = Facts::of(&image.code, &image.funcs[0]);
    let mark = |insn: &Insn| insn.op == Op::Mov64K && insn.imm == 99;
    let at = image.code.iter().position(mark).expect("a mark");
    let first = (0..=at).rev().find(|slot| facts.blocks[*slot].is_some()).expect("a block");
    let mut regs = facts.blocks[first].expect("just found");
    image.code[first..at].iter().for_each(|insn| step(insn, &mut regs));
    regs
}

#[test]
fn a_counter_stays_below_what_it_is_compared_with() {
    let below = "r6 = 0\nloop:\nr0 = 99\nr6 += 1\nif r6 < 100 goto loop\nexit";
    assert_eq!(marked(below)[6], Known::Number(0, 99));
    let unequal = "r6 = 0\nloop:\nr0 = 99\nr6 += 1\nif r6 != 100 goto loop\nexit";
    assert_eq!(marked(unequal)[6], Known::Number(0, 99));
    let two_steps = "r6 = 0\nloop:\nr0 = 99\nr6 += 7\nif r6 < 100 goto loop\nexit";
    assert_eq!(marked(two_steps)[6], Known::Number(0, 99));
}

#[test]
fn a_counter_that_is_compared_with_nothing_known_may_be_anything() {
    let text = "r6 = 0\nloop:\nr0 = 99\nr6 += 1\nif r6 < r1 goto loop\nexit";
    assert_eq!(marked(text)[6], Known::NOTHING);
    let down = "r6 = 100\nloop:\nr0 = 99\nr6 += -1\nif r6 < r1 goto loop\nexit";
    assert_eq!(marked(down)[6], Known::NOTHING);
    let pointer = "r6 = r10\nloop:\nr0 = 99\nr6 += -8\nif r6 < r1 goto loop\nexit";
    assert_eq!(marked(pointer)[6], Known::Near);
}

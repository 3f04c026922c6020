// SPDX-License-Identifier: GPL-2.0-only
//! Tests of what the analysis knows of registers before a slot: in loops, and after lookups.

use super::*;
use crate::insn::asm::assemble;

/// Returns the known values before the first `r0 = 99`, with which a program marks a slot.
fn marked(text: &str) -> Regs {
    marked_with(text, &[])
}

fn marked_with(text: &str, data: &[Data]) -> Regs {
    let image = assemble(text).expect("text").image("facts").expect("image");
    let facts = FunctionAnalysis::of(&image.code, &image.funcs[0], data);
    let mark = |insn: &Insn| insn.op == Op::Mov64K && insn.imm == 99;
    let at = image.code.iter().position(mark).expect("a mark");
    let first = (0..=at).rev().find(|slot| facts.blocks[*slot].is_some()).expect("a block");
    let mut regs = facts.blocks[first].expect("just found");
    for (pc, insn) in image.code.iter().enumerate().take(at).skip(first) {
        step(insn, pc as u32, &mut regs, data);
    }
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
    assert_eq!(marked(pointer)[6], Known::LikelyFrame);
}

const MAP: u64 = 0xffff_8800_0000_1000;

/// Returns an array of ten elements of 16 bytes, which programs know by the map address `MAP`, and
/// the range of its elements' addresses.
fn elements() -> (Data, Known) {
    let mut memory = crate::mem::Memory::with_size(1 << 32).expect("memory");
    let def = crate::map::MapDef {
        map_type: crate::map::map_type::ARRAY,
        key_size: 4,
        value_size: 16,
        max_entries: 10,
        ..Default::default()
    };
    let array = crate::map::array::Array::new(&mut memory, &def, 1).expect("an array");
    let elements = Some(crate::jit::Elements { map: MAP, percpu: false, array });
    let data = Data { addr: array.base, len: array.len(), writable: true, elements, keys: None };
    (data, Known::Number(array.base, array.base + 9 * 16))
}

const LOOK_UP: &str = "r2 = r10\nr2 += -4\nr1 = 0xffff880000001000 ll\ncall 1\n";

#[test]
fn what_was_found_is_an_element_wherever_it_was_copied_before() {
    let (data, element) = elements();
    let found = |then: &str| marked_with(&format!("{LOOK_UP}{then}\nr0 = 99\nout:\nexit"), &[data]);
    for check in ["if r0 == 0 goto out", "if r6 == 0 goto out"] {
        let regs = found(&format!("r6 = r0\n{check}"));
        assert_eq!([regs[0], regs[6]], [element; 2], "{check}");
    }
    let absent = found("r6 = r0\nif r0 != 0 goto out");
    assert_eq!([absent[0], absent[6]], [Known::constant(0); 2]);
    // In three cases the analysis must not take a register for the address of an element: the
    // program has not compared the lookup's result with 0, r6 is no longer equal to this result, or
    // the analysis does not know the map.
    assert!(matches!(found("r6 = r0")[6], Known::Found(_)));
    assert_eq!(found("r6 = r0\nr6 += 8\nif r0 == 0 goto out")[6], Known::NOTHING);
    let unknown = marked(&format!("{LOOK_UP}if r0 == 0 goto out\nr0 = 99\nout:\nexit"));
    assert_eq!(unknown[0], Known::Number(1, u64::MAX));
}

#[test]
fn what_an_earlier_turn_found_is_not_what_this_one_did() {
    let (data, element) = elements();
    let text = format!(
        "r6 = 0\nr7 = 5\nloop:\nr8 = r6\n{LOOK_UP}r6 = r0\nif r0 == 0 goto next\nr0 = 99\nnext:\nr7 += -1\n\
         if r7 != 0 goto loop\nexit"
    );
    let regs = marked_with(&text, &[data]);
    assert_eq!([regs[6], regs[8]], [element, Known::NOTHING]);
}

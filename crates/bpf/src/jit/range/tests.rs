// SPDX-License-Identifier: GPL-2.0-only
//! Tests that the range computed for a result contains the value that the interpreter computes.

use proptest::prelude::*;

use super::*;
use crate::vm::bare::BareHost;
use crate::vm::{Config, Engine, Func, Image, InstanceParts};

const FRAME_END: u64 = 0xffff_8800_1234_5000;

/// Generates numbers near those at which arithmetic changes behaviour.
fn number() -> impl Strategy<Value = u64> {
    let near = |at: u64| (0..4u64).prop_map(move |by| at.wrapping_add(by).wrapping_sub(2));
    prop_oneof![
        near(0),
        near(1 << 31),
        near(1 << 32),
        near(1 << 63),
        0..600u64,
        any::<u64>(),
        (0..64u32).prop_map(|bit| 1 << bit)
    ]
}

/// Generates a range and a value in it.
fn known() -> impl Strategy<Value = (Known, u64)> {
    let number = (number(), number(), number()).prop_map(|(a, b, c)| {
        let mut all = [a, b, c];
        all.sort_unstable();
        (Known::Number(all[0], all[2]), all[1])
    });
    let frame = [-600..600i32, -600..600, -600..600].prop_map(|mut all| {
        all.sort_unstable();
        (Known::Frame(all[0], all[2]), FRAME_END.wrapping_add(all[1] as u64))
    });
    let found = (1..1u64 << 47, 0..4096u64, any::<bool>()).prop_map(|(first, more, null)| {
        let found = LookupResult { call: 7, first, last: first + 4096 };
        (Known::Found(found), if null { 0 } else { first + more })
    });
    prop_oneof![3 => number, 1 => frame, 1 => found]
}

fn holds(known: Known, value: u64) -> bool {
    match known {
        Known::Number(low, high) => (low..=high).contains(&value),
        Known::LikelyFrame => true,
        Known::Found(found) => value == 0 || (found.first..=found.last).contains(&value),
        Known::Frame(from, to) => {
            let at = value.wrapping_sub(FRAME_END) as i64;
            (i64::from(from)..=i64::from(to)).contains(&at)
        }
    }
}

fn all_ops() -> Vec<Op> {
    let ops = (0..=Op::Bswap64 as u8).filter_map(op_of);
    ops.collect()
}

/// Returns the operation with this number; the enumeration has no gaps.
fn op_of(number: u8) -> Option<Op> {
    // SAFETY: the number is at most that of the last operation used here, and the enumeration has
    // no gaps.
    (number <= Op::Bswap64 as u8).then(|| unsafe { std::mem::transmute::<u8, Op>(number) })
}

/// Runs `insn` in the interpreter on r0 and r2, and returns r0; for a jump, 1 if it is taken.
fn interpreted(insn: Insn, x: u64, y: u64) -> u64 {
    let plain = |op, dst, src| Insn { op, dst, src, off: 0, imm: 0 };
    let jump = (insn.op as u8) >= Op::Jeq64K as u8;
    let mut code = vec![plain(Op::Mov64X, 0, 1), insn];
    if jump {
        code[1].off = 4;
        code.extend([plain(Op::Mov64K, 0, 0), plain(Op::Exit, 0, 0)]);
        code.push(Insn { imm: 1, ..plain(Op::Mov64K, 0, 0) });
    }
    code.push(plain(Op::Exit, 0, 0));
    let func = Func { name: "main".into(), len: code.len() as u32, ..Func::default() };
    let image = Image { code, funcs: vec![func], ..Image::default() };
    let mut host =
        BareHost::new(Config { engine: Engine::Interp, ..Config::default() }).expect("memory");
    let instance = host.vm.add_instance("range");
    host.vm.install(instance, InstanceParts { image: image.into(), ..InstanceParts::default() });
    host.run(instance, "main", [x, y, 0, 0, 0]).expect("no fault")
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn results_are_in_range(
        op in prop::sample::select(all_ops()),
        (known_x, x) in known(),
        (known_y, y) in known(),
        imm in number(),
    ) {
        let insn = Insn { op, dst: 0, src: 2, off: 0, imm: i64::from(imm as i32) };
        let value = interpreted(insn, x, y);
        let range = result(&insn, known_x, known_y);
        prop_assert!(holds(range, value), "{range:?} has not {value:#x}");
    }

    #[test]
    fn comparisons_narrow_and_keep_the_value(
        at in 0..=(Op::Jset32X as u8 - Op::Jeq64K as u8),
        (known_x, x) in known(),
        y in number(),
        imm in number(),
    ) {
        // SAFETY: the number is in the range of the conditional jumps.
        let op = unsafe { std::mem::transmute::<u8, Op>(Op::Jeq64K as u8 + at) };
        let insn = Insn { op, dst: 0, src: 2, off: 0, imm: i64::from(imm as i32) };
        let taken = interpreted(insn, x, y) == 1;
        let range = compared(&insn, known_x, taken);
        prop_assert!(range.is_some_and(|range| holds(range, x)), "{range:?} has not {x:#x}");
    }
}

#[test]
fn an_index_that_was_masked_or_compared_is_in_bounds() {
    let insn = |op, imm| Insn { op, dst: 0, src: 1, off: 0, imm };
    let masked = result(&insn(Op::And64K, 63), Known::NOTHING, Known::NOTHING);
    assert_eq!(masked, Known::Number(0, 63));
    let shifted = result(&insn(Op::Lsh64K, 3), masked, Known::NOTHING);
    assert_eq!(
        result(&insn(Op::Add64X, 0), shifted, Known::Frame(-512, -512)),
        Known::Frame(-512, -8)
    );
    let word = result(&insn(Op::LdxW, 0), Known::NOTHING, Known::NOTHING);
    assert_eq!(compared(&insn(Op::Jgt64K, 9), word, false), Some(Known::Number(0, 9)));
    assert_eq!(compared(&insn(Op::Jgt32K, 9), Known::NOTHING, false), Some(Known::NOTHING));
    assert_eq!(compared(&insn(Op::Jgt64K, 9), masked, true), Some(Known::Number(10, 63)));
}

// SPDX-License-Identifier: GPL-2.0-only
use super::*;

/// `r6 = arg 1`, the argument that may be NULL.
const LOAD_ARG: RawInsn = RawInsn { code: 0x79, regs: 0x16, off: 8, imm: 0 };
const EXIT: RawInsn = RawInsn { code: 0x95, regs: 0, off: 0, imm: 0 };

fn ldx(dst: u8, src: u8, off: i16) -> RawInsn {
    RawInsn::new(0x79, dst, src, off, 0)
}

fn check(body: &[RawInsn]) -> Option<usize> {
    let insns: Vec<RawInsn> = [&[LOAD_ARG], body, &[EXIT]].concat();
    first_null_deref(&insns, &[1]).map(|found| {
        assert_eq!(found.arg, 1);
        found.insn
    })
}

#[test]
fn an_untested_load_or_store_is_found() {
    assert_eq!(check(&[ldx(0, 6, 16)]), Some(1));
    assert_eq!(check(&[RawInsn::new(0x7b, 6, 1, 16, 0)]), Some(1));
    assert_eq!(check(&[RawInsn::new(0x7a, 6, 0, 16, 0)]), Some(1));
    // The check also finds arithmetic on the untested argument: `r2 = r6; r2 += 8`.
    assert_eq!(check(&[RawInsn::new(0xbf, 2, 6, 0, 0), RawInsn::new(0x07, 2, 0, 0, 8)]), Some(2));
}

#[test]
fn another_argument_is_free() {
    let insns = [ldx(6, 1, 0), ldx(0, 6, 16), EXIT];
    assert_eq!(first_null_deref(&insns, &[1]), None);
    assert_eq!(first_null_deref(&insns, &[]), None);
    assert_eq!(first_null_deref(&insns, &[0]), Some(NullDeref { insn: 1, arg: 0 }));
}

#[test]
fn a_test_of_any_copy_suffices() {
    // Accepted: `if r6 == 0 goto +1; r0 = *(r6 + 16)`.
    assert_eq!(check(&[RawInsn::new(0x15, 6, 0, 1, 0), ldx(0, 6, 16)]), None);
    // Accepted, because a test of the copy r7 counts for r6:
    // `r7 = r6; if r7 == 0 goto +1; r0 = *(r6 + 16)`.
    let copied = [RawInsn::new(0xbf, 7, 6, 0, 0), RawInsn::new(0x15, 7, 0, 1, 0), ldx(0, 6, 16)];
    assert_eq!(check(&copied), None);
}

#[test]
fn a_test_of_something_else_does_not() {
    // Refused, because r1 holds the context: `if r1 == 0 goto +1; r0 = *(r6 + 16)`.
    assert_eq!(check(&[RawInsn::new(0x15, 1, 0, 1, 0), ldx(0, 6, 16)]), Some(2));
}

#[test]
fn the_stack_and_saved_registers_keep_it() {
    let spilled = [RawInsn::new(0x7b, 10, 6, -8, 0), ldx(3, 10, -8), ldx(0, 3, 0)];
    assert_eq!(check(&spilled), Some(3));
    let call = RawInsn::new(0x85, 0, 0, 0, 5);
    assert_eq!(check(&[call, ldx(0, 6, 0)]), Some(2), "r6 outlives a call");
    let overwritten =
        [RawInsn::new(0x7b, 10, 6, -8, 0), RawInsn::new(0x62, 10, 0, -4, 1), ldx(3, 10, -8)];
    assert_eq!(check(&[&overwritten[..], &[ldx(0, 3, 0)]].concat()), None);
}

#[test]
fn where_paths_disagree_it_accepts() {
    // `if r1 == 0 goto +1; r6 = r1; r0 = *(r6 + 0)`: r6 is the untested argument on one of two
    // paths only, so the check accepts the load.
    let body = [RawInsn::new(0x15, 1, 0, 1, 0), RawInsn::new(0xbf, 6, 1, 0, 0), ldx(0, 6, 0)];
    assert_eq!(check(&body), None);
}

/// The check terminates for jumps out of the program, loops, and programs without an exit.
#[test]
fn any_code_terminates() {
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        state >> 33
    };
    for _ in 0..2000 {
        let len = 1 + random() as usize % 40;
        let insns: Vec<RawInsn> = (0..len)
            .map(|_| {
                RawInsn::new(
                    random() as u8,
                    random() as u8,
                    random() as u8 & 0xf,
                    random() as i16 % 20,
                    random() as i32,
                )
            })
            .collect();
        first_null_deref(&insns, &[0, 1]);
    }
}

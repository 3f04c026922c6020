// SPDX-License-Identifier: GPL-2.0-only
//! Tests that nothing observable differs when both engines run the same random programs:
//! `PROPTEST_CASES=10000 cargo test -p scxlab-bpf --lib engines_agree`.

use proptest::prelude::*;

use super::super::bare::trial;
use super::*;
use crate::insn::random::{self, ProgramEntry};

proptest! {
    #[test]
    fn engines_agree(bytes in prop::collection::vec(any::<u8>(), 20..500), flags in 0..16u8) {
        let entry = if flags & 8 == 0 { ProgramEntry::Registers } else { ProgramEntry::Array };
        let program = random::program_for(&bytes, entry);
        let interp = trial::run(&program, entry, Engine::Interp, flags);
        prop_assert!(interp.is_some(), "the generator makes programs that decode");
        prop_assert_eq!(&interp, &trial::run(&program, entry, Engine::Jit, flags));
        prop_assert_eq!(interp, trial::run_kept(&program, entry, flags));
    }
}

/// The generator's programs are worth running: most execute many instructions, some return and some
/// fault.
#[test]
fn random_programs_run_and_fault() {
    let (mut returned, mut faulted, mut executed) = (0, 0, 0);
    for seed in 0..200u64 {
        let bytes: Vec<u8> = (0..300).map(|at| scrambled(seed << 32 | at) as u8).collect();
        let program = random::program(&bytes);
        let seen =
            trial::run(&program, ProgramEntry::Registers, Engine::Interp, 3).expect("decodes");
        executed += seen[0].executed;
        match &seen[0].result {
            Ok(_) => returned += 1,
            Err(_) => faulted += 1,
        }
    }
    assert!(returned > 40 && faulted > 40, "{returned} returned, {faulted} faulted");
    assert!(executed > 200 * 20, "{executed} instructions in all");
}

/// Mixes the bits of a number (the finish of splitmix64).
fn scrambled(number: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) >> 32
}

// SPDX-License-Identifier: GPL-2.0-only
//! The time that BPF instructions take. The kernel computes it each time a program calls a kernel
//! function or ends, so the computation has no division.
//!
//! Owns: the arithmetic, which is exact.
//! Does not: count instructions or charge their time (see `Kernel::charge_insns`).

use scxlab_machine::id::Nanos;

/// The time of one instruction.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InsnTime {
    /// `whole_ns`: whole nanoseconds per instruction. `part`: the fraction of a nanosecond that
    /// remains, in 2^-64 ns, rounded up.
    whole_ns: u64,
    part: u64,
}

impl InsnTime {
    pub fn new(insn_ps: u64) -> InsnTime {
        let part = (u128::from(insn_ps % 1000) << 64).div_ceil(1000);
        InsnTime { whole_ns: insn_ps / 1000, part: part as u64 }
    }

    /// Returns the time of `insns` instructions, rounded down to whole nanoseconds. `part` is too
    /// large by less than 2^-64 ns, so the error for up to 2^54 instructions, more than any run
    /// executes, is below 1 ps. The exact time is a multiple of 1 ps, so the error never adds a
    /// nanosecond to the result.
    #[inline(always)]
    pub fn of(self, insns: u64) -> Nanos {
        let part = (u128::from(insns) * u128::from(self.part)) >> 64;
        insns * self.whole_ns + part as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_a_division_gives() {
        for insn_ps in [0, 1, 7, 125, 250, 300, 333, 999, 1000, 1001, 1800, 123_457] {
            let time = InsnTime::new(insn_ps);
            let truth = |insns: u64| u128::from(insns) * u128::from(insn_ps) / 1000;
            let around = (0..45).flat_map(|bit| [(1u64 << bit) - 1, 1 << bit, (1 << bit) + 1]);
            // A rounding error would show at numbers of instructions that take a whole number of
            // nanoseconds, or almost so. The test therefore tries such numbers.
            let ends = (1..2000u64).map(|ns| (ns << 30) * 1000 / insn_ps.max(1));
            for insns in (0..5000).chain(around).chain(ends) {
                assert_eq!(u128::from(time.of(insns)), truth(insns), "{insns} of {insn_ps} ps");
            }
        }
    }
}

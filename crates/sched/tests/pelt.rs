// SPDX-License-Identifier: GPL-2.0-only
//! `bpf/lib/pelt.bpf.h` against its closed form, through the selftest object in the interpreter.
//!
//! The bound on the error of a sum. Let y^32 = 1/2, and M = 1024 (y + y^2 + ...) = 46764.08; the
//! code has m = 46764.
//! - A decay by n computes floor(v * floor(2^32 y^(n mod 32)) / 2^32 / 2^(n / 32)). The table's
//!   entry is less than 1 too small and v < 2^16, so the product is at most 2^-16 too small, and
//!   rounding takes less than 1. The error is -(1 + 2^-16) to 0.
//! - n full periods are worth M - M y^n. The code has m less a decay of m. The error is
//!   (m - M)(1 - y^n), which is -0.08 to 0, plus the error of that decay, 0 to 1 + 2^-16.
//! - An update that ends a period adds at most both errors: -1.09 to 1.09 in sum. Earlier errors
//!   decay by at least y. The error of a sum therefore stays below 1.09 / (1 - y) = 50.9.

use std::cell::RefCell;

use proptest::prelude::*;
use scxlab_kernel::Kernel;
use scxlab_loader::link::Loaded;
use scxlab_testkit::shipped::{run_program, selftest};
use scxlab_testkit::sim::kernel;

const BOUND: f64 = 51.0;
const PERIOD: u64 = 1024;

/// Returns y^n, exact to 50 bits: sums of it are far more exact than the bound.
fn y(n: u64) -> f64 {
    (-(n as f64) / 32.0).exp2()
}

/// A kernel with the selftest object loaded.
struct PeltObject {
    k: Kernel,
    loaded: Loaded,
}

/// `struct pelt_args` after a call.
#[derive(Clone, Copy, Debug)]
struct Answer {
    value: u64,
    ended: bool,
    runnable: u32,
    running: u32,
    period: u32,
    last: u64,
}

impl PeltObject {
    fn new() -> PeltObject {
        let mut k = kernel("1c", "hogs,tasks=1", 1);
        let loaded = selftest(&mut k, "pelt");
        PeltObject { k, loaded }
    }

    fn call(&mut self, program: &str, now: u64, value: u64, n: u64, state: u32) -> Answer {
        let mut ctx = [0u8; 56];
        for (at, word) in [now, value, n].iter().enumerate() {
            ctx[8 * at..8 * at + 8].copy_from_slice(&word.to_ne_bytes());
        }
        ctx[24..28].copy_from_slice(&state.to_ne_bytes());
        assert_eq!(run_program(&mut self.k, &self.loaded, program, &mut ctx), 0, "{program}");
        let long = |at: usize| u64::from_ne_bytes(ctx[at..at + 8].try_into().expect("eight"));
        let short = |at: usize| u32::from_ne_bytes(ctx[at..at + 4].try_into().expect("four"));
        Answer {
            value: long(8),
            ended: short(28) != 0,
            runnable: short(32),
            running: short(36),
            period: short(40),
            last: long(48),
        }
    }

    fn decay(&mut self, value: u64, n: u64) -> u64 {
        self.call("decay_one", 0, value, n, 0).value
    }

    fn restart(&mut self, at: u64) {
        self.call("update", 0, at, 0, 0);
    }

    fn update(&mut self, now: u64, state: u32) -> Answer {
        self.call("update", now, 0, 0, state)
    }
}

/// Time in one state, in ns.
#[derive(Clone, Copy, Debug)]
struct Stretch {
    ns: u64,
    /// Bit 0: runnable, bit 1: running.
    state: u32,
}

/// Returns the sum of all units of 1024 ns in which the state had the bit `bit`, each decayed by
/// its age in periods.
fn closed_form(pattern: &[Stretch], bit: u32) -> f64 {
    let end: u64 = pattern.iter().map(|s| s.ns).sum::<u64>() / 1024 / PERIOD;
    let (mut ns, mut sum) = (0, 0.0);
    for stretch in pattern {
        let (mut unit, to) = (ns / 1024, (ns + stretch.ns) / 1024);
        ns += stretch.ns;
        while stretch.state & bit != 0 && unit < to {
            let next = to.min((unit / PERIOD + 1) * PERIOD);
            sum += (next - unit) as f64 * y(end - unit / PERIOD);
            unit = next;
        }
    }
    sum
}

fn stretches() -> impl Strategy<Value = Vec<Stretch>> {
    // The stretches last from fractions of a unit (1024 ns) to hundreds of periods.
    let ns = (0u32..28).prop_flat_map(|bits| (1u64 << bits)..(2u64 << bits));
    let state = prop_oneof![Just(0u32), Just(1), Just(3)];
    prop::collection::vec((ns, state).prop_map(|(ns, state)| Stretch { ns, state }), 1..40)
}

thread_local! {
    static BENCH: RefCell<PeltObject> = RefCell::new(PeltObject::new());
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// For any sequence of states, no sum is off by more than `BOUND` at any update.
    #[test]
    fn sums_are_the_closed_form(pattern in stretches(), start in 1u64..1 << 40) {
        BENCH.with_borrow_mut(|b| -> Result<(), TestCaseError> {
            b.restart(start);
            let mut now = start;
            for i in 0..pattern.len() {
                now += pattern[i].ns;
                let got = b.update(now, pattern[i].state);
                let past = &pattern[..=i];
                let all: Vec<_> = past.iter().map(|s| Stretch { state: 3, ..*s }).collect();
                for (name, sum, wanted) in [
                    ("runnable", got.runnable, closed_form(past, 1)),
                    ("running", got.running, closed_form(past, 2)),
                    ("period", got.period, closed_form(&all, 1)),
                ] {
                    let off = f64::from(sum) - wanted;
                    prop_assert!(off.abs() < BOUND, "{name} {sum}, wanted {wanted:.1}: {off:.2} off");
                    prop_assert!(sum <= 47_788 + 51, "{name} {sum}");
                }
                prop_assert!(got.running <= got.runnable + 51 && got.runnable <= got.period + 51);
                prop_assert!(now - got.last < 1024, "time is kept: {} of {now}", got.last);
            }
            Ok(())
        })?;
    }

    /// A decay gives at most the exact value, and less than 2 below it.
    #[test]
    fn a_decay_rounds_down(value in 0u64..1 << 32, n in 0u64..2000) {
        BENCH.with_borrow_mut(|b| {
            let (got, exact) = (b.decay(value, n) as f64, value as f64 * y(n));
            prop_assert!(got <= exact + 1e-3 && exact - got < 2.0 + 1e-3, "{got}, exact {exact}");
            Ok(())
        })?;
    }

    /// The number of updates within a period does not change the sums.
    #[test]
    fn more_looks_change_nothing_within_a_period(parts in prop::collection::vec(1u64..1000, 1..100)) {
        BENCH.with_borrow_mut(|b| {
            b.restart(1);
            let mut now = 1;
            let mut last = None;
            for part in &parts {
                now += part;
                last = Some(b.update(now, 1));
            }
            let often = last.expect("a part");
            b.restart(1);
            let once = b.update(now, 1);
            prop_assert_eq!((often.runnable, often.period, often.last), (once.runnable, once.period, once.last));
            Ok(())
        })?;
    }
}

#[test]
fn a_half_is_worth_a_half_after_32_periods() {
    let mut b = PeltObject::new();
    assert_eq!(b.decay(1 << 20, 32), 1 << 19);
    assert_eq!(b.decay(1 << 20, 64), 1 << 18);
    assert_eq!(b.decay(1000, 0), 1000);
    assert_eq!(b.decay(u64::from(u32::MAX), 1024), 0);
}

#[test]
fn full_periods_add_up() {
    let mut b = PeltObject::new();
    for n in [0, 1, 2, 31, 32, 33, 100, 344, 345, 1000, 5000] {
        let got = b.call("full_periods", 0, 0, n, 0).value as f64;
        let exact: f64 = (1..=n).map(|i| 1024.0 * y(i)).sum();
        assert!((got - exact).abs() < 1.1, "{n}: {got}, exact {exact}");
    }
}

#[test]
fn a_clock_that_goes_back_adds_nothing() {
    let mut b = PeltObject::new();
    b.restart(1 << 30);
    let before = b.update((1 << 30) + (5 << 20), 3);
    let back = b.update(1 << 30, 3);
    assert!(!back.ended);
    assert_eq!((back.runnable, back.period, back.last), (before.runnable, before.period, 1 << 30));
}

#[test]
fn a_period_ends_when_its_last_unit_passed() {
    let mut b = PeltObject::new();
    b.restart(7);
    assert!(!b.update(7 + (1023 << 10), 1).ended);
    assert!(b.update(7 + (1024 << 10), 1).ended);
    assert!(!b.update(7 + (1025 << 10), 1).ended);
}

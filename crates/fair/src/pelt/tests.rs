// SPDX-License-Identifier: GPL-2.0-only
//! Tests that compare the PELT series with its closed form, and its constants with the constants
//! that the kernel generates.

use super::*;

const PERIOD_NS: u64 = 1024 * 1024;

/// The sum at the start of a period after `periods` full periods of running, in floats, for
/// comparison only.
fn closed_form(periods: u64) -> f64 {
    let y = 0.5f64.powf(1.0 / 32.0);
    1024.0 * y * (1.0 - y.powi(periods as i32)) / (1.0 - y)
}

#[test]
fn constants_are_the_kernels() {
    assert_eq!(LOAD_AVG_MAX, 47742);
    for (n, value) in [
        (0, 0xffff_ffff_u64),
        (1, 0xfa83_b2da),
        (2, 0xf525_7d14),
        (5, 0xe5b9_06e6),
        (16, 0xb504_f333),
        (20, 0xa5fe_d6a9),
        (30, 0x85aa_c367),
        (31, 0x82cd_8698),
    ] {
        assert_eq!(Y_POW[n], value, "y^{n}");
    }
}

#[test]
fn a_half_life_halves() {
    for val in [1u64 << 10, 47742, 1 << 30, (1 << 40) + 12345] {
        // In the table, y^0 is one unit of 2^-32 less than 1, so a decayed value may be too small
        // by this error.
        let error = 1 + (val >> 32);
        assert!(decay(val, 32).abs_diff(val / 2) <= error, "{val}");
        assert!(decay(val, 320).abs_diff(val >> 10) <= error, "{val}");
    }
    assert_eq!(decay(u64::MAX, 32 * 63 + 1), 0);
}

#[test]
fn growth_follows_the_closed_form() {
    for periods in [1, 2, 7, 31, 32, 33, 64, 200, 345, 1000] {
        let mut avg = SchedAvg { last_update_time: 1, ..SchedAvg::default() };
        avg.update_sum(1 + periods * PERIOD_NS, 1, 1, true);
        let wanted = closed_form(periods);
        let got = avg.load_sum as f64;
        assert!((got - wanted).abs() <= 3.0 + wanted * 0.001, "{periods}: {got} {wanted}");
        assert_eq!(avg.util_sum, avg.load_sum << 10);
    }
}

#[test]
fn steps_do_not_matter_much() {
    // One long update and many short updates must give nearly the same sum, because truncation
    // loses less than one unit per period boundary.
    let mut whole = SchedAvg { last_update_time: 1, ..SchedAvg::default() };
    let mut steps = whole;
    whole.update_sum(1 + 500 * PERIOD_NS, 1, 1, true);
    for at in 1..=5000 {
        steps.update_sum(1 + at * PERIOD_NS / 10, 1, 1, true);
    }
    assert!(whole.load_sum.abs_diff(steps.load_sum) < 64, "{whole:?} {steps:?}");
}

#[test]
fn averages_reach_full_scale_and_no_more() {
    let mut avg = SchedAvg { last_update_time: 1, ..SchedAvg::default() };
    for at in 1..2000u64 {
        if avg.update_sum(1 + at * 4_000_000, 1, 1, true) {
            avg.update_avg(1024);
        }
        assert!(avg.util_avg <= 1024 && avg.load_avg <= 1024, "{avg:?}");
    }
    assert!(avg.util_avg >= 1022 && avg.load_avg >= 1022, "{avg:?}");
}

#[test]
fn a_quarter_busy_averages_a_quarter() {
    let mut avg = SchedAvg { last_update_time: 1, ..SchedAvg::default() };
    let mut now = 1;
    for _ in 0..400 {
        for (length, busy) in [(1_000_000, true), (3_000_000, false)] {
            now += length;
            avg.update_sum(now, busy.into(), busy.into(), busy);
        }
    }
    avg.update_avg(1024);
    assert!(avg.util_avg.abs_diff(256) < 12, "{avg:?}");
}

#[test]
fn time_that_goes_backwards_is_ignored() {
    let mut avg = SchedAvg { last_update_time: 5_000_000, load_sum: 10, ..SchedAvg::default() };
    assert!(!avg.update_sum(4_000_000, 1, 1, true));
    assert_eq!((avg.load_sum, avg.last_update_time), (10, 4_000_000));
}

#[test]
fn a_shift_stays_above_zero_and_keeps_sum_and_average_together() {
    let (mut avg, mut sum) = (100, 100 * LOAD_AVG_MAX);
    shift(&mut avg, &mut sum, -500, -1);
    assert_eq!(avg, 0);
    let all = -(sum as i64);
    shift(&mut avg, &mut sum, 7, all);
    assert_eq!((avg, sum), (7, 7 * MIN_DIVIDER));
}

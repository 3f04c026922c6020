// SPDX-License-Identifier: GPL-2.0-only
//! Number formats of the report.

use super::format::{Align, Scale, grid};
use super::*;
use crate::stats::change;

fn change_of(pairs: &[(f64, f64)]) -> String {
    change_text(&change(pairs))
}

#[test]
fn changes_say_what_is_noise() {
    assert_eq!(change_of(&[(100.0, 110.0), (200.0, 220.0)]), "+10.0 % ±0.0");
    assert_eq!(change_of(&[(100.0, 90.0), (100.0, 112.0), (100.0, 100.0)]), "~ +0.7 % ±27.4");
    assert_eq!(change_of(&[(5.0, 5.0), (6.0, 6.0)]), "=");
    assert_eq!(change_of(&[(100.0, 150.0)]), "+50.0 %");
    assert_eq!(change_of(&[(1.0, 30.0), (1.0, 30.0)]), "+2900 % ±0.0");
    assert_eq!(change_of(&[(0.0, 1.0), (0.0, 2.0), (0.0, 30.0)]), "~");
}

#[test]
fn units_suit_the_largest_value() {
    let s = |n, mean, half_width| Summary { n, mean: Some(mean), half_width };
    assert_eq!(Scale::time(1_500.0).label("wait"), "wait, us");
    assert_eq!(Scale::time(1_500.0).summary(&s(3, 1500.0, Some(20.0))), "1.50 ±0.02");
    assert_eq!(Scale::time(0.0).label("wait"), "wait, ns");
    assert_eq!(Scale::time(0.0).summary(&s(1, 0.0, None)), "0");
    assert_eq!(Scale::count(2.5e7).label("throughput, loop/s"), "throughput, 10^6 loop/s");
    assert_eq!(Scale::count(2.5e7).summary(&s(2, 2.5e7, Some(0.0))), "25.0 ±0.0");
    assert_eq!(Scale::count(99_999.0).label("kicks"), "kicks");
    assert_eq!(Scale::time(2e9).with_unit(2e9), "2 s");
    assert_eq!(Scale::time(8_326_000.0).with_unit(8_326_000.0), "8.33 ms");
}

#[test]
fn columns_line_up() {
    let lines = [
        vec!["a".into(), "1".into()],
        vec!["long".into(), "±10".into()],
        vec!["x".into(), String::new()],
    ];
    assert_eq!(grid(&lines, &[Align::Left, Align::Right]), "a       1\nlong  ±10\nx\n");
}

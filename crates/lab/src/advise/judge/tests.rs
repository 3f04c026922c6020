// SPDX-License-Identifier: GPL-2.0-only
//! Tests of comparisons: what counts as a difference, how goals follow each other, what a limit
//! does.

use super::*;

fn goals(text: &str) -> Goals {
    Goals::parse(&[text.to_owned()]).unwrap()
}

/// Returns `n` values about `mean` that vary by a thousandth, differently for each `salt`.
fn around(mean: f64, n: usize, salt: usize) -> Vec<f64> {
    let vary = |i: usize| ((i * 7 + salt * 13) % 11) as f64 / 5.0 - 1.0;
    (0..n).map(|i| mean * (1.0 + vary(i) / 1000.0)).collect()
}

fn order(text: &str, all: &[Values]) -> Vec<usize> {
    let candidates: Vec<usize> = (0..all.len()).collect();
    rank(&goals(text), &candidates, &|candidate| &all[candidate])
}

#[test]
fn the_sign_test_is_the_binomial_tail() {
    for (wins, losses, p) in
        [(0, 0, 1.0), (1, 0, 0.5), (12, 0, 1.0 / 4096.0), (8, 2, 56.0 / 1024.0), (0, 5, 1.0)]
    {
        assert!((sign_test(wins, losses) - p).abs() < 1e-12, "{wins}, {losses}");
    }
    assert!(sign_test(20, 4) < 0.000_8 && sign_test(19, 5) > 0.003);
}

#[test]
fn a_later_goal_decides_only_between_equals() {
    let text = "max:throughput,p99:wakeup_latency";
    let all = [
        vec![around(100.0, 8, 0), around(5e6, 8, 1)],
        // 0.5 % less work does not matter, and the waits are half as long.
        vec![around(99.5, 8, 2), around(2.5e6, 8, 3)],
        // 5 % less work matters, whatever the waits.
        vec![around(95.0, 8, 4), around(1e5, 8, 5)],
    ];
    assert_eq!(order(text, &all), [1, 0, 2]);
    assert_eq!(standing(&goals(text), &all[0], &all[1], 0.01), Standing::Better { term: 1 });
    assert_eq!(standing(&goals(text), &all[0], &all[2], 0.01), Standing::Worse { term: 0 });
    assert_eq!(standing(&goals(text), &all[0], &all[0], 0.01), Standing::Same);
}

#[test]
fn waits_of_microseconds_do_not_matter() {
    let text = "p99:wakeup_latency";
    let all = [vec![around(9e3, 12, 0)], vec![around(2e3, 12, 1)], vec![around(60e3, 12, 2)]];
    assert_eq!(order(text, &all), [0, 1, 2]);
    assert_eq!(standing(&goals(text), &all[0], &all[1], 0.01), Standing::Same);
    assert_eq!(standing(&goals(text), &all[2], &all[0], 0.01), Standing::Better { term: 0 });
    let wait = &goals(text).objectives[0];
    let differs =
        |a: usize, b: usize| Paired::of(wait, &all[a][0], &all[b][0]).differs_too_little();
    assert_eq!([differs(0, 1), differs(0, 2), differs(0, 0)], [true, false, false]);
}

#[test]
fn a_difference_in_the_mean_alone_is_not_beyond_doubt() {
    let base = around(100.0, 12, 0);
    // Better on average, because it is much better in a few worlds, and slightly worse in most.
    let few: Vec<f64> =
        base.iter().enumerate().map(|(i, v)| v + if i < 4 { 9.0 } else { -0.2 }).collect();
    let goals = goals("max:throughput");
    let paired = Paired::of(&goals.objectives[0], &base, &few);
    assert!((paired.wins, paired.losses) == (4, 8) && !paired.is_better(0.05), "{paired:?}");
    assert_eq!(standing(&goals, &vec![base], &vec![few], 0.05), Standing::Same);
}

#[test]
fn a_limit_comes_before_the_objectives() {
    let text = "max:throughput,p99:wakeup_latency<2ms";
    let slow = vec![around(5e6, 12, 0), around(100.0, 12, 1)];
    let quick = vec![around(1e6, 12, 2), around(80.0, 12, 3)];
    let best = vec![around(1.5e6, 12, 4), around(90.0, 12, 5)];
    let all = [slow, quick, best];
    assert_eq!(order(text, &all), [2, 1, 0]);
    let goals = goals(text);
    assert_eq!(standing(&goals, &all[0], &all[1], 0.001), Standing::Better { term: 0 });
    assert_eq!(standing(&goals, &all[1], &all[0], 0.001), Standing::BreaksLimit { limit: 0 });
    assert_eq!(standing(&goals, &all[1], &all[2], 0.001), Standing::Better { term: 1 });
    assert_eq!(holds(&goals, &all[1], &all[2], 1), [true; 12]);
    assert_eq!(holds(&goals, &all[1], &all[0], 1), [false; 12]);
}

#[test]
fn a_limit_may_be_broken_in_one_world_of_ten() {
    let goals = goals("p99:wakeup_latency<2ms");
    let values = |broken: usize| {
        let wait = (0..20).map(|i| if i < broken { 3e6 } else { 1e6 }).collect();
        vec![wait, vec![1.0; 20], vec![1e6; 20]]
    };
    assert!(keeps(&goals, &values(2), 0) && !keeps(&goals, &values(3), 0));
}

#[test]
fn no_misplaced_time_is_better_than_some() {
    let text = "fair:weight";
    let all = [vec![around(0.05, 12, 0)], vec![vec![0.0; 12]], vec![around(0.003, 12, 1)]];
    assert_eq!(order(text, &all), [1, 2, 0]);
    assert_eq!(standing(&goals(text), &all[0], &all[1], 0.001), Standing::Better { term: 0 });
    assert_eq!(standing(&goals(text), &all[1], &all[2], 0.001), Standing::Same);
}

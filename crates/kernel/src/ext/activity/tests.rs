// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the counts, of the period that they cover, and of the bound on a report's length.

use super::*;

fn all(nr_cpus: u32) -> impl Iterator<Item = CpuId> {
    (0..nr_cpus).map(CpuId)
}

fn ran(activity: &mut Activity, cpu: u32, op: Op, times: u32) {
    (0..times).for_each(|_| activity.count(CpuId(cpu), op));
}

#[test]
fn counts_begin_with_the_check_before_the_last() {
    let mut activity = Activity::new(3);
    ran(&mut activity, 0, Op::Dispatch, 100);
    activity.start(1_500_000_000);
    ran(&mut activity, 0, Op::Dispatch, 2);
    ran(&mut activity, 2, Op::Enqueue, 1);
    let lines = activity.lines(all(3), |cpu| cpu == CpuId(1));
    assert_eq!(
        lines,
        [
            "since 1.500000 s on CPU 0: dispatch 2 times",
            "since 1.500000 s on CPU 1: no operation; a task of a higher class runs there",
            "since 1.500000 s on CPU 2: enqueue once",
        ]
    );
    activity.check(2_000_000_000);
    assert_eq!(activity.lines(all(1), |_| false), ["since 1.500000 s on CPU 0: dispatch 2 times"]);
    activity.check(2_500_000_000);
    assert_eq!(activity.lines(all(3), |_| false), ["since 2.000000 s on CPUs 0-2: no operation"]);
}

#[test]
fn cpus_with_the_same_operations_are_one_line() {
    let mut activity = Activity::new(4);
    activity.start(0);
    for cpu in [0, 1, 3] {
        ran(&mut activity, cpu, Op::Dispatch, cpu + 1);
        ran(&mut activity, cpu, Op::Tick, 20);
    }
    let lines = activity.lines(all(4), |_| false);
    assert_eq!(
        lines,
        [
            "since 0.000000 s on CPUs 0-1,3: tick 60 times, dispatch 7 times",
            "since 0.000000 s on CPU 2: no operation",
        ]
    );
}

/// The bound holds for any number of CPUs and operations that differ.
#[test]
fn a_report_is_bounded() {
    let nr_cpus = 600;
    let mut activity = Activity::new(nr_cpus as usize);
    activity.start(0);
    for cpu in 0..nr_cpus {
        let which = Op::ALL.into_iter().filter(|op| cpu >> (*op as u32 % 10) & 1 != 0);
        which.for_each(|op| ran(&mut activity, cpu, op, 1));
    }
    let lines = activity.lines(all(nr_cpus), |_| false);
    assert_eq!(lines.len(), GROUPS + 1);
    assert_eq!(lines[GROUPS], "other operations on 592 more CPUs");
    assert!(lines.iter().all(|line| line.len() < 250), "{lines:#?}");
    let odd = CpuMask::of(600, all(nr_cpus).filter(|cpu| cpu.0 % 2 == 1));
    let text = cpus_text(&odd);
    assert!(text.starts_with("CPUs 1,3,5,") && text.ends_with(",... (300 in all)"), "{text}");
    assert!(text.len() < LIST_MAX + 30, "{text}");
}

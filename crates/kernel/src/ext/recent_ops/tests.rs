// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the numbers of calls per operation and CPU, of the period that they cover, and of the
//! bound on a report's length.

use super::*;

fn all(nr_cpus: u32) -> impl Iterator<Item = CpuId> {
    (0..nr_cpus).map(CpuId)
}

fn ran(counts: &mut RecentOpCounts, cpu: u32, op: Op, times: u32) {
    (0..times).for_each(|_| counts.count(CpuId(cpu), op));
}

#[test]
fn counts_begin_with_the_check_before_the_last() {
    let mut counts = RecentOpCounts::new(3);
    ran(&mut counts, 0, Op::Dispatch, 100);
    counts.start(1_500_000_000);
    ran(&mut counts, 0, Op::Dispatch, 2);
    ran(&mut counts, 2, Op::Enqueue, 1);
    let lines = counts.lines(all(3), |cpu| cpu == CpuId(1));
    assert_eq!(
        lines,
        [
            "since 1.500000 s on CPU 0: dispatch 2 times",
            "since 1.500000 s on CPU 1: no operation; a task of a higher scheduling class runs there",
            "since 1.500000 s on CPU 2: enqueue once",
        ]
    );
    counts.check(2_000_000_000);
    assert_eq!(counts.lines(all(1), |_| false), ["since 1.500000 s on CPU 0: dispatch 2 times"]);
    counts.check(2_500_000_000);
    assert_eq!(counts.lines(all(3), |_| false), ["since 2.000000 s on CPUs 0-2: no operation"]);
}

#[test]
fn cpus_with_the_same_operations_are_one_line() {
    let mut counts = RecentOpCounts::new(4);
    counts.start(0);
    for cpu in [0, 1, 3] {
        ran(&mut counts, cpu, Op::Dispatch, cpu + 1);
        ran(&mut counts, cpu, Op::Tick, 20);
    }
    let lines = counts.lines(all(4), |_| false);
    assert_eq!(
        lines,
        [
            "since 0.000000 s on CPUs 0-1,3: tick 60 times, dispatch 7 times",
            "since 0.000000 s on CPU 2: no operation",
        ]
    );
}

/// A report has a bounded number of lines of bounded length, even if hundreds of CPUs ran different
/// sets of operations.
#[test]
fn a_report_is_bounded() {
    let nr_cpus = 600;
    let mut counts = RecentOpCounts::new(nr_cpus as usize);
    counts.start(0);
    for cpu in 0..nr_cpus {
        let which = Op::ALL.into_iter().filter(|op| cpu >> (*op as u32 % 10) & 1 != 0);
        which.for_each(|op| ran(&mut counts, cpu, op, 1));
    }
    let lines = counts.lines(all(nr_cpus), |_| false);
    assert_eq!(lines.len(), GROUPS + 1);
    assert_eq!(lines[GROUPS], "592 more CPUs, with other sets of operations");
    assert!(lines.iter().all(|line| line.len() < 250), "{lines:#?}");
    let odd = CpuMask::of(600, all(nr_cpus).filter(|cpu| cpu.0 % 2 == 1));
    let text = cpus_text(&odd);
    assert!(text.starts_with("CPUs 1,3,5,") && text.ends_with(",... (300 in all)"), "{text}");
    assert!(text.len() < LIST_MAX + 30, "{text}");
}

// SPDX-License-Identifier: GPL-2.0-only
//! Tests on made-up runs on two targets: which quantities are compared, and the verdicts.

use indexmap::IndexMap;

use super::*;
use crate::metric::MetricTable;
use crate::run::{CgroupResult, Exit, StopKind, StopReason};

/// Makes a run with `switches` context switches, two kinds of threads, and a cgroup that got
/// `heavy_ms` of 100 ms of CPU time.
fn run(target: &'static str, switches: u64, heavy_ms: u64) -> Run {
    let mut metrics = MetricTable::new("loop");
    metrics.count(&metric::CONTEXT_SWITCHES, switches);
    metrics.count(&metric::MIGRATIONS, 0);
    metrics.count_part(&metric::OP_CALLS, "enqueue", switches * 7);
    let task = |name: &str, ms: u64| TaskResult {
        name: name.into(),
        nice: 0,
        cgroup: "/".into(),
        run_ns: ms * 1_000_000,
        wait_ns: Some(0),
        switches: 0,
        migrations: Some(0),
        node_ns: Vec::new(),
        counters: IndexMap::new(),
    };
    let group = |path: &str, ms: u64| CgroupResult {
        path: path.into(),
        weight: 100,
        run_ns: ms * 1_000_000,
        share_permille: Some(ms as f64 * 10.0),
        weight_permille: 500.0,
        coscheduled_permille: None,
    };
    Run {
        scheduler: "s".into(),
        seed: 1,
        target: target.into(),
        exit: Exit::none(),
        stop: StopReason { kind: StopKind::Duration, message: String::new() },
        counts: true,
        never_ran: Vec::new(),
        left_out: Vec::new(),
        trace_hash: String::new(),
        trace: None,
        wall_ns: 0,
        virtual_ns: 0,
        metrics: metrics.into_values(),
        tasks: vec![
            task("heavy-0", heavy_ms / 2),
            task("heavy-1", heavy_ms - heavy_ms / 2),
            task("light", 100 - heavy_ms),
        ],
        cgroups: vec![group("/", 100), group("/heavy", heavy_ms)],
        memory: Vec::new(),
        guests: Vec::new(),
        notes: Vec::new(),
    }
}

fn held(sim: &[Run], vm: &[Run]) -> Vec<(String, f64, f64, Agrees)> {
    let all = agreement(sim, vm, 15);
    assert!(all.iter().all(|a| a.target == vm[0].target && a.scheduler == "s"));
    all.into_iter()
        .map(|a| (a.quantity, a.first.mean.unwrap(), a.other.mean.unwrap(), a.verdict))
        .collect()
}

#[test]
fn shares_and_counts_are_held_and_what_is_defined_otherwise_is_not() {
    let sim = [run("sim", 1000, 75), run("sim", 1002, 75)];
    let vm = [run("vm", 1299, 73), run("vm", 1301, 75)];
    let row = |name: &str, a, b, verdict| (name.to_owned(), a, b, verdict);
    assert_eq!(
        held(&sim, &vm),
        [
            row("share of /heavy", 75.0, 74.0, Agrees::Open),
            row("share of heavy", 75.0, 74.0, Agrees::Open),
            row("share of light", 25.0, 26.0, Agrees::Open),
            row("context_switches", 1001.0, 1300.0, Agrees::Outside),
        ]
    );
}

#[test]
fn only_an_interval_that_lies_within_agrees() {
    let many = |target, all: [u64; 4]| all.map(|switches| run(target, switches, 75)).to_vec();
    let sim = many("sim", [1000, 1001, 999, 1000]);
    let of = |all| held(&sim, &many("vm", all)).pop().map(|(_, _, _, verdict)| verdict);
    assert_eq!(of([1100, 1101, 1099, 1100]), Some(Agrees::Within));
    assert_eq!(of([900, 901, 899, 900]), Some(Agrees::Within));
    assert_eq!(of([1000, 1300, 800, 1100]), Some(Agrees::Open));
    assert_eq!(of([700, 701, 699, 700]), Some(Agrees::Outside));
    // With one run on each target there is no interval, so every verdict must be `Open`, even
    // though the values are equal.
    let one = held(&sim[..1], &sim[..1]);
    assert!(one.iter().all(|row| row.3 == Agrees::Open), "{one:?}");
}

#[test]
fn what_happens_on_one_target_only_is_outside_if_it_surely_does() {
    let sim = [run("sim", 0, 75), run("sim", 0, 75)];
    let vm = [run("vm", 9, 75), run("vm", 10, 75)];
    let last = |vm: &[Run]| held(&sim, vm).pop();
    assert_eq!(last(&vm), Some(("context_switches".into(), 0.0, 9.5, Agrees::Outside)));
    let vm = [run("vm", 0, 75), run("vm", 1, 75)];
    assert_eq!(last(&vm), Some(("context_switches".into(), 0.0, 0.5, Agrees::Open)));
    assert_eq!(held(&sim, &sim).len(), 3);
}

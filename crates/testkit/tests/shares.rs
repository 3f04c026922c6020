// SPDX-License-Identifier: GPL-2.0-only
//! CPU shares under saturation: by nice, by cgroup weight, under cpu.max; for the default class and
//! for vtime.

use scxlab_kernel::Kernel;
use scxlab_kernel::task::NICE_TO_WEIGHT;
use scxlab_testkit::checks::{Contract, run_checked};
use scxlab_testkit::sim::{attach, group_ns, kernel, run_ns};

const SECOND: u64 = 1_000_000_000;

fn run(k: &mut Kernel) {
    run_checked(k, 10 * SECOND, SECOND / 10, Contract::default()).unwrap();
}

/// Asserts that `got` of `whole` is within `percent` of `wanted`, relative to `wanted`.
fn assert_share(what: &str, got: u64, whole: u64, wanted: f64, percent: f64) {
    let share = got as f64 / whole as f64;
    let off = (share / wanted - 1.0).abs() * 100.0;
    assert!(off <= percent, "{what}: share {share:.4}, wanted {wanted:.4}: {off:.2} % off");
}

fn assert_nice_shares(k: &Kernel, nices: &[i8], percent: f64) {
    let weight = |n: i8| NICE_TO_WEIGHT[(n + 20) as usize] as f64;
    let total: f64 = nices.iter().map(|&n| weight(n)).sum();
    let used: u64 = (0..nices.len()).map(|i| run_ns(k, &format!("hog-{i}"))).sum();
    for (i, &nice) in nices.iter().enumerate() {
        let got = run_ns(k, &format!("hog-{i}"));
        assert_share(&format!("nice {nice}"), got, used, weight(nice) / total, percent);
    }
}

#[test]
fn the_default_class_shares_by_nice() {
    let mut k = kernel("1c", "hogs,tasks=4,nice=0:5:-3:10", 1);
    run(&mut k);
    assert_nice_shares(&k, &[0, 5, -3, 10], 1.0);
}

#[test]
fn the_default_class_shares_by_nested_cgroup_weight() {
    let text = r#"
        duration = "10s"
        [[cgroup]]
        path = "/a"
        weight = 300
        [[cgroup]]
        path = "/b"
        weight = 100
        [[cgroup]]
        path = "/a/x"
        weight = 100
        [[cgroup]]
        path = "/a/y"
        weight = 200
        [[thread]]
        name = "x"
        cgroup = "/a/x"
        ops = [{ loop = { ops = [{ compute = "1ms" }] } }]
        [[thread]]
        name = "y"
        cgroup = "/a/y"
        ops = [{ loop = { ops = [{ compute = "1ms" }] } }]
        [[thread]]
        name = "b"
        cgroup = "/b"
        ops = [{ loop = { ops = [{ compute = "1ms" }] } }]
    "#;
    let mut k = kernel("1c", text, 1);
    run(&mut k);
    let all: u64 = ["x", "y", "b"].iter().map(|n| run_ns(&k, n)).sum();
    for (name, wanted) in [("x", 0.25), ("y", 0.5), ("b", 0.25)] {
        assert_share(name, run_ns(&k, name), all, wanted, 1.0);
    }
    assert_eq!(group_ns(&k, "/a/x"), run_ns(&k, "x"));
}

#[test]
fn cpu_max_holds() {
    for (machine, quota_ms, tasks) in [("1c", 30, 1), ("4c", 150, 8)] {
        let text = format!(
            r#"
            duration = "10s"
            [[cgroup]]
            path = "/capped"
            quota = "{quota_ms}ms"
            period = "100ms"
            [[thread]]
            name = "hog"
            instances = {tasks}
            cgroup = "/capped"
            ops = [{{ loop = {{ ops = [{{ compute = "1ms" }}] }} }}]
            "#
        );
        let mut k = kernel(machine, &text, 1);
        run(&mut k);
        let wanted = quota_ms as f64 / 100.0;
        assert_share(
            &format!("cpu.max on {machine}"),
            group_ns(&k, "/capped"),
            10 * SECOND,
            wanted,
            1.0,
        );
    }
}

/// The nice values are such that no task is due more than half of the CPU, because vtime cannot
/// give more: the kernel calls `ops.dispatch` before it enqueues the previous task again, so
/// another task always runs first.
#[test]
fn vtime_shares_by_nice() {
    let object = scxlab_sched::find("vtime").expect("shipped").object;
    let mut k = kernel("1c", "hogs,tasks=4,nice=0:3:-2:1", 1);
    attach(&mut k, "vtime", object, &[]);
    run(&mut k);
    assert!(k.ext.exits.is_empty(), "{:?}", k.ext.exits);
    assert_nice_shares(&k, &[0, 3, -2, 1], 2.0);
}

#[test]
fn a_group_with_twice_the_weight_gets_twice_the_machine() {
    let mut k = kernel("4c", "hogs,tasks=16,weights=100:200", 1);
    run(&mut k);
    let (a, b) = (group_ns(&k, "/group-0"), group_ns(&k, "/group-1"));
    assert_share("weight 200 of 300", b, a + b, 2.0 / 3.0, 1.0);
}

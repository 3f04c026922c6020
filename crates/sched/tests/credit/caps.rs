// SPDX-License-Identifier: GPL-2.0-only
//! Caps: parked vCPUs do not run, and other vCPUs use the time that a cap leaves.

use super::*;
use scxlab_machine::id::CpuId;
use scxlab_testkit::sim::{group_ns, run_ns};
use scxlab_testkit::state::{stat, task_stat};

/// Returns the CPU time of a domain over the next `seconds`, in hundredths of a CPU.
fn used(k: &mut Kernel, path: &str, seconds: u64) -> f64 {
    let before = group_ns(k, path);
    go_on(k, seconds * SECOND);
    (group_ns(k, path) - before) as f64 / (seconds * 10 * MS) as f64
}

#[test]
fn a_cap_holds() {
    for (machine, cap, tasks) in [("1c", 30, 1), ("2c", 12, 2), ("4c", 150, 8), ("4c", 40, 4)] {
        let (mut k, _) = attached(machine, &saturating(&[Dom::capped(cap, tasks)]), &[]);
        run_for(&mut k, 30 * SECOND);
        let got = group_ns(&k, "/d0") as f64 / (300 * MS) as f64;
        assert_near(&format!("{cap} % for {tasks} on {machine}"), got, f64::from(cap), 1.0);
    }
}

#[test]
fn one_percent_holds_and_nobody_is_parked_for_longer_than_the_watchdog_allows() {
    let (mut k, loaded) = attached("2c", &saturating(&[Dom::capped(1, 1)]), &[]);
    k.start();
    go_on(&mut k, 3 * SECOND);
    let got_ms = used(&mut k, "/d0", 60) * 600.0;
    assert!((got_ms - 600.0).abs() < 34.0, "{got_ms} ms of 600: more than a slice off");
    assert_eq!(stat(&k, &loaded, "park_forgiven"), 0);
    let longest = longest_wait(&k);
    assert!(longest < 4500 * MS, "{longest} ns");
}

#[test]
fn many_vcpus_under_a_small_cap_are_released_in_time() {
    let (mut k, loaded) = attached("2c", &saturating(&[Dom::capped(1, 16)]), &[]);
    run_for(&mut k, 40 * SECOND);
    assert!(stat(&k, &loaded, "park_forgiven") > 0);
    let longest = longest_wait(&k);
    assert!(longest < 9 * SECOND, "{longest} ns");
}

#[test]
fn a_cap_that_changes_while_running_holds_from_then_on() {
    let (mut k, _) = attached("2c", &saturating(&[Dom::capped(30, 2)]), &[]);
    k.start();
    go_on(&mut k, 2 * SECOND);
    set(&mut k, "/d0", |spec| spec.quota = Some(60 * MS));
    go_on(&mut k, SECOND);
    assert_near("60 %", used(&mut k, "/d0", 20), 60.0, 1.0);
    set(&mut k, "/d0", |spec| spec.quota = None);
    go_on(&mut k, SECOND);
    assert_near("no cap", used(&mut k, "/d0", 5), 200.0, 1.0);
    set(&mut k, "/d0", |spec| spec.quota = Some(20 * MS));
    go_on(&mut k, SECOND);
    assert_near("20 %", used(&mut k, "/d0", 20), 20.0, 1.0);
}

#[test]
fn others_use_what_a_cap_leaves() {
    let doms = [Dom::capped(25, 1), Dom::weighing(100), Dom::weighing(200)];
    let (mut k, _) = attached("1c", &saturating(&doms), &[]);
    run_for(&mut k, 30 * SECOND);
    let got = [0, 1, 2].map(|i| group_ns(&k, &format!("/d{i}")) as f64 / (300 * MS) as f64);
    assert_near("the capped one's fair share is its cap", got[0], 25.0, 1.0);
    assert_near("a third of the rest", got[1], 25.0, 2.0);
    assert_near("two thirds of the rest", got[2], 50.0, 2.0);
    assert!(k.cpus[CpuId(0)].time.idle < 100 * MS, "{} ns idle", k.cpus[CpuId(0)].time.idle);
}

#[test]
fn a_parents_cap_limits_each_domain_below_it() {
    let text = saturating(&[Dom::capped(30, 1)])
        .replace("path = '/d0'", "path = '/p'\n")
        .replace("[[thread]]", "[[cgroup]]\npath = '/p/d0'\n[[thread]]");
    let (mut k, _) = attached("1c", &text.replace("cgroup = '/d0'", "cgroup = '/p/d0'"), &[]);
    run_for(&mut k, 20 * SECOND);
    assert_near("30 %", run_ns(&k, "d0") as f64 / (200 * MS) as f64, 30.0, 1.0);
}

#[test]
fn a_parked_vcpu_does_not_run() {
    let (mut k, loaded) = attached("2c", &saturating(&[Dom::capped(10, 1)]), &[]);
    k.start();
    let mut parked_for = 0;
    let (mut parked_before, mut ran_before) = (false, 0);
    for _ in 0..2000 {
        go_on(&mut k, 5 * MS);
        let task = k.tasks.iter().find(|t| t.name == "d0").expect("it runs");
        let ran = task.account.run_ns;
        let parked = !task.on_cpu
            && k.ext.dsqs.user(1 << 32).is_some_and(|q| k.tasks[task.id].ext.dsq == Some(q));
        if parked && parked_before {
            assert_eq!(ran, ran_before, "it ran while it was parked, before {}", k.now);
            parked_for += 5 * MS;
        }
        (parked_before, ran_before) = (parked, ran);
    }
    assert!(parked_for > 7 * SECOND, "{parked_for} ns of 10 s");
    let pid = k.tasks.iter().find(|t| t.name == "d0").expect("it runs").pid;
    assert_eq!(task_stat(&k, &loaded, pid, "parked"), stat(&k, &loaded, "vcpu_park"));
}

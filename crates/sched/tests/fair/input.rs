// SPDX-License-Identifier: GPL-2.0-only
//! Unusual input, and changes at run time. They cause no stall, and the scheduler handles input
//! beyond a limit as the README says.

use std::fmt::Write;

use scxlab_kernel::Kernel;
use scxlab_kernel::behavior::Sys;
use scxlab_machine::CpuMask;
use scxlab_machine::id::CpuId;
use scxlab_testkit::shipped::scheduled;
use scxlab_testkit::sim::{group_ns, run_ns};
use scxlab_testkit::state::stat;

use crate::{MS, SECOND, report, run, run_on, stayed};

const HOG: &str = "ops = [{ loop = { ops = [{ compute = \"1ms\" }] } }]\n";

fn hog(text: &mut String, name: &str, cgroup: &str) {
    writeln!(text, "[[thread]]\nname = \"{name}\"\ncgroup = \"{cgroup}\"\n{HOG}").unwrap();
}

/// In a cgroup tree that is deeper than the scheduler's number of levels, tasks of the deepest
/// cgroups must count as tasks of their ancestor on the last level, and all tasks must run.
#[test]
fn deep_cgroups_count_as_their_ancestors() {
    let mut text = String::from("duration = \"1s\"\n");
    let paths: Vec<String> = (1..=24).map(|n| "/d".repeat(n)).collect();
    for path in &paths {
        writeln!(text, "[[cgroup]]\npath = \"{path}\"").unwrap();
    }
    hog(&mut text, "deep", &paths[23]);
    hog(&mut text, "less", &paths[19]);
    hog(&mut text, "top", "/d");
    let (mut k, loaded) = scheduled("fair", "1c", &text, 1);
    run(&mut k, SECOND);
    // The cgroups of levels 1 to 15 have queues of their own. The scheduler counts the deeper
    // cgroups in `groups_clamped`.
    assert_eq!(stat(&k, &loaded, "groups_clamped"), 24 - 15);
    // In the queue of `/d`, the child `/d/d` is one entity beside the task `top`. The two deep
    // tasks are in this entity, so together they get as much time as `top`, each a half.
    let (deep, less, top) = (run_ns(&k, "deep"), run_ns(&k, "less"), run_ns(&k, "top"));
    assert!((deep + less).abs_diff(top) < 40 * MS, "{deep} + {less}, {top}");
    assert!(deep.abs_diff(less) < 40 * MS, "{deep}, {less}");
}

/// There are more cgroups than slots in the scheduler's tables, so tasks of the last cgroups count
/// as tasks of the parent. The removal of a cgroup must free its slot.
#[test]
fn many_cgroups_count_as_their_parents() {
    let mut text = String::from("duration = \"1s\"\n");
    for i in 0..600 {
        writeln!(text, "[[cgroup]]\npath = \"/g{i}\"").unwrap();
    }
    hog(&mut text, "first", "/g0");
    hog(&mut text, "last", "/g599");
    let (mut k, loaded) = scheduled("fair", "1c", &text, 1);
    run(&mut k, SECOND);
    assert_eq!(stat(&k, &loaded, "groups_clamped"), 600 - 511);
    let (first, last) = (run_ns(&k, "first"), run_ns(&k, "last"));
    assert!(first.abs_diff(last) < 40 * MS, "{first}, {last}");
    let slots = |k: &mut Kernel| (0..512).filter(|&g| report(k, &loaded, g, 0).is_some()).count();
    assert_eq!(slots(&mut k), 512);
    let gone = k.cgroups.iter().find(|g| g.path == "/g300").expect("it is there").id;
    k.user(|k| k.rmdir(gone)).expect("it is empty");
    assert_eq!(slots(&mut k), 511);
    stayed(&k);
}

#[test]
fn without_a_recipe_all_cpus_are_alike() {
    let (mut k, _) = scheduled("fair,recipe=none", "2n2c2t", "hogs,tasks=8", 1);
    run(&mut k, SECOND);
    for i in 0..8 {
        assert!(run_ns(&k, &format!("hog-{i}")) > 900 * MS, "hog-{i}");
    }
}

/// CPUs go off line and come back; no task is lost, and all CPUs are used again.
#[test]
fn survives_cpus_that_go_and_come() {
    for scheduler in ["fair", "fair,load=FAIR_LOAD_PELT"] {
        let (mut k, _) =
            scheduled(scheduler, "4c", "hogs,tasks=8,weights=100:200,duration=none", 1);
        run(&mut k, 200 * MS);
        for (cpu, online) in [(1, false), (3, false), (1, true), (3, true)] {
            k.user(|k| k.set_cpu_online(CpuId(cpu), online)).expect("there are others");
            let to = k.now + 200 * MS;
            run_on(&mut k, to);
        }
        let before: Vec<u64> = (0..8).map(|i| run_ns(&k, &format!("hog-{i}"))).collect();
        let to = k.now + SECOND;
        run_on(&mut k, to);
        let ran: Vec<u64> = (0..8).map(|i| run_ns(&k, &format!("hog-{i}")) - before[i]).collect();
        assert!(ran.iter().all(|&ns| ns > 150 * MS), "{ran:?}");
        assert!(ran.iter().sum::<u64>() > 3900 * MS, "{scheduler}: idle CPUs: {ran:?}");
    }
}

/// Two cgroups have the smallest and the largest weight, for longer than the watchdog's timeout. By
/// weight alone, the light tasks would wait too long; the rescue must let them run in time.
#[test]
fn the_smallest_weight_is_not_starved() {
    let mut text = String::from("duration = \"45s\"\n");
    for (path, weight) in [("/small", 1), ("/large", 10_000)] {
        writeln!(text, "[[cgroup]]\npath = \"{path}\"\nweight = {weight}").unwrap();
        hog(&mut text, &path[1..], path);
        hog(&mut text, &format!("{}-2", &path[1..]), path);
    }
    let (mut k, loaded) = scheduled("fair", "1c", &text, 1);
    k.start();
    run_on(&mut k, 45 * SECOND);
    assert!(stat(&k, &loaded, "rescues") > 0);
    let small = group_ns(&k, "/small");
    assert!(small > 0 && small < SECOND / 10, "{small}");
}

/// Under this cap, each of many tasks would wait for its turn longer than the watchdog's timeout.
/// The rescue must let each task run in time, although the cgroup then exceeds its cap.
#[test]
fn a_small_cap_on_many_tasks_is_no_stall() {
    let mut text = String::from("duration = \"45s\"\n");
    writeln!(text, "[[cgroup]]\npath = \"/c\"\nquota = \"1ms\"\nperiod = \"1s\"").unwrap();
    writeln!(text, "[[thread]]\nname = \"t\"\ninstances = 20\ncgroup = \"/c\"\n{HOG}").unwrap();
    let (mut k, _) = scheduled("fair", "1c", &text, 1);
    k.start();
    run_on(&mut k, 45 * SECOND);
    // The cap allows 45 ms in 45 s; in addition, the rescue may run each of the 20 tasks for one
    // tick of 4 ms every ten seconds.
    let used = group_ns(&k, "/c");
    assert!(used < SECOND / 2, "{used}");
}

/// Changes nice values, cgroups and affinities of running tasks all the time; the scheduler must
/// stay loaded.
#[test]
fn survives_change() {
    for scheduler in ["fair", "fair,load=FAIR_LOAD_PELT"] {
        let workload = "hogs,tasks=12,weights=100:200:300,duration=none";
        let (mut k, _) = scheduled(scheduler, "2n2c1t", workload, 1);
        k.start();
        let hogs: Vec<_> =
            k.tasks.iter().filter(|t| t.name.starts_with("hog")).map(|t| t.id).collect();
        let groups: Vec<_> =
            k.cgroups.iter().filter(|g| g.path.starts_with("/group")).map(|g| g.id).collect();
        let all = CpuMask::all(4);
        for step in 0..200usize {
            let at = k.now + 3 * MS + (step as u64 % 7) * 100_000;
            run_on(&mut k, at);
            let (task, group) = (hogs[step * 5 % hogs.len()], groups[step * 3 % groups.len()]);
            k.user(|k| match step % 4 {
                0 => k.set_nice(task, (step % 39) as i8 - 20),
                1 => k.move_to_cgroup(task, group),
                2 => k.set_affinity(task, &CpuMask::of(4, [CpuId(step as u32 % 4)])),
                _ => k.set_affinity(task, &all),
            })
            .expect("each is allowed");
        }
        let to = k.now + SECOND;
        run_on(&mut k, to);
    }
}

/// The time for which a task sleeps is no wait: a sleep longer than `rescue_ns` must not lead to a
/// rescue. Many tasks wake up shortly before a CPU looks for waiting tasks to rescue.
#[test]
fn a_long_sleep_is_no_long_wait() {
    let mut text = String::from("duration = \"12s\"\n");
    hog(&mut text, "hog", "/");
    writeln!(text, "[[thread]]\nname = \"s\"\ninstances = 60\nops = [{{ compute = \"1ms\" }}, {{ sleep = \"10s\" }}, {{ compute = \"20ms\" }}]").unwrap();
    let (mut k, loaded) = scheduled("fair", "1c", &text, 1);
    k.start();
    run_on(&mut k, 12 * SECOND);
    assert_eq!(stat(&k, &loaded, "rescues"), 0);
}

// SPDX-License-Identifier: GPL-2.0-only
//! Changes to a running scheduler (CPUs and cgroups come and go, tasks change), and refused knobs.

use super::*;
use scxlab_kernel::behavior::{CgroupSpec, Sys};
use scxlab_machine::cpumask::CpuMask;
use scxlab_machine::id::{CgroupId, CpuId, TaskId};
use scxlab_testkit::sim::{group_ns, kernel};
use scxlab_testkit::state::stat;

const MIXED: &str = "
    duration = '60s'
    [[cgroup]]
    path = '/a'
    weight = 300
    [[cgroup]]
    path = '/b'
    quota = '50ms'
    [[thread]]
    name = 'a'
    instances = 6
    cgroup = '/a'
    ops = [{ loop = { ops = [{ compute = '5ms' }, { sleep = '1ms' }] } }]
    [[thread]]
    name = 'b'
    instances = 6
    cgroup = '/b'
    ops = [{ loop = { ops = [{ compute = '10ms' }] } }]
    [[thread]]
    name = 'pinned'
    instances = 2
    cpus = '2'
    ops = [{ loop = { ops = [{ compute = '3ms' }, { sleep = '2ms' }] } }]
";

fn cgroup(k: &Kernel, path: &str) -> CgroupId {
    k.cgroups.iter().find(|g| g.path == path).expect("it exists").id
}

fn tasks(k: &Kernel, name: &str) -> Vec<TaskId> {
    k.tasks.iter().filter(|t| t.name.starts_with(name)).map(|t| t.id).collect()
}

#[test]
fn no_cpu_idles_beside_work() {
    let text = MIXED.replace("quota = '50ms'", "");
    for workload in [text.as_str(), "sleepers,tasks=24", "hackbench,groups=1,loops=50"] {
        let (mut k, _) = attached("4c", workload, &[]);
        let contract = Contract { idle_grace: Some(300_000), ..Contract::default() };
        run_checked(&mut k, SECOND, 50_000, contract)
            .unwrap_or_else(|b| panic!("{workload}: {b:?}"));
        assert!(k.ext.exits.is_empty(), "{:?}", k.ext.exits);
    }
}

#[test]
fn cpus_come_and_go() {
    let (mut k, _) = attached("4c", MIXED, &[]);
    k.start();
    for round in 0..6 {
        let cpu = CpuId(3 - round % 3);
        go_on(&mut k, 200 * MS);
        k.user(|k| k.set_cpu_online(cpu, false)).expect("it goes");
        go_on(&mut k, 300 * MS);
        k.user(|k| k.set_cpu_online(cpu, true)).expect("it comes back");
    }
    let before = group_ns(&k, "/b");
    go_on(&mut k, 10 * SECOND);
    assert_near("the cap", (group_ns(&k, "/b") - before) as f64, (5 * SECOND) as f64, 4.0);
    assert!(longest_wait(&k) < 9 * SECOND);
}

#[test]
fn tasks_move_between_cgroups_and_a_cgroup_goes() {
    let (mut k, loaded) = attached("4c", MIXED, &[]);
    k.start();
    go_on(&mut k, SECOND);
    let (a, b) = (cgroup(&k, "/a"), cgroup(&k, "/b"));
    for task in tasks(&k, "b") {
        k.user(|k| k.move_to_cgroup(task, a)).expect("moved");
    }
    k.user(|k| k.rmdir(b)).expect("empty");
    // The vCPUs that were parked in /b must run again, although /b is gone and unparks nothing any
    // more: in two seconds, the tasks in /a must use more than 6 s of CPU time.
    let before = group_ns(&k, "/a");
    go_on(&mut k, 2 * SECOND);
    assert!(group_ns(&k, "/a") - before > 6 * SECOND, "four CPUs for two seconds");
    let spec = CgroupSpec { weight: 200, ..CgroupSpec::default() };
    let again = k.user(|k| k.mkdir(CgroupId(0), "b", spec)).expect("made");
    for task in tasks(&k, "b") {
        k.user(|k| k.move_to_cgroup(task, again)).expect("moved");
    }
    go_on(&mut k, SECOND);
    assert_eq!(stat(&k, &loaded, "dom_destroy"), 1);
    assert!(longest_wait(&k) < SECOND);
}

#[test]
fn affinity_nice_and_policy_change_under_it() {
    let (mut k, _) = attached("4c", MIXED, &[]);
    k.start();
    let all = tasks(&k, "a");
    for round in 0..60u32 {
        go_on(&mut k, 17 * MS);
        let task = all[round as usize % all.len()];
        let mask = CpuMask::of(4, [CpuId(round % 4), CpuId((round + 1 + round / 4) % 4)]);
        k.user(|k| k.set_affinity(task, &mask)).expect("allowed");
        k.user(|k| k.set_nice(task, (round % 20) as i8)).expect("allowed");
    }
    go_on(&mut k, SECOND);
    assert!(longest_wait(&k) < 9 * SECOND);
}

#[test]
fn cgroups_beyond_the_limit_share_their_parents_domain() {
    let mut k = kernel("4c", MIXED, 1);
    k.start();
    for i in 0..4200 {
        let made = k.user(|k| k.mkdir(CgroupId(0), &format!("x{i}"), CgroupSpec::default()));
        made.expect("made");
    }
    let last = cgroup(&k, "/x4199");
    for task in tasks(&k, "pinned") {
        k.user(|k| k.set_affinity(task, &CpuMask::of(4, [CpuId(1)]))).expect("allowed");
        k.user(|k| k.move_to_cgroup(task, last)).expect("moved");
    }
    let loaded = attach_shipped(&mut k, "credit", &[]);
    go_on(&mut k, SECOND);
    assert_eq!(stat(&k, &loaded, "dom_init"), 4096);
    assert!(stat(&k, &loaded, "dom_shared") >= 100);
}

#[test]
fn knobs_out_of_range_are_refused_with_what_would_be_right() {
    for (knob, value, says) in [
        ("tslice_ms", "0", "tslice_ms is 0; it must be 1 to 1000"),
        ("ratelimit_us", "40000", "ratelimit_us is 40000; it must be at most tslice_ms, 30000 us"),
        ("park_max_ms", "9000", "park_max_ms is 9000; it must be 1 to 8000"),
    ] {
        let (k, _) = attached("4c", MIXED, &[(knob, value)]);
        assert!(format!("{:?}", k.ext.exits).contains(says), "{:?}", k.ext.exits);
    }
}

/// A workload that makes CPUs idle at different times, so that idle CPUs find vCPUs waiting on
/// other CPUs.
const UNEVEN: &str = "
    [[thread]]
    name = 'long'
    instances = 6
    ops = [{ loop = { ops = [{ compute = '3ms' }, { sleep = '2ms' }] } }]
    [[thread]]
    name = 'short'
    instances = 6
    ops = [{ loop = { ops = [{ compute = '300us' }, { sleep = '1100us' }] } }]
";

#[test]
fn a_hot_vcpu_is_not_stolen() {
    let hot = |delay: &str| {
        let knobs = [("vcpu_migration_delay_us", delay)];
        let (mut k, loaded) = attached("4c", UNEVEN, &knobs);
        run_for(&mut k, 2 * SECOND);
        (stat(&k, &loaded, "vcpu_hot"), stat(&k, &loaded, "migrate_queued"))
    };
    let (cold, hot) = (hot("0"), hot("100000"));
    assert_eq!(cold.0, 0);
    assert!(hot.0 > 0 && hot.1 < cold.1, "{hot:?}, without a delay {cold:?}");
}

#[test]
fn the_same_seed_makes_the_same_run() {
    let hash = || {
        let (mut k, _) = attached("2n4c2t", "hackbench,groups=1,loops=30", &[]);
        k.run(Some(200 * MS));
        (k.tracer.hash(), k.tracer.count())
    };
    let first = hash();
    assert!(first.1 > 1000, "only {} events", first.1);
    assert_eq!(hash(), first);
}

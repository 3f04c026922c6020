// SPDX-License-Identifier: GPL-2.0-only
//! `fair,numa=preferred`: each task goes to the node of its memory and stays there, as far as work
//! is conserved.

use scxlab_kernel::Kernel;
use scxlab_kernel::numa::NumaBalancing;
use scxlab_testkit::checks;
use scxlab_testkit::shipped::scheduled;
use scxlab_testkit::state::stat;

use super::settle::{MS, SECOND, node_of, watch, work};
use crate::{hogs, places, set_memory, settlers, with_memory};

/// Longest time for which a CPU may be idle beside a waiting task, as with consolidation:
/// `numa_settle_ns` and four ticks.
const GRACE: u64 = 48 * MS;

#[test]
fn tasks_come_to_the_node_of_their_memory() {
    // Two processes of one thread begin on each node, and two have their memory on each.
    let cpus = [0, 1, 4, 5, 8, 9, 12, 13];
    for seed in 1..=10 {
        let (mut k, loaded) =
            scheduled("fair,numa=preferred", "4n4c1t", &settlers(8, &cpus), seed as u64);
        k.start();
        // Until now, the threads were pinned.
        k.advance(25 * MS);
        for i in 0..8 {
            set_memory(&mut k, &format!("vm-{i}"), (i + seed) % 4);
        }
        k.advance(SECOND / 2);
        let seen = watch(&mut k, SECOND, Some(GRACE));
        let pids = (0..8).map(|i| {
            k.tasks.iter().find(|t| t.name == format!("vm-{i}")).expect("the thread").tgid
        });
        for (i, process) in pids.enumerate() {
            let time = &seen.time[&process];
            let there = time[(i + seed as usize) % 4];
            assert!(there * 100 >= 95 * time.iter().sum::<u64>(), "seed {seed}, {i}: {time:?}");
        }
        assert_eq!((seen.moves, &seen.broken[..]), (0, &[][..]), "seed {seed}");
        assert!(stat(&k, &loaded, "numa_preferred") > 0);
        checks::after(&k);
    }
}

#[test]
fn pinned_tasks_stay() {
    let pinned = settlers(4, &[0, 1, 4, 5]).replace("\"clear_affinity\", ", "");
    let (mut k, loaded) = scheduled("fair,numa=preferred", "2n4c1t", &pinned, 1);
    k.start();
    k.advance(MS);
    (0..4).for_each(|i| set_memory(&mut k, &format!("vm-{i}"), if i < 2 { 1 } else { 0 }));
    let seen = watch(&mut k, SECOND, Some(GRACE));
    assert_eq!((seen.moves, &seen.broken[..]), (0, &[][..]));
    assert_eq!(stat(&k, &loaded, "numa_preferred"), 0, "no CPU of the node may run them");
    let torn: u64 = k.tasks.iter().map(|t| t.account.switches_involuntary).sum();
    assert!(torn < 20, "{torn}: tasks that cannot go are left alone");
}

/// Twelve hogs prefer node 0, which has four CPUs. The other node's four CPUs must work all the
/// time, and at least two of three hogs must be on a CPU: all eight CPUs are busy.
#[test]
fn work_is_conserved_if_all_prefer_one_node() {
    for (hogs_of, machine, cpus) in [(12, "2n4c1t", 8), (16, "4n4c1t", 16), (10, "2n2c2t", 8)] {
        let (mut k, loaded) = scheduled("fair,numa=preferred", machine, &hogs(1, hogs_of), 1);
        k.start();
        k.advance(MS);
        (0..hogs_of).for_each(|i| set_memory(&mut k, &format!("vm-{i}"), 0));
        k.advance(20 * MS);
        let (before, then) = (work(&k), k.now);
        let seen = watch(&mut k, SECOND, Some(GRACE));
        assert!(seen.broken.is_empty(), "{machine}: {:?}", seen.broken.first());
        let done = (work(&k) - before) * 100 / (cpus * (k.now - then));
        assert!(done >= 97, "{machine}: {done} % of the CPUs' time");
        assert!(stat(&k, &loaded, "numa_limited") > 0, "{machine}");
        checks::after(&k);
    }
}

/// Each CPU runs one hog, so that tasks can only exchange places. The hogs of nodes 0 and 1, 2 and
/// 3 prefer each other's node; those of a node without a partner prefer their own. Each must come
/// to its node by one move and stay, and no CPU may lose work.
#[test]
fn without_an_idle_cpu_tasks_change_places() {
    for (machine, nodes, cpus) in
        [("2n8c1t", 2, 16), ("4n4c1t", 4, 16), ("2n3c2t", 2, 12), ("3n2c1t", 3, 6)]
    {
        for seed in 1..=6 {
            let (mut k, loaded) = scheduled("fair,numa=preferred", machine, &hogs(1, cpus), seed);
            k.start();
            k.advance(100 * MS);
            let node = |k: &Kernel, i: u32| {
                let name = format!("vm-{i}");
                node_of(k, k.tasks.iter().find(|t| t.name == name).expect("the thread").cpu)
            };
            let prefers = |at: usize| if at ^ 1 < nodes { at ^ 1 } else { at };
            let wanted: Vec<_> = (0..cpus).map(|i| prefers(node(&k, i))).collect();
            let moves = (0..cpus).filter(|i| wanted[*i as usize] != node(&k, *i)).count() as u64;
            for (i, want) in wanted.iter().enumerate() {
                set_memory(&mut k, &format!("vm-{i}"), *want as i32);
            }
            let before = work(&k);
            k.advance(1100 * MS);
            let ends: Vec<_> = (0..cpus).map(|i| node(&k, i)).collect();
            assert_eq!(ends, wanted, "{machine}, seed {seed}");
            let done = (work(&k) - before) * 1000 / (u64::from(cpus) * SECOND);
            assert!(done >= 990, "{machine}, seed {seed}: {done} per mille of the CPUs' time");
            k.advance(8 * SECOND);
            let swaps = stat(&k, &loaded, "numa_swaps");
            assert_eq!(swaps, moves, "{machine}, seed {seed}: one move each, and then none");
            checks::after(&k);
        }
    }
}

/// Without NUMA faults there are no preferred nodes, so the mode decides as `numa=off` does.
#[test]
fn without_faults_nothing_changes() {
    for seed in 1..=5 {
        let run = |numa: &str| {
            let text =
                hogs(3, 5).replace("compute = \"1ms\"", "compute = \"3ms\" }, { sleep = \"1ms\"");
            let (mut k, loaded) = scheduled(&format!("fair,numa={numa}"), "4n3c1t", &text, seed);
            k.start();
            let seen = watch(&mut k, SECOND, Some(GRACE));
            assert!(seen.broken.is_empty(), "{:?}", seen.broken);
            let counts = ["numa_preferred", "numa_waits", "numa_limited", "picks", "wakeups"];
            let counts = counts.map(|name| stat(&k, &loaded, name));
            (work(&k), counts)
        };
        let ((off, was), (on, now)) = (run("off"), run("preferred"));
        assert_eq!(now[..3], [0, 0, 0], "seed {seed}");
        let near = |a: u64, b: u64| a.abs_diff(b) * 100 <= 3 * a.max(b);
        assert!(near(off, on), "seed {seed}: {off} and {on} ns of work");
        assert!(near(was[4], now[4]), "seed {seed}: {was:?} and {now:?}");
    }
}

/// With the simulator's NUMA balancing, tasks follow their faults: processes whose memory is mostly
/// on one node have more of their CPU time on one node than without, and less than if they were
/// consolidated.
#[test]
fn faults_bring_tasks_together_in_part() {
    let together = |numa: &str| {
        let of_seed = |seed: u32| {
            let scheduler = format!("fair,numa={numa}");
            let (mut k, _) = scheduled(&scheduler, "4n4c1t", &with_memory(seed % 4), seed.into());
            k.numa_balancing = NumaBalancing::Ext;
            k.start();
            let places = places(&mut k, 10 * SECOND);
            checks::after(&k);
            places.iter().map(|place| place.1).sum::<u64>() / 4
        };
        (1..=4).map(of_seed).sum::<u64>() / 4
    };
    let (off, preferred) = (together("off"), together("preferred"));
    let consolidated = together("consolidate+faults");
    assert!(off + 10 < preferred, "{off} % and {preferred} %");
    assert!(preferred + 10 < consolidated, "{preferred} % and {consolidated} %");
}

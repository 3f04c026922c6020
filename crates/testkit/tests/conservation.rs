// SPDX-License-Identifier: GPL-2.0-only
//! The laws hold in runs of correct schedulers of every class, and the checkers catch a canary that
//! breaks a law.

use scxlab_kernel::Kernel;
use scxlab_testkit::canary::{Canary, InjectedFault, ops_data};
use scxlab_testkit::checks::{Contract, run_checked};
use scxlab_testkit::shipped::scheduled;
use scxlab_testkit::sim::kernel;

const MS: u64 = 1_000_000;

fn canary(crime: InjectedFault, contract: Contract) -> Result<(), String> {
    let mut k = kernel("2n4c2t", "sleepers,tasks=64", 1);
    k.attach(Canary::program(crime), ops_data("canary")).expect("attached");
    run_checked(&mut k, 500 * MS, 50_000, contract)
        .map_err(|b| format!("{}: {}", b.law, b.what))?;
    assert!(k.ext.exits.is_empty(), "{:?}", k.ext.exits);
    Ok(())
}

const WORK: Contract = Contract { idle_grace: Some(300_000), long_paths: false };

#[test]
fn the_default_class_keeps_the_laws() {
    for workload in ["sleepers", "hackbench,groups=1,loops=50", "pingpong", "hogs", "spin_barrier"]
    {
        let mut k = kernel("2n4c2t", workload, 1);
        if let Err(broken) = run_checked(&mut k, 300 * MS, 100_000, Contract::default()) {
            panic!("{workload}: {broken:#?}");
        }
    }
}

#[test]
fn an_honest_scheduler_keeps_the_laws_and_its_promise() {
    canary(InjectedFault::None, WORK).unwrap();
}

#[test]
fn a_lost_task_is_seen() {
    let seen = canary(InjectedFault::LoseTask, Contract::default()).unwrap_err();
    assert!(seen.starts_with("a task is in one place") && seen.contains("nowhere"), "{seen}");
}

#[test]
fn a_task_in_two_queues_is_seen() {
    let seen = canary(InjectedFault::QueueTwice, Contract::default()).unwrap_err();
    assert!(seen.starts_with("a task is in one place") && seen.contains(" and on "), "{seen}");
}

#[test]
fn invented_time_is_seen() {
    let seen = canary(InjectedFault::StretchTime, Contract::default()).unwrap_err();
    assert!(seen.starts_with("time adds up: CPU 0"), "{seen}");
}

#[test]
fn an_overcharged_task_is_seen() {
    let seen = canary(InjectedFault::OverchargeTask, Contract::default()).unwrap_err();
    assert!(seen.starts_with("time adds up: tasks were charged"), "{seen}");
}

#[test]
fn an_idle_cpu_beside_a_waiting_task_is_seen() {
    let seen = canary(InjectedFault::IgnoreQueue, WORK).unwrap_err();
    assert!(seen.starts_with("no CPU idles"), "{seen}");
    canary(InjectedFault::IgnoreQueue, Contract::default()).unwrap();
}

#[test]
fn a_forgotten_wait_is_seen() {
    let seen = canary(InjectedFault::ForgetWaits, Contract::default()).unwrap_err();
    assert!(seen.starts_with("the metrics count the CPUs"), "{seen}");
}

/// `sched_tick()` of 7.3: the default class does not balance while sched_ext has all tasks. A CPU
/// on which no task may run must therefore stay idle without any time in the kernel.
#[test]
fn an_idle_cpu_is_left_alone_while_sched_ext_has_all_tasks() {
    for (machine, cpus, busy) in [("4c", "0-1", 2), ("2n4c2t", "0-3", 4), ("1n2l4c1t", "0-2", 3)] {
        let text = format!(
            "[[thread]]\nname = \"hog-{{i}}\"\ninstances = 12\ncpus = \"{cpus}\"\n\
             ops = [{{ loop = {{ ops = [{{ compute = \"1ms\" }}] }} }}]\n"
        );
        let (mut k, _) = scheduled("vtime", machine, &text, 1);
        k.start();
        k.advance(100 * MS);
        let overhead = |k: &Kernel| k.cpus.iter().skip(busy).map(|c| c.time.overhead).sum::<u64>();
        let before = overhead(&k);
        k.advance(500 * MS);
        assert_eq!(overhead(&k), before, "{machine}");
    }
}

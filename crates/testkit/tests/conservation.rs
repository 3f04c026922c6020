// SPDX-License-Identifier: GPL-2.0-only
//! The laws hold for honest runs of every class, and a canary that breaks one is caught by its checker.

use scxlab_testkit::canary::{Canary, Crime, ops_data};
use scxlab_testkit::checks::{Contract, run_checked};
use scxlab_testkit::sim::kernel;

const MS: u64 = 1_000_000;

fn canary(crime: Crime, contract: Contract) -> Result<(), String> {
    let mut k = kernel("2n4c2t", "sleepers,tasks=64", 1);
    k.attach(Canary::program(crime), ops_data("canary")).expect("attached");
    run_checked(&mut k, 500 * MS, 50_000, contract)
        .map_err(|b| format!("{}: {}", b.law, b.what))?;
    assert!(k.ext.exits.is_empty(), "{:?}", k.ext.exits);
    Ok(())
}

const WORK: Contract = Contract { idle_grace: Some(300_000) };

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
    canary(Crime::None, WORK).unwrap();
}

#[test]
fn a_lost_task_is_seen() {
    let seen = canary(Crime::LoseTask, Contract::default()).unwrap_err();
    assert!(seen.starts_with("a task is in one place") && seen.contains("nowhere"), "{seen}");
}

#[test]
fn a_task_in_two_queues_is_seen() {
    let seen = canary(Crime::QueueTwice, Contract::default()).unwrap_err();
    assert!(seen.starts_with("a task is in one place") && seen.contains(" and on "), "{seen}");
}

#[test]
fn invented_time_is_seen() {
    let seen = canary(Crime::StretchTime, Contract::default()).unwrap_err();
    assert!(seen.starts_with("time adds up: CPU 0"), "{seen}");
}

#[test]
fn an_overcharged_task_is_seen() {
    let seen = canary(Crime::OverchargeTask, Contract::default()).unwrap_err();
    assert!(seen.starts_with("time adds up: tasks were charged"), "{seen}");
}

#[test]
fn an_idle_cpu_beside_a_waiting_task_is_seen() {
    let seen = canary(Crime::IgnoreQueue, WORK).unwrap_err();
    assert!(seen.starts_with("no CPU idles"), "{seen}");
    canary(Crime::IgnoreQueue, Contract::default()).unwrap();
}

// SPDX-License-Identifier: GPL-2.0-only
//! The laws hold for honest runs of every class, and a canary that breaks one is caught by its checker.

use scxlab_kernel::Kernel;
use scxlab_kernel::boot::Setup;
use scxlab_kernel::kernel::Limits;
use scxlab_machine::Machine;
use scxlab_testkit::canary::{Canary, Crime, ops_data};
use scxlab_testkit::checks::{Contract, run_checked};
use scxlab_workload::{ExecConfig, Executor, WorkloadArg, parse_workload_arg};
use std::sync::Arc;

const MS: u64 = 1_000_000;

fn kernel(machine: &str, workload: &str) -> Kernel {
    let machine = Arc::new(Machine::resolve(machine).expect("a valid machine"));
    let WorkloadArg::Program(program) = parse_workload_arg(workload).expect("a valid workload") else {
        panic!("{workload} is a file");
    };
    let config = ExecConfig { nr_cpus: machine.topology.nr_cpus() as u32, ..Default::default() };
    let executor = Executor::new(&program, config).expect("a program that compiles");
    let setup = Setup {
        machine,
        seed: 1,
        limits: Limits::default(),
        tracer: Default::default(),
        mem_size: 16 << 30,
    };
    Kernel::boot(setup, Box::new(executor)).expect("memory for a small machine")
}

fn canary(crime: Crime, contract: Contract) -> Result<(), String> {
    let mut k = kernel("2n4c2t", "sleepers,tasks=64");
    k.attach(Canary::new(crime), ops_data("canary")).expect("attached");
    run_checked(&mut k, 500 * MS, 50_000, contract).map_err(|b| format!("{}: {}", b.law, b.what))?;
    assert!(k.ext.exits.is_empty(), "{:?}", k.ext.exits);
    Ok(())
}

const WORK: Contract = Contract { idle_grace: Some(300_000) };

#[test]
fn the_default_class_keeps_the_laws() {
    for workload in ["sleepers", "hackbench,groups=1,loops=50", "pingpong", "hogs", "spin_barrier"] {
        let mut k = kernel("2n4c2t", workload);
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

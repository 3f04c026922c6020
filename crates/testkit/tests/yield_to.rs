// SPDX-License-Identifier: GPL-2.0-only
//! Directed yields (`yield_to()`): the classes that take part, and who then runs.

use scxlab_kernel::Kernel;
use scxlab_kernel::behavior::{Policy, Sys};
use scxlab_machine::TaskId;
use scxlab_machine::id::CpuId;
use scxlab_testkit::checks;
use scxlab_testkit::sim::{attach_shipped, kernel};

const MS: u64 = 1_000_000;

fn hogs(machine: &str) -> Kernel {
    begun(kernel(machine, "hogs,tasks=4", 1))
}

fn hogs_under_fair(machine: &str, seed: u64) -> Kernel {
    let mut k = kernel(machine, "hogs,tasks=6", seed);
    attach_shipped(&mut k, "fair", &[]);
    begun(k)
}

fn begun(mut k: Kernel) -> Kernel {
    k.start();
    k.advance(50 * MS);
    k
}

fn curr(k: &Kernel) -> TaskId {
    k.cpus[CpuId(0)].curr
}

/// Returns the workload's tasks that wait for a CPU.
fn waiting(k: &Kernel) -> Vec<TaskId> {
    let waits = k.tasks.iter().filter(|t| t.name.starts_with("hog") && t.on_rq && !t.on_cpu);
    waits.map(|t| t.id).collect()
}

#[test]
fn the_target_runs_next() {
    let mut k = hogs("1n1c1t");
    let mut ran = 0;
    for round in 0..30 {
        let waiting = waiting(&k);
        let target = waiting[round % waiting.len()];
        assert!(k.user(|k| k.yield_to(target)));
        k.advance(k.now + MS / 10);
        ran += u32::from(curr(&k) == target);
        k.advance(k.now + 3 * MS);
        checks::after(&k);
    }
    // A target that has had more than its share is not eligible and does not run.
    assert!(ran >= 10, "{ran} of 30");
}

/// A target on another CPU runs there, while the caller goes on alone on its own.
#[test]
fn a_target_on_another_cpu_preempts_there() {
    let mut k = hogs("1n2c1t");
    let mut ran = 0;
    for round in 0..30 {
        let waiting = waiting(&k);
        let target = waiting[round % waiting.len()];
        let queue = k.tasks[target].cpu;
        assert!(k.user_on(CpuId(1 - queue.0), |k| k.yield_to(target)));
        k.advance(k.now + MS / 10);
        ran += u32::from(k.cpus[queue].curr == target);
        k.advance(k.now + 3 * MS);
        checks::after(&k);
    }
    assert!(ran >= 10, "{ran} of 30");
}

/// Scheduler `fair` favours the target where it waits, be it on the caller's CPU or another one.
#[test]
fn fair_favours_the_target_on_every_cpu() {
    for (machine, seed) in [("1n1c1t", 1), ("1n2c1t", 2), ("2n1c1t", 3), ("1n3c1t", 4)] {
        let mut k = hogs_under_fair(machine, seed);
        let (mut ran, mut tried) = (0, 0);
        for round in 0..30 {
            let waiting = waiting(&k);
            let target = waiting[round % waiting.len()];
            let queue = k.tasks[target].cpu;
            let caller = CpuId((queue.0 + round as u32) % k.cpus.len() as u32);
            if k.user_on(caller, |k| k.yield_to(target)) {
                tried += 1;
                k.advance(k.now + MS / 10);
                ran += u32::from(k.cpus[queue].curr == target);
            }
            k.advance(k.now + 3 * MS);
            checks::after(&k);
        }
        // A target that has had more than its share may have to wait.
        assert!(tried >= 25 && ran * 2 >= tried, "{machine}: {ran} of {tried}");
    }
}

#[test]
fn yields_without_effect_are_refused() {
    let mut k = hogs("1n1c1t");
    let own = curr(&k);
    assert!(!k.user(|k| k.yield_to(own)), "to itself");
    assert!(!k.user(|k| k.yield_to(TaskId(u32::MAX))), "to nobody");
    let other = waiting(&k)[0];
    k.user(|k| k.set_policy(other, Policy::Fifo { prio: 1 })).unwrap();
    k.advance(k.now + MS);
    let fair = waiting(&k)[0];
    assert_eq!(curr(&k), other);
    assert!(!k.user(|k| k.yield_to(fair)), "to another class");

    let mut k = hogs("1n4c1t");
    let next = k.cpus[CpuId(1)].curr;
    assert!(!k.user(|k| k.yield_to(next)), "to a task on a CPU");

    // A sched_ext scheduler decides by ops.yield; this one has none.
    let mut k = kernel("1n1c1t", "hogs,tasks=4", 1);
    attach_shipped(&mut k, "vtime", &[]);
    k.start();
    k.advance(50 * MS);
    let target = waiting(&k)[0];
    assert!(!k.user(|k| k.yield_to(target)), "without ops.yield");
}

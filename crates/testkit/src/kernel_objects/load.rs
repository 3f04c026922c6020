// SPDX-License-Identifier: GPL-2.0-only
//! Tasks that keep a machine busy in many ways, and the check that each of them makes progress.

use super::bench::{Child, MS, SEC, TestMachine};
use super::script::{Script, exit_at_once, hog, sleeper, yielder};
use scxlab_kernel::behavior::{Policy, TaskSpec, TaskStep};
use scxlab_machine::id::{CgroupId, Nanos};

pub const fn seconds(n: u64) -> Nanos {
    n * SEC
}

/// Starts the daemons of an unused machine, which wake up and sleep again.
pub fn background(b: &mut TestMachine) -> Vec<Child> {
    let names = ["init.d", "journal", "udevd", "cron"];
    let daemon = |(i, name): (usize, &&str)| {
        b.spawn(TaskSpec::normal(name), sleeper(100_000, (3 + i as u64) * MS))
    };
    names.iter().enumerate().map(daemon).collect()
}

/// Starts a mix of saturating, sleeping, yielding, pinned, nice, forking and real-time tasks.
/// Returns those that live on and must make progress.
pub fn mixed(b: &mut TestMachine) -> Vec<Child> {
    mixed_in(b, &[CgroupId(0)])
}

/// As `mixed`, with the tasks spread over cgroups.
pub fn mixed_in(b: &mut TestMachine, groups: &[CgroupId]) -> Vec<Child> {
    let mut tasks = Vec::new();
    let nr = b.nr_cpus();
    let mut add = |b: &mut TestMachine, spec: TaskSpec, script: Script| {
        let cgroup = groups[tasks.len() % groups.len()];
        let child = b.spawn(TaskSpec { cgroup, ..spec }, script);
        tasks.push(child);
    };
    for i in 0..nr {
        add(b, TaskSpec::normal("hog"), hog());
        add(b, TaskSpec::normal("sleeper"), sleeper(MS, 4 * MS));
        add(b, TaskSpec::normal("short"), sleeper(30_000, 500_000 + u64::from(i) * 10_000));
    }
    for _ in 0..2 {
        add(b, TaskSpec::normal("yielder"), yielder(50_000));
    }
    for (nice, name) in [(-5, "eager"), (10, "nice")] {
        add(b, TaskSpec { nice, ..TaskSpec::normal(name) }, hog());
    }
    for cpu in [0, nr - 1] {
        let pinned = TaskSpec { affinity: Some(b.cpus([cpu])), ..TaskSpec::normal("pinned") };
        add(b, pinned.clone(), hog());
        add(b, pinned, sleeper(200_000, 2 * MS));
    }
    let half = TaskSpec { affinity: Some(b.cpus(0..nr / 2)), ..TaskSpec::normal("half") };
    add(b, half, sleeper(3 * MS, MS));
    add(b, TaskSpec::normal("forker"), forker());
    let realtime = TaskSpec { policy: Policy::Fifo { prio: 10 }, ..TaskSpec::normal("realtime") };
    add(b, realtime, sleeper(200_000, 10 * MS));
    tasks
}

/// Repeats three steps: forks a child that exits at once, computes, and sleeps.
fn forker() -> Script {
    let mut state = 0;
    Box::new(move |ctx| {
        state = (state + 1) % 3;
        match state {
            0 => {
                ctx.fork(TaskSpec::normal("child"), exit_at_once()).expect("fork");
                TaskStep::Compute { work: 50_000 }
            }
            1 => TaskStep::Compute { work: 100_000 },
            _ => ctx.sleep(10 * MS),
        }
    })
}

/// Runs for `seconds`; asserts that the scheduler stays loaded and that every task runs in each
/// second.
pub fn run_and_progress(b: &mut TestMachine, tasks: &[Child], seconds: u64) {
    for second in 0..seconds {
        let before: Vec<Nanos> = tasks.iter().map(|t| b.k.tasks[t.task].account.run_ns).collect();
        b.sleep(SEC);
        assert!(b.k.ext.exits.is_empty(), "the scheduler left: {:?}", b.k.ext.exits);
        assert!(b.k.ext.root.is_some(), "a scheduler is loaded");
        let ran = tasks.iter().zip(before).map(|(task, before)| {
            let t = &b.k.tasks[task.task];
            (format!("{}[{}]", t.name, t.pid), t.account.run_ns - before)
        });
        let ran: Vec<(String, Nanos)> = ran.collect();
        assert!(ran.iter().all(|(_, ns)| *ns > 0), "some did not run in second {second}: {ran:?}");
    }
}

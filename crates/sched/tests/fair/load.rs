// SPDX-License-Identifier: GPL-2.0-only
//! Load tracking in the scheduler (`load=pelt`): a task's load, the blocked load of a sleeper, and
//! the load moved by a migration.

use scxlab_kernel::Kernel;
use scxlab_kernel::behavior::Sys;
use scxlab_machine::id::CpuId;
use scxlab_machine::{CpuMask, Machine};
use scxlab_testkit::shipped::{scheduled, scheduled_on};

use crate::{MS, Report, SECOND, report, stayed};

const PELT: &str = "fair,load=FAIR_LOAD_PELT";

/// Returns the root cgroup's load, summed over all CPUs.
fn total_load(k: &mut Kernel, loaded: &scxlab_loader::link::Loaded) -> u64 {
    (0..k.cpus.len() as u32)
        .map(|cpu| report(k, loaded, 0, cpu).expect("the root"))
        .map(|r: Report| r.runnable_load + r.blocked_load)
        .sum()
}

fn advance(k: &mut Kernel, to: u64) {
    k.advance(to);
    stayed(k);
}

/// One task alone runs for a part of each 10 ms and sleeps for the rest. The mean of the task's
/// load, runnable or blocked, is its weight times this part.
#[test]
fn a_task_weighs_what_it_runs() {
    // Tick every ms: the scheduler updates the load of a running task at ticks only.
    let mut machine = Machine::resolve("1c").unwrap();
    machine.costs.clock.tick_hz = 1000;
    for run_ms in [2, 5, 8] {
        let text = format!(
            "duration = \"4s\"\n[[thread]]\nname = \"t\"\nops = [{{ loop = {{ ops = [{{ compute = \"{run_ms}ms\" }}, \
             {{ timer = {{ name = \"t\", period = \"10ms\", mode = \"absolute\" }} }}] }} }}]"
        );
        let (mut k, loaded) = scheduled_on(PELT, machine.clone(), &text, 1);
        k.start();
        advance(&mut k, SECOND);
        let (mut sum, mut looks) = (0, 0);
        // Sample every 997 us, so that the samples drift through the 10 ms period.
        while looks < 2000 {
            let at = k.now + 997_000;
            advance(&mut k, at);
            sum += total_load(&mut k, &loaded);
            looks += 1;
        }
        let (mean, wanted) = (sum as f64 / looks as f64, run_ms as f64 / 10.0 * 1024.0);
        let off = (mean / wanted - 1.0).abs() * 100.0;
        assert!(
            off <= 2.0,
            "{run_ms} of 10 ms: load {mean:.1}, wanted {wanted:.1}: {off:.2} % off"
        );
    }
}

/// One task runs for a while and then sleeps for good; its blocked load must halve every 32
/// periods. The task beside it keeps the CPU busy, so that each tick updates the blocked load.
#[test]
fn blocked_load_halves_every_32_ms() {
    let text = "duration = \"2s\"\n\
        [[thread]]\nname = \"goes\"\nnice = -20\nops = [{ compute = \"400ms\" }, { sleep = \"10s\" }]\n\
        [[thread]]\nname = \"stays\"\nops = [{ loop = { ops = [{ compute = \"1ms\" }] } }]";
    let (mut k, loaded) = scheduled(PELT, "1c", text, 1);
    k.start();
    let blocked = |k: &mut Kernel| report(k, &loaded, 0, 0).expect("the root").blocked_load;
    while blocked(&mut k) == 0 {
        let at = k.now + MS;
        advance(&mut k, at);
    }
    // Periods are 2^20 ns long; a tick notices the end of a period at most one period late.
    let start = k.now;
    let first = blocked(&mut k);
    for halvings in 1..=5u32 {
        advance(&mut k, start + u64::from(halvings) * (32 << 20));
        let left = blocked(&mut k);
        let (low, high) = ((first >> halvings) as f64 * 0.98, (first >> halvings) as f64 * 1.02);
        assert!((low..=high).contains(&(left as f64)), "{halvings}: {left} of {first}");
    }
}

/// The test binds waiting tasks to the other CPU, one after the other. The load that leaves one CPU
/// equals, to the unit, the load that arrives on the other. A migration keeps the task's load; the
/// sum over several tasks shows an error that rounding hides in the load of one task.
#[test]
fn a_migration_leaves_the_sum_as_it_was() {
    let workload = "hogs,tasks=8,nice=0:3:-2:1:0:5:-4:2";
    let (mut k, loaded) = scheduled(PELT, "2c", workload, 1);
    k.start();
    advance(&mut k, SECOND);
    let mut moved = 0;
    for i in 0..8 {
        let at = k.now + 17 * MS;
        advance(&mut k, at);
        let task = k.tasks.iter().find(|t| t.name == format!("hog-{i}")).expect("a hog");
        let (id, from, runs) = (task.id, task.cpu, task.on_cpu);
        if runs {
            continue;
        }
        let other = CpuMask::of(2, [CpuId(1 - from.0)]);
        let before = total_load(&mut k, &loaded);
        k.user(|k| k.set_affinity(id, &other)).expect("an online CPU");
        let after = total_load(&mut k, &loaded);
        assert_ne!(k.tasks[id].cpu, from, "hog-{i}");
        assert_eq!(before, after, "hog-{i}");
        moved += 1;
    }
    assert!(moved >= 3, "{moved} waited");
}

/// While a task sleeps, the test binds it to the other CPU. When the task wakes up on that CPU, the
/// scheduler must remove its load from the first CPU.
#[test]
fn a_sleeper_takes_its_load_along() {
    let text = "duration = \"2s\"\n\
        [[thread]]\nname = \"s\"\ncpus = \"0\"\n\
        ops = [{ compute = \"400ms\" }, { sleep = \"10ms\" }, { loop = { ops = [{ compute = \"1ms\" }] } }]";
    let (mut k, loaded) = scheduled(PELT, "2c", text, 1);
    let root = |k: &mut Kernel, cpu| report(k, &loaded, 0, cpu).expect("the root");
    k.start();
    advance(&mut k, 402 * MS);
    assert!(root(&mut k, 0).blocked_load > 900, "{:?}", root(&mut k, 0));
    let sleeper = k.tasks.iter().find(|t| t.name == "s").expect("it sleeps").id;
    k.user(|k| k.set_affinity(sleeper, &CpuMask::of(2, [CpuId(1)]))).expect("an online CPU");
    let asleep = total_load(&mut k, &loaded);
    // The task slept for 10 ms, in which a load decays by a fifth, and has run for 2 ms since. So
    // more than 75 % of the load that was measured during its sleep must have arrived on CPU 1, and
    // none is left on CPU 0.
    advance(&mut k, 413 * MS);
    let (left, arrived) = (root(&mut k, 0), root(&mut k, 1));
    assert_eq!((left.blocked_load, left.runnable_load), (0, 0));
    assert!(arrived.runnable_load * 100 > asleep * 75, "{arrived:?} of {asleep}");
}

/// Checks the averages of a CPU and of cgroups: the part of the time in which they have a runnable
/// task, and the part in which a task runs. `tasks` tasks wake up at once and run for `run_ms` of
/// each 10 ms, each in a cgroup of its own, on CPU 0 of two.
fn duty_cycle(run_ms: u64, tasks: u64) {
    let mut machine = Machine::resolve("2c").unwrap();
    machine.costs.clock.tick_hz = 1000;
    let mut text = String::from("duration = \"4s\"\n");
    for i in 0..tasks {
        text += &format!(
            "[[cgroup]]\npath = \"/g{i}\"\n[[thread]]\nname = \"t{i}\"\ncgroup = \"/g{i}\"\ncpus = \"0\"\n\
             ops = [{{ loop = {{ ops = [{{ compute = \"{run_ms}ms\" }}, \
             {{ timer = {{ name = \"t{i}\", period = \"10ms\", mode = \"absolute\" }} }}] }} }}]\n"
        );
    }
    let (mut k, loaded) = scheduled_on(PELT, machine, &text, 1);
    k.start();
    advance(&mut k, SECOND);
    let (mut work, mut runnable, mut usage, mut group, mut looks) = (0, 0, 0, 0, 0);
    while looks < 1000 {
        let at = k.now + 1_997_000;
        advance(&mut k, at);
        let cpu = report(&mut k, &loaded, 0, 0).expect("the root");
        work += cpu.runnable;
        let own = (1..=tasks as u32).map(|g| report(&mut k, &loaded, g, 0).expect("a cgroup"));
        let own: Vec<Report> = own.collect();
        runnable += own.iter().map(|r| r.runnable).sum::<u64>();
        usage += own.iter().map(|r| r.usage).sum::<u64>();
        group += own.iter().map(|r| r.group_usage as u64).sum::<u64>();
        looks += 1;
    }
    let busy = (run_ms * tasks) as f64 / 10.0;
    for (what, sum, wanted, percent) in [
        ("the CPU has work", work, busy, 2.0),
        ("cgroups run", usage, busy, 2.0),
        // The scheduler updates a cgroup's total at events of the cgroup's queue, and every 8 ms if
        // the CPU is busy. The total of a cgroup whose task sleeps is therefore out of date, so the
        // test allows an error of 12 % instead of 2 %.
        ("their totals run", group, busy, 12.0),
    ] {
        let part = sum as f64 / f64::from(looks) / 1024.0;
        let off = (part / wanted - 1.0).abs() * 100.0;
        assert!(off <= percent, "{tasks} of {run_ms} ms: {what} {part:.3}, wanted {wanted:.3}");
    }
    // A waiting task counts as runnable, but not as running. If there are several tasks, the
    // runnable average must therefore exceed the running average, by a fifth or more.
    assert!(runnable * 100 >= usage * 99, "{runnable} {usage}");
    assert!(tasks == 1 || runnable * 100 > usage * 120, "{runnable} {usage}");
}

#[test]
fn averages_follow_duty_cycles() {
    for (run_ms, tasks) in [(1, 1), (3, 1), (8, 1), (2, 2), (4, 2), (3, 3)] {
        duty_cycle(run_ms, tasks);
    }
}

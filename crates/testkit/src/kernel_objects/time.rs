// SPDX-License-Identifier: GPL-2.0-only
//! Selftests of kicks and ticks, and of competition with real-time tasks.

use super::bench::{Child, MS, SEC, TestMachine, add_flags, get, set};
use super::ejections::NONE;
use super::load::{background, seconds};
use super::script::{Script, hog};
use scxlab_kernel::behavior::{Policy, TaskSpec, TaskStep};
use std::cell::Cell;
use std::rc::Rc;

/// Three CPUs wait for each other in a circle for five seconds and must all make progress.
pub fn cyclic_kick_wait(b: &mut TestMachine) {
    let mut open = b.open("cyclic_kick_wait");
    for (name, cpu) in [("test_cpu_a", 0), ("test_cpu_b", 1), ("test_cpu_c", 2)] {
        set(&mut open, name, cpu);
    }
    let loaded = b.load(open);
    background(b);
    b.attach(&loaded, "cyclic_kick_wait_ops");
    let stop = Rc::new(Cell::new(false));
    let workers: Vec<Child> = (0..12)
        .map(|i| {
            let mask = b.cpus([i / 4]);
            b.spawn(
                TaskSpec { affinity: Some(mask), ..TaskSpec::normal("worker") },
                yield_until(stop.clone()),
            )
        })
        .collect();
    for _ in 0..5 {
        let before: Vec<_> = workers.iter().map(|w| b.k.tasks[w.task].account.run_ns).collect();
        b.sleep(SEC);
        for (w, before) in workers.iter().zip(before) {
            assert!(b.k.tasks[w.task].account.run_ns > before, "worker {} runs", w.pid);
        }
    }
    b.expect_kind(&loaded, NONE);
    assert!(b.get(&loaded, "nr_wait_kicks") > 1000, "CPUs waited for each other");
    stop.set(true);
    b.wait_exited(&workers, seconds(2));
    b.detach();
}

/// Yields repeatedly, with 20 us of work between yields; the loop of the C test only yields.
fn yield_until(stop: Rc<Cell<bool>>) -> Script {
    let mut ran = false;
    Box::new(move |_| {
        ran = !ran;
        match ran {
            _ if stop.get() => TaskStep::Exit,
            true => TaskStep::Compute { work: 20_000 },
            false => TaskStep::Yield,
        }
    })
}

/// The part of nohz_tick that concerns the scheduler: it gives infinite slices, and later finite
/// ones, during which the CPU must tick.
pub fn nohz_tick(b: &mut TestMachine) {
    const ENQ_LAST: u64 = 2;
    const SWITCH_PARTIAL: u64 = 8;
    const TEST_CPU: u32 = 1;
    let mut open = b.open("nohz_tick");
    set(&mut open, "test_cpu", u64::from(TEST_CPU));
    add_flags(&mut open, "nohz_tick_ops", SWITCH_PARTIAL | ENQ_LAST);
    let loaded = b.load(open);
    b.attach(&loaded, "nohz_tick_ops");
    let pinned = TaskSpec {
        policy: Policy::Ext,
        affinity: Some(b.cpus([TEST_CPU])),
        ..TaskSpec::normal("worker")
    };
    let reach = |b: &mut TestMachine, counter: &str, value: u64| {
        b.wait(SEC, counter, |k| get(k, &loaded, counter) >= value);
    };

    let paused = Rc::new(Cell::new(false));
    b.spawn(pinned.clone(), run_until(paused.clone(), TaskStep::Block));
    reach(b, "nr_inf_running", 1);
    paused.set(true);
    b.sleep(100 * MS);

    b.put(&loaded, "finite_phase", 1);
    let stop = Rc::new(Cell::new(false));
    let worker = b.spawn(pinned.clone(), run_until(stop.clone(), TaskStep::Exit));
    reach(b, "nr_finite_running", 1);
    reach(b, "nr_finite_ticks", 3);
    stop.set(true);
    b.wait_exited(&[worker], SEC);
    b.sleep(100 * MS);

    let (running, ticks) = (b.get(&loaded, "nr_finite_running"), b.get(&loaded, "nr_finite_ticks"));
    b.spawn(pinned, hog());
    reach(b, "nr_finite_running", running + 1);
    reach(b, "nr_finite_ticks", ticks + 3);
    b.expect_kind(&loaded, NONE);
    b.detach();
}

/// Computes in steps of 100 us until `flag` is set, then returns `then`.
fn run_until(flag: Rc<Cell<bool>>, then: TaskStep) -> Script {
    Box::new(move |_| if flag.get() { then } else { TaskStep::Compute { work: 100_000 } })
}

/// Beside a real-time task that holds a CPU, a task of either class has 4 % of it, and the
/// scheduler stays loaded. Afterwards the task has the CPU.
pub fn rt_stall(b: &mut TestMachine) {
    let loaded = b.open_and_load("rt_stall");
    for round in 0..4 {
        let is_ext = round % 2 == 1;
        if is_ext {
            b.clear(&loaded, "uei");
            b.attach(&loaded, "rt_stall_ops");
        }
        let cpu0 = Some(b.cpus([0]));
        let stop = Rc::new(Cell::new(false));
        let over = Rc::new(Cell::new(false));
        let ext = b.spawn(
            TaskSpec { affinity: cpu0.clone(), ..TaskSpec::normal("ext") },
            run_until(over.clone(), TaskStep::Exit),
        );
        let fifo = TaskSpec {
            affinity: cpu0,
            policy: Policy::Fifo { prio: 50 },
            ..TaskSpec::normal("rt")
        };
        let rt = b.spawn(fifo, run_until(stop.clone(), TaskStep::Exit));
        b.sleep(5 * SEC);
        let ran = |b: &TestMachine, c: Child| b.k.tasks[c.task].account.run_ns;
        assert!(ran(b, rt) > 4 * SEC, "the real-time task has the CPU: {}", ran(b, rt));
        let (served, all) = (ran(b, ext), ran(b, ext) + ran(b, rt));
        assert!(served * 100 >= all * 4, "round {round}: the other task has {served} of {all} ns");
        if is_ext {
            b.expect_kind(&loaded, NONE);
        }
        stop.set(true);
        b.wait_exited(&[rt], SEC);
        let before = ran(b, ext);
        b.sleep(SEC / 10);
        assert!(ran(b, ext) > before + SEC / 20, "round {round}: the other task runs again");
        if is_ext {
            b.expect_kind(&loaded, NONE);
            b.detach();
        }
        over.set(true);
        b.wait_exited(&[ext], SEC);
    }
}

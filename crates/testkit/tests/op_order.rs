// SPDX-License-Identifier: GPL-2.0-only
//! The order of the operations called for a task, as in Documentation/scheduler/sched-ext.rst
//! ("Task Lifecycle") and kernel/sched/ext/ext.c of Linux 7.3.

use scxlab_kernel::behavior::{Policy, Sys};
use scxlab_kernel::ext::op::Op;
use scxlab_machine::cpumask::CpuMask;
use scxlab_machine::id::CpuId;
use scxlab_testkit::canary::ops_data;
use scxlab_testkit::checks;
use scxlab_testkit::recorder::{Log, lines_of_task, recorder};
use scxlab_testkit::sim::kernel;

const MS: u64 = 1_000_000;

/// Returns the names of the operations called for `task`, without arguments.
fn names(log: &Log, task: &str) -> Vec<String> {
    let bare = |line: String| line.split('(').next().unwrap_or_default().to_owned();
    lines_of_task(log, task).into_iter().map(bare).collect()
}

fn thread(ops: &str) -> String {
    format!("[[thread]]\nname = 't'\nops = [{ops}]")
}

#[test]
fn from_fork_to_exit() {
    let mut k =
        kernel("1c", &thread("{ compute = '1ms' }, { sleep = '1ms' }, { compute = '1ms' }"), 1);
    let (program, log) = recorder(20 * MS, &[Op::Tick]);
    k.attach(program, ops_data("recorder")).unwrap();
    k.run(None);
    checks::after(&k);
    assert_eq!(
        lines_of_task(&log, "t"),
        [
            "init_task(t)",
            "enable(t)",
            "set_weight(t, 100)",
            // The flags of ops.runnable and ops.enqueue are ENQUEUE_INITIAL and NOCLOCK.
            "runnable(t, 0x80008)",
            "enqueue(t, 0x80008)",
            // The task leaves custody for a local DSQ.
            "dequeue(t, 0x0)",
            "running(t)",
            "stopping(t, 0)",
            // The flags of ops.quiescent are DEQUEUE_SLEEP and NOCLOCK.
            "quiescent(t, 0x9)",
            // The kernel does not call ops.select_cpu for a task that may run on one CPU only.
            "runnable(t, 0x9)",
            "enqueue(t, 0x9)",
            "dequeue(t, 0x0)",
            "running(t)",
            // The task exits: it leaves its autogroup (flags SAVE, MOVE, SCX_ENQ_IGNORE_CAPS), then
            // dies (flag SPECIAL).
            "stopping(t, 0)",
            "quiescent(t, 0x20000000e)",
            "runnable(t, 0x100000000000000e)",
            "running(t)",
            "stopping(t, 0)",
            "quiescent(t, 0x10009)",
            "disable(t)",
            "exit_task(t)",
        ]
    );
}

#[test]
fn a_slice_that_ends_goes_through_enqueue_again() {
    let text = format!(
        "{}\n{}",
        thread("{ compute = '20ms' }"),
        "[[thread]]\nname = 'u'\nops = [{ compute = '20ms' }]"
    );
    let mut k = kernel("1c", &text, 1);
    let (program, log) = recorder(4 * MS, &[Op::Dequeue, Op::Tick]);
    k.attach(program, ops_data("recorder")).unwrap();
    k.run(None);
    let lines = lines_of_task(&log, "t");
    let ended = lines.iter().position(|l| l == "stopping(t, 1)").expect("it was preempted");
    // The task is still runnable, so the kernel calls neither ops.quiescent nor ops.runnable.
    assert_eq!(lines[ended + 1..ended + 3], ["enqueue(t, 0x0)", "running(t)"]);
}

#[test]
fn alone_it_keeps_the_cpu_without_a_word() {
    let mut k = kernel("1c", &thread("{ compute = '50ms' }"), 1);
    let (program, log) = recorder(4 * MS, &[Op::Dequeue, Op::Tick]);
    k.attach(program, ops_data("recorder")).unwrap();
    k.run(None);
    // The kernel calls ops.running once for all work of the task, and once more when the task
    // leaves its autogroup to exit.
    let running = names(&log, "t").iter().filter(|n| *n == "running").count();
    assert_eq!(running, 2);
}

#[test]
fn a_change_of_nice_takes_a_queued_task_out_and_back() {
    let text = format!(
        "{}\n{}",
        thread("{ compute = '40ms' }"),
        "[[thread]]\nname = 'u'\nops = [{ compute = '40ms' }]"
    );
    let mut k = kernel("1c", &text, 1);
    let (program, log) = recorder(20 * MS, &[Op::Tick]);
    k.attach(program, ops_data("recorder")).unwrap();
    k.start();
    k.advance(2 * MS);
    let waiting = k.tasks.iter().find(|t| k.is_workload(t) && !t.on_cpu).expect("one waits").id;
    let name = k.tasks[waiting].name.clone();
    log.borrow_mut().clear();
    k.user(|k| k.set_nice(waiting, 5)).unwrap();
    assert_eq!(
        lines_of_task(&log, &name),
        [
            // The flags of ops.dequeue and ops.quiescent are SCX_DEQ_SCHED_CHANGE, DEQUEUE_SAVE and
            // NOCLOCK.
            format!("dequeue({name}, 0x20000000a)"),
            format!("quiescent({name}, 0x20000000a)"),
            format!("set_weight({name}, 33)"),
            format!("runnable({name}, 0xa)"),
            format!("enqueue({name}, 0xa)"),
        ]
    );
    checks::after(&k);
}

#[test]
fn affinity_reaches_the_scheduler_and_moves_a_running_task() {
    let mut k = kernel("2c", &thread("{ compute = '50ms' }"), 1);
    let (program, log) = recorder(20 * MS, &[Op::Tick]);
    k.attach(program, ops_data("recorder")).unwrap();
    k.start();
    k.advance(2 * MS);
    let task = k.tasks.iter().find(|t| t.name == "t").expect("it runs").id;
    let other = CpuId(1 - k.tasks[task].cpu.0);
    log.borrow_mut().clear();
    k.user(|k| k.set_affinity(task, &CpuMask::of(2, [other]))).unwrap();
    assert!(names(&log, "t").contains(&"set_cpumask".to_owned()), "{:?}", log.borrow());
    k.advance(3 * MS);
    assert_eq!(k.tasks[task].cpu, other);
    assert!(k.tasks[task].on_cpu);
    assert!(k.ext.exits.is_empty(), "{:?}", k.ext.exits);
    checks::after(&k);
}

#[test]
fn a_real_time_task_leaves_the_class_and_comes_back() {
    let mut k = kernel("2c", &thread("{ compute = '50ms' }"), 1);
    let (program, log) = recorder(20 * MS, &[Op::Tick, Op::Dequeue]);
    k.attach(program, ops_data("recorder")).unwrap();
    k.start();
    k.advance(2 * MS);
    let task = k.tasks.iter().find(|t| t.name == "t").expect("it runs").id;
    log.borrow_mut().clear();
    k.user(|k| k.set_policy(task, Policy::Fifo { prio: 10 })).unwrap();
    assert_eq!(names(&log, "t"), ["stopping", "quiescent", "disable"]);
    k.advance(4 * MS);
    log.borrow_mut().clear();
    k.user(|k| k.set_policy(task, Policy::Normal)).unwrap();
    assert_eq!(names(&log, "t")[..3], ["enable", "set_weight", "set_cpumask"]);
    k.advance(60 * MS);
    assert!(k.ext.exits.is_empty(), "{:?}", k.ext.exits);
}

#[test]
fn detaching_gives_every_task_back() {
    let mut k = kernel("2c", "hogs,tasks=6", 1);
    let (program, log) = recorder(5 * MS, &[Op::Tick, Op::Dequeue]);
    k.attach(program, ops_data("recorder")).unwrap();
    k.start();
    k.advance(50 * MS);
    log.borrow_mut().clear();
    k.detach();
    for i in 0..6 {
        let ends = names(&log, &format!("hog-{i}"));
        assert_eq!(ends[ends.len() - 2..], ["disable", "exit_task"], "hog-{i}");
    }
    let before: u64 = (0..6).map(|i| scxlab_testkit::sim::run_ns(&k, &format!("hog-{i}"))).sum();
    k.advance(150 * MS);
    let after: u64 = (0..6).map(|i| scxlab_testkit::sim::run_ns(&k, &format!("hog-{i}"))).sum();
    assert!(after > before + 150 * MS, "the default class goes on");
    checks::after(&k);
    assert_eq!(k.ext.exits.len(), 1);
    assert_eq!(k.ext.exits[0].kind.name(), "unreg");
}

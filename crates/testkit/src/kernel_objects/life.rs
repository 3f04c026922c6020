// SPDX-License-Identifier: GPL-2.0-only
//! Selftests of attaching and detaching, and of the operations called in a task's life.

use super::bench::{Child, MS, SEC, TestMachine, add_flags};
use super::ejections::UNREG;
use super::load::{background, mixed_in, run_and_progress, seconds};
use super::script::{block_and_exit, exit_at_once, hog};
use scxlab_kernel::behavior::TaskSpec;
use scxlab_kernel::behavior::{CgroupSpec, Policy, Sys, TaskStep};
use scxlab_kernel::ext::enable::AttachError;
use scxlab_kernel::ext::object::ObjectAttachError;
use scxlab_machine::id::CgroupId;

const SWITCH_PARTIAL: u64 = 8;

pub fn create_dsq(b: &mut TestMachine) {
    background(b);
    let loaded = b.open_and_load("create_dsq");
    b.attach(&loaded, "create_dsq_ops");
    assert!(b.k.ext.root.is_some() && b.k.ext.exits.is_empty(), "{:?}", b.k.ext.exits);
    let children: Vec<Child> =
        (0..20).map(|_| b.spawn(TaskSpec::normal("child"), exit_at_once())).collect();
    b.wait_exited(&children, SEC);
    b.detach();
    assert_eq!(b.k.ext.exits[0].kind as u64, UNREG, "{:?}", b.k.ext.exits);
}

/// A scheduler without operations: all tasks go through the global DSQs, and each must get CPU
/// time.
pub fn minimal(b: &mut TestMachine) {
    let loaded = b.open_and_load("minimal");
    for _ in 0..3 {
        b.attach(&loaded, "minimal_ops");
        let tasks: Vec<Child> =
            (0..2 * b.nr_cpus()).map(|_| b.spawn(TaskSpec::normal("hog"), hog())).collect();
        run_and_progress_once(b, &tasks);
        b.detach();
        b.sleep(10 * MS);
    }
    assert!(b.k.ext.exits.iter().all(|e| e.kind as u64 == UNREG), "{:?}", b.k.ext.exits);
}

fn run_and_progress_once(b: &mut TestMachine, tasks: &[Child]) {
    let left = b.k.ext.exits.len();
    b.sleep(SEC);
    assert_eq!(b.k.ext.exits.len(), left, "{:?}", b.k.ext.exits);
    for t in tasks {
        assert!(b.k.tasks[t.task].account.run_ns > 0, "pid {} ran", t.pid);
    }
}

/// The object defines every operation, including those for cgroups, CPUs and policies. The test
/// makes the kernel call them, and none may lead to an error.
pub fn maximal(b: &mut TestMachine) {
    let loaded = b.open_and_load("maximal");
    b.attach(&loaded, "maximal_ops");
    let group = b.k.user(|k| k.mkdir(CgroupId(0), "work", CgroupSpec::default())).expect("mkdir");
    let tasks = mixed_in(b, &[CgroupId(0), group]);
    run_and_progress(b, &tasks, 2);
    change_everything(b, &tasks, group);
    run_and_progress(b, &tasks, 1);
    b.detach();
    assert_eq!(b.k.ext.exits[0].kind as u64, UNREG, "{:?}", b.k.ext.exits);
}

/// Makes the changes for which the kernel calls operations: nice, affinity, cgroups and hotplug.
fn change_everything(b: &mut TestMachine, tasks: &[Child], group: CgroupId) {
    let all = b.cpus(0..b.nr_cpus());
    b.k.user(|k| {
        for (i, t) in tasks.iter().enumerate() {
            k.set_nice(t.task, i as i8 % 5).expect("nice");
            k.set_affinity(t.task, &all).expect("affinity");
        }
        k.move_to_cgroup(tasks[0].task, group).expect("move");
        k.set_cgroup(group, CgroupSpec { weight: 300, ..CgroupSpec::default() }).expect("weight");
        let limit = CgroupSpec { weight: 300, quota: Some(50 * MS), ..CgroupSpec::default() };
        k.set_cgroup(group, limit).expect("bandwidth");
        k.set_cgroup(group, CgroupSpec::default()).expect("no limit");
        let empty = k.mkdir(group, "empty", CgroupSpec::default()).expect("mkdir");
        k.rmdir(empty).expect("rmdir");
    });
    b.set_online(1, false);
    b.sleep(10 * MS);
    b.set_online(1, true);
}

/// In each of 100 rounds, the kernel refuses to attach a scheduler while another one is loaded.
pub fn reload_loop(b: &mut TestMachine) {
    background(b);
    let one = b.open_and_load("maximal");
    let other = b.open_and_load("maximal");
    for _ in 0..100 {
        b.attach(&one, "maximal_ops");
        let second = b.try_attach(&other, "maximal_ops");
        assert_eq!(second, Err(ObjectAttachError::Refused(AttachError::Busy)));
        b.sleep(MS);
        b.detach();
        b.attach(&other, "maximal_ops");
        b.sleep(MS);
        b.detach();
    }
    assert!(b.k.ext.exits.iter().all(|e| e.kind as u64 == UNREG), "{:?}", b.k.ext.exits);
}

/// Checks the counts of init_task, exit_task, enable and disable, once with a scheduler that takes
/// all tasks and once with a scheduler that takes SCHED_EXT tasks only.
pub fn init_enable_count(b: &mut TestMachine) {
    count_calls(b, true);
    count_calls(b, false);
}

fn count_calls(b: &mut TestMachine, global: bool) {
    const NUM_CHILDREN: u64 = 5;
    const NUM_PRE_FORKS: u64 = 1024;
    let mut open = b.open("init_enable_count");
    if !global {
        add_flags(&mut open, "init_enable_count_ops", SWITCH_PARTIAL);
    }
    let loaded = b.load(open);
    let waiting: Vec<Child> =
        (0..NUM_PRE_FORKS).map(|_| b.spawn(TaskSpec::normal("waiter"), block_and_exit())).collect();
    b.sleep(SEC / 10);
    b.attach(&loaded, "init_enable_count_ops");
    b.k.user(|k| {
        for c in &waiting {
            k.wake(c.task, false);
        }
    });
    b.detach();
    let count = |b: &TestMachine, name: &str| b.get(&loaded, name);
    assert!(count(b, "init_task_cnt") >= NUM_PRE_FORKS);
    assert!(count(b, "exit_task_cnt") >= NUM_PRE_FORKS);
    b.wait_exited(&waiting, seconds(5));

    b.attach(&loaded, "init_enable_count_ops");
    let ext: Vec<Child> = (0..NUM_CHILDREN)
        .map(|i| b.spawn(TaskSpec::normal("ext"), becomes_ext(i % 2 == 0)))
        .collect();
    b.wait_exited(&ext, SEC);
    let other: Vec<Child> =
        (0..NUM_CHILDREN).map(|_| b.spawn(TaskSpec::normal("other"), exit_at_once())).collect();
    b.wait_exited(&other, SEC);
    b.detach();

    assert!(count(b, "init_task_cnt") >= 2 * NUM_CHILDREN);
    assert!(count(b, "exit_task_cnt") >= 2 * NUM_CHILDREN);
    assert_eq!(count(b, "init_task_cnt"), count(b, "exit_task_cnt"), "each that began ended");
    assert_eq!(count(b, "enable_cnt"), count(b, "disable_cnt"), "each that began ended");
    if global {
        assert!(count(b, "enable_cnt") >= 2 * NUM_CHILDREN);
    } else {
        assert_eq!(count(b, "enable_cnt"), NUM_CHILDREN);
    }
    assert!(count(b, "init_transition_cnt") > count(b, "init_fork_cnt"));
    assert!(count(b, "init_fork_cnt") >= 2 * NUM_CHILDREN);
}

/// Returns the script of a task that switches to SCHED_EXT, switches back to SCHED_OTHER if `back`,
/// and exits.
fn becomes_ext(back: bool) -> super::script::Script {
    let mut step = 0;
    Box::new(move |ctx| {
        step += 1;
        let me = ctx.me;
        match step {
            1 => ctx.sys.set_policy(me, Policy::Ext).expect("SCHED_EXT"),
            2 if back => ctx.sys.set_policy(me, Policy::Normal).expect("SCHED_OTHER"),
            _ => return TaskStep::Exit,
        }
        TaskStep::Compute { work: 10_000 }
    })
}

/// The part of the selftest total_bw that concerns a scheduler, with one CPU hog per CPU. Before,
/// during and after the time in which the scheduler is attached, each hog must run for more than
/// half of the time.
pub fn total_bw(b: &mut TestMachine) {
    let stress: Vec<Child> =
        (0..b.nr_cpus()).map(|_| b.spawn(TaskSpec::normal("stress"), hog())).collect();
    let loaded = b.open_and_load("minimal");
    for attached in [false, true, false] {
        if attached {
            b.attach(&loaded, "minimal_ops");
        }
        let before: Vec<_> = stress.iter().map(|t| b.k.tasks[t.task].account.run_ns).collect();
        b.sleep(SEC);
        for (t, before) in stress.iter().zip(before) {
            let ran = b.k.tasks[t.task].account.run_ns - before;
            assert!(ran > SEC / 2, "pid {} ran {ran} ns of a second", t.pid);
        }
        if attached {
            assert!(b.k.ext.exits.is_empty());
            b.detach();
        }
    }
}

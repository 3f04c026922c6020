// SPDX-License-Identifier: GPL-2.0-only
//! Selftests of idle tracking, CPU selection and direct dispatch.

use super::bench::{Child, SEC, TestMachine, add_flags, set};
use super::ejections::{NONE, UNREG};
use super::load::{background, mixed, seconds};
use super::script::{sleep_and_exit, sleeper};
use scxlab_kernel::behavior::TaskSpec;
use scxlab_machine::id::TaskId;

/// Number of children that the C tests fork.
const NUM_CHILDREN: u32 = 1028;

/// Runs a mixed load for one second, during which a syscall program picks a CPU for the test
/// process every 10 ms. Returns the picks.
fn picks_from_user(b: &mut TestMachine, object: &str) -> Vec<i32> {
    background(b);
    let loaded = b.open_and_load(object);
    b.attach(&loaded, &format!("{object}_ops"));
    let mut picks = Vec::new();
    for hundredth in 0..100 {
        if hundredth == 50 {
            mixed(b);
        }
        pick(b, &loaded, &mut picks);
        b.sleep(SEC / 100);
    }
    b.expect_kind(&loaded, NONE);
    b.detach();
    b.expect_kind(&loaded, UNREG);
    picks
}

fn pick(b: &mut TestMachine, loaded: &scxlab_loader::link::Loaded, picks: &mut Vec<i32>) {
    let pid = b.k.tasks[b.runner].pid;
    let mut ctx = u64::from(pid).to_le_bytes();
    let cpu = b.run_syscall(loaded, "select_cpu_from_user", &mut ctx);
    assert!(cpu < b.nr_cpus() as i32, "CPU {cpu} exists");
    picks.push(cpu);
}

pub fn enq_select_cpu(b: &mut TestMachine) {
    let picks = picks_from_user(b, "enq_select_cpu");
    assert!(picks.iter().any(|&cpu| cpu >= 0), "some CPU was idle: {picks:?}");
}

pub fn allowed_cpus(b: &mut TestMachine) {
    let picks = picks_from_user(b, "allowed_cpus");
    assert!(picks.iter().any(|&cpu| cpu >= 0), "some CPU was idle: {picks:?}");
}

pub fn numa(b: &mut TestMachine) {
    const BUILTIN_IDLE_PER_NODE: u64 = 64;
    const PICK_IDLE_IN_NODE: u64 = 2;
    let mut open = b.open("numa");
    set(&mut open, "__COMPAT_SCX_PICK_IDLE_IN_NODE", PICK_IDLE_IN_NODE);
    add_flags(&mut open, "numa_ops", BUILTIN_IDLE_PER_NODE);
    let loaded = b.load(open);
    background(b);
    b.attach(&loaded, "numa_ops");
    b.sleep(SEC / 2);
    mixed(b);
    b.sleep(SEC / 2);
    b.expect_kind(&loaded, NONE);
    b.detach();
}

/// Starts children that sleep for one second, as the children of the C tests do.
fn sleeping_children(b: &mut TestMachine, name: &str) -> Vec<Child> {
    (0..NUM_CHILDREN).map(|_| b.spawn(TaskSpec::normal(name), sleep_and_exit(SEC))).collect()
}

pub fn select_cpu_dfl(b: &mut TestMachine) {
    let loaded = b.open_and_load("select_cpu_dfl");
    b.attach(&loaded, "select_cpu_dfl_ops");
    // The BPF program looks only at tasks called `select_cpu_dfl`, so the children have this name.
    let children = sleeping_children(b, "select_cpu_dfl");
    b.wait_exited(&children, seconds(5));
    assert_eq!(b.get(&loaded, "saw_local"), 0);
    b.detach();
}

pub fn select_cpu_dfl_nodispatch(b: &mut TestMachine) {
    let loaded = b.open_and_load("select_cpu_dfl_nodispatch");
    b.attach(&loaded, "select_cpu_dfl_nodispatch_ops");
    let children = sleeping_children(b, "runner");
    b.wait_exited(&children, seconds(5));
    assert_eq!(b.get(&loaded, "saw_local"), 1);
    assert!(b.k.ext.exits.is_empty(), "{:?}", b.k.ext.exits);
    b.detach();
}

pub fn select_cpu_dispatch(b: &mut TestMachine) {
    let loaded = b.open_and_load("select_cpu_dispatch");
    b.attach(&loaded, "select_cpu_dispatch_ops");
    let children = sleeping_children(b, "runner");
    b.wait_exited(&children, seconds(5));
    assert!(b.k.ext.exits.is_empty(), "{:?}", b.k.ext.exits);
    b.detach();
}

pub fn select_cpu_vtime(b: &mut TestMachine) {
    let loaded = b.open_and_load("select_cpu_vtime");
    assert_eq!(b.get(&loaded, "consumed"), 0);
    background(b);
    b.attach(&loaded, "select_cpu_vtime_ops");
    b.sleep(SEC);
    assert_eq!(b.get(&loaded, "consumed"), 1);
    assert!(b.k.ext.exits.is_empty(), "{:?}", b.k.ext.exits);
    b.detach();
}

/// Sends tasks to random CPUs; no task may be put on a CPU where it is not allowed.
pub fn dsp_local_on(b: &mut TestMachine) {
    let mut open = b.open("dsp_local_on");
    set(&mut open, "nr_cpus", u64::from(b.nr_cpus()));
    let loaded = b.load(open);
    background(b);
    let busy: Vec<TaskId> = (0..8)
        .map(|_| b.spawn(TaskSpec::normal("worker"), sleeper(300_000, 700_000)).task)
        .collect();
    b.attach(&loaded, "dsp_local_on_ops");
    b.sleep(SEC);
    let moves: u64 = busy.iter().map(|&t| b.k.tasks[t].account.migrations).sum();
    assert!(moves > 100, "random CPUs mean migrations: {moves}");
    b.detach();
    b.expect_kind(&loaded, UNREG);
}

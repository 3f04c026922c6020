// SPDX-License-Identifier: GPL-2.0-only
//! Selftests of `ops.dequeue` for tasks in the scheduler's custody, and of peeking into DSQs.

use super::bench::{Child, MS, SEC, TestMachine, get};
use super::ejections::{NONE, UNREG};
use super::load::{background, seconds};
use super::script::{Script, yielder};
use scxlab_kernel::behavior::TaskSpec;
use scxlab_kernel::behavior::TaskStep;
use scxlab_loader::link::Loaded;
use scxlab_machine::cpumask::CpuMask;
use scxlab_machine::id::{CpuId, Nanos};

/// Runs the seven dispatch scenarios of dequeue.bpf.c, while a task changes the workers' affinity.
pub fn dequeue(b: &mut TestMachine) {
    let loaded = b.open_and_load("dequeue");
    let mut changes = 0;
    for scenario in 0..7 {
        changes += dequeue_scenario(b, &loaded, scenario);
    }
    assert!(changes > 0, "some affinity change hit a task in custody");
}

/// Runs one scenario; returns the number of dequeues that were due to a property change.
fn dequeue_scenario(b: &mut TestMachine, loaded: &Loaded, scenario: u64) -> u64 {
    const NUM_WORKERS: u64 = 8;
    const NAMES: [&str; 4] =
        ["enqueue_cnt", "dequeue_cnt", "dispatch_dequeue_cnt", "change_dequeue_cnt"];
    b.put(loaded, "test_scenario", scenario);
    let start = NAMES.map(|name| b.get(loaded, name));
    b.attach(loaded, "dequeue_ops");
    let workers: Vec<Child> =
        (0..NUM_WORKERS).map(|id| b.spawn(TaskSpec::normal("worker"), worker(id))).collect();
    let hammer = affinity_hammer(b, &workers);
    let hammer = b.spawn(TaskSpec::normal("hammer"), hammer);
    b.wait_exited(&[hammer], seconds(5));
    b.wait_exited(&workers, seconds(20));
    b.detach();
    b.expect_kind(loaded, UNREG);
    let mut at = NAMES.into_iter().zip(start).map(|(name, start)| b.get(loaded, name) - start);
    let [enqueues, dequeues, dispatched, changed] =
        std::array::from_fn(|_| at.next().expect("four"));
    assert_eq!(dequeues, dispatched + changed);
    if [0, 1, 3, 4].contains(&scenario) {
        assert_eq!((enqueues, dequeues), (0, 0), "scenario {scenario} never gives custody");
    } else {
        assert!(enqueues > 100, "scenario {scenario}: {enqueues} enqueues");
        assert_eq!(enqueues, dequeues, "scenario {scenario}: one dequeue for each enqueue");
    }
    changed
}

/// Computes and sleeps 1000 times, then exits.
fn worker(id: u64) -> Script {
    let mut step = 0;
    Box::new(move |ctx| {
        step += 1;
        match step {
            2001.. => TaskStep::Exit,
            _ if step % 2 == 1 => TaskStep::Compute { work: 20_000 },
            _ => ctx.sleep(MS + id * 100_000),
        }
    })
}

/// Pins one worker after the other to one of four CPUs, for 500 ms.
fn affinity_hammer(b: &TestMachine, workers: &[Child]) -> Script {
    let (nr, workers) = (b.nr_cpus() as usize, workers.to_vec());
    let end = b.k.now + 500 * MS;
    let mut i = 0;
    Box::new(move |ctx| {
        if ctx.sys.now() >= end {
            return TaskStep::Exit;
        }
        let cpu = CpuId((i / workers.len() % 4) as u32);
        // Setting the affinity fails if the worker has exited, which does not matter here.
        let _ = ctx.sys.set_affinity(workers[i % workers.len()].task, &CpuMask::of(nr, [cpu]));
        i += 1;
        TaskStep::Compute { work: 10_000 }
    })
}

/// `ops.dequeue` iterates the DSQ from which the task was just taken; this must not lead to an
/// error.
pub fn dequeue_iter(b: &mut TestMachine) {
    background(b);
    let loaded = b.open_and_load("dequeue_iter");
    b.attach(&loaded, "dequeue_iter_ops");
    b.wait(seconds(3), "ten dequeues", |k| {
        get(k, &loaded, "dq_count") >= 10 || get(k, &loaded, "uei.kind") != NONE
    });
    b.detach();
    b.expect_kind(&loaded, UNREG);
    assert!(b.get(&loaded, "dq_count") >= 10);
}

/// Custody ends before a task runs on another CPU, both with LOCAL_ON and with a move to the local
/// DSQ.
pub fn dequeue_remote(b: &mut TestMachine) {
    let mut open = b.open("dequeue_remote");
    let loaded = b.try_load(&mut open).unwrap_or_else(|error| panic!("{error}"));
    for move_to_local in [0, 1] {
        for counter in
            ["enqueue_cnt", "dequeue_cnt", "remote_running_cnt", "core_sched_exec_dequeue_cnt"]
        {
            b.put(&loaded, counter, 0);
        }
        b.put(&loaded, "test_use_move_to_local", move_to_local);
        b.clear(&loaded, "uei");
        b.attach(&loaded, "dequeue_remote_ops");
        let end = b.k.now + seconds(2);
        let nr = u64::from(2 * b.nr_cpus()).clamp(4, 64);
        let workers: Vec<Child> =
            (0..nr).map(|id| b.spawn(TaskSpec::normal("worker"), burst_worker(id, end))).collect();
        b.wait_exited(&workers, seconds(5));
        b.detach();
        b.expect_kind(&loaded, UNREG);
        assert!(b.get(&loaded, "remote_running_cnt") > 0, "some task ran on another CPU");
        assert_eq!(b.get(&loaded, "enqueue_cnt"), b.get(&loaded, "dequeue_cnt"));
        assert_eq!(b.get(&loaded, "missed_dequeue_cnt"), 0);
        assert_eq!(b.get(&loaded, "core_sched_exec_dequeue_cnt"), 0);
    }
}

/// Computes in short bursts. Between bursts, a worker of odd id sleeps, and one of even id yields.
fn burst_worker(id: u64, end: Nanos) -> Script {
    let mut ran = false;
    Box::new(move |ctx| {
        ran = !ran;
        match ran {
            true if ctx.sys.now() >= end => TaskStep::Exit,
            true => TaskStep::Compute { work: 20_000 + id * 1_000 },
            false if id % 2 == 1 => ctx.sleep(100_000),
            false => TaskStep::Yield,
        }
    })
}

/// Peeking returns NULL before an insert and the inserted task after it, and finds tasks in a pool
/// of DSQs.
pub fn peek_dsq(b: &mut TestMachine) {
    background(b);
    let loaded = b.open_and_load("peek_dsq");
    b.attach(&loaded, "peek_dsq_ops");
    for _ in 0..4 {
        b.spawn(TaskSpec::normal("worker"), usleep_and_yield());
    }
    // Start more load than the C test does. On a real machine, the CPUs run other tasks besides the
    // four workers; here they would be idle.
    for _ in 0..2 * b.nr_cpus() {
        b.spawn(TaskSpec::normal("busy"), yielder(100_000));
    }
    b.sleep(3 * SEC);
    let signed = |name: &str| b.get(&loaded, name) as i32;
    assert!(signed("enqueue_count") > 0);
    b.expect_kind(&loaded, NONE);
    assert_ne!(signed("insert_test_cpu"), -1);
    assert_eq!(signed("dsq_peek_result1"), 0);
    assert_eq!(signed("debug_ksym_exists"), 1);
    assert_eq!(b.get(&loaded, "dsq_peek_result2"), b.get(&loaded, "dsq_peek_result2_expected"));
    assert_eq!(b.get(&loaded, "dsq_peek_result2_pid"), b.get(&loaded, "dsq_inserted_pid"));
    assert!(b.get(&loaded, "successful_peeks") as i64 > 0);
    let results = loaded.map("peek_results").expect("a map");
    let seen = (0u32..100).filter(|i| {
        let pid = b.k.vm.map_lookup(results, &i.to_le_bytes()).expect("an element");
        i64::from_le_bytes(pid.try_into().expect("8 bytes")) > 0
    });
    assert!(seen.count() > 0, "pids were seen by peeking");
    b.detach();
    b.expect_kind(&loaded, UNREG);
}

fn usleep_and_yield() -> Script {
    let mut slept = false;
    Box::new(move |ctx| {
        slept = !slept;
        if slept { ctx.sleep(MS) } else { TaskStep::Yield }
    })
}

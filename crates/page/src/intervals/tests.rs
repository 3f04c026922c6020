// SPDX-License-Identifier: GPL-2.0-only

use std::io::Read;

use flate2::read::ZlibDecoder;
use proptest::prelude::*;
use scxlab_machine::Machine;
use scxlab_trace::TaskName;

use super::*;

#[test]
fn a_bucket_holds_its_time_and_is_at_most_a_fifteenth_wide() {
    for wait in (0..200_000).chain([u64::MAX, 1 << 40]) {
        let limit = bucket(wait);
        assert!(limit >= wait && limit - wait <= wait / 15, "{wait}: {limit}");
        assert_eq!(bucket(limit), limit);
    }
}

#[test]
fn parts_and_edges_agree() {
    for (start, end) in [(0, 1), (7, 8), (5, 1_000_003), (0, u64::MAX)] {
        for at in 0..PARTS {
            let from = edge(at, start, end);
            assert!(from >= end || part(from, start, end) >= at);
            assert!(from <= start || part(from - 1, start, end) < at.max(1));
        }
    }
}

fn names(tasks: u32) -> Names {
    let mut names = Names::default();
    for task in 0..tasks {
        let (pid, comm) = (task + 1, format!("t{task}"));
        names.set_task(TaskId(task), TaskName { pid, tgid: pid, comm, prio: 120 });
    }
    names
}

fn pack(events: &[(Nanos, u32, EventKind)], machine: &str) -> Packed {
    let (mut sink, collected) = IntervalSink::new();
    let names = names(8);
    for &(time, cpu, kind) in events {
        sink.event(&Event { time, cpu: CpuId(cpu), kind }, &names);
    }
    collected.pack(&Machine::from_spec(machine).unwrap().topology, "s", 1, "block")
}

fn switch(prev: Option<u32>, next: Option<u32>, prev_state: PrevState) -> EventKind {
    EventKind::Switch { prev: prev.map(TaskId), next: next.map(TaskId), prev_state }
}

/// Returns all numbers of the columns.
fn numbers(packed: &Packed) -> Vec<u64> {
    let mut raw = Vec::new();
    ZlibDecoder::new(&packed.bytes[..]).read_to_end(&mut raw).unwrap();
    let mut all = Vec::new();
    let (mut value, mut shift) = (0, 0);
    for byte in raw {
        value |= u64::from(byte & 127) << shift;
        shift += 7;
        if byte < 128 {
            all.push(value);
            (value, shift) = (0, 0);
        }
    }
    all
}

/// A task waits after a wake-up, then after its preemption, in a queue that is known.
#[test]
fn an_interval_tells_how_it_came_and_went() {
    let woken = |task, waker| EventKind::Wakeup {
        task: TaskId(task),
        target: CpuId(0),
        waker: Some(TaskId(waker)),
    };
    let insert = EventKind::DsqInsert { task: TaskId(1), dsq: 7, flags: 0 };
    let packed = pack(
        &[
            (100, 0, switch(None, Some(0), PrevState::Runnable)),
            (150, 0, woken(1, 0)),
            (150, 0, insert),
            (200, 0, switch(Some(0), Some(1), PrevState::Sleeping)),
            (230, 0, switch(Some(1), None, PrevState::Runnable)),
            (270, 1, switch(None, Some(1), PrevState::Runnable)),
            (300, 1, switch(Some(1), None, PrevState::Exited)),
        ],
        "1n2c1t",
    );
    assert_eq!(packed.timeline.counts, [2, 1]);
    assert_eq!(packed.timeline.queues, [dsq(7)]);
    let columns: Vec<Vec<u64>> = numbers(&packed).chunks(3).map(<[u64]>::to_vec).collect();
    let (slept, preempted, exited) = (1, 0, 2);
    let expected: [[u64; 3]; 7] = [
        [0, 0, 170],                         // gaps
        [100, 30, 30],                       // lengths
        [0, 1, 1],                           // tasks
        [0, 50, 40],                         // waits
        [slept, preempted | 1 << 2, exited], // how
        [0, 1, 0],                           // wakers
        [0, 1, 0],                           // queues
    ];
    assert_eq!(columns, expected);
    assert_eq!((packed.waits.limits, packed.waits.counts), (vec![bucket(50)], vec![1]));
}

#[test]
fn a_reused_id_is_another_task() {
    let (mut sink, collected) = IntervalSink::new();
    let mut names = names(1);
    let mut at = 0;
    for pid in [1, 9] {
        let task = TaskName { pid, tgid: pid, comm: format!("p{pid}"), prio: 120 };
        names.set_task(TaskId(0), task);
        for kind in
            [switch(None, Some(0), PrevState::Runnable), switch(Some(0), None, PrevState::Exited)]
        {
            at += 10;
            sink.event(&Event { time: at, cpu: CpuId(0), kind }, &names);
        }
    }
    let machine = Machine::from_spec("1n1c1t").unwrap();
    let tasks = collected.pack(&machine.topology, "s", 1, "b").timeline.tasks;
    assert_eq!(tasks.iter().map(|task| task.name.as_str()).collect::<Vec<_>>(), ["p1", "p9"]);
}

#[test]
fn lost_events_and_unknown_cpus_are_told_or_left_out() {
    let packed = pack(
        &[
            (0, 0, switch(None, Some(0), PrevState::Runnable)),
            (5, 9, switch(None, Some(1), PrevState::Runnable)),
            (9, 0, EventKind::Lost { events: 0 }),
        ],
        "1n1c1t",
    );
    assert_eq!(packed.timeline.counts, [1]);
    assert!(packed.timeline.cut.unwrap().contains("lost 1 events"));
}

proptest! {
    /// Random switches: the busy time of the columns and of the nodes is that of the events.
    #[test]
    fn busy_time_is_conserved(steps in prop::collection::vec((0..4u32, 1..1000u64, prop::option::of(0..8u32)), 1..200)) {
        let mut running: [Option<(u32, Nanos)>; 4] = [None; 4];
        let (mut now, mut busy, mut events) = (0, 0, Vec::new());
        for (cpu, later, next) in steps {
            now += later;
            let next = next.filter(|next| running.iter().flatten().all(|(task, _)| task != next));
            let prev = running[cpu as usize].take();
            if prev.is_none() && next.is_none() {
                continue;
            }
            busy += prev.map_or(0, |(_, since)| now - since);
            running[cpu as usize] = next.map(|next| (next, now));
            events.push((now, cpu, switch(prev.map(|(task, _)| task), next, PrevState::Sleeping)));
        }
        let last = events.last().map_or(0, |(time, ..)| *time);
        busy += running.iter().flatten().map(|(_, since)| last - since).sum::<u64>();
        prop_assume!(events.first().is_some_and(|(first, ..)| *first < last));
        let packed = pack(&events, "2n2c1t");
        let count: usize = packed.timeline.counts.iter().sum();
        let lengths: u64 = numbers(&packed)[count..2 * count].iter().sum();
        prop_assert_eq!(lengths, busy);
        prop_assert_eq!(packed.timeline.residency.iter().flatten().sum::<u64>(), busy);
    }
}

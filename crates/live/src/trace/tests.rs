// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the conversion of the probe's records to trace events: names, times, order, losses,
//! exits.

use scxlab_trace::VecSink;

use super::*;
use crate::job::Reply;

const FROM: u64 = 1_000;

fn task(pid: u32, comm: &str) -> Task {
    let mut bytes = [0xff; 16];
    bytes[..comm.len()].copy_from_slice(comm.as_bytes());
    bytes[comm.len()] = 0;
    Task { pid, tgid: pid, prio: 120, comm: bytes }
}

fn nobody() -> Task {
    task(0, "")
}

fn record(at: u64, cpu: u32, kind: u32, task: Task, other: Task, arg: [u32; 2]) -> Record {
    Record { at, cpu, kind, task, other, arg }
}

fn recording(records: &[Record]) -> Recording {
    let bytes = bytemuck::cast_slice(records).to_vec();
    Recording { from: FROM, until: 2_000, len: bytes.len(), records: bytes, ..Recording::default() }
}

fn replayed(recording: &Recording, exit: &Exit) -> (VecSink, Names) {
    let mut tracer = Tracer::with_sink(VecSink::default());
    recording.replay(exit, &mut tracer);
    let names = tracer.names.clone();
    (tracer.take_sink().expect("it was put in"), names)
}

/// Records of a task that forks and wakes a second task. The second task changes its name before
/// it is woken up, migrates, runs and ends.
fn story() -> Vec<Record> {
    let (waker, worker) = (task(7, "waker"), task(8, "worker"));
    vec![
        record(990, 0, SWITCH, nobody(), waker, [0; 2]),
        record(1_000, 0, FORK, task(8, "waker"), waker, [0; 2]),
        record(1_030, 2, SWITCH, nobody(), worker, [0; 2]),
        record(1_010, 0, WAKEUP, worker, waker, [1, 0]),
        record(1_020, 0, MIGRATE, worker, nobody(), [1, 2]),
        record(1_500, 2, SWITCH, worker, nobody(), [DEAD, 0]),
        record(2_001, 0, SWITCH, waker, nobody(), [SLEEPING, 0]),
    ]
}

#[test]
fn records_become_events_in_order_of_time() {
    let recording = recording(&story());
    let (sink, names) = replayed(&recording, &Exit::none());
    let (a, b) = (TaskId(1), TaskId(0));
    let expected = [
        (0, 0, EventKind::Fork { parent: Some(a), child: b }),
        (10, 0, EventKind::Wakeup { task: b, target: CpuId(1), waker: Some(a) }),
        (20, 0, EventKind::Migrate { task: b, from: CpuId(1), to: CpuId(2) }),
        (30, 2, EventKind::Switch { prev: None, next: Some(b), prev_state: PrevState::Runnable }),
        (500, 2, EventKind::Exit { task: b }),
        (500, 2, EventKind::Switch { prev: Some(b), next: None, prev_state: PrevState::Exited }),
    ];
    let expected = expected.map(|(time, cpu, kind)| Event { time, cpu: CpuId(cpu), kind });
    assert_eq!(sink.events, expected);
    assert_eq!(names.task(b).map(|t| (t.pid, t.comm.as_str())), Some((8, "worker")));
    assert_eq!(recording.counts(), TraceCounts { events: 5, lost: 0 });
}

#[test]
fn losses_and_an_exit_stand_where_they_belong() {
    let lost = vec![3, 0, 4];
    let recording = Recording { lost, ..recording(&story()) };
    assert_eq!(recording.counts(), TraceCounts { events: 5, lost: 7 });
    let exit = |at_ns| Exit {
        kind: "error_stall".into(),
        message: "failed to run".into(),
        at_ns,
        ..Exit::none()
    };
    let of = |kind: fn(&EventKind) -> bool, at_ns| {
        let (sink, _) = replayed(&recording, &exit(at_ns));
        let found = sink.events.iter().filter(|e| kind(&e.kind));
        found.map(|e| (e.time, e.cpu.0, e.kind)).collect::<Vec<_>>()
    };
    let is_loss: fn(&EventKind) -> bool = |kind| matches!(kind, EventKind::Lost { .. });
    let losses = [(500, 0, EventKind::Lost { events: 3 }), (500, 2, EventKind::Lost { events: 4 })];
    assert_eq!(of(is_loss, None), losses);
    let is_exit: fn(&EventKind) -> bool = |kind| matches!(kind, EventKind::SchedExit { .. });
    let left = EventKind::SchedExit { kind: 1026, code: 0 };
    // The scheduler's exit must get the time of the first event after it. An exit after the last
    // event must keep its own time. An exit at an unknown time must get the time of the last event.
    for (at_ns, shown) in [(Some(15), 20), (Some(700), 700), (None, 500)] {
        assert_eq!(of(is_exit, at_ns), [(shown, 0, left)]);
    }
    let (sink, _) = replayed(&recording, &exit(None));
    assert_eq!(
        sink.texts.iter().map(|(_, text)| text.as_str()).collect::<Vec<_>>(),
        ["failed to run"]
    );
}

/// A reply must read back with its recordings, although their records may contain any bytes, line
/// breaks included.
#[test]
fn recordings_travel_behind_the_reply() {
    let first = recording(&story());
    let second =
        Recording { scheduler: 1, len: 3, records: b"\n\0\n".to_vec(), ..Recording::default() };
    let recordings = vec![first.clone(), second.clone()];
    let reply = Reply::Runs { kernel: "7.3\n".into(), runs: Vec::new(), recordings };
    let back = Reply::from_bytes(&reply.to_bytes()).expect("it reads back");
    let Reply::Runs { kernel, recordings, .. } = back else { panic!("another reply: {back:?}") };
    assert_eq!(kernel, "7.3\n");
    let parts = |r: &Recording| (r.scheduler, r.from, r.until, r.records.clone());
    assert_eq!(recordings.iter().map(parts).collect::<Vec<_>>(), [parts(&first), parts(&second)]);
    let other = Reply::Observed { kernel: "7.3".into(), cases: Vec::new() };
    assert!(matches!(Reply::from_bytes(&other.to_bytes()), Ok(Reply::Observed { .. })));
}

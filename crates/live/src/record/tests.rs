// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the conversion of the recorder's records to events: names, times, order, losses, calls.

use scxlab_machine::{CpuId, TaskId};
use scxlab_trace::{Call, ChannelKind, Event, EventKind, Names, PrevState, Sink, VecSink};

use super::cgroups::Cgroups;
use super::convert::{Converter, Totals};
use crate::abi::record as abi;

const FROM: u64 = 1_000;

/// A record as bytes.
fn record<T: bytemuck::Pod>(record: &T) -> Vec<u8> {
    bytemuck::bytes_of(record).to_vec()
}

fn head(at: u64, cpu: u16, kind: u32, task: u32) -> abi::record_head {
    abi::record_head { at, task, cpu, kind: kind as u16 }
}

fn event(at: u64, cpu: u16, kind: u32, task: u32, arg: [u32; 2]) -> Vec<u8> {
    record(&abi::record_event { head: head(at, cpu, kind, task), arg })
}

fn name(at: u64, pid: u32, comm: &str) -> Vec<u8> {
    let mut bytes = [0xff; 16];
    bytes[..comm.len()].copy_from_slice(comm.as_bytes());
    bytes[comm.len()] = 0;
    let head = head(at, 0, abi::RECORD_TASK, pid);
    record(&abi::record_task { head, tgid: pid, prio: 120, comm: bytes })
}

fn call(at: u64, task: u32, call: u32, channel: u32, value: Option<u64>) -> Vec<u8> {
    record(&abi::record_call {
        head: head(at, 0, abi::RECORD_CALL, task),
        call: call as u16,
        channel: channel as u16,
        has_value: u32::from(value.is_some()),
        object: 77,
        value: value.unwrap_or(0),
    })
}

/// Keeps the events, and the name of the tasks at each switch to one.
#[derive(Default)]
struct Kept {
    sink: VecSink,
    ran: Vec<(u32, String)>,
}

impl Sink for Kept {
    fn event(&mut self, event: &Event, names: &Names) {
        if let EventKind::Switch { next: Some(next), .. } = event.kind {
            let name = names.task(next).expect("every task has a name");
            self.ran.push((name.pid, name.comm.clone()));
        }
        self.sink.event(event, names);
    }

    fn finish(&mut self) -> std::io::Result<()> {
        self.sink.finish()
    }
}

fn converted(records: &[Vec<u8>]) -> (Kept, Totals) {
    let mut kept = Kept::default();
    let mut converter = Converter::new(&mut kept, Cgroups::none(4), 4);
    converter.start(FROM);
    records.iter().for_each(|bytes| converter.take(bytes));
    converter.end(5_000);
    converter.release(u64::MAX);
    let totals = converter.totals();
    (kept, totals)
}

fn kinds(kept: &Kept) -> Vec<(u64, u32, EventKind)> {
    kept.sink.events.iter().map(|e| (e.time, e.cpu.0, e.kind)).collect()
}

#[test]
fn records_become_events_in_order_of_time() {
    let (kept, totals) = converted(&[
        name(0, 7, "waker"),
        event(990, 0, abi::RECORD_SWITCH, 0, [7, abi::STATE_RUNNABLE]),
        name(1_000, 8, "waker"),
        event(1_000, 0, abi::RECORD_FORK, 8, [7, 0]),
        event(1_030, 2, abi::RECORD_SWITCH, 0, [8, abi::STATE_RUNNABLE]),
        event(1_010, 0, abi::RECORD_WAKEUP, 8, [7, 1]),
        event(1_020, 0, abi::RECORD_MIGRATE, 8, [1, 2]),
        event(1_100, 2, abi::RECORD_SWITCH, 8, [0, abi::STATE_UNINTERRUPTIBLE]),
        event(1_200, 3, abi::RECORD_WAKEUP, 8, [0, 2]),
        event(5_001, 0, abi::RECORD_SWITCH, 7, [0, abi::STATE_SLEEPING]),
    ]);
    let (waker, worker) = (TaskId(0), TaskId(1));
    let switch = |prev, next, prev_state| EventKind::Switch { prev, next, prev_state };
    let wakeup = |waker, target| EventKind::Wakeup { task: worker, target: CpuId(target), waker };
    let expected = [
        (0, 0, EventKind::Fork { parent: Some(waker), child: worker }),
        (10, 0, wakeup(Some(waker), 1)),
        (20, 0, EventKind::Migrate { task: worker, from: CpuId(1), to: CpuId(2) }),
        (30, 2, switch(None, Some(worker), PrevState::Runnable)),
        (100, 2, switch(Some(worker), None, PrevState::Uninterruptible)),
        (200, 3, wakeup(None, 2)),
    ];
    // The parent of the fork is looked up first, so it gets the first id.
    assert_eq!(kinds(&kept), expected);
    assert_eq!((totals.events, totals.calls, totals.lost), (6, 0, 0));
}

#[test]
fn a_pid_that_is_used_again_is_another_task() {
    let (kept, _) = converted(&[
        name(1_000, 8, "first"),
        event(1_000, 0, abi::RECORD_SWITCH, 0, [8, abi::STATE_RUNNABLE]),
        event(1_100, 0, abi::RECORD_SWITCH, 8, [0, abi::STATE_DEAD]),
        name(1_200, 8, "second"),
        event(1_200, 1, abi::RECORD_SWITCH, 0, [8, abi::STATE_RUNNABLE]),
        // The record of this task's name was lost.
        event(1_300, 2, abi::RECORD_SWITCH, 0, [9, abi::STATE_RUNNABLE]),
    ]);
    let exits = kinds(&kept).iter().filter(|(.., k)| matches!(k, EventKind::Exit { .. })).count();
    assert_eq!(exits, 1);
    // Names are learned when they are drained, so the last name of the pid stands at both.
    let ran: Vec<_> = kept.ran.iter().map(|(pid, comm)| (*pid, comm.as_str())).collect();
    assert_eq!(ran, [(8, "second"), (8, "second"), (9, "pid 9")]);
}

#[test]
fn calls_have_their_meaning() {
    let pipe = abi::CHANNEL_PIPE;
    let records = [
        name(0, 7, "a"),
        call(1_001, 7, abi::CALL_FUTEX_WAIT, 0, None),
        call(1_002, 7, abi::CALL_FUTEX_WAIT, 0, Some(5)),
        call(1_003, 7, abi::CALL_FUTEX_WAKE, 0, Some(1 << 40)),
        call(1_004, 7, abi::CALL_WRITE, pipe, Some(3)),
        call(1_005, 7, abi::CALL_READ, abi::CHANNEL_EVENTFD, Some(4)),
        call(1_006, 7, abi::CALL_POLL, 0, None),
        call(1_007, 7, abi::CALL_SLEEP_UNTIL, 0, Some(FROM + 99)),
        call(1_008, 7, abi::CALL_SLEEP_UNTIL, 0, Some(FROM - 1)),
        call(1_009, 7, abi::CALL_COUNT, 0, Some(2)),
        // A reader of another version may write kinds that this version does not know.
        call(1_010, 7, 99, 0, None),
        call(1_011, 7, abi::CALL_WRITE, 99, Some(1)),
    ];
    let (kept, totals) = converted(&records);
    let object = 77;
    let expected = [
        Call::FutexWait { object, timeout: None },
        Call::FutexWait { object, timeout: Some(5) },
        Call::FutexWake { object, most: u32::MAX },
        Call::Write { object, kind: ChannelKind::Pipe, bytes: 3 },
        Call::Read { object, kind: ChannelKind::EventFd, bytes: 4 },
        Call::Poll { timeout: None },
        Call::SleepUntil { at: 99 },
        Call::SleepUntil { at: 0 },
        Call::Count { units: 2 },
    ];
    let task = TaskId(0);
    let expected: Vec<_> = expected
        .into_iter()
        .zip(1..)
        .map(|(call, time)| (time, 0, EventKind::Call { task, call }))
        .collect();
    assert_eq!(kinds(&kept), expected);
    assert_eq!(totals.calls, 9);
}

#[test]
fn losses_are_events_at_the_time_at_which_they_were_noticed() {
    let mut kept = Kept::default();
    let mut converter = Converter::new(&mut kept, Cgroups::none(2), 2);
    converter.start(FROM);
    let counts = |lost: [u64; 2]| lost.map(|lost| abi::record_counts { lost, unread: 1 });
    converter.count(&counts([0, 0]));
    converter.take(&event(1_050, 1, abi::RECORD_SWITCH, 0, [0, abi::STATE_RUNNABLE]));
    converter.release(2_000);
    converter.count(&counts([0, 3]));
    converter.count(&counts([0, 5]));
    let totals = converter.totals();
    assert_eq!((totals.lost, totals.unread), (5, 2));
    let lost: Vec<_> = kinds(&kept).into_iter().skip(1).collect();
    let kind = |events| EventKind::Lost { events };
    assert_eq!(lost, [(50, 1, kind(3)), (50, 1, kind(2))]);
}

/// Records of a damaged length are left out; nothing panics.
#[test]
fn half_records_are_left_out() {
    let whole = event(1_010, 0, abi::RECORD_WAKEUP, 8, [7, 1]);
    let halves: Vec<Vec<u8>> = (0..whole.len()).map(|len| whole[..len].to_vec()).collect();
    let (kept, _) = converted(&halves);
    assert_eq!(kinds(&kept), []);
}

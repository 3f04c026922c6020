// SPDX-License-Identifier: GPL-2.0-only
//! Traces of Perfetto's own recorder, encoded with Perfetto's own definitions.

use std::io::Write;

use flate2::Compression;
use flate2::write::{GzEncoder, ZlibEncoder};
use perfetto_protos::ftrace_event::FtraceEvent;
use perfetto_protos::ftrace_event::ftrace_event::Event as Raw;
use perfetto_protos::ftrace_event_bundle::ftrace_event_bundle::CompactSched;
use perfetto_protos::ftrace_event_bundle::{FtraceClock, FtraceEventBundle};
use perfetto_protos::ftrace_stats::ftrace_stats::Phase;
use perfetto_protos::ftrace_stats::{FtraceCpuStats, FtraceStats};
use perfetto_protos::power::CpuFrequencyFtraceEvent;
use perfetto_protos::process_tree::ProcessTree;
use perfetto_protos::process_tree::process_tree::{Process, Thread};
use perfetto_protos::sched::{SchedProcessForkFtraceEvent, SchedWakeupNewFtraceEvent};
use perfetto_protos::task::TaskNewtaskFtraceEvent;
use perfetto_protos::trace::Trace;
use perfetto_protos::trace_packet::TracePacket;
use perfetto_protos::trace_packet::trace_packet::Data;
use protobuf::{EnumOrUnknown, Message};
use scxlab_machine::{CpuId, Nanos};

use super::*;
use crate::event::PrevState;

fn file(packets: impl IntoIterator<Item = Data>) -> Vec<u8> {
    let packet = |data| TracePacket { data: Some(data), ..TracePacket::default() };
    let packet = packets.into_iter().map(packet).collect();
    Trace { packet, ..Trace::default() }.write_to_bytes().unwrap()
}

fn bundle(cpu: u32, event: Vec<FtraceEvent>) -> FtraceEventBundle {
    FtraceEventBundle { cpu: Some(cpu), event, ..FtraceEventBundle::default() }
}

fn event(time: Nanos, pid: u32, event: Raw) -> FtraceEvent {
    FtraceEvent {
        timestamp: Some(time),
        pid: Some(pid),
        event: Some(event),
        ..FtraceEvent::default()
    }
}

/// CPU 0: task 7 runs from 1000, wakes task 8 at 1100, sleeps at 1500; an interrupt wakes it at
/// 1600.
fn compact() -> CompactSched {
    CompactSched {
        intern_table: ["seven", "eight", "swapper/0"].map(String::from).to_vec(),
        switch_timestamp: vec![1000, 500],
        switch_prev_state: vec![0, 1],
        switch_next_pid: vec![7, 0],
        switch_next_prio: vec![120, 120],
        switch_next_comm_index: vec![0, 2],
        waking_timestamp: vec![1100, 500],
        waking_pid: vec![8, 7],
        waking_target_cpu: vec![1, 0],
        waking_prio: vec![100, 120],
        waking_comm_index: vec![1, 0],
        waking_common_flags: vec![1, 0x10],
        ..CompactSched::default()
    }
}

fn of_compact(sched: CompactSched) -> FtraceEventBundle {
    FtraceEventBundle { compact_sched: Some(sched).into(), ..bundle(0, Vec::new()) }
}

fn kinds(seen: &[Seen]) -> Vec<(Nanos, EventKind)> {
    seen.iter().map(|seen| (seen.event.time, seen.event.kind)).collect()
}

fn wakeup(task: u32, target: u32, waker: Option<u32>) -> EventKind {
    EventKind::Wakeup { task: TaskId(task), target: CpuId(target), waker: waker.map(TaskId) }
}

fn switch(prev: Option<u32>, prev_state: PrevState, next: Option<u32>) -> EventKind {
    EventKind::Switch { prev: prev.map(TaskId), next: next.map(TaskId), prev_state }
}

#[test]
fn compact_switches_and_wakeups_are_read() {
    let (seen, imported) = read(&file([Data::FtraceEvents(of_compact(compact()))]));
    let expected = [
        (0, switch(None, PrevState::Runnable, Some(7))),
        (100, wakeup(8, 1, Some(7))),
        (500, switch(Some(7), PrevState::Sleeping, None)),
        (600, wakeup(7, 0, None)),
    ];
    assert_eq!(kinds(&seen), expected);
    let names: Vec<_> = seen[1].names.iter().map(|name| (&*name.comm, name.prio)).collect();
    assert_eq!(names, [("eight", 100)]);
    assert_eq!(imported.tasks_faults.without_prev, 1, "the task before the first switch");
    assert_eq!((imported.start, imported.blind_wakeups), (1000, 0));
}

/// Older recorders write no flags, and lists of different lengths are damage.
#[test]
fn compact_lists_may_be_short() {
    let without_flags = CompactSched { waking_common_flags: Vec::new(), ..compact() };
    let (seen, imported) = read(&file([Data::FtraceEvents(of_compact(without_flags))]));
    assert_eq!((seen.len(), imported.blind_wakeups, imported.unknown.count), (4, 2, 0));
    let without_tasks = CompactSched { switch_next_pid: vec![7], ..compact() };
    let (seen, imported) = read(&file([Data::FtraceEvents(of_compact(without_tasks))]));
    assert_eq!((seen.len(), imported.unknown.count), (3, 1));
}

#[test]
fn bundles_of_cpus_are_merged_by_time() {
    let migrate = |task| {
        let mut event = SchedWakeupNewFtraceEvent::new();
        event.set_pid(task);
        event.set_target_cpu(0);
        Raw::SchedWakeupNew(event)
    };
    let (seen, imported) = read(&file([
        Data::FtraceEvents(bundle(3, vec![event(50, 1, migrate(5)), event(90, 1, migrate(6))])),
        Data::FtraceEvents(bundle(1, vec![event(40, 2, migrate(7)), event(60, 2, migrate(8))])),
    ]));
    let expected = [
        (0, wakeup(7, 0, Some(2))),
        (10, wakeup(5, 0, Some(1))),
        (20, wakeup(8, 0, Some(2))),
        (50, wakeup(6, 0, Some(1))),
    ];
    assert_eq!(kinds(&seen), expected);
    assert_eq!(imported.cpus.iter().copied().collect::<Vec<_>>(), [CpuId(1), CpuId(3)]);
}

#[test]
fn processes_follow_from_lists_and_forks() {
    let tree = ProcessTree {
        processes: vec![Process { pid: Some(10), ..Process::default() }],
        threads: vec![Thread { tid: Some(11), tgid: Some(10), ..Thread::default() }],
        ..ProcessTree::default()
    };
    let new = |pid, flags| {
        let mut task = TaskNewtaskFtraceEvent::new();
        task.set_pid(pid);
        task.set_comm(format!("new{pid}"));
        task.set_clone_flags(flags);
        Raw::TaskNewtask(task)
    };
    let mut fork = SchedProcessForkFtraceEvent::new();
    fork.set_parent_pid(11);
    fork.set_child_pid(12);
    let woken = |pid| {
        let mut event = SchedWakeupNewFtraceEvent::new();
        event.set_pid(pid);
        event.set_target_cpu(0);
        Raw::SchedWakeupNew(event)
    };
    let events = vec![
        event(1, 11, new(12, 0x3d_0f00)),
        event(1, 11, Raw::SchedProcessFork(fork)),
        event(2, 11, woken(12)),
        event(3, 11, new(13, 0x120_0000)),
        event(4, 11, woken(13)),
        event(5, 11, woken(99)),
    ];
    let packets = [Data::ProcessTree(tree), Data::FtraceEvents(bundle(0, events))];
    let (seen, imported) = read(&file(packets));
    let names: Vec<_> = seen.iter().flat_map(|seen| &seen.names).collect();
    let names: Vec<_> = names.iter().map(|name| (name.pid, name.tgid, &*name.comm)).collect();
    assert_eq!(names, [(12, 10, "new12"), (13, 13, "new13"), (99, 99, ":99")]);
    assert_eq!((imported.events.forks, imported.without_process), (2, 1));
}

#[test]
fn lost_events_clocks_and_strange_events_are_told() {
    let stats = |phase, overrun, dropped| {
        let cpu = FtraceCpuStats {
            cpu: Some(1),
            overrun: Some(overrun),
            dropped_events: Some(dropped),
            ..FtraceCpuStats::default()
        };
        Data::FtraceStats(FtraceStats {
            phase: Some(EnumOrUnknown::new(phase)),
            cpu_stats: vec![cpu],
            ..FtraceStats::default()
        })
    };
    let mut wakeup = SchedWakeupNewFtraceEvent::new();
    wakeup.set_pid(5);
    wakeup.set_target_cpu(0);
    let frequency = Raw::CpuFrequency(CpuFrequencyFtraceEvent::new());
    let events = vec![event(5, 1, frequency), event(7, 1, Raw::SchedWakeupNew(wakeup))];
    let lossy = FtraceEventBundle {
        lost_events: Some(true),
        ftrace_clock: Some(EnumOrUnknown::new(FtraceClock::FTRACE_CLOCK_LOCAL)),
        ..bundle(0, events)
    };
    let (seen, imported) = read(&file([
        stats(Phase::START_OF_TRACE, 10, 1),
        Data::FtraceEvents(lossy),
        stats(Phase::END_OF_TRACE, 15, 3),
    ]));
    assert_eq!(kinds(&seen)[0], (0, EventKind::Lost { events: 0 }));
    assert_eq!(seen.len(), 2);
    let lost: Vec<_> = imported.lost.into_iter().collect();
    assert_eq!(lost, [(CpuId(0), 0), (CpuId(1), 7)]);
    assert_eq!(imported.clock, Clock::Local);
    let first = imported.unknown.first.unwrap().1;
    assert_eq!((imported.unknown.count, &*first), (1, "an ftrace event with the field number 11"));
}

#[test]
fn compressed_files_and_packets_are_read() {
    let whole = file([Data::FtraceEvents(of_compact(compact()))]);
    let (expected, _) = read(&whole);
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(&whole).unwrap();
    let gzip = gzip.finish().unwrap();
    assert_eq!(read(&gzip).0, expected);
    let (_, cut) = read(&gzip[..gzip.len() - 10]);
    assert_eq!(cut.end, End::Compressed);

    let mut zlib = ZlibEncoder::new(Vec::new(), Compression::fast());
    zlib.write_all(&whole).unwrap();
    let zlib = zlib.finish().unwrap();
    let (seen, imported) = read(&file([Data::CompressedPackets(zlib.clone())]));
    assert_eq!((seen, imported.unknown.count), (expected, 0));
    let half = zlib[..zlib.len() / 2].to_vec();
    assert_eq!(read(&file([Data::CompressedPackets(half)])).1.unknown.count, 1);
    // A compressed packet in a compressed packet would be a bomb.
    let mut nested = ZlibEncoder::new(Vec::new(), Compression::fast());
    nested.write_all(&file([Data::CompressedPackets(zlib)])).unwrap();
    let nested = file([Data::CompressedPackets(nested.finish().unwrap())]);
    let (seen, imported) = read(&nested);
    assert_eq!((seen.len(), imported.unknown.count), (0, 1));
}

#[test]
fn files_of_other_programs_are_refused_by_name() {
    let refused = |bytes: &[u8]| {
        let error = import("f", bytes, &mut Reader::default()).unwrap_err();
        error.to_string()
    };
    assert_eq!(refused(b""), "f is empty");
    assert!(refused(b"PERFILE2\0\0").contains("perf script"));
    assert!(refused(b"\x17\x08\x44tracing6\0").contains("trace-cmd report"));
    assert!(refused(b"\x28\xb5\x2f\xfd\0").contains("unzstd"));
    assert!(refused(b"hello\nworld\n").contains("no trace"));
    assert!(refused(b"\x7fELF\x02\x01\x01\0").contains("no trace"));
}

/// Of a file without events everything is missing, and that is no error.
#[test]
fn a_trace_without_events_is_told() {
    let (seen, imported) = read(&file([Data::FtraceEvents(bundle(0, Vec::new()))]));
    assert_eq!((seen.len(), imported.events.all(), imported.tasks), (0, 0, 0));
    assert!(imported.missing()[0].starts_with("no context switches"));
}

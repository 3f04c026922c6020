// SPDX-License-Identifier: GPL-2.0-only
//! Perfetto files, decoded with Perfetto's own definitions: content as a reader sees it, bounded
//! memory, deterministic bytes.

use std::collections::{BTreeMap, BTreeSet};

use perfetto_protos::ftrace_event::FtraceEvent;
use perfetto_protos::ftrace_event::ftrace_event::Event as Raw;
use perfetto_protos::ftrace_stats::ftrace_stats::Phase;
use perfetto_protos::process_tree::ProcessTree;
use perfetto_protos::trace::Trace;
use perfetto_protos::trace_packet::trace_packet::Data;
use perfetto_protos::track_event::TrackEvent;
use perfetto_protos::track_event::track_event::Type::{
    self, TYPE_COUNTER, TYPE_INSTANT, TYPE_SLICE_BEGIN, TYPE_SLICE_END,
};
use proptest::prelude::*;
use protobuf::descriptor::field_descriptor_proto::Type as Written;
use protobuf::reflect::{FieldDescriptor, MessageDescriptor, RuntimeFieldType, RuntimeType};
use protobuf::{Message, MessageFull};
use scxlab_machine::{CgroupId, CpuId, TaskId};

use super::*;
use crate::event::PrevState;
use crate::names::TaskName;
use crate::tracer::Tracer;

fn machine(spec: &str) -> Machine {
    Machine::from_spec(spec).unwrap()
}

fn tracer() -> Tracer {
    Tracer::with_sink(PerfettoSink::new(Vec::new(), &machine("2n1c2t")))
}

fn bytes(mut tracer: Tracer) -> Vec<u8> {
    tracer.finish().unwrap();
    tracer.take_sink::<PerfettoSink<Vec<u8>>>().unwrap().into_inner()
}

fn decode(tracer: Tracer) -> Trace {
    Trace::parse_from_bytes(&bytes(tracer)).unwrap()
}

fn name(tracer: &mut Tracer, task: u32, pid: u32, tgid: u32, comm: &str) {
    tracer.names.set_task(TaskId(task), TaskName { pid, tgid, comm: comm.to_owned(), prio: 120 });
}

fn emit(tracer: &mut Tracer, time: u64, cpu: u32, kind: EventKind) {
    tracer.emit(Event { time, cpu: CpuId(cpu), kind });
}

fn switch(prev: Option<u32>, next: Option<u32>, prev_state: PrevState) -> EventKind {
    EventKind::Switch { prev: prev.map(TaskId), next: next.map(TaskId), prev_state }
}

/// Returns kernel events with the CPU of their bundle, in order of time, without the machine.
fn ftrace(trace: &Trace) -> Vec<(u32, FtraceEvent)> {
    let bundles = trace.packet.iter().map(|packet| packet.ftrace_events());
    let mut events: Vec<_> = bundles
        .flat_map(|bundle| bundle.event.iter().map(|event| (bundle.cpu.unwrap(), event.clone())))
        .collect();
    let is_machine = |event: &FtraceEvent| match &event.event {
        Some(Raw::Generic(generic)) => generic.event_name() == "scxlab_machine",
        _ => false,
    };
    events.retain(|(_, event)| !is_machine(event));
    events.sort_by_key(|(_, event)| event.timestamp);
    events
}

fn trees(trace: &Trace) -> impl Iterator<Item = &ProcessTree> {
    trace.packet.iter().filter(|packet| packet.has_process_tree()).map(|p| p.process_tree())
}

/// Returns the events of scxlab's own tracks as a reader decodes them: (track, time, type, name).
/// By the format's rule, the packet that defines an interned name and all later packets may use it.
fn tracks(trace: &Trace) -> Vec<(String, u64, Type, String)> {
    let mut names = BTreeMap::new();
    let mut titles = BTreeMap::new();
    let mut seen = Vec::new();
    for packet in &trace.packet {
        for interned in &packet.interned_data.event_names {
            let earlier = names.insert(interned.iid(), interned.name().to_owned());
            assert_eq!(earlier, None, "a number means one name");
        }
        match &packet.data {
            Some(Data::TrackDescriptor(track)) => {
                let parent = track.parent_uuid.map(|uuid| &titles[&uuid]);
                let title = track.name().to_owned();
                let title = parent.map_or(title.clone(), |parent| format!("{parent}/{title}"));
                let earlier = titles.insert(track.uuid(), title);
                assert_eq!(earlier, None, "a track is described once");
            }
            Some(Data::TrackEvent(event)) => {
                let track = titles[&event.track_uuid()].clone();
                seen.push((track, packet.timestamp(), event.type_(), label(event, &names)));
            }
            _ => {}
        }
    }
    seen
}

fn label(event: &TrackEvent, names: &BTreeMap<u64, String>) -> String {
    match (event.has_name_iid(), event.has_counter_value()) {
        (true, false) => names[&event.name_iid()].clone(),
        (false, true) => event.counter_value().to_string(),
        (false, false) => event.name().to_owned(),
        (true, true) => panic!("a name and a value: {event}"),
    }
}

/// Emits the events of one wake-up: the task `waker` on CPU 0 wakes the task `worker`, which then
/// runs on CPU 2 and exits.
fn a_wakeup() -> Tracer {
    let mut tracer = tracer();
    tracer.names.set_ops(["select_cpu", "enqueue"]);
    name(&mut tracer, 0, 100, 100, "waker");
    name(&mut tracer, 1, 101, 100, "worker");
    let (a, b) = (TaskId(0), TaskId(1));
    emit(&mut tracer, 0, 0, EventKind::Fork { parent: None, child: a });
    emit(&mut tracer, 10, 0, switch(None, Some(0), PrevState::Runnable));
    emit(&mut tracer, 27, 0, EventKind::Op { op: 0, cost_ns: 7, task: Some(b) });
    emit(&mut tracer, 32, 0, EventKind::Op { op: 1, cost_ns: 5, task: Some(b) });
    emit(&mut tracer, 32, 0, EventKind::DsqInsert { task: b, dsq: 5, flags: 1 });
    emit(&mut tracer, 32, 0, EventKind::Kick { target: CpuId(2), flags: 2 });
    emit(&mut tracer, 32, 0, EventKind::Wakeup { task: b, target: CpuId(2), waker: Some(a) });
    emit(&mut tracer, 40, 2, switch(None, Some(1), PrevState::Runnable));
    emit(&mut tracer, 90, 2, EventKind::Exit { task: b });
    emit(&mut tracer, 90, 2, switch(Some(1), None, PrevState::Exited));
    tracer
}

/// Compares the fields of a message, and of its inner messages, with Perfetto's: their numbers,
/// names and types.
fn compare(ours: &str, theirs: &MessageDescriptor) {
    let fields: Vec<_> = schema::FIELDS.iter().filter(|(message, ..)| *message == ours).collect();
    assert!(!fields.is_empty(), "{ours} is not declared");
    for &&(_, name, declared, number) in &fields {
        // Perfetto's field `machine_name` is newer than the crate `perfetto_protos`, so it cannot
        // be compared: https://github.com/google/perfetto/pull/6335
        if (ours, name) == ("SystemInfo", "machine_name") {
            continue;
        }
        let field = theirs.field_by_number(number).unwrap_or_else(|| panic!("{ours}.{name}"));
        let plain = |name: &str| name.trim_start_matches("r#").replace('_', "").to_lowercase();
        assert_eq!(plain(name), plain(field.name()), "{ours}, field {number}");
        let packed = declared.starts_with("Packed<");
        let repeated = declared.starts_with("Vec<") || packed;
        assert_eq!(repeated, field.is_repeated(), "{ours}.{name}");
        assert_eq!(packed, field.proto().options.packed(), "{ours}.{name}");
        let forms = ["Vec<", "Option<", "Packed<"];
        let inner = forms.iter().find_map(|form| declared.strip_prefix(form)).unwrap_or(declared);
        let inner = inner.trim_end_matches('>');
        let expected = match field.proto().type_() {
            Written::TYPE_UINT32 => "u32",
            Written::TYPE_UINT64 => "u64",
            Written::TYPE_INT32 | Written::TYPE_ENUM => "i32",
            Written::TYPE_INT64 => "i64",
            Written::TYPE_STRING if inner == "Text" => "Text",
            Written::TYPE_STRING => "String",
            Written::TYPE_BOOL => "bool",
            Written::TYPE_BYTES => "Bytes",
            Written::TYPE_MESSAGE => {
                compare(inner, &message(&field));
                continue;
            }
            other => panic!("{ours}.{name}: {other:?} is none of ours"),
        };
        assert_eq!(inner, expected, "{ours}.{name}");
    }
}

fn message(field: &FieldDescriptor) -> MessageDescriptor {
    match field.runtime_field_type() {
        RuntimeFieldType::Singular(RuntimeType::Message(message))
        | RuntimeFieldType::Repeated(RuntimeType::Message(message)) => message,
        _ => panic!("{field} holds no message"),
    }
}

#[test]
fn the_schema_is_perfettos() {
    let packet = Trace::descriptor().field_by_number(schema::TRACE_PACKET).unwrap();
    compare("TracePacket", &message(&packet));
}

#[test]
fn scheduling_becomes_kernel_events() {
    let trace = decode(a_wakeup());
    let events = ftrace(&trace);
    let kinds: Vec<_> =
        events.iter().map(|(cpu, event)| (*cpu, event.timestamp.unwrap())).collect();
    assert_eq!(kinds, [(0, 0), (0, 10), (0, 32), (2, 40), (2, 90), (2, 90), (2, 90)]);
    assert!(
        matches!(&events[0].1.event, Some(Raw::Generic(g)) if g.event_name() == "scxlab_start")
    );
    let Some(Raw::SchedWaking(waking)) = &events[2].1.event else { panic!("{:?}", events[2]) };
    assert_eq!((waking.pid, waking.target_cpu, events[2].1.pid), (Some(101), Some(2), Some(100)));
    assert!(matches!(&events[4].1.event, Some(Raw::SchedProcessExit(e)) if e.pid == Some(101)));
    let Some(Raw::SchedSwitch(last)) = &events[5].1.event else { panic!("{:?}", events[5]) };
    assert_eq!((last.prev_pid, last.prev_state, last.next_pid), (Some(101), Some(16), Some(0)));
    assert_eq!(last.next_comm.as_deref(), Some("swapper/2"));
    assert!(
        matches!(&events[6].1.event, Some(Raw::SchedProcessFree(free)) if free.pid == Some(101))
    );
}

#[test]
fn tasks_are_described_before_they_are_seen() {
    let trace = decode(a_wakeup());
    let trees: Vec<_> = trees(&trace).collect();
    let threads: Vec<_> = trees.iter().flat_map(|tree| &tree.threads).collect();
    let got: Vec<_> = threads.iter().map(|t| (t.tid, t.tgid, t.name.as_deref())).collect();
    assert_eq!(
        got,
        [(Some(100), Some(100), Some("waker")), (Some(101), Some(100), Some("worker"))]
    );
    assert_eq!(trees[0].processes[0].pid, Some(100));
    assert!(trees[1].processes.is_empty(), "the worker is a thread of the waker");
}

#[test]
fn callbacks_kicks_and_queues_become_tracks() {
    let trace = decode(a_wakeup());
    let seen = tracks(&trace);
    let cpu0 = |time, kind, name: &str| ("sched_ext/CPU 0".to_owned(), time, kind, name.to_owned());
    let dsq = |time, len: &str| ("DSQs/DSQ 0x5".to_owned(), time, TYPE_COUNTER, len.to_owned());
    let expected = [
        cpu0(20, TYPE_SLICE_BEGIN, "select_cpu"),
        cpu0(27, TYPE_SLICE_END, ""),
        // The callback `enqueue` has time 20 too, but its slice begins where the slice of
        // `select_cpu` ends, because slices of a track cannot overlap.
        cpu0(27, TYPE_SLICE_BEGIN, "enqueue"),
        cpu0(32, TYPE_SLICE_END, ""),
        cpu0(32, TYPE_INSTANT, "insert"),
        dsq(32, "1"),
        cpu0(32, TYPE_INSTANT, "kick"),
        dsq(40, "0"),
    ];
    assert_eq!(seen, expected);
}

/// A slice lies on the virtual CPU's track while its thread runs or spins, on whichever CPU.
#[test]
fn virtual_cpus_become_tracks() {
    let mut tracer = tracer();
    tracer.names.set_guest(1, None, "vm1");
    tracer.names.set_guest(1, Some(7), "worker");
    let run = |thread, spins| EventKind::GuestRun { guest: 1, vcpu: 3, thread, spins };
    emit(&mut tracer, 1, 0, run(Some(7), false));
    emit(&mut tracer, 5, 2, run(Some(7), true));
    emit(&mut tracer, 9, 2, run(None, false));
    emit(&mut tracer, 20, 0, run(Some(8), false));
    let seen = tracks(&decode(tracer));
    let at = |time, kind, name: &str| ("guest vm1/vCPU 3".to_owned(), time, kind, name.to_owned());
    let expected = [
        at(1, TYPE_SLICE_BEGIN, "worker"),
        at(5, TYPE_SLICE_END, ""),
        at(5, TYPE_SLICE_BEGIN, "worker (spins)"),
        at(9, TYPE_SLICE_END, ""),
        at(20, TYPE_SLICE_BEGIN, "thread 8"),
    ];
    assert_eq!(seen, expected);
}

#[test]
fn the_rest_becomes_instants() {
    let mut tracer = tracer();
    tracer.names.set_lock(9, "rq 0");
    emit(&mut tracer, 51, 3, EventKind::LockWait { lock: 9, wait_ns: 50 });
    emit(&mut tracer, 2, 3, EventKind::Throttle { cgroup: CgroupId(4), on: true });
    tracer.printk(4, CpuId(3), "hello");
    let exit =
        Event { time: 5, cpu: CpuId(3), kind: EventKind::SchedExit { kind: 1026, code: -7 } };
    tracer.emit_with_text(exit, "stall");
    emit(&mut tracer, 8, 3, EventKind::CpuOnline { online: false });
    let trace = decode(tracer);
    let seen: Vec<_> =
        tracks(&trace).into_iter().map(|(track, time, _, name)| (track, time, name)).collect();
    let at = |track: &str, time, name: &str| (format!("sched_ext{track}"), time, name.to_owned());
    let expected = [
        at("/CPU 3 locks", 1, "rq 0"),
        at("/CPU 3 locks", 51, ""),
        at("", 2, "throttle"),
        at("", 4, "printk"),
        at("", 5, "scheduler exit"),
    ];
    assert_eq!(seen, expected);
    let annotations =
        trace.packet.iter().flat_map(|packet| &packet.track_event().debug_annotations);
    let texts: Vec<_> =
        annotations.clone().filter(|a| a.has_string_value()).map(|a| a.string_value()).collect();
    assert_eq!(texts, ["hello", "stall"]);
    assert!(annotations.clone().any(|a| a.int_value() == -7));
    let states: Vec<_> =
        ftrace(&trace).into_iter().map(|(_, event)| event.event.unwrap()).collect();
    assert!(matches!(&states[0], Raw::SchedCpuHotplug(plug) if plug.status == Some(0)));
}

/// Readers take the growth of a CPU's counter between the start and the end of the trace as the
/// number of its lost events. So the file must hold both values of the counter for each CPU.
#[test]
fn lost_events_are_counted_by_cpu() {
    let mut tracer = a_wakeup();
    emit(&mut tracer, 95, 2, EventKind::Lost { events: 7 });
    emit(&mut tracer, 95, 3, EventKind::Lost { events: 1 << 40 });
    emit(&mut tracer, 96, 2, EventKind::Lost { events: 2 });
    let trace = decode(tracer);
    let stats = |phase| {
        let of_phase = trace.packet.iter().map(|p| p.ftrace_stats()).filter(|s| s.phase() == phase);
        let cpus = of_phase.flat_map(|s| &s.cpu_stats);
        cpus.map(|c| (c.cpu(), c.dropped_events())).collect::<Vec<_>>()
    };
    assert_eq!(stats(Phase::START_OF_TRACE), [(0, 0), (1, 0), (2, 0), (3, 0)]);
    assert_eq!(stats(Phase::END_OF_TRACE), [(0, 0), (1, 0), (2, 9), (3, 1 << 40)]);
    let instants = tracks(&trace).into_iter().filter(|(.., name)| name == "lost events");
    let at: Vec<_> = instants.map(|(track, time, ..)| (track, time)).collect();
    assert_eq!(at, [95, 95, 96].map(|time| ("sched_ext".to_owned(), time)));
    let nothing_lost = decode(a_wakeup());
    assert!(!nothing_lost.packet.iter().any(|p| p.has_ftrace_stats()));
}

#[test]
fn a_reused_slot_is_described_again() {
    let mut tracer = tracer();
    for pid in [10, 11] {
        name(&mut tracer, 0, pid, pid, "short");
        emit(&mut tracer, u64::from(pid), 0, switch(None, Some(0), PrevState::Runnable));
        emit(&mut tracer, u64::from(pid), 0, switch(Some(0), None, PrevState::Exited));
    }
    let trace = decode(tracer);
    let pids: Vec<_> =
        trees(&trace).flat_map(|tree| &tree.threads).map(|thread| thread.tid()).collect();
    assert_eq!(pids, [10, 11]);
}

#[test]
fn queue_lengths_follow_moves_and_repeats() {
    let mut lengths = DsqLengths::default();
    let mut enter = |task, dsq| lengths.enter(TaskId(task), dsq).collect::<Vec<_>>();
    assert_eq!(enter(1, 5), [(5, 1)]);
    assert_eq!(enter(2, 5), [(5, 2)]);
    assert_eq!(enter(1, 6), [(5, 1), (6, 1)]);
    assert_eq!(enter(1, 6), [(6, 1)]);
    // Task 1 moves to a local DSQ. Local DSQs are not counted, so the only change must be that DSQ
    // 6 is now empty.
    assert_eq!(enter(1, 1 << 63 | 2), [(6, 0)]);
    assert_eq!(lengths.leave(TaskId(1)), None);
    assert_eq!(lengths.leave(TaskId(2)), Some((5, 0)));
    let many = (0..1000u32).flat_map(|i| lengths.enter(TaskId(i), 100 + u64::from(i)));
    assert!(many.count() <= 256);
}

/// Kernel events are written long before the end of the trace, so that few are held in memory.
#[test]
fn memory_is_bounded() {
    let mut sink = PerfettoSink::new(Vec::new(), &machine("64n64c2t"));
    let names = Names::default();
    for i in 0..200_000u32 {
        let kind = switch(Some(i % 50), Some(i % 49), PrevState::Sleeping);
        let event = Event { time: u64::from(i), cpu: CpuId(i % 8192), kind };
        sink.event(&event, &names);
    }
    let before = sink.packets.written();
    sink.finish().unwrap();
    let after = sink.packets.written();
    assert!(before * 10 > after * 9, "{before} of {after} bytes were written before the end");
}

/// A writer that takes some bytes, then fails.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0 = self.0.checked_sub(bytes.len()).ok_or_else(|| io::Error::other("disk full"))?;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn the_first_error_is_told_at_the_end() {
    let mut tracer = Tracer::with_sink(PerfettoSink::new(Full(200), &machine("4c")));
    let online = EventKind::CpuOnline { online: true };
    (0..1000).for_each(|time| emit(&mut tracer, time, 0, online));
    assert_eq!(tracer.finish().unwrap_err().to_string(), "disk full");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any events, even of unknown CPUs and unnamed tasks, give a readable and deterministic file.
    /// On each track, slices end in the order in which they began and never overlap.
    #[test]
    fn any_events_give_a_sound_file(events in prop::collection::vec(crate::event::tests::event(), 0..200)) {
        let write = || {
            let mut tracer = tracer();
            name(&mut tracer, 1, 11, 11, "one");
            events.iter().for_each(|event| tracer.emit(*event));
            bytes(tracer)
        };
        let first = write();
        prop_assert_eq!(&first, &write());
        let trace = Trace::parse_from_bytes(&first).unwrap();
        let mut open = BTreeSet::new();
        let mut last = BTreeMap::new();
        for (track, time, kind, _) in tracks(&trace) {
            match kind {
                TYPE_SLICE_BEGIN => prop_assert!(open.insert(track.clone())),
                TYPE_SLICE_END => prop_assert!(open.remove(&track)),
                _ => continue,
            }
            prop_assert!(last.insert(track, time).is_none_or(|before| before <= time));
        }
        // A thread that still runs on its virtual CPU at the end has a slice without an end.
        prop_assert!(open.iter().all(|track| track.starts_with("guest ")));
    }
}

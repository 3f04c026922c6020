// SPDX-License-Identifier: GPL-2.0-only
//! scxlab's own tracks: callbacks, lock waits, DSQ lengths, virtual CPUs, and instants.
//!
//! Owns: the tree of tracks. The file describes a track before the track's first event.
//! Does not: draw scheduling (see `ftrace.rs`).

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use scxlab_machine::{CpuId, Nanos, TaskId};

use super::packets::{Name, Packets};
use super::schema::{CounterDescriptor, DebugAnnotation, TrackDescriptor, TrackEvent};
use crate::event::{Event, EventKind};
use crate::names::{Names, dsq as queue};

const BEGIN: i32 = 1;
const END: i32 = 2;
const INSTANT: i32 = 3;
const COUNTER: i32 = 4;
/// Value of `child_ordering` that orders tracks by their rank.
const ORDERED: i32 = 3;

/// Track ids: arbitrary, but distinct and never 0.
const ROOT: u64 = 1;
const DSQ_ROOT: u64 = 2;
const CPU_TRACKS: u64 = 1 << 32;
const LOCK_TRACKS: u64 = 2 << 32;
const DSQ_TRACKS: u64 = 3 << 32;
const GUEST_TRACKS: u64 = 4 << 32;
/// The number of the guest follows from bit 12 on, the virtual CPU's is in the bits below.
const VCPU_TRACKS: u64 = 5 << 32;

pub(super) struct Tracks {
    described: BTreeSet<u64>,
    /// Ids of DSQs with a track, in order of appearance. A track's id is made from the DSQ's index
    /// in this list, because DSQ ids have 64 bits.
    dsqs: Vec<u64>,
    /// End of the last slice on each CPU's callback and lock track. Slices of a track must not
    /// overlap.
    busy_until: Vec<[Nanos; 2]>,
    /// Time of the last change of each virtual CPU's track, and whether a slice is open.
    vcpus: BTreeMap<u64, (Nanos, bool)>,
}

/// The value of an annotation.
enum TrackArg {
    Number(u64),
    Signed(i64),
    Hex(u64),
    Text(String),
}

impl Tracks {
    pub fn new(nr_cpus: usize) -> Self {
        Tracks {
            described: BTreeSet::new(),
            dsqs: Vec::new(),
            busy_until: vec![[0; 2]; nr_cpus],
            vcpus: BTreeMap::new(),
        }
    }

    pub fn event<W: Write>(&mut self, packets: &mut Packets<W>, event: &Event, names: &Names) {
        let Event { time, cpu, kind } = *event;
        let task_arg = |task: TaskId| {
            let name = names.task(task).map(|name| format!("{} [{}]", name.comm, name.pid));
            ("task", TrackArg::Text(name.unwrap_or_else(|| format!("task {task}"))))
        };
        match kind {
            EventKind::Op { op, cost_ns, task } => {
                let args = task.map(task_arg).into_iter().collect();
                self.slice(packets, (time, cost_ns), cpu, 0, names.op(op), args);
            }
            EventKind::LockWait { lock, wait_ns } => {
                self.slice(packets, (time, wait_ns), cpu, 1, &names.lock(lock), Vec::new());
            }
            EventKind::DsqInsert { task, dsq, flags } => {
                let track = self.cpu_track(packets, cpu);
                let args = vec![
                    task_arg(task),
                    ("queue", TrackArg::Text(queue(dsq))),
                    ("flags", TrackArg::Hex(flags)),
                ];
                instant(packets, time, track, "insert", args);
            }
            EventKind::DsqMove { task, from, to } => {
                let track = self.cpu_track(packets, cpu);
                let args = vec![
                    task_arg(task),
                    ("from", TrackArg::Text(queue(from))),
                    ("to", TrackArg::Text(queue(to))),
                ];
                instant(packets, time, track, "move", args);
            }
            EventKind::Kick { target, flags } => {
                let track = self.cpu_track(packets, cpu);
                let args = vec![
                    ("cpu", TrackArg::Number(target.0.into())),
                    ("flags", TrackArg::Hex(flags)),
                ];
                instant(packets, time, track, "kick", args);
            }
            EventKind::Throttle { cgroup, on } => {
                self.root_track(packets);
                let args = vec![
                    ("cgroup", TrackArg::Number(cgroup.0.into())),
                    ("cpu", TrackArg::Number(cpu.0.into())),
                ];
                instant(packets, time, ROOT, if on { "throttle" } else { "unthrottle" }, args);
            }
            EventKind::SchedExit { kind, code } => {
                self.root_track(packets);
                let args = vec![
                    ("kind", TrackArg::Number(kind.into())),
                    ("code", TrackArg::Signed(code)),
                    ("message", TrackArg::Text(names.text().to_owned())),
                ];
                instant(packets, time, ROOT, "scheduler exit", args);
            }
            EventKind::Lost { events } => {
                self.root_track(packets);
                let args = vec![
                    ("cpu", TrackArg::Number(cpu.0.into())),
                    ("events", TrackArg::Number(events)),
                ];
                instant(packets, time, ROOT, "lost events", args);
            }
            EventKind::Printk { .. } => {
                self.root_track(packets);
                let args = vec![
                    ("cpu", TrackArg::Number(cpu.0.into())),
                    ("text", TrackArg::Text(names.text().to_owned())),
                ];
                instant(packets, time, ROOT, "printk", args);
            }
            EventKind::GuestRun { guest, vcpu, thread, spins } => {
                let track = self.vcpu_track(packets, guest, vcpu, names);
                let (last, open) = self.vcpus.get(&track).copied().unwrap_or_default();
                let time = time.max(last);
                self.vcpus.insert(track, (time, thread.is_some()));
                if open {
                    end(packets, time, track);
                }
                if let Some(thread) = thread {
                    let name = names.guest(guest, Some(thread));
                    let name = if spins { format!("{name} (spins)") } else { name };
                    begin(packets, time, track, &name, Vec::new());
                }
            }
            _ => {}
        }
    }

    pub fn dsq_len<W: Write>(&mut self, packets: &mut Packets<W>, time: Nanos, dsq: u64, len: i64) {
        let index = self.dsqs.iter().position(|&known| known == dsq).unwrap_or_else(|| {
            self.dsqs.push(dsq);
            self.dsqs.len() - 1
        });
        let uuid = DSQ_TRACKS + index as u64;
        if !self.described.contains(&uuid) {
            self.describe(packets, DSQ_ROOT, || TrackDescriptor {
                name: Some("DSQs".to_owned()),
                ..TrackDescriptor::default()
            });
            self.describe(packets, uuid, || TrackDescriptor {
                name: Some(queue(dsq)),
                parent_uuid: Some(DSQ_ROOT),
                counter: Some(CounterDescriptor { unit_name: Some("tasks".to_owned()) }),
                ..TrackDescriptor::default()
            });
        }
        let value = TrackEvent {
            r#type: Some(COUNTER),
            track_uuid: Some(uuid),
            counter_value: Some(len),
            ..TrackEvent::default()
        };
        packets.track_event(time, value);
    }

    /// Adds a slice to a CPU's callback track (`lane` 0) or lock track (`lane` 1). The slice begins
    /// after the earlier slices of the track have ended.
    fn slice<W: Write>(
        &mut self,
        packets: &mut Packets<W>,
        (end, length): (Nanos, Nanos),
        cpu: CpuId,
        lane: usize,
        name: &str,
        args: Vec<(&'static str, TrackArg)>,
    ) {
        let Some(busy) = self.busy_until.get_mut(cpu.idx()) else {
            return;
        };
        let begin = end.saturating_sub(length).max(busy[lane]);
        let end = end.max(begin);
        busy[lane] = end;
        let track =
            if lane == 0 { self.cpu_track(packets, cpu) } else { self.lock_track(packets, cpu) };
        self::begin(packets, begin, track, name, args);
        self::end(packets, end, track);
    }

    /// Returns the track of a virtual CPU, below that of its guest.
    fn vcpu_track<W: Write>(
        &mut self,
        packets: &mut Packets<W>,
        guest: u32,
        vcpu: u32,
        names: &Names,
    ) -> u64 {
        let parent = GUEST_TRACKS | u64::from(guest);
        let uuid = VCPU_TRACKS | u64::from(guest) << 12 | u64::from(vcpu);
        if !self.described.contains(&uuid) {
            self.describe(packets, parent, || TrackDescriptor {
                name: Some(format!("guest {}", names.guest(guest, None))),
                child_ordering: Some(ORDERED),
                ..TrackDescriptor::default()
            });
            self.describe(packets, uuid, || TrackDescriptor {
                name: Some(format!("vCPU {vcpu}")),
                parent_uuid: Some(parent),
                sibling_order_rank: i32::try_from(vcpu).ok(),
                ..TrackDescriptor::default()
            });
        }
        uuid
    }

    fn root_track<W: Write>(&mut self, packets: &mut Packets<W>) {
        self.describe(packets, ROOT, || TrackDescriptor {
            name: Some("sched_ext".to_owned()),
            child_ordering: Some(ORDERED),
            ..TrackDescriptor::default()
        });
    }

    fn cpu_track<W: Write>(&mut self, packets: &mut Packets<W>, cpu: CpuId) -> u64 {
        self.root_track(packets);
        let uuid = CPU_TRACKS + u64::from(cpu.0);
        self.describe(packets, uuid, || child(format!("CPU {cpu}"), rank(cpu, 0)));
        uuid
    }

    fn lock_track<W: Write>(&mut self, packets: &mut Packets<W>, cpu: CpuId) -> u64 {
        self.root_track(packets);
        let uuid = LOCK_TRACKS + u64::from(cpu.0);
        self.describe(packets, uuid, || child(format!("CPU {cpu} locks"), rank(cpu, 1)));
        uuid
    }

    fn describe<W: Write>(
        &mut self,
        packets: &mut Packets<W>,
        uuid: u64,
        descriptor: impl FnOnce() -> TrackDescriptor,
    ) {
        if self.described.insert(uuid) {
            packets.track(TrackDescriptor { uuid: Some(uuid), ..descriptor() });
        }
    }
}

/// Returns the rank that orders tracks by CPU; CPU numbers beyond any machine come last.
fn rank(cpu: CpuId, lane: i32) -> i32 {
    i32::try_from(cpu.0).unwrap_or(i32::MAX).saturating_mul(2).saturating_add(lane)
}

fn child(name: String, rank: i32) -> TrackDescriptor {
    TrackDescriptor {
        name: Some(name),
        parent_uuid: Some(ROOT),
        sibling_order_rank: Some(rank),
        ..TrackDescriptor::default()
    }
}

/// Begins a slice.
fn begin<W: Write>(
    packets: &mut Packets<W>,
    time: Nanos,
    track: u64,
    name: &str,
    args: Vec<(&'static str, TrackArg)>,
) {
    let mut event = named(packets, name, args);
    event.r#type = Some(BEGIN);
    event.track_uuid = Some(track);
    packets.track_event(time, event);
}

/// Ends the track's last slice.
fn end<W: Write>(packets: &mut Packets<W>, time: Nanos, track: u64) {
    let over = TrackEvent { r#type: Some(END), track_uuid: Some(track), ..TrackEvent::default() };
    packets.track_event(time, over);
}

fn instant<W: Write>(
    packets: &mut Packets<W>,
    time: Nanos,
    track: u64,
    name: &str,
    args: Vec<(&'static str, TrackArg)>,
) {
    let mut event = named(packets, name, args);
    event.r#type = Some(INSTANT);
    event.track_uuid = Some(track);
    packets.track_event(time, event);
}

fn named<W: Write>(
    packets: &mut Packets<W>,
    name: &str,
    args: Vec<(&'static str, TrackArg)>,
) -> TrackEvent {
    let (name_iid, name) = match packets.name(name) {
        Name::Interned(iid) => (Some(iid), None),
        Name::Written(name) => (None, Some(name)),
    };
    let annotation = |(key, value)| {
        let mut annotation = DebugAnnotation {
            name_iid: Some(packets.annotation(key)),
            ..DebugAnnotation::default()
        };
        match value {
            TrackArg::Number(number) => annotation.uint_value = Some(number),
            TrackArg::Signed(number) => annotation.int_value = Some(number),
            TrackArg::Hex(number) => annotation.pointer_value = Some(number),
            TrackArg::Text(text) => annotation.string_value = Some(text),
        }
        annotation
    };
    let debug_annotations = args.into_iter().map(annotation).collect();
    TrackEvent { debug_annotations, name_iid, name, ..TrackEvent::default() }
}

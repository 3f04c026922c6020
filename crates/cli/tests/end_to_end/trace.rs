// SPDX-License-Identifier: GPL-2.0-only
//! Reader of traces, with Perfetto's own definitions.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use perfetto_protos::debug_annotation::debug_annotation;
use perfetto_protos::ftrace_event::ftrace_event::Event as Ftrace;
use perfetto_protos::trace::Trace;
use perfetto_protos::trace_packet::trace_packet::Data;
use perfetto_protos::track_event::track_event::{Name_field, Type};
use protobuf::Message;

/// A slice, an instant or a counter's value on one of scxlab's own tracks.
#[derive(Debug)]
pub struct Drawn {
    /// Names of the track's parents and of the track, joined by `/`.
    pub track: String,
    pub kind: Type,
    pub name: String,
    /// Values of the event's arguments as text, by name.
    pub args: BTreeMap<String, String>,
}

/// The contents of a trace that our pages promise.
#[derive(Default)]
pub struct Seen {
    pub packets: usize,
    /// CPUs with a switch to a task other than the idle task.
    pub cpus: BTreeSet<u32>,
    /// Names of the tasks that ran.
    pub ran: BTreeSet<String>,
    /// Wake-ups: pid of the waker and name of the woken task.
    pub wakeups: Vec<(u32, String)>,
    pub drawn: Vec<Drawn>,
}

impl Seen {
    pub fn named<'a>(
        &'a self,
        kind: Type,
        name: &'a str,
    ) -> impl Iterator<Item = &'a Drawn> + Clone {
        self.drawn.iter().filter(move |d| d.kind == kind && d.name == name)
    }

    pub fn names(&self, kind: Type) -> BTreeSet<&str> {
        self.drawn.iter().filter(|d| d.kind == kind).map(|d| &d.name[..]).collect()
    }
}

/// Reads a trace file, and panics on fields that Perfetto's definitions do not have.
pub fn read(file: &Path) -> Seen {
    let bytes = std::fs::read(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let trace =
        Trace::parse_from_bytes(&bytes).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    let mut reader = Reader::default();
    for packet in &trace.packet {
        let unknown = packet.special_fields.unknown_fields();
        assert_eq!(unknown.iter().count(), 0, "fields that Perfetto does not know: {packet}");
        reader.packet(packet);
    }
    reader.seen.packets = trace.packet.len();
    reader.seen
}

#[derive(Default)]
struct Reader {
    names: BTreeMap<u64, String>,
    annotations: BTreeMap<u64, String>,
    tracks: BTreeMap<u64, (String, u64)>,
    seen: Seen,
}

impl Reader {
    fn packet(&mut self, packet: &perfetto_protos::trace_packet::TracePacket) {
        if let Some(interned) = packet.interned_data.as_ref() {
            let names = interned.event_names.iter().map(|n| (n.iid(), n.name().to_owned()));
            self.names.extend(names);
            let names = interned.debug_annotation_names.iter();
            self.annotations.extend(names.map(|n| (n.iid(), n.name().to_owned())));
        }
        match &packet.data {
            Some(Data::FtraceEvents(bundle)) => {
                bundle.event.iter().for_each(|event| self.scheduling(bundle.cpu(), event));
            }
            Some(Data::TrackDescriptor(track)) => {
                self.tracks.insert(track.uuid(), (track.name().to_owned(), track.parent_uuid()));
            }
            Some(Data::TrackEvent(event)) => self.track_event(event),
            _ => {}
        }
    }

    fn scheduling(&mut self, cpu: u32, event: &perfetto_protos::ftrace_event::FtraceEvent) {
        match &event.event {
            Some(Ftrace::SchedSwitch(switch)) if switch.next_pid() != 0 => {
                self.seen.cpus.insert(cpu);
                self.seen.ran.insert(switch.next_comm().to_owned());
            }
            Some(Ftrace::SchedWaking(waking)) => {
                self.seen.wakeups.push((event.pid(), waking.comm().to_owned()));
            }
            _ => {}
        }
    }

    fn track_event(&mut self, event: &perfetto_protos::track_event::TrackEvent) {
        let name = match &event.name_field {
            Some(Name_field::NameIid(iid)) => self.names[iid].clone(),
            Some(Name_field::Name(name)) => name.clone(),
            _ => String::new(),
        };
        let args = event.debug_annotations.iter().map(|a| {
            let key = self.annotations[&a.name_iid()].clone();
            (key, argument(a))
        });
        let args = args.collect();
        let track = self.path(event.track_uuid());
        self.seen.drawn.push(Drawn { track, kind: event.type_(), name, args });
    }

    fn path(&self, uuid: u64) -> String {
        let (name, parent) = &self.tracks[&uuid];
        if *parent == 0 { name.clone() } else { format!("{}/{name}", self.path(*parent)) }
    }
}

fn argument(a: &perfetto_protos::debug_annotation::DebugAnnotation) -> String {
    use debug_annotation::Value;
    match &a.value {
        Some(Value::UintValue(n)) => n.to_string(),
        Some(Value::IntValue(n)) => n.to_string(),
        Some(Value::PointerValue(n)) => format!("{n:#x}"),
        Some(Value::StringValue(text)) => text.clone(),
        other => panic!("an argument without a value: {other:?}"),
    }
}

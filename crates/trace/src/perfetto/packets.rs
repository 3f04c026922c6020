// SPDX-License-Identifier: GPL-2.0-only
//! The writer of packets: assigns them to two sequences, interns names, and keeps the first error
//! until the end of the trace.
//!
//! Owns: the rules that make a stream of packets a valid file. Does not: know the packets' meaning.

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::schema::{
    FtraceEventBundle, FtraceStats, InternedData, InternedString, ProcessTree,
    SEQ_INCREMENTAL_STATE_CLEARED, SEQ_NEEDS_INCREMENTAL_STATE, SystemInfo, TRACE_PACKET,
    TracePacket, TrackDescriptor, TrackEvent, Value,
};

/// Maximum number of interned names. Any further name is written in full with each event, so that
/// memory stays bounded.
const NAMES_MAX: usize = 4096;

/// Ids of the two sequences of packets: one for the kernel's events and the descriptions of tasks,
/// one for scxlab's own tracks.
const SEQUENCE_KERNEL: u32 = 1;
const SEQUENCE_TRACKS: u32 = 2;

/// A track event's name, interned or written out.
pub(super) enum Name {
    Interned(u64),
    Written(String),
}

pub(super) struct Packets<W> {
    out: W,
    buffer: Vec<u8>,
    names: BTreeMap<String, u64>,
    annotations: BTreeMap<&'static str, u64>,
    /// Names interned since the last track event, to be written with the next one.
    pending: InternedData,
    tracks_started: bool,
    failed: Option<io::Error>,
    written: u64,
}

impl<W: Write> Packets<W> {
    pub fn new(out: W) -> Self {
        Packets {
            out,
            buffer: Vec::new(),
            names: BTreeMap::new(),
            annotations: BTreeMap::new(),
            pending: InternedData::default(),
            tracks_started: false,
            failed: None,
            written: 0,
        }
    }

    pub fn system_info(&mut self, machine_name: &str, nr_cpus: usize) {
        let info = SystemInfo {
            num_cpus: Some(nr_cpus as u32),
            machine_name: Some(machine_name.to_owned()),
        };
        self.write(TracePacket {
            trusted_packet_sequence_id: Some(SEQUENCE_KERNEL),
            system_info: Some(info),
            ..TracePacket::default()
        });
    }

    pub fn ftrace(&mut self, bundle: FtraceEventBundle) {
        self.write(TracePacket {
            trusted_packet_sequence_id: Some(SEQUENCE_KERNEL),
            ftrace_events: Some(bundle),
            ..TracePacket::default()
        });
    }

    pub fn ftrace_stats(&mut self, stats: FtraceStats) {
        self.write(TracePacket {
            trusted_packet_sequence_id: Some(SEQUENCE_KERNEL),
            ftrace_stats: Some(stats),
            ..TracePacket::default()
        });
    }

    pub fn process_tree(&mut self, time: u64, tree: ProcessTree) {
        self.write(TracePacket {
            timestamp: Some(time),
            trusted_packet_sequence_id: Some(SEQUENCE_KERNEL),
            process_tree: Some(tree),
            ..TracePacket::default()
        });
    }

    pub fn track(&mut self, descriptor: TrackDescriptor) {
        let sequence_flags = self.tracks_flags();
        self.write(TracePacket {
            trusted_packet_sequence_id: Some(SEQUENCE_TRACKS),
            sequence_flags: Some(sequence_flags),
            track_descriptor: Some(descriptor),
            ..TracePacket::default()
        });
    }

    pub fn track_event(&mut self, time: u64, event: TrackEvent) {
        let sequence_flags = self.tracks_flags();
        let pending = std::mem::take(&mut self.pending);
        let has_pending =
            !(pending.event_names.is_empty() && pending.debug_annotation_names.is_empty());
        self.write(TracePacket {
            timestamp: Some(time),
            trusted_packet_sequence_id: Some(SEQUENCE_TRACKS),
            sequence_flags: Some(sequence_flags),
            interned_data: has_pending.then_some(pending),
            track_event: Some(event),
            ..TracePacket::default()
        });
    }

    /// Returns an event's name: interned if there is room, otherwise in full. The next track event
    /// defines a newly interned name for readers.
    pub fn name(&mut self, name: &str) -> Name {
        if let Some(&iid) = self.names.get(name) {
            return Name::Interned(iid);
        }
        if self.names.len() >= NAMES_MAX {
            return Name::Written(name.to_owned());
        }
        let iid = self.names.len() as u64 + 1;
        self.names.insert(name.to_owned(), iid);
        let interned = InternedString { iid: Some(iid), name: Some(name.to_owned()) };
        self.pending.event_names.push(interned);
        Name::Interned(iid)
    }

    /// Returns the id of an annotation's name. These names are few constants, so their number needs
    /// no limit.
    pub fn annotation(&mut self, name: &'static str) -> u64 {
        let next = self.annotations.len() as u64 + 1;
        let iid = *self.annotations.entry(name).or_insert(next);
        if iid == next {
            let interned = InternedString { iid: Some(iid), name: Some(name.to_owned()) };
            self.pending.debug_annotation_names.push(interned);
        }
        iid
    }

    /// Flushes the writer, or returns the first error of all writes.
    pub fn finish(&mut self) -> io::Result<()> {
        match self.failed.take() {
            Some(error) => Err(error),
            None => self.out.flush(),
        }
    }

    /// Returns the number of bytes passed to the writer so far.
    pub fn written(&self) -> u64 {
        self.written
    }

    pub fn into_inner(self) -> W {
        self.out
    }

    fn tracks_flags(&mut self) -> u32 {
        let first = !std::mem::replace(&mut self.tracks_started, true);
        SEQ_NEEDS_INCREMENTAL_STATE | if first { SEQ_INCREMENTAL_STATE_CLEARED } else { 0 }
    }

    fn write(&mut self, packet: TracePacket) {
        if self.failed.is_some() {
            return;
        }
        self.buffer.clear();
        packet.write_field(TRACE_PACKET, &mut self.buffer);
        self.failed = self.out.write_all(&self.buffer).err();
        self.written += self.buffer.len() as u64;
    }
}

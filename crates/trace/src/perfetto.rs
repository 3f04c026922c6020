// SPDX-License-Identifier: GPL-2.0-only
//! Perfetto files: a trace for the Perfetto UI, written as a stream with bounded memory.
//!
//! Owns: the appearance of events in the UI. Does not: name things (see `names.rs`), open files.
//!
//! ```text
//! scheduling  -> ftrace events      the UI's own CPU tracks, thread states, wake-up arrows
//! callbacks   -> slices             sched_ext > CPU n          also inserts, moves and kicks, as instants
//! lock waits  -> slices             sched_ext > CPU n locks
//! DSQ lengths -> counters           DSQs > name
//! the rest    -> instants           sched_ext                  throttling, printed lines, exits
//! lost events -> ftrace statistics  the UI's list of what is wrong with a trace; also an instant
//! ```

mod dsq;
mod ftrace;
pub(crate) mod own;
mod packets;
pub(crate) mod schema;
mod tracks;
pub(crate) mod wire;

use std::io::{self, Write};

use scxlab_machine::Machine;

use crate::event::{Event, EventKind};
use crate::names::Names;
use crate::sink::Sink;
use dsq::DsqLengths;
use ftrace::Ftrace;
use packets::Packets;
use tracks::Tracks;

/// Writes events as a Perfetto trace to `W`. Equal events give equal bytes.
pub struct PerfettoSink<W> {
    packets: Packets<W>,
    ftrace: Ftrace,
    tracks: Tracks,
    dsqs: DsqLengths,
}

impl<W: Write + Send + 'static> PerfettoSink<W> {
    /// Creates a sink that writes to `out`, which should be buffered. The file holds the machine,
    /// and the UI shows its name.
    pub fn new(out: W, machine: &Machine) -> Self {
        let nr_cpus = machine.topology.nr_cpus();
        let mut packets = Packets::new(out);
        packets.system_info(&machine.name, nr_cpus);
        PerfettoSink {
            packets,
            ftrace: Ftrace::new(machine),
            tracks: Tracks::new(nr_cpus),
            dsqs: DsqLengths::default(),
        }
    }

    /// Tells the file the scheduler, before any event.
    pub fn under(mut self, scheduler: &str) -> Self {
        self.ftrace.scheduler = Some(scheduler.to_owned());
        self
    }

    /// Returns the number of bytes written so far, for a progress display.
    pub fn written(&self) -> u64 {
        self.packets.written()
    }

    /// Returns the writer. Call `finish` first.
    pub fn into_inner(self) -> W {
        self.packets.into_inner()
    }
}

impl<W: Write + Send + 'static> Sink for PerfettoSink<W> {
    fn event(&mut self, event: &Event, names: &Names) {
        let PerfettoSink { packets, ftrace, tracks, dsqs } = self;
        match event.kind {
            EventKind::Switch { next, .. } => {
                ftrace.event(packets, event, names);
                // The task that starts to run has left the DSQ that held it, if any.
                let left = next.and_then(|task| dsqs.leave(task));
                left.into_iter()
                    .for_each(|(dsq, len)| tracks.dsq_len(packets, event.time, dsq, len));
            }
            EventKind::Wakeup { .. }
            | EventKind::Migrate { .. }
            | EventKind::CpuOnline { .. }
            | EventKind::Call { .. }
            | EventKind::Attributes { .. }
            | EventKind::Fork { .. } => ftrace.event(packets, event, names),
            EventKind::DsqInsert { task, dsq, .. } | EventKind::DsqMove { task, to: dsq, .. } => {
                tracks.event(packets, event, names);
                for (dsq, len) in dsqs.enter(task, dsq) {
                    tracks.dsq_len(packets, event.time, dsq, len);
                }
            }
            EventKind::Exit { task } => {
                ftrace.event(packets, event, names);
                let left = dsqs.leave(task);
                left.into_iter()
                    .for_each(|(dsq, len)| tracks.dsq_len(packets, event.time, dsq, len));
            }
            // A CPU that polls an empty DSQ would fill the file.
            EventKind::DsqMiss { .. } => {}
            // Only an operation has a name for its slice.
            EventKind::Program { .. } => {}
            EventKind::Op { .. }
            | EventKind::Kick { .. }
            | EventKind::LockWait { .. }
            | EventKind::Throttle { .. }
            | EventKind::SchedExit { .. }
            | EventKind::Printk { .. }
            | EventKind::GuestRun { .. } => tracks.event(packets, event, names),
            EventKind::Lost { .. } => {
                ftrace.event(packets, event, names);
                tracks.event(packets, event, names);
            }
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        self.ftrace.finish(&mut self.packets);
        self.packets.finish()
    }
}

#[cfg(test)]
mod tests;

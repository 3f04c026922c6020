// SPDX-License-Identifier: GPL-2.0-only
//! The tracer: hashes and counts every event once, and passes it to the sink if there is one.

use std::any::Any;
use std::io;

use scxlab_machine::hash::hash_bytes;
use scxlab_machine::{CpuId, Nanos};

use crate::event::{Event, EventKind};
use crate::hash::TraceHash;
use crate::names::Names;
use crate::sink::Sink;

/// Hashes and counts all events. Only a sink keeps the events.
///
/// ```
/// use scxlab_machine::CpuId;
/// use scxlab_trace::{Event, EventKind, Tracer, VecSink};
/// let mut tracer = Tracer::with_sink(VecSink::default());
/// tracer.emit(Event { time: 5, cpu: CpuId(0), kind: EventKind::CpuOnline { online: true } });
/// assert_eq!(tracer.count(), 1);
/// assert_eq!(tracer.take_sink::<VecSink>().unwrap().events.len(), 1);
/// ```
pub struct Tracer {
    /// Names of ids. The creator of a task or lock sets its name here.
    pub names: Names,
    hash: TraceHash,
    count: u64,
    sink: Option<Box<dyn Sink>>,
}

impl Default for Tracer {
    /// Creates a tracer that only hashes and counts.
    fn default() -> Self {
        Tracer { names: Names::default(), hash: TraceHash::default(), count: 0, sink: None }
    }
}

impl Tracer {
    /// Creates a tracer that also passes every event to `sink`.
    pub fn with_sink(sink: impl Sink) -> Tracer {
        Tracer { sink: Some(Box::new(sink)), ..Tracer::default() }
    }

    /// Records an event.
    #[inline(always)]
    pub fn emit(&mut self, event: Event) {
        event.fold_into(&mut self.hash);
        self.count += 1;
        if self.sink.is_some() {
            self.keep(event);
        }
    }

    /// Passes an event to the sink that is not part of the hash: a call of a program, the
    /// attributes of a task, a search that failed, or the time of a program. The first two are
    /// inputs of the run, and the others change nothing. The caller asks `is_recording` first.
    #[cold]
    pub fn note(&mut self, event: Event) {
        self.keep(event);
    }

    #[cold]
    fn keep(&mut self, event: Event) {
        if let Some(sink) = &mut self.sink {
            sink.event(&event, &self.names);
        }
    }

    /// Records a printed line.
    pub fn printk(&mut self, time: Nanos, cpu: CpuId, text: &str) {
        let kind = EventKind::Printk { text_hash: hash_bytes(text.as_bytes()) };
        self.emit_with_text(Event { time, cpu, kind }, text);
    }

    /// Records an event with a text that is not hashed, such as an exit's message.
    pub fn emit_with_text(&mut self, event: Event, text: &str) {
        if self.sink.is_some() {
            self.names.set_text(text);
        }
        self.emit(event);
        if self.sink.is_some() {
            self.names.set_text("");
        }
    }

    /// Tells whether a sink takes the events. If not, callers may skip details that only a reader
    /// of the trace needs.
    #[inline]
    pub fn is_recording(&self) -> bool {
        self.sink.is_some()
    }

    /// Returns the hash of all events so far.
    pub fn hash(&self) -> u64 {
        self.hash.finish()
    }

    /// Returns the number of events so far.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Tells the sink when the run ended.
    pub fn run_ended(&mut self, at: Nanos) {
        self.sink.iter_mut().for_each(|sink| sink.run_ended(at));
    }

    /// Ends the trace; the sink writes its buffered data.
    pub fn finish(&mut self) -> io::Result<()> {
        self.sink.as_mut().map_or(Ok(()), |sink| sink.finish())
    }

    /// Removes and returns the sink, if there is one and it is an `S`.
    pub fn take_sink<S: Sink>(&mut self) -> Option<S> {
        let sink: Box<dyn Any> = self.sink.take()?;
        sink.downcast().ok().map(|sink| *sink)
    }
}

#[cfg(test)]
mod tests;

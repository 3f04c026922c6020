// SPDX-License-Identifier: GPL-2.0-only
//! Receivers of events, besides the hash: the trait, a sink for several sinks, and a sink that
//! keeps events for tests.

use std::any::Any;
use std::io;

use scxlab_machine::Nanos;

use crate::event::Event;
use crate::names::Names;

/// Takes events as they happen. The bound `Any` allows `Tracer::take_sink` to return the sink as
/// its own type.
pub trait Sink: Any + Send {
    /// Takes one event, with the names at the time of the event. The sink keeps an error until
    /// `finish` returns it.
    fn event(&mut self, event: &Event, names: &Names);

    /// Takes the time at which the run ended, if it is known. Called after the last event.
    fn run_ended(&mut self, _: Nanos) {}

    /// Writes buffered data. Called once, after the last event.
    fn finish(&mut self) -> io::Result<()>;
}

/// Passes every event to several sinks.
pub struct Tee(pub Vec<Box<dyn Sink>>);

impl Sink for Tee {
    fn event(&mut self, event: &Event, names: &Names) {
        self.0.iter_mut().for_each(|sink| sink.event(event, names));
    }

    fn run_ended(&mut self, at: Nanos) {
        self.0.iter_mut().for_each(|sink| sink.run_ended(at));
    }

    fn finish(&mut self) -> io::Result<()> {
        self.0.iter_mut().try_for_each(|sink| sink.finish())
    }
}

/// Keeps every event in memory, and the texts of events that have one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VecSink {
    /// All events, in order.
    pub events: Vec<Event>,
    /// Index and text of each event that has a text.
    pub texts: Vec<(usize, String)>,
}

impl Sink for VecSink {
    fn event(&mut self, event: &Event, names: &Names) {
        if !names.text().is_empty() {
            self.texts.push((self.events.len(), names.text().to_owned()));
        }
        self.events.push(*event);
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

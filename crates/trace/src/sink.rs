// SPDX-License-Identifier: GPL-2.0-only
//! Where events go beside the hash: the trait, and a sink that keeps them for tests.

use std::any::Any;
use std::io;

use crate::event::Event;
use crate::names::Names;

/// Takes events as they happen. `Any`, so that who put a sink into a tracer can take its own type out.
pub trait Sink: Any + Send {
    /// One event, with the names as they are now. Errors are kept for `finish`.
    fn event(&mut self, event: &Event, names: &Names);

    /// Writes out what is pending. Called once, after the last event.
    fn finish(&mut self) -> io::Result<()>;
}

/// Gives every event to several sinks.
pub struct Tee(pub Vec<Box<dyn Sink>>);

impl Sink for Tee {
    fn event(&mut self, event: &Event, names: &Names) {
        self.0.iter_mut().for_each(|sink| sink.event(event, names));
    }

    fn finish(&mut self) -> io::Result<()> {
        self.0.iter_mut().try_for_each(|sink| sink.finish())
    }
}

/// Keeps every event in memory, and the texts of those that have one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VecSink {
    /// All events, in order.
    pub events: Vec<Event>,
    /// The index and text of each event that came with a text.
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

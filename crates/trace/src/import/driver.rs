// SPDX-License-Identifier: GPL-2.0-only
//! The way of an event from an importer to the sink, and the notes on the way.

use std::io;

use scxlab_machine::Nanos;
use scxlab_machine::topology::CPUS_MAX;

use super::imported::{Clock, End, Format, Imported};
use super::merge::{HELD_MAX, Merge};
use super::raw::{Raw, RawKind};
use super::tasks::Tasks;
use crate::call::Call;
use crate::sink::Sink;

pub struct Driver<'a> {
    merge: Merge,
    tasks: Tasks,
    sink: &'a mut dyn Sink,
    imported: Imported,
    /// Time of the first event, as the file has it.
    start: Option<Nanos>,
}

impl Driver<'_> {
    pub fn new(format: Format, sink: &mut dyn Sink) -> Driver<'_> {
        Driver {
            merge: Merge::new(HELD_MAX),
            tasks: Tasks::default(),
            sink,
            imported: Imported::new(format),
            start: None,
        }
    }

    /// Takes an event of the file.
    pub fn event(&mut self, raw: Raw, place: u64) {
        if raw.cpus().into_iter().flatten().any(|cpu| cpu as usize >= CPUS_MAX) {
            return self.unknown(place, || "an event of a CPU that no machine has".to_owned());
        }
        let wakes = matches!(raw.kind, RawKind::Waking { .. } | RawKind::Wakeup { .. });
        self.imported.blind_wakeups += u64::from(wakes && raw.interrupt.is_none());
        self.merge.push(raw);
        while let Some(raw) = self.merge.pop_excess() {
            self.emit(raw);
        }
    }

    /// Takes what the file tells besides events.
    pub fn tasks(&mut self) -> &mut Tasks {
        &mut self.tasks
    }

    pub fn imported(&mut self) -> &mut Imported {
        &mut self.imported
    }

    /// Counts a part of the file that has no meaning here. `place` is a line or an offset in bytes.
    pub fn unknown(&mut self, place: u64, what: impl FnOnce() -> String) {
        let unknown = &mut self.imported.unknown;
        unknown.count += 1;
        unknown.first.get_or_insert_with(|| (place, what()));
    }

    /// Notes that the file does not end as it should.
    pub fn ends(&mut self, end: End) {
        self.imported.end = end;
    }

    pub fn clock(&mut self, clock: Clock) {
        self.imported.clock = clock;
    }

    /// Passes the events that wait, and finishes the sink.
    pub fn finish(mut self) -> io::Result<Imported> {
        while let Some(raw) = self.merge.pop() {
            self.emit(raw);
        }
        self.sink.finish()?;
        let Driver { merge, tasks, mut imported, start, .. } = self;
        imported.start = start.unwrap_or(0);
        imported.tasks = tasks.count();
        imported.without_process = tasks.without_process();
        imported.order = merge.faults;
        imported.gap = merge.gap;
        imported.tasks_faults = tasks.faults;
        Ok(imported)
    }

    fn emit(&mut self, mut raw: Raw) {
        let start = *self.start.get_or_insert(raw.time);
        // The merge gives no time before that of its first event.
        raw.time -= start;
        if let RawKind::Call(Call::SleepUntil { at }) = &mut raw.kind {
            *at = at.saturating_sub(start);
        }
        let Driver { tasks, sink, imported, .. } = self;
        tasks.translate(raw, &mut |event, names| {
            imported.note(&event);
            sink.event(&event, names);
        });
    }
}

impl Raw {
    /// Returns every CPU that the event names.
    fn cpus(&self) -> [Option<u32>; 3] {
        let [a, b] = match self.kind {
            RawKind::Waking { target, .. }
            | RawKind::Wakeup { target, .. }
            | RawKind::WakeupNew { target, .. } => [Some(target), None],
            RawKind::Migrate { from, to, .. } => [Some(from), Some(to)],
            RawKind::CpuOnline { cpu, .. } => [Some(cpu), None],
            _ => [None, None],
        };
        [Some(self.cpu), a, b]
    }
}

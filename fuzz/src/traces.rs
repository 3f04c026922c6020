// SPDX-License-Identifier: GPL-2.0-only
//! Trace files of any format: refused with a reason, or imported.
//!
//! Promises: no panic; importing twice gives the same events; times never decrease; each task of an
//! event has a name; the counts are those of the events; each fault has a sentence.

use std::io;

use scxlab_machine::Machine;
use scxlab_trace::import::{ImportError, Imported, import};
use scxlab_trace::{Event, EventKind, Names, Sink};

/// Checks a trace file.
pub fn check(data: &[u8]) {
    let imported = match run(data) {
        Err(error) => {
            assert!(!error.to_string().is_empty(), "a refusal without a reason");
            return;
        }
        Ok(imported) => imported,
    };
    let again = run(data).expect("as before");
    assert_eq!(imported.0, again.0, "importing is a function");
    let Imported { events, machine, .. } = &imported.1;
    assert_eq!(events.all(), imported.0.len() as u64);
    assert_eq!(imported.1.missing().is_empty(), has_all(&imported.1));
    assert!(imported.1.damage().iter().all(|sentence| !sentence.is_empty()));
    if let Some(Err(error)) = machine.as_ref().map(|text| Machine::from_toml("fuzz", text)) {
        assert!(!error.to_string().is_empty(), "a refusal without a reason");
    }
}

/// Whether the file has everything that `missing` speaks of. A file with its machine has all forks
/// and ends of tasks that there were.
fn has_all(imported: &Imported) -> bool {
    let events = &imported.events;
    let counts = [events.switches, events.wakeups_by_tasks, events.calls, events.attributes];
    let complete = counts.iter().all(|count| *count > 0);
    complete && imported.machine.is_some() && imported.blind_wakeups == 0
}

fn run(data: &[u8]) -> Result<(Vec<Event>, Imported), ImportError> {
    let mut events = Events::default();
    let imported = import("fuzz", data, &mut events)?;
    Ok((events.0, imported))
}

#[derive(Default)]
struct Events(Vec<Event>);

impl Sink for Events {
    fn event(&mut self, event: &Event, names: &Names) {
        assert!(self.0.last().is_none_or(|last| last.time <= event.time), "time goes back");
        let tasks = match event.kind {
            EventKind::Switch { prev, next, .. } => [prev, next],
            EventKind::Wakeup { task, waker, .. } => [Some(task), waker],
            EventKind::Fork { parent, child } => [parent, Some(child)],
            EventKind::Migrate { task, .. }
            | EventKind::Exit { task }
            | EventKind::Call { task, .. }
            | EventKind::Attributes { task } => [Some(task), None],
            _ => [None, None],
        };
        for task in tasks.into_iter().flatten() {
            assert!(names.task(task).is_some_and(|name| name.pid != 0), "{event:?}");
        }
        self.0.push(*event);
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

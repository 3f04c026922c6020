// SPDX-License-Identifier: GPL-2.0-only
//! Imports: what the writer of Perfetto files writes comes back, and files of other programs.

use scxlab_machine::TaskId;

use super::*;
use crate::event::{Event, EventKind};
use crate::names::{Names, TaskAttributes, TaskName};

mod damage;
mod foreign;
mod round_trip;

/// An event with what a reader sees of it. The ids of its tasks are replaced by their thread ids.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Seen {
    event: Event,
    /// The names of the tasks that the event is about.
    names: Vec<TaskName>,
    attributes: Option<TaskAttributes>,
}

#[derive(Default)]
struct Reader(Vec<Seen>);

impl Sink for Reader {
    fn event(&mut self, event: &Event, names: &Names) {
        let name = |task: TaskId| names.task(task).expect("a task has a name").clone();
        let tid = |task: TaskId| TaskId(name(task).pid);
        let mut seen = Seen { event: *event, names: Vec::new(), attributes: None };
        let about: Vec<TaskId> = match &mut seen.event.kind {
            EventKind::Switch { prev, next, .. } => {
                [prev, next].into_iter().filter_map(|task| subject(task, &tid)).collect()
            }
            EventKind::Wakeup { task, waker, .. } => {
                *waker = waker.map(tid);
                vec![std::mem::replace(task, tid(*task))]
            }
            EventKind::Migrate { task, .. } | EventKind::Exit { task } => {
                vec![std::mem::replace(task, tid(*task))]
            }
            EventKind::Fork { parent, child } => {
                *parent = parent.map(tid);
                *child = tid(*child);
                Vec::new()
            }
            EventKind::Call { task, .. } => {
                *task = tid(*task);
                Vec::new()
            }
            EventKind::Attributes { task } => {
                seen.attributes = names.attributes(*task).cloned();
                *task = tid(*task);
                Vec::new()
            }
            _ => Vec::new(),
        };
        seen.names = about.into_iter().map(name).collect();
        self.0.push(seen);
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Replaces a task by its thread id and returns the task.
fn subject(task: &mut Option<TaskId>, tid: &impl Fn(TaskId) -> TaskId) -> Option<TaskId> {
    let id = (*task)?;
    *task = Some(tid(id));
    Some(id)
}

fn read(bytes: &[u8]) -> (Vec<Seen>, Imported) {
    let mut reader = Reader::default();
    let imported = import("trace", bytes, &mut reader).unwrap();
    (reader.0, imported)
}

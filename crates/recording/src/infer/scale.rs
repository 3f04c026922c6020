// SPDX-License-Identifier: GPL-2.0-only
//! More or fewer clients: a workload whose load from outside is a multiple of the recorded one.
//!
//! Owns: which tasks are clients and which serve them, and the acts of each copy.
//!
//! - A *source* paces itself: it waits for no other task, or also for time or for something
//!   outside. A source with arrivals is *open*, because its requests come whatever it does.
//! - A task that only sources of one kind reach by wake-ups and channels belongs to that source,
//!   and is copied with it. A task that several sources reach is *shared*. It stays single, and
//!   serves the requests of all copies. The tasks behind an open source are shared, too.
//! - Tasks that wait for one another without any source are copied as a whole.
//!
//! A shared task's acts are split where a request begins: at a wait for a task that is nearer to
//! the sources, or at an arrival. Each such part belongs to the source that caused it, so that a
//! fraction of the clients takes its requests with it. The further arrivals of an open source are
//! drawn from its recorded gaps.
//!
//! Mutexes, and semaphores on which a pool of tasks waits, stay single.

mod clients;
mod copy;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use scxlab_machine::plural;
use scxlab_workload::program::{Op, Program};

use super::task::Item;
use super::{Copies, Plan};
use crate::history::TaskIndex;
use clients::{Clients, Place};

/// A factor in thousandths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Thousandths, at least 1.
    pub permille: u32,
}

impl Default for Scale {
    fn default() -> Scale {
        Scale { permille: 1000 }
    }
}

impl Scale {
    pub fn is_one(self) -> bool {
        self.permille == 1000
    }

    /// Returns the number of whole and begun copies.
    fn copies(self) -> u32 {
        self.permille.div_ceil(1000)
    }
}

impl fmt::Display for Scale {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{}.{:03}", self.permille / 1000, self.permille % 1000);
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

/// The number of a copy; 0 is the original.
pub type Copy = u32;

/// The acts of each task of each copy.
pub type Lists = BTreeMap<(Copy, TaskIndex), Vec<Item>>;

/// A scaled workload.
#[derive(Default)]
pub struct Scaled {
    pub lists: Lists,
    /// Names of threads and objects that each copy has for itself.
    private: BTreeSet<String>,
    /// Sentences on what was copied.
    pub notes: Vec<String>,
    scale: Scale,
}

/// Scales a workload.
pub fn scale(plan: &Plan<'_>, items: BTreeMap<TaskIndex, Vec<Item>>, copies: Copies) -> Scaled {
    let scale = copies.scale;
    if scale.is_one() {
        let lists = items.into_iter().map(|(task, items)| ((0, task), items)).collect();
        return Scaled { lists, scale, ..Scaled::default() };
    }
    let clients = Clients::of(plan, &items, copies.whole);
    let lists = copy::lists(plan, &clients, &items, copies);
    let (private, mut notes) = (clients.private_names(plan), clients.notes(plan, scale));
    notes.extend(inexact(&clients, &lists, scale));
    Scaled { lists, private, notes, scale }
}

/// Tells the number of groups of tasks that are copied together, if the factor does not lead to a
/// whole number of them.
fn inexact(clients: &Clients, lists: &Lists, scale: Scale) -> Option<String> {
    let group = |task: &TaskIndex| match clients.places[task] {
        Place::Private(unit) => Some(unit),
        _ => None,
    };
    let recorded: BTreeSet<_> = clients.places.keys().filter_map(group).collect();
    let copied: BTreeSet<_> =
        lists.keys().filter_map(|(copy, task)| Some((*copy, group(task)?))).collect();
    let (recorded, copied) = (recorded.len() as u64, copied.len() as u64);
    (recorded * u64::from(scale.permille) != copied * 1000).then(|| {
        format!(
            "scale={scale}: {} of tasks that depend on one another {} {copied}",
            plural(recorded, "group"),
            if recorded == 1 { "becomes" } else { "become" }
        )
    })
}

impl Scaled {
    /// Returns the name of a thread or an object in a copy.
    pub fn name(&self, copy: Copy, name: &str) -> String {
        match copy > 0 && self.private.contains(name) {
            true => format!("{name} #{}", copy + 1),
            false => name.to_owned(),
        }
    }

    /// Renames the thread or the objects of an op.
    pub fn rename(&self, copy: Copy, op: &mut Op) {
        match op {
            Op::Barrier(name)
            | Op::SemPost(name)
            | Op::SemWait(name)
            | Op::Fork(name)
            | Op::Write { pipe: name, .. }
            | Op::Read { pipe: name, .. } => *name = self.name(copy, name),
            Op::Poll { pipes, .. } => {
                pipes.iter_mut().for_each(|pipe| *pipe = self.name(copy, pipe));
            }
            _ => {}
        }
    }

    /// Returns the process of a task in a copy.
    pub fn process(&self, plan: &Plan<'_>, copy: Copy, tgid: u32) -> String {
        let name = format!("process {tgid}");
        let single = |t: TaskIndex| {
            let tgid_of = plan.history.tasks[t as usize].name.tgid;
            tgid_of == tgid && !self.private.contains(&plan.names[t as usize])
        };
        match copy == 0 || plan.tasks().any(single) {
            true => name,
            false => format!("{name} #{}", copy + 1),
        }
    }

    /// Returns the number of steps of a task in a pass: a task that serves all copies does more.
    pub fn steps(&self, task_name: &str, steps: u64) -> u64 {
        match self.private.contains(task_name) || self.scale.is_one() {
            true => steps,
            false => (steps * u64::from(self.scale.permille)).div_ceil(1000),
        }
    }

    /// Declares the objects of the copies.
    pub fn declare(&self, program: &mut Program) {
        for copy in 1..self.scale.copies() {
            let mut further = program.clone();
            let is_new = |name: &String| self.private.contains(name);
            further.barriers.retain(|b| is_new(&b.name));
            further.barriers.iter_mut().for_each(|b| b.name = self.name(copy, &b.name));
            further.pipes.retain(|p| is_new(&p.name));
            further.pipes.iter_mut().for_each(|p| p.name = self.name(copy, &p.name));
            further.semaphores.retain(|s| is_new(&s.name));
            further.semaphores.iter_mut().for_each(|s| s.name = self.name(copy, &s.name));
            program.barriers.extend(further.barriers);
            program.pipes.extend(further.pipes);
            program.semaphores.extend(further.semaphores);
        }
        for semaphore in &mut program.semaphores {
            let name = semaphore.name.rsplit_once(" #").map_or(&*semaphore.name, |split| split.0);
            if !self.private.contains(name) {
                let value = u64::from(semaphore.value) * u64::from(self.scale.permille);
                semaphore.value = u32::try_from(value.div_ceil(1000)).unwrap_or(u32::MAX);
            }
        }
    }
}

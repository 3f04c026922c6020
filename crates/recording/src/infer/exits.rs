// SPDX-License-Identifier: GPL-2.0-only
//! Waits for the end of a child, as of a shell or of `make`.
//!
//! Owns: which waits the end of a child ended, and how many ends the parent knew of after each. A
//! child that ends while its parent is awake wakes nobody, but the parent does not wait for it any
//! more. So each end counts, and a parent goes on after as many ends as in the recording, whichever
//! children are the first ones in the replay. That suits a parent that waits for any child, and one
//! that waits for all.
//! Does not: treat a parent that slept on while some of its children ended, and woke up while
//! others lived: it waits for one child.

use std::collections::{BTreeMap, BTreeSet};

use scxlab_machine::Nanos;

use super::{Plan, Wait, futexes};
use crate::history::{Origin, Step, TaskIndex};

/// Time for which a parent must have slept when another child ends to show that it does not wait
/// for that one: longer than a child takes from the wake-up of its parent to its end.
const ASLEEP: Nanos = 1_000_000;

/// The ends of children for which their parents wait.
#[derive(Default)]
pub struct Exits {
    /// The children of whose ends a wait tells, by parent and index of the wait.
    waits: BTreeMap<(TaskIndex, u32), Vec<TaskIndex>>,
    /// The children whose ends count.
    counted: BTreeSet<TaskIndex>,
}

/// The end of a child.
struct End {
    /// Time at which the parent could know of it.
    at: Nanos,
    child: TaskIndex,
    /// Index of the parent's wait that it ended.
    ended: Option<u32>,
}

impl Exits {
    pub fn of(plan: &Plan<'_>) -> Exits {
        let mut by_parent: BTreeMap<TaskIndex, Children> = BTreeMap::new();
        for child in plan.tasks() {
            let task = &plan.history.tasks[child as usize];
            let Origin::Fork(parent) = task.origin else { continue };
            let is_process = task.name.tgid != plan.history.tasks[parent as usize].name.tgid;
            if plan.is_kept(parent) && is_process {
                let end = end(plan, child, parent);
                let children = by_parent.entry(parent).or_default();
                children.lives.push((task.born, end.as_ref().map_or(Nanos::MAX, |end| end.at)));
                children.ends.extend(end);
            }
        }
        let mut exits = Exits::default();
        for (parent, mut children) in by_parent {
            children.ends.sort_by_key(|end| (end.at, end.child));
            if !children.one_is_waited_for(plan, parent) {
                exits.count(parent, &children.ends);
            }
        }
        exits
    }

    fn count(&mut self, parent: TaskIndex, ends: &[End]) {
        let mut known = Vec::new();
        for end in ends {
            known.push(end.child);
            if let Some(sleep) = end.ended {
                self.counted.extend(&known);
                self.waits.insert((parent, sleep), std::mem::take(&mut known));
            }
        }
    }

    /// Returns the children of whose ends a wait tells; None: it is no wait for a child's end.
    pub fn told_by(&self, task: TaskIndex, sleep: u32) -> Option<&[TaskIndex]> {
        self.waits.get(&(task, sleep)).map(Vec::as_slice)
    }

    /// Whether the parent of a task counts its end.
    pub fn counts(&self, child: TaskIndex) -> bool {
        self.counted.contains(&child)
    }
}

/// The children of a task that are processes.
#[derive(Default)]
struct Children {
    /// Begin and end of each; `Nanos::MAX`: it lived until the end of the recording.
    lives: Vec<(Nanos, Nanos)>,
    /// The ends, in order of time.
    ends: Vec<End>,
}

impl Children {
    /// Whether the parent slept on while a child ended, and woke up at the end of another one while
    /// a third one lived.
    fn one_is_waited_for(&self, plan: &Plan<'_>, parent: TaskIndex) -> bool {
        let sleeps = &plan.history.tasks[parent as usize].sleeps;
        let slept_on = |end: &&End| {
            let Some(sleep) = end.ended.map(|sleep| &sleeps[sleep as usize]) else { return false };
            let asleep = sleep.from.saturating_add(ASLEEP)..end.at;
            let first = self.ends.partition_point(|other| other.at < asleep.start);
            self.ends.get(first).is_some_and(|other| asleep.contains(&other.at))
        };
        let is_alive = |at: Nanos| move |(born, ended): &(Nanos, Nanos)| *born < at && *ended > at;
        self.ends.iter().filter(slept_on).any(|end| self.lives.iter().any(is_alive(end.at)))
    }
}

/// Returns the end of a child; None if it lived on.
fn end(plan: &Plan<'_>, child: TaskIndex, parent: TaskIndex) -> Option<End> {
    let tasks = &plan.history.tasks;
    let (task, of) = (&tasks[child as usize], &tasks[parent as usize]);
    let at = task.ended?;
    let last = task.steps.iter().rev().find(|step| !matches!(step, Step::Work(_)));
    let woken = match last {
        Some(&Step::Wake(other, sleep)) if other == parent => {
            let is_dependency = plan.wait(parent, sleep) == Wait::Dependency;
            (is_dependency && futexes::waited_on(of, sleep).is_none()).then_some(sleep)
        }
        _ => None,
    };
    let at = woken.and_then(|sleep| of.sleeps[sleep as usize].until).unwrap_or(at);
    Some(End { at, child, ended: woken })
}

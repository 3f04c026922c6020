// SPDX-License-Identifier: GPL-2.0-only
//! The critical path: the chain of tasks and waits that led to the end of the recording.
//!
//! Owns: the walk from the end backwards. From a task that was woken by another, the walk goes on
//! with the waker at the time of the wake-up; from a wait for something outside, with the same task
//! before the wait.

use std::collections::BTreeMap;

use scxlab_machine::Nanos;

use super::{OUTSIDE, kept, wait_before};
use crate::history::{History, Origin, TaskIndex, Waker};
use crate::infer::{Replay, role_name};

/// A part of the critical path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPart {
    /// Role whose tasks ran or were ready to run, or "outside" for waits.
    pub role: String,
    /// Length in ns.
    pub length: Nanos,
    /// Number of pieces.
    pub pieces: u64,
}

/// Maximum number of pieces of the path.
const PIECES_MAX: u64 = 1_000_000;

/// Returns the parts of the critical path, the longest first.
pub fn critical_path(history: &History, replay: &Replay) -> Vec<PathPart> {
    let mut parts: BTreeMap<String, (Nanos, u64)> = BTreeMap::new();
    let mut add = |role: String, length: Nanos| {
        let part = parts.entry(role).or_default();
        *part = (part.0.saturating_add(length), part.1 + 1);
    };
    let Some((mut task, mut at)) = last(history, replay) else { return Vec::new() };
    // The walk goes through each wait at most once: with a clock of microseconds, tasks can wake
    // each other several times at the same time.
    let mut earliest: BTreeMap<TaskIndex, u32> = BTreeMap::new();
    for _ in 0..PIECES_MAX {
        let t = &history.tasks[task as usize];
        let role = role_name(&t.name.comm);
        let earlier = |sleep: u32| match earliest.get(&task) {
            Some(bound) => sleep.min(bound.checked_sub(1)?).into(),
            None => Some(sleep),
        };
        let Some(sleep) = wait_before(t, at).and_then(earlier) else {
            let begin = t.born.max(history.start);
            add(role, at.saturating_sub(begin));
            match t.origin {
                Origin::Fork(parent) if replay.kept[parent as usize] => {
                    (task, at) = (parent, begin.min(at));
                    continue;
                }
                _ => break,
            }
        };
        earliest.insert(task, sleep);
        let sleep = t.sleeps[sleep as usize];
        let until = sleep.until.unwrap_or(at).min(at);
        add(role, at - until);
        match sleep.by {
            Waker::Task(waker) if replay.kept[waker as usize] && waker != task => {
                (task, at) = (waker, until);
            }
            _ => {
                add(OUTSIDE.to_owned(), until.saturating_sub(sleep.from));
                at = sleep.from.min(until.saturating_sub(1));
            }
        }
    }
    let part = |(role, (length, pieces))| PathPart { role, length, pieces };
    let mut parts: Vec<PathPart> = parts.into_iter().map(part).collect();
    parts.sort_by_key(|part| std::cmp::Reverse(part.length));
    parts
}

/// Returns the task that was active last, and the time until which it was.
fn last(history: &History, replay: &Replay) -> Option<(TaskIndex, Nanos)> {
    let until = |task: TaskIndex| {
        let t = &history.tasks[task as usize];
        let asleep = t.sleeps.last().filter(|s| s.until.is_none()).map(|s| s.from);
        t.ended.or(asleep).unwrap_or(history.end)
    };
    let active = kept(replay).map(|task| (task, until(task)));
    active.max_by_key(|(task, until)| (*until, history.tasks[*task as usize].run_ns))
}

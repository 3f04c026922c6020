// SPDX-License-Identifier: GPL-2.0-only
//! What the tasks of a workload did in its recording, as a run of the replay measures it.
//!
//! Owns: the figures. Does not: run a replay, or judge how like it is.

use scxlab_machine::Nanos;

use crate::history::{History, TaskHistory};
use crate::infer::Replay;

/// The figures of a recording, or of a run of its replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Length in ns: to the end of the last task, if all ended.
    pub length: Nanos,
    /// Units of work that were finished.
    pub units: u64,
    /// CPU time in ns.
    pub run_ns: Nanos,
    /// Time in run queues in ns.
    pub queue_ns: Nanos,
    /// Switches away from tasks that waited or ended.
    pub voluntary: u64,
    /// Switches away from tasks that could have gone on.
    pub involuntary: u64,
    pub wakeups: u64,
}

impl Figures {
    /// Returns the figures of the workload's tasks in the recording.
    pub fn of(history: &History, replay: &Replay) -> Figures {
        let mut all = Figures { units: replay.units, ..Figures::default() };
        let mut end = Some(history.start);
        let kept = history.tasks.iter().zip(&replay.kept).filter(|(_, kept)| **kept);
        for (task, _) in kept {
            let left = task.sleeps.len() as u64 + u64::from(task.ended.is_some());
            all.voluntary += left;
            all.involuntary += task.switches.saturating_sub(left);
            all.wakeups += wakeups(task);
            all.run_ns = all.run_ns.saturating_add(task.run_ns);
            all.queue_ns = all.queue_ns.saturating_add(task.wait_ns);
            end = end.zip(task.ended).map(|(a, b)| a.max(b));
        }
        all.length = end.unwrap_or(history.end).saturating_sub(history.start);
        all
    }
}

fn wakeups(task: &TaskHistory) -> u64 {
    task.sleeps.iter().filter(|sleep| sleep.until.is_some()).count() as u64
}

// SPDX-License-Identifier: GPL-2.0-only
//! What a native run gives back.
//!
//! Owns: the form of it, which also crosses from the director process to the caller (as JSON).

use scxlab_machine::id::Nanos;
use serde::{Deserialize, Serialize};

use super::error::OpError;
use crate::exec::LoopTotals;

/// The result of one native run. Times are nanoseconds; instants are CLOCK_MONOTONIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NativeReport {
    pub started_ns: Nanos,
    pub ended_ns: Nanos,
    pub stop: NativeStop,
    pub calibration: Calibration,
    /// One unit of finished work, singular.
    pub unit: String,
    /// Every thread in the order in which they were made, except those that `unlisted` counts.
    pub tasks: Vec<NativeTask>,
    /// Names of the templates; `NativeTask::template` is an index.
    pub templates: Vec<String>,
    /// Totals of forked threads whose records had to make room: there is a row for 16,384 of them.
    pub unlisted: Unlisted,
    /// System calls of the program that the kernel refused: the first hundred. The threads went on.
    pub errors: Vec<OpError>,
    pub nr_errors: u64,
    /// What a reader should know: what the machine could not do or measure.
    pub notes: Vec<String>,
}

impl NativeReport {
    /// How long the run was.
    pub fn length_ns(&self) -> Nanos {
        self.ended_ns.saturating_sub(self.started_ns)
    }

    /// Units of work that all threads finished.
    pub fn work_units(&self) -> u64 {
        let listed: u64 = self.tasks.iter().map(|t| t.work_units).sum();
        listed.saturating_add(self.unlisted.work_units)
    }

    /// What the passes of each template's phases add up to, by template name, as
    /// `Executor::loop_totals` gives it.
    pub fn loop_totals(&self) -> Vec<(&str, LoopTotals)> {
        let mut all: Vec<(&str, LoopTotals)> =
            self.templates.iter().map(|t| (t.as_str(), LoopTotals::default())).collect();
        for task in &self.tasks {
            if let Some((_, totals)) = all.get_mut(task.template as usize) {
                task.phases.add_to(totals);
            }
        }
        all
    }
}

/// Why the run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NativeStop {
    Duration,
    AllExited,
    /// Every thread that is left waits for another one: what each of them waits for.
    Deadlock(Vec<String>),
    /// The caller was asked to end (SIGINT, SIGTERM, SIGHUP), or ended.
    Interrupted(i32),
}

/// How fast the loop that `compute` is made of runs here: `iterations` take `ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calibration {
    pub iterations: u64,
    pub ns: Nanos,
    /// Where it was measured.
    pub cpu: u32,
}

impl Calibration {
    /// How many iterations are this much work.
    pub fn iterations_of(&self, work: Nanos) -> u64 {
        let exact = u128::from(work) * u128::from(self.iterations) / u128::from(self.ns.max(1));
        u64::try_from(exact).unwrap_or(u64::MAX)
    }
}

/// What one thread got, from the release of all threads until it ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NativeTask {
    pub name: String,
    pub tid: i32,
    pub tgid: i32,
    /// As it was at the end.
    pub nice: i8,
    /// Path within the program's cgroups, as it was at the end.
    pub cgroup: String,
    pub template: u32,
    pub instance: u32,
    pub forked: bool,
    pub end: TaskEnd,
    /// From the start of the run; of a thread that was there at the start, 0.
    pub began_ns: Nanos,
    pub ended_ns: Nanos,
    pub run_ns: Nanos,
    /// Time runnable and not running. None: the kernel keeps no such statistics.
    pub wait_ns: Option<Nanos>,
    pub switches_voluntary: u64,
    pub switches_involuntary: u64,
    /// None: the kernel does not tell.
    pub migrations: Option<u64>,
    pub work_units: u64,
    pub phases: PhaseTotals,
}

/// How a thread ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskEnd {
    /// It came to the end of its program.
    Exited,
    /// The run ended before.
    Stopped,
    /// Its process was ended by this signal; 9 also when it did not stop within the grace time.
    Killed(i32),
}

/// Totals of one thread's phases, as `LoopTotals` has them for a template.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseTotals {
    pub loops: u64,
    pub run: Nanos,
    pub missed: u64,
    pub woken: u64,
    pub wu_lat_sum: Nanos,
    pub wu_lat_max: Nanos,
    pub timed: u64,
    pub slack_sum: i64,
    pub slack_min: Option<i64>,
}

impl PhaseTotals {
    fn add_to(&self, totals: &mut LoopTotals) {
        totals.loops = totals.loops.saturating_add(self.loops);
        totals.run = totals.run.saturating_add(self.run);
        totals.missed = totals.missed.saturating_add(self.missed);
        totals.woken = totals.woken.saturating_add(self.woken);
        totals.wu_lat_sum = totals.wu_lat_sum.saturating_add(self.wu_lat_sum);
        totals.wu_lat_max = totals.wu_lat_max.max(self.wu_lat_max);
        totals.timed = totals.timed.saturating_add(self.timed);
        totals.slack_sum = totals.slack_sum.saturating_add(self.slack_sum);
        totals.slack_min = match (totals.slack_min, self.slack_min) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }
}

/// Sums over the threads that have no row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unlisted {
    pub tasks: u64,
    pub work_units: u64,
    pub run_ns: Nanos,
    pub wait_ns: Nanos,
    pub switches_voluntary: u64,
    pub switches_involuntary: u64,
}

// SPDX-License-Identifier: GPL-2.0-only
//! The result of a native run.
//!
//! Owns: the form of the report, in which the director also passes it to the caller (as JSON).

use scxlab_machine::id::Nanos;
use serde::{Deserialize, Serialize};

use super::error::OpError;
use crate::exec::{LoopTotals, RegionPages};
use crate::timers::TimerTotals;

/// The result of one native run. Times are nanoseconds; instants are CLOCK_MONOTONIC.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NativeReport {
    pub started_ns: Nanos,
    pub ended_ns: Nanos,
    pub stop: NativeStop,
    pub calibration: Calibration,
    /// Name of one unit of finished work, in the singular.
    pub unit: String,
    /// All threads in the order in which they were made, except those summed in `unlisted`. The
    /// threads of guests' processes follow, by guest, those of its virtual CPUs first.
    pub tasks: Vec<NativeTask>,
    /// Names of the templates, indexed by `NativeTask::template`.
    pub templates: Vec<String>,
    /// Totals of forked threads whose slots were reused: there are slots for 16,384 forked threads.
    pub unlisted: Unlisted,
    /// Where the pages of each region lay when its owner ended. The regions of processes that were
    /// killed are missing.
    #[serde(default)]
    pub regions: Vec<RegionPages>,
    /// Number of regions whose pages are unknown.
    #[serde(default)]
    pub uncounted: u64,
    /// The first hundred system calls of the program that the kernel refused. The threads continued
    /// after them.
    pub errors: Vec<OpError>,
    pub nr_errors: u64,
    /// Remarks for the reader, such as things that the machine could not do or measure.
    pub notes: Vec<String>,
}

impl NativeReport {
    /// Returns the length of the run.
    pub fn length_ns(&self) -> Nanos {
        self.ended_ns.saturating_sub(self.started_ns)
    }

    /// Returns the number of units of work that all threads finished.
    pub fn work_units(&self) -> u64 {
        let listed: u64 = self.tasks.iter().map(|t| t.work_units).sum();
        listed.saturating_add(self.unlisted.work_units)
    }

    /// Returns the totals about the timers of all threads.
    pub fn timer_totals(&self) -> TimerTotals {
        let mut totals = TimerTotals::default();
        self.tasks.iter().for_each(|task| totals.add(&task.timers));
        totals
    }

    /// Returns the totals of the passes of each template's phases, with the template's name, like
    /// `Executor::loop_totals`.
    pub fn loop_totals(&self) -> Vec<(&str, LoopTotals)> {
        let mut all: Vec<(&str, LoopTotals)> =
            self.templates.iter().map(|t| (t.as_str(), LoopTotals::default())).collect();
        for task in &self.tasks {
            if let Some((_, totals)) = all.get_mut(task.template as usize) {
                totals.loops = totals.loops.saturating_add(task.phases.loops);
                totals.run = totals.run.saturating_add(task.phases.run);
            }
        }
        all
    }
}

/// The reason why the run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NativeStop {
    Duration,
    AllExited,
    /// Every remaining thread waits for another one. Holds a description of each wait.
    Deadlock(Vec<String>),
    /// A signal made the director end the run: SIGINT, SIGTERM, SIGHUP or SIGQUIT. The director
    /// also gets SIGTERM when its parent ends. 0: the caller gave up, because a guest failed.
    Interrupted(i32),
}

/// Speed of the loop that executes `compute` on this machine: `iterations` take `ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Calibration {
    pub iterations: u64,
    pub ns: Nanos,
    /// CPU on which the speed was measured.
    pub cpu: u32,
}

impl Calibration {
    /// Returns the number of iterations that do this much work.
    pub fn iterations_of(&self, work: Nanos) -> u64 {
        let exact = u128::from(work) * u128::from(self.iterations) / u128::from(self.ns.max(1));
        u64::try_from(exact).unwrap_or(u64::MAX)
    }
}

/// Measurements of one thread, from the release of all threads until the thread ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NativeTask {
    pub name: String,
    /// Name by which the kernel knows the thread, if it is not the start of `name`: the threads of
    /// guests' processes have names of their own.
    #[serde(default)]
    pub comm: Option<String>,
    pub tid: i32,
    pub tgid: i32,
    /// Nice value at the end.
    pub nice: i8,
    /// Path within the program's cgroups at the end.
    pub cgroup: String,
    /// Index into `NativeReport::templates`; `u32::MAX` for a thread of a guest's process.
    pub template: u32,
    pub instance: u32,
    pub forked: bool,
    pub end: TaskEnd,
    /// Time from the start of the run until the thread began; 0 for a thread that existed at the
    /// start.
    pub began_ns: Nanos,
    pub ended_ns: Nanos,
    pub run_ns: Nanos,
    /// Time for which the thread was runnable but did not run. None if the kernel keeps no such
    /// statistics.
    pub wait_ns: Option<Nanos>,
    pub switches_voluntary: u64,
    pub switches_involuntary: u64,
    /// Number of migrations; None if the kernel does not report it.
    pub migrations: Option<u64>,
    pub work_units: u64,
    pub phases: LoopTotals,
    pub timers: TimerTotals,
}

/// How a thread ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TaskEnd {
    /// The thread reached the end of its program.
    Exited,
    /// The run ended before the thread did.
    Stopped,
    /// This signal ended the thread's process. The value is also SIGKILL (9) if the thread did not
    /// stop within the grace time.
    Killed(i32),
}

/// Sums over the threads that have no entry in `tasks`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unlisted {
    pub tasks: u64,
    pub work_units: u64,
    pub run_ns: Nanos,
    pub wait_ns: Nanos,
    pub switches_voluntary: u64,
    pub switches_involuntary: u64,
}

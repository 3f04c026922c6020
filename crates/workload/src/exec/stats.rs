// SPDX-License-Identifier: GPL-2.0-only
//! rt-app's log: what one pass of a phase took, and totals per template.
//!
//! Owns: the records. Times are nanoseconds; rt-app prints the same columns in microseconds.

use scxlab_kernel::behavior::Sys;
use scxlab_machine::id::{Nanos, TaskId};

use super::thread::Thread;
use super::{Executor, Flow};

/// One pass of a phase, in rt-app's columns (`perf` is left out: it counts loops of a calibrated function).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoopRecord {
    /// Passes of this thread before this one.
    pub idx: u64,
    /// Wall time within `run` and `runtime`.
    pub run: Nanos,
    pub period: Nanos,
    pub start: Nanos,
    pub end: Nanos,
    /// Start, from the start of the run. The same as `start`: virtual time begins at 0.
    pub rel_st: Nanos,
    /// Time left when the timer was reached; negative when it was late. The last timer's, or the sum with
    /// `cumulative_slack`.
    pub slack: i64,
    /// Configured length of the run events.
    pub c_duration: Nanos,
    /// Configured periods of the timers.
    pub c_period: Nanos,
    /// From a timer's expiry until the thread ran; 0 when the last timer was missed.
    pub wu_lat: Nanos,
    /// Timers that had expired before they were reached.
    pub missed: u32,
}

/// Receives each pass as it ends.
pub trait LoopObserver {
    fn on_loop(&mut self, task: TaskId, thread: &str, record: &LoopRecord);
}

/// Sums over the passes of all threads of a template.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoopTotals {
    pub loops: u64,
    pub run: Nanos,
    pub missed: u64,
    /// Passes whose timer woke the thread: those with a latency. One whose last timer was missed has none.
    pub woken: u64,
    pub wu_lat_sum: Nanos,
    pub wu_lat_max: Nanos,
    /// Passes that reached a timer: those with a slack.
    pub timed: u64,
    pub slack_sum: i64,
    pub slack_min: Option<i64>,
}

/// What began before the thread's last step and is to be measured when it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pending {
    None,
    Run { since: Nanos },
    TimerWake { due: Nanos },
}

/// The pass at hand.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Phase {
    pub idx: u64,
    pub start: Nanos,
    pub run: Nanos,
    pub slack: i64,
    pub has_timer: bool,
    pub c_duration: Nanos,
    pub c_period: Nanos,
    pub wu_lat: Nanos,
    /// A timer woke the thread, and none was missed after it.
    pub woken: bool,
    pub missed: u32,
}

impl Phase {
    pub fn slack(&mut self, due: Nanos, now: Nanos, cumulative: bool) {
        let slack = due.cast_signed().saturating_sub(now.cast_signed());
        self.slack = if cumulative { self.slack.saturating_add(slack) } else { slack };
        self.has_timer = true;
    }
}

impl Thread {
    /// Measures what was pending, now that the thread runs again.
    pub fn settle(&mut self, now: Nanos) {
        match std::mem::replace(&mut self.pending, Pending::None) {
            Pending::None => {}
            Pending::Run { since } => self.phase.run += now.saturating_sub(since),
            Pending::TimerWake { due } => {
                self.phase.wu_lat += now.saturating_sub(due);
                self.phase.woken = true;
            }
        }
    }

    /// A run event of this configured length begins.
    #[inline]
    pub fn note_run(&mut self, now: Nanos, configured: Nanos) {
        if self.phased {
            self.phase.c_duration = self.phase.c_duration.saturating_add(configured);
            self.pending = Pending::Run { since: now };
        }
    }
}

impl Executor {
    pub(super) fn phase_begin(&mut self, sys: &mut dyn Sys, t: usize) -> Flow {
        let start = sys.now();
        let phase = &mut self.threads[t].phase;
        *phase = Phase { idx: phase.idx, start, ..Phase::default() };
        Flow::Next
    }

    pub(super) fn phase_end(&mut self, sys: &mut dyn Sys, t: usize) -> Flow {
        let thread = &mut self.threads[t];
        let phase = &thread.phase;
        sys.count_work(thread.task, 1);
        let totals = &mut self.totals[thread.template as usize];
        totals.loops += 1;
        totals.run = totals.run.saturating_add(phase.run);
        totals.missed += u64::from(phase.missed);
        totals.woken += u64::from(phase.woken);
        totals.wu_lat_sum = totals.wu_lat_sum.saturating_add(phase.wu_lat);
        totals.wu_lat_max = totals.wu_lat_max.max(phase.wu_lat);
        if phase.has_timer {
            totals.timed += 1;
            totals.slack_sum = totals.slack_sum.saturating_add(phase.slack);
            let min = totals.slack_min.map_or(phase.slack, |min| min.min(phase.slack));
            totals.slack_min = Some(min);
        }
        if let Some(observer) = &mut self.observer {
            let record = record(phase, sys.now());
            observer.on_loop(thread.task, &thread.name, &record);
        }
        thread.phase.idx += 1;
        Flow::Next
    }
}

fn record(phase: &Phase, end: Nanos) -> LoopRecord {
    LoopRecord {
        idx: phase.idx,
        run: phase.run,
        period: end.saturating_sub(phase.start),
        start: phase.start,
        end,
        rel_st: phase.start,
        slack: phase.slack,
        c_duration: phase.c_duration,
        c_period: phase.c_period,
        wu_lat: phase.wu_lat,
        missed: phase.missed,
    }
}

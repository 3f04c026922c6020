// SPDX-License-Identifier: GPL-2.0-only
//! Measurements for rt-app's log: a record of each pass of a phase, and totals per thread template.
//!
//! Owns: the records. Times are in nanoseconds; rt-app prints the same columns in microseconds.

use std::collections::BTreeSet;

use scxlab_kernel::behavior::{Call, ChannelKind, Sys};
use scxlab_machine::id::{Nanos, TaskId};
use serde::{Deserialize, Serialize};

use super::pipe::channel_number;
use super::thread::Thread;
use super::{Executor, Flow};
use crate::compile::insn::TimerRef;
use crate::timers::TimerTotals;

/// One pass of a phase, in rt-app's columns (without `perf`, which counts loops of a calibrated
/// function).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoopRecord {
    /// Number of this thread's earlier passes.
    pub idx: u64,
    /// Wall time within `run` and `runtime` events.
    pub run: Nanos,
    pub period: Nanos,
    pub start: Nanos,
    pub end: Nanos,
    /// Start, relative to the start of the run. This equals `start`, because virtual time begins at
    /// 0.
    pub rel_st: Nanos,
    /// Time from the thread's arrival at the timer to the timer's expiry; negative if the thread
    /// was late. If a pass has several timers, this is the value of the last one, or with
    /// `cumulative_slack` the sum.
    pub slack: i64,
    /// Sum of the configured lengths of the pass's run events.
    pub c_duration: Nanos,
    /// Sum of the configured periods of the pass's timers.
    pub c_period: Nanos,
    /// Time from a timer's expiry until the thread ran, summed over the pass's timers; a missed
    /// timer resets the sum to 0.
    pub wu_lat: Nanos,
    /// Number of the pass's timers that had expired before the thread reached them.
    pub missed: u32,
}

/// Receives each pass of a phase as it ends.
pub trait LoopObserver {
    fn on_loop(&mut self, task: TaskId, thread: &str, record: &LoopRecord);
}

/// Sums over the passes of all threads of a template.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoopTotals {
    pub loops: u64,
    pub run: Nanos,
}

/// A measurement that began before the thread's last step and ends when the thread runs again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Pending {
    None,
    Run {
        since: Nanos,
    },
    TimerWake {
        due: Nanos,
    },
    /// Wake-ups that are left of the thread's last call (`Thread::wakes`).
    Wakes,
    /// A read that waited for its bytes, for the trace.
    Read {
        kind: ChannelKind,
        pipe: u32,
        bytes: u64,
    },
}

/// Measurements of the thread's current pass of a phase.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Phase {
    pub idx: u64,
    pub start: Nanos,
    pub run: Nanos,
    pub slack: i64,
    pub c_duration: Nanos,
    pub c_period: Nanos,
    pub wu_lat: Nanos,
    pub missed: u32,
}

impl Phase {
    pub fn slack(&mut self, due: Nanos, now: Nanos, cumulative: bool) {
        let slack = due.cast_signed().saturating_sub(now.cast_signed());
        self.slack = if cumulative { self.slack.saturating_add(slack) } else { slack };
    }
}

impl Thread {
    /// Completes the pending measurement, now that the thread runs again.
    pub fn settle(&mut self, sys: &mut dyn Sys, now: Nanos, timers: &mut TimerTotals) {
        match std::mem::replace(&mut self.pending, Pending::None) {
            Pending::None | Pending::Wakes => {}
            Pending::Run { since } => self.phase.run += now.saturating_sub(since),
            Pending::TimerWake { due } => {
                self.phase.wu_lat += now.saturating_sub(due);
                timers.latency(now.saturating_sub(due));
            }
            Pending::Read { kind, pipe, bytes } => {
                sys.note_call(Call::Read { object: channel_number(pipe as usize), kind, bytes });
            }
        }
    }

    /// Notes the beginning of a run event of this configured length.
    #[inline]
    pub fn note_run(&mut self, now: Nanos, configured: Nanos) {
        if self.phased {
            self.phase.c_duration = self.phase.c_duration.saturating_add(configured);
            self.pending = Pending::Run { since: now };
        }
    }
}

impl Executor {
    /// Returns the totals about timers of a run that ends at `end`. Timers that threads have not
    /// reached by then, or at which they have not been woken, count as late.
    pub fn timer_totals(&self, end: Nanos) -> TimerTotals {
        let mut totals = self.timer_totals;
        let mut shared = BTreeSet::new();
        for thread in self.threads.iter().filter(|thread| thread.serial != 0) {
            if let Pending::TimerWake { due } = thread.pending
                && due <= end
            {
                totals.latency(end - due);
            }
            for (timer, period) in self.compiled.timers_ahead(thread.pc as usize) {
                let state = match timer {
                    TimerRef::Own(slot) => thread.timers[slot as usize],
                    TimerRef::Shared(timer) => {
                        let timer = timer.index(&thread.binding);
                        if !shared.insert(timer) {
                            continue;
                        }
                        self.timers[timer]
                    }
                };
                let due = state.next.unwrap_or(thread.time_zero).saturating_add(period);
                totals.unreached(due, end, period);
            }
        }
        totals
    }

    pub(super) fn phase_begin(&mut self, sys: &mut dyn Sys, t: usize) -> Flow {
        let start = sys.now();
        let phase = &mut self.threads[t].phase;
        *phase = Phase { idx: phase.idx, start, ..Phase::default() };
        Flow::Next
    }

    pub(super) fn phase_end(&mut self, sys: &mut dyn Sys, t: usize) -> Flow {
        let thread = &mut self.threads[t];
        let phase = &thread.phase;
        sys.note_call(Call::Count { units: 1 });
        sys.count_work(thread.task, 1);
        let totals = &mut self.totals[thread.template as usize];
        totals.loops += 1;
        totals.run = totals.run.saturating_add(phase.run);
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

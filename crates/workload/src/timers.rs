// SPDX-License-Identifier: GPL-2.0-only
//! How late threads are for the timers of their programs.
//!
//! Owns: which periods count as missed, and the sums. The simulated and the native executor share
//! them. rt-app's log has figures of its own (`exec/stats.rs`), which are about passes of a phase.

use scxlab_machine::id::Nanos;
use serde::{Deserialize, Serialize};

use crate::compile::Compiled;
use crate::compile::insn::{Insn, TimerRef};

/// Sums over the timers of several threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TimerTotals {
    /// Number of periods at whose end the thread did not wait for the timer: it came late, a
    /// relative timer passed over them, or the run ended before it came.
    pub missed: u64,
    /// Number of latencies: from the end of a period until the thread went on, or until it reached
    /// the missed timer; for a timer that it did not reach, until the end of the run.
    pub latencies: u64,
    pub latency_sum: Nanos,
    pub latency_max: Nanos,
    /// Number of slacks: from the thread's arrival until the end of the period; negative if the
    /// thread came late, or if the run ended first.
    pub slacks: u64,
    pub slack_sum: i64,
    pub slack_min: Option<i64>,
}

impl TimerTotals {
    /// Notes that a thread reached a timer at `now`, whose period ends at `due`. A relative timer
    /// passes over the periods that have gone by.
    pub fn reached(&mut self, due: Nanos, now: Nanos, period: Nanos, absolute: bool) {
        self.slack(due.cast_signed().saturating_sub(now.cast_signed()), 1);
        if now >= due {
            let passed = if absolute { 0 } else { (now - due).checked_div(period).unwrap_or(0) };
            self.missed = self.missed.saturating_add(passed).saturating_add(1);
            self.latency(now - due);
        }
    }

    /// Notes the time from the end of a period until the thread that waited for it went on.
    pub fn latency(&mut self, late: Nanos) {
        self.latencies += 1;
        self.latency_sum = self.latency_sum.saturating_add(late);
        self.latency_max = self.latency_max.max(late);
    }

    fn slack(&mut self, slack: i64, count: u64) {
        self.slacks += count;
        self.slack_sum = self.slack_sum.saturating_add(slack);
        self.slack_min = Some(self.slack_min.map_or(slack, |min| min.min(slack)));
    }

    /// Notes the periods that ended by `end`, the first of them at `due`, while the thread was on
    /// its way to the timer.
    pub fn unreached(&mut self, due: Nanos, end: Nanos, period: Nanos) {
        if due > end || period == 0 {
            return;
        }
        let first = end - due;
        let count = first / period + 1;
        let sum = u128::from(count) * u128::from(first)
            - u128::from(period) * u128::from(count) * u128::from(count - 1) / 2;
        let sum = u64::try_from(sum).unwrap_or(Nanos::MAX);
        self.missed = self.missed.saturating_add(count);
        self.latencies = self.latencies.saturating_add(count);
        self.latency_sum = self.latency_sum.saturating_add(sum);
        self.latency_max = self.latency_max.max(first);
        self.slacks = self.slacks.saturating_add(count);
        self.slack_sum = self.slack_sum.saturating_sub_unsigned(sum);
        let slack = 0i64.saturating_sub_unsigned(first);
        self.slack_min = Some(self.slack_min.map_or(slack, |min| min.min(slack)));
    }

    pub fn add(&mut self, other: &TimerTotals) {
        self.missed = self.missed.saturating_add(other.missed);
        self.latencies = self.latencies.saturating_add(other.latencies);
        self.latency_sum = self.latency_sum.saturating_add(other.latency_sum);
        self.latency_max = self.latency_max.max(other.latency_max);
        self.slacks = self.slacks.saturating_add(other.slacks);
        self.slack_sum = self.slack_sum.saturating_add(other.slack_sum);
        self.slack_min = match (self.slack_min, other.slack_min) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }
}

impl Compiled {
    /// Returns the timers that a thread at `pc` comes to, each with its first period: those ahead,
    /// and those in a loop that it is in.
    pub fn timers_ahead(&self, pc: usize) -> Vec<(TimerRef, Nanos)> {
        let ends = self.templates.iter().map(|template| template.entry as usize);
        let end = ends.filter(|entry| *entry > pc).min().unwrap_or(self.code.len());
        let mut start = pc;
        for (at, insn) in self.code.iter().enumerate().take(end).skip(pc) {
            let (Insn::LoopNext { start: to, .. } | Insn::Jump(to)) = *insn else { continue };
            if (to as usize) < start && at >= pc {
                start = to as usize;
            }
        }
        let mut timers: Vec<(TimerRef, Nanos)> = Vec::new();
        for insn in &self.code[start.min(end)..end] {
            if let Insn::Timer { timer, period, .. } = *insn
                && !timers.iter().any(|(known, _)| *known == timer)
            {
                timers.push((timer, period));
            }
        }
        timers
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn late_is_missed_and_a_relative_timer_passes_over_periods() {
        let mut totals = TimerTotals::default();
        totals.reached(100, 60, 100, true);
        totals.latency(7);
        assert_eq!((totals.missed, totals.latencies, totals.slack_sum), (0, 1, 40));
        totals.reached(200, 450, 100, true);
        assert_eq!((totals.missed, totals.latency_max, totals.slack_min), (1, 250, Some(-250)));
        totals.reached(300, 550, 100, false);
        assert_eq!((totals.missed, totals.latencies, totals.slacks), (1 + 3, 3, 3));
    }

    proptest! {
        /// The sums over unreached periods are those of a loop over them.
        #[test]
        fn unreached_periods_count_one_by_one(due in 0u64..1000, end in 0u64..3000, period in 1u64..400) {
            let (mut sums, mut each) = (TimerTotals::default(), TimerTotals::default());
            sums.unreached(due, end, period);
            for at in (due..=end).step_by(period as usize) {
                each.reached(at, end, period, true);
            }
            prop_assert_eq!(sums, each);
        }
    }
}

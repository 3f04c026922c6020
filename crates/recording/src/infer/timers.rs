// SPDX-License-Identifier: GPL-2.0-only
//! Timers: periods that a task keeps, and arrivals from outside.
//!
//! Owns: the op `timer` for both. An arrival comes at its recorded time since the thread's begin,
//! however late the thread is.

use scxlab_machine::Nanos;
use scxlab_trace::Call;
use scxlab_workload::program::{Op, TimeSpan, TimerMode};

use super::Plan;
use crate::arrivals::ARRIVALS;
use crate::history::{Step, TaskIndex};

/// The timers of a pass of one task. Times are since the begin of its thread.
pub struct Timers {
    mode: TimerMode,
    /// Whether the task's own timer has one period, which a further pass can go on with.
    steady: bool,
    /// Times of the last expiry and of the last arrival.
    last_call: Option<Nanos>,
    last_arrival: Option<Nanos>,
}

impl Timers {
    pub fn of(plan: &Plan<'_>, task: TaskIndex) -> Timers {
        let mut calls: Vec<(Nanos, Nanos)> = Vec::new();
        for step in &plan.history.tasks[task as usize].steps {
            if let Step::Call(now, Call::SleepUntil { at }) = *step {
                calls.push((now, at));
            }
        }
        let periods = calls.windows(2).map(|pair| pair[1].1.saturating_sub(pair[0].1));
        let period = super::futexes::median(periods.collect()).unwrap_or(0);
        let steady = |pair: &&[(Nanos, Nanos)]| pair[1].1.saturating_sub(pair[0].1) == period;
        let count = calls.windows(2).filter(steady).count();
        // A late caller of a relative timer gets a whole period from then on.
        let restarts = |pair: &[(Nanos, Nanos)]| {
            let (now, at) = pair[0];
            now >= at && pair[1].1.saturating_sub(at) > period + period / 100
        };
        let relative = calls.windows(2).any(restarts);
        Timers {
            mode: if relative { TimerMode::Relative } else { TimerMode::Absolute },
            steady: calls.len() > 2 && (count + 1) * 10 >= calls.len() * 9 || relative,
            last_call: None,
            last_arrival: None,
        }
    }

    /// Returns the op for a system call that sleeps until `at`.
    pub fn call(&mut self, at: Nanos) -> Op {
        let period = at.saturating_sub(self.last_call.unwrap_or(0));
        self.last_call = Some(at.max(self.last_call.unwrap_or(0)));
        timer("timer", period, self.mode)
    }

    /// Returns the op for an arrival at `at`.
    pub fn arrival(&mut self, at: Nanos) -> Op {
        let period = at.saturating_sub(self.last_arrival.unwrap_or(0));
        self.last_arrival = Some(at.max(self.last_arrival.unwrap_or(0)));
        timer(ARRIVALS, period, TimerMode::Absolute)
    }

    /// Returns the op that waits for the end of the pass, if the pass has times of its own.
    pub fn rest(&mut self, end: Nanos) -> Option<Op> {
        match (self.last_arrival, self.last_call) {
            (Some(last), _) if last < end => Some(self.arrival(end)),
            (None, Some(last)) if !self.steady && last < end => Some(self.call(end)),
            _ => None,
        }
    }
}

fn timer(name: &str, period: Nanos, mode: TimerMode) -> Op {
    Op::Timer { name: name.to_owned(), period: TimeSpan(period), mode, unique: true }
}

// SPDX-License-Identifier: GPL-2.0-only
//! Timers: periods that a task keeps, and arrivals from outside.
//!
//! Owns: the op `timer` for both, and the difference between a period and a delay. An arrival comes
//! at its recorded time since the thread's begin, however late the thread is.

use scxlab_machine::Nanos;
use scxlab_trace::Call;
use scxlab_workload::program::{Op, TimeSpan, TimerMode};

use super::Plan;
use crate::arrivals::ARRIVALS;
use crate::history::{Step, TaskHistory, TaskIndex};

/// Least number of calls that show a delay.
const FEW_CALLS: usize = 8;

/// The timers of a pass of one task. Times are since the begin of its thread.
pub struct Timers {
    mode: TimerMode,
    /// Whether the task's own timer has one period, which a further pass can go on with.
    steady: bool,
    /// Whether the calls are delays, which are no timers.
    delays: bool,
    /// Times of the last expiry and of the last arrival.
    last_call: Option<Nanos>,
    last_arrival: Option<Nanos>,
}

/// The system calls of a task that sleep until a time: when each was made, and that time.
struct Calls(Vec<(Nanos, Nanos)>);

impl Calls {
    fn of(task: &TaskHistory) -> Calls {
        let call = |step: &Step| match *step {
            Step::Call(now, Call::SleepUntil { at }) => Some((now, at)),
            _ => None,
        };
        Calls(task.steps.iter().filter_map(call).collect())
    }

    fn period(&self) -> Nanos {
        let periods = self.0.windows(2).map(|pair| pair[1].1.saturating_sub(pair[0].1));
        super::futexes::median(periods.collect()).unwrap_or(0)
    }

    /// Whether nine of ten calls keep one period.
    fn keep_a_period(&self) -> bool {
        let period = self.period();
        let steady = |pair: &&[(Nanos, Nanos)]| pair[1].1.saturating_sub(pair[0].1) == period;
        let count = self.0.windows(2).filter(steady).count();
        self.0.len() > 2 && (count + 1) * 10 >= self.0.len() * 9
    }

    /// Whether a late caller gets a whole period from then on.
    fn restart(&self) -> bool {
        let period = self.period();
        self.0.windows(2).any(|pair| {
            let (now, at) = pair[0];
            now >= at && pair[1].1.saturating_sub(at) > period + period / 100
        })
    }

    /// Whether nine of ten calls are made nearly the same time before their expiry, and keep no
    /// period: the task adds a delay to the clock, as the timed waits of most runtimes do.
    fn are_delays(&self) -> bool {
        let lengths: Vec<Nanos> = self.0.iter().map(|(now, at)| at.saturating_sub(*now)).collect();
        let Some(middle) = super::futexes::median(lengths.clone()).filter(|middle| *middle > 0)
        else {
            return false;
        };
        let near = lengths.iter().filter(|l| super::waits::is_near(**l, middle)).count();
        lengths.len() >= FEW_CALLS && near * 10 >= lengths.len() * 9 && !self.keep_a_period()
    }
}

/// Whether the task's sleeps until a time are delays.
pub fn are_delays(task: &TaskHistory) -> bool {
    Calls::of(task).are_delays()
}

impl Timers {
    pub fn of(plan: &Plan<'_>, task: TaskIndex) -> Timers {
        let calls = Calls::of(&plan.history.tasks[task as usize]);
        let relative = calls.restart();
        Timers {
            mode: if relative { TimerMode::Relative } else { TimerMode::Absolute },
            steady: calls.keep_a_period() || relative,
            delays: calls.are_delays(),
            last_call: None,
            last_arrival: None,
        }
    }

    /// Returns the op for a system call that sleeps until `at`, if it is no delay.
    pub fn call(&mut self, at: Nanos) -> Option<Op> {
        if self.delays {
            return None;
        }
        let period = at.saturating_sub(self.last_call.unwrap_or(0));
        self.last_call = Some(at.max(self.last_call.unwrap_or(0)));
        Some(timer("timer", period, self.mode))
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
            (None, Some(last)) if !self.steady && last < end => self.call(end),
            _ => None,
        }
    }
}

fn timer(name: &str, period: Nanos, mode: TimerMode) -> Op {
    Op::Timer { name: name.to_owned(), period: TimeSpan(period), mode, unique: true }
}

// SPDX-License-Identifier: GPL-2.0-only
//! The executor between the kernel and whoever wants to know how far a run is.
//!
//! Owns: when that is told. Does not: change what the executor does.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use scxlab_kernel::behavior::{Behavior, Step, Sys};
use scxlab_machine::id::{Nanos, TaskId};
use scxlab_workload::Executor;

/// An executor that says how far it is.
pub struct Watched {
    pub executor: Executor,
    progress: Arc<AtomicU64>,
    /// When progress is reported next.
    due: Nanos,
}

/// Virtual time between two reports of progress: so long that runs do not wait for cache lines that other threads write.
const REPORT_EVERY: Nanos = 10_000_000;

impl Watched {
    pub fn new(executor: Executor, progress: Arc<AtomicU64>) -> Watched {
        Watched { executor, progress, due: 0 }
    }

    #[inline]
    fn report(&mut self, now: Nanos) {
        if now >= self.due {
            self.report_due(now);
        }
    }

    /// Only this run writes it; readers want an idea, not an order.
    #[cold]
    fn report_due(&mut self, now: Nanos) {
        self.due = now + REPORT_EVERY;
        self.progress.store(now, Ordering::Relaxed);
    }
}

impl Behavior for Watched {
    fn start(&mut self, sys: &mut dyn Sys) {
        self.executor.start(sys);
    }

    fn step(&mut self, sys: &mut dyn Sys, task: TaskId) -> Step {
        let now = sys.now();
        self.report(now);
        self.executor.step_at(sys, task, now)
    }

    fn on_timer(&mut self, sys: &mut dyn Sys, token: u64) {
        self.report(sys.now());
        self.executor.on_timer(sys, token);
    }

    fn soon(&self, task: TaskId) {
        self.executor.soon(task);
    }

    fn unit(&self) -> &str {
        self.executor.unit()
    }

    fn waits_for(&self, task: TaskId) -> Option<String> {
        self.executor.waits_for(task)
    }
}

/// A workload of nothing.
pub struct Nothing;

impl Behavior for Nothing {
    fn start(&mut self, _: &mut dyn Sys) {}

    fn step(&mut self, _: &mut dyn Sys, _: TaskId) -> Step {
        Step::Exit
    }

    fn on_timer(&mut self, _: &mut dyn Sys, _: u64) {}

    fn unit(&self) -> &str {
        "unit"
    }

    fn waits_for(&self, _: TaskId) -> Option<String> {
        None
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! The executor between the kernel and whoever wants to know how far a run is and how its loops went.
//!
//! Owns: sharing it. Does not: change what it does.

use std::cell::{Ref, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use scxlab_kernel::behavior::{Behavior, Step, Sys};
use scxlab_machine::id::{Nanos, TaskId};
use scxlab_workload::Executor;

/// A handle on the executor that a kernel runs.
#[derive(Clone)]
pub struct Watched {
    executor: Rc<RefCell<Executor>>,
    progress: Arc<AtomicU64>,
    /// When progress is reported next.
    due: Nanos,
}

/// Virtual time between two reports of progress.
const REPORT_EVERY: Nanos = 1_000_000;

impl Watched {
    pub fn new(executor: Executor, progress: Arc<AtomicU64>) -> Watched {
        Watched { executor: Rc::new(RefCell::new(executor)), progress, due: 0 }
    }

    pub fn executor(&self) -> Ref<'_, Executor> {
        self.executor.borrow()
    }

    /// Only this run writes it; readers want an idea, not an order.
    fn report(&mut self, now: Nanos) {
        if now >= self.due {
            self.due = now + REPORT_EVERY;
            self.progress.store(now, Ordering::Relaxed);
        }
    }
}

impl Behavior for Watched {
    fn start(&mut self, sys: &mut dyn Sys) {
        self.executor.borrow_mut().start(sys);
    }

    fn step(&mut self, sys: &mut dyn Sys, task: TaskId) -> Step {
        self.report(sys.now());
        self.executor.borrow_mut().step(sys, task)
    }

    fn on_timer(&mut self, sys: &mut dyn Sys, token: u64) {
        self.report(sys.now());
        self.executor.borrow_mut().on_timer(sys, token);
    }

    fn soon(&self, task: TaskId) {
        self.executor.borrow().soon(task);
    }

    /// The kernel does not ask; the executor's own answer cannot be lent out of the cell.
    fn unit(&self) -> &str {
        "unit"
    }

    fn waits_for(&self, task: TaskId) -> Option<String> {
        self.executor.borrow().waits_for(task)
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

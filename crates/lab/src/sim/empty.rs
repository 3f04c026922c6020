// SPDX-License-Identifier: GPL-2.0-only
//! A workload without tasks, for kernels that objects are only linked against.

use scxlab_kernel::behavior::{Behavior, Sys, TaskStep};
use scxlab_machine::id::TaskId;

pub struct EmptyWorkload;

impl Behavior for EmptyWorkload {
    fn start(&mut self, _: &mut dyn Sys) {}

    fn step(&mut self, _: &mut dyn Sys, _: TaskId) -> TaskStep {
        TaskStep::Exit
    }

    fn on_timer(&mut self, _: &mut dyn Sys, _: u64) {}

    fn unit(&self) -> &str {
        "unit"
    }

    fn waits_for(&self, _: TaskId) -> Option<String> {
        None
    }
}

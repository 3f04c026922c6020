// SPDX-License-Identifier: GPL-2.0-only
//! Co-scheduling: how much of the time the tasks of a cgroup run at the same time.
//!
//! Owns: the number of a cgroup's own tasks that wait and that run, and the time in which all of
//! them ran at once.
//! Does not: count tasks of descendant cgroups. The time at which a task begins to wait, to run or
//! to sleep is taken from the clock of the CPU on which the kernel makes this change.

use crate::cgroup::CgroupTable;
use crate::kernel::Kernel;
use crate::task::Task;
use scxlab_machine::id::{CgroupId, Nanos, TaskId};

/// State of a task in its cgroup's account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CoschedState {
    Waits,
    Runs,
    /// The task sleeps, is gone, or has not started yet.
    #[default]
    Absent,
}

/// Co-scheduling account of one cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CoschedTime {
    /// Number of tasks, indexed by `CoschedState`. A new task is not added to the count of
    /// `Absent`, so that count may be negative.
    tasks: [i32; 3],
    since: Nanos,
    /// Time in which two or more tasks were runnable and at least one ran.
    pub some_ns: Nanos,
    /// Part of `some_ns` in which as many tasks ran as possible: all of them, or one on each CPU.
    pub all_ns: Nanos,
}

impl CoschedTime {
    /// Accounts the time since the last call, up to `at`. Adds it to `some_ns` if two or more tasks
    /// were runnable and at least one ran, and also to `all_ns` if as many ran as possible.
    #[inline]
    pub fn settle(&mut self, at: Nanos, nr_cpus: u32) {
        let Some(time) = at.checked_sub(self.since) else { return };
        self.since = at;
        let [waits, runs, _] = self.tasks;
        // This time does not count if no task of the cgroup runs, or if only one is runnable.
        if runs == 0 || waits + runs < 2 {
            return;
        }
        self.some_ns += time;
        if waits == 0 || runs as u32 >= nr_cpus {
            self.all_ns += time;
        }
    }

    #[inline]
    fn add(&mut self, state: CoschedState) {
        self.tasks[state as usize] += 1;
    }

    #[inline]
    fn remove(&mut self, state: CoschedState) {
        let count = &mut self.tasks[state as usize];
        *count -= 1;
        debug_assert!(
            state == CoschedState::Absent || *count >= 0,
            "the count of {state:?} would be negative"
        );
    }
}

impl Kernel {
    /// Moves a task from the account of one cgroup to that of another.
    pub(crate) fn move_cosched_state(&mut self, task: TaskId, from: CgroupId, to: CgroupId) {
        let (at, state) = (self.clock(), self.tasks[task].account.cosched_state);
        let nr_cpus = self.cpus.len() as u32;
        if let Some(group) = self.cgroups.get_mut(from) {
            group.cosched.settle(at, nr_cpus);
            group.cosched.remove(state);
        }
        if let Some(group) = self.cgroups.get_mut(to) {
            group.cosched.settle(at, nr_cpus);
            group.cosched.add(state);
        }
    }
}

impl Task {
    /// Records that the task waits, runs or is absent from `at` on.
    #[inline]
    pub(crate) fn set_cosched_state(
        &mut self,
        state: CoschedState,
        at: Nanos,
        cgroups: &mut CgroupTable,
        nr_cpus: u32,
    ) {
        let old = std::mem::replace(&mut self.account.cosched_state, state);
        if old != state
            && let Some(group) = cgroups.get_mut(self.cgroup)
        {
            group.cosched.settle(at, nr_cpus);
            group.cosched.remove(old);
            group.cosched.add(state);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn co_scheduled_time_needs_all_tasks_or_all_cpus_to_run() {
        let mut g = CoschedTime::default();
        let mut at = |time, change: &dyn Fn(&mut CoschedTime)| {
            g.settle(time, 2);
            change(&mut g);
            (g.some_ns, g.all_ns)
        };
        at(0, &|g| g.add(CoschedState::Waits));
        at(10, &|g| g.add(CoschedState::Waits));
        assert_eq!(at(20, &|g| g.tasks = [1, 1, 0]), (0, 0), "nobody ran");
        assert_eq!(at(30, &|g| g.tasks = [0, 2, 0]), (10, 0), "one of two ran");
        assert_eq!(at(50, &|g| g.add(CoschedState::Waits)), (30, 20), "both ran");
        assert_eq!(at(60, &|g| g.tasks = [1, 0, 0]), (40, 30), "two of three on two CPUs");
        assert_eq!(at(99, &|g| g.tasks = [0, 1, 0]), (40, 30));
        assert_eq!(at(120, &|_| ()), (40, 30), "one alone is with nobody");
        assert_eq!(at(110, &|_| ()), (40, 30), "no time goes back");
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! Co-scheduling: how much of the time the tasks of a cgroup run together.
//!
//! Owns: who of a cgroup's own tasks is runnable, who runs, and for how long that was all of them at once.
//! Does not: count what is below the cgroup. Times are those of the CPUs that make the changes.

use crate::kernel::Kernel;
use scxlab_machine::id::{CgroupId, Nanos, TaskId};

/// Where a task is, as seen from its cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Presence {
    /// It sleeps, or is gone, or not there yet.
    #[default]
    Absent,
    Waits,
    Runs,
}

/// Of one cgroup.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Together {
    waits: u32,
    runs: u32,
    since: Nanos,
    /// Time in which two or more were runnable and at least one ran.
    pub some_ns: Nanos,
    /// The part of it in which as many ran as can: all of them, or one on each CPU.
    pub all_ns: Nanos,
}

impl Together {
    /// Accounts for what was until `at`.
    pub fn settle(&mut self, at: Nanos, nr_cpus: u32) {
        let time = at.saturating_sub(self.since);
        self.since = self.since.max(at);
        let runnable = self.waits + self.runs;
        if runnable < 2 || self.runs == 0 {
            return;
        }
        self.some_ns += time;
        if self.runs >= runnable.min(nr_cpus) {
            self.all_ns += time;
        }
    }

    fn add(&mut self, presence: Presence) {
        match presence {
            Presence::Absent => {}
            Presence::Waits => self.waits += 1,
            Presence::Runs => self.runs += 1,
        }
    }

    fn remove(&mut self, presence: Presence) {
        match presence {
            Presence::Absent => {}
            Presence::Waits => self.waits -= 1,
            Presence::Runs => self.runs -= 1,
        }
    }
}

impl Kernel {
    /// A task waits, runs or sleeps from `at` on.
    pub(crate) fn note_presence(&mut self, task: TaskId, presence: Presence, at: Nanos) {
        let t = &mut self.tasks[task];
        let (old, group) = (t.account.presence, t.cgroup);
        t.account.presence = presence;
        if old != presence {
            self.change_together(group, at, |g| {
                g.remove(old);
                g.add(presence);
            });
        }
    }

    /// A task went from one cgroup to another.
    pub(crate) fn move_presence(&mut self, task: TaskId, from: CgroupId, to: CgroupId) {
        let (at, presence) = (self.clock(), self.tasks[task].account.presence);
        self.change_together(from, at, |g| g.remove(presence));
        self.change_together(to, at, |g| g.add(presence));
    }

    fn change_together(&mut self, group: CgroupId, at: Nanos, change: impl Fn(&mut Together)) {
        let nr_cpus = self.cpus.len() as u32;
        if let Some(group) = self.cgroups.get_mut(group) {
            group.together.settle(at, nr_cpus);
            change(&mut group.together);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn together_is_when_as_many_run_as_can() {
        let mut g = Together::default();
        let mut at = |time, change: &dyn Fn(&mut Together)| {
            g.settle(time, 2);
            change(&mut g);
            (g.some_ns, g.all_ns)
        };
        at(0, &|g| g.add(Presence::Waits));
        at(10, &|g| g.add(Presence::Waits));
        assert_eq!(at(20, &|g| (g.waits, g.runs) = (1, 1)), (0, 0), "nobody ran");
        assert_eq!(at(30, &|g| (g.waits, g.runs) = (0, 2)), (10, 0), "one of two ran");
        assert_eq!(at(50, &|g| g.add(Presence::Waits)), (30, 20), "both ran");
        assert_eq!(at(60, &|g| (g.waits, g.runs) = (1, 0)), (40, 30), "two of three on two CPUs");
        assert_eq!(at(99, &|g| (g.waits, g.runs) = (0, 1)), (40, 30));
        assert_eq!(at(120, &|_| ()), (40, 30), "one alone is with nobody");
        assert_eq!(at(110, &|_| ()), (40, 30), "no time goes back");
    }
}

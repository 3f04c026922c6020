// SPDX-License-Identifier: GPL-2.0-only
//! Time for which CPUs are idle while tasks wait that may run on them.
//!
//! Owns: which CPUs are idle, and how many tasks wait for which sets of CPUs.
//!
//! At each time as many CPUs count as could be given a waiting task, each task once. Tasks of small
//! sets get their CPUs first. Where sets overlap and none contains the other, that can find fewer
//! CPUs than possible.

use scxlab_machine::cpumask;
use scxlab_machine::id::{CpuId, Nanos};
use scxlab_machine::{CpuMask, Machine};

use crate::task::Task;

#[derive(Clone, Debug, Default)]
pub struct IdleWhileWaiting {
    idle: CpuMask,
    nr_idle: u32,
    /// Number of waiting tasks that may run on all CPUs.
    waiting: u32,
    /// The other waiting tasks by their sets of CPUs, the smallest set first.
    bound: Vec<(CpuMask, u32)>,
    /// Number of CPUs that count, since `since`.
    level: u32,
    since: Nanos,
    total: Nanos,
}

impl IdleWhileWaiting {
    /// Returns the account of a machine whose CPUs are all idle.
    pub(crate) fn new(machine: &Machine) -> IdleWhileWaiting {
        let nr_cpus = machine.topology.nr_cpus();
        let idle = CpuMask::all(nr_cpus);
        IdleWhileWaiting { idle, nr_idle: nr_cpus as u32, ..IdleWhileWaiting::default() }
    }

    /// Returns the number of CPUs that count at present.
    pub fn level(&self) -> u32 {
        self.level
    }

    /// Returns the time of all CPUs until `now`.
    pub fn until(&self, now: Nanos) -> Nanos {
        self.total + u64::from(self.level) * now.saturating_sub(self.since)
    }

    /// Notes that a CPU has become idle, or busy.
    #[inline]
    pub(crate) fn set_idle(&mut self, cpu: CpuId, is_idle: bool, at: Nanos) {
        if cpumask::test(&self.idle, cpu) == is_idle {
            return;
        }
        if is_idle {
            cpumask::set(&mut self.idle, cpu);
            self.nr_idle += 1;
        } else {
            cpumask::clear(&mut self.idle, cpu);
            self.nr_idle -= 1;
        }
        self.changed(at);
    }

    /// Notes that a task has begun to wait.
    #[inline]
    pub(crate) fn begin(&mut self, task: &Task, at: Nanos) {
        match task.all_cpus_allowed {
            true => self.waiting += 1,
            false => self.bind(&task.cpus),
        }
        self.changed(at);
    }

    /// Notes that a task waits no longer.
    #[inline]
    pub(crate) fn end(&mut self, task: &Task, at: Nanos) {
        match task.all_cpus_allowed {
            true => self.waiting = self.waiting.saturating_sub(1),
            false => self.release(&task.cpus),
        }
        self.changed(at);
    }

    #[cold]
    fn bind(&mut self, cpus: &CpuMask) {
        match self.bound.iter_mut().find(|(set, _)| set == cpus) {
            Some((_, count)) => *count += 1,
            None => {
                let weight = cpumask::weight(cpus);
                let at = self.bound.partition_point(|(set, _)| cpumask::weight(set) <= weight);
                self.bound.insert(at, (cpus.clone(), 1));
            }
        }
    }

    #[cold]
    fn release(&mut self, cpus: &CpuMask) {
        if let Some(at) = self.bound.iter().position(|(set, _)| set == cpus) {
            self.bound[at].1 -= 1;
            if self.bound[at].1 == 0 {
                self.bound.remove(at);
            }
        }
    }

    /// Counts the time before a change. A CPU's clock can be ahead of the events of others by the
    /// step that it is in; such a change counts from the latest time so far.
    #[inline]
    fn changed(&mut self, at: Nanos) {
        self.total += u64::from(self.level) * at.saturating_sub(self.since);
        self.since = self.since.max(at);
        self.level = match self.bound.is_empty() || self.nr_idle == 0 {
            true => self.nr_idle.min(self.waiting),
            false => self.matched(),
        };
    }

    /// Returns the number of idle CPUs that waiting tasks could have.
    #[cold]
    fn matched(&self) -> u32 {
        let mut free = self.idle.clone();
        let mut left = self.nr_idle;
        for (set, count) in &self.bound {
            for _ in 0..*count {
                let Some(cpu) = cpumask::first_and(&free, set) else { break };
                cpumask::clear(&mut free, cpu);
                left -= 1;
            }
        }
        self.nr_idle - left + left.min(self.waiting)
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! Prefetching: brings the data of the next events into the host's caches while the present event
//! is handled.
//!
//! Owns: the choice of data, and the machine size from which on it is used (together with huge
//! pages).
//! Does not: change anything that a run can see.
//!
//! On a large machine an event finds its CPU and its task in no near cache, because thousands of
//! others came between. The queue shows which events come next: the lane of the present event holds
//! the following ones of its kind. For an event two places further on (*far*), its CPU or task is
//! prefetched; for the next one (*near*), the data that these refer to.

use crate::abi;
use crate::cpu::HOT_CPU_BYTES;
use crate::event::Event;
use crate::ext::dsq::HOT_DSQ_BYTES;
use crate::kernel::Kernel;
use crate::task::HOT_TASK_BYTES;
use scxlab_machine::id::{CpuId, TaskId};
use scxlab_machine::prefetch::{prefetch, prefetch_first};

/// Number of CPUs from which on prefetching is used. With fewer, all CPUs and their tasks stay in
/// the second-level cache, and prefetching costs more than it saves: 7 % with 64 CPUs. With 1,024
/// CPUs it saves a third.
pub(crate) const FROM_CPUS: usize = 128;

/// Places behind the head of the present event's lane.
const NEAR: usize = 0;
const FAR: usize = 2;

/// Bytes at the start of a `task_struct` that the kernel writes at every switch.
const HOT_SEEN_BYTES: usize = 512;

impl Kernel {
    #[inline]
    pub(crate) fn look_ahead(&self) {
        if !self.looks_ahead {
            return;
        }
        if let Some(due) = self.events.ahead(FAR) {
            match due.what {
                Event::StepEnd { cpu, .. } | Event::Tick { cpu, .. } => self.cpu_ahead(cpu),
                Event::SleepEnd { task, .. } => self.task_ahead(task),
                _ => {}
            }
        }
        if let Some(due) = self.events.ahead(NEAR) {
            match due.what {
                Event::StepEnd { cpu, .. } => {
                    let curr = self.cpus[cpu.idx()].curr;
                    self.task_ahead(curr);
                    self.behavior_ahead(curr);
                }
                Event::Tick { cpu, .. } => self.task_ahead(self.cpus[cpu.idx()].curr),
                Event::SleepEnd { task, .. } => {
                    if let Some(t) = self.tasks.get(task) {
                        self.cpu_ahead(t.cpu);
                    }
                }
                _ => {}
            }
        }
    }

    /// Prefetches a CPU to which an interrupt is on its way.
    #[inline]
    pub(crate) fn cpu_soon(&self, cpu: CpuId) {
        if self.looks_ahead {
            self.cpu_ahead(cpu);
            self.task_ahead(self.cpus[cpu.idx()].idle_task);
        }
    }

    /// Prefetches a task that is next in a queue.
    #[inline]
    pub(crate) fn task_soon(&self, task: TaskId) {
        if self.looks_ahead {
            self.task_ahead(task);
        }
    }

    fn cpu_ahead(&self, cpu: CpuId) {
        prefetch_first(&self.cpus[cpu.idx()], HOT_CPU_BYTES);
        prefetch(&self.ext.cpus[cpu.idx()]);
        prefetch_first(self.ext.dsqs.get(self.ext.dsqs.local(cpu)), HOT_DSQ_BYTES);
        prefetch(self.vm.mem.own_ref::<abi::rq>(self.rq_addr(cpu)));
        self.fair.soon(cpu);
    }

    fn task_ahead(&self, task: TaskId) {
        let Some((slot, addr)) = self.tasks.slot(task) else { return };
        prefetch_first(slot, HOT_TASK_BYTES);
        prefetch_first(self.vm.mem.own_ref::<abi::task_struct>(addr), HOT_SEEN_BYTES);
    }

    fn behavior_ahead(&self, task: TaskId) {
        if let Some(behavior) = &self.behavior {
            behavior.soon(task);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::ext::idle::fixture::kernel;

    #[test]
    fn looking_ahead_leaves_no_trace() {
        let run = |looks_ahead| {
            let mut k = kernel("4n32c", &[None; 320]);
            assert!(k.looks_ahead, "128 CPUs are enough to look ahead");
            k.looks_ahead = looks_ahead;
            k.run(Some(50_000_000));
            (k.tracer.hash(), k.metrics.switches)
        };
        let looking = run(true);
        assert!(looking.1 > 320, "{} switches", looking.1);
        assert_eq!(looking, run(false));
    }
}

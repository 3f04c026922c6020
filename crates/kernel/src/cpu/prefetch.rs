// SPDX-License-Identifier: GPL-2.0-only
//! Prefetching: brings the data of the next events into the host's caches while the present event
//! is handled.
//!
//! Owns: the choice of data, and the size of machine from which on the kernel uses prefetching and
//! huge pages.
//! Does not: change anything that a run can see.
//!
//! On a large machine an event finds its CPU and its task in no near cache of the host, because
//! events of thousands of other CPUs came between. The event queue shows which events come next:
//! the lane of the present event holds the following events of that kind. For the event after the
//! next two in the lane (*far*), the kernel prefetches the CPU or the task. For the next event
//! (*near*), it prefetches the data to which that CPU or task refers.

use crate::bpf::abi;
use crate::cpu::HOT_CPU_BYTES;
use crate::ext::dsq::HOT_DSQ_BYTES;
use crate::kernel::Kernel;
use crate::kernel::event::Event;
use crate::task::HOT_TASK_BYTES;
use scxlab_machine::id::{CpuId, TaskId};
use scxlab_machine::prefetch::{prefetch, prefetch_first};

/// Number of CPUs from which on the kernel prefetches. On a smaller machine all CPUs and their
/// tasks stay in the host's second-level cache, and prefetching makes a run slower: by 7 % with 64
/// CPUs. With 1,024 CPUs it saves a third of the run's time.
pub(crate) const FROM_CPUS: usize = 128;

/// Positions in the present event's lane of the two events for which the kernel prefetches: 0 is
/// the next event of the lane, 2 the third.
const NEAR: usize = 0;
const FAR: usize = 2;

/// Bytes at the start of a `task_struct` that the kernel writes at every task switch.
const HOT_TASK_STRUCT_BYTES: usize = 512;

impl Kernel {
    #[inline]
    pub(crate) fn prefetch_next_events(&self) {
        if !self.prefetch_enabled {
            return;
        }
        if let Some(due) = self.events.peek_behind_head(FAR) {
            match due.what {
                Event::StepEnd { cpu, .. } | Event::Tick { cpu, .. } => self.prefetch_cpu(cpu),
                Event::SleepEnd { task, .. } => self.prefetch_task(task),
                _ => {}
            }
        }
        if let Some(due) = self.events.peek_behind_head(NEAR) {
            match due.what {
                Event::StepEnd { cpu, .. } => {
                    let curr = self.cpus[cpu].curr;
                    self.prefetch_task(curr);
                    self.prefetch_behavior(curr);
                }
                Event::Tick { cpu, .. } => self.prefetch_task(self.cpus[cpu].curr),
                Event::SleepEnd { task, .. } => {
                    if let Some(t) = self.tasks.get(task) {
                        self.prefetch_cpu(t.cpu);
                    }
                }
                _ => {}
            }
        }
    }

    /// Prefetches a CPU to which an interrupt is on its way.
    #[inline]
    pub(crate) fn prefetch_interrupted_cpu(&self, cpu: CpuId) {
        if self.prefetch_enabled {
            self.prefetch_cpu(cpu);
            self.prefetch_task(self.cpus[cpu].idle_task);
        }
    }

    /// Prefetches the task that is now the first of a DSQ.
    #[inline]
    pub(crate) fn prefetch_next_task(&self, task: TaskId) {
        if self.prefetch_enabled {
            self.prefetch_task(task);
        }
    }

    fn prefetch_cpu(&self, cpu: CpuId) {
        prefetch_first(&self.cpus[cpu], HOT_CPU_BYTES);
        prefetch(&self.ext.cpus[cpu]);
        prefetch_first(self.ext.dsqs.get(self.ext.dsqs.local(cpu)), HOT_DSQ_BYTES);
        prefetch(self.vm.mem.own_ref::<abi::rq>(self.rq_addr(cpu)));
        self.fair.prefetch_nr_running(cpu);
    }

    fn prefetch_task(&self, task: TaskId) {
        let Some((slot, addr)) = self.tasks.slot(task) else { return };
        prefetch_first(slot, HOT_TASK_BYTES);
        prefetch_first(self.vm.mem.own_ref::<abi::task_struct>(addr), HOT_TASK_STRUCT_BYTES);
    }

    fn prefetch_behavior(&self, task: TaskId) {
        if let Some(behavior) = &self.behavior {
            behavior.prefetch_task(task);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::ext::idle::fixture::kernel;

    #[test]
    fn prefetching_changes_nothing_that_a_run_shows() {
        let run = |prefetch_enabled| {
            let mut k = kernel("4n32c", &[None; 320]);
            assert!(k.prefetch_enabled, "128 CPUs are enough for prefetching");
            k.prefetch_enabled = prefetch_enabled;
            k.run(Some(50_000_000));
            (k.tracer.hash(), k.metrics.switches)
        };
        let with = run(true);
        assert!(with.1 > 320, "{} switches", with.1);
        assert_eq!(with, run(false));
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! Looking ahead: what the next events will touch comes into the host's caches while the present one is handled.
//!
//! Owns: what is fetched, and from which size of machine on (huge pages come with it). Does not: change anything that a run can see.
//!
//! On a large machine an event finds its CPU and its task in no near cache, for thousands of others came between. Which
//! they will be is known from the queue: an event's lane says which of its kind comes next, and which after that. One
//! that is two away is looked up itself (*far*), and then what hangs on it (*near*).

use crate::abi;
use crate::cpu::HOT_CPU_BYTES;
use crate::event::Event;
use crate::ext::dsq::HOT_DSQ_BYTES;
use crate::kernel::Kernel;
use crate::task::HOT_TASK_BYTES;
use scxlab_machine::id::{CpuId, TaskId};
use scxlab_machine::prefetch::{prefetch, prefetch_first};

/// Below this many CPUs all of them and their tasks stay in the second-level cache, and looking ahead costs more than it saves:
/// 7 % with 64 CPUs; with 1,024 it saves a third.
pub(crate) const FROM_CPUS: usize = 128;

/// Places behind the head of the lane from which the present event came.
const NEAR: usize = 0;
const FAR: usize = 2;

/// Of a `task_struct`, from its start: what the kernel writes at every switch.
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

    /// An interrupt is on its way to `cpu`.
    #[inline]
    pub(crate) fn cpu_soon(&self, cpu: CpuId) {
        if self.looks_ahead {
            self.cpu_ahead(cpu);
            self.task_ahead(self.cpus[cpu.idx()].idle_task);
        }
    }

    /// A task is next in a queue.
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

// SPDX-License-Identifier: GPL-2.0-only
//! Cache occupancy: the data that a task must fetch again when it returns to a CPU or moves to
//! another.
//!
//! Owns: the number of bytes fetched into the cache of each core and into each LLC.
//! Does not: model lines or sets. After a task has left a CPU, the task's footprint in a cache
//! shrinks by the bytes that other tasks fetch into that cache. On another core or LLC the task
//! finds none of its footprint.

use crate::kernel::Kernel;
use crate::task::CacheMarks;
use scxlab_machine::id::{CpuId, TaskId};
use scxlab_machine::topology::{CpuInfo, Distance};

/// Bytes fetched since the start of the run, indexed by core and by LLC.
#[derive(Clone, Debug, Default)]
pub struct CacheTraffic {
    core: Vec<u64>,
    llc: Vec<u64>,
}

impl CacheTraffic {
    pub fn new(cores: usize, llcs: usize) -> Self {
        CacheTraffic { core: vec![0; cores], llc: vec![0; llcs] }
    }

    /// Returns the marks of a task that leaves `cpu`: the present byte counts of the CPU's caches.
    #[inline]
    pub(crate) fn marks(&self, cpu: &CpuInfo) -> CacheMarks {
        CacheMarks {
            core: Some(cpu.core.0),
            llc: Some(cpu.llc.0),
            core_mark: self.core[cpu.core.idx()],
            llc_mark: self.llc[cpu.llc.idx()],
        }
    }
}

impl Kernel {
    /// Computes the time that a task owes for cache refill when it takes the CPU.
    pub(crate) fn set_refill_debt(&mut self, cpu: CpuId, task: TaskId) {
        let footprint = self.tasks[task].footprint_bytes;
        if footprint == 0 {
            return;
        }
        let info = self.machine.topology.cpu(cpu);
        let (core, llc) = (info.core, info.llc);
        let l2 = self.machine.topology.core(core).l2_bytes;
        let l3 = self.machine.topology.llc(llc).size_bytes;
        let cache_marks = self.tasks[task].cache_marks;
        let same_core = cache_marks.core == Some(core.0);
        let same_llc = cache_marks.llc == Some(llc.0);
        let others_core =
            self.cache_traffic.core[core.idx()] - if same_core { cache_marks.core_mark } else { 0 };
        let others_llc =
            self.cache_traffic.llc[llc.idx()] - if same_llc { cache_marks.llc_mark } else { 0 };
        let in_l2 = footprint.min(l2);
        let in_l3 = footprint.min(l3);
        let cold_l2 = if same_core { in_l2.min(others_core) } else { in_l2 };
        let cold_l3 = if same_llc { in_l3.min(others_llc) } else { in_l3 };
        let far = self.refill_distance(cache_marks, cpu);
        let costs = &self.machine.costs;
        // Bytes that the LLC lacks come from beyond the LLC; bytes that only the core's cache lacks
        // come from the LLC.
        let debt = costs.refill_ns(far, cold_l3)
            + costs.refill_ns(Distance::Core, cold_l2.saturating_sub(cold_l3));
        self.tasks[task].refill_left = debt;
        self.metrics.refill_ns += debt;
        self.cache_traffic.core[core.idx()] += cold_l2;
        self.cache_traffic.llc[llc.idx()] += cold_l3;
    }

    /// Executes `Sys::switch_footprint`. The rest of the previous working set's refill is dropped,
    /// as it is when a task leaves its CPU; time for memory faults stays due.
    pub(crate) fn change_footprint(
        &mut self,
        task: TaskId,
        bytes: u64,
        marks: CacheMarks,
    ) -> CacheMarks {
        let Some(t) = self.tasks.get(task) else { return marks };
        let cpu = t.cpu;
        let left = self.cache_traffic.marks(self.machine.topology.cpu(cpu));
        let t = &mut self.tasks[task];
        let faults = t.cut.faults().min(t.refill_left);
        (t.footprint_bytes, t.cache_marks, t.refill_left) = (bytes, marks, 0);
        self.set_refill_debt(cpu, task);
        self.tasks[task].refill_left += faults;
        left
    }

    /// Returns how far away the data is that the LLC lacks: on another node if the task last ran on
    /// another node, else just beyond the LLC.
    fn refill_distance(&self, cache_marks: CacheMarks, cpu: CpuId) -> Distance {
        let here = self.machine.topology.cpu(cpu).node;
        let left = cache_marks.llc.map(|llc| {
            let cpus = &self.machine.topology.llcs()[llc as usize].cpus;
            scxlab_machine::cpumask::first(cpus).map(|c| self.machine.topology.cpu(c).node)
        });
        match left.flatten() {
            Some(node) if node != here => Distance::Node,
            _ => Distance::Llc,
        }
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! Hinting faults: the first access to a page that a scan has marked, and the page's migration.
//!
//! Owns: the last access to each page, and the moves of pages.
//! Does not: decide whether a page moves (the crate `fair` does).
//! Models: `do_numa_page()`, `numa_migrate_check()`, memory.c; `mpol_misplaced()`, mempolicy.c;
//! `migrate_misplaced_folio()`, migrate.c, 7.3; the limit of migrations of 3.9 (`rate.rs`).
//! Differs: a page moves if its target has room; watermarks are absent. The last access is kept by
//! unit, as pages are, and a fault on a unit counts for all its pages.

use super::HUGE_PAGES;
use super::nodes::Nodes;
use super::region::{Place, Region, RegionId};
use crate::kernel::Kernel;
use scxlab_fair::{HintFault, LastAccess, NumaRules};
use scxlab_machine::id::{CpuId, Nanos, NodeId, TaskId};

impl Region {
    /// Whether the next access to a present unit is a hinting fault.
    pub fn is_marked(&self, unit: usize) -> bool {
        self.place(unit) != Place::Absent && self.trapped.has(unit)
    }

    /// Exchanges the record of a unit's last access.
    fn exchange_last(&mut self, unit: usize, new: LastAccess) {
        if self.last.is_empty() {
            self.last = vec![None; self.nr_units()].into();
        }
        self.last[unit] = Some(new);
    }

    fn last(&self, unit: usize) -> Option<LastAccess> {
        self.last.get(unit).copied().flatten()
    }

    /// Moves a unit's pages to a node that has room for them.
    fn migrate(&mut self, unit: usize, to: NodeId, nodes: &mut Nodes) {
        let Place::On(from) = self.place(unit) else { return };
        let pages = self.pages_of(unit);
        nodes.shift(Some(from), Some(to), pages);
        self.shift(unit, from, to);
    }
}

impl Kernel {
    /// Handles the access of the current task to a marked unit. Returns the kernel's time for the
    /// fault and the migration, which the caller charges.
    pub(super) fn hint_fault(
        &mut self,
        cpu: CpuId,
        task: TaskId,
        id: RegionId,
        unit: usize,
    ) -> Nanos {
        let early = self.numa_balancing.rules() != NumaRules::Linux73;
        let (jiffies, tick_ns) = (self.jiffies(), self.ticks.period_ns);
        let (leader, pid) = (self.tasks[task].leader, self.tasks[task].pid);
        let here = self.machine.topology.cpu(cpu).node;
        let memory = self.memory.as_deref_mut().expect("a region exists");
        memory.note_access(leader, id, pid);
        let region = memory.regions[id.0 as usize].as_deref_mut().expect("in use");
        region.trapped.clear(unit);
        let Place::On(node) = region.place(unit) else { return 0 };
        let (pages, huge) = (region.pages_of(unit), region.spec.huge);
        let (last, shared) = (region.last(unit), region.mappers > 1);
        let faults = if huge { pages.div_ceil(HUGE_PAGES) } else { pages };
        memory.stats.hint_faults += faults;
        memory.stats.hint_faults_local += if node == here { faults } else { 0 };
        let mut cost = self.machine.costs.memory.hint_fault_ns * faults;
        let mut fault = HintFault {
            task,
            cpu,
            node: node.0,
            pages,
            faults,
            last,
            shared,
            local: node == here,
            migrated: false,
            failed: false,
        };
        if node != here && self.fair_wants_page(&fault) {
            let memory = self.memory.as_deref_mut().expect("checked");
            let region = memory.regions[id.0 as usize].as_deref_mut().expect("in use");
            fault.failed = memory.nodes.free(here) < pages;
            let limited = early && !memory.rates.admit(here, pages, (jiffies, tick_ns));
            fault.migrated = !fault.failed && !limited;
            if fault.migrated {
                region.migrate(unit, here, &mut memory.nodes);
                fault.node = here.0;
                let costs = &self.machine.costs.memory;
                // `slowdown` is in 2^-16.
                let local = self.machine.node_memory().latency_ns.at(here, here);
                let copy = pages * 4 * costs.page_copy_ns_per_kib;
                let copy = (copy * memory.bandwidth.slowdown(here, node, local)) >> 16;
                let time = costs.page_migrate_ns * faults + copy;
                memory.stats.pages_migrated += pages;
                memory.stats.migrate_ns += time;
                cost += time;
            }
        }
        let memory = self.memory.as_deref_mut().expect("checked");
        if (node != here || early) && memory.nodes.capacity(here) > 0 {
            let region = memory.regions[id.0 as usize].as_deref_mut().expect("in use");
            region.exchange_last(unit, LastAccess::new(cpu, pid as i32));
        }
        self.fair_numa_fault(cpu, task, &fault);
        cost
    }
}

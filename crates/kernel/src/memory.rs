// SPDX-License-Identifier: GPL-2.0-only
//! Memory: regions of processes, whose pages lie on nodes.
//!
//! Owns: all regions of a run, and the pages of nodes.
//! Does not: decide when a page is touched (the steps of tasks do).
//!
//! ```text
//!   nodes      the pages of each node; the order in which nodes take pages
//!   region     a region: its policy, and the node of each of its pages
//!   alloc      the choice of the node for a page that is touched first
//!   access     access patterns, and the counts of accesses
//!   step       work that accesses a region: its first touches and its speed
//!   plan       the next stop of such work
//!   bandwidth  the bandwidth of nodes and links, and the pressure on them
//!   scan       scans for NUMA balancing: the marks on pages
//!   rate       the limit of page migrations of 2013
//!   hint       accesses to marked pages, and the migration of pages
//!   bits       sets of units
//! ```

pub mod access;
mod alloc;
pub mod bandwidth;
mod bits;
mod hint;
pub mod nodes;
mod plan;
mod rate;
pub mod region;
pub(crate) mod scan;
pub mod step;

use crate::kernel::{Kernel, Stop};
use crate::task::behavior::SysError;
use access::{Access, AccessId, MemoryStats};
use bandwidth::Bandwidth;
use nodes::Nodes;
use rate::MigrationRates;
use region::{MergedPages, Region, RegionId, RegionSpec};
use scan::Mm;
use scxlab_machine::Machine;
use scxlab_machine::id::{CgroupId, NodeId, TaskId};
use std::collections::BTreeMap;
use step::MemoryStep;

/// Bytes of a small page (x86-64).
pub const PAGE_BYTES: u64 = 4096;
/// Small pages of a huge page (`HPAGE_PMD_NR` of x86-64).
pub const HUGE_PAGES: u64 = 512;

/// All regions of a run. It exists from the first region on.
pub struct Memory {
    pub nodes: Nodes,
    /// By `RegionId`; None once the region is freed.
    regions: Vec<Option<Box<Region>>>,
    /// Merged pages, by the name of the regions that share them.
    merged: BTreeMap<String, MergedPages>,
    pub bandwidth: Bandwidth,
    pub stats: MemoryStats,
    pub(crate) rates: MigrationRates,
    /// By `AccessId`.
    accesses: Vec<Access>,
    /// For each access: where its last step ended (see `MemoryStep::cursor`).
    cursors: Vec<u128>,
    /// Address spaces with regions, by the leaders of their processes.
    mms: BTreeMap<TaskId, Mm>,
    /// The access of each task's memory steps, by `TaskId`.
    chosen: Vec<AccessId>,
    /// Memory steps, by `TaskId`.
    steps: Vec<Option<MemoryStep>>,
}

impl Memory {
    pub(crate) fn new(machine: &Machine) -> Memory {
        let nodes = Nodes::new(&machine.topology);
        Memory {
            bandwidth: Bandwidth::new(machine.node_memory(), machine.topology.nr_cpus()),
            stats: MemoryStats::new(nodes.len()),
            rates: MigrationRates::new(nodes.len()),
            nodes,
            regions: Vec::new(),
            merged: BTreeMap::new(),
            accesses: Vec::new(),
            cursors: Vec::new(),
            mms: BTreeMap::new(),
            chosen: Vec::new(),
            steps: Vec::new(),
        }
    }

    /// Iterates over the regions that exist.
    pub fn regions(&self) -> impl Iterator<Item = &Region> {
        self.regions.iter().flatten().map(|region| &**region)
    }

    /// Iterates over the sets of merged pages that exist.
    pub fn merged(&self) -> impl Iterator<Item = &MergedPages> {
        self.merged.values()
    }

    pub fn region(&self, id: RegionId) -> Option<&Region> {
        self.regions.get(id.0 as usize)?.as_deref()
    }

    /// Makes a region. Its pages are absent, or on the nodes that `spec.populate` lists.
    fn add(&mut self, spec: RegionSpec) -> Result<RegionId, SysError> {
        let known = |node: &NodeId| self.nodes.capacity(*node) > 0;
        let named = spec.policy.nodes().iter().chain(&spec.populate);
        let merged_huge = spec.merge_percent > 0 && spec.huge;
        let wrong = spec.pages == 0 || spec.merge_percent > 100 || merged_huge;
        if wrong || !named.clone().all(known) {
            return Err(SysError::Invalid);
        }
        let id = RegionId(self.regions.len() as u32);
        let region = Region::new(spec, self.nodes.len());
        if region.nr_merged_units() > 0 {
            let set = self.merged.entry(region.spec.name.clone());
            set.or_insert_with(|| MergedPages::new(&region, self.nodes.len())).users += 1;
        }
        self.regions.push(Some(Box::new(region)));
        if let Err(full) = self.populate(id) {
            self.free(id);
            return Err(full);
        }
        Ok(id)
    }

    /// Puts all pages of a new region on the nodes that its spec lists, in equal contiguous parts.
    fn populate(&mut self, id: RegionId) -> Result<(), SysError> {
        let region = self.regions[id.0 as usize].as_deref_mut().expect("a new region");
        let nodes = region.spec.populate.clone();
        let units = region.nr_units();
        for (part, node) in nodes.iter().enumerate() {
            let (from, to) = (part * units / nodes.len(), (part + 1) * units / nodes.len());
            for unit in from..to {
                let set = self.merged.get_mut(&region.spec.name);
                if !region.place_on(unit, *node, &mut self.nodes, set) {
                    return Err(SysError::NoMemory);
                }
            }
        }
        Ok(())
    }

    /// Gives a region's pages back.
    fn free(&mut self, id: RegionId) {
        let Some(region) = self.regions.get_mut(id.0 as usize).and_then(Option::take) else {
            return;
        };
        self.unmap(id);
        self.nodes.release(region.on());
        if region.nr_merged_units() > 0
            && let Some(set) = self.merged.get_mut(&region.spec.name)
        {
            set.users -= 1;
            if set.users == 0 {
                self.nodes.release(set.on());
                self.merged.remove(&region.spec.name);
            }
        }
    }
}

impl Kernel {
    /// `mmap(2)` and `mbind(2)`: makes a region.
    pub(crate) fn region_create(&mut self, spec: RegionSpec) -> Result<RegionId, SysError> {
        self.numa_start();
        let (machine, name) = (&self.machine, spec.name.clone());
        let memory = self.memory.get_or_insert_with(|| Box::new(Memory::new(machine)));
        let made = memory.add(spec);
        if made == Err(SysError::NoMemory) {
            self.end.stop_with(Stop::MemoryFull { region: name });
        }
        made
    }

    /// Adds a region to the address space of a task.
    pub(crate) fn region_attach(&mut self, task: TaskId, region: RegionId) {
        let scan = self.numa_new_scan();
        let leader = self.tasks[task].leader;
        if let Some(memory) = &mut self.memory {
            memory.map(leader, region, scan);
        }
    }

    /// `munmap(2)`: frees a region, at the exit of its owner.
    pub(crate) fn region_remove(&mut self, region: RegionId) {
        if let Some(memory) = &mut self.memory {
            memory.free(region);
        }
    }

    /// Writes `cpuset.mems`. None stands for the empty string, with which the cgroup uses its
    /// parent's nodes.
    pub(crate) fn mems_write(
        &mut self,
        cgroup: CgroupId,
        mems: Option<&[NodeId]>,
    ) -> Result<(), SysError> {
        if !self.cgroups.exists(cgroup) {
            return Err(SysError::NoEntry);
        }
        let nodes = self.machine.topology.nodes();
        let usable = |n: &NodeId| nodes.get(n.idx()).is_some_and(|node| node.memory_bytes > 0);
        if cgroup.0 == 0 || mems.is_some_and(|m| m.is_empty() || !m.iter().all(usable)) {
            return Err(SysError::Invalid);
        }
        self.cgroups.get_mut(cgroup).expect("checked").mems = mems.map(<[NodeId]>::to_vec);
        Ok(())
    }

    /// `cpuset.mems.effective`: the nodes on which tasks of the cgroup may allocate; None: all. A
    /// directory that requests only nodes that its parent lacks has its parent's nodes.
    pub(crate) fn mems_effective(&self, cgroup: CgroupId) -> Option<Vec<NodeId>> {
        let mut path = self.cgroups.ascend(cgroup);
        path.reverse();
        let mut effective: Option<Vec<NodeId>> = None;
        for own in path.iter().filter_map(|id| self.cgroups.get(*id)?.mems.as_ref()) {
            let both = match &effective {
                None => own.clone(),
                Some(all) => own.iter().copied().filter(|n| all.contains(n)).collect(),
            };
            if !both.is_empty() {
                effective = Some(both);
            }
        }
        effective
    }
}

#[cfg(test)]
mod tests;

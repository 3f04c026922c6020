// SPDX-License-Identifier: GPL-2.0-only
//! Access patterns of memory steps, and the counts of accesses.
//!
//! Owns: the data types. Does not: follow a step (see `step.rs`).

use super::bandwidth::{Load, RATE};
use super::region::{Region, RegionId};
use super::step::STEP_SHIFT;
use scxlab_machine::id::{Nanos, NodeId};

/// Size of a cache line, bytes.
const LINE: u64 = 64;

/// An access pattern, numbered in the order in which a run declared them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccessId(pub u32);

/// The order of accesses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// One page after the other. `resume`: a step goes on where the last step with this access
    /// ended, otherwise it starts at the window's begin.
    Sequential { resume: bool },
    /// Each access anywhere in the window.
    Random,
}

/// How steps access a region.
#[derive(Clone, Debug)]
pub struct Access {
    pub region: RegionId,
    /// Window of the region that is accessed, in small pages: the first, and their number.
    pub first_page: u64,
    pub pages: u64,
    pub order: Order,
    pub write: bool,
    /// Part of the work that is memory time at local latency, 1 to 1000 thousandths.
    pub memory_permille: u64,
    /// Work from one page (sequential) or one access (random) to the next, 1/1024 ns; at least 1.
    pub period: u64,
    /// Bytes moved per us of memory time at local latency (MB/s). A write moves its line twice.
    pub traffic: u64,
}

impl Access {
    /// Returns the work from one page or access to the next, 2^-20 ns.
    pub(super) fn period_work(&self) -> u128 {
        u128::from(self.period.max(1)) << (STEP_SHIFT - 10)
    }

    /// Returns the unit that a sequential access reaches after `cursor` work of a pass.
    pub(super) fn unit_at(&self, cursor: u128, region: &Region) -> usize {
        let page = self.first_page + (cursor / self.period_work()) as u64;
        (page / region.unit_pages()) as usize
    }
}

/// Counts of memory accesses over the run.
#[derive(Clone, Debug, Default)]
pub struct MemoryStats {
    /// Kernel time of first touches, ns.
    pub first_touch_ns: Nanos,
    /// Kernel time of page migrations, ns.
    pub migrate_ns: Nanos,
    /// Page-table entries that scans marked.
    pub pte_updates: u64,
    /// Faults on marked pages, and those of them on the node of the CPU.
    pub hint_faults: u64,
    pub hint_faults_local: u64,
    pub pages_migrated: u64,
    /// Tasks that NUMA balancing moved, and pairs of tasks that it swapped.
    pub task_moves: u64,
    pub task_swaps: u64,
    /// Bytes that each node delivered, in 2^-30 of 1/1000 byte.
    pub served: Vec<u128>,
    /// Lines fetched, local and remote, in 2^-30 of 1/1000 line.
    local: u128,
    remote: u128,
}

impl MemoryStats {
    pub(super) fn new(nr_nodes: usize) -> MemoryStats {
        MemoryStats { served: vec![0; nr_nodes], ..MemoryStats::default() }
    }

    /// Returns the bytes that a node delivered.
    pub fn served_bytes(&self, node: NodeId) -> u64 {
        whole(self.served[node.idx()])
    }

    /// Returns the number of cache lines that tasks fetched.
    pub fn accesses(&self) -> u64 {
        whole(self.local + self.remote)
    }

    /// Returns the number of cache lines that tasks fetched from another node than their CPU's.
    pub fn remote_accesses(&self) -> u64 {
        whole(self.remote)
    }

    /// Counts the accesses of a load that made `work` progress, 2^-20 ns.
    pub(super) fn count(&mut self, load: &Load, work: u64, write: bool) {
        let lines_of = LINE * if write { 2 } else { 1 };
        for part in &load.parts {
            let bytes = u128::from(work) * u128::from(part.bytes);
            self.served[part.node.idx()] += bytes;
            let lines = bytes / u128::from(lines_of);
            *(if part.node == load.from { &mut self.local } else { &mut self.remote }) += lines;
        }
    }
}

fn whole(scaled: u128) -> u64 {
    u64::try_from((scaled >> (STEP_SHIFT + RATE)) / 1000).unwrap_or(u64::MAX)
}

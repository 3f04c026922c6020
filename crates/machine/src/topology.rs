// SPDX-License-Identifier: GPL-2.0-only
//! The topology: which CPUs share a core, a last-level cache or a node, and the distances between
//! nodes.
//!
//! Owns: the vectors of CPUs, cores, last-level caches and nodes, and the queries, which read these
//! vectors. A topology never changes once it is built.
//! Does not: read files, know costs, know which CPUs are online in a run (all are at the start).
//!
//! ```text
//! node > LLC > core > CPU (hardware thread)      every CPU lies in exactly one of each
//! ```
//!
//! A topology comes from a spec string ([`spec`]), a machine file, an `lstopo` XML file
//! ([`lstopo`]) or sysfs ([`sysfs`]). Each of them fills a [`Layout`], and [`Topology::build`]
//! refuses an impossible one.

mod layout;
pub mod lstopo;
pub mod spec;
pub mod sysfs;

use serde::Serialize;

pub use layout::{CoreLayout, Layout, LlcLayout, NodeLayout, TopologyError};

use crate::cpumask::CpuMask;
use crate::id::{CoreId, CpuId, LlcId, NodeId};

/// Maximum number of CPUs of a machine: the upper limit of Linux's configuration for x86-64.
pub const CPUS_MAX: usize = 8192;
/// Maximum number of nodes: the kernel's limit with CONFIG_NODES_SHIFT=10.
pub const NODES_MAX: usize = 1024;
/// Distance of a node to itself, as ACPI's SLIT defines it.
pub const LOCAL_DISTANCE: u32 = 10;
/// Capacity of the fastest CPU, as the kernel scales it (SCHED_CAPACITY_SCALE).
pub const CAPACITY_SCALE: u32 = 1024;

/// The widest boundary between two CPUs, which a task crosses when it moves from one to the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Distance {
    /// The same CPU.
    Same,
    /// Another hardware thread of the same core.
    Smt,
    /// Another core under the same last-level cache.
    Core,
    /// Another last-level cache of the same node.
    Llc,
    /// Another node.
    Node,
}

impl Distance {
    /// All distances, nearest first.
    pub const ALL: [Distance; 5] =
        [Distance::Same, Distance::Smt, Distance::Core, Distance::Llc, Distance::Node];

    /// Returns the name used in metrics and machine files.
    pub const fn name(self) -> &'static str {
        match self {
            Distance::Same => "same",
            Distance::Smt => "smt",
            Distance::Core => "core",
            Distance::Llc => "llc",
            Distance::Node => "node",
        }
    }
}

/// Position of one CPU in the topology.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CpuInfo {
    pub core: CoreId,
    pub llc: LlcId,
    pub node: NodeId,
    /// Position among the threads of the core, from 0.
    pub smt: u32,
    /// Relative speed when alone on the core, 1..=1024; 1024 is the fastest CPU of the machine.
    pub capacity: u32,
}

/// A physical core: its threads and caches.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Core {
    /// The core's hardware threads.
    pub cpus: CpuMask,
    /// The last-level cache above the core.
    pub llc: LlcId,
    pub node: NodeId,
    /// Size of the first-level data cache.
    pub l1d_bytes: u64,
    /// Size of the second-level cache that this core reaches (all of it, even if cores share it).
    pub l2_bytes: u64,
}

/// A last-level cache and the CPUs below it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Llc {
    /// The CPUs below the cache.
    pub cpus: CpuMask,
    pub node: NodeId,
    pub size_bytes: u64,
}

/// One NUMA node. A node that is memory only has no CPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    pub cpus: CpuMask,
    pub memory_bytes: u64,
    /// Distances to all nodes, itself included, indexed by node; 10 is local (ACPI SLIT units).
    pub distances: Vec<u32>,
}

/// The CPUs of a machine, and their cores, last-level caches and nodes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Topology {
    cpus: Vec<CpuInfo>,
    cores: Vec<Core>,
    llcs: Vec<Llc>,
    nodes: Vec<Node>,
    #[serde(skip)]
    all: CpuMask,
}

impl Topology {
    /// Returns the number of CPUs; ids are `0..nr_cpus()`.
    #[inline]
    pub fn nr_cpus(&self) -> usize {
        self.cpus.len()
    }

    /// Returns all CPU ids in ascending order.
    pub fn cpu_ids(&self) -> impl ExactSizeIterator<Item = CpuId> + use<> {
        (0..self.cpus.len() as u32).map(CpuId)
    }

    /// Returns the set of all CPUs.
    pub fn all(&self) -> &CpuMask {
        &self.all
    }

    /// Returns the position of `cpu`.
    ///
    /// # Panics
    /// If there is no such CPU. All queries by id panic for an unknown id, because ids come from
    /// this topology.
    #[inline]
    pub fn cpu(&self, cpu: CpuId) -> &CpuInfo {
        &self.cpus[cpu.idx()]
    }

    /// Returns the core with this id.
    #[inline]
    pub fn core(&self, core: CoreId) -> &Core {
        &self.cores[core.idx()]
    }

    /// Returns the last-level cache with this id.
    #[inline]
    pub fn llc(&self, llc: LlcId) -> &Llc {
        &self.llcs[llc.idx()]
    }

    /// Returns the node with this id.
    #[inline]
    pub fn node(&self, node: NodeId) -> &Node {
        &self.nodes[node.idx()]
    }

    /// Returns every CPU's position, indexed by CPU.
    pub fn cpus(&self) -> &[CpuInfo] {
        &self.cpus
    }

    /// Returns every core, indexed by id; ids follow the cores' lowest CPUs.
    pub fn cores(&self) -> &[Core] {
        &self.cores
    }

    /// Returns every last-level cache, indexed by id; ids follow the caches' lowest CPUs.
    pub fn llcs(&self) -> &[Llc] {
        &self.llcs
    }

    /// Returns every node, indexed by id.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Returns the threads of `cpu`'s core, itself included.
    #[inline]
    pub fn core_mask(&self, cpu: CpuId) -> &CpuMask {
        &self.core(self.cpu(cpu).core).cpus
    }

    /// Returns the CPUs under `cpu`'s last-level cache, itself included.
    #[inline]
    pub fn llc_mask(&self, cpu: CpuId) -> &CpuMask {
        &self.llc(self.cpu(cpu).llc).cpus
    }

    /// Returns the CPUs of `cpu`'s node, itself included.
    #[inline]
    pub fn node_mask(&self, cpu: CpuId) -> &CpuMask {
        &self.node(self.cpu(cpu).node).cpus
    }

    /// Whether the two CPUs are threads of one core, or the same CPU.
    #[inline]
    pub fn same_core(&self, a: CpuId, b: CpuId) -> bool {
        self.cpu(a).core == self.cpu(b).core
    }

    /// Whether the two CPUs share a last-level cache.
    #[inline]
    pub fn same_llc(&self, a: CpuId, b: CpuId) -> bool {
        self.cpu(a).llc == self.cpu(b).llc
    }

    /// Whether the two CPUs are on one node.
    #[inline]
    pub fn same_node(&self, a: CpuId, b: CpuId) -> bool {
        self.cpu(a).node == self.cpu(b).node
    }

    /// Returns the SLIT distance between two nodes; 10 is local.
    #[inline]
    pub fn node_distance(&self, a: NodeId, b: NodeId) -> u32 {
        self.nodes[a.idx()].distances[b.idx()]
    }

    /// Returns the widest boundary between two CPUs.
    #[inline]
    pub fn distance(&self, a: CpuId, b: CpuId) -> Distance {
        let (x, y) = (self.cpu(a), self.cpu(b));
        if a == b {
            Distance::Same
        } else if x.core == y.core {
            Distance::Smt
        } else if x.llc == y.llc {
            Distance::Core
        } else if x.node == y.node {
            Distance::Llc
        } else {
            Distance::Node
        }
    }

    /// Whether any core has more than one thread.
    pub fn has_smt(&self) -> bool {
        self.cores.len() < self.cpus.len()
    }

    /// Whether CPUs differ in capacity (big.LITTLE, hybrid).
    pub fn is_asymmetric(&self) -> bool {
        self.cpus.windows(2).any(|pair| pair[0].capacity != pair[1].capacity)
    }

    /// Returns the memory of all nodes in bytes.
    pub fn memory_bytes(&self) -> u64 {
        // `Topology::build` bounds each node's memory, so the sum cannot overflow.
        self.nodes.iter().map(|node| node.memory_bytes).sum()
    }
}

#[cfg(test)]
mod tests;

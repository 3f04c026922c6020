// SPDX-License-Identifier: GPL-2.0-only
//! The topology: which CPUs share a core, a last-level cache, a node, and how far nodes are apart.
//!
//! Owns: the tables and the queries, all answered from dense vectors. Immutable once built.
//! Does not: read files, know costs, know which CPUs are online in a run (all are when it starts).
//!
//! ```text
//! node > LLC > core > CPU (hardware thread)      every CPU lies in exactly one of each
//! ```
//!
//! Built from a spec string ([`spec`]), a machine file, an `lstopo` XML file ([`lstopo`]) or sysfs
//! ([`sysfs`]); all of them fill a [`Layout`], and [`Topology::build`] refuses what cannot exist.

mod layout;
pub mod lstopo;
pub mod spec;
pub mod sysfs;

use serde::Serialize;

pub use layout::{CoreLayout, Layout, LlcLayout, NodeLayout, TopologyError};

use crate::cpumask::CpuMask;
use crate::id::{CoreId, CpuId, LlcId, NodeId};

/// The most CPUs a machine may have: what Linux for x86-64 can be configured for at most.
pub const CPUS_MAX: usize = 8192;
/// The most nodes: the kernel's limit with CONFIG_NODES_SHIFT=10.
pub const NODES_MAX: usize = 1024;
/// The distance of a node to itself, as ACPI's SLIT defines it.
pub const LOCAL_DISTANCE: u32 = 10;
/// The capacity of the fastest CPU, as the kernel scales it (SCHED_CAPACITY_SCALE).
pub const CAPACITY_SCALE: u32 = 1024;

/// The widest boundary between two CPUs: what a task crosses when it moves from one to the other.
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

    /// The name used in metrics and machine files.
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

/// Where one CPU lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct CpuInfo {
    /// Its core.
    pub core: CoreId,
    /// Its last-level cache.
    pub llc: LlcId,
    /// Its node.
    pub node: NodeId,
    /// Its position among the threads of its core, 0 first.
    pub smt: u32,
    /// Relative speed when alone on its core, 1..=1024; 1024 is the fastest CPU of the machine.
    pub capacity: u32,
}

/// One core.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Core {
    /// Its threads.
    pub cpus: CpuMask,
    /// The cache above it.
    pub llc: LlcId,
    /// Its node.
    pub node: NodeId,
    /// First-level data cache.
    pub l1d_bytes: u64,
    /// Second-level cache that this core reaches (all of it, also when cores share it).
    pub l2_bytes: u64,
}

/// One last-level cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Llc {
    /// The CPUs below it.
    pub cpus: CpuMask,
    /// Its node.
    pub node: NodeId,
    /// Its size.
    pub size_bytes: u64,
}

/// One NUMA node; it has no CPUs if it is memory only.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Node {
    /// Its CPUs.
    pub cpus: CpuMask,
    /// Its memory.
    pub memory_bytes: u64,
    /// To each node, itself included; 10 is local (ACPI SLIT units).
    pub distances: Vec<u32>,
}

/// A machine's CPUs and how they hang together.
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
    /// The number of CPUs; ids are `0..nr_cpus()`.
    #[inline]
    pub fn nr_cpus(&self) -> usize {
        self.cpus.len()
    }

    /// All CPU ids, ascending.
    pub fn cpu_ids(&self) -> impl ExactSizeIterator<Item = CpuId> + use<> {
        (0..self.cpus.len() as u32).map(CpuId)
    }

    /// Every CPU.
    pub fn all(&self) -> &CpuMask {
        &self.all
    }

    /// Where `cpu` lies.
    ///
    /// # Panics
    /// If there is no such CPU, as all queries by id do: ids come from this topology.
    #[inline]
    pub fn cpu(&self, cpu: CpuId) -> &CpuInfo {
        &self.cpus[cpu.idx()]
    }

    /// The core with this id.
    #[inline]
    pub fn core(&self, core: CoreId) -> &Core {
        &self.cores[core.idx()]
    }

    /// The last-level cache with this id.
    #[inline]
    pub fn llc(&self, llc: LlcId) -> &Llc {
        &self.llcs[llc.idx()]
    }

    /// The node with this id.
    #[inline]
    pub fn node(&self, node: NodeId) -> &Node {
        &self.nodes[node.idx()]
    }

    /// Every CPU's place, by id.
    pub fn cpus(&self) -> &[CpuInfo] {
        &self.cpus
    }

    /// Every core, by id; numbered by their lowest CPU.
    pub fn cores(&self) -> &[Core] {
        &self.cores
    }

    /// Every last-level cache, by id; numbered by their lowest CPU.
    pub fn llcs(&self) -> &[Llc] {
        &self.llcs
    }

    /// Every node, by id.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// The threads of `cpu`'s core, itself included.
    #[inline]
    pub fn core_mask(&self, cpu: CpuId) -> &CpuMask {
        &self.core(self.cpu(cpu).core).cpus
    }

    /// The CPUs under `cpu`'s last-level cache, itself included.
    #[inline]
    pub fn llc_mask(&self, cpu: CpuId) -> &CpuMask {
        &self.llc(self.cpu(cpu).llc).cpus
    }

    /// The CPUs of `cpu`'s node, itself included.
    #[inline]
    pub fn node_mask(&self, cpu: CpuId) -> &CpuMask {
        &self.node(self.cpu(cpu).node).cpus
    }

    /// Whether the two are threads of one core (also: the same CPU).
    #[inline]
    pub fn same_core(&self, a: CpuId, b: CpuId) -> bool {
        self.cpu(a).core == self.cpu(b).core
    }

    /// Whether the two share a last-level cache.
    #[inline]
    pub fn same_llc(&self, a: CpuId, b: CpuId) -> bool {
        self.cpu(a).llc == self.cpu(b).llc
    }

    /// Whether the two are on one node.
    #[inline]
    pub fn same_node(&self, a: CpuId, b: CpuId) -> bool {
        self.cpu(a).node == self.cpu(b).node
    }

    /// The SLIT distance between two nodes; 10 is local.
    #[inline]
    pub fn node_distance(&self, a: NodeId, b: NodeId) -> u32 {
        self.nodes[a.idx()].distances[b.idx()]
    }

    /// The widest boundary between two CPUs.
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

    /// The memory of all nodes.
    pub fn memory_bytes(&self) -> u64 {
        // Each node's memory is bounded by `Layout` so that the sum cannot overflow.
        self.nodes.iter().map(|node| node.memory_bytes).sum()
    }
}

#[cfg(test)]
mod tests;

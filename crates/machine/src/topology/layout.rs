// SPDX-License-Identifier: GPL-2.0-only
//! The construction of a topology from lists of CPUs, the only place that decides which machines
//! can exist.
//!
//! Owns: `Layout`, which every source of a topology fills in, and the refusals.
//! Does not: parse. A source reports its own syntax errors earlier.

use std::collections::BTreeSet;

use thiserror::Error;

use super::{
    CAPACITY_SCALE, CPUS_MAX, Core, CpuInfo, LOCAL_DISTANCE, Llc, NODES_MAX, Node, Topology,
};
use crate::cpumask::{self, CpuMask};
use crate::id::{CoreId, CpuId, LlcId, NodeId};

/// Maximum memory of one node: 2^52 bytes, the physical address space of today's CPUs.
const MEMORY_BYTES_MAX: u64 = 1 << 52;
/// The largest SLIT distance: the table's entries are bytes, and 255 means "unreachable".
const DISTANCE_MAX: u32 = 254;
/// Maximum number of groups of scheduling domains. Each node has a domain for each distance, and a
/// domain has at most one group for each node, so there are up to nodes x distances x nodes groups.
/// The limit allows four distances among 1024 nodes, the kernel's maximum, or 64 among 256.
const NUMA_GROUPS_MAX: usize = 1 << 22;

/// A machine as its source describes it, not yet checked. CPU numbers are the kernel's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// Cores, in any order. Together they define which CPUs exist.
    pub cores: Vec<CoreLayout>,
    /// Last-level caches, in any order.
    pub llcs: Vec<LlcLayout>,
    /// Nodes, indexed by id.
    pub nodes: Vec<NodeLayout>,
    /// Capacities, indexed by CPU number. CPUs past the end have 1024.
    pub capacities: Vec<u32>,
}

/// Threads and private caches of one core.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CoreLayout {
    /// CPU numbers of the threads.
    pub cpus: Vec<u32>,
    /// Size of the first-level data cache.
    pub l1d_bytes: u64,
    /// Size of the second-level cache.
    pub l2_bytes: u64,
}

/// One last-level cache.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LlcLayout {
    /// CPU numbers below the cache.
    pub cpus: Vec<u32>,
    pub size_bytes: u64,
}

/// One node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeLayout {
    /// CPU numbers; empty if the node is memory only.
    pub cpus: Vec<u32>,
    pub memory_bytes: u64,
    /// Distances to all nodes, indexed by id. If the list is empty on every node, local distances
    /// are 10 and remote ones 20.
    pub distances: Vec<u32>,
}

/// The reason why there can be no such machine. The input is at fault.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TopologyError {
    /// There is no CPU.
    #[error("a machine needs at least one CPU")]
    NoCpus,
    /// More CPUs than the kernel can be built for.
    #[error("{nr} CPUs; at most {CPUS_MAX} are possible")]
    TooManyCpus {
        /// Number of CPUs in the refused layout.
        nr: u64,
    },
    /// More nodes than the kernel can be built for.
    #[error("{nr} nodes; at most {NODES_MAX} are possible")]
    TooManyNodes {
        /// Number of nodes in the refused layout.
        nr: u64,
    },
    /// The CPU numbers are not 0..n.
    #[error(
        "CPU {cpu} is missing though CPU {last} exists: CPU numbers must have no holes (a CPU that is offline cannot be described)"
    )]
    Hole {
        /// The missing number.
        cpu: u32,
        /// The highest number.
        last: u32,
    },
    /// A core or a cache has no CPU.
    #[error("{what} {index} has no CPU")]
    Empty {
        /// "core" or "LLC".
        what: &'static str,
        /// Index of the core or LLC in the layout.
        index: usize,
    },
    /// A CPU is in two groups of one kind.
    #[error("CPU {cpu} is in two {what}s")]
    Overlap {
        cpu: u32,
        /// "core", "LLC" or "node".
        what: &'static str,
    },
    /// A CPU is in no group of one kind.
    #[error("CPU {cpu} is in no {what}")]
    Unassigned {
        cpu: u32,
        /// "core", "LLC" or "node".
        what: &'static str,
    },
    /// A cache or node names a CPU that no core has.
    #[error("{what} {index} names CPU {cpu}, which does not exist")]
    UnknownCpu {
        /// "LLC" or "node".
        what: &'static str,
        /// Index of the LLC or node in the layout.
        index: usize,
        cpu: u32,
    },
    /// A core crosses the border of an LLC, or an LLC crosses the border of a node.
    #[error("the {inner} of CPU {cpu} is split across {outer}s")]
    Split {
        /// A CPU of the split group. It lies in another `outer` than the group's first CPU.
        cpu: u32,
        /// "core" or "LLC".
        inner: &'static str,
        /// "LLC" or "node".
        outer: &'static str,
    },
    /// A capacity is out of range. Capacities are scaled so that the fastest CPU has 1024.
    #[error("CPU {cpu} has capacity {capacity}; it must be in 1..=1024")]
    Capacity {
        cpu: u32,
        /// The refused capacity.
        capacity: u32,
    },
    /// No CPU has full capacity. Capacities are relative to the fastest CPU.
    #[error("no CPU has capacity 1024, but capacities are relative to the fastest one")]
    NoFullCapacity,
    /// More capacities than CPUs.
    #[error("{given} capacities for {cpus} CPUs")]
    CapacityCount {
        /// Number of entries given.
        given: usize,
        /// Number of CPUs of the machine.
        cpus: usize,
    },
    /// A row of the distance matrix is missing or has the wrong length.
    #[error("node {node} has {given} distances, but there are {nodes} nodes")]
    DistanceCount {
        node: usize,
        /// Number of entries in the row.
        given: usize,
        /// Number of nodes.
        nodes: usize,
    },
    /// An entry on the diagonal of the distance matrix is not 10.
    #[error("node {node} is at distance {distance} from itself; local distance is 10")]
    LocalDistance {
        node: usize,
        /// The refused distance of the node to itself.
        distance: u32,
    },
    /// A remote distance is as short as the local one, or means "unreachable".
    #[error("nodes {from} and {to} are at distance {distance}; remote distances are in 11..=254")]
    RemoteDistance {
        /// Row of the matrix.
        from: usize,
        /// Column of the matrix.
        to: usize,
        /// The refused distance.
        distance: u32,
    },
    /// The distance matrix is not symmetric.
    #[error("node {from} is at distance {there} from node {to}, but {back} the other way round")]
    Asymmetric {
        /// Row of the matrix.
        from: usize,
        /// Column of the matrix.
        to: usize,
        /// Distance in row `from` and column `to`.
        there: u32,
        /// Distance in row `to` and column `from`.
        back: u32,
    },
    /// Nodes have so many different distances that the scheduling domains would take too much time
    /// and memory to build.
    #[error(
        "{nodes} nodes at {distances} different distances; for so many nodes at most {most} are possible (nodes x nodes x distances: at most {NUMA_GROUPS_MAX})"
    )]
    TooManyDistances {
        /// Number of nodes.
        nodes: usize,
        /// Number of different distances between two nodes.
        distances: usize,
        /// Maximum number of different distances for this number of nodes.
        most: usize,
    },
    /// A cache or memory of a size that no machine has.
    #[error("{what} {index} has {bytes} bytes; at most 2^52 are possible")]
    TooLarge {
        /// "node", "LLC" or "core".
        what: &'static str,
        /// Index of the node, LLC or core in the layout.
        index: usize,
        /// The refused size.
        bytes: u64,
    },
}

impl Topology {
    /// Builds the topology, or returns the reason why no machine can have this layout.
    pub fn build(mut layout: Layout) -> Result<Topology, TopologyError> {
        let nr_cpus = check_cpu_numbers(&layout)?;
        check_sizes(&layout)?;
        check_capacities(&layout, nr_cpus)?;
        check_distances(&mut layout.nodes)?;
        // An error names a core or an LLC by its position in the description, so look for errors
        // before sorting.
        partition("core", nr_cpus, layout.cores.iter().map(|c| &c.cpus[..]))?;
        partition("LLC", nr_cpus, layout.llcs.iter().map(|l| &l.cpus[..]))?;
        // The ids of cores and LLCs follow their lowest CPUs, so that two descriptions of one
        // machine give the same topology.
        layout.cores.sort_by_key(|core| core.cpus.iter().min().copied());
        layout.llcs.sort_by_key(|llc| llc.cpus.iter().min().copied());
        let core_of = partition("core", nr_cpus, layout.cores.iter().map(|c| &c.cpus[..]))?;
        let llc_of = partition("LLC", nr_cpus, layout.llcs.iter().map(|l| &l.cpus[..]))?;
        let node_of = partition("node", nr_cpus, layout.nodes.iter().map(|n| &n.cpus[..]))?;
        check_nested(&core_of, &llc_of, "core", "LLC")?;
        check_nested(&llc_of, &node_of, "LLC", "node")?;
        Ok(assemble(layout, &core_of, &llc_of, &node_of))
    }
}

/// Checks that the CPU numbers of the cores are `0..n`. Returns n.
fn check_cpu_numbers(layout: &Layout) -> Result<usize, TopologyError> {
    let total: usize = layout.cores.iter().map(|core| core.cpus.len()).sum();
    if total > CPUS_MAX {
        return Err(TopologyError::TooManyCpus { nr: total as u64 });
    }
    if layout.nodes.len() > NODES_MAX {
        return Err(TopologyError::TooManyNodes { nr: layout.nodes.len() as u64 });
    }
    let numbers: BTreeSet<u32> = layout.cores.iter().flat_map(|c| c.cpus.iter().copied()).collect();
    let last = *numbers.last().ok_or(TopologyError::NoCpus)?;
    match (0..=last).zip(&numbers).find(|(expected, got)| expected != *got) {
        Some((cpu, _)) => Err(TopologyError::Hole { cpu, last }),
        None => Ok(numbers.len()),
    }
}

fn check_sizes(layout: &Layout) -> Result<(), TopologyError> {
    let nodes =
        layout.nodes.iter().map(|n| n.memory_bytes).enumerate().map(|(i, b)| ("node", i, b));
    let llcs = layout.llcs.iter().map(|l| l.size_bytes).enumerate().map(|(i, b)| ("LLC", i, b));
    let cores = layout.cores.iter().map(|c| c.l1d_bytes.max(c.l2_bytes)).enumerate();
    let cores = cores.map(|(i, b)| ("core", i, b));
    match nodes.chain(llcs).chain(cores).find(|&(_, _, bytes)| bytes > MEMORY_BYTES_MAX) {
        Some((what, index, bytes)) => Err(TopologyError::TooLarge { what, index, bytes }),
        None => Ok(()),
    }
}

fn check_capacities(layout: &Layout, nr_cpus: usize) -> Result<(), TopologyError> {
    let given = &layout.capacities;
    if given.len() > nr_cpus {
        return Err(TopologyError::CapacityCount { given: given.len(), cpus: nr_cpus });
    }
    if let Some(cpu) = given.iter().position(|c| !(1..=CAPACITY_SCALE).contains(c)) {
        return Err(TopologyError::Capacity { cpu: cpu as u32, capacity: given[cpu] });
    }
    if given.len() == nr_cpus && !given.contains(&CAPACITY_SCALE) {
        return Err(TopologyError::NoFullCapacity);
    }
    Ok(())
}

/// Fills in the default matrix of node distances if the layout has no distances, and otherwise
/// checks the layout's matrix.
fn check_distances(nodes: &mut [NodeLayout]) -> Result<(), TopologyError> {
    let nr = nodes.len();
    if nodes.iter().all(|node| node.distances.is_empty()) {
        for (i, node) in nodes.iter_mut().enumerate() {
            // 20 is the kernel's assumption for nodes without a SLIT (REMOTE_DISTANCE).
            node.distances = (0..nr).map(|j| if i == j { LOCAL_DISTANCE } else { 20 }).collect();
        }
        return Ok(());
    }
    if let Some((node, row)) = nodes.iter().enumerate().find(|(_, n)| n.distances.len() != nr) {
        return Err(TopologyError::DistanceCount { node, given: row.distances.len(), nodes: nr });
    }
    for from in 0..nr {
        for to in 0..nr {
            check_distance(nodes, from, to)?;
        }
    }
    let different: BTreeSet<u32> =
        nodes.iter().flat_map(|node| node.distances.iter().copied()).collect();
    let (distances, most) = (different.len() - 1, NUMA_GROUPS_MAX / (nr * nr));
    if distances > most {
        return Err(TopologyError::TooManyDistances { nodes: nr, distances, most });
    }
    Ok(())
}

fn check_distance(nodes: &[NodeLayout], from: usize, to: usize) -> Result<(), TopologyError> {
    let distance = nodes[from].distances[to];
    let back = nodes[to].distances[from];
    if from == to {
        let ok = distance == LOCAL_DISTANCE;
        return if ok {
            Ok(())
        } else {
            Err(TopologyError::LocalDistance { node: from, distance })
        };
    }
    if !(LOCAL_DISTANCE + 1..=DISTANCE_MAX).contains(&distance) {
        return Err(TopologyError::RemoteDistance { from, to, distance });
    }
    if distance != back {
        return Err(TopologyError::Asymmetric { from, to, there: distance, back });
    }
    Ok(())
}

/// Returns, for each CPU, the index of the only group (core, LLC or node) that contains it. Refuses
/// groups that overlap or leave out a CPU.
fn partition<'a>(
    what: &'static str,
    nr_cpus: usize,
    groups: impl Iterator<Item = &'a [u32]>,
) -> Result<Vec<u32>, TopologyError> {
    let mut group_of: Vec<Option<u32>> = vec![None; nr_cpus];
    for (index, cpus) in groups.enumerate() {
        if cpus.is_empty() && what != "node" {
            return Err(TopologyError::Empty { what, index });
        }
        for &cpu in cpus {
            let slot = group_of.get_mut(cpu as usize).ok_or(TopologyError::UnknownCpu {
                what,
                index,
                cpu,
            })?;
            if slot.replace(index as u32).is_some() {
                return Err(TopologyError::Overlap { cpu, what });
            }
        }
    }
    let unassigned = |cpu: usize| TopologyError::Unassigned { cpu: cpu as u32, what };
    group_of
        .into_iter()
        .enumerate()
        .map(|(cpu, group)| group.ok_or_else(|| unassigned(cpu)))
        .collect()
}

/// Checks that every inner group (core or LLC) lies in one outer group (LLC or node).
fn check_nested(
    inner_of: &[u32],
    outer_of: &[u32],
    inner: &'static str,
    outer: &'static str,
) -> Result<(), TopologyError> {
    let mut home: Vec<Option<u32>> = vec![None; inner_of.len()];
    for (cpu, (&i, &o)) in inner_of.iter().zip(outer_of).enumerate() {
        if *home[i as usize].get_or_insert(o) != o {
            return Err(TopologyError::Split { cpu: cpu as u32, inner, outer });
        }
    }
    Ok(())
}

/// Makes the topology from a checked layout and the core, LLC and node of each CPU. Cannot fail.
fn assemble(layout: Layout, core_of: &[u32], llc_of: &[u32], node_of: &[u32]) -> Topology {
    let nr = core_of.len();
    let mask = |cpus: &[u32]| CpuMask::of(nr, cpus.iter().map(|&cpu| CpuId(cpu)));
    let first = |cpus: &[u32]| cpus.iter().min().map_or(0, |&cpu| cpu as usize);
    let cores: Vec<Core> = layout
        .cores
        .iter()
        .map(|core| Core {
            cpus: mask(&core.cpus),
            llc: LlcId(llc_of[first(&core.cpus)]),
            node: NodeId(node_of[first(&core.cpus)]),
            l1d_bytes: core.l1d_bytes,
            l2_bytes: core.l2_bytes,
        })
        .collect();
    let llcs = layout.llcs.iter().map(|llc| Llc {
        cpus: mask(&llc.cpus),
        node: NodeId(node_of[first(&llc.cpus)]),
        size_bytes: llc.size_bytes,
    });
    let cpus = (0..nr as u32).map(|cpu| CpuInfo {
        core: CoreId(core_of[cpu as usize]),
        llc: LlcId(llc_of[cpu as usize]),
        node: NodeId(node_of[cpu as usize]),
        smt: smt_index(&cores[core_of[cpu as usize] as usize].cpus, cpu),
        capacity: layout.capacities.get(cpu as usize).copied().unwrap_or(CAPACITY_SCALE),
    });
    Topology {
        cpus: cpus.collect(),
        llcs: llcs.collect(),
        nodes: layout
            .nodes
            .iter()
            .map(|node| Node {
                cpus: mask(&node.cpus),
                memory_bytes: node.memory_bytes,
                distances: node.distances.clone(),
            })
            .collect(),
        all: CpuMask::all(nr),
        cores,
    }
}

/// Returns the number of threads of the core with a lower CPU number.
fn smt_index(core: &CpuMask, cpu: u32) -> u32 {
    cpumask::iter(core).take_while(|sibling| sibling.0 < cpu).count() as u32
}

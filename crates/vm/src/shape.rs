// SPDX-License-Identifier: GPL-2.0-only
//! Translates a machine's topology for QEMU, and compares the result with the topology that the
//! guest's kernel sees.
//!
//! Owns: the set of machines that QEMU can emulate, the numbering of the guest's CPUs, and the
//! comparison.
//! Does not: spell QEMU's options (see `qemu.rs`), or pass on the sizes of caches and memory: the
//! guest has QEMU's own.
//!
//! ```text
//! ours        QEMU          the kernel takes it from
//! node        node          SRAT (and SLIT for the distances)
//! LLC         socket        CPUID's cache leaf: the third level is shared by a socket
//! core        core          CPUID's topology leaf
//! CPU         thread
//! ```
//!
//! Dies inside sockets would describe the same topology, but QEMU 10 fails an assertion when Linux
//! 7.3 queries them.
//!
//! QEMU numbers threads first, then cores and sockets, and has the same number of cores and threads
//! everywhere. A machine that is as regular but numbered differently gets a map from its CPUs to
//! the guest's.

use scxlab_machine::{Topology, cpumask};
use thiserror::Error;

/// QEMU's limit on nodes.
const NODES_MAX: usize = 128;
/// Number of APIC ids: without x2APIC, an id is a byte, and the last id addresses all CPUs.
const APIC_IDS_MAX: u64 = 255;

/// Why QEMU cannot emulate a machine.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ShapeError {
    /// The machine has a slower CPU, and all of QEMU's CPUs have the same capacity.
    #[error("CPU {cpu} has capacity {capacity}, and QEMU has no slower CPUs (all must have 1024)")]
    Capacity {
        /// The first slower CPU.
        cpu: u32,
        /// Capacity of the first slower CPU; the full capacity is 1024.
        capacity: u32,
    },
    /// Two LLCs have different numbers of cores, or two cores different numbers of CPUs. QEMU has
    /// one number for all LLCs and one for all cores.
    #[error(
        "{what} {index} has {has} {parts}, another has {other}; QEMU needs the same number everywhere"
    )]
    Irregular {
        /// Kind of the unit that differs: "LLC" or "core".
        what: &'static str,
        /// Index of the core or LLC that differs from the first one.
        index: usize,
        /// Number of cores in the LLC with this index, or of CPUs in the core with this index.
        has: usize,
        /// Kind of the counted parts: "cores" of an LLC or "CPUs" of a core.
        parts: &'static str,
        /// Number of cores in the first LLC, or of CPUs in the first core.
        other: usize,
    },
    /// The machine has more nodes than QEMU supports.
    #[error("{nodes} nodes; QEMU has at most {NODES_MAX}")]
    Nodes {
        /// Number of nodes of the machine.
        nodes: usize,
    },
    /// The machine takes more APIC ids than an interrupt controller without x2APIC has.
    #[error(
        "{cpus} CPUs take {ids} APIC ids (each level is rounded up to a power of two); at most {APIC_IDS_MAX} are possible"
    )]
    Cpus {
        /// Number of CPUs of the machine.
        cpus: usize,
        /// Number of APIC ids that the machine's CPUs take.
        ids: u64,
    },
}

/// The regular machine that QEMU emulates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Number of last-level caches, each a socket.
    pub sockets: usize,
    /// Cores per last-level cache.
    pub cores: usize,
    /// Threads per core.
    pub threads: usize,
    /// Pairs indexed by node: the guest's number of the node's first CPU, and the number of CPUs of
    /// the node, which is 0 for a memory-only node.
    pub node_cpus: Vec<(usize, usize)>,
    /// Indexed by node: the distance to each node.
    pub distances: Vec<Vec<u32>>,
    /// The guest's CPU numbers, indexed by the machine's CPU numbers.
    pub guest_cpus: Vec<u32>,
}

impl Shape {
    /// Returns the regular machine by which QEMU emulates the given one, or the reason why QEMU
    /// cannot emulate it.
    pub fn of(topology: &Topology) -> Result<Shape, ShapeError> {
        check_capacities(topology)?;
        let nodes = topology.nodes();
        if nodes.len() > NODES_MAX {
            return Err(ShapeError::Nodes { nodes: nodes.len() });
        }
        let llcs_of = |node: usize| {
            topology.llcs().iter().enumerate().filter(move |(_, llc)| llc.node.idx() == node)
        };
        let cores_of = |llc: usize| topology.cores().iter().filter(move |c| c.llc.idx() == llc);
        let sockets = topology.llcs().len();
        let cores = same("LLC", "cores", (0..sockets).map(|llc| (llc, cores_of(llc).count())))?;
        let threads = topology.cores().iter().map(|core| cpumask::weight(&core.cpus) as usize);
        let threads = same("core", "CPUs", threads.enumerate())?;
        check_apic_ids(topology.nr_cpus(), [sockets, cores, threads])?;
        let mut guest_cpus = vec![0; topology.nr_cpus()];
        let mut node_cpus = Vec::new();
        let mut next = 0;
        for node in 0..nodes.len() {
            let first = next;
            for (llc, _) in llcs_of(node) {
                for cpu in cores_of(llc).flat_map(|core| cpumask::iter(&core.cpus)) {
                    guest_cpus[cpu.idx()] = next as u32;
                    next += 1;
                }
            }
            node_cpus.push((first, next - first));
        }
        let distances = nodes.iter().map(|node| node.distances.clone()).collect();
        Ok(Shape { sockets, cores, threads, node_cpus, distances, guest_cpus })
    }

    /// Returns the number of CPUs.
    pub fn nr_cpus(&self) -> usize {
        self.guest_cpus.len()
    }
}

/// Describes the location of each CPU of a machine, and the distances between nodes, as lines;
/// equal machines give equal lines. `renumber` maps the topology's CPU numbers to those in the
/// lines.
pub(crate) fn describe(topology: &Topology, renumber: impl Fn(u32) -> u32) -> String {
    let mut cpus: Vec<(u32, String)> = Vec::new();
    let list = |mask: &scxlab_machine::CpuMask| {
        let mut cpus: Vec<u32> = cpumask::iter(mask).map(|cpu| renumber(cpu.0)).collect();
        cpus.sort_unstable();
        list_cpus(&cpus)
    };
    for cpu in topology.cpu_ids() {
        let guest = renumber(cpu.0);
        let (core, llc) = (list(topology.core_mask(cpu)), list(topology.llc_mask(cpu)));
        let node = topology.cpu(cpu).node.0;
        cpus.push((guest, format!("CPU {guest}: core {core}, LLC {llc}, node {node}\n")));
    }
    cpus.sort();
    let mut text: String = cpus.into_iter().map(|(_, line)| line).collect();
    for (id, node) in topology.nodes().iter().enumerate() {
        let distances: Vec<String> = node.distances.iter().map(u32::to_string).collect();
        text += &format!("node {id}: distances {}\n", distances.join(" "));
    }
    text
}

/// Returns the first line in which two descriptions differ, as a sentence.
pub(crate) fn difference(wanted: &str, found: &str) -> Option<String> {
    if wanted == found {
        return None;
    }
    let (mut wanted, mut found) = (wanted.lines(), found.lines());
    loop {
        match (wanted.next(), found.next()) {
            (Some(a), Some(b)) if a == b => {}
            (Some(a), Some(b)) => return Some(format!("wanted \"{a}\", the kernel says \"{b}\"")),
            (Some(a), None) => return Some(format!("wanted \"{a}\", the kernel has no such line")),
            (None, Some(b)) => return Some(format!("the kernel also has \"{b}\"")),
            (None, None) => return None,
        }
    }
}

/// Formats ascending numbers in the kernel's list form.
fn list_cpus(cpus: &[u32]) -> String {
    let mut ranges: Vec<(u32, u32)> = Vec::new();
    for &cpu in cpus {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == cpu => *last = cpu,
            _ => ranges.push((cpu, cpu)),
        }
    }
    let text = |(first, last)| {
        if first == last { format!("{first}") } else { format!("{first}-{last}") }
    };
    ranges.into_iter().map(text).collect::<Vec<_>>().join(",")
}

fn check_capacities(topology: &Topology) -> Result<(), ShapeError> {
    let full = scxlab_machine::topology::CAPACITY_SCALE;
    let slow = topology.cpus().iter().enumerate().find(|(_, cpu)| cpu.capacity != full);
    match slow {
        Some((cpu, info)) => Err(ShapeError::Capacity { cpu: cpu as u32, capacity: info.capacity }),
        None => Ok(()),
    }
}

/// Returns the number of parts that every unit of a level has (cores of an LLC, or CPUs of a core);
/// an error if two units have different numbers.
fn same(
    what: &'static str,
    parts: &'static str,
    counts: impl Iterator<Item = (usize, usize)>,
) -> Result<usize, ShapeError> {
    let mut first = None;
    for (index, has) in counts {
        let other = *first.get_or_insert(has);
        if has != other {
            return Err(ShapeError::Irregular { what, index, has, parts, other });
        }
    }
    // A topology has at least one CPU, and therefore at least one part of every kind.
    Ok(first.unwrap_or(1))
}

fn check_apic_ids(cpus: usize, levels: [usize; 3]) -> Result<(), ShapeError> {
    let [sockets, cores, threads] = levels.map(|n| n as u64);
    let per_core = threads.next_power_of_two();
    let per_socket = cores.next_power_of_two() * per_core;
    let ids = (sockets - 1) * per_socket + (cores - 1) * per_core + threads;
    if ids > APIC_IDS_MAX { Err(ShapeError::Cpus { cpus, ids }) } else { Ok(()) }
}

#[cfg(test)]
mod tests;

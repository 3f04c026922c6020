// SPDX-License-Identifier: GPL-2.0-only
//! The running host's topology from sysfs, through a reader that the caller supplies.
//!
//! Owns: the choice of files and their meaning. Does not: open a file.
//! Models: the kernel's view, `Documentation/admin-guide/cputopology.rst` and
//! `Documentation/ABI/stable/sysfs-devices-node`. Differs: an offline CPU is refused, not skipped.

use std::collections::BTreeSet;
use std::io;

use thiserror::Error;

use super::{
    CPUS_MAX, CoreLayout, Layout, LlcLayout, NODES_MAX, NodeLayout, Topology, TopologyError,
};

/// Reads single files of sysfs.
pub trait SysfsReader {
    /// Returns the text of `path`, which is relative to the mount point:
    /// `devices/system/cpu/online`.
    fn read(&self, path: &str) -> io::Result<String>;
}

/// The reason why sysfs does not describe a machine.
#[derive(Debug, Error)]
pub enum SysfsError {
    /// A file that always exists could not be read.
    #[error("{path}: {why}")]
    Io {
        path: String,
        /// The error from reading the file.
        #[source]
        why: io::Error,
    },
    /// A file does not have its documented form.
    #[error("{path}: {why}")]
    Syntax {
        path: String,
        /// Description of the mistake.
        why: String,
    },
    /// The files describe a machine that cannot be simulated.
    #[error(transparent)]
    Impossible(#[from] TopologyError),
}

/// Number of cache indexes to try; today's machines have up to 5 (two of level 1).
const CACHE_INDEXES: u32 = 16;

/// Reads the topology of the host.
pub fn read(reader: &dyn SysfsReader) -> Result<Topology, SysfsError> {
    let sysfs = Sysfs { reader };
    let cpus = sysfs.cpu_list("devices/system/cpu/online")?;
    check_online(&cpus)?;
    let mut layout = Layout { nodes: sysfs.nodes(&cpus)?, ..Layout::default() };
    let mut seen: BTreeSet<Vec<u32>> = BTreeSet::new();
    let mut seen_llc: BTreeSet<Vec<u32>> = BTreeSet::new();
    for &cpu in &cpus {
        let siblings = sysfs.siblings(cpu)?;
        let caches = sysfs.caches(cpu)?;
        if seen.insert(siblings.clone()) {
            let size = |level| caches.iter().find(|c| c.level == level).map_or(0, |c| c.size_bytes);
            layout.cores.push(CoreLayout {
                cpus: siblings.clone(),
                l1d_bytes: size(1),
                l2_bytes: size(2),
            });
        }
        // If sysfs describes no cache (some VMs), assume that the CPUs of a node share one, as the
        // kernel does.
        let llc = match caches.iter().max_by_key(|cache| cache.level) {
            Some(last) => LlcLayout { cpus: last.cpus.clone(), size_bytes: last.size_bytes },
            None => LlcLayout { cpus: node_of(&layout.nodes, cpu), size_bytes: 0 },
        };
        if seen_llc.insert(llc.cpus.clone()) {
            layout.llcs.push(llc);
        }
        layout.capacities.push(sysfs.capacity(cpu)?);
    }
    split_llcs_by_node(&mut layout);
    scale_capacities(&mut layout.capacities);
    Ok(Topology::build(layout)?)
}

/// Checks that all CPUs are online. Sibling and cache lists may still name an offline CPU, so a
/// hole in the numbers must be found here.
fn check_online(cpus: &[u32]) -> Result<(), TopologyError> {
    let last = *cpus.iter().max().ok_or(TopologyError::NoCpus)?;
    let online: BTreeSet<u32> = cpus.iter().copied().collect();
    match (0..=last).find(|cpu| !online.contains(cpu)) {
        Some(cpu) => Err(TopologyError::Hole { cpu, last }),
        None => Ok(()),
    }
}

/// Splits an LLC above several nodes (sub-NUMA clustering) into one per node, as the scheduler's
/// domains see it. Each part gets its share of the size.
pub(super) fn split_llcs_by_node(layout: &mut Layout) {
    let nodes = &layout.nodes;
    let split = |llc: LlcLayout| {
        let whole = llc.cpus.len().max(1) as u64;
        let part = |node: &NodeLayout| {
            let mine: BTreeSet<u32> = node.cpus.iter().copied().collect();
            let cpus: Vec<u32> =
                llc.cpus.iter().copied().filter(|cpu| mine.contains(cpu)).collect();
            LlcLayout { size_bytes: llc.size_bytes / whole * cpus.len() as u64, cpus }
        };
        let parts: Vec<LlcLayout> = nodes.iter().map(part).filter(|p| !p.cpus.is_empty()).collect();
        // An LLC with CPUs of only one node keeps its exact size. Its CPUs that lie in no node stay
        // in the list, so that `Topology::build` finds and refuses them.
        if parts.len() < 2 { vec![llc] } else { parts }
    };
    layout.llcs = std::mem::take(&mut layout.llcs).into_iter().flat_map(split).collect();
}

/// Scales capacities of any unit so that the fastest CPU has 1024. Unknown capacities (0) become
/// 1024.
pub(super) fn scale_capacities(capacities: &mut [u32]) {
    let max = capacities.iter().copied().max().unwrap_or(0).max(1);
    for capacity in capacities {
        let scaled = (u64::from(*capacity) * 1024 / u64::from(max)) as u32;
        *capacity = if *capacity == 0 { 1024 } else { scaled.max(1) };
    }
}

/// Parses the kernel's list form: `0-3,8,10-11`. Surrounding blanks are allowed; an empty text
/// means no CPU.
pub fn parse_cpu_list(text: &str) -> Result<Vec<u32>, String> {
    let text = text.trim();
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let mut cpus = Vec::new();
    for range in text.split(',') {
        let (low, high) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| {
            let parsed = text.trim().parse().ok().filter(|&cpu: &u32| (cpu as usize) < CPUS_MAX);
            parsed.ok_or_else(|| format!("\"{text}\" is no CPU number in 0..{CPUS_MAX}"))
        };
        let (low, high) = (number(low)?, number(high)?);
        if low > high {
            return Err(format!("the range {low}-{high} is empty"));
        }
        cpus.extend(low..=high);
        // The length is checked in the loop, because repeated ranges could grow the list without
        // bound.
        if cpus.len() > CPUS_MAX {
            return Err(format!("more than {CPUS_MAX} CPUs"));
        }
    }
    Ok(cpus)
}

fn node_of(nodes: &[NodeLayout], cpu: u32) -> Vec<u32> {
    nodes.iter().find(|node| node.cpus.contains(&cpu)).map_or(vec![cpu], |node| node.cpus.clone())
}

struct Cache {
    level: u32,
    cpus: Vec<u32>,
    size_bytes: u64,
}

struct Sysfs<'a> {
    reader: &'a dyn SysfsReader,
}

impl Sysfs<'_> {
    fn read(&self, path: &str) -> Result<String, SysfsError> {
        self.reader.read(path).map_err(|why| SysfsError::Io { path: path.to_owned(), why })
    }

    /// Reads a file that need not exist.
    fn read_optional(&self, path: &str) -> Result<Option<String>, SysfsError> {
        match self.reader.read(path) {
            Ok(text) => Ok(Some(text)),
            Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(why) => Err(SysfsError::Io { path: path.to_owned(), why }),
        }
    }

    fn cpu_list(&self, path: &str) -> Result<Vec<u32>, SysfsError> {
        let text = self.read(path)?;
        parse_cpu_list(&text).map_err(|why| SysfsError::Syntax { path: path.to_owned(), why })
    }

    fn siblings(&self, cpu: u32) -> Result<Vec<u32>, SysfsError> {
        self.cpu_list(&format!("devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"))
    }

    /// Returns a CPU's relative capacity in sysfs's unit; 0 if the file is absent, as on most x86
    /// machines.
    fn capacity(&self, cpu: u32) -> Result<u32, SysfsError> {
        let path = format!("devices/system/cpu/cpu{cpu}/cpu_capacity");
        self.read_optional(&path)?.map_or(Ok(0), |text| number(&path, &text))
    }

    /// Returns the data and unified caches of a CPU.
    fn caches(&self, cpu: u32) -> Result<Vec<Cache>, SysfsError> {
        let mut caches = Vec::new();
        for index in 0..CACHE_INDEXES {
            let dir = format!("devices/system/cpu/cpu{cpu}/cache/index{index}");
            let Some(kind) = self.read_optional(&format!("{dir}/type"))? else {
                break;
            };
            if kind.trim() == "Instruction" {
                continue;
            }
            let level_path = format!("{dir}/level");
            let size_path = format!("{dir}/size");
            let size = self.read_optional(&size_path)?;
            caches.push(Cache {
                level: number(&level_path, &self.read(&level_path)?)?,
                cpus: self.cpu_list(&format!("{dir}/shared_cpu_list"))?,
                size_bytes: size.map_or(Ok(0), |text| size_bytes(&size_path, &text))?,
            });
        }
        Ok(caches)
    }

    /// Returns the nodes with their distances; one node with all CPUs if the kernel has no NUMA.
    fn nodes(&self, cpus: &[u32]) -> Result<Vec<NodeLayout>, SysfsError> {
        let online_path = "devices/system/node/online";
        let Some(online) = self.read_optional(online_path)? else {
            return Ok(vec![NodeLayout { cpus: cpus.to_vec(), ..NodeLayout::default() }]);
        };
        let ids = parse_cpu_list(&online)
            .map_err(|why| SysfsError::Syntax { path: online_path.to_owned(), why })?;
        if ids.len() > NODES_MAX {
            return Err(TopologyError::TooManyNodes { nr: ids.len() as u64 }.into());
        }
        ids.iter().map(|id| self.node(*id)).collect()
    }

    fn node(&self, id: u32) -> Result<NodeLayout, SysfsError> {
        let dir = format!("devices/system/node/node{id}");
        let distance_path = format!("{dir}/distance");
        let distances = self.read(&distance_path)?;
        let meminfo = self.read_optional(&format!("{dir}/meminfo"))?;
        Ok(NodeLayout {
            cpus: self.cpu_list(&format!("{dir}/cpulist"))?,
            memory_bytes: meminfo.map_or(0, |text| mem_total_bytes(&text)),
            distances: distances
                .split_whitespace()
                .map(|word| number(&distance_path, word))
                .collect::<Result<_, _>>()?,
        })
    }
}

fn number(path: &str, text: &str) -> Result<u32, SysfsError> {
    text.trim().parse().map_err(|_| SysfsError::Syntax {
        path: path.to_owned(),
        why: format!("\"{}\" is no number", text.trim()),
    })
}

/// Parses `48K`, `2M` or plain bytes.
fn size_bytes(path: &str, text: &str) -> Result<u64, SysfsError> {
    let text = text.trim();
    let (digits, shift) = match text.strip_suffix('K') {
        Some(digits) => (digits, 10),
        None => text.strip_suffix('M').map_or((text, 0), |digits| (digits, 20)),
    };
    Ok(u64::from(number(path, digits)?) << shift)
}

/// Parses `Node 0 MemTotal:       65961184 kB`; 0 if there is no such line.
fn mem_total_bytes(meminfo: &str) -> u64 {
    let line = meminfo.lines().find(|line| line.contains("MemTotal:"));
    let kib = line.and_then(|line| line.split_whitespace().rev().nth(1)?.parse::<u64>().ok());
    kib.unwrap_or(0).saturating_mul(1024)
}

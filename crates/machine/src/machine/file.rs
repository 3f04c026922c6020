// SPDX-License-Identifier: GPL-2.0-only
//! Machine files: TOML that describes a topology, and the costs that differ from a base table.
//!
//! Owns: the form below. Does not: check the topology (see `topology/layout.rs`) or name constants.
//!
//! ```toml
//! name = "example"
//! description = "one sentence"
//! source = "what is known and from where; what is assumed"
//! ple = true                               # optional, default true: what current x86 servers do
//! node_reclaim_distance = 32               # optional, default 30: what the kernel sets for this processor
//!
//! [topology]                               # either a regular machine ...
//! spec = "2n4c2t"
//! l1d_kib = 32                             # all four sizes are optional
//! l2_kib = 1024
//! llc_kib = 32768
//! node_memory_mib = 65536                  # or one number per node
//! distances = [[10, 21], [21, 10]]         # optional, by default 10 and 20
//! capacities = [1024, 1024, 512]           # optional, by CPU number, the rest 1024
//!
//! [topology]                               # ... or its parts, by CPU numbers
//! cores = [{ cpus = "0,4", l1d_kib = 32, l2_kib = 1024 }]
//! llcs = [{ cpus = "0-7", size_kib = 8192 }]                  # each size may be given in bytes:
//! nodes = [{ cpus = "0-7", memory_mib = 65536 }]              # l1d_bytes, size_bytes, memory_bytes
//!
//! [memory]                                 # optional, see `memory.rs`
//! bandwidth = { value = [75000, 75000], unit = "MB/s", source = "..." }
//!
//! [cost]
//! base = "modern-x86"                      # optional
//! sched.context_switch = { value = 1500, unit = "ns", source = "..." }
//! ```

use std::ops::Range;

use super::memory::{self, GivenMemory};
use super::{Machine, MachineError, NODE_RECLAIM_DISTANCE};
use crate::cost::{BASES, CostTable, Overrides};
use crate::reader::{Document, Item, Table};
use crate::topology::spec::{Sizes, Spec};
use crate::topology::{
    CAPACITY_SCALE, CPUS_MAX, CoreLayout, Layout, LlcLayout, NodeLayout, Topology, TopologyError,
    sysfs,
};

const KIB_MAX: u64 = 1 << 42;
const MIB_MAX: u64 = 1 << 32;

const PARTS: &[&str] = &["cores", "llcs", "nodes", "distances", "capacities"];
const REGULAR: &[&str] =
    &["spec", "l1d_kib", "l2_kib", "llc_kib", "node_memory_mib", "distances", "capacities"];

/// Parses a whole machine file.
pub(super) fn read(file: &str, text: &str) -> Result<Machine, MachineError> {
    let mut root = Document::parse(file, text)?;
    let name = root.require("name")?.string()?;
    let description = root.require("description")?.string()?;
    let source = root.require("source")?.string()?;
    let ple = root.take("ple").map_or(Ok(true), |item| item.boolean())?;
    let far = root.take("node_reclaim_distance").map(|item| item.integer(255)).transpose()?;
    let node_reclaim_distance = far.map_or(NODE_RECLAIM_DISTANCE, |distance| distance as u32);
    let table = root.require("topology")?.table()?;
    let document = table.document;
    let (layout, places) = read_topology(table)?;
    let nodes = layout.nodes.len();
    let memory =
        root.take("memory").map_or(Ok(GivenMemory::default()), |item| memory::read(item, nodes))?;
    let costs = root.take("cost").map_or(Ok(CostTable::modern()), read_costs)?;
    root.finish(&[
        "name",
        "description",
        "source",
        "ple",
        "node_reclaim_distance",
        "topology",
        "memory",
        "cost",
    ])?;
    let topology =
        Topology::build(layout).map_err(|why| document.error(places.of(&why), why.to_string()))?;
    Ok(Machine { name, description, source, ple, node_reclaim_distance, topology, costs, memory })
}

/// Places of a topology's keys in the file.
struct TopologyPlaces {
    table: Range<usize>,
    distances: Option<Range<usize>>,
    capacities: Option<Range<usize>>,
}

impl TopologyPlaces {
    /// Returns the place of the key that the error is about; the whole table if several keys may
    /// be at fault.
    fn of(&self, error: &TopologyError) -> &Range<usize> {
        let key = match error {
            TopologyError::DistanceCount { .. }
            | TopologyError::LocalDistance { .. }
            | TopologyError::RemoteDistance { .. }
            | TopologyError::Asymmetric { .. }
            | TopologyError::TooManyDistances { .. } => &self.distances,
            TopologyError::Capacity { .. }
            | TopologyError::NoFullCapacity
            | TopologyError::CapacityCount { .. } => &self.capacities,
            _ => &None,
        };
        key.as_ref().unwrap_or(&self.table)
    }
}

fn read_topology(mut table: Table<'_>) -> Result<(Layout, TopologyPlaces), MachineError> {
    let span = table.span.clone();
    let mut places = TopologyPlaces { table: span, distances: None, capacities: None };
    let (mut layout, known) = match table.take("spec") {
        Some(spec) => (read_regular(spec, &mut table)?, REGULAR),
        None => (read_parts(&mut table)?, PARTS),
    };
    if let Some(rows) = table.take("distances") {
        places.distances = Some(rows.span.clone());
        read_distances(rows, &mut layout)?;
    }
    if let Some(capacities) = table.take("capacities") {
        places.capacities = Some(capacities.span.clone());
        layout.capacities = integers(capacities, CPUS_MAX, u64::from(CAPACITY_SCALE))?
            .into_iter()
            .map(|capacity| capacity as u32)
            .collect();
    }
    table.finish(known)?;
    Ok((layout, places))
}

/// Reads a spec string with sizes.
fn read_regular(spec: Item<'_>, table: &mut Table<'_>) -> Result<Layout, MachineError> {
    let (document, span) = (spec.document, spec.span.clone());
    let here = |why: String| document.error(&span, why);
    let spec = Spec::parse(&spec.string()?).map_err(|why| here(why.to_string()))?;
    let mut sizes = Sizes::default();
    kib(table, "l1d_kib", &mut sizes.l1d_bytes)?;
    kib(table, "l2_kib", &mut sizes.l2_bytes)?;
    kib(table, "llc_kib", &mut sizes.llc_bytes)?;
    let mut layout = spec.layout(sizes).map_err(|why| here(why.to_string()))?;
    if let Some(memory) = table.take("node_memory_mib") {
        read_memory(memory, &mut layout)?;
    }
    Ok(layout)
}

/// Reads the nodes' memory: one number for every node, or a list with one per node.
fn read_memory(item: Item<'_>, layout: &mut Layout) -> Result<(), MachineError> {
    if let Ok(same) = item.integer(MIB_MAX) {
        layout.nodes.iter_mut().for_each(|node| node.memory_bytes = same << 20);
        return Ok(());
    }
    let (document, span) = (item.document, item.span.clone());
    let sizes = integers(item, CPUS_MAX, MIB_MAX)?;
    if sizes.len() != layout.nodes.len() {
        let what = format!("{} sizes for {} nodes", sizes.len(), layout.nodes.len());
        return Err(document.error(&span, what));
    }
    layout.nodes.iter_mut().zip(sizes).for_each(|(node, mib)| node.memory_bytes = mib << 20);
    Ok(())
}

/// Reads the parts of an irregular machine: the lists `cores`, `llcs` and `nodes`.
fn read_parts(table: &mut Table<'_>) -> Result<Layout, MachineError> {
    let mut layout = Layout::default();
    let defaults = Sizes::default();
    for item in table.require("cores")?.array()? {
        let mut entry = item.table()?;
        let mut core = CoreLayout {
            cpus: cpu_list(entry.require("cpus")?)?,
            l1d_bytes: defaults.l1d_bytes,
            l2_bytes: defaults.l2_bytes,
        };
        kib(&mut entry, "l1d_kib", &mut core.l1d_bytes)?;
        kib(&mut entry, "l2_kib", &mut core.l2_bytes)?;
        bytes(&mut entry, "l1d_bytes", &mut core.l1d_bytes)?;
        bytes(&mut entry, "l2_bytes", &mut core.l2_bytes)?;
        entry.finish(&["cpus", "l1d_kib", "l2_kib", "l1d_bytes", "l2_bytes"])?;
        layout.cores.push(core);
    }
    for item in table.require("llcs")?.array()? {
        let mut entry = item.table()?;
        let cpus = cpu_list(entry.require("cpus")?)?;
        let mut size_bytes = defaults.llc_bytes;
        kib(&mut entry, "size_kib", &mut size_bytes)?;
        bytes(&mut entry, "size_bytes", &mut size_bytes)?;
        entry.finish(&["cpus", "size_kib", "size_bytes"])?;
        layout.llcs.push(LlcLayout { cpus, size_bytes });
    }
    for item in table.require("nodes")?.array()? {
        let mut entry = item.table()?;
        let cpus = cpu_list(entry.require("cpus")?)?;
        let memory = entry.take("memory_mib").map(|item| item.integer(MIB_MAX)).transpose()?;
        let mut memory_bytes = memory.map_or(defaults.node_memory_bytes, |mib| mib << 20);
        bytes(&mut entry, "memory_bytes", &mut memory_bytes)?;
        entry.finish(&["cpus", "memory_mib", "memory_bytes"])?;
        layout.nodes.push(NodeLayout { cpus, memory_bytes, distances: Vec::new() });
    }
    Ok(layout)
}

/// Reads one row of distances per node. The topology's checks find incomplete rows.
fn read_distances(item: Item<'_>, layout: &mut Layout) -> Result<(), MachineError> {
    let (document, span) = (item.document, item.span.clone());
    let rows = item.array()?;
    if rows.len() != layout.nodes.len() {
        let what = format!("{} rows of distances for {} nodes", rows.len(), layout.nodes.len());
        return Err(document.error(&span, what));
    }
    for (node, row) in layout.nodes.iter_mut().zip(rows) {
        let row = integers(row, CPUS_MAX, 255)?;
        node.distances = row.into_iter().map(|distance| distance as u32).collect();
    }
    Ok(())
}

fn read_costs(item: Item<'_>) -> Result<CostTable, MachineError> {
    let mut table = item.table()?;
    let (document, span) = (table.document, table.span.clone());
    let base = table.take("base").map_or(Ok(BASES[0].0.to_owned()), Item::string)?;
    let overrides = Overrides::read(table, &["base"])?;
    CostTable::from_base(&base, overrides).unwrap_or_else(|| {
        let known: Vec<_> = BASES.iter().map(|(name, _)| *name).collect();
        let what = format!("no cost table \"{base}\"; there are: {}", known.join(", "));
        Err(document.error(&span, what))
    })
}

/// Replaces `bytes` by the value of `key`, if the key is present.
fn kib(table: &mut Table<'_>, key: &str, bytes: &mut u64) -> Result<(), MachineError> {
    if let Some(item) = table.take(key) {
        *bytes = item.integer(KIB_MAX)? << 10;
    }
    Ok(())
}

/// Replaces `size` by the value of `key`, if the key is present.
fn bytes(table: &mut Table<'_>, key: &str, size: &mut u64) -> Result<(), MachineError> {
    if let Some(item) = table.take(key) {
        *size = item.integer(KIB_MAX << 10)?;
    }
    Ok(())
}

/// Reads a list of at most `nr_max` integers up to `max`.
pub(super) fn integers(item: Item<'_>, nr_max: usize, max: u64) -> Result<Vec<u64>, MachineError> {
    let (document, span) = (item.document, item.span.clone());
    let items = item.array()?;
    if items.len() > nr_max {
        return Err(document.error(&span, format!("{} entries; at most {nr_max}", items.len())));
    }
    items.iter().map(|item| item.integer(max)).collect()
}

fn cpu_list(item: Item<'_>) -> Result<Vec<u32>, MachineError> {
    let (document, span) = (item.document, item.span.clone());
    sysfs::parse_cpu_list(&item.string()?).map_err(|why| document.error(&span, why))
}

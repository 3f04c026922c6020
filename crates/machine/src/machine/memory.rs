// SPDX-License-Identifier: GPL-2.0-only
//! The speed of memory between nodes: latency of an access, and bandwidth of nodes and links.
//!
//! Owns: the section `[memory]` of machine files, and the figures of machines without it.
//! Does not: own prices of memory management (see `cost.rs`).
//!
//! ```toml
//! [memory]    # each key is optional; row: node of the CPU, column: node of the memory
//! latency = { value = [[90, 150], [150, 90]], unit = "ns", source = "..." }
//! bandwidth = { value = [150000, 75000], unit = "MB/s", source = "..." }                  # per node
//! link_bandwidth = { value = [[0, 45000], [45000, 0]], unit = "MB/s", source = "..." }
//! ```

use std::ops::Range;

use serde::Serialize;

use super::file::integers;
use super::{Machine, MachineError};
use crate::cost::read_source;
use crate::id::NodeId;
use crate::reader::{Document, Item};
use crate::topology::NODES_MAX;

/// Upper bound of a latency in ns, and of a bandwidth in MB/s.
const MAX: u64 = 1_000_000_000;

/// Figures of a machine file that replace those from the cost table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GivenMemory {
    /// ns, by node of the CPU, then node of the memory.
    pub latency: Option<Vec<Vec<u64>>>,
    /// MB/s, by node.
    pub bandwidth: Option<Vec<u64>>,
    /// MB/s, by node of the CPU, then node of the memory; not used where both are the same node.
    pub link_bandwidth: Option<Vec<Vec<u64>>>,
}

/// One number for each ordered pair of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeMatrix {
    nodes: usize,
    values: Vec<u64>,
}

impl NodeMatrix {
    fn new(nodes: usize, value: impl Fn(usize, usize) -> u64) -> NodeMatrix {
        let pairs = (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to)));
        NodeMatrix { nodes, values: pairs.map(|(from, to)| value(from, to)).collect() }
    }

    /// Returns the number for CPUs of the node `from` and memory of the node `to`.
    #[inline]
    pub fn at(&self, from: NodeId, to: NodeId) -> u64 {
        self.values[from.idx() * self.nodes + to.idx()]
    }
}

/// The speed of memory on one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeMemory {
    /// Time of one access that misses every cache, on an idle machine, ns; at least 1.
    pub latency_ns: NodeMatrix,
    /// Bytes that each node's memory can deliver, MB/s; at least 1.
    pub bandwidth_mb_s: Vec<u64>,
    /// Bytes that CPUs of a node can fetch from another node, MB/s; at least 1.
    pub link_mb_s: NodeMatrix,
}

impl Machine {
    /// Returns the speed of memory: the figures of the machine file where it gives them, else those
    /// of the cost table, with latency by node distance.
    pub fn node_memory(&self) -> NodeMemory {
        let (nodes, costs) = (self.topology.nodes(), &self.costs);
        let given = &self.memory;
        let latency = |from: usize, to: usize| match &given.latency {
            Some(rows) => rows[from][to],
            None => {
                let slowdown = costs.memory_slowdown(nodes[from].distances[to]);
                slowdown.of(costs.workload.mem_access_ns)
            }
        };
        let link = |from: usize, to: usize| match &given.link_bandwidth {
            Some(rows) => rows[from][to],
            None => costs.memory.link_mb_s,
        };
        let bandwidth = match &given.bandwidth {
            Some(each) => each.clone(),
            None => vec![costs.memory.bandwidth_mb_s; nodes.len()],
        };
        NodeMemory {
            latency_ns: NodeMatrix::new(nodes.len(), |from, to| latency(from, to).max(1)),
            bandwidth_mb_s: bandwidth.into_iter().map(|each| each.max(1)).collect(),
            link_mb_s: NodeMatrix::new(nodes.len(), |from, to| link(from, to).max(1)),
        }
    }
}

/// Place of a figure's table in the file, and the table's dotted name.
struct Figure<'a> {
    document: Document<'a>,
    span: Range<usize>,
    path: String,
}

impl Figure<'_> {
    fn error(&self, what: impl Into<String>) -> MachineError {
        self.document.error(&self.span, what)
    }
}

/// Reads the section `[memory]` of a machine file with `nodes` nodes.
pub(super) fn read(item: Item<'_>, nodes: usize) -> Result<GivenMemory, MachineError> {
    let mut table = item.table()?;
    let latency = table.take("latency").map(|item| read_rows(item, nodes, "ns")).transpose()?;
    if let Some((rows, figure)) = &latency {
        check_latency(rows, figure)?;
    }
    let links = table.take("link_bandwidth").map(|item| read_rows(item, nodes, "MB/s"));
    let links = links.transpose()?;
    if let Some((rows, figure)) = &links {
        let pairs = (0..nodes).flat_map(|from| (0..nodes).map(move |to| (from, to)));
        if let Some((from, to)) = pairs.filter(|(a, b)| a != b).find(|(a, b)| rows[*a][*b] == 0) {
            return Err(figure.error(format!("the link from node {from} to {to} has 0 MB/s")));
        }
    }
    let bandwidth = table.take("bandwidth").map(|item| read_bandwidth(item, nodes)).transpose()?;
    table.finish(&["latency", "bandwidth", "link_bandwidth"])?;
    let rows = |read: Option<(Vec<Vec<u64>>, Figure<'_>)>| read.map(|(rows, _)| rows);
    Ok(GivenMemory { latency: rows(latency), bandwidth, link_bandwidth: rows(links) })
}

/// Reads a matrix with unit and source. Returns it with its place, for errors about its values.
fn read_rows<'a>(
    item: Item<'a>,
    nodes: usize,
    unit: &str,
) -> Result<(Vec<Vec<u64>>, Figure<'a>), MachineError> {
    let (value, figure) = read_figure(item, unit)?;
    let (document, span) = (value.document, value.span.clone());
    let rows = value.array()?;
    let rows: Vec<Vec<u64>> =
        rows.into_iter().map(|row| integers(row, NODES_MAX, MAX)).collect::<Result<_, _>>()?;
    if rows.len() != nodes || rows.iter().any(|row| row.len() != nodes) {
        let what = format!("{} must have {nodes} rows of {nodes} numbers", figure.path);
        return Err(document.error(&span, what));
    }
    Ok((rows, figure))
}

fn read_bandwidth(item: Item<'_>, nodes: usize) -> Result<Vec<u64>, MachineError> {
    let (value, figure) = read_figure(item, "MB/s")?;
    let each = integers(value, NODES_MAX, MAX)?;
    if each.len() != nodes {
        let what = format!("{} has {} numbers for {nodes} nodes", figure.path, each.len());
        return Err(figure.error(what));
    }
    match each.iter().position(|mb_s| *mb_s == 0) {
        Some(node) => Err(figure.error(format!("the memory of node {node} has 0 MB/s"))),
        None => Ok(each),
    }
}

/// Reads a table of `value`, `unit` and `source`. Returns the value and the table's place.
fn read_figure<'a>(item: Item<'a>, unit: &str) -> Result<(Item<'a>, Figure<'a>), MachineError> {
    let mut table = item.table()?;
    let value = table.require("value")?;
    let given = table.require("unit")?;
    let (document, span) = (given.document, given.span.clone());
    let given = given.string()?;
    if given != unit {
        let what = format!("{} is in {unit}, not in \"{given}\"", table.path);
        return Err(document.error(&span, what));
    }
    read_source(&mut table)?;
    let figure =
        Figure { document: table.document, span: table.span.clone(), path: table.path.clone() };
    table.finish(&["value", "unit", "source"])?;
    Ok((value, figure))
}

/// Refuses latencies of 0, and a node that is nearer to another node's CPUs than to its own.
fn check_latency(rows: &[Vec<u64>], figure: &Figure<'_>) -> Result<(), MachineError> {
    for (from, row) in rows.iter().enumerate() {
        for (to, &ns) in row.iter().enumerate() {
            if ns == 0 {
                return Err(figure.error(format!("the latency from node {from} to {to} is 0 ns")));
            }
            if ns < row[from] {
                return Err(figure.error(format!(
                    "CPUs of node {from} reach node {to} in {ns} ns, but their own node in {} ns",
                    row[from]
                )));
            }
        }
    }
    Ok(())
}

// SPDX-License-Identifier: GPL-2.0-only
//! The pages of each node, and the order in which nodes take pages that the first choice has no
//! room for.
//!
//! Owns: the counts of used pages. Every allocation and release passes through `Nodes::shift`.
//! Models: kernel `find_next_best_node()` (mm/page_alloc.c), 7.3.
//! Differs: no zones and watermarks: a node is full when all its memory is used, and the kernel
//! itself uses none. `node_load` does not rotate nodes of equal distance.

use scxlab_machine::Topology;
use scxlab_machine::id::NodeId;

use super::PAGE_BYTES;

/// The memory of all nodes of a machine.
pub struct Nodes {
    /// Pages by node.
    capacity: Vec<u64>,
    /// Pages that regions use, by node.
    pub used: Vec<u64>,
    /// For each node: the nodes with memory, in the order in which they take a page for it.
    fallback: Vec<Vec<NodeId>>,
}

impl Nodes {
    pub(super) fn new(topology: &Topology) -> Nodes {
        let nodes = topology.nodes();
        let capacity: Vec<u64> = nodes.iter().map(|n| n.memory_bytes / PAGE_BYTES).collect();
        let order = |from: usize| {
            let mut order: Vec<usize> = (0..nodes.len()).filter(|n| capacity[*n] > 0).collect();
            // Nodes with a higher number and nodes without CPUs are preferred. The local node comes
            // first even then.
            order.sort_by_key(|&n| {
                let busy = !scxlab_machine::cpumask::is_empty(&nodes[n].cpus);
                let distance = nodes[from].distances[n] + u32::from(n < from) + u32::from(busy);
                (n != from, distance, n)
            });
            order.into_iter().map(|n| NodeId(n as u32)).collect()
        };
        let fallback = (0..nodes.len()).map(order).collect();
        Nodes { used: vec![0; capacity.len()], fallback, capacity }
    }

    pub fn len(&self) -> usize {
        self.capacity.len()
    }

    pub fn is_empty(&self) -> bool {
        self.capacity.is_empty()
    }

    /// Returns the number of pages of a node; 0 if there is no such node.
    pub fn capacity(&self, node: NodeId) -> u64 {
        self.capacity.get(node.idx()).copied().unwrap_or(0)
    }

    /// Returns the number of free pages of a node.
    pub fn free(&self, node: NodeId) -> u64 {
        self.capacity[node.idx()] - self.used[node.idx()]
    }

    /// Returns the nodes with memory, in the order in which they take pages for `node`.
    pub(super) fn fallback(&self, node: NodeId) -> &[NodeId] {
        &self.fallback[node.idx()]
    }

    /// Moves `pages` pages from a node (None: they are new) to a node (None: they are freed).
    pub(super) fn shift(&mut self, from: Option<NodeId>, to: Option<NodeId>, pages: u64) {
        if let Some(from) = from {
            let used = &mut self.used[from.idx()];
            *used = used.checked_sub(pages).expect("a node's pages are used before they are freed");
        }
        if let Some(to) = to {
            assert!(pages <= self.free(to), "node {to} has no room for {pages} pages");
            self.used[to.idx()] += pages;
        }
    }

    /// Frees pages, given by node.
    pub(super) fn release(&mut self, on: &[u64]) {
        for (node, &pages) in (0..).map(NodeId).zip(on) {
            self.shift(Some(node), None, pages);
        }
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! The first touch of a unit: the choice of the node for its pages.
//!
//! Owns: memory policies and the fallback to other nodes.
//! Models: kernel `policy_nodemask()`, `interleave_nid()`, `alloc_pages_mpol()` (mm/mempolicy.c),
//! and the hard wall of cpuset.mems in `get_page_from_freelist()`, 7.3.
//! Differs: interleaving begins with the first node at the region's first page, because addresses
//! are not modelled. A huge page goes to another node rather than become small pages, as with
//! MADV_HUGEPAGE.

use super::nodes::Nodes;
use super::region::{MemPolicy, Place, Region, RegionId};
use super::{HUGE_PAGES, Memory};
use scxlab_machine::id::NodeId;

/// The kernel's work for the first touch of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// New pages were allocated and cleared.
    New { pages: u64 },
    /// Pages that other regions already have were mapped.
    Merged { pages: u64 },
    /// Merged pages were copied.
    Unmerged { pages: u64 },
}

/// No node that the policy allows has room.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl Memory {
    /// Makes a unit present that a CPU of the node `node` touches. `mems` are the nodes that the
    /// task's cpuset allows; None: all. Returns None if the access needs no work.
    pub(crate) fn touch(
        &mut self,
        id: RegionId,
        unit: usize,
        write: bool,
        node: NodeId,
        mems: Option<&[NodeId]>,
    ) -> Result<Option<Fault>, Full> {
        let region = self.regions[id.0 as usize].as_deref_mut().expect("a region in use");
        let pages = region.pages_of(unit);
        let nodes = &mut self.nodes;
        let fault = match region.place(unit) {
            Place::Absent if region.may_merge(unit) && !write => {
                let set = self.merged.get_mut(&region.spec.name).expect("made with the region");
                let order = allowed(nodes, &region.spec.policy, node, mems);
                let placed = order.iter().any(|n| region.map_merged(unit, *n, nodes, set));
                return if placed { Ok(Some(Fault::Merged { pages })) } else { Err(Full) };
            }
            Place::Absent => Fault::New { pages },
            Place::Merged if write => Fault::Unmerged { pages },
            _ => return Ok(None),
        };
        let parts = parts(region, unit, nodes, node, mems).ok_or(Full)?;
        if let Fault::Unmerged { .. } = fault {
            let set = self.merged.get(&region.spec.name).expect("made with the region");
            region.unmap_merged(unit, set);
        }
        region.put(unit, &parts, nodes);
        Ok(Some(fault))
    }
}

/// Returns the nodes that may take a page, in the order in which they are tried.
fn allowed(
    nodes: &Nodes,
    policy: &MemPolicy,
    local: NodeId,
    mems: Option<&[NodeId]>,
) -> Vec<NodeId> {
    let start = match policy {
        MemPolicy::Preferred(node) => *node,
        _ => local,
    };
    let in_mems = |n: &NodeId| mems.is_none_or(|mems| mems.contains(n));
    let order = nodes.fallback(start).iter().copied();
    match policy {
        MemPolicy::Bind(set) => order.filter(|n| set.contains(n) && in_mems(n)).collect(),
        _ => order.filter(in_mems).collect(),
    }
}

/// Returns the nodes for the pages of a unit, each with its number of pages; None if a part finds
/// no room.
fn parts(
    region: &Region,
    unit: usize,
    nodes: &Nodes,
    local: NodeId,
    mems: Option<&[NodeId]>,
) -> Option<Vec<(NodeId, u64)>> {
    let (policy, pages) = (&region.spec.policy, region.pages_of(unit));
    let MemPolicy::Interleave(set) = policy else {
        let order = allowed(nodes, policy, local, mems);
        return order.into_iter().find(|n| nodes.free(*n) >= pages).map(|n| vec![(n, pages)]);
    };
    // `mbind(2)` leaves the nodes out that the cpuset forbids, and fails if none is left.
    let inside: Vec<NodeId> =
        set.iter().copied().filter(|n| mems.is_none_or(|mems| mems.contains(n))).collect();
    let inside = if inside.is_empty() { set } else { &inside };
    let block = if region.spec.huge { HUGE_PAGES } else { 1 };
    let first_block = unit as u64 * region.unit_pages() / block;
    let mut parts: Vec<(NodeId, u64)> = Vec::new();
    for (target, wanted) in shares(inside, first_block, block, pages) {
        let taken = |n: NodeId| parts.iter().filter(|p| p.0 == n).map(|p| p.1).sum::<u64>();
        let order = allowed(nodes, policy, target, mems);
        let node = order.into_iter().find(|n| nodes.free(*n) >= taken(*n) + wanted)?;
        match parts.iter_mut().find(|p| p.0 == node) {
            Some(part) => part.1 += wanted,
            None => parts.push((node, wanted)),
        }
    }
    Some(parts)
}

/// Returns how many of `pages` pages each node of `set` gets if blocks of `block` pages go round,
/// beginning with block number `first`.
fn shares(set: &[NodeId], first: u64, block: u64, pages: u64) -> Vec<(NodeId, u64)> {
    let k = set.len() as u64;
    let blocks = pages.div_ceil(block);
    let mut shares: Vec<(NodeId, u64)> = Vec::new();
    for i in 0..k.min(blocks) {
        let node = set[((first + i) % k) as usize];
        // The number of blocks i, i + k, i + 2k, ... below `blocks`.
        let mut own = (blocks - i).div_ceil(k) * block;
        if (blocks - 1) % k == i {
            own -= blocks * block - pages;
        }
        shares.push((node, own));
    }
    shares
}

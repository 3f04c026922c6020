// SPDX-License-Identifier: GPL-2.0-only
//! A region of memory: its policy, and the nodes of its pages.
//!
//! Owns: the counts of a region's pages by node, and the unit in which pages are tracked.
//! Does not: choose nodes (see `alloc.rs`).
//!
//! A region's pages are tracked in units: one small or one huge page each, or more pages if the
//! region would otherwise have more than `UNITS_MAX` units. All pages of a unit become present at
//! once. So regions of up to 64 MiB are exact page by page, or of up to 32 GiB in huge pages.

use super::bits::Bits;
use super::nodes::Nodes;
use super::{HUGE_PAGES, PAGE_BYTES};
use scxlab_fair::LastAccess;
use scxlab_machine::id::NodeId;

/// Maximum number of units of a region.
pub const UNITS_MAX: u64 = 16_384;

/// A region, numbered in the order in which a run made them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RegionId(pub u32);

/// The memory policy of a region (`mbind(2)`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MemPolicy {
    /// MPOL_DEFAULT: the node of the CPU that touches a page first.
    FirstTouch,
    /// MPOL_INTERLEAVE: page i on the node i modulo the number of these nodes.
    Interleave(Vec<NodeId>),
    /// MPOL_BIND: only these nodes.
    Bind(Vec<NodeId>),
    /// MPOL_PREFERRED: this node while it has room.
    Preferred(NodeId),
}

impl MemPolicy {
    /// Returns the nodes that the policy names.
    pub fn nodes(&self) -> &[NodeId] {
        match self {
            MemPolicy::FirstTouch => &[],
            MemPolicy::Interleave(nodes) | MemPolicy::Bind(nodes) => nodes,
            MemPolicy::Preferred(node) => std::slice::from_ref(node),
        }
    }
}

/// Properties of a new region.
#[derive(Clone, Debug)]
pub struct RegionSpec {
    /// Name for messages. Regions of one name share their merged pages.
    pub name: String,
    /// Size in small pages, at least 1.
    pub pages: u64,
    pub policy: MemPolicy,
    /// Nodes on which the pages lie from the start, in equal contiguous parts. Empty: no page is
    /// present.
    pub populate: Vec<NodeId>,
    /// Whether the region consists of huge pages.
    pub huge: bool,
    /// Percentage of the pages, at the end of the region, that same-page merging (KSM) shares
    /// between all regions of this name. Only for small pages.
    pub merge_percent: u8,
}

/// The place of one unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Absent,
    /// All pages are on this node.
    On(NodeId),
    /// The pages are on several nodes, by the interleaving policy.
    Spread,
    /// The pages are merged with those of other regions.
    Merged,
}

/// A region of one process or thread.
pub struct Region {
    pub spec: RegionSpec,
    /// Pages of the region's own, by node. This is the truth for regions with spread units.
    on: Box<[u64]>,
    /// Merged pages that the region maps, by node.
    merged_on: Box<[u64]>,
    unit_pages: u64,
    places: Box<[Place]>,
    /// Units whose next access traps into the kernel: absent ones, and those that a scan has
    /// marked.
    pub(super) trapped: Bits,
    /// Present units that are merged. A write to one makes it the region's own.
    pub(super) merged: Bits,
    /// Index of the first unit that may be merged.
    first_merged: usize,
    /// Pages that came, went or moved since `take_moved` last returned true.
    moved: u64,
    /// Number of marks so far. The next stop of a step is planned again when it has changed.
    pub(super) epoch: u64,
    /// Number of address spaces that map the region.
    pub(super) mappers: u32,
    /// Last access to each unit; empty before the first hinting fault.
    pub(super) last: Box<[Option<LastAccess>]>,
}

impl Region {
    pub(super) fn new(spec: RegionSpec, nr_nodes: usize) -> Region {
        let mut unit_pages = if spec.huge { HUGE_PAGES } else { 1 };
        while spec.pages.div_ceil(unit_pages) > UNITS_MAX {
            unit_pages *= 2;
        }
        let units = spec.pages.div_ceil(unit_pages) as usize;
        let merged = units * usize::from(spec.merge_percent) / 100;
        Region {
            on: vec![0; nr_nodes].into(),
            merged_on: vec![0; nr_nodes].into(),
            unit_pages,
            places: vec![Place::Absent; units].into(),
            trapped: Bits::all(units),
            merged: Bits::none(units),
            first_merged: units - merged,
            moved: 0,
            epoch: 0,
            mappers: 0,
            last: Box::default(),
            spec,
        }
    }

    pub fn nr_units(&self) -> usize {
        self.places.len()
    }

    pub(super) fn nr_merged_units(&self) -> usize {
        self.nr_units() - self.first_merged
    }

    /// Returns the number of pages of each unit but possibly the last.
    pub fn unit_pages(&self) -> u64 {
        self.unit_pages
    }

    /// Returns the number of pages of a unit.
    pub fn pages_of(&self, unit: usize) -> u64 {
        self.unit_pages.min(self.spec.pages - unit as u64 * self.unit_pages)
    }

    pub fn place(&self, unit: usize) -> Place {
        self.places[unit]
    }

    /// Returns the number of pages of the region's own, by node.
    pub fn on(&self) -> &[u64] {
        &self.on
    }

    /// Returns the number of merged pages that the region maps, by node.
    pub fn merged_on(&self) -> &[u64] {
        &self.merged_on
    }

    /// Returns the number of present pages by node, merged pages included.
    pub fn pages_by_node(&self) -> Vec<u64> {
        self.on.iter().zip(&self.merged_on).map(|(own, merged)| own + merged).collect()
    }

    /// Returns the number of present pages.
    pub fn present(&self) -> u64 {
        self.on.iter().chain(&self.merged_on).sum()
    }

    /// Whether a first touch of the unit finds a merged page.
    pub(super) fn may_merge(&self, unit: usize) -> bool {
        unit >= self.first_merged
    }

    /// Returns the number of bytes of the region.
    pub fn bytes(&self) -> u64 {
        self.spec.pages * PAGE_BYTES
    }

    /// Puts an absent unit on a node. Returns false if the node has no room.
    pub(super) fn place_on(
        &mut self,
        unit: usize,
        node: NodeId,
        nodes: &mut Nodes,
        merged: Option<&mut MergedPages>,
    ) -> bool {
        if let Some(set) = merged.filter(|_| self.may_merge(unit)) {
            return self.map_merged(unit, node, nodes, set);
        }
        let pages = self.pages_of(unit);
        if nodes.free(node) < pages {
            return false;
        }
        self.put(unit, &[(node, pages)], nodes);
        true
    }

    /// Makes a unit present with its pages on these nodes, which have room for them. The unit is
    /// absent, or merged: then it is the region's own afterwards.
    pub(super) fn put(&mut self, unit: usize, parts: &[(NodeId, u64)], nodes: &mut Nodes) {
        if self.places[unit] == Place::Merged {
            self.merged.clear(unit);
        }
        self.trapped.clear(unit);
        for &(node, pages) in parts {
            nodes.shift(None, Some(node), pages);
            self.on[node.idx()] += pages;
            self.moved += pages;
        }
        self.places[unit] = match parts {
            [(node, _)] => Place::On(*node),
            _ => Place::Spread,
        };
    }

    /// Maps the merged pages of an absent unit. The first region that does so allocates them, on
    /// `node`. Returns false if the node has no room.
    pub(super) fn map_merged(
        &mut self,
        unit: usize,
        node: NodeId,
        nodes: &mut Nodes,
        set: &mut MergedPages,
    ) -> bool {
        let (index, pages) = (unit - self.first_merged, self.pages_of(unit));
        let node = match set.nodes[index] {
            Some(node) => node,
            None if nodes.free(node) < pages => return false,
            None => {
                nodes.shift(None, Some(node), pages);
                set.on[node.idx()] += pages;
                *set.nodes[index].insert(node)
            }
        };
        self.trapped.clear(unit);
        self.merged.set(unit);
        self.merged_on[node.idx()] += pages;
        self.moved += pages;
        self.places[unit] = Place::Merged;
        true
    }

    /// Counts a unit's pages on another node.
    pub(super) fn shift(&mut self, unit: usize, from: NodeId, to: NodeId) {
        let pages = self.pages_of(unit);
        self.on[from.idx()] -= pages;
        self.on[to.idx()] += pages;
        self.moved += pages;
        self.places[unit] = Place::On(to);
    }

    /// Forgets that a unit maps merged pages, before the region gets pages of its own for it.
    pub(super) fn unmap_merged(&mut self, unit: usize, set: &MergedPages) {
        let node = set.nodes[unit - self.first_merged].expect("a merged unit has a node");
        self.merged_on[node.idx()] -= self.pages_of(unit);
    }

    /// Returns true if 1/64 of the pages have come, gone or moved since this function last returned
    /// true.
    pub(super) fn take_moved(&mut self) -> bool {
        let much = self.moved * 64 > self.present();
        if much {
            self.moved = 0;
        }
        much
    }
}

/// The merged pages of all regions of one name.
pub struct MergedPages {
    /// Node of the pages of each unit that may be merged; None: no region has touched the unit.
    nodes: Box<[Option<NodeId>]>,
    /// Pages by node.
    on: Box<[u64]>,
    /// Number of regions of that name.
    pub(super) users: u32,
}

impl MergedPages {
    pub(super) fn new(region: &Region, nr_nodes: usize) -> MergedPages {
        MergedPages {
            nodes: vec![None; region.nr_merged_units()].into(),
            on: vec![0; nr_nodes].into(),
            users: 0,
        }
    }

    /// Returns the number of pages by node.
    pub fn on(&self) -> &[u64] {
        &self.on
    }
}

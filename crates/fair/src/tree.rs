// SPDX-License-Identifier: GPL-2.0-only
//! The tree of waiting tasks, ordered by virtual deadline. Each node keeps the least vruntime of
//! its subtree.
//!
//! Owns: order and balance (a treap whose priorities come from a counter through a mixer, so that
//! it is deterministic). All operations take O(log n) expected time. The links are in the entities,
//! so that nothing is allocated.
//! Does not: know weights or eligibility.
//! Models: the augmented rbtree of fair.c (`min_vruntime_cb`).
//! Differs: the tree is a treap and not a red-black tree. Order and results are those of the
//! kernel.

use super::state::{EntityId, Ents};

/// Adds `e`, and returns the new root. The key of `e` (`deadline`, `node.seq`) must be set and must
/// not change while it is in the tree.
pub(super) fn insert(ents: &mut Ents, root: EntityId, e: EntityId) -> EntityId {
    let node = &mut ents[e].node;
    node.prio = mix(node.seq);
    node.left = EntityId::NIL;
    node.right = EntityId::NIL;
    refresh(ents, e);
    insert_below(ents, root, e)
}

fn insert_below(ents: &mut Ents, root: EntityId, e: EntityId) -> EntityId {
    if root.is_nil() {
        return e;
    }
    if ents[e].node.prio > ents[root].node.prio {
        let (left, right) = split(ents, root, e);
        ents[e].node.left = left;
        ents[e].node.right = right;
        refresh(ents, e);
        return e;
    }
    if before(ents, e, root) {
        let left = insert_below(ents, ents[root].node.left, e);
        ents[root].node.left = left;
    } else {
        let right = insert_below(ents, ents[root].node.right, e);
        ents[root].node.right = right;
    }
    refresh(ents, root);
    root
}

/// Removes `e`, which must be in the tree, and returns the new root.
pub(super) fn remove(ents: &mut Ents, root: EntityId, e: EntityId) -> EntityId {
    assert!(!root.is_nil(), "an entity to remove is not in the tree");
    if root == e {
        let node = ents[e].node;
        return merge(ents, node.left, node.right);
    }
    if before(ents, e, root) {
        let left = remove(ents, ents[root].node.left, e);
        ents[root].node.left = left;
    } else {
        let right = remove(ents, ents[root].node.right, e);
        ents[root].node.right = right;
    }
    refresh(ents, root);
    root
}

/// Returns the entity with the earliest deadline.
pub(super) fn first(ents: &Ents, root: EntityId) -> Option<EntityId> {
    let mut at = root.some()?;
    while let Some(left) = ents[at].node.left.some() {
        at = left;
    }
    Some(at)
}

/// Returns the entity with the earliest deadline among those whose vruntime passes `eligible`,
/// which must be monotone: if it holds for a vruntime, it holds for every lower one.
pub(super) fn first_eligible(
    ents: &Ents,
    root: EntityId,
    eligible: impl Fn(u64) -> bool,
) -> Option<EntityId> {
    let mut at = root.some()?;
    loop {
        let node = &ents[at].node;
        match node.left.some() {
            Some(left) if eligible(ents[left].node.min_vruntime) => at = left,
            _ if eligible(ents[at].vruntime) => return Some(at),
            _ => at = node.right.some()?,
        }
    }
}

/// Calls `f` for each entity in order of deadline.
pub(super) fn for_each(ents: &Ents, root: EntityId, f: &mut impl FnMut(EntityId)) {
    if let Some(e) = root.some() {
        for_each(ents, ents[e].node.left, f);
        f(e);
        for_each(ents, ents[e].node.right, f);
    }
}

/// Signed distance on the ring of virtual times.
#[inline]
pub(super) fn vdiff(a: u64, b: u64) -> i64 {
    a.wrapping_sub(b) as i64
}

fn before(ents: &Ents, a: EntityId, b: EntityId) -> bool {
    let (a, b) = (&ents[a], &ents[b]);
    match vdiff(a.deadline, b.deadline) {
        0 => a.node.seq < b.node.seq,
        d => d < 0,
    }
}

/// Splits a subtree into the part before `key` and the part after it.
fn split(ents: &mut Ents, root: EntityId, key: EntityId) -> (EntityId, EntityId) {
    if root.is_nil() {
        return (EntityId::NIL, EntityId::NIL);
    }
    if before(ents, root, key) {
        let (left, right) = split(ents, ents[root].node.right, key);
        ents[root].node.right = left;
        refresh(ents, root);
        (root, right)
    } else {
        let (left, right) = split(ents, ents[root].node.left, key);
        ents[root].node.left = right;
        refresh(ents, root);
        (left, root)
    }
}

/// Joins two subtrees, of which the first comes before the second.
fn merge(ents: &mut Ents, a: EntityId, b: EntityId) -> EntityId {
    if a.is_nil() {
        return b;
    }
    if b.is_nil() {
        return a;
    }
    if ents[a].node.prio > ents[b].node.prio {
        let right = merge(ents, ents[a].node.right, b);
        ents[a].node.right = right;
        refresh(ents, a);
        a
    } else {
        let left = merge(ents, a, ents[b].node.left);
        ents[b].node.left = left;
        refresh(ents, b);
        b
    }
}

/// Recomputes the least vruntime and the shortest and longest slice of a node's subtree.
fn refresh(ents: &mut Ents, e: EntityId) {
    let (vruntime, slice, node) = (ents[e].vruntime, ents[e].slice, ents[e].node);
    let (mut min_vruntime, mut min_slice, mut max_slice) = (vruntime, slice, slice);
    for child in [node.left, node.right] {
        if child.is_nil() {
            continue;
        }
        let below = &ents[child].node;
        if vdiff(below.min_vruntime, min_vruntime) < 0 {
            min_vruntime = below.min_vruntime;
        }
        min_slice = min_slice.min(below.min_slice);
        max_slice = max_slice.max(below.max_slice);
    }
    let node = &mut ents[e].node;
    node.min_vruntime = min_vruntime;
    node.min_slice = min_slice;
    node.max_slice = max_slice;
}

/// A bijective mixer (the finaliser of splitmix64): priorities look random, and no two on one CPU
/// are equal.
pub(super) fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

// SPDX-License-Identifier: GPL-2.0-only
//! The tasks of a DSQ that is ordered by vtime.
//!
//! Owns: their order by key. Does not: make keys (see `Dsq::insert`).
//!
//! The first tasks lie sorted in a ring buffer, where an insertion or removal at the ends takes a
//! few instructions. The other tasks lie in a tree, so that the cost of each operation grows at
//! most with the logarithm of their number.

use scxlab_machine::id::TaskId;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound::{Excluded, Unbounded};

/// Key of a task in a DSQ that is ordered by vtime: the vtime relative to `Dsq::base`, and the
/// arrival number.
pub type Key = (i64, u64);

/// Maximum number of tasks in the ring. When the ring is empty, half as many tasks move from the
/// tree to the ring.
const RING_MAX: usize = 256;

/// All keys of `ring` come before all keys of `tree`. `tree` is empty if `ring` is empty.
#[derive(Debug, Default)]
pub struct Priq {
    ring: VecDeque<(Key, TaskId)>,
    tree: BTreeMap<Key, TaskId>,
}

impl Priq {
    #[inline]
    pub fn len(&self) -> usize {
        self.ring.len() + self.tree.len()
    }

    #[inline]
    pub fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    #[inline]
    pub fn first(&self) -> Option<TaskId> {
        self.ring.front().map(|e| e.1)
    }

    #[inline(always)]
    pub fn insert(&mut self, key: Key, task: TaskId) {
        let last = self.ring.back().is_none_or(|back| back.0 < key);
        if last && self.tree.is_empty() && self.ring.len() < RING_MAX {
            self.ring.push_back((key, task));
        } else if last {
            self.insert_far(key, task);
        } else {
            self.insert_between(key, task);
        }
    }

    #[inline(never)]
    fn insert_far(&mut self, key: Key, task: TaskId) {
        self.tree.insert(key, task);
    }

    #[inline(never)]
    fn insert_between(&mut self, key: Key, task: TaskId) {
        self.ring.insert(self.ring_rank(key), (key, task));
        if self.ring.len() > RING_MAX {
            self.tree.extend(self.ring.pop_back());
        }
    }

    #[inline(always)]
    pub fn remove(&mut self, key: Key) {
        let first = self.ring.front().is_some_and(|e| e.0 == key);
        if first && (self.ring.len() > 1 || self.tree.is_empty()) {
            self.ring.pop_front();
        } else {
            self.remove_any(key);
        }
    }

    #[inline(never)]
    fn remove_any(&mut self, key: Key) {
        if self.ring.front().is_some_and(|e| e.0 == key) {
            self.ring.pop_front();
        } else if self.ring.back().is_some_and(|e| e.0 < key) {
            self.tree.remove(&key);
        } else if let Ok(at) = self.ring.binary_search_by_key(&key, |e| e.0) {
            self.ring.remove(at);
        }
        if self.ring.is_empty() && !self.tree.is_empty() {
            let next = std::iter::from_fn(|| self.tree.pop_first());
            self.ring.extend(next.take(RING_MAX / 2));
        }
    }

    /// Iterates over the tasks in the order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.ring.iter().map(|e| e.1).chain(self.tree.values().copied())
    }

    /// Iterates in order over the tasks after `cursor`, or over all tasks if None.
    pub fn after(&self, cursor: Option<Key>) -> impl Iterator<Item = (Key, TaskId)> + '_ {
        let from = cursor.map_or(0, |key| self.ring.partition_point(|e| e.0 <= key));
        let tree = self.tree.range((cursor.map_or(Unbounded, Excluded), Unbounded));
        self.ring.range(from..).copied().chain(tree.map(|(&key, &task)| (key, task)))
    }

    /// Iterates in reverse over the tasks before `cursor`, or over all tasks if None.
    pub fn before(&self, cursor: Option<Key>) -> impl Iterator<Item = (Key, TaskId)> + '_ {
        let to = cursor.map_or(self.ring.len(), |key| self.ring_rank(key));
        let tree = self.tree.range((Unbounded, cursor.map_or(Unbounded, Excluded)));
        let tree = tree.rev().map(|(&key, &task)| (key, task));
        tree.chain(self.ring.range(..to).rev().copied())
    }

    /// Returns the number of tasks in the ring that come before `key`.
    fn ring_rank(&self, key: Key) -> usize {
        self.ring.partition_point(|e| e.0 < key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares the queue with a single tree. The operations often move tasks between the queue's
    /// ring and its tree.
    #[test]
    fn ring_and_tree_are_one_queue() {
        let (mut priq, mut model) = (Priq::default(), BTreeMap::new());
        let mut draw = 1u64;
        for seq in 0..20_000u64 {
            draw = draw.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let grows = (seq / 300) % 2 == 0;
            if draw >> 60 < if grows { 11 } else { 5 } {
                let key = ((draw >> 40) as i64 % 1000, seq);
                priq.insert(key, TaskId(seq as u32));
                model.insert(key, TaskId(seq as u32));
            } else {
                let nth = if draw >> 59 & 1 == 0 { 0 } else { (draw >> 30) as usize };
                if let Some(&key) = model.keys().nth(nth % model.len().max(1)) {
                    priq.remove(key);
                    model.remove(&key);
                }
            }
            assert_eq!(priq.len(), model.len());
            assert_eq!(priq.first(), model.values().next().copied());
            if seq % 97 == 0 {
                let cursor = Some(((draw >> 20) as i64 % 1000, seq / 2));
                let at = cursor.map_or(Unbounded, Excluded);
                assert!(priq.iter().eq(model.values().copied()));
                let pair = |(&key, &task)| (key, task);
                assert!(priq.after(cursor).eq(model.range((at, Unbounded)).map(pair)));
                assert!(priq.before(cursor).eq(model.range((Unbounded, at)).rev().map(pair)));
                assert!(priq.before(None).eq(model.iter().rev().map(pair)));
            }
        }
    }
}

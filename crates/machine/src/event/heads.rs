// SPDX-License-Identifier: GPL-2.0-only
//! The heads of the event queue's parts: the earliest event of each lane and of the heap, and the
//! earliest of all.
//!
//! Owns: the key of each part's head, and the earliest key. Does not: know events.

use super::LANES;

/// Key of a missing head; greater than the key of any event.
pub(super) const NEVER: u128 = u128::MAX;

/// Number of lanes, from the first, whose heads are compared whenever an event was taken. The heads
/// of the other lanes and the heap are compared only when one of them gave an event; otherwise
/// their earliest key is known (`earliest_rare`).
const EAGER_LANES: usize = 3;

#[derive(Clone, Debug)]
pub(super) struct Heads {
    /// Key of the earliest event of each lane, then of the heap.
    keys: [u128; LANES + 1],
    /// The earliest key of the lanes after the first `EAGER_LANES`, and of the heap.
    earliest_rare: u128,
    /// The earliest key of all parts.
    pub earliest: u128,
}

impl Default for Heads {
    fn default() -> Self {
        Heads { keys: [NEVER; LANES + 1], earliest_rare: NEVER, earliest: NEVER }
    }
}

impl Heads {
    /// Updates the keys after the head of `part`, the earliest of all, was taken; `next` is the key
    /// of the part's new head. The comparisons are free of branches, because it is random which
    /// part is next.
    #[inline]
    pub fn head_taken(&mut self, part: usize, next: u128) {
        self.keys[part] = next;
        let (eager, others) = self.keys.split_at(EAGER_LANES);
        if part >= EAGER_LANES {
            self.earliest_rare = others.iter().fold(NEVER, |a, &b| a.min(b));
        }
        self.earliest = eager.iter().fold(self.earliest_rare, |a, &b| a.min(b));
    }

    /// Updates the keys after `part` got an earlier head, or kept its head; `head` is the key of
    /// the part's present head.
    #[inline]
    pub fn set_earlier_head(&mut self, part: usize, head: u128) {
        self.keys[part] = head;
        if part >= EAGER_LANES {
            self.earliest_rare = self.earliest_rare.min(head);
        }
        self.earliest = self.earliest.min(head);
    }
}

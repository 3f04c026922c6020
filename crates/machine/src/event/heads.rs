// SPDX-License-Identifier: GPL-2.0-only
//! The heads of the event queue's parts, and the earliest of them.
//!
//! Owns: the key of each part's head, and the earliest key. Does not: know events.

use super::LANES;

/// Key of a missing head; greater than the key of any event.
pub(super) const NEVER: u128 = u128::MAX;

/// Number of lanes, from the first, whose heads are compared whenever an event was taken. The heads
/// of the other lanes and the heap are compared only when one of them gave an event; otherwise
/// their earliest key is known (`seldom`).
const BUSY_LANES: usize = 3;

#[derive(Clone, Debug)]
pub(super) struct Heads {
    /// Key of the earliest event of each lane, then of the heap.
    keys: [u128; LANES + 1],
    /// The earliest key of the parts behind the busy lanes.
    seldom: u128,
    /// The earliest key of all parts.
    pub first: u128,
}

impl Default for Heads {
    fn default() -> Self {
        Heads { keys: [NEVER; LANES + 1], seldom: NEVER, first: NEVER }
    }
}

impl Heads {
    /// Updates the keys after the head of `part`, the earliest of all, was taken. Free of branches,
    /// because it is random which part is next.
    #[inline]
    pub fn taken(&mut self, part: usize, next: u128) {
        self.keys[part] = next;
        let (busy, others) = self.keys.split_at(BUSY_LANES);
        if part >= BUSY_LANES {
            self.seldom = others.iter().fold(NEVER, |a, &b| a.min(b));
        }
        self.first = busy.iter().fold(self.seldom, |a, &b| a.min(b));
    }

    /// Updates the keys after `part` got an earlier head, or kept its head.
    #[inline]
    pub fn earlier(&mut self, part: usize, head: u128) {
        self.keys[part] = head;
        if part >= BUSY_LANES {
            self.seldom = self.seldom.min(head);
        }
        self.first = self.first.min(head);
    }
}

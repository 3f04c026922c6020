// SPDX-License-Identifier: GPL-2.0-only
//! Which part of the event queue has the earliest event.
//!
//! Owns: the key of each part's head, and the earliest of them. Does not: know events.

use super::LANES;

/// A key that is after every event's: of what is not there.
pub(super) const NEVER: u128 = u128::MAX;

/// Lanes from the first on whose heads are compared whenever an event was taken. Of the others and the heap the earliest head
/// is known: they are compared when one of them gave an event.
const BUSY_LANES: usize = 3;

#[derive(Clone, Debug)]
pub(super) struct Heads {
    /// The key of the earliest event of each lane, then of the heap.
    keys: [u128; LANES + 1],
    /// The earliest of those behind the busy lanes'.
    seldom: u128,
    /// The earliest of all.
    pub first: u128,
}

impl Default for Heads {
    fn default() -> Self {
        Heads { keys: [NEVER; LANES + 1], seldom: NEVER, first: NEVER }
    }
}

impl Heads {
    /// The head of `part`, which was the first of all, was taken. Without branches: which part is next is random.
    #[inline]
    pub fn taken(&mut self, part: usize, next: u128) {
        self.keys[part] = next;
        let (busy, others) = self.keys.split_at(BUSY_LANES);
        if part >= BUSY_LANES {
            self.seldom = others.iter().fold(NEVER, |a, &b| a.min(b));
        }
        self.first = busy.iter().fold(self.seldom, |a, &b| a.min(b));
    }

    /// `part` has an earlier head than before, or the same.
    #[inline]
    pub fn earlier(&mut self, part: usize, head: u128) {
        self.keys[part] = head;
        if part >= BUSY_LANES {
            self.seldom = self.seldom.min(head);
        }
        self.first = self.first.min(head);
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! A lane of the event queue: a ring of events in order of time, taken from its front.
//!
//! Owns: the places of the events in memory, and their growth. Does not: assign sequence numbers;
//! know the heap or other lanes.

use super::QueuedEvent;
use crate::id::Nanos;

/// Initial number of places; a power of two, like every later number, because the ring grows by
/// doubling.
const PLACES: usize = 16;

/// Maximum number of places, counted from the end, among which `sort_last` places an event.
const MAX_SORT_DISTANCE: usize = 16;

#[derive(Clone, Debug)]
pub(super) struct Ring<T> {
    /// The places; their number is a power of two. Places without an event hold arbitrary values.
    places: Box<[QueuedEvent<T>]>,
    /// Numbers of events taken and pushed since the beginning. Modulo the number of places they are
    /// the index of the first event and of the next free place.
    head: usize,
    tail: usize,
    /// Upper bound of the times of the events in the ring.
    latest: Nanos,
}

impl<T: Copy + Default> Default for Ring<T> {
    fn default() -> Self {
        Ring { places: vec![QueuedEvent::default(); PLACES].into(), head: 0, tail: 0, latest: 0 }
    }
}

impl<T: Copy + Default> Ring<T> {
    #[inline]
    pub fn len(&self) -> usize {
        self.tail - self.head
    }

    /// Returns the event `places` behind the front.
    #[inline]
    pub fn get(&self, places: usize) -> Option<&QueuedEvent<T>> {
        (places < self.len()).then(|| self.at(self.head + places))
    }

    #[inline]
    pub fn front(&self) -> Option<&QueuedEvent<T>> {
        self.get(0)
    }

    pub fn iter(&self) -> impl Iterator<Item = &QueuedEvent<T>> {
        (self.head..self.tail).map(|i| self.at(i))
    }

    /// Removes the front of a ring that is not empty, and returns it with the new front. The
    /// removed event stays in its place until the place is reused.
    #[inline]
    pub fn pop_front(&mut self) -> (&QueuedEvent<T>, Option<&QueuedEvent<T>>) {
        debug_assert!(self.head < self.tail, "an empty lane gave an event");
        self.head += 1;
        (self.at(self.head - 1), self.front())
    }

    /// Puts an event at the end. Returns false if the event may be out of order there. The caller
    /// must then call `sort_last`.
    #[inline(always)]
    pub fn push(&mut self, event: QueuedEvent<T>) -> bool {
        if self.len() == self.places.len() {
            self.grow();
        }
        let (to, latest, time) = (self.tail, self.latest, event.time);
        self.tail += 1;
        *self.at_mut(to) = event;
        if time < latest {
            return false;
        }
        self.latest = time;
        true
    }

    /// Moves the last event to its place in the order of time. The event has the highest sequence
    /// number, so among equal times it stays the last. Returns whether the event became the front;
    /// or the event itself, removed from the ring, if its place is too far from the end.
    pub fn sort_last(&mut self) -> Result<bool, QueuedEvent<T>> {
        let mut to = self.tail - 1;
        let event = *self.at(to);
        if self.len() > MAX_SORT_DISTANCE
            && self.at(self.tail - MAX_SORT_DISTANCE).time > event.time
        {
            self.tail = to;
            return Err(event);
        }
        while to > self.head && self.at(to - 1).time > event.time {
            *self.at_mut(to) = *self.at(to - 1);
            to -= 1;
        }
        *self.at_mut(to) = event;
        Ok(to == self.head)
    }

    #[cold]
    #[inline(never)]
    fn grow(&mut self) {
        let mut places = vec![QueuedEvent::default(); 2 * self.places.len()];
        for i in self.head..self.tail {
            places[i & (2 * self.places.len() - 1)] = *self.at(i);
        }
        self.places = places.into();
    }

    #[inline(always)]
    fn at(&self, i: usize) -> &QueuedEvent<T> {
        &self.places[i & (self.places.len() - 1)]
    }

    #[inline(always)]
    fn at_mut(&mut self, i: usize) -> &mut QueuedEvent<T> {
        &mut self.places[i & (self.places.len() - 1)]
    }
}

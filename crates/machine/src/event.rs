// SPDX-License-Identifier: GPL-2.0-only
//! The event queue: what happens next, totally ordered by (time, sequence number).
//!
//! Owns: the order, and the sequence numbers that break ties by order of insertion.
//! Does not: cancel (an event carries a generation and its receiver drops a stale one), know the present.
//!
//! Two parts. *Lanes*: most events come at a nearly constant distance (ticks, sleeps of one length, slices), so those of a
//! kind come nearly in order, and a sorted ring takes and gives them in a few instructions however many there are.
//! What is out of order by more than a few places, or belongs to no lane, goes to a 4-ary *heap* whose hole goes to the
//! bottom first. `benches/event_queue.rs` compares the heap with `std::collections::BinaryHeap` on equal keys: from 1,000
//! events on it took 0.4 to 0.9 of the time in every run, at 16 and 100 events 0.5 to 1.2 (a busy machine; mostly below
//! 1). A first form that compared on the way down was slower than the binary heap between 1,000 and 10,000 events.

use std::collections::VecDeque;

use crate::id::Nanos;

/// Children per node. 2 is a binary heap; 4 halves the depth for three extra comparisons a level.
const ARITY: usize = 4;

/// Sorted rings beside the heap.
pub const LANES: usize = 5;

/// How many places from the end of its lane an event may be sorted in; one that is earlier goes to the heap.
const SLACK: usize = 16;

/// The time and number of what is not there: after every event.
const NEVER: (Nanos, u64) = (Nanos::MAX, u64::MAX);

/// Events of type `T`, taken out in order of (time, sequence number).
///
/// ```
/// use scxlab_machine::EventQueue;
/// let mut queue = EventQueue::new();
/// queue.push(20, "b");
/// queue.push(10, "a");
/// queue.push(20, "c");
/// let order: Vec<_> = std::iter::from_fn(|| queue.pop()).map(|e| (e.time, e.what)).collect();
/// assert_eq!(order, [(10, "a"), (20, "b"), (20, "c")]);
/// ```
#[derive(Clone, Debug)]
pub struct EventQueue<T> {
    heap: Vec<Due<T>>,
    lanes: [VecDeque<Due<T>>; LANES],
    /// The earliest time of each lane, then of the heap, and the numbers that go with them.
    times: [Nanos; LANES + 1],
    seqs: [u64; LANES + 1],
    /// The part from which the last event was taken.
    last: usize,
    next_seq: u64,
}

/// One queued event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due<T> {
    /// When it happens.
    pub time: Nanos,
    /// Order of insertion into its queue; unique within it.
    pub seq: u64,
    /// What happens.
    pub what: T,
}

impl<T> Due<T> {
    #[inline]
    fn key(&self) -> u128 {
        u128::from(self.time) << 64 | u128::from(self.seq)
    }

    #[inline]
    fn head(&self) -> (Nanos, u64) {
        (self.time, self.seq)
    }
}

impl<T> Default for EventQueue<T> {
    fn default() -> Self {
        let lanes = std::array::from_fn(|_| VecDeque::new());
        EventQueue {
            heap: Vec::new(),
            lanes,
            times: [NEVER.0; LANES + 1],
            seqs: [NEVER.1; LANES + 1],
            last: LANES,
            next_seq: 0,
        }
    }
}

impl<T: Copy> EventQueue<T> {
    /// An empty queue.
    pub fn new() -> Self {
        Self::default()
    }

    /// Queues `what` for `time`, behind everything already queued for that time. Returns its number.
    #[inline(always)]
    pub fn push(&mut self, time: Nanos, what: T) -> u64 {
        let seq = self.next_seq;
        self.next_seq += 1;
        self.push_with_seq(time, seq, what);
        seq
    }

    /// As `push`, of an event whose kind comes nearly in order of time. The order of events is the same for any `lane`.
    /// What is most often done is inlined by force: see `push_with_seq`.
    #[inline(always)]
    pub fn push_in(&mut self, lane: usize, time: Nanos, what: T) -> u64 {
        let ring = &mut self.lanes[lane];
        if ring.back().is_some_and(|last| last.time > time) {
            return self.push_early(lane, time, what);
        }
        let (seq, first) = (self.next_seq, ring.is_empty());
        self.next_seq += 1;
        ring.push_back(Due { time, seq, what });
        if first {
            self.set_head(lane, (time, seq));
        }
        seq
    }

    /// The same of an event that comes before the last of its lane.
    #[inline(never)]
    fn push_early(&mut self, lane: usize, time: Nanos, what: T) -> u64 {
        let ring = &self.lanes[lane];
        if ring.len() > SLACK && ring[ring.len() - SLACK].time > time {
            return self.push(time, what);
        }
        let seq = self.next_seq;
        self.next_seq += 1;
        self.sort_in(lane, Due { time, seq, what });
        seq
    }

    /// Puts an event that is a little early at its place. It has the highest number: among equal times it is the last.
    fn sort_in(&mut self, lane: usize, event: Due<T>) {
        let ring = &mut self.lanes[lane];
        let mut at = ring.len();
        while at > 0 && ring[at - 1].time > event.time {
            at -= 1;
        }
        ring.insert(at, event);
        if at == 0 {
            self.set_head(lane, event.head());
        }
    }

    /// Takes out the earliest event.
    #[inline]
    pub fn pop(&mut self) -> Option<Due<T>> {
        let part = self.earliest();
        self.last = part;
        let Some(ring) = self.lanes.get_mut(part) else {
            return self.pop_heap();
        };
        let event = ring.pop_front()?;
        let head = ring.front().map_or(NEVER, Due::head);
        self.set_head(part, head);
        Some(event)
    }

    fn pop_heap(&mut self) -> Option<Due<T>> {
        let last = self.heap.pop()?;
        let first = match self.heap.first() {
            None => last,
            Some(&first) => {
                self.sift_down(last);
                first
            }
        };
        self.set_head(LANES, self.heap.first().map_or(NEVER, Due::head));
        Some(first)
    }

    #[inline]
    fn set_head(&mut self, part: usize, (time, seq): (Nanos, u64)) {
        (self.times[part], self.seqs[part]) = (time, seq);
    }

    /// The part with the earliest event: a lane, or `LANES` for the heap, also if nothing is queued.
    #[inline]
    fn earliest(&self) -> usize {
        let mut best = (self.times[LANES], LANES);
        let mut tie = false;
        for (lane, &time) in self.times[..LANES].iter().enumerate() {
            let earlier = time < best.0;
            tie = (tie | (time == best.0)) & !earlier;
            best = if earlier { (time, lane) } else { best };
        }
        if tie { self.earliest_of_equals() } else { best.1 }
    }

    /// The same where times alone may not tell.
    #[cold]
    #[inline(never)]
    fn earliest_of_equals(&self) -> usize {
        let key = |part: &usize| (self.times[*part], self.seqs[*part]);
        (0..=LANES).rev().min_by_key(key).unwrap_or(LANES)
    }

    /// The earliest event, left where it is.
    #[inline]
    pub fn peek(&self) -> Option<&Due<T>> {
        match self.lanes.get(self.earliest()) {
            Some(ring) => ring.front(),
            None => self.heap.first(),
        }
    }

    /// The event that is `places` behind the head of the lane from which the last one was taken.
    #[inline]
    pub fn ahead(&self, places: usize) -> Option<&Due<T>> {
        self.lanes.get(self.last)?.get(places)
    }

    /// Whether everything that is queued happens later than `time`.
    #[inline]
    pub fn all_after(&self, time: Nanos) -> bool {
        self.times.iter().all(|&head| head > time)
    }

    /// When the earliest event happens.
    #[inline]
    pub fn peek_time(&self) -> Option<Nanos> {
        self.peek().map(|event| event.time)
    }

    /// How many events are queued.
    #[inline]
    pub fn len(&self) -> usize {
        self.heap.len() + self.lanes.iter().map(VecDeque::len).sum::<usize>()
    }

    /// Whether nothing is queued.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The queued events in no particular order, for dumps and checkers.
    pub fn iter_unordered(&self) -> impl Iterator<Item = &Due<T>> {
        self.heap.iter().chain(self.lanes.iter().flatten())
    }

    /// Most events are later than what lies above their leaf, and stay where they are written first. Inlined by
    /// force, so that they are written there field by field: a copy of fields just stored makes the CPU wait.
    #[inline(always)]
    fn push_with_seq(&mut self, time: Nanos, seq: u64, what: T) {
        let hole = self.heap.len();
        self.heap.push(Due { time, seq, what });
        if hole > 0 && self.heap[hole].key() < self.heap[(hole - 1) / ARITY].key() {
            self.sift_up(hole, self.heap[hole]);
        }
        self.set_head(LANES, self.heap[0].head());
    }

    /// Puts `event` where the root was taken. The hole goes all the way down along the smallest children
    /// before `event` is looked at: it was a leaf, so it nearly always belongs near the bottom again.
    #[inline]
    fn sift_down(&mut self, event: Due<T>) {
        let heap = &mut self.heap[..];
        let mut hole = 0;
        while let Some(child) = smallest_child(heap, hole) {
            heap[hole] = heap[child];
            hole = child;
        }
        self.sift_up(hole, event);
    }

    /// Puts `event` at `hole` or above it.
    #[inline]
    fn sift_up(&mut self, mut hole: usize, event: Due<T>) {
        let heap = &mut self.heap[..];
        while hole > 0 {
            let parent = (hole - 1) / ARITY;
            if heap[parent].key() <= event.key() {
                break;
            }
            heap[hole] = heap[parent];
            hole = parent;
        }
        heap[hole] = event;
    }
}

/// The index of the smallest child of `parent`, if it has any.
#[inline]
fn smallest_child<T>(heap: &[Due<T>], parent: usize) -> Option<usize> {
    let first = parent * ARITY + 1;
    if let Some([a, b, c, d]) = heap.get(first..first + ARITY) {
        // A tournament over values, which compiles to conditional moves: which child is smallest is
        // random, so branches here would be mispredicted half of the time.
        let left = if b.key() < a.key() { (b.key(), 1) } else { (a.key(), 0) };
        let right = if d.key() < c.key() { (d.key(), 3) } else { (c.key(), 2) };
        return Some(first + if right.0 < left.0 { right.1 } else { left.1 });
    }
    (first..heap.len()).min_by_key(|&child| heap[child].key())
}

#[cfg(test)]
mod tests;

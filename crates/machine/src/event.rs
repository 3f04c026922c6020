// SPDX-License-Identifier: GPL-2.0-only
//! The event queue: events in a total order of (time, sequence number).
//!
//! Owns: the order, and the sequence numbers that break ties by order of insertion.
//! Does not: cancel events (an event carries a generation and its receiver drops a stale one); know
//! the current time.
//!
//! The queue has two parts. *Lanes*: most events of one kind (ticks, sleeps of one length, slices)
//! are pushed for a time at a nearly constant distance from the present, and therefore nearly in
//! order of their times. A lane is a sorted ring, which takes and returns such events in a few
//! instructions, however many it holds. The first lanes are for the most frequent kinds
//! (`heads.rs`).
//! *Heap*: events that are out of order by more than a few places, or belong to no lane, go to a
//! 4-ary heap. When its earliest event is removed, the hole first moves to the bottom.
//! `benches/event_queue.rs` compares this heap with `std::collections::BinaryHeap` on equal keys.
//! With 1,000 events or more, this heap took 0.4 to 0.9 of the binary heap's time in every run;
//! with 16 and 100 events, 0.5 to 1.2 (on a busy machine; mostly below 1). An earlier form that
//! compared on the way down was slower than the binary heap between 1,000 and 10,000 events.

mod heads;
mod ring;

use crate::id::Nanos;
use heads::{Heads, NEVER};
use ring::Ring;

/// Children per node. 2 would be a binary heap; 4 halves the depth and needs three comparisons per
/// level to find the smallest child instead of one.
const ARITY: usize = 4;

/// Number of lanes (sorted rings) beside the heap.
pub const LANES: usize = 5;

/// Number of the heap among the parts of the queue. The lanes are parts 0 to LANES - 1.
const HEAP: usize = LANES;

/// Number of low bits of a sequence number that hold the number of the event's part: of its lane,
/// or of the heap.
const PART_BITS: u32 = 3;

const _: () = assert!(HEAP < (1 << PART_BITS) - 1, "no part is that of NEVER");

/// Events of type `T`, taken out in order of (time, sequence number).
///
/// ```
/// use scxlab_machine::EventQueue;
/// let mut queue = EventQueue::new();
/// queue.push(20, "b");
/// queue.push(10, "a");
/// queue.push(20, "c");
/// let events = std::iter::from_fn(|| queue.pop().copied());
/// let order: Vec<_> = events.map(|e| (e.time, e.what)).collect();
/// assert_eq!(order, [(10, "a"), (20, "b"), (20, "c")]);
/// ```
#[derive(Clone, Debug)]
pub struct EventQueue<T> {
    heap: Vec<QueuedEvent<T>>,
    lanes: [Ring<T>; LANES],
    heads: Heads,
    /// The event last popped from the heap.
    last_popped: QueuedEvent<T>,
    /// The part (lane or heap) from which the last event was popped.
    last_part: usize,
    next_seq: u64,
}

/// One queued event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueuedEvent<T> {
    /// Time at which the event happens.
    pub time: Nanos,
    /// Order of insertion into the queue. The lowest bits hold the number of the event's part (lane
    /// or heap). They never decide the order, because the bits above them differ between any two
    /// events.
    seq: u64,
    /// The event's payload.
    pub what: T,
}

impl<T> QueuedEvent<T> {
    #[inline]
    fn key(&self) -> u128 {
        u128::from(self.time) << 64 | u128::from(self.seq)
    }
}

/// Returns the number of the part (lane or heap) that holds the event with this key. For `NEVER`,
/// the result is no valid part.
#[inline]
fn part_of(key: u128) -> usize {
    key as usize & ((1 << PART_BITS) - 1)
}

#[inline]
fn time_of(key: u128) -> Nanos {
    (key >> 64) as Nanos
}

impl<T: Copy + Default> Default for EventQueue<T> {
    fn default() -> Self {
        EventQueue {
            heap: Vec::new(),
            lanes: Default::default(),
            heads: Heads::default(),
            last_popped: QueuedEvent::default(),
            last_part: HEAP,
            next_seq: 0,
        }
    }
}

impl<T: Copy + Default> EventQueue<T> {
    /// Returns an empty queue.
    pub fn new() -> Self {
        Self::default()
    }

    /// Queues `what` for `time`, behind everything already queued for that time.
    #[inline(always)]
    pub fn push(&mut self, time: Nanos, what: T) {
        let seq = self.next_seq_for(HEAP);
        self.push_with_seq(time, seq, what);
    }

    /// Queues an event like `push`, in the lane of a kind whose events are pushed nearly in order
    /// of time. The order of events does not depend on `lane`. Inlined by force, for the same
    /// reason as `push_with_seq`.
    #[inline(always)]
    pub fn push_in(&mut self, lane: usize, time: Nanos, what: T) {
        let seq = self.next_seq_for(lane);
        let ring = &mut self.lanes[lane];
        if !ring.push(QueuedEvent { time, seq, what }) {
            self.sort_last(lane);
        } else if ring.len() == 1 {
            self.set_earlier_head(lane);
        }
    }

    /// Returns the next sequence number, for an event that goes to `part`.
    #[inline]
    fn next_seq_for(&mut self, part: usize) -> u64 {
        let seq = self.next_seq | part as u64;
        self.next_seq += 1 << PART_BITS;
        seq
    }

    /// Moves the last event of a lane to its place in the order of time, or to the heap if this
    /// place is too far from the lane's end.
    #[inline(never)]
    fn sort_last(&mut self, lane: usize) {
        match self.lanes[lane].sort_last() {
            // The sequence number names the lane as the event's part: change it to name the heap.
            Err(QueuedEvent { time, seq, what }) => {
                self.push_with_seq(time, seq - lane as u64 + HEAP as u64, what);
            }
            Ok(true) => self.set_earlier_head(lane),
            Ok(false) => {}
        }
    }

    /// Removes and returns the earliest event.
    #[inline]
    pub fn pop(&mut self) -> Option<&QueuedEvent<T>> {
        let part = part_of(self.heads.earliest);
        self.last_part = part;
        if part >= LANES {
            return self.pop_heap();
        }
        let (event, next) = self.lanes[part].pop_front();
        self.heads.head_taken(part, next.map_or(NEVER, QueuedEvent::key));
        Some(event)
    }

    fn pop_heap(&mut self) -> Option<&QueuedEvent<T>> {
        let last = self.heap.pop()?;
        self.last_popped = match self.heap.first() {
            None => last,
            Some(&first) => {
                self.sift_down(last);
                first
            }
        };
        self.heads.head_taken(HEAP, self.heap.first().map_or(NEVER, QueuedEvent::key));
        Some(&self.last_popped)
    }

    /// Records the head of `part` after an event was put before the old head, or into the empty
    /// part.
    fn set_earlier_head(&mut self, part: usize) {
        let head = match self.lanes.get(part) {
            Some(ring) => ring.front(),
            None => self.heap.first(),
        };
        self.heads.set_earlier_head(part, head.map_or(NEVER, QueuedEvent::key));
    }

    /// Returns the event `places` behind the head of the lane from which the last event was popped.
    #[inline]
    pub fn peek_behind_head(&self, places: usize) -> Option<&QueuedEvent<T>> {
        self.lanes.get(self.last_part)?.get(places)
    }

    /// Whether every queued event is later than `time`.
    #[inline]
    pub fn nothing_due_by(&self, time: Nanos) -> bool {
        time_of(self.heads.earliest) > time
    }

    /// Returns the number of queued events.
    #[inline]
    pub fn len(&self) -> usize {
        self.heap.len() + self.lanes.iter().map(Ring::len).sum::<usize>()
    }

    /// Whether the queue is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.heads.earliest == NEVER
    }

    /// Returns the queued events in no particular order, for dumps and checkers.
    pub fn iter_unordered(&self) -> impl Iterator<Item = &QueuedEvent<T>> {
        self.heap.iter().chain(self.lanes.iter().flat_map(Ring::iter))
    }

    /// Pushes an event onto the heap. Most events are later than their parent and stay where they
    /// are first written. The function is inlined by force, so that the compiler writes the fields
    /// of the event straight into the heap: building the event elsewhere and copying fields just
    /// stored would make the CPU wait.
    #[inline(always)]
    fn push_with_seq(&mut self, time: Nanos, seq: u64, what: T) {
        let hole = self.heap.len();
        self.heap.push(QueuedEvent { time, seq, what });
        if hole > 0 && self.heap[hole].key() < self.heap[(hole - 1) / ARITY].key() {
            self.sift_up(hole, self.heap[hole]);
        }
        self.set_earlier_head(HEAP);
    }

    /// Places `event` after the root was removed. The hole first moves all the way down along the
    /// smallest children, without a comparison with `event`: `event` was a leaf, so it nearly
    /// always belongs near the bottom again.
    #[inline]
    fn sift_down(&mut self, event: QueuedEvent<T>) {
        let heap = &mut self.heap[..];
        let mut hole = 0;
        while let Some(child) = smallest_child(heap, hole) {
            heap[hole] = heap[child];
            hole = child;
        }
        self.sift_up(hole, event);
    }

    /// Places `event` at `hole` or above it.
    #[inline]
    fn sift_up(&mut self, mut hole: usize, event: QueuedEvent<T>) {
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

/// Returns the index of the smallest child of `parent`, if it has any.
#[inline]
fn smallest_child<T>(heap: &[QueuedEvent<T>], parent: usize) -> Option<usize> {
    let first = parent * ARITY + 1;
    if let Some([a, b, c, d]) = heap.get(first..first + ARITY) {
        // A tournament over values compiles to conditional moves. Branches would be mispredicted
        // half of the time, because it is random which child is smallest.
        let left = if b.key() < a.key() { (b.key(), 1) } else { (a.key(), 0) };
        let right = if d.key() < c.key() { (d.key(), 3) } else { (c.key(), 2) };
        return Some(first + if right.0 < left.0 { right.1 } else { left.1 });
    }
    (first..heap.len()).min_by_key(|&child| heap[child].key())
}

#[cfg(test)]
mod tests;

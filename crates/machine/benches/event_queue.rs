// SPDX-License-Identifier: GPL-2.0-only
//! Compares the event queue with `std::collections::BinaryHeap` on the same sequence of pushes and
//! pops.
//!
//! Uses the hold model: the queue keeps its length, and every pop is followed by the push of an
//! event a random time later, as in a simulation. The rounds of the two queues alternate. Prints
//! nanoseconds per pop and push, the best of all rounds.

#![allow(clippy::disallowed_types, reason = "a benchmark is about the clock")]

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::time::{Duration, Instant};

use scxlab_machine::{EventQueue, Stream};

const STEPS: u32 = 1_000_000;
const ROUNDS: usize = 7;

/// Payload as large as a simulated kernel's event: a kind and three small ids.
type Payload = [u32; 4];

fn main() {
    println!("{:>8} {:>12} {:>12} {:>7}", "events", "4-ary ns", "binary ns", "ratio");
    for len in [16, 100, 1_000, 10_000, 100_000] {
        let rounds: Vec<_> = (0..ROUNDS).map(|_| (ours(len), std_heap(len))).collect();
        let ours = rounds.iter().map(|round| round.0).min().unwrap_or_default();
        let std = rounds.iter().map(|round| round.1).min().unwrap_or_default();
        let ns = |time: Duration| time.as_secs_f64() * 1e9 / f64::from(STEPS);
        println!("{len:>8} {:>12.1} {:>12.1} {:>7.2}", ns(ours), ns(std), ns(ours) / ns(std));
    }
}

fn ours(len: u32) -> Duration {
    let mut delays = Stream::new(1, "delays", 0);
    let mut queue = EventQueue::new();
    (0..len).for_each(|i| {
        queue.push(delays.below(1 << 20), [i; 4]);
    });
    timed(|| {
        for _ in 0..STEPS {
            let Some(&event) = queue.pop() else { return };
            queue.push(event.time + delays.below(1 << 20), event.what);
        }
    })
}

/// An entry of the standard heap, ordered by the same single 128-bit comparison as the event
/// queue's, with the earliest entry the greatest. A tuple, compared field by field, would be slower
/// for a reason unrelated to the heap.
struct Entry(u64, u64, Payload);

impl Entry {
    fn key(&self) -> u128 {
        u128::from(self.0) << 64 | u128::from(self.1)
    }
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> Ordering {
        other.key().cmp(&self.key())
    }
}

fn std_heap(len: u32) -> Duration {
    let mut delays = Stream::new(1, "delays", 0);
    let mut heap = BinaryHeap::new();
    (0..len).for_each(|i| heap.push(Entry(delays.below(1 << 20), i.into(), [i; 4])));
    let mut seq = u64::from(len);
    timed(|| {
        for _ in 0..STEPS {
            let Some(Entry(time, _, what)) = heap.pop() else {
                return;
            };
            heap.push(Entry(time + delays.below(1 << 20), seq, what));
            seq += 1;
        }
    })
}

fn timed(work: impl FnOnce()) -> Duration {
    let start = Instant::now();
    work();
    start.elapsed()
}

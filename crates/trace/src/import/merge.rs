// SPDX-License-Identifier: GPL-2.0-only
//! The merge of all CPUs' events into one order of time.
//!
//! Owns: the order, and the bound of the events that wait for those of other CPUs.
//!
//! A recorder empties the buffers of the CPUs one after the other, so that a file has a stretch of
//! one CPU's events, then the same stretch of the next CPU. An event waits here until `HELD_MAX`
//! later events of the file are known. The bound is a number of events and not a time, because the
//! length of a stretch depends on the recorder's settings, and memory must not.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use scxlab_machine::Nanos;

use super::raw::{LANES, Raw};

/// Maximum number of events that wait: five seconds at 200,000 events per second.
pub const HELD_MAX: usize = 1 << 20;

/// Orders events by time, those of one time by their order in the file. Events of one lane always
/// keep their order.
pub struct Merge {
    /// The events of each lane of each CPU, and their places in the file.
    lanes: Vec<VecDeque<(u64, Raw)>>,
    /// Time of the last event of each lane.
    last: Vec<Nanos>,
    /// The first event of each lane that has any: time, place in the file, lane.
    heads: BinaryHeap<Reverse<(Nanos, u64, usize)>>,
    pushed: u64,
    held: usize,
    held_max: usize,
    /// Time of the last event that left.
    popped: Nanos,
    /// Time of the first event that left.
    first: Option<Nanos>,
    pub gap: Gap,
    pub faults: Faults,
}

/// Violations of the order of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Number of events that came after a later event of another CPU had left.
    pub late: u64,
    /// Greatest distance in ns of such an event to the one that had left.
    pub late_max: Nanos,
    /// Number of events that are earlier than the event before on the same CPU.
    pub jumps: u64,
    /// Greatest distance in ns of such an event to the one before.
    pub jump_max: Nanos,
}

/// The longest time between an event and the next.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gap {
    /// Its begin since the first event, in ns.
    pub begin: Nanos,
    pub length: Nanos,
}

impl Merge {
    pub fn new(held_max: usize) -> Merge {
        Merge {
            lanes: Vec::new(),
            last: Vec::new(),
            heads: BinaryHeap::new(),
            pushed: 0,
            held: 0,
            held_max,
            popped: 0,
            first: None,
            gap: Gap::default(),
            faults: Faults::default(),
        }
    }

    /// Takes an event. An event that is earlier than its lane's last gets the last one's time.
    pub fn push(&mut self, mut raw: Raw) {
        let lane = raw.cpu as usize * LANES + usize::from(raw.lane);
        if self.lanes.len() <= lane {
            self.lanes.resize_with(lane + 1, VecDeque::new);
            self.last.resize(lane + 1, 0);
        }
        let last = &mut self.last[lane];
        if raw.time < *last {
            self.faults.jumps += 1;
            self.faults.jump_max = self.faults.jump_max.max(*last - raw.time);
            raw.time = *last;
        }
        *last = raw.time;
        if self.lanes[lane].is_empty() {
            self.heads.push(Reverse((raw.time, self.pushed, lane)));
        }
        self.held += raw.weight();
        self.lanes[lane].push_back((self.pushed, raw));
        self.pushed += 1;
    }

    /// Returns the next event if more events wait than may.
    pub fn pop_excess(&mut self) -> Option<Raw> {
        if self.held > self.held_max { self.pop() } else { None }
    }

    /// Returns the next event. An event that is earlier than one that has left gets that one's
    /// time.
    pub fn pop(&mut self) -> Option<Raw> {
        let Reverse((_, _, lane)) = self.heads.pop()?;
        let queue = &mut self.lanes[lane];
        let (_, mut raw) = queue.pop_front()?;
        if let Some((place, next)) = queue.front() {
            self.heads.push(Reverse((next.time, *place, lane)));
        }
        self.held -= raw.weight();
        if raw.time < self.popped {
            self.faults.late += 1;
            self.faults.late_max = self.faults.late_max.max(self.popped - raw.time);
            raw.time = self.popped;
        }
        let first = *self.first.get_or_insert(raw.time);
        let length = raw.time - self.popped.max(first);
        if length > self.gap.length {
            self.gap = Gap { begin: self.popped.max(first) - first, length };
        }
        self.popped = raw.time;
        Some(raw)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::raw::RawKind;
    use super::*;

    fn event(time: Nanos, cpu: u32, number: u64) -> Raw {
        Raw {
            time,
            cpu,
            lane: 0,
            running: None,
            interrupt: None,
            kind: RawKind::Lost { events: number },
        }
    }

    /// Returns the merged events as (time, CPU, number), and the faults.
    fn merge(events: &[(Nanos, u32)], held_max: usize) -> (Vec<(Nanos, u32, u64)>, Faults) {
        let mut merge = Merge::new(held_max);
        let mut merged = Vec::new();
        for (number, &(time, cpu)) in events.iter().enumerate() {
            merge.push(event(time, cpu, number as u64));
            merged.extend(std::iter::from_fn(|| merge.pop_excess()));
        }
        merged.extend(std::iter::from_fn(|| merge.pop()));
        let view = |raw: Raw| match raw.kind {
            RawKind::Lost { events } => (raw.time, raw.cpu, events),
            _ => panic!("{raw:?}"),
        };
        (merged.into_iter().map(view).collect(), merge.faults)
    }

    #[test]
    fn stretches_of_cpus_interleave() {
        let (merged, faults) = merge(&[(5, 1), (9, 1), (2, 0), (5, 0), (7, 2)], 10);
        assert_eq!(merged, [(2, 0, 2), (5, 1, 0), (5, 0, 3), (7, 2, 4), (9, 1, 1)]);
        assert_eq!(faults, Faults::default());
    }

    #[test]
    fn faults_are_told() {
        let (merged, faults) = merge(&[(5, 0), (3, 0), (8, 0), (9, 0), (4, 1)], 2);
        assert_eq!(merged, [(5, 0, 0), (5, 0, 1), (5, 1, 4), (8, 0, 2), (9, 0, 3)]);
        assert_eq!(faults, Faults { late: 1, late_max: 1, jumps: 1, jump_max: 2 });
    }

    #[test]
    fn the_longest_gap_is_known() {
        let mut merge = Merge::new(0);
        for (number, time) in [100, 103, 110, 112].into_iter().enumerate() {
            merge.push(event(time, 0, number as u64));
        }
        while merge.pop().is_some() {}
        assert_eq!(merge.gap, Gap { begin: 3, length: 7 });
    }

    proptest! {
        /// Whatever the bound, no event is lost, times never decrease, and the events of a CPU keep
        /// their order. An event that is not late, and on whose CPU no clock jumped, has its own
        /// time.
        #[test]
        fn the_order_is_one(
            events in prop::collection::vec((0u64..40, 0u32..5), 0..60), held_max in 0usize..80,
        ) {
            let (merged, faults) = merge(&events, held_max);
            prop_assert_eq!(merged.len(), events.len());
            prop_assert!(merged.windows(2).all(|pair| pair[0].0 <= pair[1].0));
            for cpu in 0..5 {
                let numbers = merged.iter().filter(|m| m.1 == cpu).map(|m| m.2);
                prop_assert!(numbers.is_sorted());
            }
            let changed = merged.iter().filter(|m| events[m.2 as usize].0 != m.0).count() as u64;
            prop_assert!(changed <= faults.late + faults.jumps);
            if held_max >= events.len() {
                prop_assert_eq!(faults.late, 0);
            }
        }
    }
}

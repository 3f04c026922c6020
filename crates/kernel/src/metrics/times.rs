// SPDX-License-Identifier: GPL-2.0-only
//! Distributions of times. A task switch adds a time to at most two distributions; the lab reads
//! the distributions when the run is over.
//!
//! Owns: counts, in the slots of an HDR histogram with three significant digits that reaches beyond
//! an hour.
//! Does not: compute quantiles; readers get an `hdrhistogram::Histogram` of the counts.

use hdrhistogram::Histogram;
use scxlab_machine::id::Nanos;

/// A distribution of times: three significant digits, up to an hour.
#[derive(Clone, Debug)]
pub struct TimeHistogram {
    counts: Box<[u64; SLOTS]>,
    max: Nanos,
}

/// Longest time that the histogram tells apart, ns. A longer time counts as this time.
const MAX_NS: u64 = 3_600_000_000_000;

/// Times of up to this many bits (below 2,048 ns) have a slot of the histogram each. Above, each
/// power of two has 1,024 slots.
const EXACT_BITS: u32 = 11;
const HALF: usize = 1 << (EXACT_BITS - 1);
const SLOTS: usize = ((MAX_NS.ilog2() + 1 - EXACT_BITS) as usize + 2) * HALF;

/// Returns the histogram's slot of a time, as `Histogram::index_for` computes it. For a time that
/// is too long, the result is past the last slot.
#[inline]
fn slot(ns: Nanos) -> usize {
    let dropped = (ns | ((1 << EXACT_BITS) - 1)).ilog2() + 1 - EXACT_BITS;
    dropped as usize * HALF + (ns >> dropped) as usize
}

/// Returns the shortest time that belongs to a slot, ns.
fn of_slot(slot: usize) -> Nanos {
    let dropped = (slot / HALF).saturating_sub(1);
    ((slot - dropped * HALF) as u64) << dropped
}

impl Default for TimeHistogram {
    fn default() -> Self {
        let counts = vec![0; SLOTS].into_boxed_slice().try_into();
        TimeHistogram { counts: counts.expect("as many as were made"), max: 0 }
    }
}

impl TimeHistogram {
    #[inline]
    pub fn record(&mut self, ns: Nanos) {
        let (slot, ns) = match slot(ns) {
            slot if slot < SLOTS => (slot, ns),
            _ => (slot(MAX_NS), MAX_NS),
        };
        self.counts[slot] += 1;
        self.max = self.max.max(ns);
    }

    /// Returns the slots up to that of the longest recorded time. The slots above are never
    /// accessed, so that the host gives them no memory pages.
    fn used(&self) -> &[u64] {
        &self.counts[..=slot(self.max)]
    }

    pub fn count(&self) -> u64 {
        self.used().iter().sum()
    }

    /// Longest time, to the histogram's precision; 0 if there is none.
    pub fn max(&self) -> Nanos {
        self.histogram().max()
    }

    /// Time below which `permille` of all times lie; 0 if there are none.
    pub fn permille(&self, permille: u32) -> Nanos {
        quantile(&self.histogram(), permille * 10)
    }

    /// Returns a histogram of all recorded times.
    pub fn histogram(&self) -> Histogram<u64> {
        let mut all = Histogram::new_with_max(MAX_NS, 3).expect("constant bounds are valid");
        let last = slot(self.max);
        for (slot, &count) in self.used().iter().enumerate().filter(|(_, count)| **count > 0) {
            let ns = if slot == last { self.max } else { of_slot(slot) };
            all.saturating_record_n(ns, count);
        }
        all
    }
}

/// Value below which `per_10_000` of 10,000 values lie; 0 if there are none.
#[allow(clippy::float_arithmetic, reason = "the result never returns to the run")]
pub fn quantile(all: &Histogram<u64>, per_10_000: u32) -> Nanos {
    // tidy: allow(float): the histogram asks for a fraction; the result never returns to the run.
    all.value_at_quantile(f64::from(per_10_000) / 10_000.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns a histogram made by the `record` of hdrhistogram itself, for comparison.
    fn histogram(values: &[Nanos]) -> Histogram<u64> {
        let mut all = Histogram::new_with_max(MAX_NS, 3).unwrap();
        values.iter().for_each(|&ns| all.saturating_record(ns));
        all
    }

    fn check(values: &[Nanos]) {
        let mut times = TimeHistogram::default();
        values.iter().for_each(|&ns| times.record(ns));
        let (ours, theirs) = (times.histogram(), histogram(values));
        assert_eq!((times.count(), times.max()), (theirs.len(), theirs.max()), "{values:?}");
        for per_10_000 in [0, 1, 5_000, 9_000, 9_900, 9_990, 9_999, 10_000] {
            let both = [&ours, &theirs].map(|all| quantile(all, per_10_000));
            assert_eq!(both[0], both[1], "{per_10_000} of {values:?}");
        }
    }

    #[test]
    fn slots_are_the_librarys() {
        assert_eq!(SLOTS, Histogram::<u64>::new_with_max(MAX_NS, 3).unwrap().distinct_values());
        check(&[]);
        for ns in [0, 1, 2047, 2048, 4095, 4096, MAX_NS, (1 << 42) - 1, 1 << 42, u64::MAX] {
            check(&[ns]);
            check(&[3, ns.saturating_add(1), ns]);
        }
        for slot_of in 0..SLOTS {
            assert_eq!(slot(of_slot(slot_of)), slot_of);
        }
    }

    proptest! {
        #[test]
        fn counts_are_the_librarys(values in prop::collection::vec((any::<u64>(), 0u32..64), 0..40)) {
            check(&values.iter().map(|(value, drop)| value >> drop).collect::<Vec<_>>());
        }
    }
}

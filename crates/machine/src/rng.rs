// SPDX-License-Identifier: GPL-2.0-only
//! Named random streams. Each consumer draws from its own stream, so a change in one never shifts
//! another.
//!
//! Owns: the derivation of a generator from (seed, name, index), and unbiased integers from its
//! words.
//! Does not: generate the words (xoshiro256**, crate `rand_xoshiro`), draw floats, keep global
//! state.

use rand_xoshiro::Xoshiro256StarStar;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use crate::cost::Ratio;
use crate::hash::{StableHash, splitmix_finalize};

/// One stream of random numbers. Equal (seed, name, index) give equal streams on every machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stream(Xoshiro256StarStar);

impl Stream {
    /// Returns the stream `name` with number `index` (a task, a CPU; 0 if there is only one) for a
    /// run's `seed`.
    ///
    /// ```
    /// use scxlab_machine::Stream;
    /// let mut a = Stream::new(1, "arrivals", 0);
    /// let mut b = Stream::new(1, "arrivals", 0);
    /// assert_eq!(a.next_u64(), b.next_u64());
    /// assert_ne!(a.next_u64(), Stream::new(1, "ties", 0).next_u64());
    /// ```
    pub fn new(seed: u64, name: &str, index: u64) -> Self {
        let mut hash = StableHash::new(seed);
        hash.add_bytes(name.as_bytes());
        hash.add(index);
        Stream(Xoshiro256StarStar::from_seed(expand(hash.finish())))
    }

    /// Returns the next 64 random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Returns the next 32 random bits, the upper half of a word.
    #[inline]
    pub fn next_u32(&mut self) -> u32 {
        (self.next_u64() >> 32) as u32
    }

    /// Returns a number in `0..n`, each equally likely; 0 if `n` is 0.
    ///
    /// Lemire's method: the result is the high half of `x * n` for a random word `x`. If the low
    /// half falls in the biased part, another word is drawn.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        let mut wide = u128::from(self.next_u64()) * u128::from(n);
        if (wide as u64) < n {
            // 2^64 mod n: the number of low halves that would be counted once too often.
            let biased = n.wrapping_neg() % n;
            while (wide as u64) < biased {
                wide = u128::from(self.next_u64()) * u128::from(n);
            }
        }
        (wide >> 64) as u64
    }

    /// Returns a number in `low..=high`; `low` if the range is empty.
    pub fn between(&mut self, low: u64, high: u64) -> u64 {
        match high.checked_sub(low) {
            None => low,
            Some(u64::MAX) => self.next_u64(),
            // The sum cannot overflow, because the drawn offset is at most high - low.
            Some(span) => low + self.below(span + 1),
        }
    }

    /// Returns true with probability `p`. A ratio of 1 or more always gives true.
    pub fn chance(&mut self, p: Ratio) -> bool {
        self.below(u64::from(p.den)) < u64::from(p.num)
    }

    /// Puts `items` in random order (Fisher-Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for last in (1..items.len()).rev() {
            items.swap(last, self.below(last as u64 + 1) as usize);
        }
    }
}

/// Fills the 256 bits of state by SplitMix64, as xoshiro's authors advise. The state is never all
/// zero, because the four words are outputs of a bijection at different inputs.
fn expand(mut state: u64) -> [u8; 32] {
    let mut seed = [0; 32];
    for word in seed.chunks_exact_mut(8) {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&splitmix_finalize(state).to_le_bytes());
    }
    seed
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Workloads of earlier versions must stay the same. A second implementation computed these
    /// values.
    #[test]
    fn values_never_change() {
        let mut stream = Stream::new(42, "arrivals", 3);
        let got: Vec<u64> = (0..3).map(|_| stream.next_u64()).collect();
        assert_eq!(
            got,
            [429_853_136_209_822_401, 480_183_742_066_535_126, 7_935_107_048_754_154_911]
        );
    }

    #[test]
    fn seed_name_and_index_each_matter() {
        let first = |seed, name, index| Stream::new(seed, name, index).next_u64();
        let all = [
            first(1, "a", 0),
            first(2, "a", 0),
            first(1, "b", 0),
            first(1, "a", 1),
            first(1, "", 0),
        ];
        let distinct: std::collections::BTreeSet<_> = all.iter().collect();
        assert_eq!(distinct.len(), all.len());
    }

    #[test]
    fn below_is_within_range_and_even() {
        let mut stream = Stream::new(1, "t", 0);
        // n is 3/4 of 2^64. Without redrawing, the high half of `x * n` would be a multiple of 3
        // for half of all words `x`, because two words lead to each multiple and one to each other
        // number. A plain remainder would yield the lower third twice as often as the rest.
        let n = (1 << 63) + (1 << 62);
        let drawn: Vec<u64> = (0..30_000).map(|_| stream.below(n)).collect();
        let third = |chosen: fn(u64, u64) -> bool| drawn.iter().filter(|x| chosen(**x, n)).count();
        let (low, multiples) = (third(|x, n| x < n / 3), third(|x, _| x.is_multiple_of(3)));
        assert!((9_500..10_500).contains(&low), "{low} of 30000 in the lower third");
        assert!((9_500..10_500).contains(&multiples), "{multiples} of 30000 are multiples of 3");
        for n in [1, 2, 3, 7, u64::MAX] {
            assert!((0..200).all(|_| stream.below(n) < n));
        }
        assert_eq!(stream.below(0), 0);
    }

    #[test]
    fn between_takes_its_ends_and_the_whole_range() {
        let mut stream = Stream::new(1, "t", 0);
        let seen: std::collections::BTreeSet<_> = (0..200).map(|_| stream.between(5, 7)).collect();
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [5, 6, 7]);
        assert_eq!(stream.between(9, 3), 9);
        stream.between(0, u64::MAX);
    }

    #[test]
    fn chance_follows_its_ratio() {
        let mut stream = Stream::new(1, "t", 0);
        let quarter = Ratio { num: 1, den: 4 };
        let hits = (0..40_000).filter(|_| stream.chance(quarter)).count();
        assert!((9_600..10_400).contains(&hits), "{hits}");
        assert!((0..100).all(|_| stream.chance(Ratio { num: 1, den: 1 })));
        assert!((0..100).all(|_| !stream.chance(Ratio { num: 0, den: 1 })));
    }

    #[test]
    fn shuffle_keeps_the_items() {
        let mut items: Vec<u32> = (0..100).collect();
        Stream::new(1, "t", 0).shuffle(&mut items);
        assert_ne!(items, (0..100).collect::<Vec<_>>());
        items.sort();
        assert_eq!(items, (0..100).collect::<Vec<_>>());
        Stream::new(1, "t", 0).shuffle::<u8>(&mut []);
    }
}

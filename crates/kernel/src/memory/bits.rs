// SPDX-License-Identifier: GPL-2.0-only
//! Sets of a region's units.

/// A set of small numbers.
#[derive(Clone, Debug)]
pub(crate) struct Bits(Box<[u64]>);

impl Bits {
    /// Returns the set of all numbers below `nr`.
    pub fn all(nr: usize) -> Bits {
        let mut bits = Bits::none(nr);
        (0..nr).for_each(|n| bits.set(n));
        bits
    }

    /// Returns an empty set for numbers below `nr`.
    pub fn none(nr: usize) -> Bits {
        Bits(vec![0; nr.div_ceil(64)].into())
    }

    pub fn set(&mut self, n: usize) {
        self.0[n / 64] |= 1 << (n % 64);
    }

    pub fn has(&self, n: usize) -> bool {
        self.0[n / 64] >> (n % 64) & 1 == 1
    }

    pub fn clear(&mut self, n: usize) {
        self.0[n / 64] &= !(1 << (n % 64));
    }

    /// Returns the smallest number in `from..to` that this set or `also` contains.
    pub fn next_of_either(&self, also: &Bits, from: usize, to: usize) -> Option<usize> {
        let mut n = from;
        while n < to {
            let word = (self.0[n / 64] | also.0[n / 64]) >> (n % 64);
            if word != 0 {
                return Some(n + word.trailing_zeros() as usize).filter(|n| *n < to);
            }
            n = (n / 64 + 1) * 64;
        }
        None
    }

    /// Returns how many numbers in `from..to` this set or `also` contains.
    pub fn count_of_either(&self, also: &Bits, from: usize, to: usize) -> u64 {
        let (mut n, mut count) = (from, 0);
        while n < to {
            let end = ((n / 64 + 1) * 64).min(to);
            let mask = u64::MAX >> (64 - (end - n)) << (n % 64);
            count += u64::from(((self.0[n / 64] | also.0[n / 64]) & mask).count_ones());
            n = end;
        }
        count
    }
}

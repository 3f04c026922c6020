// SPDX-License-Identifier: GPL-2.0-only
//! Sets of CPUs as words of bits, owned (`CpuMask`) or borrowed (`&[u64]`, which may lie in guest
//! memory).
//!
//! Owns: bit arithmetic. Does not: know which CPUs exist. Every mask of a run has the same number
//! of words.

use crate::id::CpuId;
use std::ops::Range;

/// An owned set of CPUs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct CpuMask {
    words: Box<[u64]>,
}

impl CpuMask {
    /// Returns the empty set, with room for `nr_cpus` CPUs.
    pub fn new(nr_cpus: usize) -> Self {
        CpuMask { words: vec![0; nr_cpus.div_ceil(64).max(1)].into_boxed_slice() }
    }

    /// Returns the set of the CPUs `0..nr_cpus`.
    pub fn all(nr_cpus: usize) -> Self {
        let mut mask = Self::new(nr_cpus);
        let (full, rest) = (nr_cpus / 64, nr_cpus % 64);
        mask.words[..full].fill(u64::MAX);
        if rest > 0 {
            mask.words[full] = (1 << rest) - 1;
        }
        mask
    }

    /// Returns the set of the given CPUs. Drops CPUs at or past `nr_cpus` rounded up to a word.
    pub fn of(nr_cpus: usize, cpus: impl IntoIterator<Item = CpuId>) -> Self {
        let mut mask = Self::new(nr_cpus);
        cpus.into_iter().for_each(|cpu| set(&mut mask.words, cpu));
        mask
    }
}

/// Writes the kernel's list form: `0-3,8`.
impl std::fmt::Display for CpuMask {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut cpus = iter(self).peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while let Some(next) = cpus.next_if(|next| next.0 == last.0 + 1) {
                last = next;
            }
            write!(f, "{separator}{first}")?;
            if last != first {
                write!(f, "-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

impl serde::Serialize for CpuMask {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl std::ops::Deref for CpuMask {
    type Target = [u64];
    fn deref(&self) -> &[u64] {
        &self.words
    }
}

impl std::ops::DerefMut for CpuMask {
    fn deref_mut(&mut self) -> &mut [u64] {
        &mut self.words
    }
}

/// Whether `cpu` is in the set. False for a CPU past the set's end.
#[inline]
pub fn test(words: &[u64], cpu: CpuId) -> bool {
    words.get(cpu.idx() / 64).is_some_and(|w| w >> (cpu.0 % 64) & 1 != 0)
}

/// Adds `cpu`. Does nothing for a CPU past the set's end.
#[inline]
pub fn set(words: &mut [u64], cpu: CpuId) {
    if let Some(w) = words.get_mut(cpu.idx() / 64) {
        *w |= 1 << (cpu.0 % 64);
    }
}

/// Removes `cpu`. Does nothing for a CPU past the set's end.
#[inline]
pub fn clear(words: &mut [u64], cpu: CpuId) {
    if let Some(w) = words.get_mut(cpu.idx() / 64) {
        *w &= !(1 << (cpu.0 % 64));
    }
}

/// Returns the number of CPUs in the set.
pub fn weight(words: &[u64]) -> u32 {
    words.iter().map(|w| w.count_ones()).sum()
}

/// Whether the set has no CPU.
#[inline]
pub fn is_empty(words: &[u64]) -> bool {
    words.iter().all(|&w| w == 0)
}

/// Returns the lowest CPU of the set.
#[inline]
pub fn first(words: &[u64]) -> Option<CpuId> {
    words.iter().position(|&w| w != 0).map(|i| CpuId(i as u32 * 64 + words[i].trailing_zeros()))
}

/// Returns the lowest CPU that is in both sets.
#[inline]
pub fn first_and(a: &[u64], b: &[u64]) -> Option<CpuId> {
    a.iter().zip(b).enumerate().find_map(|(i, (a, b))| {
        let both = a & b;
        (both != 0).then(|| CpuId(i as u32 * 64 + both.trailing_zeros()))
    })
}

/// Whether the sets share a CPU.
#[inline]
pub fn intersects(a: &[u64], b: &[u64]) -> bool {
    a.iter().zip(b).any(|(a, b)| a & b != 0)
}

/// Whether every CPU of `a` is in `b`.
#[inline]
pub fn is_subset(a: &[u64], b: &[u64]) -> bool {
    a.iter().enumerate().all(|(i, a)| a & !b.get(i).copied().unwrap_or(0) == 0)
}

/// Returns the CPUs of the set in ascending order.
#[inline]
pub fn iter(words: &[u64]) -> impl Iterator<Item = CpuId> + '_ {
    Ascending { rest: words.iter().copied(), word: 0, end: 0 }
}

/// Returns the CPUs that are in both sets, in ascending order.
#[inline]
pub fn iter_and<'a>(a: &'a [u64], b: &'a [u64]) -> impl Iterator<Item = CpuId> + 'a {
    Ascending { rest: a.iter().zip(b).map(|(a, b)| a & b), word: 0, end: 0 }
}

/// Returns the CPUs of some words of the set, in ascending order.
#[inline]
pub fn iter_within(words: &[u64], range: Range<usize>) -> impl Iterator<Item = CpuId> + '_ {
    let end = range.start as u32 * 64;
    Ascending { rest: words[range].iter().copied(), word: 0, end }
}

/// Returns the CPUs of some words that are in both sets, in ascending order.
#[inline]
pub fn iter_and_within<'a>(
    a: &'a [u64],
    b: &'a [u64],
    range: Range<usize>,
) -> impl Iterator<Item = CpuId> + 'a {
    let end = range.start as u32 * 64;
    Ascending { rest: a[range.clone()].iter().zip(&b[range]).map(|(a, b)| a & b), word: 0, end }
}

/// Iterates over CPUs word by word. `word` holds the bits of the current word that are still to
/// come, and `end` is the lowest CPU number of the next word.
struct Ascending<I> {
    rest: I,
    word: u64,
    end: u32,
}

impl<I: Iterator<Item = u64>> Iterator for Ascending<I> {
    type Item = CpuId;

    #[inline]
    fn next(&mut self) -> Option<CpuId> {
        while self.word == 0 {
            self.word = self.rest.next()?;
            self.end += 64;
        }
        let bit = self.word.trailing_zeros();
        self.word &= self.word - 1;
        Some(CpuId(self.end - 64 + bit))
    }
}

#[cfg(test)]
mod tests;

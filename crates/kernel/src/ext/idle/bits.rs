// SPDX-License-Identifier: GPL-2.0-only
//! Searches in CPU sets that stop at the number of CPUs and ignore the bits after it.
//!
//! A set that a program filled may have bits after the last CPU (`cpumask_setall()` fills whole
//! words), and the kernel's searches ignore them.
//!
//! Owns: nothing. Models: kernel `find_next_and_bit()` and the searches on top of it, 7.3.

/// Returns the mask of those bits of a set's last word that stand for CPUs.
pub(crate) fn tail(nr_cpus: usize) -> u64 {
    match nr_cpus % 64 {
        0 => u64::MAX,
        n => (1 << n) - 1,
    }
}

/// Sets the bits of all CPUs and clears those after the last CPU.
pub(crate) fn fill(words: &mut [u64], nr_cpus: usize) {
    words.fill(u64::MAX);
    if let Some(last) = words.last_mut() {
        *last = tail(nr_cpus);
    }
}

/// Returns the lowest bit that is in `a` and in `b`, from `from` up to, not including, `end`. Adds
/// the number of words read to `words_read`.
pub(crate) fn next_and(
    a: &[u64],
    b: &[u64],
    from: usize,
    end: usize,
    words_read: &mut u64,
) -> Option<u32> {
    let (first, last) = (from / 64, end.div_ceil(64).min(a.len()).min(b.len()));
    if first >= last {
        return None;
    }
    let found = |at: usize, both: u64| {
        let bit = at * 64 + both.trailing_zeros() as usize;
        (bit < end).then_some(bit as u32)
    };
    let both = a[first] & b[first] & (u64::MAX << (from % 64));
    if both != 0 {
        *words_read += 1;
        return found(first, both);
    }
    // Most searches on a busy machine find nothing, so this loop does as little as possible.
    let rest = || a[first + 1..last].iter().zip(&b[first + 1..last]).map(|(a, b)| a & b);
    match rest().position(|both| both != 0) {
        Some(skipped) => {
            *words_read += skipped as u64 + 2;
            let at = first + 1 + skipped;
            found(at, a[at] & b[at])
        }
        None => {
            *words_read += (last - first) as u64;
            None
        }
    }
}

/// As `next_and` over all CPUs, but wraps around to the first CPU at the end.
pub(crate) fn next_and_wrap(
    a: &[u64],
    b: &[u64],
    nr_cpus: usize,
    from: u32,
    words_read: &mut u64,
) -> Option<u32> {
    let from = from as usize;
    if let (&[a], &[b]) = (a, b) {
        return next_in_word(a & b, nr_cpus, from, words_read);
    }
    next_and(a, b, from, nr_cpus, words_read)
        .or_else(|| next_and(a, b, 0, from.min(nr_cpus), words_read))
}

/// Returns the number of words that `next_and_wrap` reads if it finds nothing.
pub(crate) fn words_if_none(nr_cpus: usize, from: usize) -> u64 {
    let behind = nr_cpus.div_ceil(64).saturating_sub(from / 64);
    (behind + from.min(nr_cpus).div_ceil(64)) as u64
}

/// As `next_and_wrap` for sets of one word, which most machines have.
#[inline]
fn next_in_word(both: u64, nr_cpus: usize, from: usize, words_read: &mut u64) -> Option<u32> {
    let found = |both: u64, end: usize| {
        let bit = both.trailing_zeros();
        ((bit as usize) < end).then_some(bit)
    };
    if from < 64 {
        *words_read += 1;
        if let Some(bit) = found(both & u64::MAX << from, nr_cpus) {
            return Some(bit);
        }
    }
    let end = from.min(nr_cpus);
    *words_read += u64::from(end > 0);
    found(both, end)
}

/// Returns whether `test` holds for every pair of words of two sets. Bits after the last CPU are
/// cleared before the test.
#[inline(always)]
pub(crate) fn all_words(
    a: &[u64],
    b: &[u64],
    nr_cpus: usize,
    test: impl Fn(u64, u64) -> bool,
) -> bool {
    let last = nr_cpus.div_ceil(64) - 1;
    let valid = |at| if at == last { tail(nr_cpus) } else { u64::MAX };
    a.iter().zip(b).enumerate().all(|(at, (a, b))| test(a & valid(at), b & valid(at)))
}

/// Returns the number of CPUs that are in both sets.
pub(crate) fn weight_and(a: &[u64], b: &[u64]) -> u32 {
    a.iter().zip(b).map(|(a, b)| (a & b).count_ones()).sum()
}

/// Returns whether two or more CPUs are in both sets.
pub(crate) fn two_in(a: &[u64], b: &[u64]) -> bool {
    let mut one = false;
    a.iter().zip(b).map(|(a, b)| a & b).any(|both| {
        let enough = both != 0 && (one || both & (both - 1) != 0);
        one |= both != 0;
        enough
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The search in one word and the general search find the same CPU and count the same number
    /// of words.
    #[test]
    fn one_word_is_searched_as_several_are() {
        let sets = [0, 1, 0x81, 0xff, 1 << 63, u64::MAX, 0x0f0f_0000_0000_f0f0];
        for (a, b) in sets.iter().flat_map(|a| sets.map(|b| (*a, b))) {
            for (nr_cpus, from) in
                [8, 63, 64].into_iter().flat_map(|n| (0..=n).map(move |f| (n, f)))
            {
                let (mut one, mut two) = (0, 0);
                let found = next_and_wrap(&[a], &[b], nr_cpus, from as u32, &mut one);
                let general = next_and(&[a], &[b], from, nr_cpus, &mut two)
                    .or_else(|| next_and(&[a], &[b], 0, from.min(nr_cpus), &mut two));
                assert_eq!((found, one), (general, two), "{a:#x} {b:#x} {nr_cpus} {from}");
            }
        }
    }

    #[test]
    fn a_search_in_vain_looks_at_every_word() {
        for (nr_cpus, from) in
            [8usize, 64, 65, 1000].into_iter().flat_map(|n| (0..=n).map(move |f| (n, f)))
        {
            let (empty, mut words_read) = (vec![0; nr_cpus.div_ceil(64)], 0);
            assert_eq!(next_and_wrap(&empty, &empty, nr_cpus, from as u32, &mut words_read), None);
            assert_eq!(words_if_none(nr_cpus, from), words_read, "{nr_cpus} CPUs from {from}");
        }
    }
}

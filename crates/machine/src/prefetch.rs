// SPDX-License-Identifier: GPL-2.0-only
//! Asking the host's CPU to fetch what will be needed soon.
//!
//! Owns: the instruction. Does not: change or read anything; a host without it does nothing.

/// Bytes of a cache line of the host, as far as this matters.
const LINE: usize = 64;

/// Fetches every cache line of `value`.
#[inline(always)]
pub fn prefetch<T: ?Sized>(value: &T) {
    prefetch_first(value, size_of_val(value));
}

/// Fetches the cache lines of the first `bytes` of `value`.
#[inline(always)]
pub fn prefetch_first<T: ?Sized>(value: &T, bytes: usize) {
    let start = std::ptr::from_ref(value).cast::<u8>();
    for at in (0..bytes).step_by(LINE) {
        line(start.wrapping_add(at));
    }
}

#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn line(at: *const u8) {
    use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: the instruction is a hint: it faults on no address. SSE is part of x86-64.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn line(_: *const u8) {}

#[cfg(test)]
mod tests {
    use super::prefetch;

    /// What can be tested of a hint: that it is harmless, for a value of no size too.
    #[test]
    fn nothing_happens() {
        let words = [7u64; 100];
        prefetch(&words);
        prefetch(&words[..0]);
        prefetch(&());
        assert!(words.iter().all(|&word| word == 7));
    }
}

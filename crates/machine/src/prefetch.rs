// SPDX-License-Identifier: GPL-2.0-only
//! Prefetching: requests that the host's CPU fetch data that will be needed soon.
//!
//! Owns: the instruction. Does not: change or read anything. On a host without the instruction
//! nothing happens.

/// Assumed size in bytes of the host's cache lines.
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
    // SAFETY: the instruction is a hint and faults on no address. SSE is part of x86-64.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
}

#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn line(_: *const u8) {}

#[cfg(test)]
mod tests {
    use super::prefetch;

    /// A prefetch changes nothing that a program can read, so the test checks only that it does no
    /// harm, also for a value of size 0.
    #[test]
    fn nothing_happens() {
        let words = [7u64; 100];
        prefetch(&words);
        prefetch(&words[..0]);
        prefetch(&());
        assert!(words.iter().all(|&word| word == 7));
    }
}

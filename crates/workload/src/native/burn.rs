// SPDX-License-Identifier: GPL-2.0-only
//! The busy loop that executes `compute`, and its speed.
//!
//! Owns: the calibration. 1 ns of work is the amount that the loop does in 1 ns of CPU time on one
//! CPU of this machine.

use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::report::Calibration;
use super::sys::{self, Errno};

/// Minimum CPU time of each sample.
const SAMPLE_NS: u64 = 2_000_000;
/// Number of samples. The fastest counts, because a disturbance can only make a sample longer.
const SAMPLES: u32 = 15;

/// Does integer work that touches no memory. Each step depends on the one before, so that the CPU
/// cannot overlap them.
#[inline(never)]
pub fn burn(iterations: u64) {
    let mut x: u64 = black_box(0x9e37_79b9_7f4a_7c15);
    for _ in 0..iterations {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
    }
    black_box(x);
}

/// Measures the speed of the loop on one CPU, and then restores the calling thread's affinity.
pub fn calibrate(cpu: u32) -> Result<Calibration, Errno> {
    let before = sys::affinity()?;
    sys::set_affinity(&sys::mask_of(std::iter::once(cpu)))?;
    let found = measure(cpu);
    sys::set_affinity(&sys::mask_of(before.into_iter()))?;
    Ok(found)
}

/// Buffer in which accesses are timed: larger than most caches.
const BUFFER: usize = 64 << 20;
/// Accesses of one sample.
const ACCESSES: u64 = 16_384;

/// Measures the time of one access to memory of the CPU's node, in ps: in random order, each access
/// depending on the one before, and in sequence, line by line.
pub fn time_accesses(random: &AtomicU64, sequential: &AtomicU64) -> Result<(), Errno> {
    let at = sys::map_memory(BUFFER)?;
    let mut state: u64 = black_box(0x9e37_79b9_7f4a_7c15);
    let mut place = 0;
    let time = |next: &mut dyn FnMut(u64) -> usize| {
        let since = sys::thread_cpu();
        let mut read = 0;
        for _ in 0..ACCESSES {
            // SAFETY: `next` returns places below `BUFFER`.
            read = unsafe { at.add(next(read)).read_volatile() }.into();
        }
        (sys::thread_cpu().saturating_sub(since) * 1000 / ACCESSES).max(1)
    };
    let mut chase = |read: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(read | 1);
        (state >> 33) as usize % BUFFER
    };
    let mut march = |_: u64| {
        place = (place + LINE) % BUFFER;
        place
    };
    // The fastest sample counts, because a disturbance can only make a sample longer.
    let best = |time: &mut dyn FnMut() -> u64| (0..SAMPLES).map(|_| time()).min().unwrap_or(1);
    random.store(best(&mut || time(&mut chase)), Relaxed);
    sequential.store(best(&mut || time(&mut march)), Relaxed);
    // SAFETY: mapped above; nothing uses it any more.
    unsafe { sys::unmap(at, BUFFER) };
    Ok(())
}

/// Size of a cache line, bytes.
const LINE: usize = 64;

fn measure(cpu: u32) -> Calibration {
    let time = |iterations: u64| {
        let since = sys::thread_cpu();
        burn(iterations);
        sys::thread_cpu().saturating_sub(since).max(1)
    };
    let mut iterations: u64 = 1 << 16;
    while time(iterations) < SAMPLE_NS && iterations < 1 << 40 {
        iterations *= 2;
    }
    let ns = (0..SAMPLES).map(|_| time(iterations)).min().unwrap_or(1);
    Calibration { iterations, ns, cpu }
}

// SPDX-License-Identifier: GPL-2.0-only
//! Weights: nice levels, cgroup weights, and time scaled by them.
//!
//! Owns: the fixed-point unit (a nice-0 task weighs `NICE_0_LOAD`).
//! Models: `sched_prio_to_weight`, `scale_load()`, `calc_delta_fair()`,
//! `sched_weight_from_cgroup()`, v7.3.

/// Bits of additional resolution of a load weight inside the scheduler.
const LOAD_SHIFT: u32 = 10;
/// Weight of a nice-0 task, scaled.
pub const NICE_0_LOAD: u64 = 1 << (2 * LOAD_SHIFT);
/// Smallest result of a share computation (`MIN_SHARES`). It is unscaled, so that even a small
/// weight can be split over many CPUs.
pub const MIN_SHARES: u64 = 2;
/// Largest cgroup weight, before scaling (`MAX_SHARES`).
pub const MAX_SHARES: u64 = 1 << 18;
/// Weight of SCHED_IDLE and of `cpu.idle` groups, before scaling.
pub const WEIGHT_IDLEPRIO: u64 = 3;
/// Capacity of the fastest CPU.
pub const CAPACITY_SCALE: u64 = 1024;

/// Weight per nice level from -20 to 19: each step is a factor of about 1.25.
const NICE_TO_WEIGHT: [u64; 40] = [
    88761, 71755, 56483, 46273, 36291, 29154, 23254, 18705, 14949, 11916, // nice -20 to -11
    9548, 7620, 6100, 4904, 3906, 3121, 2501, 1991, 1586, 1277, // nice -10 to -1
    1024, 820, 655, 526, 423, 335, 272, 215, 172, 137, // nice 0 to 9
    110, 87, 70, 56, 45, 36, 29, 23, 18, 15, // nice 10 to 19
];

/// Unscaled weight of a nice level. A level out of range is clamped.
pub fn nice_weight(nice: i8) -> u64 {
    NICE_TO_WEIGHT[(i32::from(nice).clamp(-20, 19) + 20) as usize]
}

/// Converts `cpu.weight` (default 100) to unscaled load units (default 1024), rounded to nearest.
pub fn cgroup_weight(weight: u32) -> u64 {
    (u64::from(weight) * 1024 + 50) / 100
}

#[inline]
pub fn scale_load(weight: u64) -> u64 {
    weight << LOAD_SHIFT
}

/// Removes the additional resolution. Zero stays zero; any other weight becomes at least 2, so that
/// a tiny share is not lost.
#[inline]
pub fn scale_load_down(weight: u64) -> u64 {
    if weight == 0 { 0 } else { (weight >> LOAD_SHIFT).max(2) }
}

/// Converts wall time to virtual time of an entity of `weight`: `delta * NICE_0_LOAD / weight`.
#[inline]
pub fn delta_fair(delta: u64, weight: u64) -> u64 {
    if weight == NICE_0_LOAD {
        return delta;
    }
    match delta.checked_mul(NICE_0_LOAD) {
        Some(product) => product / weight.max(1),
        None => (u128::from(delta) * u128::from(NICE_0_LOAD) / u128::from(weight.max(1))) as u64,
    }
}

/// `value * old / new`, truncated towards zero as the kernel's `div64_long`.
#[inline]
pub fn rescale(value: i64, old: u64, new: u64) -> i64 {
    let scaled = i128::from(value) * i128::from(old) / i128::from(new.max(1));
    scaled.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}

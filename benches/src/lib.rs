// SPDX-License-Identifier: GPL-2.0-only
//! What the benchmarks share: one simulation from its three names, a host without a kernel, CPU time, peak memory.
//!
//! Owns: how a case is put together and measured. Does not: judge; no benchmark asserts a time.
//! Start at: `switches.rs`, beside this folder.

pub mod case;
pub mod host;
pub mod noting;

/// The middle one of some figures.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

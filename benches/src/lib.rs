// SPDX-License-Identifier: GPL-2.0-only
//! Shared code of the benchmarks: one simulation, made from the names of a scheduler, a workload
//! and a machine; a `vm::Host` that only records calls; CPU time; peak memory.
//!
//! Owns: the construction and measurement of a case. Does not: judge; no benchmark asserts a time.
//! Start at: `switches.rs`, next to this folder.

pub mod callgrind;
pub mod case;
pub mod host;
pub mod noting;
pub mod parts;
pub mod recording;

/// Returns the median of the figures.
pub fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or(f64::NAN)
}

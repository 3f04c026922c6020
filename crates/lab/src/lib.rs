// SPDX-License-Identifier: GPL-2.0-only
//! Experiments: a scheduler, a workload and a machine on a target become a `Run`; runs become comparisons.
//!
//! Owns: targets, results, statistics, reports. Does not: simulate (see the kernel crate) or parse flags.
//! Start at: `run.rs` (what a run is), `sim.rs` (the simulated target), `compare.rs`.

pub mod run;
pub mod scheduler;
pub mod sim;

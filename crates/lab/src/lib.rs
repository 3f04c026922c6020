// SPDX-License-Identifier: GPL-2.0-only
//! Experiments: a target (the simulator, a virtual machine or this machine's kernel) runs a
//! workload under a scheduler on a machine, and returns a `Run`. Runs become comparisons.
//!
//! Owns: targets, recipes, results, statistics, reports. Does not: simulate (see the kernel crate),
//! parse flags, or open files; the caller passes an `InputFiles`.
//! Start at: `session.rs` (many runs), `run.rs` (the result of a run), `sim.rs` (the simulated
//! target).

pub mod advise;
pub mod agreement;
pub mod compare;
pub mod conform;
pub mod counters;
pub mod fairness;
pub mod input;
pub mod left_out;
pub mod metric;
pub mod prepare;
pub mod recipe;
pub mod recorded;
pub mod report;
pub mod reproduce;
pub mod results;
pub mod run;
pub mod scheduler;
pub mod session;
pub mod shares;
pub mod shrink;
pub mod sim;
pub mod stats;
pub mod story;

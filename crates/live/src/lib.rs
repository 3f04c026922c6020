// SPDX-License-Identifier: GPL-2.0-only
//! Runs on the running kernel: a scheduler's object is loaded, attached and observed, and a
//! workload is executed by real threads and measured by a probe, with the simulator's definitions
//! of the metrics.
//!
//! Owns: the loader, the probe's reader, `Run`s and traces of the targets `host` and `vm`. Needs
//! root and a kernel with sched_ext.
//! Does not: build virtual machines, those of a workload's guests included (see the vm crate), or
//! know a scheduler's name.
//! Start at: `run.rs`; `load.rs` does a frontend's work.

mod abi;
pub mod conform;
pub mod error;
pub mod exit;
mod frontend;
pub mod gang;
pub mod guest;
pub mod job;
pub mod kernel;
pub mod load;
mod log;
mod measure;
mod numa;
pub mod probe;
pub mod record;
mod ring;
pub mod run;
pub mod scheduler;
pub mod trace;
pub mod tuning;
mod witness;

pub use error::LiveError;

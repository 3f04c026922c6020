// SPDX-License-Identifier: GPL-2.0-only
//! Runs on the kernel that is running: a scheduler's object is loaded, attached and watched, a workload is executed by real
//! threads and measured by a probe, with the definitions that the simulator has.
//!
//! Owns: the loader, the probe's reader, `Run`s and traces of the targets `host` and `vm`. Needs root and a kernel with sched_ext.
//! Does not: build virtual machines (see the vm crate), or know a scheduler's name.
//! Start at: `run.rs`; `load.rs` is what a scheduler's frontend does.

pub mod conform;
pub mod error;
pub mod exit;
mod frontend;
pub mod gang;
pub mod job;
pub mod kernel;
pub mod load;
mod log;
mod measure;
pub mod probe;
mod ring;
pub mod run;
pub mod scheduler;
pub mod trace;
mod witness;

pub use error::LiveError;

// SPDX-License-Identifier: GPL-2.0-only
//! The simulated kernel: tasks, cgroups, CPUs, the default class and sched_ext, in virtual time.
//!
//! Owns: the order and the effects of all events of a run.
//! Does not: know workloads (a `Behavior` tells it what tasks do) or compute statistics.
//! Start at: `boot.rs` (builds a kernel), `event.rs` (its event loop), `schedule.rs` and `wake.rs`
//! (the paths that all tasks take), `ext.rs` (loaded schedulers).

#![cfg_attr(not(test), deny(clippy::float_arithmetic, clippy::iter_over_hash_type))]

pub mod abi;
pub mod behavior;
pub mod boot;
pub mod bpf;
mod cache_occupancy;
pub mod cgroup;
pub mod co_scheduling;
pub mod cpu;
mod cpuset;
mod default_class;
mod errno;
pub mod event;
mod exec;
pub mod ext;
pub mod flags;
mod hotplug;
mod insn_time;
pub mod kernel;
mod life;
pub mod lock;
pub mod metrics;
mod mirror;
mod prefetch;
mod rt;
mod schedule;
mod streams;
mod sys;
pub mod task;
mod tick;
mod wake;

pub use kernel::Kernel;

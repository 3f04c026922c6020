// SPDX-License-Identifier: GPL-2.0-only
//! The simulated kernel: tasks, cgroups, CPUs, the default class and sched_ext, in virtual time.
//!
//! Owns: the order and the effects of all events of a run.
//! Does not: know workloads (a `Behavior` tells it what tasks do) or compute statistics.
//! Start at: `kernel/boot.rs` (builds a kernel), `kernel/event.rs` (its event loop), `schedule.rs`
//! and `schedule/wake.rs` (the paths that all tasks take), `ext.rs` (loaded schedulers).
//!
//! ```text
//!   kernel     one run: all its state, boot, events in order of time, its end
//!   cpu        CPUs: their state, locks, caches, hotplug
//!   task       tasks: their table, life, steps, and the behaviour that gives the steps
//!   cgroup     cgroups: their table, cpusets, co-scheduling
//!   memory     regions of processes, and the nodes on which their pages lie
//!   schedule   scheduling passes, wake-ups, ticks, the default class and real time
//!   ext        sched_ext: the class whose policy is a loaded scheduler
//!   bpf        the parts of the kernel that BPF programs see and use
//!   metrics    the measurements of a run
//! ```

#![cfg_attr(not(test), deny(clippy::float_arithmetic, clippy::iter_over_hash_type))]

pub mod bpf;
pub mod cgroup;
pub mod cpu;
pub mod ext;
pub mod kernel;
pub mod memory;
pub mod metrics;
mod schedule;
pub mod task;

pub use bpf::{abi, flags};
pub use cgroup::co_scheduling;
pub use kernel::{Kernel, boot};
pub use schedule::numa;
pub use task::behavior;

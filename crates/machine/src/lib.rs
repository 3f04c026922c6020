// SPDX-License-Identifier: GPL-2.0-only
//! The simulated machine: its CPUs, the costs of everything, and the order of events.
//!
//! Owns: ids, CPU sets, topology, cost tables, the event queue, random streams, the stable hash.
//! Does not: know tasks or schedulers, open files, read a clock. Start at: [`Machine::resolve`].

#![cfg_attr(not(test), deny(clippy::float_arithmetic, clippy::iter_over_hash_type))]

pub mod cost;
pub mod cpumask;
pub mod event;
pub mod hash;
pub mod id;
mod machine;
pub mod prefetch;
mod reader;
pub mod rng;
pub mod topology;

pub use cost::{ByDistance, CostTable, Ratio};
pub use cpumask::CpuMask;
pub use event::EventQueue;
pub use id::{CgroupId, CoreId, CpuId, LlcId, Nanos, NodeId, TaskId};
pub use machine::{Machine, MachineError, NodeMatrix, NodeMemory, plural, presets};
pub use rng::Stream;
pub use topology::sysfs::SysfsReader;
pub use topology::{Distance, Topology, TopologyError};

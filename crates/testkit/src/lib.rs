// SPDX-License-Identifier: GPL-2.0-only
//! What the project's tests share: invariant checkers, the kernel's own objects and the published schedulers as tests.
//!
//! Owns: checks that hold of every simulation, scenarios. Does not: simulate.
//! Start at: `checks.rs`, `kernel_objects.rs`.

pub mod canary;
pub mod cases;
pub mod checks;
pub mod churn;
pub mod kernel_objects;
pub mod machines;
pub mod recorder;
pub mod scx_family;
pub mod shipped;
pub mod sim;
pub mod state;
pub mod whim;

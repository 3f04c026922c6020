// SPDX-License-Identifier: GPL-2.0-only
//! Shared code of the project's tests: invariant checkers, and the kernel's own objects and the
//! published schedulers as tests.
//!
//! Owns: checks that apply to every simulation, test scenarios. Does not: simulate.
//! Start at: `checks.rs`, `kernel_objects.rs`.

pub mod canary;
pub mod cases;
pub mod checks;
pub mod churn;
pub mod kernel_objects;
pub mod machines;
pub mod parallel;
pub mod recorder;
pub mod scx_family;
pub mod shipped;
pub mod sim;
pub mod state;
pub mod whim;

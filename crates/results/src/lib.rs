// SPDX-License-Identifier: GPL-2.0-only
//! Results on disk, and what follows from the results of two commands: did the second get worse?
//!
//! Owns: results folders (`folder.rs`), their Parquet files (`parquet.rs`), files that are complete
//! or absent (`atomic.rs`), the files that a command reads (`inputs.rs`), kept machine code
//! (`kept_code.rs`), the gate and the verdicts of `scxlab check`, their reports for CI.
//! Does not: make runs, print, know a flag.
//! Start at: `folder.rs` to read results, `check.rs` to compare them.

pub mod atomic;
pub mod check;
pub mod ci;
pub mod folder;
pub mod gate;
pub mod inputs;
pub mod kept_code;
pub mod matrix;
pub mod parquet;

// SPDX-License-Identifier: GPL-2.0-only
//! Reproduction of published tables: what each figure of a list thread would be, from mechanism,
//! beside what the thread printed, and how often the prediction was right.
//!
//! Owns: experiments (which machine, workload and scheduler each published figure is), the
//! prediction of figures from runs, scores.
//! Does not: keep runs (the caller passes a `RunStore`), or choose a number from a treated column.
//!
//! ```text
//!   published/*.toml --- published: tables, rows, figures
//!   experiments/*.toml - experiment: rules that give each figure its setup
//!                              |
//!                        plan: cells, the setups that they need, jobs
//!                              |
//!                        jobs: simulate, or take from the store
//!                              |
//!                        figure: a cell's prediction from its runs
//!                              |
//!                        score: signs, ranks, sizes -> report: table, JSON, Markdown
//!
//!   fit: plans of baseline figures, with each value of each fitted parameter's grid
//! ```

pub mod experiment;
pub mod figure;
pub mod fit;
pub mod job;
pub mod plan;
pub mod published;
pub mod report;
pub mod score;
mod shipped;
mod template;

use crate::input::InputError;
pub use shipped::{ThreadFiles, experiments, threads};

/// Reason why a table cannot be reproduced. The files of the experiment are at fault.
#[derive(Debug, thiserror::Error)]
pub enum ReproduceError {
    /// A mistake in an experiment or a file of published figures.
    #[error("{file}:{line}: {what}")]
    File { file: String, line: usize, what: String },
    #[error(transparent)]
    Input(#[from] InputError),
    #[error("unknown {kind} \"{name}\"; available: {available}")]
    Unknown { kind: &'static str, name: String, available: String },
}

/// Returns the line of a byte in a text, from 1.
fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()[..at.min(text.len())].iter().filter(|b| **b == b'\n').count() + 1
}

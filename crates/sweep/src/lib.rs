// SPDX-License-Identifier: GPL-2.0-only
//! Sweeps: every combination of schedulers, knobs, workloads, parameters, machines and seeds, each
//! simulated once and kept.
//!
//! Owns: the file of a sweep (`file.rs`), its cells and their keys (`plan.rs`), the result of a
//! cell (`cell.rs`), the store of finished cells (`store.rs`), the table of results (`table.rs`).
//! Does not: parse flags, print, or distribute work to other machines.
//! Start at: `plan.rs`, then `run.rs`.

pub mod cell;
mod exclude;
pub mod file;
pub mod plan;
pub mod run;
pub mod store;
pub mod table;
pub mod value;

use std::io;
use std::path::PathBuf;

use scxlab_lab::input::InputError;
use scxlab_lab::prepare::PrepareError;
use scxlab_lab::session::SessionError;
use scxlab_results::parquet::ParquetError;

/// Reason why a sweep cannot begin, or could not continue. A cell whose scheduler is ejected is no
/// error, but a result.
#[derive(Debug, thiserror::Error)]
pub enum SweepError {
    /// The file of the sweep is wrong.
    #[error("{file}: {why}")]
    File { file: String, why: String },
    /// An argument that the sweep names cannot be resolved.
    #[error("{file}: {error}")]
    Input { file: String, error: Box<InputError> },
    /// A scheduler of the sweep cannot be prepared for one of its machines.
    #[error("{file}: on machine \"{machine}\": {error}")]
    Prepare { file: String, machine: String, error: Box<PrepareError> },
    #[error("{file}: {error}")]
    Session { file: String, error: Box<SessionError> },
    #[error("{}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    /// A file of the store could not be written. All earlier batches are in the store.
    #[error("{} cannot be written: {error}; finished cells stay in the store, and the same command continues", path.display())]
    Write { path: PathBuf, error: io::Error },
    #[error("{}: another scxlab is writing its results there", path.display())]
    Busy { path: PathBuf },
    #[error("{}: {why}", path.display())]
    NoStore { path: PathBuf, why: String },
    #[error("{}: {error}", path.display())]
    Damaged { path: PathBuf, error: ParquetError },
    /// The store has cells of another simulator, whose results may differ from this one's.
    #[error(
        "{}: its cells are of scxlab {found}, and this is {this}; results of two versions must not be mixed: give another folder, or the other scxlab",
        path.display()
    )]
    OtherVersion { path: PathBuf, found: String, this: String },
    #[error("threads for {threads} cells at a time could not be started: {why}")]
    Threads { threads: usize, why: String },
    /// This host lacks something that the cell needs; the cell itself may be right.
    #[error("{cell}: {why}")]
    Host { cell: String, why: String },
    #[error("interrupted: {why}; finished cells are kept, and the same command continues")]
    Interrupted { why: String },
}

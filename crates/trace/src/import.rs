// SPDX-License-Identifier: GPL-2.0-only
//! Importers: the events of a trace file, as a run of scxlab would have emitted them.
//!
//! Owns: the recognition of the format, what becomes of each event of a file, what a file lacks.
//! Does not: open files, guess what a file does not hold.
//!
//! ```text
//! perfetto.rs, text.rs    events as the file has them, with thread ids       raw.rs
//!         |
//!     merge.rs            one order of time from the orders of the CPUs
//!         |
//!     tasks.rs            tasks instead of thread ids, names                 -> Sink
//! ```
//!
//! Memory: the merge holds at most about 220 MB of events; beyond it, only tasks, CPUs and cgroups
//! take memory.

mod driver;
mod imported;
mod input;
mod merge;
mod perfetto;
mod raw;
mod tasks;
mod text;

use std::io::{self, Read};

use thiserror::Error;

use crate::sink::Sink;
use driver::Driver;
pub use imported::{Clock, End, Format, Imported, Unknown};
use input::{Input, Kind};

/// The reason why a file cannot be imported at all. A file that is damaged behind its start can be:
/// [`Imported`] tells.
#[derive(Debug, Error)]
pub enum ImportError {
    /// The file cannot be read, or the sink cannot be written.
    #[error("{file}: {error}")]
    Io {
        file: String,
        #[source]
        error: io::Error,
    },
    /// The file has no bytes.
    #[error("{file} is empty")]
    Empty { file: String },
    /// The format is known, and another program must convert it.
    #[error("{file} is {what}; {advice}")]
    Convert {
        file: String,
        /// The format, for example "the binary file of perf record".
        what: &'static str,
        /// The command that makes a file of a format that can be read.
        advice: &'static str,
    },
    /// The format is not known.
    #[error(
        "{file} is no trace that scxlab reads: a Perfetto trace, or the text of perf script, \
         trace-cmd report or ftrace"
    )]
    NoTrace { file: String },
}

/// Reads a trace from `input` and passes its events to `sink`, in order of time. Time 0 is the time
/// of the first event. `file` is only a name for messages.
///
/// Each task of the file has a `TaskId` of its own, which no later task reuses. Names and
/// attributes are those at the time of the event. The sink is finished at the end.
///
/// ```
/// use scxlab_trace::import::import;
/// use scxlab_trace::VecSink;
/// let error = import("a.txt", &b"no trace"[..], &mut VecSink::default()).unwrap_err();
/// assert!(error.to_string().starts_with("a.txt is no trace"));
/// ```
pub fn import(file: &str, input: impl Read, sink: &mut dyn Sink) -> Result<Imported, ImportError> {
    let failed = |error| ImportError::Io { file: file.to_owned(), error };
    let mut input = Input::open(input).map_err(failed)?;
    let file = || file.to_owned();
    let format = match input.kind() {
        Kind::Empty => return Err(ImportError::Empty { file: file() }),
        Kind::Convert { what, advice } => {
            return Err(ImportError::Convert { file: file(), what, advice });
        }
        Kind::Trace(format) => format,
        Kind::Unknown => return Err(ImportError::NoTrace { file: file() }),
    };
    let mut driver = Driver::new(format, sink);
    match format {
        Format::Perfetto => perfetto::read(&mut input, &mut driver).map_err(failed)?,
        Format::PerfScript | Format::TraceCmd | Format::Ftrace => {
            text::read(&mut input, &mut driver).map_err(failed)?;
        }
    }
    if input.is_broken() {
        driver.ends(End::Compressed);
    }
    driver.finish().map_err(failed)
}

#[cfg(test)]
mod tests;

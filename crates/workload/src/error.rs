// SPDX-License-Identifier: GPL-2.0-only
//! The errors in a workload's input, with their place in the file.
//!
//! Owns: the messages. Each message says what would be correct.

use std::fmt;

use scxlab_machine::plural;

/// A place in an input: file, line and column (from 1). `line` is 0 for the file as a whole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourcePlace {
    pub file: String,
    pub line: u32,
    pub col: u32,
}

impl SourcePlace {
    /// Returns the place of a whole file.
    pub fn file(name: &str) -> Self {
        SourcePlace { file: name.to_owned(), line: 0, col: 0 }
    }

    /// Returns the place of byte `offset` of `text`; columns count characters.
    pub fn in_text(file: &str, text: &str, offset: usize) -> Self {
        let mut offset = offset.min(text.len());
        while !text.is_char_boundary(offset) {
            offset -= 1;
        }
        let before = &text[..offset];
        let line = before.bytes().filter(|&b| b == b'\n').count() + 1;
        let col = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        let clamp = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        SourcePlace { file: file.to_owned(), line: clamp(line), col: clamp(col) }
    }
}

impl fmt::Display for SourcePlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => f.write_str(&self.file),
            line => write!(f, "{}:{}:{}", self.file, line, self.col),
        }
    }
}

/// The reason why a workload was refused. In every case the input is at fault.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkloadError {
    #[error("{at}: {found} where {expected} should be")]
    Syntax { at: SourcePlace, found: String, expected: &'static str },
    #[error("{at}: unknown key \"{key}\" in {within}{}", listing("; known keys are ", candidates))]
    UnknownKey { at: SourcePlace, key: String, within: String, candidates: Vec<String> },
    #[error("{at}: \"{key}\" is {found}, must be {expected}")]
    WrongType { at: SourcePlace, key: String, found: &'static str, expected: &'static str },
    #[error("{at}: \"{key}\" is {value}, must be {allowed}")]
    OutOfRange { at: SourcePlace, key: String, value: String, allowed: String },
    #[error("{at}: {kind} \"{name}\" does not exist{}", listing("; there are ", candidates))]
    UnknownName { at: SourcePlace, kind: &'static str, name: String, candidates: Vec<String> },
    /// A violated rule of the grammar or of the ops that has no variant of its own.
    #[error("{at}: {problem}")]
    Invalid { at: SourcePlace, problem: String },
    #[error("{at}: {what} {value} exceeds the limit of {max}")]
    Limit { at: SourcePlace, what: &'static str, value: u64, max: u64 },
    #[error("{at}: {message}")]
    Document { at: SourcePlace, message: String },
    #[error("{at}: the workload has no thread to run; it needs a thread with 1 instance or more")]
    NoThreads { at: SourcePlace },
    #[error("unknown workload \"{name}\"{} and files", listing("; there are ", candidates))]
    UnknownGenerator { name: String, candidates: Vec<String> },
    #[error(
        "workload {generator}: unknown parameter \"{param}\"{}",
        listing("; it takes ", candidates)
    )]
    UnknownParam { generator: String, param: String, candidates: Vec<String> },
    #[error("workload {generator}: {param} is \"{value}\", must be {expected}")]
    BadParam { generator: String, param: String, value: String, expected: String },
    #[error("{at}: thread \"{thread}\" names CPU {cpu}, but the machine has {} (0 to {})",
        plural(nr_cpus, "CPU"), nr_cpus.saturating_sub(1))]
    NoSuchCpu { at: SourcePlace, thread: String, cpu: u32, nr_cpus: u32 },
    /// An error in the program of a guest. The CPUs that it names are the guest's.
    #[error("guest \"{guest}\": {error}")]
    InGuest { guest: String, error: Box<WorkloadError> },
}

/// Returns `"; known keys are a, b, c"`, or nothing for an empty list.
fn listing(prefix: &str, names: &[String]) -> String {
    if names.is_empty() { String::new() } else { format!("{prefix}{}", names.join(", ")) }
}

// SPDX-License-Identifier: GPL-2.0-only
//! Workloads: the behaviour of a run's tasks as programs of ops.
//!
//! Owns: the op vocabulary (`program`), its text forms, rt-app's files (`rtapp`), the benchmark
//! models (`benchmarks`), the executor that runs a program on the simulated kernel (`exec`), and
//! the one that runs it with real threads (`native`).
//! Does not: open workload files (callers pass text), schedule, or know a machine's topology. Only
//! `native` reads clocks.

pub mod benchmarks;
pub mod compile;
pub mod error;
pub mod exec;
#[cfg(feature = "native")]
pub mod native;
pub mod program;
pub mod rtapp;
pub mod timers;

pub use benchmarks::{WorkloadArg, check_file_parameters, parse_workload_arg};
pub use compile::NodeInfo;
pub use error::{SourcePlace, WorkloadError};
pub use exec::{ExecConfig, Executor, Perturb, RegionPages, SyscallCosts, behavior};
pub use program::Program;

/// Parses a workload file: rt-app's JSON, or scxlab's own TOML or JSON. The text and the file's
/// extension decide which of these it is.
///
/// `name` appears in messages. Without its folder and extension, it also becomes the program's
/// name.
///
/// ```
/// let text = r#"{ "tasks": { "t": { "loop": 2, "run": 1000, "sleep": 500 } } }"#;
/// let program = scxlab_workload::load("demo.json", text).unwrap();
/// assert_eq!(program.name, "demo");
/// let text = "[[thread]]\nname = 'spinner'\nops = [{ compute = '1ms' }]";
/// assert_eq!(scxlab_workload::load("a/b.toml", text).unwrap().threads.len(), 1);
/// ```
pub fn load(name: &str, text: &str) -> Result<Program, WorkloadError> {
    load_with(name, text, &|_| Err("this workload cannot name files".to_owned()))
}

/// Parses a workload file as `load` does. `read` returns the text of the files that its guests
/// name, relative to the folder in `name`.
pub fn load_with(
    name: &str,
    text: &str,
    read: &program::guest::ReadText<'_>,
) -> Result<Program, WorkloadError> {
    let mut program = parse(name, text)?;
    program.resolve_guests(read)?;
    compile::check(&program)?;
    program.notes.extend(compile::undeclared_cgroups(&program));
    Ok(program)
}

/// Parses a workload file without checks of its meaning.
fn parse(name: &str, text: &str) -> Result<Program, WorkloadError> {
    let first = text.trim_start();
    if name.ends_with(".json") && first.starts_with('[') {
        let at = SourcePlace::in_text(name, text, text.len() - first.len());
        let expected = "an object ({...})";
        return Err(WorkloadError::Syntax { at, found: "an array".to_owned(), expected });
    }
    if first.strip_prefix('{').is_some_and(|rest| rest.trim_start().starts_with("\"traceEvents\""))
    {
        let at = SourcePlace::in_text(name, text, text.len() - first.len());
        let found = "a trace in Chrome's JSON format, which has no wake-ups,".to_owned();
        let expected = "a workload or a recording of scxlab record, perf sched or Perfetto";
        return Err(WorkloadError::Syntax { at, found, expected });
    }
    let mut program = if looks_like_rtapp(name, text) {
        rtapp::parse(name, text)?
    } else if first.starts_with('{') {
        program::from_json(name, text)?
    } else {
        program::from_toml(name, text)?
    };
    if program.name.is_empty() {
        program.name = stem(name).to_owned();
    }
    Ok(program)
}

/// Returns whether a file goes to rt-app's parser. The top level of an rt-app file has `tasks`,
/// `global` or `resources`, where scxlab's own form has `thread`. A JSON object of neither form
/// goes to rt-app's parser, too, because the messages of that parser carry line and column.
fn looks_like_rtapp(name: &str, text: &str) -> bool {
    let first = text.trim_start_matches('\u{feff}').trim_start();
    let is_object = first.starts_with('{') || first.starts_with("/*") || first.starts_with("//");
    is_object && !name.ends_with(".toml") && !program::is_our_json(text)
}

/// Returns a file's name without folder and extension.
fn stem(name: &str) -> &str {
    let base = name.rsplit(['/', '\\']).next().unwrap_or(name);
    base.rsplit_once('.').map_or(base, |(stem, _)| if stem.is_empty() { base } else { stem })
}

#[cfg(test)]
mod tests;

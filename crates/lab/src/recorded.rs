// SPDX-License-Identifier: GPL-2.0-only
//! Recordings as workloads: a trace file behind `-w`, and the machine in it.
//!
//! Owns: the parameters behind a file's name, and what a user is told about a recording.
//! Does not: open files, or interpret events (`scxlab_recording` does).

use scxlab_machine::Machine;
use scxlab_recording::{History, MAX_STEPS, Options, Recorder, Replay};
use scxlab_trace::import::{ImportError, Imported, import};
use scxlab_trace::{Event, Names, Sink};
use scxlab_workload::Program;

/// A recording, and the workload that it became.
pub struct Recorded {
    /// The machine of the recording.
    pub machine: Machine,
    /// Whether the file has its machine. If not, `machine` has as many CPUs as the file, without
    /// siblings, and the default costs.
    pub knows_machine: bool,
    /// Contents of the file, and what it lacks.
    pub imported: Imported,
    /// The history of its tasks.
    pub history: History,
    /// The program and the meanings of waits.
    pub replay: Replay,
}

/// Reason why a trace file is no workload.
#[derive(Debug, thiserror::Error)]
pub enum RecordedError {
    #[error(transparent)]
    Import(#[from] ImportError),
    #[error("{file}: {error}")]
    Infer { file: String, error: scxlab_recording::InferError },
    #[error("{file}: the machine in the trace: {error}")]
    Machine { file: String, error: Box<scxlab_machine::MachineError> },
    #[error("{file} does not hold its machine; name one (-m)")]
    NoMachine { file: String },
    #[error(
        "{file} has more than {MAX_STEPS} system calls and waits; record for a shorter time, or \
         fewer tasks"
    )]
    TooLong { file: String },
    #[error("{file} has no context switches (sched_switch), so that no workload can be made of it")]
    NoSwitches { file: String },
    #[error(
        "{file}: \"{text}\" is no parameter of a recording; it takes repeat=N and scale=N, with N from 1 to {max}"
    )]
    Parameter { file: String, text: String, max: u32 },
}

/// Largest value of `repeat` and `scale`.
const TIMES_MAX: u32 = 1_000;

/// The parameters behind the name of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameters {
    /// Number of recordings that the workload lasts for.
    pub repeat: u32,
    /// Number of copies of the recorded tasks.
    pub scale: u32,
}

impl Parameters {
    /// Parses `key=value` pairs, which commas separate.
    pub fn parse(file: &str, text: &str) -> Result<Parameters, RecordedError> {
        let mut parameters = Parameters { repeat: 1, scale: 1 };
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let wrong = || RecordedError::Parameter {
                file: file.to_owned(),
                text: pair.to_owned(),
                max: TIMES_MAX,
            };
            let (key, value) = pair.split_once('=').ok_or_else(wrong)?;
            let number = value.trim().trim_end_matches('x').parse().ok();
            let number = number.filter(|n| (1..=TIMES_MAX).contains(n)).ok_or_else(wrong)?;
            match key.trim() {
                "repeat" => parameters.repeat = number,
                "scale" => parameters.scale = number,
                _ => return Err(wrong()),
            }
        }
        Ok(parameters)
    }

    fn apply(self, program: &mut Program) {
        scxlab_recording::scale(program, self.scale);
        scxlab_recording::repeat(program, self.repeat.into());
    }
}

impl RecordedError {
    /// Whether the file may be something else than a trace.
    pub fn is_no_trace(&self) -> bool {
        let RecordedError::Import(error) = self else { return false };
        matches!(error, ImportError::NoTrace { .. } | ImportError::Empty { .. })
    }
}

/// Reads a recording.
pub fn read(file: &str, bytes: &[u8], parameters: Parameters) -> Result<Recorded, RecordedError> {
    let imported = import(file, bytes, &mut Nothing)?;
    if imported.events.switches == 0 {
        return Err(RecordedError::NoSwitches { file: file.to_owned() });
    }
    let known = machine_in(file, &imported)?;
    let knows_machine = known.is_some();
    let machine = match known {
        Some(machine) => machine,
        None => plain_machine(file, &imported)?,
    };
    let mut recorder = Recorder::new(&machine);
    import(file, bytes, &mut recorder)?;
    if recorder.is_full() {
        return Err(RecordedError::TooLong { file: file.to_owned() });
    }
    let history = recorder.history(Some(imported.length));
    let options = Options { name: name(file) };
    let replay = scxlab_recording::infer(&history, &machine, &options);
    let mut replay =
        replay.map_err(|error| RecordedError::Infer { file: file.to_owned(), error })?;
    parameters.apply(&mut replay.program);
    if !knows_machine {
        replay.program.notes.push(format!(
            "{file} does not hold its machine: its {} CPUs count as equal cores with the default costs",
            machine.topology.nr_cpus()
        ));
    }
    let faults = imported.damage().into_iter().chain(imported.missing());
    replay.program.notes.extend(faults.map(|text| format!("{file}: {text}")));
    Ok(Recorded { machine, knows_machine, imported, history, replay })
}

/// Returns the machine that a trace file holds.
pub fn machine(file: &str, bytes: &[u8]) -> Result<Machine, RecordedError> {
    let imported = import(file, bytes, &mut Nothing)?;
    machine_in(file, &imported)?.ok_or_else(|| RecordedError::NoMachine { file: file.to_owned() })
}

fn machine_in(file: &str, imported: &Imported) -> Result<Option<Machine>, RecordedError> {
    let parse = |text: &String| Machine::from_toml(file, text);
    imported
        .machine
        .as_ref()
        .map(parse)
        .transpose()
        .map_err(|error| RecordedError::Machine { file: file.to_owned(), error: Box::new(error) })
}

/// Returns a machine with as many CPUs as the file has.
fn plain_machine(file: &str, imported: &Imported) -> Result<Machine, RecordedError> {
    let seen = imported.cpus.last().map_or(1, |cpu| cpu.0.saturating_add(1));
    let cpus = imported.nr_cpus.unwrap_or(0).max(seen);
    Machine::from_spec(&format!("1n{cpus}c1t"))
        .map_err(|error| RecordedError::Machine { file: file.to_owned(), error: Box::new(error) })
}

/// Returns the file's name without folder and extension.
fn name(file: &str) -> String {
    let base = file.rsplit('/').next().unwrap_or(file);
    base.rsplit_once('.').map_or(base, |(stem, _)| if stem.is_empty() { base } else { stem }).into()
}

/// A sink that keeps nothing.
struct Nothing;

impl Sink for Nothing {
    fn event(&mut self, _: &Event, _: &Names) {}

    fn finish(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_are_parsed_and_refused() {
        let parse = |text| Parameters::parse("a.pftrace", text);
        assert_eq!(parse("").unwrap(), Parameters { repeat: 1, scale: 1 });
        assert_eq!(parse("repeat=3,scale=2x").unwrap(), Parameters { repeat: 3, scale: 2 });
        for wrong in ["scale", "scale=0", "scale=1001", "scal=2", "scale=2y"] {
            let error = parse(wrong).unwrap_err().to_string();
            assert!(error.contains(wrong) && error.contains("repeat=N"), "{error}");
        }
    }

    #[test]
    fn text_is_no_recording() {
        let parameters = Parameters { repeat: 1, scale: 1 };
        for other in [&b"[[thread]]\nname = 'x'"[..], b""] {
            let error = read("a", other, parameters).err().unwrap();
            assert!(error.is_no_trace() && error.to_string().starts_with("a is "), "{error}");
        }
    }
}

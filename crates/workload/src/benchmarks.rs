// SPDX-License-Identifier: GPL-2.0-only
//! Benchmark models: generators of programs with parameters, in the form `NAME,key=value,...`.
//!
//! Owns: the registry and the parsing of parameters. Each model's file says what it models and
//! leaves out.
//! Does not: contain results. A model defines what threads do; the simulation produces the times.

use std::collections::BTreeSet;

use crate::error::{SourcePlace, WorkloadError};
use crate::program::region::ByteSize;
use crate::program::{GuestsOfLine, Op, Program, TimeSpan};

mod autonuma;
mod chat;
mod dbench;
mod ebizzy;
mod hackbench;
mod hogs;
mod kernbench;
mod lock_holder;
mod make;
mod mkbench;
mod pingpong;
mod reflex;
mod schbench;
mod sleepers;
mod specjbb;
mod spin_barrier;
mod sysbench_cpu;
mod sysbench_memory;
mod sysbench_threads;

/// A generator of a workload from parameters.
#[derive(Clone, Copy)]
pub struct Generator {
    pub name: &'static str,
    /// Description in one sentence.
    pub doc: &'static str,
    /// Name of one unit of the program's work, in the singular.
    pub unit: &'static str,
    pub params: &'static [Param],
    build: fn(&Params) -> Result<Program, WorkloadError>,
}

/// One parameter of a generator.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    pub name: &'static str,
    pub default: &'static str,
    pub doc: &'static str,
}

const fn param(name: &'static str, default: &'static str, doc: &'static str) -> Param {
    Param { name, default, doc }
}

/// Returns all generators, sorted by name.
pub fn list() -> &'static [Generator] {
    &[
        chat::GENERATOR,
        dbench::GENERATOR,
        ebizzy::GENERATOR,
        hackbench::GENERATOR,
        hogs::GENERATOR,
        kernbench::GENERATOR,
        lock_holder::GENERATOR,
        mkbench::GENERATOR,
        autonuma::NUMA01,
        autonuma::NUMA01_THREAD_ALLOC,
        autonuma::NUMA02,
        autonuma::NUMA02_SMT,
        pingpong::GENERATOR,
        reflex::GENERATOR,
        schbench::GENERATOR,
        sleepers::GENERATOR,
        specjbb::GENERATOR,
        spin_barrier::GENERATOR,
        sysbench_cpu::GENERATOR,
        sysbench_memory::GENERATOR,
        sysbench_threads::GENERATOR,
    ]
}

/// The meaning of a `-w` argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WorkloadArg {
    /// A path. The caller reads the file, gives its text to `load`, and puts the program into the
    /// guests (`Program::into_guests`).
    File {
        path: String,
        guests: Option<Box<GuestsOfLine>>,
    },
    Program(Box<Program>),
    /// An external command and its arguments. It needs a live kernel; the simulator cannot run it.
    Command(Vec<String>),
}

/// Prefix of a `-w` argument that is a command.
const COMMAND: &str = "cmd:";

/// Parses a workload argument: a command (`cmd:` and words quoted as in a shell, without a shell's
/// expansions), a path (it contains a `/`, or ends in `.json` or `.toml`) or a generator. The keys
/// `vms`, `vcpus` and `vm.*` put a file's or a generator's program into guests. A path ends where
/// the first `,vms=` or `,vcpus=` begins.
///
/// ```
/// use scxlab_workload::{WorkloadArg, parse_workload_arg};
///
/// let WorkloadArg::Program(p) = parse_workload_arg("sleepers,tasks=8").unwrap() else { panic!() };
/// assert_eq!(p.threads[0].instances, 8);
/// let command = parse_workload_arg("cmd:perf bench 'sched pipe'").unwrap();
/// let WorkloadArg::Command(words) = command else { panic!() };
/// assert_eq!(words, ["perf", "bench", "sched pipe"]);
/// assert!(parse_workload_arg("sleeper").unwrap_err().to_string().contains("sleepers"));
/// ```
pub fn parse_workload_arg(arg: &str) -> Result<WorkloadArg, WorkloadError> {
    parse(arg, false)
}

/// Checks the parameters behind the name of a workload file: those of its guests.
pub fn check_file_parameters(file: &str, text: &str) -> Result<(), WorkloadError> {
    GuestsOfLine::parse(file, text.split(',')).map(drop)
}

/// Parses the workload argument of a guest.
pub(crate) fn parse_guest_workload(arg: &str) -> Result<WorkloadArg, WorkloadError> {
    parse(arg, true)
}

fn parse(arg: &str, in_guest: bool) -> Result<WorkloadArg, WorkloadError> {
    let in_guests = [",vms=", ",vcpus="].iter().filter_map(|key| arg.find(key)).min();
    if let Some(line) = arg.strip_prefix(COMMAND) {
        if in_guests.is_some() {
            let problem = "a command cannot run in guests (vms, vcpus); they run ops only";
            let at = SourcePlace::file(arg);
            return Err(WorkloadError::Invalid { at, problem: problem.to_owned() });
        }
        return command(line).map(WorkloadArg::Command);
    }
    let (path, keys) = arg.split_at(in_guests.unwrap_or(arg.len()));
    let lower = path.to_ascii_lowercase();
    if path.contains('/') || lower.ends_with(".json") || lower.ends_with(".toml") {
        let guests = GuestsOfLine::parse(path, keys.split(',').skip(1))?.map(Box::new);
        return Ok(WorkloadArg::File { path: path.to_owned(), guests });
    }
    let (name, rest) = arg.split_once(',').map_or((arg, None), |(n, r)| (n, Some(r)));
    let Some(generator) = list().iter().find(|g| g.name == name.trim()) else {
        return Err(WorkloadError::UnknownGenerator {
            name: name.to_owned(),
            candidates: list().iter().map(|g| g.name.to_owned()).collect(),
        });
    };
    let pairs = rest.into_iter().flat_map(|r| r.split(',')).filter(|p| !p.trim().is_empty());
    let pairs: Vec<&str> = pairs.collect();
    let key = |pair: &str| pair.split_once('=').map_or(pair, |(key, _)| key).trim().to_owned();
    let mut known = BTreeSet::new();
    if let Some(twice) = pairs.iter().find(|pair| !known.insert(key(pair))) {
        let at = SourcePlace::file(generator.name);
        let problem = format!("parameter \"{}\" is given twice", key(twice));
        return Err(WorkloadError::Invalid { at, problem });
    }
    let (of_guests, own): (Vec<&str>, Vec<&str>) =
        pairs.into_iter().partition(|p| GuestsOfLine::owns(p));
    let guests = GuestsOfLine::parse(generator.name, of_guests)?;
    let program = generator.generate(own, in_guest || guests.is_some())?;
    let program = match guests {
        Some(guests) => program.into_guests(guests)?,
        None => program,
    };
    Ok(WorkloadArg::Program(Box::new(program)))
}

/// Splits a command into words.
fn command(line: &str) -> Result<Vec<String>, WorkloadError> {
    let invalid = |problem: &str| WorkloadError::Invalid {
        at: SourcePlace::file(&format!("{COMMAND}{line}")),
        problem: problem.to_owned(),
    };
    match shlex::split(line) {
        None => Err(invalid("a quote without its end, or a backslash at the end")),
        Some(words) if words.is_empty() => Err(invalid("a command is needed after the colon")),
        Some(words) => Ok(words),
    }
}

impl Generator {
    /// Builds the program from `key=value` pairs. `in_guest`: whether a guest will run it.
    pub fn generate<'a>(
        &self,
        pairs: impl IntoIterator<Item = &'a str>,
        in_guest: bool,
    ) -> Result<Program, WorkloadError> {
        let mut params = Params {
            generator: self.name,
            in_guest,
            values: self.params.iter().map(|p| (p.name, p.default.to_owned())).collect(),
        };
        for pair in pairs {
            params.set(pair)?;
        }
        let mut program = (self.build)(&params)?;
        program.name = self.name.to_owned();
        program.doc = self.doc.to_owned();
        program.unit = self.unit.to_owned();
        crate::compile::check(&program)?;
        Ok(program)
    }
}

/// Values of a generator's parameters, by name.
struct Params {
    generator: &'static str,
    in_guest: bool,
    values: Vec<(&'static str, String)>,
}

impl Params {
    fn set(&mut self, pair: &str) -> Result<(), WorkloadError> {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        let candidates = || self.values.iter().map(|(name, _)| (*name).to_owned()).collect();
        let Some(slot) = self.values.iter().position(|(name, _)| *name == key.trim()) else {
            return Err(WorkloadError::UnknownParam {
                generator: self.generator.to_owned(),
                param: key.to_owned(),
                candidates: candidates(),
            });
        };
        self.values[slot].1 = value.trim().to_owned();
        Ok(())
    }

    /// Returns work of the kernel under one of its spin locks; nothing if there is no work. In a
    /// guest, `spin_lock` is a lock of its kernel. Elsewhere, `spin_lock` is a lock of user space,
    /// whose holder can be preempted, as a kernel's cannot. The work is therefore done without the
    /// lock there.
    fn under_lock(&self, lock: &str, work: TimeSpan) -> Vec<Op> {
        let work = (work > TimeSpan(0)).then(|| Op::Compute(work.into()));
        match (work, self.in_guest) {
            (None, _) => Vec::new(),
            (Some(work), false) => vec![work],
            (Some(work), true) => {
                vec![Op::SpinLock(lock.to_owned()), work, Op::SpinUnlock(lock.to_owned())]
            }
        }
    }

    fn text(&self, name: &str) -> &str {
        let found = self.values.iter().find(|(n, _)| *n == name);
        found.map_or("", |(_, value)| value)
    }

    fn bad(&self, name: &str, expected: impl Into<String>) -> WorkloadError {
        WorkloadError::BadParam {
            generator: self.generator.to_owned(),
            param: name.to_owned(),
            value: self.text(name).to_owned(),
            expected: expected.into(),
        }
    }

    fn number(&self, name: &str, min: u32, max: u32) -> Result<u32, WorkloadError> {
        let value = self.text(name).parse().ok().filter(|n| (min..=max).contains(n));
        value.ok_or_else(|| self.bad(name, format!("a whole number from {min} to {max}")))
    }

    fn time(&self, name: &str) -> Result<TimeSpan, WorkloadError> {
        self.text(name).parse().map_err(|_| self.bad(name, "a time such as 250us, 4ms or 10s"))
    }

    /// Parses a size, as of a region.
    fn size(&self, name: &str, min: u64, max: u64) -> Result<u64, WorkloadError> {
        let size = self.text(name).parse().ok().map(|ByteSize(bytes)| bytes);
        let (from, to) = (ByteSize(min), ByteSize(max));
        let in_range = size.filter(|bytes| (min..=max).contains(bytes));
        in_range.ok_or_else(|| self.bad(name, format!("a size from {from} to {to}, such as 64MiB")))
    }

    /// Parses a time, or `none`.
    fn maybe_time(&self, name: &str) -> Result<Option<TimeSpan>, WorkloadError> {
        match self.text(name) {
            "none" => Ok(None),
            _ => match self.time(name)? {
                TimeSpan(0) => Err(self.bad(name, "a time above 0, or none")),
                time => Ok(Some(time)),
            },
        }
    }

    /// Parses one of the given words and returns its index.
    fn word(&self, name: &str, words: &[&str]) -> Result<usize, WorkloadError> {
        let found = words.iter().position(|w| *w == self.text(name));
        found.ok_or_else(|| self.bad(name, format!("one of {}", words.join(", "))))
    }

    /// Parses numbers separated by colons; the empty text gives the empty list.
    fn numbers(&self, name: &str, min: i64, max: i64) -> Result<Vec<i64>, WorkloadError> {
        let text = self.text(name);
        if text.is_empty() {
            return Ok(Vec::new());
        }
        let parse = |part: &str| part.parse().ok().filter(|n| (min..=max).contains(n));
        let all: Option<Vec<i64>> = text.split(':').map(parse).collect();
        all.ok_or_else(|| {
            self.bad(name, format!("whole numbers from {min} to {max}, separated by colons"))
        })
    }
}

#[cfg(test)]
mod tests;

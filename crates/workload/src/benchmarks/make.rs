// SPDX-License-Identifier: GPL-2.0-only
//! Parallel builds of a program in C: the processes that `make -jN` starts. `kernbench` and
//! `mkbench` are such builds with different parameters.
//!
//! Models: a `make` process reads its makefiles, and keeps up to `jobs` files in work: it forks one
//! `gcc` per file and waits for any of them. `gcc` executes the driver, which runs the compiler
//! `cc1` and then the assembler `as`, each in a process of its own. Whoever starts a process sleeps
//! until that process has called `execve`, as after a `vfork`. Two files of sixteen are not in
//! the page cache. When all files are done, `make` runs the linker, which writes its result to the
//! disk. `cc1` has 15 sixteenths of a file's work, `as` the rest. Once per millisecond of its work,
//! `cc1` does work of the kernel under a lock of the zone, as page faults do.
//! Leaves out: recursive makes with a link step each, the shell between `make` and `gcc`, `-pipe`
//! (`as` would read while `cc1` still writes), the page cache's size, the zone's lock outside
//! guests (`Params::under_lock`).

use std::collections::BTreeSet;

use super::Params;
use crate::error::WorkloadError;
use crate::program::{Op, Program, SemaphoreDef, ThreadTemplate, TimeSpan};

/// Work of files, in per cent of the mean: sixteen equally frequent lengths. They are the middles
/// of the sixteenths of a log-normal distribution with sigma 0.75, whose longest file takes sixteen
/// times as long as its shortest. The shape is an estimate.
const LENGTHS: [u64; 16] = [19, 29, 36, 43, 50, 57, 65, 73, 82, 93, 105, 120, 139, 165, 209, 315];

/// Number of the sixteen lengths whose files are read from the disk: the first and the ninth.
const COLD: [usize; 2] = [0, 8];

/// Semaphore that a new process posts after its `execve`. All that start processes wait for it; the
/// first of them need not be the one whose process it was.
const EXECUTES: &str = "executes";

/// Bytes of a source file with those of its headers that no other file has read.
const SOURCE_BYTES: u64 = 64 << 10;

/// Bytes that the linker writes.
const IMAGE_BYTES: u64 = 4 << 20;

/// Work of `cc1` from one use of the zone's lock to the next, in nanoseconds.
const LOCK_PERIOD: u64 = 1_000_000;

/// Builds that run side by side.
pub(super) struct Build {
    pub makes: u32,
    pub jobs: u32,
    pub files: u32,
    pub work: TimeSpan,
    pub parse: TimeSpan,
    pub link: TimeSpan,
    /// Work of the kernel, under its lock in guests.
    pub locked: Vec<Op>,
    pub footprint: u64,
    pub duration: Option<TimeSpan>,
}

impl Build {
    /// Reads the parameters that all generators of builds have.
    pub(super) fn new(params: &Params, makes: u32) -> Result<Build, WorkloadError> {
        let work = params.time("work")?;
        if work.0 < 16 {
            return Err(params.bad("work", "a time of 16ns or more"));
        }
        Ok(Build {
            makes,
            jobs: params.number("jobs", 1, 1_000)?,
            files: params.number("files", 1, 10_000)?,
            work,
            parse: params.time("parse")?,
            link: params.time("link")?,
            locked: params.under_lock("zone", params.time("hold")?),
            footprint: u64::from(params.number("footprint", 0, 1 << 20)?) * 1024,
            duration: params.maybe_time("duration")?,
        })
    }

    pub(super) fn program(&self) -> Program {
        let used: BTreeSet<usize> = (0..self.files).map(length_of).collect();
        let makes = 0..self.makes;
        let slots = |make| SemaphoreDef { name: slots(make), value: self.jobs };
        let mut threads: Vec<_> = makes.clone().map(|make| self.make(make)).collect();
        for make in makes.clone() {
            threads.extend(used.iter().map(|&length| driver(make, length)));
        }
        threads.extend(used.iter().map(|&length| self.compiler(length)));
        threads.extend([self.assembler(), self.linker()]);
        Program {
            duration: self.duration,
            semaphores: makes.map(slots).collect(),
            threads,
            ..Program::default()
        }
    }

    fn make(&self, make: u32) -> ThreadTemplate {
        let start = |file| {
            let [fork, started] = start(driver_name(make, length_of(file)));
            [Op::SemWait(slots(make)), fork, started]
        };
        let mut ops = vec![Op::Compute(self.parse.into())];
        ops.extend((0..self.files).flat_map(start));
        ops.push(Op::Join);
        ops.extend(self::start("ld".into()));
        ops.push(Op::Join);
        ThreadTemplate::new(&format!("make{make}"), ops)
    }

    fn compiler(&self, length: usize) -> ThreadTemplate {
        let work = share(self.work.0, LENGTHS[length] * 15, 1600);
        let mut ops = executes().to_vec();
        let times = (work / LOCK_PERIOD).max(1);
        let mut part = vec![Op::Compute(TimeSpan(work / times).into())];
        part.extend(self.locked.clone());
        ops.push(Op::Loop { times: Some(times), ops: part });
        ThreadTemplate { footprint: self.footprint, ..child(&compiler_name(length), ops) }
    }

    fn assembler(&self) -> ThreadTemplate {
        let work = TimeSpan(share(self.work.0, 1, 16));
        child("as", [&executes()[..], &[Op::Compute(work.into())]].concat())
    }

    fn linker(&self) -> ThreadTemplate {
        let write = Op::Io { bytes: IMAGE_BYTES, null: false };
        child("ld", [&executes()[..], &[Op::Compute(self.link.into()), write]].concat())
    }
}

/// Returns the index in `LENGTHS` of a file's length. Each sixteen consecutive files have all
/// lengths, in an order that changes from one sixteen to the next.
fn length_of(file: u32) -> usize {
    (file as usize * 7 + file as usize / LENGTHS.len() * 5) % LENGTHS.len()
}

fn driver(make: u32, length: usize) -> ThreadTemplate {
    let mut ops = executes().to_vec();
    if COLD.contains(&length) {
        ops.push(Op::Io { bytes: SOURCE_BYTES, null: false });
    }
    for name in [compiler_name(length), "as".into()] {
        ops.extend(start(name));
        ops.push(Op::Join);
    }
    ops.extend([Op::Count(1), Op::SemPost(slots(make))]);
    child(&driver_name(make, length), ops)
}

/// Returns the ops that start a process.
fn start(name: String) -> [Op; 2] {
    [Op::Fork(name), Op::SemWait(EXECUTES.into())]
}

/// Returns the first ops of a process.
fn executes() -> [Op; 2] {
    [Op::Exec, Op::SemPost(EXECUTES.into())]
}

/// Returns a template that only forks make.
fn child(name: &str, ops: Vec<Op>) -> ThreadTemplate {
    ThreadTemplate { instances: 0, ..ThreadTemplate::new(name, ops) }
}

fn driver_name(make: u32, length: usize) -> String {
    format!("gcc{make}.{length}")
}

fn compiler_name(length: usize) -> String {
    format!("cc1.{length}")
}

/// Name of the semaphore that counts the files that a make may still take into work.
fn slots(make: u32) -> String {
    format!("slots{make}")
}

/// Returns `value * part / whole`.
fn share(value: u64, part: u64, whole: u64) -> u64 {
    let share = u128::from(value) * u128::from(part) / u128::from(whole);
    u64::try_from(share).unwrap_or(u64::MAX)
}

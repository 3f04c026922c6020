// SPDX-License-Identifier: GPL-2.0-only
//! Execution of many runs: every scheduler under every seed, in parallel, with the results in the
//! order of the request.
//!
//! Owns: the seed of each run, the threads, and wall time, which is measured around the simulation,
//! never in it.
//! Does not: share mutable state between runs, so results are the same for any number of threads.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use rayon::prelude::*;
use scxlab_bpf::vm::Engine;
use scxlab_machine::Machine;
use scxlab_machine::id::Nanos;
use scxlab_trace::Tracer;
use scxlab_workload::{Perturb, Program};

use crate::input::Workload;
use crate::prepare::Prepared;
use crate::run::Run;
use crate::sim::{NumaBalancing, SimError, SimSpec, simulate};
use crate::story;

/// A request for runs.
pub struct Session {
    pub machine: Arc<Machine>,
    pub workload: Workload,
    /// The schedulers to run, prepared for the simulated kernel; the first is the baseline.
    pub schedulers: Vec<Prepared>,
    /// Number of runs per scheduler. Run i of each scheduler has seed `seed + i`, so that
    /// comparisons can pair runs with equal seeds.
    pub runs: u32,
    pub seed: u64,
    pub duration: Option<Nanos>,
    /// Maximum length of a run whose workload has no duration.
    pub cap: Option<Nanos>,
    pub perturb: Perturb,
    pub engine: Engine,
    /// Maximum memory in bytes that the object and the workload may occupy in each run.
    pub max_memory: u64,
    /// Automatic NUMA balancing; None: as on a kernel with its defaults.
    pub numa_balancing: Option<NumaBalancing>,
    /// Time after the workload's start at which the scheduler is attached; None: before the start.
    pub attach_after: Option<Nanos>,
    /// Number of threads; 0 means one per CPU of the host.
    pub threads: usize,
}

/// Identifies one run of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunKey {
    /// Index into the schedulers.
    pub scheduler: usize,
    /// Number of the run among the scheduler's runs, from 0; it is added to the session's first
    /// seed.
    pub index: u32,
}

/// Creates the `Tracer` that records the events of a run.
pub type TraceFor<'a> = dyn Fn(RunKey) -> std::io::Result<Tracer> + Sync + 'a;

/// Returns a reason once the session is to end. Runs in progress then stop soon, and no further run
/// begins.
pub type Interrupt<'a> = dyn Fn() -> Option<String> + Sync + 'a;

/// Reason why a session gave no results.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    #[error(transparent)]
    Sim(#[from] SimError),
    #[error("trace of {scheduler}, seed {seed}: {error}")]
    Trace { scheduler: String, seed: u64, error: std::io::Error },
    #[error("threads for {threads} runs at a time could not be started: {why}")]
    Threads { threads: usize, why: String },
    #[error("{what} is {} s; the maximum for a run is {} s (a day)", seconds(*ns), seconds(MAX_LENGTH))]
    Length { what: LengthOf, ns: Nanos },
    #[error("\"{command}\" is a command: it runs on a real kernel only, with --on vm or --on host")]
    Command { command: String },
    #[error("interrupted: {why}")]
    Interrupted { why: String },
    #[error("seeds {first} to {first} + {more} do not fit 64 bits")]
    Seeds { first: u64, more: u32 },
}

/// Origin of the length of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LengthOf {
    /// The request.
    Request,
    /// The workload, which may be a recording.
    Workload,
}

impl fmt::Display for LengthOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            LengthOf::Request => "the duration",
            LengthOf::Workload => "the workload's duration",
        })
    }
}

/// Maximum length of one run, in virtual or real time: one day, in ns. Simulating a day of a busy
/// machine takes hours, and practical runs last minutes.
pub const MAX_LENGTH: Nanos = 86_400 * 1_000_000_000;

/// Default of the maximum virtual time of a run, in ns, if neither the workload nor the user gives
/// a duration.
pub const CAP: Nanos = 60_000_000_000;

/// Default of the random changes of each run.
pub const PERTURB: Perturb = Perturb { start_offset_max: 1_000_000, compute_noise_permille: 10 };

/// Formats the time exactly, without trailing zeros.
fn seconds(ns: Nanos) -> String {
    let exact = format!("{}.{:09}", ns / 1_000_000_000, ns % 1_000_000_000);
    exact.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Progress of a session, to be read from another thread.
#[derive(Debug, Default)]
pub struct Progress {
    virtual_ns: Vec<AtomicU64>,
    done: Vec<AtomicBool>,
    /// Expected virtual time of each run in ns; 0 if unknown.
    expected_ns: Vec<u64>,
}

impl Progress {
    pub fn new(session: &Session) -> Progress {
        Progress::of(session.keys().map(|_| session.length()).collect())
    }

    /// Returns the progress of runs with these expected virtual times in ns; 0 if unknown.
    pub fn of(expected_ns: Vec<u64>) -> Progress {
        Progress {
            virtual_ns: expected_ns.iter().map(|_| AtomicU64::default()).collect(),
            done: expected_ns.iter().map(|_| AtomicBool::new(false)).collect(),
            expected_ns,
        }
    }

    /// Returns the virtual time of a run, for the run's thread to store.
    pub fn at(&self, run: usize) -> &AtomicU64 {
        &self.virtual_ns[run]
    }

    /// Notes that a run is complete.
    pub fn finish(&self, run: usize) {
        self.done[run].store(true, Ordering::Relaxed);
    }

    /// Tells whether the length of some run is known, and with it the remaining time.
    pub fn has_end(&self) -> bool {
        self.expected_ns.iter().any(|ns| *ns > 0)
    }

    /// Returns the virtual time of all runs so far.
    pub fn virtual_ns(&self) -> u64 {
        self.virtual_ns.iter().map(|at| at.load(Ordering::Relaxed)).sum()
    }

    pub fn runs(&self) -> usize {
        self.done.len()
    }

    pub fn runs_done(&self) -> usize {
        self.done.iter().filter(|d| d.load(Ordering::Relaxed)).count()
    }

    /// Returns the completed part of the session in thousandths. If the length of a run is unknown,
    /// only completed runs count.
    pub fn permille(&self) -> u64 {
        let part = |run: usize| {
            if self.done[run].load(Ordering::Relaxed) {
                1000
            } else {
                let now = self.virtual_ns[run].load(Ordering::Relaxed).saturating_mul(1000);
                now.checked_div(self.expected_ns[run]).unwrap_or(0).min(1000)
            }
        };
        let total: u64 = (0..self.done.len()).map(part).sum();
        total.checked_div(self.done.len() as u64).unwrap_or(0)
    }
}

impl Session {
    /// Returns the keys of all runs, in the order of the results.
    pub fn keys(&self) -> impl Iterator<Item = RunKey> + '_ {
        let schedulers = 0..self.schedulers.len();
        schedulers
            .flat_map(|scheduler| (0..self.runs).map(move |index| RunKey { scheduler, index }))
    }

    pub fn seed_of(&self, key: RunKey) -> u64 {
        self.seed.wrapping_add(u64::from(key.index))
    }

    pub fn seed_of_last(&self) -> u64 {
        self.seed.wrapping_add(u64::from(self.runs.saturating_sub(1)))
    }

    /// Returns the duration that the user asked for, or else the workload's own; 0 if neither
    /// exists.
    fn length(&self) -> Nanos {
        self.duration.or(self.workload.duration()).unwrap_or(0)
    }

    /// Refuses requests that no target can carry out, before any run begins.
    pub fn check(&self) -> Result<(), SessionError> {
        let what = match self.duration {
            Some(_) => LengthOf::Request,
            None => LengthOf::Workload,
        };
        if self.length() > MAX_LENGTH {
            return Err(SessionError::Length { what, ns: self.length() });
        }
        let more = self.runs.saturating_sub(1);
        if self.seed.checked_add(u64::from(more)).is_none() {
            return Err(SessionError::Seeds { first: self.seed, more });
        }
        Ok(())
    }

    /// Returns the workload's program; refuses a command, which no simulation can run.
    pub fn program(&self) -> Result<&Program, SessionError> {
        match &self.workload {
            Workload::Program(program) => Ok(program),
            Workload::Command(words) => Err(SessionError::Command { command: words.join(" ") }),
        }
    }

    /// Carries out all runs in the simulation. If several runs fail, returns the error of the run
    /// that comes first in the request.
    pub fn execute(
        &self,
        traces: &TraceFor<'_>,
        progress: &Progress,
        interrupt: &Interrupt<'_>,
    ) -> Result<Vec<Run>, SessionError> {
        self.check()?;
        let program = self.program()?;
        let keys: Vec<(usize, RunKey)> = self.keys().enumerate().collect();
        let one = |(at, key): (usize, RunKey)| {
            let run = match interrupt() {
                Some(why) => Ok(Run::not_begun(
                    self.schedulers[key.scheduler].label(),
                    self.seed_of(key),
                    &why,
                )),
                None => self.one(key, program, traces, progress.at(at), interrupt),
            };
            progress.finish(at);
            run
        };
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(self.threads)
            .stack_size(STACK_BYTES)
            .build()
            .map_err(|e| SessionError::Threads { threads: self.threads, why: e.to_string() })?;
        // Hand out one run at a time; with larger chunks a thread can finish early and idle.
        let all = || keys.into_par_iter().with_max_len(1).map(one).collect();
        let results: Vec<_> = pool.install(all);
        results.into_iter().collect()
    }

    fn one(
        &self,
        key: RunKey,
        program: &Program,
        traces: &TraceFor<'_>,
        progress: &AtomicU64,
        interrupt: &Interrupt<'_>,
    ) -> Result<Run, SessionError> {
        let scheduler = &self.schedulers[key.scheduler];
        let seed = self.seed_of(key);
        let failed =
            |error| SessionError::Trace { scheduler: scheduler.label().to_owned(), seed, error };
        let tracer = traces(key).map_err(failed)?;
        let spec = SimSpec {
            machine: &self.machine,
            workload: program,
            scheduler,
            seed,
            duration: self.duration,
            cap: self.cap,
            perturb: self.perturb,
            engine: self.engine,
            max_memory: self.max_memory,
            numa_balancing: self.numa_balancing.unwrap_or_default(),
            attach_after: self.attach_after,
        };
        let start = Instant::now();
        // Only this thread writes the run's progress. Relaxed is enough, because the threads that
        // read the progress need no ordering.
        let watch = |now| {
            progress.store(now, Ordering::Relaxed);
            interrupt()
        };
        let (mut run, mut tracer) = simulate(&spec, tracer, &watch)?;
        run.wall_ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        tracer.run_ended(run.virtual_ns);
        tracer.finish().map_err(failed)?;
        if run.was_ejected() && !run.stop.was_interrupted() {
            story::observe(&spec, &mut run, &|_| interrupt())?;
        }
        Ok(run)
    }
}

/// Stack size of the threads. Programs call helpers that call programs; the depth is bounded, but
/// large.
pub const STACK_BYTES: usize = 32 << 20;

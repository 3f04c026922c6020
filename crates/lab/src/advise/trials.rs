// SPDX-License-Identifier: GPL-2.0-only
//! Runs of candidates in worlds, in parallel.
//!
//! Owns: what counts as a failure of a candidate, and the cost of a run in time of this host.
//! Does not: choose candidates or worlds. A world in which some candidate's run is missing, because
//! the work was interrupted, is dropped; results therefore depend on the number of worlds alone,
//! and not on the number of threads.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};
use std::time::{Duration, Instant};

use rayon::prelude::*;
use scxlab_bpf::vm::Engine;
use scxlab_machine::id::Nanos;
use scxlab_trace::Tracer;

use super::candidate::Candidate;
use super::goal::Goals;
use super::value::Seen;
use super::world::{Purpose, World};
use super::{AdviseError, Observer, Request, State};
use crate::metric::QUOTA_EXCESS;
use crate::run::{Run, StopKind, long_wait};
use crate::session::{STACK_BYTES, SessionError};
use crate::sim::{SimError, SimSpec, simulate_watching};

/// Result of one run.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    /// The values of all terms of the goals.
    Values(Vec<f64>),
    /// The reason why the scheduler is unsuitable.
    Failed(String),
}

/// Number of runs of each side that explain a difference.
const EXPLAINING: u64 = 4;

/// Executes runs.
pub struct Trials<'a> {
    request: &'a Request<'a>,
    goals: Goals,
    patterns: Vec<String>,
    observer: &'a dyn Observer,
    pool: rayon::ThreadPool,
    /// Number of finished runs, and the time that they took, in ns.
    runs: AtomicU64,
    spent_ns: AtomicU64,
    /// Virtual length of the first run.
    length: OnceLock<Nanos>,
}

impl<'a> Trials<'a> {
    pub fn new(
        request: &'a Request<'a>,
        goals: &Goals,
        observer: &'a dyn Observer,
    ) -> Result<Trials<'a>, AdviseError> {
        let threads = request.threads;
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .stack_size(STACK_BYTES)
            .build()
            .map_err(|e| SessionError::Threads { threads, why: e.to_string() })?;
        Ok(Trials {
            request,
            goals: goals.clone(),
            patterns: goals.patterns(),
            observer,
            pool,
            runs: AtomicU64::new(0),
            spent_ns: AtomicU64::new(0),
            length: OnceLock::new(),
        })
    }

    /// Returns these trials with other goals.
    pub fn with_goals(self, goals: &Goals) -> Trials<'a> {
        Trials { goals: goals.clone(), patterns: goals.patterns(), ..self }
    }

    /// Makes one run as the request has it, and passes it to `read`. Returns None if the run was
    /// interrupted.
    pub fn pilot<R>(
        &self,
        candidate: &Candidate,
        read: impl FnOnce(Seen<'_>) -> R + Send,
    ) -> Result<Option<R>, AdviseError>
    where
        R: Send,
    {
        let world = self.fitting(World::as_given(&self.request.machine, self.request.seed));
        let read = |seen: Seen<'_>| {
            self.length.get_or_init(|| seen.run.virtual_ns);
            (!seen.run.stop.was_interrupted()).then(|| read(seen))
        };
        let made = self.pool.install(|| self.timed(|| self.simulate(candidate, &world, read)));
        made.map_err(|e| AdviseError::Session(e.into()))
    }

    /// Returns a variation of the request.
    pub fn world(&self, purpose: Purpose, number: u32) -> World {
        let Request { machine, program, seed, .. } = self.request;
        self.fitting(World::new(machine, program, *seed, purpose, number))
    }

    /// Returns the world with start offsets that fit the length of a run: that of the first one, or
    /// what the request tells before it.
    fn fitting(&self, world: World) -> World {
        match self.length.get().copied().or(self.request.length()) {
            Some(length) => world.within(length),
            None => world,
        }
    }

    /// Does the work of one run, and counts the time that it takes.
    fn timed<R>(&self, run: impl FnOnce() -> R) -> R {
        let start = Instant::now();
        let made = run();
        let ns = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        self.spent_ns.fetch_add(ns, Ordering::Relaxed);
        self.runs.fetch_add(1, Ordering::Relaxed);
        made
    }

    /// Runs each of `who` in each world. Returns the outcomes by world, then in the order of `who`,
    /// up to the first world that is not complete.
    pub fn execute(
        &self,
        candidates: &[Candidate],
        who: &[usize],
        worlds: &[World],
    ) -> Result<Vec<Vec<Outcome>>, AdviseError> {
        let jobs: Vec<(&World, usize)> =
            worlds.iter().flat_map(|world| who.iter().map(move |at| (world, *at))).collect();
        let failed = Mutex::new(None);
        let one = |(world, at): (&World, usize)| match self.one(&candidates[at], world, at == 0) {
            Ok(outcome) => outcome,
            Err(error) => {
                failed.lock().unwrap_or_else(|e| e.into_inner()).get_or_insert(error);
                None
            }
        };
        // Hand out one run at a time; with larger chunks a thread can finish early and idle.
        let all: Vec<Option<Outcome>> =
            self.pool.install(|| jobs.into_par_iter().with_max_len(1).map(one).collect());
        if let Some(error) = failed.into_inner().unwrap_or_else(|e| e.into_inner()) {
            return Err(error);
        }
        let whole = all.chunks(who.len()).map(|world| world.iter().cloned().collect());
        Ok(whole.map_while(|world: Option<Vec<Outcome>>| world).collect())
    }

    /// Makes one run. Returns None if it was interrupted.
    fn one(
        &self,
        candidate: &Candidate,
        world: &World,
        is_baseline: bool,
    ) -> Result<Option<Outcome>, AdviseError> {
        if self.interrupted().is_some() {
            return Ok(None);
        }
        let made = self.timed(|| self.simulate(candidate, world, |seen| self.outcome(seen)));
        let outcome = match made {
            Ok(outcome) => outcome,
            // These errors are the scheduler's own; any other error would meet every candidate.
            Err(
                error @ (SimError::Link(_)
                | SimError::Recipe(_)
                | SimError::Attach { .. }
                | SimError::Unmodelled { .. }),
            ) if !is_baseline => Some(Outcome::Failed(error.to_string())),
            Err(error) => return Err(AdviseError::Session(error.into())),
        };
        match outcome {
            Some(Outcome::Failed(why)) if is_baseline => Err(AdviseError::Baseline { why }),
            outcome => Ok(outcome),
        }
    }

    /// Runs a candidate in a world, and passes the run to `read`.
    fn simulate<R>(
        &self,
        candidate: &Candidate,
        world: &World,
        read: impl FnOnce(Seen<'_>) -> R,
    ) -> Result<R, SimError> {
        let request = self.request;
        let spec = SimSpec {
            machine: &world.machine,
            workload: world.program.as_deref().unwrap_or(request.program),
            scheduler: &candidate.prepared,
            seed: world.seed,
            duration: request.duration,
            cap: request.cap,
            perturb: world.perturb,
            engine: Engine::Jit,
            max_memory: request.max_memory,
            numa_balancing: request.numa_balancing,
            attach_after: None,
        };
        let watch = |_| self.interrupted();
        let (run, _, watched) =
            simulate_watching(&spec, &self.patterns, Tracer::default(), &watch)?;
        Ok(read(Seen { run: &run, watched: Some(&watched) }))
    }

    fn outcome(&self, seen: Seen<'_>) -> Option<Outcome> {
        if seen.run.stop.kind == StopKind::Interrupted {
            return None;
        }
        if let Some(why) = failure(seen.run) {
            return Some(Outcome::Failed(why));
        }
        let values = self.goals.terms().map(|term| seen.value(&term.measure));
        Some(values.collect::<Result<_, _>>().map_or_else(Outcome::Failed, Outcome::Values))
    }

    /// Returns the reason why no further run may begin.
    pub fn interrupted(&self) -> Option<String> {
        self.observer.interrupt().or_else(|| {
            let is_over = self.time_left().is_some_and(|left| left.is_zero());
            is_over.then(|| "the budget is used; a longer --budget has more".to_owned())
        })
    }

    /// Returns the time that is left of the budget for the search and the decision; None if there
    /// is no budget.
    pub fn time_left(&self) -> Option<Duration> {
        let explanation = || self.time_of(2 * EXPLAINING as usize);
        self.observer.time_left().map(|left| left.saturating_sub(explanation()))
    }

    /// Runs the default class and a candidate as the request has it, with several seeds, for what
    /// the goals do not tell. Returns None if that was interrupted.
    pub fn explain(&self, candidates: [&Candidate; 2]) -> Option<[Vec<Run>; 2]> {
        let seeds = 0..EXPLAINING;
        let jobs: Vec<(&Candidate, u64)> =
            candidates.iter().flat_map(|c| seeds.clone().map(move |n| (*c, n))).collect();
        let one = |(candidate, n): (&Candidate, u64)| {
            if self.observer.interrupt().is_some() {
                return None;
            }
            let seed = self.request.seed.wrapping_add(n);
            let world = self.fitting(World::as_given(&self.request.machine, seed));
            self.simulate(candidate, &world, |seen| seen.run.clone()).ok()
        };
        let all: Option<Vec<Run>> =
            self.pool.install(|| jobs.into_par_iter().with_max_len(1).map(one).collect());
        let mut baseline = all?;
        let candidate = baseline.split_off(EXPLAINING as usize);
        Some([baseline, candidate])
    }

    /// Tells the observer how far the work is.
    pub fn tell(&self, state: &State) {
        self.observer.tell(state);
    }

    /// Returns the time that `runs` runs take, going by the runs so far.
    pub fn time_of(&self, runs: usize) -> Duration {
        let (made, spent) =
            (self.runs.load(Ordering::Relaxed), self.spent_ns.load(Ordering::Relaxed));
        let each = spent.checked_div(made).unwrap_or(0);
        let rounds = runs.div_ceil(self.pool.current_num_threads()) as u64;
        Duration::from_nanos(each.saturating_mul(rounds))
    }
}

/// Tells why a run speaks against its scheduler: an ejection, an irregular end, a cgroup that had
/// more than its `cpu.max`, or a task that starved. A task that was forked shortly before the end
/// lengthens the waits, and is no reason by itself.
pub fn failure(run: &Run) -> Option<String> {
    if run.was_ejected() {
        return Some(format!("ejected: {}: {}", run.exit.kind, run.exit.message));
    }
    if !run.counts {
        return Some(format!("ended early: {}: {}", run.stop.kind.name(), run.stop.message));
    }
    if !run.keeps_quotas() {
        let percent = run.metrics[QUOTA_EXCESS.name].value;
        return Some(format!(
            "it does not keep cpu.max: a cgroup had {percent:.0} % more CPU time than its limit allows"
        ));
    }
    let starved = run.never_ran.iter().find(|task| task.wait_ns >= long_wait(run.virtual_ns))?;
    Some(match starved.run_ns {
        0 => format!("task {} was runnable and never ran", starved.name),
        run_ns => format!(
            "task {} ran for {} us and waited for {} ms",
            starved.name,
            run_ns / 1000,
            starved.wait_ns / 1_000_000
        ),
    })
}

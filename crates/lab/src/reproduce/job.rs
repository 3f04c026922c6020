// SPDX-License-Identifier: GPL-2.0-only
//! The runs of a plan: simulated in parallel, or taken from a store.
//!
//! Owns: what is kept of a run, and under which key. Does not: open files (the caller's `RunStore`
//! does).

use std::sync::atomic::{AtomicU64, Ordering};

use indexmap::IndexMap;
use rayon::prelude::*;
use scxlab_trace::Tracer;
use serde::{Deserialize, Serialize};

use super::plan::{CAP_NS, Plan, Setup};
use crate::run::{Run, StopKind};
use crate::session::{Interrupt, Progress, STACK_BYTES, SessionError};
use crate::sim::simulate;

/// What a reproduction keeps of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KeptRun {
    /// The reason why the run does not count: the scheduler's exit or the run's irregular end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
    /// Values of metrics by name.
    pub metrics: IndexMap<String, f64>,
}

impl KeptRun {
    /// Keeps a run of a setup. A workload without a duration must come to its end.
    fn of(run: &Run, setup: &Setup) -> KeptRun {
        let cut = setup.length().is_none() && run.stop.kind == StopKind::Duration;
        let failed = if run.was_ejected() {
            Some(format!("ejected: {}: {}", run.exit.kind, run.exit.message))
        } else if !run.counts {
            Some(format!("ended early: {}: {}", run.stop.kind.name(), run.stop.message))
        } else {
            cut.then(|| format!("did not end within {} s", CAP_NS / 1_000_000_000))
        };
        let of_one_cpu = |name: &str| {
            name.strip_prefix("cpu")
                .is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
        };
        let metrics = run.metrics.iter().filter(|(name, _)| !of_one_cpu(name));
        let mut metrics: IndexMap<String, f64> =
            metrics.map(|(name, metric)| (name.clone(), metric.value)).collect();
        metrics.insert("virtual_ns".to_owned(), run.virtual_ns as f64);
        let (cpu, memory) = (cpu_by_node(run), memory_by_node(run));
        if let Some(share) = cpu_at_memory(&cpu, &memory) {
            metrics.insert("guest0_cpu_at_memory".to_owned(), share);
        }
        node_shares(&mut metrics, "guest0_cpu", cpu);
        node_shares(&mut metrics, "guest0_memory", memory);
        KeptRun { failed, metrics }
    }
}

/// CPU time of the first guest by node.
fn cpu_by_node(run: &Run) -> Vec<u64> {
    let Some(guest) = run.guests.first() else { return Vec::new() };
    let is_vcpu = |name: &str| guest.vcpus.iter().any(|vcpu| vcpu.name == name);
    let tasks = run.tasks.iter().filter(|task| is_vcpu(&task.name));
    sum_by_node(tasks.map(|task| &task.node_ns[..]))
}

/// Pages of the first guest by node.
fn memory_by_node(run: &Run) -> Vec<u64> {
    let Some(guest) = run.guests.first() else { return Vec::new() };
    let regions = run.memory.iter().filter(|region| region.owner == guest.name);
    sum_by_node(regions.map(|region| &region.pages[..]))
}

fn sum_by_node<'a>(all: impl Iterator<Item = &'a [u64]>) -> Vec<u64> {
    let mut sums = Vec::new();
    for one in all {
        sums.resize(sums.len().max(one.len()), 0);
        one.iter().zip(&mut sums).for_each(|(value, sum)| *sum += value);
    }
    sums
}

/// Returns the share of the CPU time that was on the node with the most memory; None without CPU
/// time or memory.
fn cpu_at_memory(cpu: &[u64], memory: &[u64]) -> Option<f64> {
    let placed = memory.iter().enumerate().filter(|(_, pages)| **pages > 0);
    let (node, _) = placed.max_by_key(|(_, pages)| **pages)?;
    let total: u64 = cpu.iter().sum();
    (total > 0).then(|| cpu.get(node).map_or(0.0, |time| *time as f64 / total as f64))
}

/// Adds the shares of nodes as `NAME_share_1` and so on, the largest first, because the number of a
/// node means nothing.
fn node_shares(metrics: &mut IndexMap<String, f64>, name: &str, mut by_node: Vec<u64>) {
    /// Largest number of nodes whose shares are kept.
    const NODES: usize = 8;
    let total: u64 = by_node.iter().sum();
    if total == 0 {
        return;
    }
    by_node.sort_unstable_by(|a, b| b.cmp(a));
    by_node.resize(NODES, 0);
    for (at, part) in by_node.into_iter().enumerate() {
        metrics.insert(format!("{name}_share_{}", at + 1), part as f64 / total as f64);
    }
}

/// Identifies a run by all that decides its result, but the simulator.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RunKey {
    pub setup: String,
    pub seed: u64,
}

/// Runs that were made before.
pub trait RunStore: Sync {
    /// Returns the run with this key, if the store has it from this simulator.
    fn get(&self, key: &RunKey) -> Option<KeptRun>;
    /// Keeps a run.
    fn put(&self, key: &RunKey, run: &KeptRun);
}

/// A store that keeps nothing.
pub struct NoStore;

impl RunStore for NoStore {
    fn get(&self, _: &RunKey) -> Option<KeptRun> {
        None
    }

    fn put(&self, _: &RunKey, _: &KeptRun) {}
}

/// The runs of all setups of a plan, by setup and then by seed.
pub struct Runs(pub Vec<Vec<KeptRun>>);

/// The jobs of a plan that the store cannot answer.
pub struct Jobs<'a> {
    plan: &'a Plan,
    store: &'a dyn RunStore,
    seeds: Vec<u64>,
    known: Vec<Vec<Option<KeptRun>>>,
    /// Setup and number of each run that is to be made.
    missing: Vec<(usize, usize)>,
}

impl<'a> Jobs<'a> {
    /// Looks up `runs` runs of each setup, with seeds from `seed` on.
    pub fn new(plan: &'a Plan, store: &'a dyn RunStore, runs: u32, seed: u64) -> Jobs<'a> {
        let seeds: Vec<u64> = (0..u64::from(runs)).map(|i| seed.wrapping_add(i)).collect();
        let get = |setup: &Setup| {
            let key = |seed: &u64| RunKey { setup: setup.key.clone(), seed: *seed };
            seeds.iter().map(|seed| store.get(&key(seed))).collect::<Vec<_>>()
        };
        let known: Vec<Vec<_>> = plan.setups.iter().map(get).collect();
        let lacks = |(setup, runs): (usize, &Vec<Option<KeptRun>>)| {
            let none = runs.iter().enumerate().filter(|(_, run)| run.is_none());
            none.map(|(n, _)| (setup, n)).collect::<Vec<_>>()
        };
        let missing = known.iter().enumerate().flat_map(lacks).collect();
        Jobs { plan, store, seeds, known, missing }
    }

    /// Number of runs that are to be made.
    pub fn missing(&self) -> usize {
        self.missing.len()
    }

    /// Returns the expected virtual time of each run that is to be made; 0 if unknown.
    pub fn lengths(&self) -> Vec<u64> {
        let length = |(setup, _): &(usize, usize)| self.plan.setups[*setup].length().unwrap_or(0);
        self.missing.iter().map(length).collect()
    }

    /// Makes the missing runs. The first of them has the number `first` in `progress`. `interrupt`
    /// ends the work; runs that were made stay in the store.
    pub fn execute(
        self,
        threads: usize,
        progress: &Progress,
        first: usize,
        interrupt: &Interrupt<'_>,
    ) -> Result<Runs, SessionError> {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .stack_size(STACK_BYTES)
            .build()
            .map_err(|e| SessionError::Threads { threads, why: e.to_string() })?;
        let one = |(at, (setup, n)): (usize, &(usize, usize))| {
            let run = self.one(*setup, self.seeds[*n], progress.at(first + at), interrupt);
            progress.finish(first + at);
            run
        };
        let jobs = self.missing.par_iter().enumerate().with_max_len(1);
        let made: Vec<Result<KeptRun, SessionError>> = pool.install(|| jobs.map(one).collect());
        let mut known = self.known;
        for ((setup, n), run) in self.missing.iter().zip(made) {
            known[*setup][*n] = Some(run?);
        }
        Ok(Runs(known.into_iter().map(|runs| runs.into_iter().flatten().collect()).collect()))
    }

    fn one(
        &self,
        setup: usize,
        seed: u64,
        at: &AtomicU64,
        interrupt: &Interrupt<'_>,
    ) -> Result<KeptRun, SessionError> {
        if let Some(why) = interrupt() {
            return Err(SessionError::Interrupted { why });
        }
        let setup = &self.plan.setups[setup];
        let watch = |now| {
            at.store(now, Ordering::Relaxed);
            interrupt()
        };
        let (run, _) = simulate(&setup.spec(seed), Tracer::default(), &watch)?;
        if run.stop.was_interrupted() {
            return Err(SessionError::Interrupted { why: run.stop.message });
        }
        let kept = KeptRun::of(&run, setup);
        self.store.put(&RunKey { setup: setup.key.clone(), seed }, &kept);
        Ok(kept)
    }
}

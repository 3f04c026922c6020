// SPDX-License-Identifier: GPL-2.0-only
//! Runs of `fair` with processes that are spread over the nodes at the start, and figures of where
//! they end up.
//!
//! Owns: the workload of a seed, and the figures of a run. Does not: judge (see `fair_numa.rs`).

use std::collections::BTreeMap;
use std::fmt::Write;

use scxlab_kernel::Kernel;
use scxlab_machine::id::CpuId;
use scxlab_machine::rng::Stream;
use scxlab_testkit::checks::{Contract, LawChecker, Violation};

pub const MS: u64 = 1_000_000;
pub const SECOND: u64 = 1000 * MS;

/// How the threads of a process sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sleep {
    /// Each thread computes and sleeps in turns of its own, of random lengths.
    Random,
    /// All turns are equal, so that threads that start together stay in phase.
    InPhase,
    /// As `InPhase`, and after each turn the process's threads meet at a barrier.
    Barrier,
}

#[derive(Clone, Debug)]
pub struct ProcessLoad {
    /// Threads of each process.
    pub sizes: Vec<u32>,
    /// Percentage of the time for which a thread wants to run.
    pub duty: u32,
    pub sleep: Sleep,
    /// Length of a turn and the sleep after it, in microseconds.
    pub period_us: u64,
}

impl ProcessLoad {
    /// Returns the workload. Each thread starts bound to one of `cpus` (pairs of CPU and node),
    /// dealt out by the seed, and may run anywhere after a millisecond.
    pub fn workload(&self, cpus: &[(u32, usize)], seed: u64) -> String {
        let mut rng = Stream::new(seed, "test.fair_numa", 0);
        let mut text = String::new();
        let mut dealt = self.deal(cpus, &mut rng);
        while dealt.iter().any(|of| of.len() > 1 && of.iter().all(|c| c.1 == of[0].1)) {
            dealt = self.deal(cpus, &mut rng);
        }
        for (process, cpus) in dealt.iter().enumerate() {
            for (thread, (at, _)) in cpus.iter().enumerate() {
                let turns = self.turns(process, &mut rng);
                write!(
                    text,
                    "[[thread]]\nname = \"vm-{process}-{thread}\"\nprocess = \"vm-{process}\"\ncpus = [{at}]\n\
                     ops = [{{ compute = \"1ms\" }}, \"clear_affinity\", {{ loop = {{ ops = [{turns}] }} }}]\n"
                )
                .expect("a string");
            }
        }
        text
    }

    fn deal(&self, cpus: &[(u32, usize)], rng: &mut Stream) -> Vec<Vec<(u32, usize)>> {
        let mut places = Vec::new();
        let mut next = |_| {
            if places.is_empty() {
                places = cpus.to_vec();
            }
            places.swap_remove(rng.below(places.len() as u64) as usize)
        };
        self.sizes.iter().map(|threads| (0..*threads).map(&mut next).collect()).collect()
    }

    fn turns(&self, process: usize, rng: &mut Stream) -> String {
        let run = self.period_us * u64::from(self.duty) / 100;
        let nap = self.period_us - run;
        let n = if self.sleep == Sleep::Random { 8 } else { 1 };
        let mut text = String::new();
        for _ in 0..n {
            // Random lengths are from half to one and a half times the mean.
            let mut vary = |us: u64| match self.sleep {
                Sleep::Random => us / 2 + rng.below(us + 1),
                _ => us,
            };
            write!(text, "{{ compute = \"{}us\" }}, ", vary(run)).expect("a string");
            if self.sleep == Sleep::Barrier {
                write!(text, "{{ barrier = \"b-{process}\" }}, ").expect("a string");
            }
            if nap > 0 {
                write!(text, "{{ sleep = \"{}us\" }}, ", vary(nap)).expect("a string");
            }
            text.push_str("{ count = 1 }, ");
        }
        text
    }
}

pub fn node_of(k: &Kernel, cpu: CpuId) -> usize {
    k.machine.topology.cpu(cpu).node.idx()
}

/// Asserts that no process of several threads is on one node. Otherwise, a run that ends with each
/// process on one node would prove nothing.
pub fn assert_spread(k: &Kernel) {
    let mut on: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for t in k.tasks.iter().filter(|t| t.name.starts_with("vm-")) {
        on.entry(t.tgid).or_default().push(node_of(k, t.cpu));
    }
    for (process, nodes) in on.iter().filter(|(_, nodes)| nodes.len() > 1) {
        assert!(nodes.iter().any(|n| *n != nodes[0]), "{process}: {nodes:?} to begin with");
    }
}

/// Figures of a run, sampled every half millisecond.
#[derive(Default)]
pub struct NodeFigures {
    /// CPU time in ns by process and node.
    pub time: BTreeMap<u32, Vec<u64>>,
    pub moves: u64,
    /// Shortest time between two moves of a task between nodes, in ns.
    pub shortest: Option<u64>,
    pub broken: Vec<Violation>,
}

impl NodeFigures {
    /// For each process, computes the part of its CPU time that it had on its main node. Returns
    /// the smallest of these parts, as a percentage.
    pub fn together(&self) -> u64 {
        let part = |t: &Vec<u64>| t.iter().max().unwrap() * 100 / t.iter().sum::<u64>().max(1);
        self.time.values().map(part).min().expect("a process")
    }
}

/// Runs until `until`. `grace` is the longest time for which a CPU may be idle beside a waiting
/// task; with None, `watch` does not check this.
pub fn watch(k: &mut Kernel, until: u64, grace: Option<u64>) -> NodeFigures {
    let mut seen = NodeFigures::default();
    let mut laws = LawChecker::new(Contract { idle_grace: grace, ..Contract::default() });
    let mut last: BTreeMap<u32, (u64, usize, Option<u64>)> = BTreeMap::new();
    let nodes = k.machine.topology.nodes().len();
    while k.now < until {
        let next = k.now + MS / 2;
        k.advance(next);
        if grace.is_some() {
            laws.look(k);
        }
        for t in k.tasks.iter().filter(|t| t.name.starts_with("vm-")) {
            let node = node_of(k, t.cpu);
            let (ran, was, moved) = last.entry(t.pid).or_insert((t.account.run_ns, node, None));
            let time = seen.time.entry(t.tgid).or_insert_with(|| vec![0; nodes]);
            time[node] += t.account.run_ns - *ran;
            *ran = t.account.run_ns;
            if *was == node {
                continue;
            }
            *was = node;
            seen.moves += 1;
            if let Some(before) = moved.replace(k.now) {
                let gap = k.now - before;
                seen.shortest = Some(seen.shortest.map_or(gap, |s| s.min(gap)));
            }
        }
    }
    assert!(k.ext.exits.is_empty(), "{:?}", k.ext.exits);
    seen.broken = laws.broken;
    seen
}

pub fn work(k: &Kernel) -> u64 {
    k.tasks.iter().map(|t| t.account.run_ns).sum()
}

/// Returns the number of turns that threads have finished.
pub fn units(k: &Kernel) -> u64 {
    k.tasks.iter().map(|t| t.account.work_units).sum()
}

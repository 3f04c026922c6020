// SPDX-License-Identifier: GPL-2.0-only
//! Work conservation on random machines: no CPU is idle for longer than a scheduler's bound while a
//! task waits that may run there.
//!
//! Each scheduler's bound follows from how it moves tasks; the function of the bound explains it.
//! Machines, workloads and the CPUs that are off line are drawn from seeds; `machines.rs` defines
//! the range.

use scxlab_kernel::Kernel;
use scxlab_kernel::behavior::Sys;
use scxlab_machine::id::{CpuId, Nanos};
use scxlab_machine::{Machine, Stream, Topology};
use scxlab_testkit::checks::{Contract, LawChecker};
use scxlab_testkit::machines::{self, LOADS, RandomLoad};
use scxlab_testkit::{parallel, shipped, sim};
use std::ops::Range;
use std::sync::Arc;

const MS: Nanos = 1_000_000;
/// Tick period in the machines' cost table.
const TICK: Nanos = 4 * MS;

/// A scheduler and its guarantee.
#[derive(Clone, Copy)]
struct Promise {
    scheduler: &'static str,
    bound: fn(&Topology, RandomLoad) -> Nanos,
    /// Whether the scheduler stays loaded when CPUs go off line and come back.
    hotplug: bool,
}

/// Bound of the default class. A group counts as overloaded once its load average says so: the rise
/// from 0 to 85 % takes three half-lives of 32 ms, on a slow CPU longer in proportion. From then
/// on, the kernel balances a domain of n CPUs at least every 2n ms. Seven such intervals may pass:
/// the balancer passes over hot or unsuitable tasks 3 times (`cache_nice_tries` + 1), fails 3 more
/// times, and then pushes the running task. Nested domains need no more time, because their
/// intervals add up to 2n ms. Where the balancer has found only pinned tasks, the interval grows to
/// up to 1024 ms (twice `MAX_PINNED_INTERVAL`), but no more than n tenths of a second
/// (`max_load_balance_interval`).
fn eevdf(t: &Topology, load: RandomLoad) -> Nanos {
    let n = t.nr_cpus() as Nanos;
    let slowest = t.cpus().iter().map(|cpu| cpu.capacity).min().unwrap_or(1024);
    let pinned = match load {
        RandomLoad::Pinned | RandomLoad::Shifting => (1024 * MS).min(n * 100 * MS),
        _ => 0,
    };
    100 * MS * 1024 / Nanos::from(slowest) + 7 * 2 * n * MS + pinned + TICK
}

/// Bound of `vtime`: an enqueue kicks an idle CPU at once. The bound is the time of the interrupt
/// and of the queue's lock, for which all CPUs may wait several times, some microseconds each.
fn vtime(t: &Topology, _: RandomLoad) -> Nanos {
    MS + t.nr_cpus() as Nanos * 50_000
}

/// Bound of `o1`: each idle tick (10 ms) makes all idle CPUs look for work while any task waits,
/// and at least one of them finds some.
fn o1(t: &Topology, _: RandomLoad) -> Nanos {
    (t.nr_cpus() as Nanos + 1) * 10 * MS
}

/// Bound of `credit`: each accounting of credits (30 ms) makes all idle CPUs look for work. If a
/// task slept briefly at the time of an accounting, the idle CPUs find it at the next one.
fn credit(_: &Topology, _: RandomLoad) -> Nanos {
    60 * MS
}

/// Bound of `goodness`: an enqueue kicks an idle CPU, as in `vtime`. A CPU that finds nothing looks
/// again at the kernel's next tick on this CPU.
fn goodness(_: &Topology, _: RandomLoad) -> Nanos {
    2 * TICK
}

/// Bound of `fair`: a CPU with a waiting task kicks idle CPUs at its tick, and a kicked CPU takes
/// one task. Kicks go to idle cores before the second threads of cores, and to each CPU at most
/// once a tick. A second thread may therefore see tasks wait for as many ticks as there are CPUs.
/// Two ticks are added: one for the waiting task's CPU, one for the idle CPU.
fn fair(t: &Topology, _: RandomLoad) -> Nanos {
    (t.nr_cpus() as Nanos + 2) * TICK
}

/// Bound of `fair,load=pelt`: beyond the bound of `fair`, idle CPUs may leave the tasks of a busy
/// CPU alone until this CPU has had work without a break for two half-lives (32 periods of 2^20 ns
/// each).
fn fair_pelt(t: &Topology, load: RandomLoad) -> Nanos {
    fair(t, load) + ((2 * 32) << 20)
}

const DEFAULT_CLASS: Promise = Promise { scheduler: "eevdf", bound: eevdf, hotplug: true };

const SCHEDULERS: [Promise; 10] = [
    Promise { scheduler: "vtime", bound: vtime, hotplug: false },
    Promise { scheduler: "o1", bound: o1, hotplug: true },
    Promise { scheduler: "o1,mode=mqo1", bound: o1, hotplug: true },
    Promise { scheduler: "credit", bound: credit, hotplug: true },
    Promise { scheduler: "credit,tickle=old", bound: credit, hotplug: true },
    Promise { scheduler: "goodness", bound: goodness, hotplug: true },
    Promise { scheduler: "goodness,mode=2.4", bound: goodness, hotplug: true },
    Promise { scheduler: "goodness,mode=hamq", bound: goodness, hotplug: true },
    Promise { scheduler: "fair", bound: fair, hotplug: true },
    Promise { scheduler: "fair,load=pelt", bound: fair_pelt, hotplug: true },
];

/// Parameters of one run; in an error, they identify the run.
struct RandomRun {
    promise: Promise,
    load: RandomLoad,
    seed: u64,
    cpus_max: u64,
}

impl RandomRun {
    fn run(&self) -> Result<(), String> {
        let drawn = machines::machine(self.seed, self.cpus_max);
        let machine = Arc::new(drawn.machine);
        let nr_cpus = machine.topology.nr_cpus() as u64;
        let text = machines::load(self.load, self.seed, nr_cpus);
        let mut k = sim::kernel_on(Machine::clone(&machine), &text, self.seed);
        let mut rng = Stream::new(self.seed, "off line", 0);
        self.toggle(&mut k, &mut rng);
        if self.promise.scheduler != "eevdf" {
            shipped::attach_with_recipe(&mut k, self.promise.scheduler, &machine);
        }
        let bound = (self.promise.bound)(&machine.topology, self.load);
        let watched = self.watch(&mut k, &mut rng, bound);
        watched.map_err(|why| {
            let RandomRun { promise, load, seed, cpus_max } = self;
            let off: Vec<_> = k.cpus.iter().filter(|c| !c.online).map(|c| c.id.0).collect();
            let (name, bound) = (promise.scheduler, bound / MS);
            format!(
                "{name}, machine {seed} of up to {cpus_max} CPUs ({nr_cpus}, off line {off:?}), {load:?}, bound {bound} ms: \
                 {why}\n{}\n{text}",
                drawn.text
            )
        })
    }

    /// Runs two phases; between them, some CPUs may go off line or come back. Each phase is long
    /// enough to show a violation.
    fn watch(&self, k: &mut Kernel, rng: &mut Stream, bound: Nanos) -> Result<(), String> {
        let step = (bound / 16).clamp(MS / 8, 4 * MS);
        k.start();
        for _ in 0..2 {
            let mut watch =
                LawChecker::new(Contract { idle_grace: Some(bound), ..Contract::default() });
            let end = k.now + bound + 150 * MS;
            while k.now < end && k.end.stop.is_none() {
                k.advance((k.now + step).min(end));
                watch.look(k);
                if let Some(broken) = watch.broken.first() {
                    return Err(format!(
                        "at {} us: {}: {}",
                        broken.at / 1000,
                        broken.law,
                        broken.what
                    ));
                }
            }
            if !k.ext.exits.is_empty() {
                return Err(format!("{:?}", k.ext.exits));
            }
            if !self.promise.hotplug {
                break;
            }
            self.toggle(k, rng);
        }
        Ok(())
    }

    /// In half of the cases takes some CPUs off line or back on line. CPU 0 stays on line.
    fn toggle(&self, k: &mut Kernel, rng: &mut Stream) {
        if rng.below(2) == 0 {
            return;
        }
        for cpu in 1..k.cpus.len() {
            if rng.below(3) == 0 {
                let cpu = CpuId(cpu as u32);
                let online = !k.cpus[cpu].online;
                k.user(|k| k.set_cpu_online(cpu, online)).unwrap_or_else(|e| panic!("{e}"));
            }
        }
    }
}

/// Returns all violations, one line each, and the first in full.
fn broken(
    promises: &[Promise],
    loads: &[RandomLoad],
    seeds: Range<u64>,
    cpus_max: u64,
) -> Option<String> {
    let mut cases = Vec::new();
    for &promise in promises {
        for seed in seeds.clone() {
            cases.extend(loads.iter().map(|&load| RandomRun { promise, load, seed, cpus_max }));
        }
    }
    let broken: Vec<String> =
        parallel::map(&cases, |case| case.run().err()).into_iter().flatten().collect();
    let heads: Vec<&str> = broken.iter().map(|b| b.lines().next().unwrap_or_default()).collect();
    broken.first().map(|first| format!("{} broken:\n{}\n\n{first}", heads.len(), heads.join("\n")))
}

fn hold(promises: &[Promise], loads: &[RandomLoad], seeds: Range<u64>, cpus_max: u64) {
    if let Some(broken) = broken(promises, loads, seeds, cpus_max) {
        panic!("{broken}");
    }
}

#[test]
fn the_default_class_conserves_work() {
    hold(&[DEFAULT_CLASS], &LOADS, 0..24, 16);
}

#[test]
fn schedulers_conserve_work() {
    hold(&SCHEDULERS, &LOADS, 0..24, 16);
}

#[test]
fn schedulers_conserve_work_on_larger_machines() {
    hold(&SCHEDULERS, &LOADS, 100..103, 64);
}

/// Leaves out the `o1` schedulers: a CPU of theirs may be idle beside waiting tasks for 10 ms per
/// CPU of the machine, which is 5 s for 512 CPUs.
#[test]
fn work_is_conserved_on_large_machines() {
    let short = |p: &Promise| !p.scheduler.starts_with("o1");
    let few: Vec<Promise> = SCHEDULERS.into_iter().filter(short).collect();
    hold(&few, &[RandomLoad::Hogs], 200..201, 512);
}

/// The machine has two nodes of 128 CPUs. The kernel spreads forks over both nodes, because it
/// raises its distance limit for this processor. With one hog per CPU, almost no CPU time may be
/// idle.
#[test]
fn forks_fill_both_sockets_of_an_epyc() {
    let mut k = sim::kernel("epyc-2s", "hogs,tasks=256", 1);
    k.start();
    k.advance(200 * MS);
    let before: Nanos = k.cpus.iter().map(|c| c.time.idle).sum();
    k.advance(400 * MS);
    let idle: Nanos = k.cpus.iter().map(|c| c.time.idle).sum();
    assert!(idle - before < 256 * 200 * MS / 100, "{} of 51200 ms idle", (idle - before) / MS);
}

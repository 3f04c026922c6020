// SPDX-License-Identifier: GPL-2.0-only
//! The closed loop: a simulated workload is recorded, and the recording is simulated. The ground
//! truth is known, because it is the workload itself under every scheduler.

#[path = "recordings/workloads.rs"]
mod workloads;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use scxlab_lab::input::{NoFiles, SchedulerInput};
use scxlab_lab::prepare::Prepared;
use scxlab_lab::recorded::{self, Parameters};
use scxlab_lab::run::Run;
use scxlab_lab::sim::{SimSpec, simulate};
use scxlab_machine::{Machine, Stream};
use scxlab_trace::{PerfettoSink, Tracer};
use scxlab_workload::program::dump::dump;
use scxlab_workload::{Perturb, Program, load};
use workloads::{CASES, Case};

const MS: u64 = 1_000_000;
const LENGTH: u64 = 200 * MS;

const OTHERS: [&str; 8] = [
    "credit",
    "fair",
    "fair,load=pelt",
    "goodness",
    "goodness,mode=hamq",
    "o1",
    "o1,mode=mqo1",
    "vtime",
];

fn run_with(
    machine: &Arc<Machine>,
    scheduler: &str,
    program: &Program,
    seed: u64,
    tracer: Tracer,
) -> (Run, Tracer) {
    let input = SchedulerInput::resolve(scheduler, &NoFiles).unwrap();
    let spec = SimSpec {
        machine,
        workload: program,
        scheduler: &Prepared::simulated(&input, machine).unwrap(),
        seed,
        duration: Some(LENGTH),
        cap: None,
        perturb: Perturb::default(),
        engine: Default::default(),
        max_memory: scxlab_lab::sim::MAX_MEMORY,
        numa_balancing: Default::default(),
        attach_after: None,
    };
    simulate(&spec, tracer, &|_| None).unwrap()
}

fn run(machine: &Arc<Machine>, scheduler: &str, program: &Program, seed: u64) -> Run {
    run_with(machine, scheduler, program, seed, Tracer::default()).0
}

/// Runs a program under the kernel's default class, and returns the Perfetto file of its events.
fn record(machine: &Arc<Machine>, program: &Program, seed: u64) -> (Run, Vec<u8>) {
    let bytes = Buffer::default();
    let tracer = Tracer::with_sink(PerfettoSink::new(bytes.clone(), machine));
    let (run, mut tracer) = run_with(machine, "eevdf", program, seed, tracer);
    tracer.finish().unwrap();
    let bytes = std::mem::take(&mut *bytes.0.lock().unwrap());
    (run, bytes)
}

fn replay(bytes: &[u8]) -> Program {
    let parameters = Parameters { repeat: 1, scale: 1 };
    let recorded = recorded::read("a.pftrace", bytes, parameters).unwrap().unwrap();
    assert!(recorded.knows_machine);
    let program = recorded.replay.program;
    if let Err(error) = scxlab_workload::compile::check(&program) {
        panic!("{error}\n{}", dump(&program));
    }
    program
}

/// A file in memory.
#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl std::io::Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn metric(run: &Run, name: &str) -> f64 {
    run.metrics.get(name).map_or(0.0, |m| m.value)
}

/// Returns the CPU time of the tasks by name, without the numbers that tell instances apart.
fn run_time(run: &Run) -> BTreeMap<String, u64> {
    let mut times = BTreeMap::new();
    for task in &run.tasks {
        let role = task.name.split(['-', '.']).next().unwrap_or_default();
        *times.entry(role.to_owned()).or_default() += task.run_ns;
    }
    times
}

/// Returns Kendall's tau of two series over the pairs that the first one tells apart: whose
/// difference is above this part of the larger value.
fn tau(a: &[f64], b: &[f64], apart: f64) -> f64 {
    let (mut score, mut pairs) = (0, 0);
    for i in 0..a.len() {
        for j in 0..i {
            if (a[i] - a[j]).abs() > apart * a[i].max(a[j]) {
                pairs += 1;
                score += if (a[i] < a[j]) == (b[i] < b[j]) { 1 } else { -1 };
            }
        }
    }
    if pairs == 0 { 1.0 } else { f64::from(score) / f64::from(pairs) }
}

fn percent(replayed: f64, original: f64) -> f64 {
    if original == 0.0 { 0.0 } else { (replayed / original - 1.0) * 100.0 }
}

fn row(case: &Case, seed: u64) -> (f64, f64) {
    let machine = Arc::new(Machine::resolve(case.machine).unwrap());
    let original = load("original.toml", case.text).unwrap();
    let (first, bytes) = record(&machine, &original, seed);
    let again = replay(&bytes);
    let replayed = run(&machine, "eevdf", &again, seed);
    let (a, b) = (run_time(&first), run_time(&replayed));
    let times: Vec<String> = a
        .iter()
        .map(|(role, ns)| {
            format!("{role} {:+.1}", percent(b.get(role).copied().unwrap_or(0) as f64, *ns as f64))
        })
        .collect();
    let runs = |p: &Program, seed: u64| -> Vec<Vec<Run>> {
        let all = ["eevdf"].into_iter().chain(OTHERS);
        all.map(|s| (seed..seed + 3).map(|seed| run(&machine, s, p, seed)).collect()).collect()
    };
    let (originals, replays) = (runs(&original, seed), runs(&again, seed));
    let others = runs(&original, seed + 3);
    let all = |runs: &[Vec<Run>], name: &str| -> Vec<f64> {
        let mean =
            |runs: &Vec<Run>| runs.iter().map(|r| metric(r, name)).sum::<f64>() / runs.len() as f64;
        runs.iter().map(mean).collect()
    };
    let apart = |name: &str| if name == "throughput" { 0.01 } else { 0.05 };
    let tau_of = |name: &str| tau(&all(&originals, name), &all(&replays, name), apart(name));
    let ceiling = |name: &str| tau(&all(&originals, name), &all(&others, name), apart(name));
    let (t, p) = (tau_of("throughput"), tau_of("run_queue_wait_p99"));
    let (tc, pc) = (ceiling("throughput"), ceiling("run_queue_wait_p99"));
    let error = |name: &str| percent(all(&replays[..1], name)[0], all(&originals[..1], name)[0]);
    let counts = again.unit == "unit";
    let throughput = if counts { error("throughput") } else { 0.0 };
    println!(
        "{:18} {seed} thr {throughput:+6.1}% p50 {:+6.1}% p99 {:+6.1}% | tau thr {t:.2} ({tc:.2}) p99 {p:.2} ({pc:.2}) | ops {:6} stop {:?} | {}",
        case.name,
        error("run_queue_wait_p50"),
        error("run_queue_wait_p99"),
        again.threads.iter().map(|t| t.ops.len()).sum::<usize>(),
        replayed.stop.kind,
        times.join(", "),
    );
    (t, p)
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The schedulers have the order by throughput and by waits that they have with the original. The
/// bounds are medians over the workloads.
#[test]
fn schedulers_have_the_order_of_the_original() {
    let taus: Vec<(f64, f64)> = CASES.iter().map(|case| row(case, 1)).collect();
    let throughput = median(taus.iter().map(|t| t.0).collect());
    let p99 = median(taus.iter().map(|t| t.1).collect());
    println!("median tau: throughput {throughput:.2}, p99 {p99:.2}");
    assert!(throughput >= 0.8 && p99 >= 0.8, "{throughput} {p99}");
}

/// A random program: threads that compute, sleep, use mutexes, post and wait in rings, and pass
/// bytes along.
fn random_program(seed: u64) -> String {
    let mut stream = Stream::new(seed, "random program", 0);
    let mut text = String::new();
    let threads = 2 + stream.below(4);
    let barrier = stream.below(3) == 0;
    for t in 0..threads {
        let mut ops = Vec::new();
        let next = (t + 1) % threads;
        if barrier {
            ops.push("{ barrier = 'b' }".to_owned());
        }
        for _ in 0..1 + stream.below(4) {
            let us = 5 + stream.below(400);
            let mutex = stream.below(2);
            ops.push(match stream.below(5) {
                0 => format!("{{ sleep = '{us}us' }}"),
                1 => format!(
                    "{{ lock = 'm{mutex}' }}, {{ compute = '{us}us' }}, {{ unlock = 'm{mutex}' }}"
                ),
                2 => format!("{{ io = {{ bytes = {us} }} }}"),
                _ => format!("{{ compute = '{us}us' }}"),
            });
        }
        // A ring of semaphores or channels. The first thread begins each round.
        let bytes = 1 + stream.below(5000);
        let (give, take) = match seed % 3 {
            0 => (format!("{{ sem_post = 's{next}' }}"), format!("{{ sem_wait = 's{t}' }}")),
            1 => (
                format!("{{ write = {{ pipe = 'p{next}', bytes = 300 }} }}"),
                format!("{{ read = {{ pipe = 'p{t}', bytes = 300 }} }}"),
            ),
            _ => (format!("{{ touch = {{ size = {bytes} }} }}"), "'yield'".to_owned()),
        };
        let ring = if t == 0 { [give, take] } else { [take, give] };
        ops.extend(ring);
        ops.push("{ count = 1 }".to_owned());
        let nice = if stream.below(4) == 0 { stream.below(10) } else { 0 };
        text.push_str(&format!(
            "[[thread]]\nname = 't{t}'\nnice = {nice}\nops = [{{ loop = {{ ops = [{}] }} }}]\n",
            ops.join(", ")
        ));
    }
    text
}

/// A replay goes on as long as its original does, under any scheduler, and its tasks use the CPU
/// time of the original's.
#[test]
fn random_programs_replay() {
    for seed in 1..=40 {
        let text = random_program(seed);
        let spec = ["1n1c1t", "1n2c1t", "1n2c2t", "1n4c1t"][seed as usize / 3 % 4];
        let machine = Arc::new(Machine::resolve(spec).unwrap());
        let original = load("random.toml", &text).unwrap();
        let (first, bytes) = record(&machine, &original, seed);
        let again = replay(&bytes);
        for scheduler in ["eevdf", "vtime", "o1"] {
            let run = run(&machine, scheduler, &again, seed);
            assert_eq!(run.stop.kind, first.stop.kind, "seed {seed}, {scheduler}: {text}");
        }
        let replayed = run(&machine, "eevdf", &again, seed);
        let (a, b) = (total(&first), total(&replayed));
        let thr = percent(metric(&replayed, "throughput"), metric(&first, "throughput"));
        println!("{seed:3} {spec} run time {:+.1}% throughput {thr:+.1}%", percent(b, a));
    }
}

fn total(run: &Run) -> f64 {
    run.tasks.iter().map(|task| task.run_ns as f64).sum()
}

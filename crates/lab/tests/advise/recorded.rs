// SPDX-License-Identifier: GPL-2.0-only
//! Advice on recordings: the regret of the scheduler that is recommended for a recording, measured
//! with the workload that was recorded.

#[path = "../recordings/workloads.rs"]
mod workloads;

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::{Arc, Mutex};

use rayon::prelude::*;
use scxlab_lab::advise::world::{Purpose, World};
use scxlab_lab::advise::{Advice, Rounds};
use scxlab_lab::input::{MemoryFiles, NoFiles, SchedulerInput, Workload};
use scxlab_lab::prepare::Prepared;
use scxlab_lab::sim::{SimSpec, simulate};
use scxlab_trace::{PerfettoSink, Tracer};
use workloads::{CASES, Case};

use super::regret::regret;
use super::{Question, question};

const LENGTH: u64 = 200_000_000;

/// A file in memory.
#[derive(Clone, Default)]
struct Buffer(Arc<Mutex<Vec<u8>>>);

impl Write for Buffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Returns the Perfetto file of a run under the kernel's default class.
fn record(original: &Question) -> Vec<u8> {
    let input = SchedulerInput::resolve("eevdf", &NoFiles).unwrap();
    let scheduler = Prepared::simulated(&input, &original.machine).unwrap();
    let spec = SimSpec::new(&original.machine, &original.program, &scheduler, 1);
    let spec = SimSpec { duration: Some(LENGTH), ..spec };
    let bytes = Buffer::default();
    let sink = PerfettoSink::new(bytes.clone(), &original.machine);
    let (_, mut tracer) = simulate(&spec, Tracer::with_sink(sink), &|_| None).unwrap();
    tracer.finish().unwrap();
    std::mem::take(&mut *bytes.0.lock().unwrap())
}

/// Returns the question about a case, and that about its recording.
fn questions(case: &Case, rounds: Rounds) -> (Question, Question) {
    let text = format!("duration = \"200ms\"\n{}", case.text);
    let mut original = question(&text, case.machine).goal("max:throughput");
    original.rounds = Some(rounds);
    let mut recorded = question("hogs", case.machine).goal("max:throughput");
    recorded.rounds = Some(rounds);
    recorded.files.0 = BTreeMap::from([("rec.pftrace".to_owned(), record(&original))]);
    let name = match case.parameters() {
        "" => "rec.pftrace".to_owned(),
        parameters => format!("rec.pftrace,{parameters}"),
    };
    let workload = Workload::resolve(&name, &recorded.files).unwrap();
    let Workload::Program(program) = workload else { panic!("a command") };
    recorded.program = *program;
    recorded.program.name = case.name.to_owned();
    (original, recorded)
}

/// Returns the mean throughput of the original under each candidate that was not ejected, in worlds
/// that the search has not seen. A task that is forked just before the end may not have run yet.
fn measured(original: &Question, advice: &Advice, worlds: u32) -> Vec<(String, f64)> {
    let seed = original.seed + 1000;
    let world = |n| World::new(&original.machine, &original.program, seed, Purpose::Decide, n);
    let worlds: Vec<World> = (0..worlds).map(world).collect();
    let candidates = advice.candidates.iter().map(|c| c.scheduler.as_str()).chain(["eevdf"]);
    let mean = |text: &str| {
        let input = SchedulerInput::resolve(text, &NoFiles).unwrap();
        let scheduler = Prepared::simulated(&input, &original.machine).unwrap();
        let throughput = |world: &World| {
            let program = world.program.as_deref().unwrap_or(&original.program);
            let spec = SimSpec::new(&world.machine, program, &scheduler, world.seed);
            let spec = SimSpec { perturb: world.perturb, duration: Some(LENGTH), ..spec };
            let run = simulate(&spec, Tracer::default(), &|_| None).unwrap().0;
            (!run.was_ejected()).then(|| run.metrics.get("throughput").map_or(0.0, |m| m.value))
        };
        let sum: Option<f64> = worlds.par_iter().map(throughput).sum();
        Some((text.to_owned(), sum? / worlds.len() as f64))
    };
    candidates.filter_map(mean).collect()
}

fn check(rounds: Rounds, worlds: u32, among: &[&str]) {
    let regret_of = |case: &Case| {
        let (original, recorded) = questions(case, rounds);
        let recorded = recorded.among(among);
        regret(&recorded, |advice| measured(&original, advice, worlds))
    };
    let mut all: Vec<f64> = CASES.iter().map(regret_of).collect();
    all.sort_by(f64::total_cmp);
    println!("median {:.4}, worst {:.4}", all[all.len() / 2], all[all.len() - 1]);
    assert!(all[all.len() / 2] < 0.03, "{all:?}");
    assert!(all[all.len() - 1] < 0.10, "{all:?}");
}

const SOME: [&str; 8] = [
    "credit",
    "fair",
    "fair,load=pelt",
    "goodness",
    "goodness,mode=hamq",
    "o1",
    "o1,mode=mqo1",
    "vtime",
];

/// The scheduler that is recommended for a recording is nearly the best for its original. With
/// `REGRET=all`, among all shipped schedulers with all settings that `advise` tries, which takes
/// some minutes.
#[test]
fn the_scheduler_for_a_recording_suits_its_original() {
    match std::env::var_os("REGRET").is_some() {
        true => check(Rounds { search: 24, decide: 24 }, 24, &[]),
        false => check(Rounds { search: 4, decide: 12 }, 8, &SOME),
    }
}

/// Arrivals from outside come at other times in each world, and at the same times for all
/// candidates.
#[test]
fn arrivals_differ_between_worlds() {
    let text = r#"
duration = "200ms"
[[thread]]
name = "user"
instances = 3
ops = [{ loop = { ops = [{ sleep = "700us" }, { write = { pipe = "in", bytes = 100 } }] } }]
[[thread]]
name = "server"
ops = [{ loop = { ops = [{ read = { pipe = "in", bytes = 100 } }, { compute = "70us" }] } }]"#;
    let original = question(text, "2c");
    let mut files = MemoryFiles::default();
    files.0.insert("rec.pftrace".to_owned(), record(&original));
    let resolve = |arg: &str| match Workload::resolve(arg, &files).unwrap() {
        Workload::Program(program) => program,
        _ => panic!("a command"),
    };
    let server = resolve("rec.pftrace,tasks=server");
    let world = |n| World::new(&original.machine, &server, 1, Purpose::Search, n).program;
    let ops = |n| world(n).unwrap().threads[0].ops.clone();
    assert_eq!(ops(1), ops(1));
    assert_ne!(ops(1), ops(2));
    assert_ne!(ops(1), server.threads[0].ops);
    // A recording without anything outside stays as it is.
    let whole = resolve("rec.pftrace");
    assert!(World::new(&original.machine, &whole, 1, Purpose::Search, 1).program.is_none());
}

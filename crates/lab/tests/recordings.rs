// SPDX-License-Identifier: GPL-2.0-only
//! The closed loop: a simulated workload is recorded, and the recording is simulated. The ground
//! truth is known, because it is the workload itself under every scheduler.

#[path = "recordings/alike.rs"]
mod alike;
#[path = "recordings/builds.rs"]
mod builds;
#[path = "recordings/collector.rs"]
mod collector;
#[path = "recordings/scaled.rs"]
mod scaled;
#[path = "recordings/servers.rs"]
mod servers;
#[path = "recordings/text.rs"]
mod text;
#[path = "recordings/turns.rs"]
mod turns;
#[path = "recordings/workloads.rs"]
mod workloads;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};

use scxlab_lab::input::{MemoryFiles, NoFiles, SchedulerInput, Workload};
use scxlab_lab::prepare::Prepared;
use scxlab_lab::recorded::{self, Parameters, Recorded, RecordedError};
use scxlab_lab::reproduce::score::median;
use scxlab_lab::run::Run;
use scxlab_lab::sim::{SimSpec, simulate};
use scxlab_machine::{Machine, Stream, TaskId};
use scxlab_recording::{Options, Recorder, Wait, infer};
use scxlab_trace::import::import;
use scxlab_trace::{Call, Event, EventKind, Names, PerfettoSink, Sink, Tracer};
use scxlab_workload::program::{Op, ThreadTemplate};
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

/// How a run goes.
#[derive(Clone, Copy)]
struct Terms {
    seed: u64,
    length: u64,
    perturb: Perturb,
}

impl Terms {
    fn exact(seed: u64, length: u64) -> Terms {
        Terms { seed, length, perturb: Perturb::default() }
    }

    /// With the noise of `scxlab run`, without which threads that run in step make of their waits
    /// whatever one order of events happens to be. Without its start offsets, which change the
    /// phases of timers, and so make another workload than the recorded one.
    fn noisy(seed: u64, length: u64) -> Terms {
        let perturb = Perturb { start_offset_max: 0, compute_noise_permille: 10 };
        Terms { seed, length, perturb }
    }
}

fn run_on(machine: &Arc<Machine>, scheduler: &str, program: &Program, terms: Terms) -> Run {
    run_with(machine, scheduler, program, terms, Tracer::default()).0
}

fn run_with(
    machine: &Arc<Machine>,
    scheduler: &str,
    program: &Program,
    Terms { seed, length, perturb }: Terms,
    tracer: Tracer,
) -> (Run, Tracer) {
    let input = SchedulerInput::resolve(scheduler, &NoFiles).unwrap();
    let scheduler = Prepared::simulated(&input, machine).unwrap();
    let spec = SimSpec::new(machine, program, &scheduler, seed);
    let spec = SimSpec { duration: Some(length), perturb, ..spec };
    simulate(&spec, tracer, &|_| None).unwrap()
}

fn run(machine: &Arc<Machine>, scheduler: &str, program: &Program, seed: u64) -> Run {
    run_for(machine, scheduler, program, seed, LENGTH)
}

fn run_for(
    machine: &Arc<Machine>,
    scheduler: &str,
    program: &Program,
    seed: u64,
    length: u64,
) -> Run {
    run_on(machine, scheduler, program, Terms::exact(seed, length))
}

/// Runs a program under the kernel's default class, and returns the Perfetto file of its events.
fn record(machine: &Arc<Machine>, program: &Program, seed: u64) -> (Run, Vec<u8>) {
    record_on(machine, program, Terms::exact(seed, LENGTH))
}

fn record_on(machine: &Arc<Machine>, program: &Program, terms: Terms) -> (Run, Vec<u8>) {
    let bytes = Buffer::default();
    let tracer = Tracer::with_sink(PerfettoSink::new(bytes.clone(), machine));
    let (run, mut tracer) = run_with(machine, "eevdf", program, terms, tracer);
    tracer.finish().unwrap();
    let bytes = std::mem::take(&mut *bytes.0.lock().unwrap());
    (run, bytes)
}

fn replay(bytes: &[u8]) -> Program {
    let recorded = read(bytes, "").unwrap();
    assert!(recorded.knows_machine);
    recorded.replay.program
}

/// Reads a file in memory, with parameters behind its name.
fn read(bytes: &[u8], parameters: &str) -> Result<Recorded, RecordedError> {
    let open = || -> std::io::Result<Box<dyn std::io::Read>> { Ok(Box::new(bytes)) };
    recorded::read("a.pftrace", &open, &Parameters::parse("a.pftrace", parameters)?)
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

/// How a replay compares with its original.
struct Closed {
    /// Difference in throughput under the recording's own scheduler, in percent. None: the replay
    /// counts other units.
    throughput: Option<f64>,
    tau_throughput: f64,
    tau_p99: f64,
}

fn closed(case: &Case, seed: u64) -> Closed {
    let machine = Arc::new(Machine::resolve(case.machine).unwrap());
    let original = load("original.toml", case.text).unwrap();
    let recorded = |seed| {
        let (first, bytes) = record_on(&machine, &original, Terms::noisy(seed, LENGTH));
        (first, read(&bytes, case.parameters()).unwrap().replay.program)
    };
    let (first, again) = recorded(seed);
    let counts = again.unit == "unit";
    let one = |scheduler: &str, program: &Program, seed| {
        run_on(&machine, scheduler, program, Terms::noisy(seed, LENGTH))
    };
    let runs = |program: &Program, seed: u64| -> Vec<Vec<Run>> {
        let three = |s| (seed..seed + 3).map(|seed| one(s, program, seed)).collect();
        ["eevdf"].into_iter().chain(OTHERS).map(three).collect()
    };
    // The original with other seeds shows how well an order can be predicted at all.
    let (originals, replays, others) =
        (runs(&original, seed), runs(&again, seed), runs(&original, seed + 3));
    let error = |name: &str| percent(means(&replays, name)[0], means(&originals, name)[0]);
    let order = |to: &[Vec<Run>], name: &str, apart: f64| {
        tau(&means(&originals, name), &means(to, name), apart)
    };
    let (throughput, p99) = (("throughput", 0.01), ("run_queue_wait_p99", 0.05));
    // Other recordings, each with its own replay.
    let pair = |seed| {
        let (first, again) = recorded(seed);
        (first, one("eevdf", &again, seed))
    };
    let (recordings, again): (Vec<Run>, Vec<Run>) = (seed..seed + 6).map(pair).unzip();
    let [recorded, replayed] = [recordings, again].map(|runs| means(&[runs], "throughput")[0]);
    let closed = Closed {
        throughput: counts.then(|| percent(replayed, recorded)),
        tau_throughput: order(&replays, throughput.0, throughput.1),
        tau_p99: order(&replays, p99.0, p99.1),
    };
    let (a, b) = (run_time(&first), run_time(&replays[0][0]));
    let role = |(role, ns): (&String, &u64)| {
        format!("{role} {:+.1}", percent(b.get(role).copied().unwrap_or(0) as f64, *ns as f64))
    };
    println!(
        "{:18} {seed} throughput {:+6.1} % p50 {:+6.1} % p99 {:+6.1} % | tau {:.2} ({:.2}) p99 {:.2} ({:.2}) | {}",
        case.name,
        closed.throughput.unwrap_or(f64::NAN),
        error("run_queue_wait_p50"),
        error(p99.0),
        closed.tau_throughput,
        order(&others, throughput.0, throughput.1),
        closed.tau_p99,
        order(&others, p99.0, p99.1),
        a.iter().map(role).collect::<Vec<_>>().join(", "),
    );
    closed
}

/// Returns the mean of a metric for each scheduler.
fn means(runs: &[Vec<Run>], name: &str) -> Vec<f64> {
    let mean =
        |runs: &Vec<Run>| runs.iter().map(|run| metric(run, name)).sum::<f64>() / runs.len() as f64;
    runs.iter().map(mean).collect()
}

/// Under the recordings' own scheduler, replays do what the recorded runs did; under others, the
/// schedulers have the order by throughput and by waits that they have with the original. The
/// bounds of the order are medians over the workloads.
#[test]
fn a_replay_predicts_its_original() {
    for seed in [1, 11] {
        let all: Vec<Closed> = CASES.iter().map(|case| closed(case, seed)).collect();
        let of =
            |tau: fn(&Closed) -> f64| median(&all.iter().map(tau).collect::<Vec<_>>()).unwrap();
        let throughput = of(|c| c.tau_throughput);
        let p99 = of(|c| c.tau_p99);
        println!("median tau: throughput {throughput:.2}, p99 {p99:.2}");
        assert!(throughput >= 0.8 && p99 >= 0.8, "seed {seed}: {throughput} {p99}");
        for (case, closed) in CASES.iter().zip(&all) {
            let error = closed.throughput.unwrap_or(0.0);
            assert!(error.abs() <= 5.0, "{}, seed {seed}: {error:+.1} %", case.name);
        }
    }
}

/// Recordings of a second, each compared with its own replay.
const RECORDINGS: u64 = 24;

/// Cases whose waits vary so much from run to run that a mean of fewer recordings tells little, and
/// the number of their recordings.
const MORE: [(&str, u64); 1] = [("frames", 192)];

/// What is further off than 5 % after a second of recording, and how far at most, in percent. The
/// page docs/concepts/recordings.md tells why.
const FAR: [(&str, &str, f64); 3] = [
    ("messaging", "run_queue_wait_p99", 10.0),
    ("guests", "run_queue_wait_p99", 20.0),
    ("guests", "run_queue_wait_p50", 8.0),
];

/// After a second of recording, throughput, the CPU time of each role and the quantiles of waits
/// are within 5 % of the original's, in the mean over the recordings.
#[test]
#[ignore = "long"]
fn a_second_tells_the_quantiles_of_waits() {
    const SECOND: u64 = 1000 * MS;
    let mut faults = Vec::new();
    for case in &CASES {
        let machine = Arc::new(Machine::resolve(case.machine).unwrap());
        let original = load("original.toml", case.text).unwrap();
        let pair = |seed| {
            let (first, bytes) = record_on(&machine, &original, Terms::noisy(seed, SECOND));
            let again = replay(&bytes);
            let counts = again.unit == "unit";
            (
                counts,
                figures_of(&first),
                figures_of(&run_on(&machine, "eevdf", &again, Terms::noisy(seed + 100, SECOND))),
            )
        };
        let more = MORE.iter().find(|(of, _)| *of == case.name);
        let recordings = more.map_or(RECORDINGS, |(_, recordings)| *recordings);
        let pairs: Vec<_> = (1..=recordings).map(pair).collect();
        for name in pairs[0].1.keys() {
            if name == "throughput" && !pairs[0].0 {
                continue;
            }
            let of = |figures: &BTreeMap<String, f64>| figures.get(name).copied().unwrap_or(0.0);
            let originals: Vec<f64> = pairs.iter().map(|pair| of(&pair.1)).collect();
            let replays: Vec<f64> = pairs.iter().map(|pair| of(&pair.2)).collect();
            let error = percent(mean(&replays), mean(&originals));
            let apart = 100.0 * (variance(&replays) + variance(&originals)).sqrt()
                / (recordings as f64).sqrt()
                / mean(&originals);
            println!("{:18} {name} {error:+.1} % (standard error {apart:.1} %)", case.name);
            let far = FAR.iter().find(|(of, what, _)| (*of, *what) == (case.name, &**name));
            let bound = far.map_or(5.0, |(.., bound)| *bound);
            faults.extend(
                (error.abs() > bound).then(|| format!("{}: {name} {error:+.1} %", case.name)),
            );
        }
    }
    assert!(faults.is_empty(), "{faults:#?}");
}

/// Returns the throughput, quantiles of waits, and the CPU time of each role.
fn figures_of(run: &Run) -> BTreeMap<String, f64> {
    let names = ["throughput", "run_queue_wait_p50", "run_queue_wait_p99"];
    let metrics = names.into_iter().map(|name| (name.to_owned(), metric(run, name)));
    let times = run_time(run);
    let times = times.into_iter().map(|(role, ns)| (format!("run time of {role}"), ns as f64));
    metrics.chain(times).collect()
}

fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

fn variance(values: &[f64]) -> f64 {
    let mean = mean(values);
    values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / (values.len() - 1) as f64
}

/// A mutex is barging if calls on it wake nobody. On two CPUs most uses of it show no call, so the
/// replay has fewer waits (155 of 877), but the throughput of the original.
#[test]
fn a_barging_mutex_is_told_from_one_that_is_handed_over() {
    let machine = Arc::new(Machine::resolve("1n2c1t").unwrap());
    for barging in [true, false] {
        let text = format!(
            "[[mutex]]\nname = 'm'\nbarging = {barging}\n[[thread]]\nname = 't'\n\
             instances = 4\nops = [{{ loop = {{ ops = [{{ lock = 'm' }}, {{ compute = '20us' }}, \
             {{ unlock = 'm' }}, {{ compute = '30us' }}, {{ count = 1 }}] }} }}]"
        );
        let program = load("contenders.toml", &text).unwrap();
        let (first, bytes) = record(&machine, &program, 1);
        let again = replay(&bytes);
        assert_eq!(again.mutexes.iter().any(|m| m.barging), barging, "{:?}", again.mutexes);
        let second = run(&machine, "eevdf", &again, 1);
        let apart = percent(metric(&second, "work_units"), metric(&first, "work_units"));
        assert!(apart.abs() < 5.0, "barging {barging}: {apart:+.1} %");
    }
}

/// A pipe that was full has in the replay the capacity that it had. A pass writes as many bytes as
/// it reads, although the end of the recording cuts off a write that waits for room.
#[test]
fn the_capacity_of_a_full_pipe_is_told() {
    let machine = Arc::new(Machine::resolve("1n2c1t").unwrap());
    for (capacity, bytes) in [(16384, 1024), (16384, 700), (4096, 4000), (65536, 5000), (8192, 1)] {
        let text = format!(
            "[[pipe]]\nname = 'p'\ncapacity = {capacity}\n\
             [[thread]]\nname = 'writer'\nops = [{{ loop = {{ ops = [\
             {{ write = {{ pipe = 'p', bytes = {bytes} }} }}] }} }}]\n\
             [[thread]]\nname = 'reader'\nops = [{{ loop = {{ ops = [\
             {{ read = {{ pipe = 'p', bytes = {bytes} }} }}, {{ compute = '5us' }}] }} }}]"
        );
        let (_, bytes) = record(&machine, &load("w.toml", &text).unwrap(), 1);
        let program = replay(&bytes);
        let capacities: Vec<Option<u64>> = program.pipes.iter().map(|pipe| pipe.capacity).collect();
        assert_eq!(capacities, [Some(capacity)], "{text}");
        let [written, read] = ["writer", "reader"].map(|name| match &*thread(&program, name).ops {
            [Op::Loop { times: None, ops }] => ops.iter().map(bytes_of).sum::<u64>(),
            ops => panic!("{name}: {} ops", ops.len()),
        });
        assert_eq!(written, read, "{text}");
    }
}

fn thread<'a>(program: &'a Program, name: &str) -> &'a ThreadTemplate {
    program.threads.iter().find(|thread| thread.name == name).unwrap()
}

/// Returns the bytes that an op moves.
fn bytes_of(op: &Op) -> u64 {
    match op {
        Op::Read { bytes, .. } | Op::Write { bytes, .. } => *bytes,
        _ => 0,
    }
}

/// A wake-up that its CPU recorded after the woken task was running belongs to the wait before, and
/// not to the next one.
#[test]
fn a_late_wake_up_ends_the_wait_before_it() {
    let mut text = "# tracer: nop\n".to_owned();
    let switch = |us: u32, cpu: u32, (prev, pid, state): (&str, u32, char), next: (&str, u32)| {
        format!(
            "{prev}-{pid} (1) [00{cpu}] d..2. 1.{us:06}: sched_switch: prev_comm={prev} \
             prev_pid={pid} prev_prio=120 prev_state={state} ==> next_comm={} next_pid={} \
             next_prio=120\n",
            next.0, next.1
        )
    };
    let (idle0, idle1) = (("swapper/0", 0, 'R'), ("swapper/1", 0, 'R'));
    text += &switch(0, 0, idle0, ("waker", 10));
    text += &switch(1, 1, idle1, ("woken", 20));
    for n in 1..50 {
        let us = n * 2000;
        text += &switch(us - 1000, 1, ("woken", 20, 'S'), ("swapper/1", 0));
        text += &switch(us, 1, idle1, ("woken", 20));
        text += &format!(
            "waker-10 (1) [000] d..2. 1.{:06}: sched_waking: comm=woken pid=20 prio=120 target_cpu=001\n",
            us + 4
        );
    }
    text += &switch(100_000, 0, ("waker", 10, 'R'), ("swapper/0", 0));
    let replay = read(text.as_bytes(), "").unwrap().replay;
    let dependencies = replay.waits.iter().flatten().filter(|w| **w == Wait::Dependency).count();
    assert_eq!(dependencies, 49, "{:?}", replay.waits);
}

/// A file that is cut off is a workload as far as it goes, and says so.
#[test]
fn damage_is_told() {
    let case = &CASES[0];
    let machine = Arc::new(Machine::resolve(case.machine).unwrap());
    let (_, bytes) = record(&machine, &load("w.toml", case.text).unwrap(), 1);
    let whole = replay(&bytes).notes;
    let cut = read(&bytes[..bytes.len() / 2 - 1], "").unwrap();
    let tells = |notes: &[String]| notes.iter().any(|note| note.contains("cut off at byte"));
    assert!(tells(&cut.replay.program.notes) && !tells(&whole), "{:?}", cut.replay.program.notes);
}

/// A recording of a run in which no task begins or ends lacks neither.
#[test]
fn what_did_not_happen_is_not_missing() {
    let machine = Arc::new(Machine::resolve("1n2c1t").unwrap());
    let (_, bytes) = record(&machine, &hogs(), 1);
    let recorded = read(&bytes, "").unwrap();
    assert_eq!(recorded.imported.events.exits, 0);
    let missing = recorded.imported.missing();
    assert!(missing.iter().all(|text| !text.contains("no ends of tasks")), "{missing:?}");
}

/// A part of a recording does what the recording did in that time: its tasks use the same share of
/// the CPUs, in whatever place the window begins.
#[test]
fn a_window_is_a_workload() {
    for (case, from) in CASES.iter().zip([20, 30, 40].into_iter().cycle()) {
        let machine = Arc::new(Machine::resolve(case.machine).unwrap());
        let (first, bytes) = record(&machine, &load("w.toml", case.text).unwrap(), 1);
        let window = read(&bytes, &format!("from={from}ms,for=100ms")).unwrap();
        assert_eq!(window.replay.program.duration.unwrap().0, 100 * MS, "{}", case.name);
        let replayed = run(&machine, "eevdf", &window.replay.program, 1);
        let error = percent(total(&replayed), total(&first));
        println!("{:18} CPU time {error:+.1} %", case.name);
        assert!(error.abs() <= 12.0, "{}: CPU time {error:+.1} %", case.name);
    }
    let bytes = record(&Arc::new(Machine::resolve("2c").unwrap()), &hogs(), 1).1;
    let late = read(&bytes, "from=1s").err().unwrap().to_string();
    assert!(late.contains("nothing begins at 1s"), "{late}");
}

/// A task that runs alone on its CPU has no event in a window, and is in the workload all the same.
#[test]
fn a_window_has_the_tasks_that_run_when_it_begins() {
    let machine = Arc::new(Machine::resolve("2c").unwrap());
    let bytes = record(&machine, &hogs(), 1).1;
    let window = read(&bytes, "from=100ms,for=50ms").unwrap();
    assert_eq!(window.replay.program.threads.len(), 2);
    let run = run(&machine, "eevdf", &window.replay.program, 1);
    let hog = run.tasks.iter().find(|task| task.name == "hog").unwrap();
    assert!(hog.run_ns > LENGTH * 9 / 10, "{} ns", hog.run_ns);
}

fn hogs() -> Program {
    let text = "
[[thread]]
name = 'hog'
cpus = '0'
ops = [{ loop = { ops = [{ compute = '1ms' }] } }]
[[thread]]
name = 'timer'
cpus = '1'
ops = [{ loop = { ops = [{ sleep = '4ms' }, { compute = '10us' }] } }]";
    load("hogs.toml", text).unwrap()
}

#[test]
fn tasks_are_chosen_by_name_and_cgroup() {
    let case = CASES.iter().find(|case| case.name == "caps").unwrap();
    let machine = Arc::new(Machine::resolve(case.machine).unwrap());
    let bytes = record(&machine, &load("w.toml", case.text).unwrap(), 1).1;
    let names = |parameters: &str| -> Vec<String> {
        let program = read(&bytes, parameters).unwrap().replay.program;
        program.threads.into_iter().map(|t| t.name).collect()
    };
    let all =
        |names: &[String], part: &str| names.len() == 3 && names.iter().all(|n| n.contains(part));
    assert_eq!(names("").len(), 6);
    assert!(all(&names("tasks=we?*"), "web") && all(&names("cgroup=/b"), "job"));
    assert_eq!(names("tasks=web*,tasks=job*").len(), 6);
    let error = read(&bytes, "tasks=nobody").err().unwrap().to_string();
    assert!(error.contains("web*") && error.contains("job*"), "{error}");
}

/// Only the tasks behind `steps` count, in steps even if the recording has units, and they all run.
#[test]
fn the_work_of_chosen_tasks_counts() {
    let text = "
[[thread]]
name = 'fast'
ops = [{ loop = { ops = [{ compute = '500us' }, { count = 1 }, { sleep = '500us' }] } }]
[[thread]]
name = 'slow'
ops = [{ loop = { ops = [{ compute = '3ms' }, { sleep = '1ms' }] } }]";
    let machine = Arc::new(Machine::resolve("2c").unwrap());
    let bytes = record(&machine, &load("w.toml", text).unwrap(), 1).1;
    let units = |parameters: &str| {
        let program = read(&bytes, parameters).unwrap().replay.program;
        assert_eq!(program.threads.len(), 2);
        let run = run(&machine, "eevdf", &program, 1);
        (program.unit, metric(&run, "throughput") * LENGTH as f64 / 1e9)
    };
    let (unit, reported) = units("");
    assert!(unit == "unit" && (180.0..=200.0).contains(&reported), "{unit}, {reported}");
    for (parameters, tasks) in [("steps=slow", 1.0), ("steps=f*,steps=s?ow", 2.0)] {
        let (unit, steps) = units(parameters);
        assert!(unit == "step" && (steps / (tasks * 100.0) - 1.0).abs() < 0.1, "{unit}, {steps}");
    }
    let error = read(&bytes, "steps=nobody").err().unwrap().to_string();
    assert!(error.contains("slow*") && error.contains("fast*"), "{error}");
    let error = read(&bytes, "tasks=fast,steps=slow").err().unwrap();
    assert!(matches!(error, RecordedError::NoSuchTasks { .. }), "{error}");
}

#[test]
fn a_file_without_events_is_refused() {
    let machine = Machine::resolve("2c").unwrap();
    let bytes = Buffer::default();
    let mut sink = PerfettoSink::new(bytes.clone(), &machine);
    sink.finish().unwrap();
    let bytes = std::mem::take(&mut *bytes.0.lock().unwrap());
    let error = read(&bytes, "").err().unwrap();
    assert!(
        matches!(&error, RecordedError::NoSwitches { unread, .. } if unread.is_empty()),
        "{error}"
    );
    // ftrace's option `latency-format`.
    let text =
        "# tracer: nop\n  <idle>-0         1d.h2.  10us : sched_waking: comm=a pid=2 prio=120\n";
    let error = read(text.as_bytes(), "").err().unwrap().to_string();
    assert!(error.contains("1 parts have no meaning here, first at line 2"), "{error}");
}

/// Tasks whose first events come before those of their forks are one task each, however much the
/// clocks of the CPUs differ.
#[test]
fn tasks_that_run_before_their_forks_are_single() {
    let text = "[[thread]]\nname = 'start'\nops = [{ sleep = '20ms' }, { loop = { times = 120, ops = [{ sem_post = 'go' }] } }]
[[thread]]\nname = 'worker'\ninstances = 120\nops = [{ sem_wait = 'go' }, { compute = '50us' }]";
    let machine = Arc::new(Machine::resolve("4c").unwrap());
    let (_, bytes) = record(&machine, &load("w.toml", text).unwrap(), 1);
    let program = replay(&bytes);
    assert_eq!(program.threads.len(), 121);
    // All of them ended, and so does their replay.
    assert_eq!(program.duration, None);
}

/// Changes of a task's attributes during a recording come back in its replay.
#[test]
fn changes_of_attributes_are_replayed() {
    let text = r#"
[[cgroup]]
path = "/low"
weight = 10
[[thread]]
name = "changing"
ops = [{ loop = { ops = [{ compute = "20ms" }, { count = 1 }, { set_nice = 10 }, { compute = "5ms" },
    { set_policy = "batch" }, { set_affinity = "1" }, { compute = "5ms" }, { move_cgroup = "/low" },
    { compute = "5ms" }, { move_cgroup = "/" }, "clear_affinity", { set_policy = "normal" }, { set_nice = 0 }] } }]
[[thread]]
name = "other"
instances = 2
ops = [{ loop = { ops = [{ compute = "1ms" }] } }]
"#;
    let machine = Arc::new(Machine::resolve("2c").unwrap());
    let (first, bytes) = record(&machine, &load("w.toml", text).unwrap(), 1);
    let program = replay(&bytes);
    let changing = program.threads.iter().find(|t| t.name == "changing").unwrap();
    let ops = format!("{:?}", changing.ops);
    for op in
        ["SetNice(10)", "SetPolicy(Batch)", "SetAffinity", "ClearAffinity", "MoveCgroup(\"/low\")"]
    {
        assert!(ops.contains(op), "{op}: {ops}");
    }
    let (a, b) = (run_time(&first), run_time(&run(&machine, "eevdf", &program, 1)));
    let error = percent(b["changing"] as f64, a["changing"] as f64);
    assert!(error.abs() <= 5.0, "CPU time {error:+.1} %");
}

/// A damaged recording is refused with a reason, or is a workload, whatever its parameters.
#[test]
fn damaged_recordings_do_not_panic() {
    let parameters =
        ["", "from=30ms,for=50ms,scale=2", "scale=1.5", "tasks=*1*,repeat=2", "scale=0.3"];
    for (case, parameters) in CASES.iter().zip(parameters.iter().cycle()) {
        let machine = Arc::new(Machine::resolve(case.machine).unwrap());
        let (_, bytes) = record(&machine, &load("w.toml", case.text).unwrap(), 1);
        for seed in 0..12 {
            let mut stream = Stream::new(seed, "damage", 0);
            let mut damaged = bytes[..bytes.len() / 4].to_vec();
            for _ in 0..1 + stream.below(200) {
                let at = stream.below(damaged.len() as u64) as usize;
                damaged[at] = stream.next_u64() as u8;
            }
            if let Err(error) = read(&damaged, parameters) {
                assert!(!error.to_string().is_empty());
            }
        }
    }
}

#[test]
fn a_file_that_is_no_trace_is_named() {
    let resolve = |path: &str, bytes: &[u8]| {
        let files = MemoryFiles([(path.to_owned(), bytes.to_vec())].into());
        Workload::resolve(path, &files).map_err(|error| error.to_string())
    };
    assert!(resolve("bad.pftrace", b"x").unwrap_err().starts_with("bad.pftrace is no trace"));
    assert_eq!(resolve("empty.pftrace", b"").unwrap_err(), "empty.pftrace is empty");
    // Another kind of workload in a file that is called as its maker likes.
    let app = resolve("./app", b"{\"tasks\": {\"a\": {\"loop\": 1, \"run\": 1000}}}").unwrap();
    assert_eq!(app.name(), "app");
    // A generator beside which a file of its name lies.
    assert!(resolve("hogs", b"x").is_ok());
}

/// A recording of some of the machine's tasks has attributes of these only.
#[test]
fn tasks_outside_the_scope_are_no_part_of_the_workload() {
    let text = r#"
[[thread]]
name = "server"
ops = [{ loop = { ops = [{ read = { pipe = "p", bytes = 64 } }, { compute = "100us" }] } }]
[[thread]]
name = "client"
ops = [{ loop = { ops = [{ sleep = "1ms" }, { write = { pipe = "p", bytes = 64 } }] } }]
"#;
    let machine = Arc::new(Machine::resolve("2c").unwrap());
    let (_, bytes) = record(&machine, &load("w.toml", text).unwrap(), 1);
    let threads = |scope: &'static [&str]| {
        let mut scoped = Scoped { recorder: Recorder::new(&machine), scope };
        import("a.pftrace", &bytes[..], &mut scoped).unwrap();
        let history = scoped.recorder.history(Some(LENGTH));
        let replay = infer(&history, &machine, &Options::default()).unwrap();
        let name = |t: &ThreadTemplate| t.name.clone();
        let arrives = replay.waits.iter().flatten().any(|wait| *wait == Wait::Arrival);
        (replay.program.threads.iter().map(name).collect::<Vec<_>>(), arrives)
    };
    let (all, arrives) = threads(&["server", "client"]);
    assert_eq!((all.len(), arrives), (2, false));
    // Requests of a client outside the workload come when they came.
    let (server, arrives) = threads(&["server"]);
    assert_eq!((server.len(), arrives), (1, true), "{server:?}");
    // Without attributes of anybody, everybody is in.
    assert_eq!(threads(&[]).0.len(), 2);
}

/// A recorder that learns the attributes of some tasks.
struct Scoped {
    recorder: Recorder,
    scope: &'static [&'static str],
}

impl Sink for Scoped {
    fn event(&mut self, event: &Event, names: &Names) {
        let out = |task| names.task(task).is_none_or(|t| !self.scope.contains(&&*t.comm));
        if !matches!(event.kind, EventKind::Attributes { task } if out(task)) {
            self.recorder.event(event, names);
        }
    }

    fn finish(&mut self) -> std::io::Result<()> {
        self.recorder.finish()
    }
}

/// Workers that each wait on a futex of their own, and that another thread wakes in the order in
/// which they came, take one another's work in the replay. Those that it wakes in an order of its
/// own keep theirs.
#[test]
fn workers_that_park_are_a_pool() {
    let program = |message: &str, go: [&str; 3]| {
        let worker = |(i, go): (usize, &&str)| {
            format!(
                "[[thread]]\nname = 'worker-{i}'\nprocess = 'p'\nops = [{{ loop = {{ ops = [\
                 {{ sem_post = 'free' }}, {{ sem_wait = '{go}' }}, {{ sleep = '100us' }}, \
                 {{ compute = '{}us' }}, {{ count = 1 }}] }} }}]\n",
                300 + i * 170
            )
        };
        let workers: String = go.iter().enumerate().map(worker).collect();
        let text = format!(
            "{workers}[[thread]]\nname = 'message'\nprocess = 'p'\n\
             ops = [{{ loop = {{ ops = [{message}] }} }}]\n"
        );
        load("w.toml", &text).unwrap()
    };
    let free = program("{ sem_wait = 'free' }, { sem_post = 'go' }", ["go"; 3]);
    let all = "{ sem_wait = 'free' }, { sem_wait = 'free' }, { sem_wait = 'free' }";
    let posts = "{ sem_post = 'b' }, { sem_post = 'a' }, { sem_post = 'c' }";
    let meant = program(&format!("{all}, {posts}"), ["a", "b", "c"]);
    for (what, program, nr_semaphores) in [("free", &free, 1), ("meant", &meant, 3)] {
        for machine in ["1n2c1t", "1n3c1t"] {
            let machine = Arc::new(Machine::resolve(machine).unwrap());
            let pair = |seed| {
                let (first, bytes) = record_on(&machine, program, Terms::noisy(seed, LENGTH));
                let mut parked =
                    Parked { recorder: Recorder::new(&machine), held: BTreeMap::new() };
                import("a.pftrace", &bytes[..], &mut parked).unwrap();
                let history = parked.recorder.history(Some(LENGTH));
                let again = infer(&history, &machine, &Options::default()).unwrap().program;
                let workers = again.threads.iter().filter(|t| t.name.starts_with("worker"));
                let semaphores: BTreeSet<String> =
                    workers.flat_map(|t| waited_on(&t.ops)).collect();
                let replay = run_on(&machine, "eevdf", &again, Terms::noisy(seed + 100, LENGTH));
                ((first, replay), semaphores.len() == nr_semaphores)
            };
            let (pairs, seen): (Vec<(Run, Run)>, Vec<bool>) = (1..=6).map(pair).unzip();
            assert!(seen.iter().filter(|seen| **seen).count() >= 5, "{what}: {seen:?}");
            let (recordings, replays): (Vec<Run>, Vec<Run>) = pairs.into_iter().unzip();
            for name in ["wakeups", "throughput"] {
                let of = |runs: &[Run]| runs.iter().map(|run| metric(run, name)).sum();
                let error = percent(of(&replays), of(&recordings));
                println!("{what} {} {name} {error:+.1} %", machine.name);
                let bound = 10.0;
                assert!(error.abs() <= bound, "{what}, {}: {name} {error:+.1} %", machine.name);
            }
        }
    }
}

/// Returns the semaphores that ops wait on.
fn waited_on(ops: &[Op]) -> Vec<String> {
    let of = |op: &Op| match op {
        Op::SemWait(name) => vec![name.clone()],
        Op::Loop { ops, .. } => waited_on(ops),
        _ => Vec::new(),
    };
    ops.iter().flat_map(of).collect()
}

/// A recorder to which each worker waits on a futex of its own.
struct Parked {
    recorder: Recorder,
    /// Calls that wake a worker, until the wake-up tells which one.
    held: BTreeMap<TaskId, Event>,
}

impl Sink for Parked {
    fn event(&mut self, event: &Event, names: &Names) {
        let is_worker = |task| names.task(task).is_some_and(|t| t.comm.starts_with("worker"));
        let own = |task: TaskId| 1 << 40 | u64::from(task.0);
        let mut event = *event;
        match &mut event.kind {
            EventKind::Call { task, call: Call::FutexWait { object, .. } } if is_worker(*task) => {
                *object = own(*task);
            }
            EventKind::Call { task, call: Call::FutexWake { .. } } if !is_worker(*task) => {
                self.held.insert(*task, event);
                return;
            }
            EventKind::Wakeup { task, waker: Some(waker), .. } => {
                if let Some(call) = self.held.remove(waker) {
                    let woken = Call::FutexWake { object: own(*task), most: 1 };
                    let kind = EventKind::Call { task: *waker, call: woken };
                    self.recorder.event(&Event { kind, ..call }, names);
                }
            }
            _ => {}
        }
        self.recorder.event(&event, names);
    }

    fn finish(&mut self) -> std::io::Result<()> {
        self.recorder.finish()
    }
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
/// time of the original's: 98 of 100 within 2 %. Where a little noise changes what the original
/// itself uses, the replay uses as much as one of its runs.
#[test]
fn random_programs_replay() {
    let (mut off, mut stuck) = (Vec::new(), Vec::new());
    for seed in 1..=400 {
        let text = random_program(seed);
        let spec = ["1n1c1t", "1n2c1t", "1n2c2t", "1n4c1t"][seed as usize / 3 % 4];
        let machine = Arc::new(Machine::resolve(spec).unwrap());
        let original = load("random.toml", &text).unwrap();
        let (first, bytes) = record(&machine, &original, seed);
        let again = replay(&bytes);
        let ends = |scheduler| run(&machine, scheduler, &again, seed).stop.kind == first.stop.kind;
        if !["eevdf", "vtime", "o1"].into_iter().all(ends) {
            stuck.push(seed);
            continue;
        }
        let replayed = total(&run(&machine, "eevdf", &again, seed));
        let noisy = |seed| total(&run_on(&machine, "eevdf", &original, Terms::noisy(seed, LENGTH)));
        let originals: Vec<f64> = (seed..seed + 4).map(noisy).chain([total(&first)]).collect();
        let least = originals.iter().copied().fold(f64::MAX, f64::min);
        let most = originals.iter().copied().fold(0.0, f64::max);
        let error = percent(replayed, replayed.clamp(least, most));
        assert!(error.abs() <= 40.0, "seed {seed}: CPU time {error:+.1} %: {text}");
        off.extend((error.abs() > 2.0).then_some((seed, error)));
    }
    println!("{off:.1?}, stuck: {stuck:?}");
    assert!(off.len() <= 8, "{off:?}");
    assert!(stuck.is_empty(), "{stuck:?}");
}

fn total(run: &Run) -> f64 {
    run.tasks.iter().map(|task| task.run_ns as f64).sum()
}

// SPDX-License-Identifier: GPL-2.0-only
//! Cost of a whole process: from its start to the end of a small run, the gain of a second thread,
//! and memory as a run gets longer.
//!
//! The gain of two threads depends on the machine: two processors of a virtual machine may be one
//! core of its host, and two cores a second later. Two controls therefore alternate with the runs
//! on threads: arithmetic that keeps all units of a core busy, and the same runs in two processes,
//! which share nothing. If the arithmetic was nearly twice as fast on two threads both before and
//! after a round, there were two cores; the benchmark prints the threads' gain in these rounds
//! separately. Memory is the peak of a separate process for each case, once with the trace off and
//! once with a Perfetto trace that is discarded. Times are wall times, as users see them: measure
//! on an idle machine.

use std::error::Error;
use std::hint::black_box;
use std::io;
use std::process::{Command, Stdio};
use std::thread;
use std::time::Instant;

use scxlab_benches::case::Case;
use scxlab_benches::{host, median};
use scxlab_lab::session::Progress;
use scxlab_trace::{PerfettoSink, Tracer};

const WORKLOAD: &str = "sleepers,tasks=40";
const MACHINE: &str = "8c";
const MS: u64 = 1_000_000;
const ROUNDS: usize = 9;

/// Number of rounds in which one thread is compared with two, and the least speed-up of the
/// arithmetic control that shows that two cores were available.
const PAIRS: usize = 31;
const WHOLE: f64 = 1.9;

/// Number of simulated runs in each measurement of the comparison, and virtual length of a run in
/// ms.
const RUNS: u32 = 20;
const RUN_MS: u64 = 2_000;

/// Number of steps of the arithmetic loop, and number of values that each step computes. The loop
/// takes about 0.1 s.
const STEPS: u64 = 20_000_000;
const LANES: usize = 8;

/// Virtual length of the small run, and the virtual lengths at which peak memory is compared, in
/// ms. At the shortest of these lengths, the peak already includes the compiler's memory.
const COLD_MS: u64 = 10;
const MEMORY_MS: [u64; 3] = [1_000, 10_000, 30_000];

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    match &args[..] {
        [runs] => return runs_alone(runs.parse()?),
        [sink, ms] => return child(sink, ms.parse()?),
        _ => {}
    }
    cold_start()?;
    comparison()?;
    memory()
}

/// Prepares and makes one run in this process; prints the peak memory of the process.
fn child(sink: &str, ms: u64) -> Result<(), Box<dyn Error>> {
    let case = Case::new("vtime", WORKLOAD, MACHINE, ms * MS)?;
    case.run(match sink {
        "perfetto" => Tracer::with_sink(PerfettoSink::new(io::sink(), case.machine())),
        _ => Tracer::default(),
    })?;
    println!("{}", host::peak_rss());
    Ok(())
}

/// Makes a run in a child process; returns the peak memory of the child, in bytes.
fn spawn(sink: &str, ms: u64) -> Result<u64, Box<dyn Error>> {
    let output = Command::new(std::env::current_exe()?).args([sink, &ms.to_string()]).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(String::from_utf8(output.stdout)?.trim().parse()?)
}

fn cold_start() -> Result<(), Box<dyn Error>> {
    let mut took = Vec::new();
    for _ in 0..ROUNDS {
        let start = Instant::now();
        spawn("none", COLD_MS)?;
        took.push(start.elapsed().as_secs_f64() * 1e3);
    }
    println!("cold start, {COLD_MS} ms of vtime-8        {:8.1} ms", median(took));
    Ok(())
}

/// Wall-clock time and CPU time that some work took.
#[derive(Clone, Copy)]
struct Took {
    wall_s: f64,
    cpu_s: f64,
}

impl Took {
    fn of<T>(work: impl FnOnce() -> T) -> (Took, T) {
        let (start, cpu) = (Instant::now(), host::process_cpu_time());
        let result = work();
        let cpu = host::process_cpu_time().saturating_sub(cpu);
        (Took { wall_s: start.elapsed().as_secs_f64(), cpu_s: cpu.as_secs_f64() }, result)
    }
}

/// Times of one and of two threads or processes, one pair per round.
#[derive(Default)]
struct Pairs(Vec<[Took; 2]>);

impl Pairs {
    /// Prints the speed-up of two threads or processes over one: the median of the rounds and their
    /// range, and the quickest run of one against the quickest run of two, which were disturbed
    /// least. Then prints the CPU time of two relative to one: what is above 1 is the cost of
    /// sharing a core or its caches.
    fn print(&self, what: &str) {
        let faster: Vec<f64> = self.0.iter().map(gain).collect();
        let cpu = self.0.iter().map(|[one, two]| two.cpu_s / one.cpu_s).collect();
        let quickest = |which: usize| {
            self.0.iter().map(|pair| pair[which].wall_s).fold(f64::INFINITY, f64::min)
        };
        let best = quickest(0) / quickest(1);
        let least = faster.iter().copied().fold(f64::INFINITY, f64::min);
        let most = faster.iter().copied().fold(0.0, f64::max);
        println!(
            "{what:<37}{:9.2} times ({least:.2} to {most:.2}), the quickest {best:.2}, {:.2} of the CPU time",
            median(faster),
            median(cpu)
        );
    }
}

/// Returns the speed-up of two threads or processes over one.
fn gain([one, two]: &[Took; 2]) -> f64 {
    one.wall_s / two.wall_s
}

/// Compares one with two, alternately, in three ways: threads that only calculate, processes that
/// make simulated runs, and threads that share such runs (a `Session`). The runs of a session must
/// give equal results on one and on two threads.
fn comparison() -> Result<(), Box<dyn Error>> {
    let [mut arithmetic, mut processes, mut threads, mut whole] =
        [(); 4].map(|()| Pairs::default());
    for round in 0..PAIRS {
        let first = round % 2;
        let control = || pair(first, |two| Ok(calculate(1 + two as u64)));
        let before = control()?;
        let mut hashes: [Vec<String>; 2] = Default::default();
        let took = pair(first, |two| {
            let (took, seen) = session(RUNS, 1 + two)?;
            hashes[two] = seen;
            Ok(took)
        })?;
        if hashes[0] != hashes[1] {
            return Err("two threads gave other results than one".into());
        }
        let after = control()?;
        if gain(&before).min(gain(&after)) >= WHOLE {
            whole.0.push(took);
        }
        threads.0.push(took);
        arithmetic.0.extend([before, after]);
        let runs: [&[u32]; 2] = [&[RUNS], &[RUNS / 2; 2]];
        processes.0.push(pair(first, |two| run_in(runs[two]))?);
    }
    arithmetic.print("arithmetic, one thread against two");
    processes.print(&format!("{RUNS} runs, one process against two"));
    threads.print(&format!("{RUNS} runs, one thread against two"));
    match whole.0.len() {
        0 => println!("  on two cores: in no round"),
        rounds => whole.print(&format!("  on two cores ({rounds} of {PAIRS} rounds)")),
    }
    Ok(())
}

/// Calls `measure(0)`, which measures one thread or process, and `measure(1)`, which measures two;
/// `first` is the argument of the earlier call. The caller alternates the order, because the
/// machine may be slower during the later measurement.
fn pair(
    first: usize,
    mut measure: impl FnMut(usize) -> Result<Took, Box<dyn Error>>,
) -> Result<[Took; 2], Box<dyn Error>> {
    let (a, b) = (measure(first)?, measure(1 - first)?);
    Ok(if first == 0 { [a, b] } else { [b, a] })
}

/// Runs the same total number of steps on `threads` threads.
fn calculate(threads: u64) -> Took {
    let alone = || {
        let mut lanes = black_box([1u64; LANES]);
        for step in 0..STEPS / threads {
            for x in &mut lanes {
                *x = (*x ^ step).wrapping_add(*x << 3) ^ *x >> 7;
            }
        }
        black_box(lanes);
    };
    let all = || thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(alone))));
    Took::of(all).0
}

/// Starts one process for each element of `runs`; the element is the number of runs that the
/// process makes, on one thread.
fn run_in(runs: &[u32]) -> Result<Took, Box<dyn Error>> {
    let start = Instant::now();
    let program = std::env::current_exe()?;
    let begin =
        |runs: &u32| Command::new(&program).arg(runs.to_string()).stdout(Stdio::piped()).spawn();
    let children = runs.iter().map(begin).collect::<io::Result<Vec<_>>>()?;
    let mut cpu_s = 0.0;
    for child in children {
        let output = child.wait_with_output()?;
        cpu_s += String::from_utf8(output.stdout)?.trim().parse::<f64>()?;
    }
    Ok(Took { wall_s: start.elapsed().as_secs_f64(), cpu_s })
}

/// Makes the runs of one process that `run_in` started; prints the CPU time of the process.
fn runs_alone(runs: u32) -> Result<(), Box<dyn Error>> {
    session(runs, 1)?;
    println!("{}", host::process_cpu_time().as_secs_f64());
    Ok(())
}

fn session(runs: u32, threads: usize) -> Result<(Took, Vec<String>), Box<dyn Error>> {
    let session = Case::new("vtime", WORKLOAD, MACHINE, RUN_MS * MS)?.session(runs, threads);
    let progress = Progress::new(&session);
    let (took, runs) =
        Took::of(|| session.execute(&|_| Ok(Tracer::default()), &progress, &|| None));
    Ok((took, runs?.into_iter().map(|run| run.trace_hash).collect()))
}

fn memory() -> Result<(), Box<dyn Error>> {
    for sink in ["none", "perfetto"] {
        for ms in MEMORY_MS {
            let mib = spawn(sink, ms)? as f64 / f64::from(1 << 20);
            println!("peak memory, trace {sink:<9} {ms:>6} ms   {mib:8.1} MiB");
        }
    }
    Ok(())
}

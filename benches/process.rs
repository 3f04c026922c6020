// SPDX-License-Identifier: GPL-2.0-only
//! What a whole process takes: from its start to the end of a small run, on one core and on two, and its memory when
//! a run gets ten times longer.
//!
//! Memory is the peak of a process of its own for each case, with the trace off and streamed as Perfetto to nowhere.
//! Times are wall times here, for they are what a user waits: measure on an idle machine.

use std::error::Error;
use std::io;
use std::process::Command;
use std::time::Instant;

use scxlab_benches::case::Case;
use scxlab_benches::{host, median};
use scxlab_lab::session::Progress;
use scxlab_trace::{PerfettoSink, Tracer};

const WORKLOAD: &str = "sleepers,tasks=40";
const MACHINE: &str = "8c";
const CPUS: usize = 8;
const MS: u64 = 1_000_000;
const ROUNDS: usize = 5;

/// The comparison: as many runs, each that long.
const RUNS: u32 = 20;
const RUN_MS: u64 = 2_000;

/// The small run, and the two lengths at which memory is compared.
const COLD_MS: u64 = 10;
const MEMORY_MS: [u64; 2] = [1_000, 10_000];

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    if let [sink, ms] = &args[..] {
        return child(sink, ms.parse()?);
    }
    cold_start()?;
    comparison()?;
    memory()
}

/// One run in this process, from its names on; prints the peak of memory.
fn child(sink: &str, ms: u64) -> Result<(), Box<dyn Error>> {
    let case = Case::new("vtime", WORKLOAD, MACHINE, ms * MS)?;
    case.run(match sink {
        "perfetto" => Tracer::with_sink(PerfettoSink::new(io::sink(), "bench", CPUS)),
        _ => Tracer::default(),
    })?;
    println!("{}", host::peak_rss());
    Ok(())
}

/// Peak bytes of a child's run.
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

/// The same session on one thread and on two, in turn; the results must be the same.
fn comparison() -> Result<(), Box<dyn Error>> {
    let mut ratios = Vec::new();
    for _ in 0..ROUNDS {
        let (one, hashes) = session(1)?;
        let (two, same) = session(2)?;
        if hashes != same {
            return Err("two threads gave other results than one".into());
        }
        ratios.push(one / two);
    }
    println!("{RUNS} runs, one thread against two      {:8.2} times", median(ratios));
    Ok(())
}

fn session(threads: usize) -> Result<(f64, Vec<String>), Box<dyn Error>> {
    let session = Case::new("vtime", WORKLOAD, MACHINE, RUN_MS * MS)?.session(RUNS, threads);
    let progress = Progress::new(&session);
    let start = Instant::now();
    let runs = session.execute(&|_| Ok(Tracer::default()), &progress)?;
    let took = start.elapsed().as_secs_f64();
    Ok((took, runs.into_iter().map(|run| run.trace_hash).collect()))
}

fn memory() -> Result<(), Box<dyn Error>> {
    for sink in ["none", "perfetto"] {
        let [short, long] = MEMORY_MS;
        let (a, b) = (spawn(sink, short)?, spawn(sink, long)?);
        let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
        println!(
            "peak memory, trace {sink:<9} {short:>6} ms {:5.1} MiB, {long} ms {:5.1} MiB, {:4.2} times",
            mib(a),
            mib(b),
            b as f64 / a as f64
        );
    }
    Ok(())
}

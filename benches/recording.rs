// SPDX-License-Identifier: GPL-2.0-only
//! Large recordings as workloads: time and peak memory of a process that reads one and simulates
//! a moment of it.
//!
//! The recordings are of 64 CPUs, and are generated while they are read, so that the time includes
//! that of the generation where one core is shared. Each case is a process of its own.

use std::error::Error;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use scxlab_benches::{host, recording};
use scxlab_lab::input::{NoFiles, SchedulerInput};
use scxlab_lab::prepare::Prepared;
use scxlab_lab::recorded::{self, Parameters};
use scxlab_lab::sim::{SimSpec, simulate};
use scxlab_machine::Machine;
use scxlab_trace::Tracer;
use scxlab_workload::Program;

const MACHINE: &str = "64c";

/// Virtual time for which each workload runs.
const SIMULATED_NS: u64 = 50_000_000;

/// Events, and the parameters behind the file's name.
const CASES: [(&str, &str); 6] = [
    ("0", ""),
    ("1000000", ""),
    ("5000000", ""),
    ("50000000", ""),
    ("50000000", "from=500ms,for=100ms"),
    ("50000000", "tasks=*-1?"),
];

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).filter(|arg| !arg.starts_with("--")).collect();
    if let [events, parameters] = &args[..] {
        return child(events.parse()?, parameters);
    }
    let mut cases: Vec<(String, String)> =
        CASES.map(|(events, parameters)| (events.to_owned(), parameters.to_owned())).into();
    if let [events] = &args[..] {
        cases = vec![(events.clone(), String::new())];
    }
    for (events, parameters) in cases {
        let child = Command::new(std::env::current_exe()?).args([&events, &parameters]).output()?;
        if !child.status.success() {
            return Err(String::from_utf8_lossy(&child.stderr).into());
        }
        print!("{}", String::from_utf8(child.stdout)?);
    }
    Ok(())
}

fn child(events: u64, parameters: &str) -> Result<(), Box<dyn Error>> {
    let machine = Machine::resolve(MACHINE)?;
    let bytes = Arc::new(AtomicU64::new(0));
    let open = || recording::open(&machine, events, &bytes);
    let start = Instant::now();
    let read = recorded::read("big.pftrace", &open, &Parameters::parse("big.pftrace", parameters)?);
    let took = start.elapsed().as_secs_f64();
    let mib = bytes.load(Ordering::Relaxed) >> 20;
    let what = match read {
        Ok(recorded) => simulated(&Arc::new(machine), &recorded.replay.program)?,
        Err(error) => error.to_string(),
    };
    let peak = host::peak_rss() >> 20;
    println!(
        "{events:9} events {parameters:22} {took:6.1} s to read {mib} MiB in two passes, peak {peak} MiB: {what}"
    );
    Ok(())
}

/// Runs a workload for a moment, and tells how much it did.
fn simulated(machine: &Arc<Machine>, program: &Program) -> Result<String, Box<dyn Error>> {
    let scheduler = SchedulerInput::resolve("eevdf", &NoFiles)?;
    let scheduler = Prepared::simulated(&scheduler, machine)?;
    let spec = SimSpec::new(machine, program, &scheduler, 1);
    let spec = SimSpec { duration: Some(SIMULATED_NS), ..spec };
    let (run, _) = simulate(&spec, Tracer::default(), &|_| None)?;
    Ok(format!("{} tasks ran", run.tasks.iter().filter(|task| task.run_ns > 0).count()))
}

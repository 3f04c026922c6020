// SPDX-License-Identifier: GPL-2.0-only
//! Large recordings as workloads: time and peak memory of a process that reads one.
//!
//! The recordings are of 64 CPUs, and are generated while they are read, so that the time includes
//! that of the generation where one core is shared. Each case is a process of its own.

use std::error::Error;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use scxlab_benches::{host, recording};
use scxlab_lab::recorded::{self, Parameters};
use scxlab_machine::Machine;

const MACHINE: &str = "64c";

/// Events, and the parameters behind the file's name.
const CASES: [(&str, &str); 5] = [
    ("0", ""),
    ("1000000", ""),
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
    let peak = host::peak_rss() >> 20;
    let mib = bytes.load(Ordering::Relaxed) >> 20;
    let what = match &read {
        Ok(recorded) => format!("{} threads", recorded.replay.program.threads.len()),
        Err(error) => error.to_string(),
    };
    println!(
        "{events:9} events {parameters:22} {took:6.1} s, {mib} MiB in two passes, peak {peak} MiB: {what}"
    );
    Ok(())
}

// SPDX-License-Identifier: GPL-2.0-only
//! Instructions of the host per context switch and per event, counted by callgrind: no clock, so no noise.
//!
//! Only the simulation itself counts (`Kernel::advance`), not building the kernel or linking the object. Needs valgrind,
//! which is not a part of this project. The profile stays in the folder for temporary files, for `callgrind_annotate`.

use std::error::Error;
use std::fs;
use std::process::Command;

use scxlab_benches::case::Case;
use scxlab_trace::Tracer;

/// Scheduler, workload, machine, ms of virtual time: short, as callgrind is 50 times slower than the host.
const CASES: &[(&str, &str, &str, u64)] = &[
    ("vtime", "sleepers,tasks=40", "8c", 300),
    ("eevdf", "sleepers,tasks=40", "8c", 300),
    ("vtime", "sleepers,tasks=320", "2n32c", 50),
    ("vtime", "sleepers,tasks=4096", "8n64c2t", 10),
];

const COUNTED: &str = "--toggle-collect=*Kernel*::advance*";

fn main() -> Result<(), Box<dyn Error>> {
    let number = std::env::args().skip(1).find(|arg| !arg.starts_with("--"));
    if let Some(number) = number {
        let case = CASES.get(number.parse::<usize>()?).ok_or("no such case")?;
        return run(case);
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("instructions: not counted, there is no valgrind");
        return Ok(());
    }
    println!("{:<6} {:<20} {:<8} {:>10} {:>10}", "", "", "", "per switch", "per event");
    (0..CASES.len()).try_for_each(count)
}

/// Runs a case and prints its switches and events, for the process that counts.
fn run(
    &(scheduler, workload, machine, ms): &(&str, &str, &str, u64),
) -> Result<(), Box<dyn Error>> {
    let run = Case::new(scheduler, workload, machine, ms * 1_000_000)?.run(Tracer::default())?;
    println!("{} {}", run.metric("context_switches"), run.metric("events"));
    Ok(())
}

/// Has callgrind count a case, and prints its row.
fn count(number: usize) -> Result<(), Box<dyn Error>> {
    let (scheduler, workload, machine, _) = CASES[number];
    let profile = std::env::temp_dir().join(format!("scxlab-{scheduler}-{machine}.callgrind"));
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", COUNTED])
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(std::env::current_exe()?)
        .arg(number.to_string())
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let printed = String::from_utf8(output.stdout)?;
    let (switches, events) = printed.trim().split_once(' ').ok_or("the case printed no counts")?;
    let counted = instructions(&fs::read_to_string(&profile)?)?;
    println!(
        "{scheduler:<6} {workload:<20} {machine:<8} {:10.0} {:10.0}",
        counted / switches.parse::<f64>()?,
        counted / events.parse::<f64>()?
    );
    Ok(())
}

/// The sum that a profile ends with.
fn instructions(profile: &str) -> Result<f64, Box<dyn Error>> {
    let sum = profile.lines().rev().find_map(|line| line.strip_prefix("totals:"));
    Ok(sum.ok_or("the profile has no sum")?.trim().parse()?)
}

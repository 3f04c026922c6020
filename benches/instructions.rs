// SPDX-License-Identifier: GPL-2.0-only
//! Instructions of the host per context switch and per event, counted by callgrind: no clock, so no noise.
//!
//! Only the simulation itself counts (`Kernel::advance`), not building the kernel or linking the object, and only from
//! when the scheduler's functions are machine code: what a run takes less what its beginning takes. Needs valgrind, which is
//! not a part of this project. The profile of the whole run stays in the folder for temporary files, for `callgrind_annotate`.

use std::error::Error;
use std::fs;
use std::process::Command;

use scxlab_benches::case::Case;
use scxlab_trace::Tracer;

struct Setup {
    scheduler: &'static str,
    workload: &'static str,
    machine: &'static str,
    /// Virtual time that does not count, and all of it. Short, as callgrind is 50 times slower than the host.
    from_ms: u64,
    to_ms: u64,
}

const CASES: &[Setup] = &[
    case("vtime", "sleepers,tasks=40", "8c", [5000, 5300]),
    case("eevdf", "sleepers,tasks=40", "8c", [100, 400]),
    case("vtime", "sleepers,tasks=320", "2n32c", [650, 680]),
    case("eevdf", "sleepers,tasks=320", "2n32c", [20, 70]),
    case("vtime", "sleepers,tasks=4096", "8n64c2t", [45, 50]),
    case("eevdf", "sleepers,tasks=4096", "8n64c2t", [10, 16]),
];

const fn case(
    scheduler: &'static str,
    workload: &'static str,
    machine: &'static str,
    [from_ms, to_ms]: [u64; 2],
) -> Setup {
    Setup { scheduler, workload, machine, from_ms, to_ms }
}

const COUNTED: &str = "--toggle-collect=*Kernel*::advance*";

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1).filter(|arg| !arg.starts_with("--"));
    let number = args.next().map(|number| number.parse::<usize>()).transpose()?;
    if let (Some(number), Some(ms)) = (number, args.next()) {
        return run(CASES.get(number).ok_or("no such case")?, ms.parse()?);
    }
    if Command::new("valgrind").arg("--version").output().is_err() {
        println!("instructions: not counted, there is no valgrind");
        return Ok(());
    }
    println!("{:<6} {:<20} {:<8} {:>10} {:>10}", "", "", "", "per switch", "per event");
    let all = 0..CASES.len();
    all.filter(|case| number.is_none_or(|number| number == *case)).try_for_each(row)
}

/// Runs a case and prints its switches and events, for the process that counts.
fn run(setup: &Setup, ms: u64) -> Result<(), Box<dyn Error>> {
    let case = Case::new(setup.scheduler, setup.workload, setup.machine, ms * 1_000_000)?;
    let run = case.run(Tracer::default())?;
    println!("{} {}", run.metric("context_switches"), run.metric("events"));
    Ok(())
}

/// Counts a case, and prints its row.
fn row(number: usize) -> Result<(), Box<dyn Error>> {
    let Setup { scheduler, workload, machine, from_ms, to_ms } = CASES[number];
    let (before, after) = (count(number, from_ms)?, count(number, to_ms)?);
    let [insns, switches, events] = std::array::from_fn(|i| after[i] - before[i]);
    println!(
        "{scheduler:<6} {workload:<20} {machine:<8} {:10.0} {:10.0}",
        insns / switches,
        insns / events
    );
    Ok(())
}

/// Has callgrind count so much of a case: instructions, switches, events.
fn count(number: usize, ms: u64) -> Result<[f64; 3], Box<dyn Error>> {
    let Setup { scheduler, machine, .. } = CASES[number];
    let profile = std::env::temp_dir().join(format!("scxlab-{scheduler}-{machine}.callgrind"));
    let output = Command::new("valgrind")
        .args(["--tool=callgrind", COUNTED])
        .arg(format!("--callgrind-out-file={}", profile.display()))
        .arg(std::env::current_exe()?)
        .args([number.to_string(), ms.to_string()])
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let printed = String::from_utf8(output.stdout)?;
    let (switches, events) = printed.trim().split_once(' ').ok_or("the case printed no counts")?;
    Ok([instructions(&fs::read_to_string(&profile)?)?, switches.parse()?, events.parse()?])
}

/// The sum that a profile ends with.
fn instructions(profile: &str) -> Result<f64, Box<dyn Error>> {
    let sum = profile.lines().rev().find_map(|line| line.strip_prefix("totals:"));
    Ok(sum.ok_or("the profile has no sum")?.trim().parse()?)
}

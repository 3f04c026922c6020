// SPDX-License-Identifier: GPL-2.0-only
//! Tests that run small programs on the real kernel. They check order, causality and counts. They
//! check no durations, except that an op takes at least its minimum time.
//!
//! The tests do not use Rust's test harness, because `native::run` executes this binary again, and
//! `child_main` must then be the first call in `main`.

mod native {
    pub mod basics;
    pub mod benchmarks;
    pub mod cgroups;
    pub mod command;
    pub mod ends;
    pub mod kernel;
    pub mod memory;
    pub mod sync;
}

use scxlab_machine::id::Nanos;
use scxlab_workload::native::{self as executor, NativeConfig, NativeReport, NativeTask};
use scxlab_workload::{Program, program};

type Test = (&'static str, fn());

fn main() {
    executor::child_main();
    let filter = std::env::args().skip(1).find(|a| !a.starts_with('-')).unwrap_or_default();
    let all: Vec<Test> = [
        native::basics::TESTS,
        native::benchmarks::TESTS,
        native::sync::TESTS,
        native::kernel::TESTS,
        native::memory::TESTS,
        native::ends::TESTS,
        native::cgroups::TESTS,
        native::command::TESTS,
    ]
    .concat();
    let chosen: Vec<&Test> = all.iter().filter(|(name, _)| name.contains(&filter)).collect();
    let mut failed = 0;
    for &&(name, ref test) in &chosen {
        println!("native::{name} ...");
        // Runs the test in a new thread: the executor must work in a process that has other
        // threads.
        if std::thread::spawn(*test).join().is_err() {
            println!("native::{name} FAILED");
            failed += 1;
        }
        if let Some(left) = leftover() {
            println!("native::{name} FAILED: it leaves {left} behind");
            failed += 1;
        }
    }
    println!("{} tests, {failed} failed", chosen.len());
    std::process::exit(i32::from(failed > 0));
}

/// Returns a process that this process started and that still exists, zombies included.
fn leftover() -> Option<String> {
    let own = std::process::id();
    let children = format!("/proc/{own}/task/{own}/children");
    let text = std::fs::read_to_string(children).ok()?;
    let threads = std::fs::read_dir("/proc/self/task").ok()?.flatten();
    let others: Vec<String> = threads
        .filter_map(|t| std::fs::read_to_string(t.path().join("children")).ok())
        .chain([text])
        .flat_map(|t| t.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
        .collect();
    others.first().map(|pid| {
        let comm = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        format!("process {pid} ({})", comm.trim())
    })
}

fn program(text: &str) -> Program {
    program::from_toml("test.toml", text).unwrap()
}

/// Time limit against a hang. It is longer than any host needs.
const PATIENCE: Nanos = 300_000_000_000;

/// Runs a program until every thread exits.
fn run(text: &str) -> NativeReport {
    run_with(text, NativeConfig::default())
}

fn run_with(text: &str, config: NativeConfig) -> NativeReport {
    let config = NativeConfig { duration: config.duration.or(Some(PATIENCE)), ..config };
    let report = executor::run(&program(text), &config).unwrap_or_else(|e| panic!("{e}"));
    assert!(report.ended_ns >= report.started_ns);
    report
}

/// Runs a program for 300 ms, and repeats the run with four times the duration until the report is
/// `enough`.
fn run_until(program: &Program, enough: impl Fn(&NativeReport) -> bool) -> NativeReport {
    let mut duration = 300_000_000;
    loop {
        let config = NativeConfig { duration: Some(duration), ..NativeConfig::default() };
        let report = executor::run(program, &config).unwrap_or_else(|e| panic!("{e}"));
        if enough(&report) || duration > PATIENCE {
            return report;
        }
        duration *= 4;
    }
}

/// Runs like `run`, and checks that nothing was refused and that every thread reached its end.
fn run_clean(text: &str) -> NativeReport {
    let report = run(text);
    assert_eq!(report.errors, []);
    assert_eq!(report.stop, executor::NativeStop::AllExited, "{:?}", report.notes);
    assert!(report.tasks.iter().all(|t| t.end == executor::TaskEnd::Exited));
    report
}

fn task<'a>(report: &'a NativeReport, name: &str) -> &'a NativeTask {
    let names: Vec<_> = report.tasks.iter().map(|t| &t.name).collect();
    report.tasks.iter().find(|t| t.name == name).unwrap_or_else(|| panic!("{name} in {names:?}"))
}

/// Whether the test may use root's rights. Prints a message if not.
fn is_root(what: &str) -> bool {
    // SAFETY: no arguments.
    let root = unsafe { libc::geteuid() } == 0;
    if !root {
        println!("    skipped, needs root: {what}");
    }
    root
}

/// Clock for the tests' own time limits.
#[allow(clippy::disallowed_types, reason = "these tests run on a real kernel, in real time")]
fn now() -> std::time::Instant {
    std::time::Instant::now()
}

/// Returns the workload processes of the runs that this process started: this process is the parent
/// of their parent.
fn workers() -> Vec<i32> {
    let all = std::fs::read_dir("/proc").unwrap().flatten();
    let pids = all.filter_map(|e| e.file_name().to_str()?.parse::<i32>().ok());
    let own = std::process::id() as i32;
    pids.filter(|pid| parent_of(parent_of(*pid)) == own).collect()
}

/// Returns the parent's pid, or 0 if the process is gone.
fn parent_of(pid: i32) -> i32 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after = stat.rsplit(')').next().unwrap_or_default().to_owned();
    after.split_whitespace().nth(1).and_then(|f| f.parse().ok()).unwrap_or(0)
}

/// Sends a signal to a process of this test's run.
fn kill(pid: i32, signal: i32) {
    // SAFETY: no pointers.
    unsafe { libc::kill(pid, signal) };
}

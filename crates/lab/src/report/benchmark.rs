// SPDX-License-Identifier: GPL-2.0-only
//! Results in the words of two benchmarks, for scripts that read their output: schbench's summary
//! of latencies, and hackbench's time.
//!
//! Owns: the two forms. A line of a benchmark whose value no target measures is left out. A run
//! that does not count has no values.

use std::fmt::Write;

use crate::metric::{THROUGHPUT, WAKEUP_LATENCY};
use crate::results::Results;
use crate::run::{NeverRan, Run, StopKind};
use scxlab_machine::plural;

/// Returns the wake-up latencies and the throughput of each run, as schbench prints them.
pub fn schbench(results: &Results) -> String {
    each(results, |text, run| {
        let seconds = run.virtual_ns as f64 / 1e9;
        let value = |name: &str| run.metrics.get(name).map(|metric| metric.value);
        let _ = writeln!(text, "Wakeup Latencies percentiles (usec) runtime {seconds:.3} (s)");
        for part in WAKEUP_LATENCY.parts {
            let Some(ns) = value(&WAKEUP_LATENCY.named(part.name)) else { continue };
            let us = ns / 1e3;
            match part.name.strip_prefix('p') {
                None => _ = writeln!(text, "\t  {}={us:.3}", part.name),
                Some(number) => {
                    let mark = if number == "99" { '*' } else { ' ' };
                    let number = if number.contains('.') {
                        number.to_owned()
                    } else {
                        format!("{number}.0")
                    };
                    let _ = writeln!(text, "\t{mark} {number}th: {us:.3}");
                }
            }
        }
        if let Some(rate) = value(THROUGHPUT.name) {
            let _ = writeln!(text, "average rps: {rate:.2}");
        }
    })
}

/// Returns the time that each run took, as hackbench prints it. A run that ended before all threads
/// exited has none.
pub fn hackbench(results: &Results) -> String {
    each(results, |text, run| {
        if run.stop.kind == StopKind::AllExited {
            let _ = writeln!(text, "Time: {:.3}", run.virtual_ns as f64 / 1e9);
        } else {
            text.push_str("# no time: the run ended before the workload did\n");
        }
    })
}

/// Prints a heading for each run, and `print` the run if it counts.
fn each(results: &Results, print: impl Fn(&mut String, &Run)) -> String {
    let (workload, machine) = (&results.manifest.workload, &results.manifest.machine);
    let mut text = String::new();
    for run in &results.runs {
        let _ = writeln!(
            text,
            "# {} on {} ({}), {}, seed {}",
            workload.workload, machine.machine, run.target, run.scheduler, run.seed
        );
        match (run.counts, run.was_ejected()) {
            (true, _) => print(&mut text, run),
            (_, true) => _ = writeln!(text, "# does not count: exit {}", run.exit.kind),
            _ => _ = writeln!(text, "# does not count: {}", run.stop.kind.name()),
        }
        if !run.never_ran.is_empty() {
            let (count, words) = (run.never_ran.len(), NeverRan::words(&run.never_ran));
            let _ = writeln!(text, "# {} {words}", plural(count, "task"));
        }
    }
    text
}

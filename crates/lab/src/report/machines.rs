// SPDX-License-Identifier: GPL-2.0-only
//! One comparison on several machines, side by side.
//!
//! Owns: the form of the tables over several machines; `metric.rs` declares which metrics have such
//! a table. Each machine also has its own full report.

use std::fmt::Write;

use super::format::{Align, grid};
use super::{legend, outcome, rows};
use crate::results::Results;
use crate::run::Run;
use crate::session::Session;

/// The session and results of one machine.
pub struct OnMachine<'a> {
    /// The machine's name as the user gave it.
    pub name: &'a str,
    pub session: &'a Session,
    pub results: &'a Results,
}

/// Returns, for each target, one table for each of the main metrics. A table has a line for each
/// machine and a column for each scheduler.
pub fn across_machines(all: &[OnMachine]) -> String {
    let Some(first) = all.first() else { return String::new() };
    let mut text =
        format!("{} machines, {}\n", all.len(), first.results.manifest.workload.workload);
    let targets = &first.results.manifest.targets;
    for (at, target) in targets.iter().enumerate() {
        if targets.len() > 1 {
            let _ = writeln!(text, "\ntarget {target}");
        }
        text.push_str(&tables(all, at));
    }
    text
}

/// Returns the tables for the target with this index.
fn tables(all: &[OnMachine], target: usize) -> String {
    let groups: Vec<Vec<&[Run]>> = all.iter().map(|m| groups(m, target)).collect();
    let every: Vec<&[Run]> = groups.iter().flatten().copied().collect();
    let mut text = String::new();
    for row in rows(&every).iter().filter(|row| row.is_main) {
        let largest = groups.iter().map(|g| row.largest(g)).fold(0.0, f64::max);
        let scale = row.scale(largest);
        let mut lines = vec![head(&all[0], &scale.label(&row.label))];
        for (machine, groups) in all.iter().zip(&groups) {
            let mut line = vec![format!("{}{}", machine.name, outcome::mark(groups))];
            line.extend(row.cells(groups, &scale));
            lines.push(line);
        }
        let columns = lines[0].len() - 1;
        let aligns: Vec<Align> =
            std::iter::once(Align::Left).chain((0..columns).map(|_| Align::Right)).collect();
        let _ = write!(text, "\n{}", grid(&lines, &aligns));
    }
    if groups.iter().any(|g| !outcome::mark(g).is_empty()) {
        text.push_str("\n! not all runs count there: see the machine's own table\n");
    }
    text.push_str(&legend(&groups[0]));
    text
}

/// Returns each scheduler's runs on a target.
fn groups<'a>(machine: &OnMachine<'a>, target: usize) -> Vec<&'a [Run]> {
    let schedulers = machine.session.schedulers.len();
    let all = machine.results.runs.chunks(machine.session.runs.max(1) as usize);
    all.skip(target * schedulers).take(schedulers).collect()
}

fn head(machine: &OnMachine, label: &str) -> Vec<String> {
    let mut head = vec![label.to_owned()];
    for (at, scheduler) in machine.session.schedulers.iter().enumerate() {
        head.push(scheduler.input.arg.short());
        if at > 0 {
            head.push("change".to_owned());
        }
    }
    head
}

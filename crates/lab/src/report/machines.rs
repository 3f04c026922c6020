// SPDX-License-Identifier: GPL-2.0-only
//! One comparison on several machines, side by side.
//!
//! Owns: the form of the tables over several machines; `metric.rs` declares which metrics have such
//! a table. Each machine also has its own full report.

use super::document::{Cell, Document, Table};
use super::selection::Selection;
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
pub fn across_machines(all: &[OnMachine]) -> Document {
    let mut document = Document::default();
    let Some(first) = all.first() else { return document };
    let workload = &first.results.manifest.workload.workload;
    document.push_text(format!("{} machines, {workload}\n", all.len()));
    let targets = &first.results.manifest.targets;
    for (at, target) in targets.iter().enumerate() {
        if targets.len() > 1 {
            document.push_text(format!("\ntarget {target}\n"));
        }
        document.append(tables(all, at));
    }
    document
}

/// Returns the tables for the target with this index.
fn tables(all: &[OnMachine], target: usize) -> Document {
    let groups: Vec<Vec<&[Run]>> = all.iter().map(|m| groups(m, target)).collect();
    let every: Vec<&[Run]> = groups.iter().flatten().copied().collect();
    let mut document = Document::default();
    let mut rows = rows(&every, &Selection::default());
    rows.retain(|row| row.is_main);
    for row in &rows {
        let largest = groups.iter().map(|g| row.largest(g)).fold(0.0, f64::max);
        let scale = row.scale(largest);
        let mut table = Table::new(head(&all[0], &row.label(&scale)), 2, 2);
        for (machine, groups) in all.iter().zip(&groups) {
            let name = format!("{}{}", machine.name, outcome::mark(groups));
            let mut line = vec![Cell::plain(name)];
            line.extend(row.cells(groups, &scale));
            table.rows.push(line);
        }
        document.push_text("\n");
        document.push(table);
    }
    if groups.iter().any(|g| !outcome::mark(g).is_empty()) {
        document.push_text("\n! not all runs count there: see the machine's own table\n");
    }
    document.push_text(legend(&groups[0], &rows));
    document
}

/// Returns each scheduler's runs on a target.
fn groups<'a>(machine: &OnMachine<'a>, target: usize) -> Vec<&'a [Run]> {
    let schedulers = machine.session.schedulers.len();
    let all = machine.results.runs.chunks(machine.session.runs.max(1) as usize);
    all.skip(target * schedulers).take(schedulers).collect()
}

fn head(machine: &OnMachine, label: &str) -> Vec<Cell> {
    let mut head = vec![Cell::head(label)];
    for (at, scheduler) in machine.session.schedulers.iter().enumerate() {
        head.push(Cell::head(scheduler.input.arg.short()));
        if at > 0 {
            head.push(Cell::head("change"));
        }
    }
    head
}

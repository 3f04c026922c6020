// SPDX-License-Identifier: GPL-2.0-only
//! What differs between the runs of two schedulers beside work and waits: the switches, and the
//! uses of CPUs, memory and guests, which may explain them.
//!
//! Owns: which differences matter.

use super::document::{Cell, Table};
use super::{MetricRow, ValueUnit, change_mark, change_text};
use crate::compare::{change_of, known};
use crate::metric::SECTIONS;
use crate::run::Run;
use crate::stats::{Change, Summary, Verdict};

/// Sections of the metrics that may explain others.
const EXPLAINING: [&str; 4] = ["switches", "cpu", "memory", "guests"];

/// Least difference of a share that matters, in percentage points.
const POINTS: f64 = 0.2;
/// Least change of anything else that matters.
const PART: f64 = 0.05;
/// Times and counts below this one do not matter.
const FEW: f64 = 10.0;

/// A metric that differs.
#[derive(Clone, Debug)]
pub struct Difference {
    row: MetricRow,
    pub baseline: Summary,
    pub candidate: Summary,
    pub change: Change,
}

impl Difference {
    pub fn metric(&self) -> &str {
        self.row.metric()
    }

    /// Returns the unit of the values.
    pub fn unit(&self) -> &'static str {
        match self.row.kind {
            ValueUnit::Time => "ns",
            ValueUnit::Percent => "%",
            ValueUnit::Count => "",
        }
    }

    fn matters(&self) -> bool {
        let apart = (self.candidate.size() - self.baseline.size()).abs();
        let largest = self.candidate.size().max(self.baseline.size());
        match self.row.kind {
            ValueUnit::Percent => apart >= POINTS,
            _ => largest >= FEW && apart >= PART * self.baseline.size(),
        }
    }
}

/// Returns what differs beyond noise between runs that are paired by seed.
pub fn differences(baseline: &[Run], candidate: &[Run]) -> Vec<Difference> {
    let metrics = SECTIONS.iter().filter(|(section, _)| EXPLAINING.contains(section));
    let metrics = metrics.flat_map(|(_, topics)| *topics).flat_map(|topic| topic.metrics);
    let difference = |row: MetricRow| {
        let (a, b) = (row.column(baseline), row.column(candidate));
        let change = change_of(baseline, candidate, &a, &b);
        let (baseline, candidate) = (Summary::of(&known(&a)), Summary::of(&known(&b)));
        Difference { row, baseline, candidate, change }
    };
    metrics
        .flat_map(|metric| {
            metric.rows.iter().map(|row| alone(MetricRow::declared(metric, row, None)))
        })
        .map(difference)
        .filter(|d| d.change.verdict == Verdict::Different && d.matters())
        .collect()
}

/// Returns the row with a label that needs no row above it.
fn alone(row: MetricRow) -> MetricRow {
    let label =
        if row.label.starts_with(' ') { row.metric().to_owned() } else { row.label.clone() };
    MetricRow { label, ..row }
}

/// Returns a table of differences.
pub fn table(names: [&str; 2], differences: &[Difference]) -> Table {
    let head = ["", names[0], names[1], "change"].map(Cell::head).to_vec();
    let mut table = Table::new(head, 2, 2);
    table.rows = differences.iter().map(line).collect();
    table
}

fn line(difference: &Difference) -> Vec<Cell> {
    let Difference { row, baseline, candidate, change } = difference;
    let scale = row.scale(baseline.size().max(candidate.size()));
    vec![
        Cell::plain(row.label(&scale)),
        Cell::plain(scale.summary(baseline)),
        Cell::plain(scale.summary(candidate)),
        Cell::new(change_text(change), change_mark(change, row.better)),
    ]
}

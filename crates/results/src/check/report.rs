// SPDX-License-Identifier: GPL-2.0-only
//! The report of a comparison for people.

use scxlab_lab::report::change_text;
use scxlab_lab::report::document::{Align, Cell as Shown, Document, Mark, Table};
use scxlab_lab::report::format::Scale;
use scxlab_machine::plural;

use super::{Finding, Outcome, Report, Verdict};
use crate::gate::Limit;

/// Returns the report: runs that were lost, then for each cell a table of the metrics that did not
/// just pass, or of all. The cell with the worst verdict comes first.
pub fn document(report: &Report, all: bool) -> Document {
    let mut document = Document::default();
    for lost in &report.lost {
        document.push_text(format!("REGRESSED {}: {}\n", lost.place(), lost.what));
    }
    if !report.lost.is_empty() {
        document.push_text("\n");
    }
    let mut shown: Vec<&Finding> = report.findings.iter().collect();
    shown.retain(|finding| all || finding.verdict != Verdict::Passed);
    shown.sort_by(|a, b| (&a.cell, a.verdict).cmp(&(&b.cell, b.verdict)));
    let mut cells: Vec<&[&Finding]> = shown.chunk_by(|a, b| a.cell == b.cell).collect();
    cells.sort_by_key(|findings| findings[0].verdict);
    for findings in cells {
        document.push_text(format!("{}\n", findings[0].cell));
        document.push(table(findings));
        document.push_text("\n");
    }
    for note in &report.notes {
        document.push_text(format!("note: {note}\n"));
    }
    document.push_text(format!("{}\n", summary(report)));
    document
}

/// Returns one line about the whole comparison.
pub fn summary(report: &Report) -> String {
    let word = match report.outcome() {
        Outcome::Passed => "passed",
        Outcome::Regressed => "REGRESSED",
        Outcome::Undecided if report.pairs == 0 => "UNDECIDED: no two runs can be compared",
        Outcome::Undecided => "UNDECIDED: the runs are too few",
    };
    let counts = [Verdict::Regressed, Verdict::Undecided, Verdict::Improved, Verdict::Passed]
        .map(|verdict| format!("{} {}", report.count(verdict), verdict.name()));
    let lost = match report.lost.len() {
        0 => String::new(),
        lost => format!("{lost} runs or metrics lost, "),
    };
    format!(
        "{word}: {lost}{} of {}, {} of runs",
        counts.join(", "),
        plural(report.findings.len(), "metric"),
        plural(report.pairs, "pair")
    )
}

impl super::Lost {
    /// The cell and the seed.
    pub fn place(&self) -> String {
        match self.seed {
            Some(seed) => format!("{}, seed {seed}", self.cell),
            None => self.cell.to_string(),
        }
    }
}

impl Finding {
    /// The comparison in one line.
    pub fn text(&self) -> String {
        let scale = self.scale();
        let runs = self.base.n;
        format!(
            "{} on {}: {} from {} to {} ({}, {runs} pairs; limit {})",
            self.cell.workload,
            self.cell.machine,
            scale.label(&self.metric),
            scale.summary(&self.base),
            scale.summary(&self.new),
            change_text(&self.change),
            self.limit_text(),
        )
    }

    fn scale(&self) -> Scale {
        let largest = self.base.size().max(self.new.size());
        match self.unit.as_str() {
            "ns" => Scale::time(largest),
            "%" => Scale::percent(),
            _ => Scale::count(largest),
        }
    }

    fn limit_text(&self) -> String {
        let Limit { relative, absolute, more_is_worse } = self.limit;
        let sign = if more_is_worse { '+' } else { '-' };
        let relative = relative.map(|part| format!("{sign}{} %", rounded(part * 100.0)));
        let absolute = absolute.map(|most| match self.unit.as_str() {
            "ns" => format!("{sign}{}", Scale::time(most).with_unit(most)),
            unit => format!("{sign}{} {unit}", rounded(most)).trim_end_matches(" 1").to_owned(),
        });
        let both: Vec<String> = relative.into_iter().chain(absolute).collect();
        both.join(", ")
    }
}

fn rounded(x: f64) -> f64 {
    (x * 1e6).round() / 1e6
}

fn table(findings: &[&Finding]) -> Table {
    let head = ["", "metric", "BASE", "NEW", "change", "limit", "p"];
    let mut table = Table::new(head.map(Shown::head).to_vec(), head.len(), 0);
    table.aligns[1] = Align::Left;
    for finding in findings {
        let mark = match finding.verdict {
            Verdict::Regressed => Mark::Worse,
            Verdict::Undecided => Mark::Noise,
            Verdict::Improved => Mark::Better,
            Verdict::Passed => Mark::Plain,
        };
        let scale = finding.scale();
        let name = match finding.verdict {
            Verdict::Regressed => "REGRESSED",
            other => other.name(),
        };
        table.rows.push(vec![
            Shown::new(name, mark),
            Shown::plain(scale.label(&finding.metric)),
            Shown::plain(scale.summary(&finding.base)),
            Shown::plain(scale.summary(&finding.new)),
            Shown::new(change_text(&finding.change), mark),
            Shown::plain(finding.limit_text()),
            Shown::plain(finding.p.map_or("-".to_owned(), probability)),
        ]);
    }
    table
}

fn probability(p: f64) -> String {
    if p < 0.001 { "<0.001".to_owned() } else { format!("{p:.3}") }
}

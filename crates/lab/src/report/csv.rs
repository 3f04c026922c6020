// SPDX-License-Identifier: GPL-2.0-only
//! Results as comma-separated values for spreadsheets: a line for each scheduler and metric, with
//! unrounded numbers.

use super::selection::Selection;
use crate::compare::{change_of, is_per_cpu, known, shown_metrics, values};
use crate::metric::{self, Better};
use crate::results::Results;
use crate::run::Run;
use crate::stats::Summary;

const COLUMNS: [&str; 17] = [
    "workload",
    "machine",
    "target",
    "scheduler",
    "metric",
    "unit",
    "better",
    "runs",
    "counted",
    "mean",
    "mean_low",
    "mean_high",
    "baseline",
    "change",
    "change_low",
    "change_high",
    "verdict",
];

/// Returns a table of the results of all machines, with one line of column names.
pub fn csv(all: &[Results], runs: usize, selection: &Selection) -> String {
    let mut text = line(COLUMNS);
    for results in all {
        let manifest = &results.manifest;
        let groups: Vec<&[Run]> = results.runs.chunks(runs.max(1)).collect();
        for target in groups.chunks(manifest.schedulers.len().max(1)) {
            for group in target {
                for fields in lines(target[0], group, selection) {
                    let of = [&manifest.workload.workload, &manifest.machine.machine];
                    text.push_str(&line(of.into_iter().chain(&fields)));
                }
            }
        }
    }
    text
}

/// Returns one line of fields, quoted where they need it (RFC 4180).
pub fn line<T: AsRef<str>>(fields: impl IntoIterator<Item = T>) -> String {
    let quoted = |field: T| match field.as_ref() {
        text if text.contains([',', '"', '\n', '\r']) => {
            format!("\"{}\"", text.replace('"', "\"\""))
        }
        text => text.to_owned(),
    };
    fields.into_iter().map(quoted).collect::<Vec<_>>().join(",") + "\n"
}

fn lines(baseline: &[Run], group: &[Run], selection: &Selection) -> Vec<Vec<String>> {
    let Some(first) = group.first() else { return Vec::new() };
    let takes = |name: &str| {
        let is_deciding =
            metric::all().any(|m| m.rows.iter().any(|row| row.name == name && row.is_deciding));
        selection.takes_row(name, is_deciding)
            && (selection.takes(name, is_per_cpu(name)) || is_deciding)
    };
    let number = |value: Option<f64>| value.map_or(String::new(), |value| value.to_string());
    let mut lines = Vec::new();
    for (name, unit) in shown_metrics(group).into_iter().filter(|(name, _)| takes(name)) {
        let column = values(group, name);
        let summary = Summary::of(&known(&column));
        let mut line = vec![
            first.target.to_string(),
            first.scheduler.clone(),
            name.to_owned(),
            unit.to_owned(),
            match metric::find(name).map(|metric| metric.better) {
                Some(Better::Less) => "less".to_owned(),
                Some(Better::More) => "more".to_owned(),
                _ => String::new(),
            },
            group.len().to_string(),
            summary.n.to_string(),
            number(summary.mean),
            number(summary.low),
            number(summary.high),
        ];
        if std::ptr::eq(baseline, group) {
            line.extend(std::iter::repeat_n(String::new(), 5));
        } else {
            let change = change_of(baseline, group, &values(baseline, name), &column);
            line.push(baseline.first().map_or(String::new(), |run| run.scheduler.clone()));
            line.extend([change.relative, change.low, change.high].map(number));
            line.push(change.verdict.name().to_owned());
        }
        lines.push(line);
    }
    lines
}

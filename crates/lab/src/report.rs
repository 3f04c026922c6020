// SPDX-License-Identifier: GPL-2.0-only
//! Results as text for people: the main metrics in suitable units, with intervals, and a mark on
//! changes that are noise.
//!
//! Owns: the form in which metrics are shown. `metric.rs` declares which metrics the report shows;
//! the results file holds all metrics.

pub(crate) mod format;
mod machines;
mod outcome;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::agreement::{Agreement, Agrees};
use crate::compare::{Column, change_of, column, known, values};
use crate::metric::{
    self, COUNTER, CPU_BUSY, CPU_IDLE, CPU_OVERHEAD, Metric, OP_MEAN, Row, Show, Unit,
};
use crate::results::Results;
use crate::run::{CgroupResult, Run};
use crate::session::Session;
use crate::stats::{Change, Summary, Verdict};
use format::{ABSENT, Align, Scale, grid};
pub use machines::{OnMachine, across_machines};

/// One row of the metrics table.
struct MetricRow {
    label: String,
    value: RowSource,
    kind: ValueUnit,
    /// Whether the table that compares several machines has the row too.
    is_main: bool,
}

enum RowSource {
    Metric(String),
    /// Share of all CPU time, in percent.
    CpuShare(&'static str),
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum ValueUnit {
    Time,
    Count,
    Percent,
}

/// Returns the whole report.
pub fn report(session: &Session, results: &Results) -> String {
    let mut text = header(session, results);
    let groups: Vec<&[Run]> = results.runs.chunks(session.runs.max(1) as usize).collect();
    let shorts: Vec<String> = session.schedulers.iter().map(|s| s.input.arg.short()).collect();
    let shorts: Vec<&str> = shorts.iter().map(String::as_str).collect();
    let targets: Vec<&str> = results.manifest.targets.iter().map(String::as_str).collect();
    if targets.len() < 2 {
        text.push_str(&tables(&shorts, &groups));
        return text;
    }
    // One table per scheduler, with a column for each target.
    for (at, short) in shorts.iter().enumerate() {
        let of_it: Vec<&[Run]> = groups.iter().skip(at).step_by(shorts.len()).copied().collect();
        let _ = writeln!(text, "{}{short}", if at > 0 { "\n" } else { "" });
        text.push_str(&tables(&targets, &of_it));
        let scheduler = session.schedulers[at].label();
        let held = results.agreements.iter().filter(|a| a.scheduler == *scheduler);
        text.push_str(&agreement_table(targets[0], &held.collect::<Vec<_>>()));
    }
    text
}

/// Formats the quantities that should be alike on all targets, each with its verdict.
fn agreement_table(first: &str, held: &[&Agreement]) -> String {
    let Some(one) = held.first() else {
        return String::new();
    };
    let head = ["", first, "", "", "change", ""].map(str::to_owned).to_vec();
    let mut lines = vec![head];
    for a in held {
        let largest = a.first.size().max(a.other.size());
        let scale = match a.unit.as_str() {
            "%" => Scale::percent(),
            "ns" => Scale::time(largest),
            _ => Scale::count(largest),
        };
        let verdict = match a.verdict {
            Agrees::Within => "within",
            Agrees::Outside => "OUTSIDE",
            Agrees::Open => "open",
            Agrees::NoRuns => "no runs",
        };
        lines.push(vec![
            scale.label(&a.quantity),
            scale.summary(&a.first),
            a.target.clone(),
            scale.summary(&a.other),
            change_text(&a.change),
            verdict.to_owned(),
        ]);
    }
    let aligns = [Align::Left, Align::Right, Align::Left, Align::Right, Align::Right, Align::Left];
    format!(
        "\nWithin {} % of {first}? (open: the interval of the change includes the limit)\n{}",
        one.tolerance_percent,
        grid(&lines, &aligns)
    )
}

fn tables(names: &[&str], groups: &[&[Run]]) -> String {
    let mut text = metrics_table(names, groups);
    text.push_str(&cgroups_table(names, groups));
    text.push_str(&legend(groups));
    text.push_str(&outcome::remarks(names, groups));
    text
}

fn header(session: &Session, results: &Results) -> String {
    let m = &results.manifest;
    let seeds = match m.runs {
        1 => format!("1 run, seed {}", m.seed),
        n => format!("{n} runs each, seeds {} to {}", m.seed, session.seed_of_last()),
    };
    let description = m.machine.description.split(['.', ';']).next().unwrap_or_default().trim();
    format!(
        "workload {}   machine {} ({description})\ntarget {}   {seeds}   {}\n\n",
        m.workload.workload,
        m.machine.machine,
        m.targets.join(" and "),
        length(results),
    )
}

/// Returns the length of the runs in virtual time, as a range if the lengths differ.
fn length(results: &Results) -> String {
    let lengths = results.runs.iter().map(|r| r.virtual_ns);
    let (min, max) = (lengths.clone().min().unwrap_or(0), lengths.max().unwrap_or(0));
    let text = outcome::duration;
    if min == max { text(max) } else { format!("{} to {}", text(min), text(max)) }
}

fn rows(groups: &[&[Run]]) -> Vec<MetricRow> {
    let first = groups.first().and_then(|g| g.first());
    let mut rows: Vec<MetricRow> = metric::all()
        .flat_map(|metric| metric.rows.iter().map(move |row| (metric, row)))
        .map(|(metric, row)| MetricRow::declared(metric, row, first))
        .collect();
    rows.extend(op_rows(groups));
    rows.extend(counter_rows(groups));
    rows.retain(|row| groups.iter().any(|g| g.iter().any(|run| row.is_in(run))));
    rows
}

/// Returns a row for each main operation, such as `enqueue`, that at least one of the schedulers
/// has. The row shows the mean time of a call.
fn op_rows(groups: &[&[Run]]) -> Vec<MetricRow> {
    let mut seen = BTreeSet::new();
    let names = groups.iter().flat_map(|g| g.iter()).flat_map(|r| r.metrics.keys());
    let ops = names.filter_map(|name| OP_MEAN.part_of(name));
    ops.filter(|op| seen.insert(op.to_owned()))
        .filter(|op| ["select_cpu", "enqueue", "dispatch", "running", "stopping"].contains(op))
        .map(|op| MetricRow {
            label: format!("ops.{op}() mean"),
            value: RowSource::Metric(OP_MEAN.named(op)),
            kind: ValueUnit::Time,
            is_main: false,
        })
        .collect()
}

/// Returns rows for the schedulers' own counters.
fn counter_rows(groups: &[&[Run]]) -> Vec<MetricRow> {
    let mut seen = BTreeSet::new();
    let names = groups.iter().flat_map(|g| g.iter()).flat_map(|r| r.metrics.iter());
    names
        .filter(|(name, _)| COUNTER.declares(name) && seen.insert(name.as_str()))
        .map(|(name, metric)| MetricRow {
            label: name.clone(),
            value: RowSource::Metric(name.clone()),
            kind: if metric.unit == "ns" { ValueUnit::Time } else { ValueUnit::Count },
            is_main: false,
        })
        .collect()
}

impl MetricRow {
    /// Returns the row that a metric declares. `run` is any run of the report; the row's label
    /// takes the unit of work from it.
    fn declared(metric: &Metric, row: &Row, run: Option<&Run>) -> MetricRow {
        let kind = match (row.show, metric.unit) {
            (Show::CpuShare, _) => ValueUnit::Percent,
            (_, Unit::Ns) => ValueUnit::Time,
            _ => ValueUnit::Count,
        };
        let value = match row.show {
            Show::CpuShare => RowSource::CpuShare(row.name),
            Show::Value | Show::Main => RowSource::Metric(row.name.to_owned()),
        };
        let mut label = row.label.to_owned();
        if metric.unit == Unit::WorkPerSecond {
            let unit = run.and_then(|run| run.metrics.get(row.name)).map(|m| &*m.unit);
            let _ = write!(label, ", {}", unit.unwrap_or("1/s"));
        }
        MetricRow { label, value, kind, is_main: row.show == Show::Main }
    }

    fn column(&self, runs: &[Run]) -> Column {
        match &self.value {
            RowSource::Metric(name) => values(runs, name),
            RowSource::CpuShare(name) => column(runs, |run| cpu_share(run, name)),
        }
    }

    /// Returns the largest absolute mean of the row, by which `scale` chooses the unit.
    fn largest(&self, groups: &[&[Run]]) -> f64 {
        let summaries = groups.iter().map(|g| Summary::of(&known(&self.column(g))));
        summaries.map(|s| s.size()).fold(0.0, f64::max)
    }

    fn scale(&self, largest: f64) -> Scale {
        match self.kind {
            ValueUnit::Time => Scale::time(largest),
            ValueUnit::Count => Scale::count(largest),
            ValueUnit::Percent => Scale::percent(),
        }
    }

    /// Returns the value of each group of runs and, from the second group on, the change against
    /// the first group.
    fn cells(&self, groups: &[&[Run]], scale: &Scale) -> Vec<String> {
        let columns: Vec<Column> = groups.iter().map(|g| self.column(g)).collect();
        let mut cells = Vec::new();
        for (at, column) in columns.iter().enumerate() {
            cells.push(scale.summary(&Summary::of(&known(column))));
            if at > 0 {
                let change = change_of(groups[0], groups[at], &columns[0], column);
                let lacks = |at: usize| known(&columns[at]).is_empty() && counts(groups[at]);
                let text = || change_text(&change);
                cells.push(if lacks(0) || lacks(at) { String::new() } else { text() });
            }
        }
        cells
    }

    /// Tells whether the run has the row's metric with a value other than 0. The table has the row
    /// if this holds for any run, even for one that does not count, so that the table shows which
    /// values are missing.
    fn is_in(&self, run: &Run) -> bool {
        let value = match &self.value {
            RowSource::Metric(name) => run.metrics.get(name).map(|m| m.value),
            RowSource::CpuShare(name) => cpu_share(run, name),
        };
        value.is_some_and(|value| value != 0.0)
    }
}

/// Returns the share of all CPU time that the metric `name` has, in percent; None if the target
/// does not measure the metric.
fn cpu_share(run: &Run, name: &str) -> Option<f64> {
    let get = |name: &str| run.metrics.get(name).map(|m| m.value);
    let all = [CPU_BUSY, CPU_IDLE, CPU_OVERHEAD].iter().filter_map(|metric| get(metric.name));
    let total: f64 = all.sum();
    Some(get(name)? * 100.0 / total).filter(|_| total > 0.0)
}

fn metrics_table(names: &[&str], groups: &[&[Run]]) -> String {
    let mut head = vec![String::new()];
    for (at, name) in names.iter().enumerate() {
        head.push(outcome::name(name, groups[at]));
        if at > 0 {
            head.push("change".to_owned());
        }
    }
    let mut lines = vec![head];
    lines.extend(outcome::lines(groups));
    lines.extend(rows(groups).iter().map(|row| line(row, groups)));
    let aligns: Vec<Align> =
        std::iter::once(Align::Left).chain((0..lines[0].len() - 1).map(|_| Align::Right)).collect();
    grid(&lines, &aligns)
}

fn line(row: &MetricRow, groups: &[&[Run]]) -> Vec<String> {
    let scale = row.scale(row.largest(groups));
    let mut cells = vec![scale.label(&row.label)];
    cells.extend(row.cells(groups, &scale));
    cells
}

/// Tells whether at least one of the runs counts (`Run::counts`).
fn counts(runs: &[Run]) -> bool {
    runs.iter().any(|run| run.counts)
}

/// Formats a change as `+3.1 % ±0.4`, with `~` in front if it cannot be told from noise.
pub(crate) fn change_text(change: &Change) -> String {
    let mark = match change.verdict {
        Verdict::Equal => return "=".into(),
        Verdict::NoRuns => return ABSENT.into(),
        Verdict::Noise => "~ ",
        _ => "",
    };
    let Some(relative) = change.relative else {
        return mark.trim_end().into();
    };
    let percent = relative * 100.0;
    let digits = usize::from(percent.abs() < 99.95);
    let mut text = format!("{mark}{percent:+.digits$} %");
    if let (Some(low), Some(high)) = (change.low, change.high) {
        let half = (high - low) * 50.0;
        let digits = usize::from(half < 99.95);
        let _ = write!(text, " ±{half:.digits$}");
    }
    text
}

/// Returns a table of the cgroups' shares against their weights; empty if only the root exists.
fn cgroups_table(names: &[&str], groups: &[&[Run]]) -> String {
    // Take the cgroups from the first run that counts. An ejected run may have ended before some
    // cgroups had their tasks.
    let mut all = groups.iter().flat_map(|g| g.iter());
    let Some(first) = all.clone().find(|run| run.counts).or(all.next()) else {
        return String::new();
    };
    let shown: Vec<_> = first.cgroups.iter().filter(|c| c.path != "/").take(MAX_CGROUPS).collect();
    if shown.is_empty() {
        return String::new();
    }
    let mut head = vec!["cgroup".to_owned(), "weight".to_owned(), "entitled".to_owned()];
    head.extend(names.iter().map(|n| (*n).to_owned()));
    let mut lines = vec![head];
    for cgroup in &shown {
        let promised = format!("{:.1} %", cgroup.weight_permille / 10.0);
        let mut line = vec![cgroup.path.clone(), cgroup.weight.to_string(), promised];
        for group in groups {
            line.push(percent(group, &cgroup.path, |c| c.share_permille));
        }
        lines.push(line);
    }
    let coscheduled = coscheduled_table(&shown, names, groups);
    let mut aligns = vec![Align::Left];
    aligns.extend(lines[0].iter().skip(1).map(|_| Align::Right));
    format!("\nCPU time among the cgroups of one parent\n{}{coscheduled}", grid(&lines, &aligns))
}

/// Formats the mean of one value of the cgroup at `path` over the runs that count, in percent; `-`
/// if none of these runs has the value.
fn percent(runs: &[Run], path: &str, permille: fn(&CgroupResult) -> Option<f64>) -> String {
    let of = |run: &Run| permille(run.cgroups.iter().find(|c| c.path == path)?);
    let values: Vec<f64> = known(&column(runs, of)).iter().map(|p| p / 10.0).collect();
    match values.is_empty() {
        true => ABSENT.to_owned(),
        false => format!("{} %", Scale::percent().summary(&Summary::of(&values))),
    }
}

/// Returns a table of the time in which each cgroup's tasks ran at once; empty if no cgroup has
/// several tasks.
fn coscheduled_table(shown: &[&CgroupResult], names: &[&str], groups: &[&[Run]]) -> String {
    let mut head = vec!["cgroup".to_owned()];
    head.extend(names.iter().map(|n| (*n).to_owned()));
    let mut lines = vec![head];
    for cgroup in shown {
        let mut line = vec![cgroup.path.clone()];
        line.extend(groups.iter().map(|g| percent(g, &cgroup.path, |c| c.coscheduled_permille)));
        if line[1..].iter().any(|cell| cell != ABSENT) {
            lines.push(line);
        }
    }
    if lines.len() < 2 {
        return String::new();
    }
    let mut aligns = vec![Align::Left];
    aligns.extend(names.iter().map(|_| Align::Right));
    format!(
        "\nTime in which all runnable tasks of the cgroup run at once\n{}",
        grid(&lines, &aligns)
    )
}

/// Maximum number of cgroups shown; the results file has all of them.
const MAX_CGROUPS: usize = 32;

fn is_one_target(groups: &[&[Run]]) -> bool {
    let mut targets = groups.iter().filter_map(|g| g.first()).map(|r| &r.target);
    let first = targets.next();
    targets.all(|t| Some(t) == first)
}

fn legend(groups: &[&[Run]]) -> String {
    let runs = groups.first().map_or(0, |g| g.len());
    let mut text = String::new();
    if runs > 1 {
        text.push_str("\n± 95 % interval of the mean");
        if groups.len() > 1 {
            let paired = is_one_target(groups);
            text.push_str(if paired { "; changes are paired by seed" } else { "" });
            let all_count = groups.iter().all(|g| g.iter().all(|run| run.counts));
            text.push_str(if paired && !all_count {
                ", using pairs in which both runs count"
            } else {
                ""
            });
            text.push_str("; ~ cannot be told from noise; = equal in every run");
        }
        text.push('\n');
    } else if groups.len() > 1 {
        text.push_str("\nOne run each: nothing here can be told from noise. Use -n 5 or more.\n");
    }
    text
}

// SPDX-License-Identifier: GPL-2.0-only
//! Results for people: the main metrics in suitable units, with intervals, marks on what is best
//! and on what is noise.
//!
//! Owns: what a report shows; `document.rs` has its forms. `metric.rs` declares which metrics have
//! a row; the results file holds all metrics.

pub mod benchmark;
pub mod csv;
pub mod differences;
pub mod document;
pub mod format;
mod machines;
pub mod outcome;
pub mod selection;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt::Write;

use crate::agreement::{Agreement, Agrees};
use crate::compare::{Column, change_of, column, is_per_cpu, known, values};
use crate::metric::{
    self, Better, CPU_BUSY, CPU_IDLE, CPU_OVERHEAD, Metric, OP_MEAN, Row, Show, THROUGHPUT, Unit,
};
use crate::results::{Manifest, Results};
use crate::run::{CgroupResult, Run};
use crate::session::Session;
use crate::stats::{Change, Summary, Verdict};
use document::{Align, Cell, Document, Mark, Table};
use format::{ABSENT, Scale};
pub use machines::{OnMachine, across_machines};
use selection::Selection;

/// One row of the metrics table.
#[derive(Clone, Debug)]
struct MetricRow {
    label: String,
    value: RowSource,
    kind: ValueUnit,
    better: Better,
    /// Whether the table that compares several machines has the row too.
    is_main: bool,
}

#[derive(Clone, Debug)]
enum RowSource {
    Metric(String),
    /// Share of all CPU time, in percent.
    CpuShare(&'static str),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ValueUnit {
    Time,
    Count,
    Percent,
}

/// Returns the whole report.
pub fn report(session: &Session, results: &Results, selection: &Selection) -> Document {
    let mut report = Document::default();
    report.push_text(header(session, results));
    let groups: Vec<&[Run]> = results.runs.chunks(session.runs.max(1) as usize).collect();
    let shorts: Vec<String> = session.schedulers.iter().map(|s| s.input.arg.short()).collect();
    let shorts: Vec<&str> = shorts.iter().map(String::as_str).collect();
    let targets: Vec<&str> = results.manifest.targets.iter().map(String::as_str).collect();
    if targets.len() < 2 {
        report.append(tables(&shorts, &groups, selection, &results.manifest));
        return report;
    }
    // One table per scheduler, with a column for each target.
    for (at, short) in shorts.iter().enumerate() {
        let of_it: Vec<&[Run]> = groups.iter().skip(at).step_by(shorts.len()).copied().collect();
        report.push_text(format!("{}{short}\n", if at > 0 { "\n" } else { "" }));
        report.append(tables(&targets, &of_it, selection, &results.manifest));
        let scheduler = session.schedulers[at].label();
        let held = results.agreements.iter().filter(|a| a.scheduler == *scheduler);
        report.append(agreement_table(targets[0], &held.collect::<Vec<_>>()));
    }
    report
}

/// Returns the quantities that should be alike on all targets, each with its verdict.
fn agreement_table(first: &str, held: &[&Agreement]) -> Document {
    let mut document = Document::default();
    let Some(one) = held.first() else {
        return document;
    };
    let head = ["", first, "", "", "change", ""].map(Cell::head).to_vec();
    let columns = head.len();
    let mut table = Table::new(head, columns, 0);
    table.aligns =
        vec![Align::Left, Align::Right, Align::Left, Align::Right, Align::Right, Align::Left];
    for a in held {
        let largest = a.first.size().max(a.other.size());
        let scale = match a.unit.as_str() {
            "%" => Scale::percent(),
            "ns" => Scale::time(largest),
            _ => Scale::count(largest),
        };
        let verdict = match a.verdict {
            Agrees::Within => Cell::plain("within"),
            Agrees::Outside => Cell::new("OUTSIDE", Mark::Failure),
            Agrees::Open => Cell::new("open", Mark::Noise),
            Agrees::NoRuns => Cell::new("no runs", Mark::Failure),
        };
        table.rows.push(vec![
            Cell::plain(scale.label(&a.quantity)),
            Cell::plain(scale.summary(&a.first)),
            Cell::plain(a.target.clone()),
            Cell::plain(scale.summary(&a.other)),
            Cell::plain(change_text(&a.change)),
            verdict,
        ]);
    }
    document.push_text(format!(
        "\nWithin {} % of {first}? (open: the interval of the change includes the limit)\n",
        one.tolerance_percent,
    ));
    document.push(table);
    document
}

fn tables(
    names: &[&str],
    groups: &[&[Run]],
    selection: &Selection,
    manifest: &Manifest,
) -> Document {
    let mut document = Document::default();
    let rows = rows(groups, selection);
    document.push(metrics_table(names, groups, &rows));
    document.append(cgroups_tables(names, groups));
    document.push_text(legend(groups, &rows));
    document.push_text(outcome::remarks(names, groups, manifest));
    document
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

fn rows(groups: &[&[Run]], selection: &Selection) -> Vec<MetricRow> {
    let first = groups.first().and_then(|g| g.first());
    let mut rows: Vec<MetricRow> = metric::all()
        .flat_map(|metric| metric.rows.iter().map(move |row| (metric, row)))
        .filter(|(_, row)| selection.takes_row(row.name, row.is_deciding))
        .map(|(metric, row)| MetricRow::declared(metric, row, first))
        .collect();
    rows.extend(other_rows(groups, selection));
    // A metric that is 0 everywhere is left out, unless it was asked for by its name. That nothing
    // was finished is told.
    let is_in = |row: &MetricRow, run: &Run| {
        let told = |name| name == THROUGHPUT.name || selection.names(name);
        row.value_in(run).is_some_and(|value| value != 0.0 || told(row.metric()))
    };
    rows.retain(|row| groups.iter().any(|g| g.iter().any(|run| is_in(row, run))));
    rows
}

/// Returns rows for the chosen metrics that declare no row, such as a scheduler's own counters.
fn other_rows(groups: &[&[Run]], selection: &Selection) -> Vec<MetricRow> {
    let declared = |name: &str| metric::all().any(|m| m.rows.iter().any(|row| row.name == name));
    let mut seen = BTreeSet::new();
    let metrics = groups.iter().flat_map(|g| g.iter()).flat_map(|run| &run.metrics);
    metrics
        .filter(|(name, _)| !declared(name) && selection.takes(name, is_per_cpu(name)))
        .filter(|(name, _)| seen.insert(name.as_str()))
        .map(|(name, value)| MetricRow {
            label: match OP_MEAN.part_of(name) {
                Some(op) => format!("ops.{op}() mean"),
                None => name.clone(),
            },
            value: RowSource::Metric(name.clone()),
            kind: match &*value.unit {
                "ns" => ValueUnit::Time,
                "%" => ValueUnit::Percent,
                _ => ValueUnit::Count,
            },
            better: metric::find(name).map_or(Better::Open, |metric| metric.better),
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
            (_, Unit::Percent) => ValueUnit::Percent,
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
        let is_main = row.show == Show::Main;
        MetricRow { label, value, kind, better: metric.better, is_main }
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
    fn cells(&self, groups: &[&[Run]], scale: &Scale) -> Vec<Cell> {
        let columns: Vec<Column> = groups.iter().map(|g| self.column(g)).collect();
        let best = self.best(groups, &columns);
        let mut cells = Vec::new();
        for (at, column) in columns.iter().enumerate() {
            let mark = if best.contains(&at) { Mark::Best } else { Mark::Plain };
            cells.push(Cell::new(scale.summary(&Summary::of(&known(column))), mark));
            if at > 0 {
                let change = change_of(groups[0], groups[at], &columns[0], column);
                let lacks = |at: usize| known(&columns[at]).is_empty() && counts(groups[at]);
                let cell = || Cell::new(change_text(&change), change_mark(&change, self.better));
                cells.push(if lacks(0) || lacks(at) { Cell::default() } else { cell() });
            }
        }
        cells
    }

    /// Returns the indices of the groups with the best value: that of the best mean, and those that
    /// cannot be told from it. Empty if that is all groups, if the metric has no better direction,
    /// or if the groups are runs on different targets. A group in which a run failed is never best,
    /// because its mean leaves out the runs that failed.
    fn best(&self, groups: &[&[Run]], columns: &[Column]) -> Vec<usize> {
        let sign = match self.better {
            Better::Open => return Vec::new(),
            Better::Less => -1.0,
            Better::More => 1.0,
        };
        if !is_one_target(groups) {
            return Vec::new();
        }
        let mean = |at: usize| Summary::of(&known(&columns[at])).mean.map(|mean| mean * sign);
        let sound = |at: &usize| groups[*at].iter().all(Run::succeeded) && mean(*at).is_some();
        let sound: Vec<usize> = (0..groups.len()).filter(sound).collect();
        let Some(first) =
            sound.iter().copied().max_by(|a, b| mean(*a).partial_cmp(&mean(*b)).unwrap())
        else {
            return Vec::new();
        };
        let change =
            |at: usize| change_of(groups[first], groups[at], &columns[first], &columns[at]);
        let is_tied = |at: &usize| *at == first || change(*at).verdict != Verdict::Different;
        let best: Vec<usize> = sound.iter().copied().filter(is_tied).collect();
        if best.len() < sound.len() { best } else { Vec::new() }
    }

    /// Returns the row's label with the unit and the better direction.
    fn label(&self, scale: &Scale) -> String {
        let arrow = match self.better {
            Better::More => MORE,
            Better::Less => LESS,
            Better::Open => "",
        };
        format!("{}{arrow}", scale.label(&self.label))
    }

    /// Tells whether the run has the row's metric with a value other than 0. The table has the row
    /// if this holds for any run, even for one that does not count, so that the table shows which
    /// values are missing.
    fn value_in(&self, run: &Run) -> Option<f64> {
        match &self.value {
            RowSource::Metric(name) => run.metrics.get(name).map(|m| m.value),
            RowSource::CpuShare(name) => cpu_share(run, name),
        }
    }

    fn metric(&self) -> &str {
        match &self.value {
            RowSource::Metric(name) => name,
            RowSource::CpuShare(name) => name,
        }
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

/// Signs behind the label of a metric that is better if it is more, or less.
const MORE: &str = " ↑";
const LESS: &str = " ↓";

fn metrics_table(names: &[&str], groups: &[&[Run]], rows: &[MetricRow]) -> Table {
    let mut head = vec![Cell::default()];
    for (at, name) in names.iter().enumerate() {
        head.push(Cell::head(outcome::name(name, groups[at])));
        if at > 0 {
            head.push(Cell::head("change"));
        }
    }
    // The first group is the baseline, beside which each other group is shown.
    let mut table = Table::new(head, 2, 2);
    table.rows.extend(outcome::lines(groups));
    table.rows.extend(rows.iter().map(|row| line(row, groups)));
    table
}

fn line(row: &MetricRow, groups: &[&[Run]]) -> Vec<Cell> {
    let scale = row.scale(row.largest(groups));
    let mut cells = vec![Cell::plain(row.label(&scale))];
    cells.extend(row.cells(groups, &scale));
    cells
}

/// Tells whether at least one of the runs counts (`Run::counts`).
fn counts(runs: &[Run]) -> bool {
    runs.iter().any(|run| run.counts)
}

/// Returns the mark of a change of a quantity.
pub fn change_mark(change: &Change, better: Better) -> Mark {
    match (change.verdict, change.relative.unwrap_or_default() > 0.0, better) {
        (Verdict::Noise | Verdict::Equal, ..) => Mark::Noise,
        (Verdict::NoRuns, ..) => Mark::Failure,
        (Verdict::Different, true, Better::More) => Mark::Better,
        (Verdict::Different, false, Better::Less) => Mark::Better,
        (Verdict::Different, _, Better::More | Better::Less) => Mark::Worse,
        _ => Mark::Plain,
    }
}

/// Factor from which on a change is shown as a factor.
const FACTOR_MIN: f64 = 100.0;

/// Formats a change as `+3.1 % ±0.4`, with `~` in front if it cannot be told from noise. From a
/// hundred times as much on, the factor is easier to read: `x 250 ±3`.
pub fn change_text(change: &Change) -> String {
    let mark = match change.verdict {
        Verdict::Equal => return "=".into(),
        Verdict::NoRuns => return ABSENT.into(),
        Verdict::Noise => "~ ",
        _ => "",
    };
    let Some(relative) = change.relative else {
        return mark.trim_end().into();
    };
    let is_factor = relative >= FACTOR_MIN - 1.0;
    let percent = relative * 100.0;
    let mut text = match is_factor {
        true => format!("{mark}x {:.0}", relative + 1.0),
        false => format!("{mark}{percent:+.*} %", usize::from(percent.abs() < 99.95)),
    };
    if let (Some(low), Some(high)) = (change.low, change.high) {
        let half = (high - low) / 2.0 * if is_factor { 1.0 } else { 100.0 };
        let digits = usize::from(half < 99.95);
        let _ = write!(text, " ±{half:.digits$}");
    }
    text
}

/// Returns the tables of cgroups: their shares against their weights, and how much of the time
/// their tasks ran at once; empty if only the root exists.
fn cgroups_tables(names: &[&str], groups: &[&[Run]]) -> Document {
    let mut document = Document::default();
    // Take the cgroups from the first run that counts. An ejected run may have ended before some
    // cgroups had their tasks.
    let mut all = groups.iter().flat_map(|g| g.iter());
    let Some(first) = all.clone().find(|run| run.counts).or(all.next()) else {
        return document;
    };
    let shown: Vec<_> = first.cgroups.iter().filter(|c| c.path != "/").take(MAX_CGROUPS).collect();
    if shown.is_empty() {
        return document;
    }
    let named = || names.iter().map(|name| Cell::head(*name));
    let head = ["cgroup", "weight", "entitled"].map(Cell::head).into_iter().chain(named());
    let mut table = Table::new(head.collect(), 3, 1);
    for cgroup in &shown {
        let promised = format!("{:.1} %", cgroup.weight_permille / 10.0);
        let mut line = vec![cgroup.path.clone(), cgroup.weight.to_string(), promised];
        line.extend(groups.iter().map(|g| percent(g, &cgroup.path, |c| c.share_permille)));
        table.rows.push(line.into_iter().map(Cell::plain).collect());
    }
    document.push_text("\nCPU time among the cgroups of one parent\n");
    document.push(table);

    let head = std::iter::once(Cell::head("cgroup")).chain(named());
    let mut table = Table::new(head.collect(), 1, 1);
    for cgroup in &shown {
        let at_once = |g: &&[Run]| percent(g, &cgroup.path, |c| c.coscheduled_permille);
        let cells: Vec<String> = groups.iter().map(at_once).collect();
        if cells.iter().any(|cell| cell != ABSENT) {
            let line = std::iter::once(cgroup.path.clone()).chain(cells);
            table.rows.push(line.map(Cell::plain).collect());
        }
    }
    if !table.rows.is_empty() {
        document.push_text(
            "\nTime in which all runnable tasks of the cgroup run at once, or as many as there are \
             CPUs\n",
        );
        document.push(table);
    }
    document
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

/// Maximum number of cgroups shown; the results file has all of them.
const MAX_CGROUPS: usize = 32;

fn is_one_target(groups: &[&[Run]]) -> bool {
    let mut targets = groups.iter().filter_map(|g| g.first()).map(|r| &r.target);
    let first = targets.next();
    targets.all(|t| Some(t) == first)
}

/// Explains the signs of the tables.
fn legend(groups: &[&[Run]], rows: &[MetricRow]) -> String {
    let runs = groups.first().map_or(0, |g| g.len());
    let mut lines = Vec::new();
    if runs > 1 {
        lines.push("± 95 % interval of the mean, its longer side".to_owned());
    }
    if runs > 1 && groups.len() > 1 {
        let paired = is_one_target(groups);
        let all_count = groups.iter().all(|g| g.iter().all(|run| run.counts));
        lines.push(match (paired, all_count) {
            (false, _) => "changes are between independent samples".to_owned(),
            (true, true) => "changes are paired by seed".to_owned(),
            (true, false) => {
                "changes are paired by seed, using pairs in which both runs count".to_owned()
            }
        });
        lines.push("~ cannot be told from noise; = equal in every run".to_owned());
        let is_best = |row: &MetricRow| {
            let columns: Vec<Column> = groups.iter().map(|g| row.column(g)).collect();
            !row.best(groups, &columns).is_empty()
        };
        if rows.iter().any(is_best) {
            lines.push(format!("{} best, or not to be told from the best", document::BEST));
        }
    } else if groups.len() > 1 {
        lines.push(
            "One run each: nothing here can be told from noise. Use -n 5 or more.".to_owned(),
        );
    }
    if rows.iter().any(|row| row.better != Better::Open) {
        lines.push(format!("{} more is better; {} less is better", MORE.trim(), LESS.trim()));
    }
    let text: String = lines.iter().map(|line| format!("{line}\n")).collect();
    if text.is_empty() { text } else { format!("\n{text}") }
}

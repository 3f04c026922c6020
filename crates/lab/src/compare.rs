// SPDX-License-Identifier: GPL-2.0-only
//! Comparisons, metric by metric: each scheduler against the baseline on the same target, paired by
//! seed, and each scheduler on the other targets against itself on the first target.
//!
//! Owns: which metrics and which runs are compared. A run counts, and is compared, if its scheduler
//! was not ejected and the run ended regularly.
//! Does not: say which direction is better; that depends on the reader.

use indexmap::IndexMap;
use serde::Serialize;

use crate::metric::{ONE_CPU_BUSY, ONE_CPU_IDLE, ONE_CPU_OVERHEAD, OP_CALLS};
use crate::run::Run;
use crate::stats::{Change, Summary, change, change_between};

/// One metric of one scheduler beside the baseline's value.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    pub metric: String,
    pub unit: String,
    pub baseline: ComparedRuns,
    pub treated: ComparedRuns,
    pub change: Change,
}

/// The runs of one scheduler on one target.
#[derive(Clone, Debug, Serialize)]
pub struct ComparedRuns {
    pub scheduler: String,
    pub target: String,
    /// Number of runs made; `summary.n` of them count and have the metric.
    pub runs: usize,
    #[serde(flatten)]
    pub summary: Summary,
}

/// Compares all runs. `runs` is ordered by target, then by scheduler: each target has
/// `per_scheduler` runs of each of `schedulers` schedulers.
pub fn compare(runs: &[Run], per_scheduler: usize, schedulers: usize) -> Vec<Comparison> {
    let groups: Vec<&[Run]> = runs.chunks(per_scheduler.max(1)).collect();
    let mut all = Vec::new();
    for target in groups.chunks(schedulers.max(1)) {
        all.extend(target[1..].iter().flat_map(|treated| compare_two(target[0], treated)));
    }
    for (at, treated) in groups.iter().enumerate().skip(schedulers.max(1)) {
        all.extend(compare_two(groups[at % schedulers.max(1)], treated));
    }
    all
}

/// One value per run; None if the run does not count or lacks the value.
pub type Column = Vec<Option<f64>>;

/// Returns the values of the runs that have one.
pub fn known(column: &[Option<f64>]) -> Vec<f64> {
    column.iter().copied().flatten().collect()
}

/// Returns the value that `value` finds in each run; None for a run that does not count or has
/// none.
pub fn column(runs: &[Run], value: impl Fn(&Run) -> Option<f64>) -> Column {
    runs.iter().map(|run| value(run).filter(|_| run.counts)).collect()
}

/// Returns the change from the runs `baseline` to the runs `treated`, whose values are `a` and `b`.
/// Runs on the same target are paired by seed; a pair in which a value is None is left out. Runs on
/// different targets are compared as two independent samples.
pub fn change_of(
    baseline: &[Run],
    treated: &[Run],
    a: &[Option<f64>],
    b: &[Option<f64>],
) -> Change {
    let target = |runs: &[Run]| runs.first().map(|r| r.target.clone());
    if target(baseline) != target(treated) {
        return change_between(&known(a), &known(b));
    }
    change(&a.iter().zip(b).filter_map(|(a, b)| Some(((*a)?, (*b)?))).collect::<Vec<_>>())
}

fn compare_two(baseline: &[Run], treated: &[Run]) -> Vec<Comparison> {
    let (Some(first), Some(other)) = (baseline.first(), treated.first()) else {
        return Vec::new();
    };
    let side = |runs: &[Run], run: &Run, values: &[Option<f64>]| ComparedRuns {
        scheduler: run.scheduler.clone(),
        target: run.target.clone().into_owned(),
        runs: runs.len(),
        summary: Summary::of(&known(values)),
    };
    let mut all = Vec::new();
    for (name, unit) in shown_metrics(baseline) {
        if is_per_cpu(name) || !has(treated, name) {
            continue;
        }
        let (a, b) = (values(baseline, name), values(treated, name));
        all.push(Comparison {
            metric: name.to_owned(),
            unit: unit.to_owned(),
            baseline: side(baseline, first, &a),
            treated: side(treated, other, &b),
            change: change_of(baseline, treated, &a, &b),
        });
    }
    all
}

/// Returns the runs whose metrics a comparison shows: those that count, or all runs if none counts.
fn shown(runs: &[Run]) -> impl Iterator<Item = &Run> {
    let any = runs.iter().any(|run| run.counts);
    runs.iter().filter(move |run| run.counts || !any)
}

/// Returns the names and units of the metrics that a comparison shows.
pub fn shown_metrics(runs: &[Run]) -> IndexMap<&str, &str> {
    let all = shown(runs).flat_map(|run| &run.metrics);
    all.map(|(name, metric)| (name.as_str(), &*metric.unit)).collect()
}

fn has(runs: &[Run], metric: &str) -> bool {
    shown(runs).any(|run| run.metrics.contains_key(metric))
}

/// Returns a metric's value in each run.
pub fn values(runs: &[Run], metric: &str) -> Column {
    // If another run has the count of an operation and this run does not, this run made 0 calls of
    // the operation. Any other absent metric is unknown, not 0.
    let otherwise = (OP_CALLS.declares(metric) && has(runs, metric)).then_some(0.0);
    column(runs, |run| run.metrics.get(metric).map(|m| m.value).or(otherwise))
}

/// Tells whether the metric belongs to one CPU. Comparisons omit such metrics, because there can be
/// thousands.
pub fn is_per_cpu(name: &str) -> bool {
    [ONE_CPU_BUSY, ONE_CPU_IDLE, ONE_CPU_OVERHEAD].iter().any(|metric| metric.declares(name))
}

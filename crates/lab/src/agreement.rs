// SPDX-License-Identifier: GPL-2.0-only
//! Agreement between targets: compares the quantities that all targets define in the same way, for
//! the same scheduler and workload, against a tolerance.
//!
//! Owns: the comparison of shares, and the verdict; `metric.rs` declares the compared metrics.
//! Does not: explain why two targets disagree.
//!
//! The comparison leaves out quantities that the targets define differently: CPU time in the
//! kernel, operation counts (on a real kernel, the kernel's own threads cause operations too), and
//! throughput (which depends on the emulated processor).

#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use serde::Serialize;

use crate::compare::{Column, column, known, values};
use crate::metric;
use crate::run::{Run, TaskResult};
use crate::stats::{Change, Summary, Verdict, change_between};

/// Tolerance in percent when the user gives none.
pub const TOLERANCE_PERCENT: u32 = 15;

/// One quantity of one scheduler, on the first target and on another target.
#[derive(Clone, Debug, Serialize)]
pub struct Agreement {
    /// The scheduler as given with `-s`.
    pub scheduler: String,
    pub target: String,
    /// Name of the quantity: a metric's name, `share of PATH` for the CPU time of a cgroup, or
    /// `share of THREADS` for the CPU time of the threads with one name.
    pub quantity: String,
    /// The metric's unit; `%` for a share.
    pub unit: String,
    /// Summary of the quantity over the runs on the first target, and in `other` over those on the
    /// other target.
    pub first: Summary,
    pub other: Summary,
    pub change: Change,
    pub tolerance_percent: u32,
    pub verdict: Agrees,
}

/// Verdict on one quantity: whether the 95 % interval of its relative change lies within the
/// tolerance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Agrees {
    /// The whole 95 % interval of the change lies within the tolerance.
    Within,
    /// The whole 95 % interval of the change lies outside the tolerance, or the first target's mean
    /// is 0 and the 95 % interval of the other target's mean excludes 0.
    Outside,
    /// Only a part of the 95 % interval lies within the tolerance, or there is no such interval.
    /// More runs would decide.
    Open,
    /// On one of the targets no run counts, because each was ejected or ended irregularly.
    NoRuns,
}

/// Compares the runs of one scheduler on the first target (`first`) with the scheduler's runs on
/// another target (`other`).
pub fn agreement(first: &[Run], other: &[Run], tolerance_percent: u32) -> Vec<Agreement> {
    let (Some(here), Some(there)) = (typical(first), typical(other)) else {
        return Vec::new();
    };
    let no_runs = !here.counts || !there.counts;
    let mut all = Vec::new();
    let mut compare = |quantity: String, unit: &str, a: Column, b: Column| {
        let (a, b) = (&known(&a)[..], &known(&b)[..]);
        if !no_runs
            && (a.iter().chain(b).all(|value| *value == 0.0) || a.is_empty() || b.is_empty())
        {
            return;
        }
        let change = change_between(a, b);
        all.push(Agreement {
            scheduler: there.scheduler.clone(),
            target: there.target.clone().into_owned(),
            quantity,
            unit: unit.to_owned(),
            first: Summary::of(a),
            other: Summary::of(b),
            verdict: verdict(&change, &Summary::of(b), tolerance_percent),
            change,
            tolerance_percent,
        });
    };
    for path in here.cgroups.iter().map(|c| c.path.as_str()).filter(|path| *path != "/") {
        let of = |runs: &[Run]| column(runs, |run| cgroup_percent(run, path));
        compare(format!("share of {path}"), "%", of(first), of(other));
    }
    let kinds: BTreeSet<&str> = here.tasks.iter().map(kind).collect();
    for kind in kinds.iter().filter(|_| kinds.len() > 1) {
        let of = |runs: &[Run]| column(runs, |run| kind_percent(run, kind));
        compare(format!("share of {kind}"), "%", of(first), of(other));
    }
    for name in metric::all().flat_map(|metric| metric.agrees) {
        if let (Some(metric), true) = (here.metrics.get(*name), there.metrics.contains_key(*name)) {
            compare((*name).to_owned(), &metric.unit, values(first, name), values(other, name));
        }
    }
    all
}

/// Returns the run whose cgroups, threads and metrics say which quantities are compared: the first
/// run that counts, or else the first run. An ejected run may have ended before all tasks and
/// cgroups existed.
fn typical(runs: &[Run]) -> Option<&Run> {
    runs.iter().find(|run| run.counts).or(runs.first())
}

fn cgroup_percent(run: &Run, path: &str) -> Option<f64> {
    let found = run.cgroups.iter().find(|c| c.path == path)?;
    found.share_permille.map(|permille| permille / 10.0)
}

/// Returns the percentage of all threads' CPU time that was used by the threads whose name without
/// instance number is `wanted`.
fn kind_percent(run: &Run, wanted: &str) -> Option<f64> {
    let sum = |is_it: &dyn Fn(&TaskResult) -> bool| -> u64 {
        run.tasks.iter().filter(|t| is_it(t)).map(|t| t.run_ns).sum()
    };
    let all = sum(&|_| true);
    (all > 0).then(|| sum(&|t| kind(t) == wanted) as f64 * 100.0 / all as f64)
}

/// Returns the thread's name without the instance number at its end.
fn kind(task: &TaskResult) -> &str {
    match task.name.rsplit_once('-') {
        Some((name, number)) if !name.is_empty() && is_number(number) => name,
        _ => &task.name,
    }
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

fn verdict(change: &Change, other: &Summary, tolerance_percent: u32) -> Agrees {
    let limit = f64::from(tolerance_percent) / 100.0;
    match (change.low, change.high) {
        _ if change.verdict == Verdict::NoRuns => Agrees::NoRuns,
        // The first target's mean is 0, so there is no relative change. The other target's mean is
        // outside the tolerance if its interval excludes 0.
        (None, None) if other.excludes_zero() => Agrees::Outside,
        (Some(low), Some(high)) if -limit <= low && high <= limit => Agrees::Within,
        (Some(low), Some(high)) if high < -limit || limit < low => Agrees::Outside,
        _ => Agrees::Open,
    }
}

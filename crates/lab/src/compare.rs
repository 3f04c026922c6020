// SPDX-License-Identifier: GPL-2.0-only
//! Comparisons: each scheduler's runs against the baseline's on the same target, paired by seed; and each scheduler's on
//! the other targets against its own on the first, metric by metric.
//!
//! Owns: which metrics are compared. Does not: say which direction is good; that depends on the reader.

use serde::Serialize;

use crate::run::Run;
use crate::stats::{Change, Summary, change, change_between};

/// One metric of one scheduler beside the baseline's.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    pub metric: String,
    pub unit: String,
    pub baseline: Side,
    pub treated: Side,
    pub change: Change,
}

/// One scheduler's runs.
#[derive(Clone, Debug, Serialize)]
pub struct Side {
    pub scheduler: String,
    pub target: String,
    #[serde(flatten)]
    pub summary: Summary,
}

/// `runs` holds `per_scheduler` runs of each of `schedulers`, on the first target, then on the next.
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

/// How `treated` changes against `baseline`: in pairs that share a seed, or, on different targets, independently.
pub fn change_of(baseline: &[Run], treated: &[Run], a: &[f64], b: &[f64]) -> Change {
    let target = |runs: &[Run]| runs.first().map(|r| r.target.clone());
    if target(baseline) != target(treated) {
        return change_between(a, b);
    }
    change(&a.iter().copied().zip(b.iter().copied()).collect::<Vec<_>>())
}

fn compare_two(baseline: &[Run], treated: &[Run]) -> Vec<Comparison> {
    let (Some(first), Some(other)) = (baseline.first(), treated.first()) else {
        return Vec::new();
    };
    let mut all = Vec::new();
    for (name, metric) in &first.metrics {
        if is_per_cpu(name) || !other.metrics.contains_key(name) {
            continue;
        }
        let (a, b) = (values(baseline, name), values(treated, name));
        let side = |run: &Run, values: &[f64]| Side {
            scheduler: run.scheduler.clone(),
            target: run.target.clone().into_owned(),
            summary: Summary::of(values),
        };
        all.push(Comparison {
            metric: name.clone(),
            unit: metric.unit.clone().into_owned(),
            baseline: side(first, &a),
            treated: side(other, &b),
            change: change_of(baseline, treated, &a, &b),
        });
    }
    all
}

/// A metric's value in each run; 0 where a run does not have it (an operation that was never called).
pub fn values(runs: &[Run], metric: &str) -> Vec<f64> {
    runs.iter().map(|r| r.metrics.get(metric).map_or(0.0, |m| m.value)).collect()
}

/// Which CPU did what is in the runs; a table of a thousand of them is no comparison.
fn is_per_cpu(name: &str) -> bool {
    name.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

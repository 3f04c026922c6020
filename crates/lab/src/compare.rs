// SPDX-License-Identifier: GPL-2.0-only
//! Comparisons: each scheduler's runs against the baseline's, metric by metric, paired by seed.
//!
//! Owns: which metrics are compared. Does not: say which direction is good; that depends on the reader.

use serde::Serialize;

use crate::run::Run;
use crate::stats::{Change, Summary, change};

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
    #[serde(flatten)]
    pub summary: Summary,
}

/// Compares every scheduler after the first with the first. `runs` holds `per_scheduler` runs of each, in order.
pub fn compare(runs: &[Run], per_scheduler: usize) -> Vec<Comparison> {
    let mut groups = runs.chunks(per_scheduler.max(1));
    let Some(baseline) = groups.next() else {
        return Vec::new();
    };
    groups.flat_map(|treated| compare_two(baseline, treated)).collect()
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
        let pairs: Vec<(f64, f64)> = a.iter().copied().zip(b.iter().copied()).collect();
        let side = |run: &Run, values: &[f64]| Side {
            scheduler: run.scheduler.clone(),
            summary: Summary::of(values),
        };
        all.push(Comparison {
            metric: name.clone(),
            unit: metric.unit.clone().into_owned(),
            baseline: side(first, &a),
            treated: side(other, &b),
            change: change(&pairs),
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

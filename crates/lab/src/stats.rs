// SPDX-License-Identifier: GPL-2.0-only
//! Statistics of few runs: means with 95 % intervals, the change between two samples, paired or
//! independent, and p values of many comparisons.
//!
//! Owns: the formulas. Does not: know which quantities are measured.

#[cfg(test)]
mod tests;

use serde::Serialize;

/// A mean with its 95 % interval.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Summary {
    pub n: usize,
    /// The mean; None if there are no values.
    pub mean: Option<f64>,
    /// Half the width of the 95 % interval (t distribution); None for fewer than two values.
    pub half_width: Option<f64>,
}

impl Summary {
    pub fn of(values: &[f64]) -> Summary {
        let n = values.len();
        let mean = mean(values);
        let squares: f64 = values.iter().map(|v| (v - mean) * (v - mean)).sum();
        Summary { n, mean: (n > 0).then_some(mean), half_width: half_width(squares, n) }
    }

    /// Returns the absolute value of the mean; 0 if there is none.
    pub fn size(&self) -> f64 {
        self.mean.unwrap_or_default().abs()
    }
}

/// Relative difference between the treated values and the baseline's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Change {
    /// Mean of the treated values over the baseline's mean, minus 1. None if the baseline's mean is
    /// 0.
    pub relative: Option<f64>,
    /// Lower limit of the 95 % interval of `relative`, and in `high` the upper limit; None if there
    /// is no interval, as for fewer than two pairs.
    pub low: Option<f64>,
    pub high: Option<f64>,
    pub verdict: Verdict,
}

/// Whether a change can be told from noise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// Paired samples: both values of every pair are equal. Independent samples: all values are
    /// equal.
    Equal,
    /// The 95 % interval of the change excludes 0.
    Different,
    /// The 95 % interval of the change includes 0.
    Noise,
    /// There is no interval. Paired samples have fewer than two pairs; independent samples have
    /// fewer than two values on one side, or a baseline mean of 0.
    Unknown,
    /// No pair is left in which both runs count and have the metric, because a scheduler was
    /// ejected or a run ended irregularly.
    NoRuns,
}

impl Verdict {
    /// Returns the name in results.
    pub fn name(self) -> &'static str {
        match self {
            Verdict::Equal => "equal",
            Verdict::Different => "different",
            Verdict::Noise => "noise",
            Verdict::Unknown => "unknown",
            Verdict::NoRuns => "no_runs",
        }
    }
}

impl Change {
    /// Change between samples without values.
    const NONE: Change = Change { relative: None, low: None, high: None, verdict: Verdict::NoRuns };
}

/// Compares pairs `(baseline, treated)` that share a seed.
///
/// The relative change is the ratio of means less 1. The change's interval comes from the spread of
/// `treated - ratio * baseline` over the pairs (ratio estimator, linearised), so effects that both
/// runs share under one seed cancel, and pairs that contain a zero do no harm. If the baseline's
/// mean is 0, there is no ratio, and the verdict is about the difference.
pub fn change(pairs: &[(f64, f64)]) -> Change {
    let none = Change { verdict: Verdict::Unknown, ..Change::NONE };
    let n = pairs.len();
    if n == 0 {
        return Change::NONE;
    }
    let base = mean(&pairs.iter().map(|p| p.0).collect::<Vec<_>>());
    let treated = mean(&pairs.iter().map(|p| p.1).collect::<Vec<_>>());
    let verdict = if n >= 2 && pairs.iter().all(|p| p.0 == p.1) {
        Verdict::Equal
    } else {
        verdict_of_differences(pairs)
    };
    if base == 0.0 {
        return Change { verdict, ..none };
    }
    let ratio = treated / base;
    let squares: f64 = pairs.iter().map(|(b, t)| (t - ratio * b) * (t - ratio * b)).sum();
    let relative = Some(ratio - 1.0);
    let Some(half) = half_width(squares, n).map(|h| h / base.abs()) else {
        return Change { relative, ..none };
    };
    let (low, high) = (ratio - 1.0 - half, ratio - 1.0 + half);
    let verdict = match verdict {
        Verdict::Equal => Verdict::Equal,
        _ if low > 0.0 || high < 0.0 => Verdict::Different,
        _ => Verdict::Noise,
    };
    Change { relative, low: Some(low), high: Some(high), verdict }
}

/// Compares two independent samples, such as the runs on two targets. The interval is Welch's
/// interval for the ratio of means less 1, linearised as in `change`.
pub fn change_between(baseline: &[f64], treated: &[f64]) -> Change {
    let none = Change { verdict: Verdict::Unknown, ..Change::NONE };
    if baseline.is_empty() || treated.is_empty() {
        return Change::NONE;
    }
    let (base, other) = (mean(baseline), mean(treated));
    if base == 0.0 {
        return none;
    }
    let ratio = other / base;
    let relative = Some(ratio - 1.0);
    let (Some(a), Some(b)) = (variance_of_mean(baseline), variance_of_mean(treated)) else {
        return Change { relative, ..none };
    };
    let (a, freedom_a) = (a * ratio * ratio, (baseline.len() - 1) as f64);
    let freedom_b = (treated.len() - 1) as f64;
    let variance = a + b;
    if variance == 0.0 {
        let verdict = if ratio == 1.0 { Verdict::Equal } else { Verdict::Different };
        return Change { relative, low: relative, high: relative, verdict };
    }
    let freedom = variance * variance / (a * a / freedom_a + b * b / freedom_b);
    let half = t_quantile_975(freedom.floor().max(1.0) as usize) * variance.sqrt() / base.abs();
    let (low, high) = (ratio - 1.0 - half, ratio - 1.0 + half);
    let verdict = if low > 0.0 || high < 0.0 { Verdict::Different } else { Verdict::Noise };
    Change { relative, low: Some(low), high: Some(high), verdict }
}

/// Returns the probability of a mean of at least this size if the true mean were 0 or less: the p
/// value of a one-sided t test. None for fewer than two values.
pub fn p_greater(values: &[f64]) -> Option<f64> {
    let (Summary { mean: Some(mean), .. }, Some(variance)) =
        (Summary::of(values), variance_of_mean(values))
    else {
        return None;
    };
    if variance == 0.0 {
        return Some(if mean > 0.0 { 0.0 } else { 1.0 });
    }
    Some(t_tail(mean / variance.sqrt(), values.len() - 1))
}

/// Returns the probability of a value above `t` of the t distribution.
fn t_tail(t: f64, degrees: usize) -> f64 {
    let v = degrees as f64;
    let half = puruspe::betai(v / 2.0, 0.5, v / (v + t * t)) / 2.0;
    if t >= 0.0 { half } else { 1.0 - half }
}

/// Adjusts p values for their number, by Benjamini and Hochberg. Those that are at most q
/// afterwards are discoveries, of which a part q is false on average, at most.
pub fn adjusted(p_values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..p_values.len()).collect();
    order.sort_by(|a, b| p_values[*b].total_cmp(&p_values[*a]));
    let mut all = vec![1.0; p_values.len()];
    let mut least = 1.0f64;
    for (larger, at) in order.into_iter().enumerate() {
        let rank = p_values.len() - larger;
        least = least.min(p_values[at] * p_values.len() as f64 / rank as f64);
        all[at] = least;
    }
    all
}

/// Returns the variance of the mean; None for fewer than two values.
fn variance_of_mean(values: &[f64]) -> Option<f64> {
    let n = values.len();
    let middle = mean(values);
    let squares: f64 = values.iter().map(|v| (v - middle) * (v - middle)).sum();
    (n >= 2).then(|| squares / (n - 1) as f64 / n as f64)
}

fn verdict_of_differences(pairs: &[(f64, f64)]) -> Verdict {
    let summary = Summary::of(&pairs.iter().map(|(b, t)| t - b).collect::<Vec<_>>());
    match summary.half_width {
        None => Verdict::Unknown,
        Some(half) if summary.size() > half => Verdict::Different,
        Some(_) => Verdict::Noise,
    }
}

fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

/// Returns the half width of the interval for a mean of `n` values whose squared deviations sum to
/// `squares`.
fn half_width(squares: f64, n: usize) -> Option<f64> {
    if n < 2 {
        return None;
    }
    let standard_error = (squares / (n - 1) as f64 / n as f64).sqrt();
    Some(t_quantile_975(n - 1) * standard_error)
}

/// 97.5 % quantiles of the t distribution for 1 to 30 degrees of freedom.
const T_975: [f64; 30] = [
    12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.2010,
    2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860, 2.0796, 2.0739, 2.0687,
    2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423,
];

/// Returns the 97.5 % quantile of the t distribution. Beyond the table's 30 degrees of freedom, the
/// function uses the Cornish-Fisher expansion about the normal quantile, which is exact to four
/// digits for such degrees.
pub fn t_quantile_975(degrees: usize) -> f64 {
    if let Some(known) = degrees.checked_sub(1).and_then(|at| T_975.get(at)) {
        return *known;
    }
    const Z: f64 = 1.959_963_985;
    let v = degrees.max(1) as f64;
    let (z3, z5) = (Z.powi(3), Z.powi(5));
    Z + (z3 + Z) / (4.0 * v) + (5.0 * z5 + 16.0 * z3 + 3.0 * Z) / (96.0 * v * v)
}

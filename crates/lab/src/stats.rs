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
    /// Lower limit of the 95 % interval of the mean, and in `high` the upper limit; None for fewer
    /// than two values.
    pub low: Option<f64>,
    pub high: Option<f64>,
}

impl Summary {
    pub fn of(values: &[f64]) -> Summary {
        let n = values.len();
        let mean = mean(values);
        let (below, above) = arms(values, mean).unzip();
        Summary {
            n,
            mean: (n > 0).then_some(mean),
            low: below.map(|below| mean - below),
            high: above.map(|above| mean + above),
        }
    }

    /// Returns the distance of the mean from the farther limit of its interval.
    pub fn longer_arm(&self) -> Option<f64> {
        Some((self.mean? - self.low?).max(self.high? - self.mean?))
    }

    /// Whether the interval contains neither 0 nor a value of the other sign.
    pub fn excludes_zero(&self) -> bool {
        self.low.is_some_and(|low| low > 0.0) || self.high.is_some_and(|high| high < 0.0)
    }

    /// Returns the absolute value of the mean; 0 if there is none.
    pub fn size(&self) -> f64 {
        self.mean.unwrap_or_default().abs()
    }
}

/// Relative difference between the treated values and the baseline's.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Change {
    /// Difference of the means over the size of the baseline's mean: positive if the treated mean
    /// is the larger one, also if both are negative. None if the baseline's mean is 0.
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
/// The relative change is the ratio of means less 1, with the sign of the difference. The change's
/// interval comes from the spread of `treated - ratio * baseline` over the pairs (ratio estimator,
/// linearised), so effects that both runs share under one seed cancel, and pairs that contain a
/// zero do no harm. If the baseline's mean is 0, there is no ratio, and the verdict is about the
/// difference.
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
    let by = (treated - base) / base.abs();
    let relative = Some(by);
    let Some(half) = half_width(squares, n).map(|h| h / base.abs()) else {
        return Change { relative, ..none };
    };
    let (low, high) = (by - half, by + half);
    let verdict = match verdict {
        Verdict::Equal => Verdict::Equal,
        _ if low > 0.0 || high < 0.0 => Verdict::Different,
        _ => Verdict::Noise,
    };
    Change { relative, low: Some(low), high: Some(high), verdict }
}

/// Compares two independent samples, such as the runs on two targets. The interval is Welch's
/// interval for the relative difference of means, linearised as in `change`.
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
    let by = (other - base) / base.abs();
    let relative = Some(by);
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
    let half = t_quantile(0.025, freedom.floor().max(1.0) as usize) * variance.sqrt() / base.abs();
    let (low, high) = (by - half, by + half);
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
    (n >= 2).then(|| squares(values, mean(values)) / (n - 1) as f64 / n as f64)
}

fn verdict_of_differences(pairs: &[(f64, f64)]) -> Verdict {
    let differences: Vec<f64> = pairs.iter().map(|(b, t)| t - b).collect();
    let middle = mean(&differences);
    match half_width(squares(&differences, middle), differences.len()) {
        None => Verdict::Unknown,
        Some(half) if middle.abs() > half => Verdict::Different,
        Some(_) => Verdict::Noise,
    }
}

fn mean(values: &[f64]) -> f64 {
    if values.is_empty() { 0.0 } else { values.iter().sum::<f64>() / values.len() as f64 }
}

fn squares(values: &[f64], mean: f64) -> f64 {
    values.iter().map(|v| (v - mean) * (v - mean)).sum()
}

/// Returns the half width of the interval for a change or a difference, the mean of `n` values
/// whose squared deviations sum to `squares`. The skew of the two sides cancels in it.
fn half_width(squares: f64, n: usize) -> Option<f64> {
    (n >= 2).then(|| t_quantile(0.025, n - 1) * standard_error(squares, n))
}

fn standard_error(squares: f64, n: usize) -> f64 {
    (squares / (n - 1) as f64 / n as f64).sqrt()
}

/// Probability of a true mean beyond the short arm of an interval, if values are normal.
const SHORT_ARM: f64 = 0.0325;

/// Probability of a true mean beyond the long arm, for each value, and its limit.
const LONG_ARM: (f64, f64) = (0.0005, 0.02);

/// Returns how far the 95 % interval of a mean reaches below it and above it; None for fewer than
/// two values.
///
/// The arm on the side to which the values are skewed is longer than that of the t interval, and
/// the other one is shorter. A few values of a skewed distribution seldom contain one from its
/// tail, and then they lie close together on one side of the true mean: the t interval contains the
/// true mean of exponential values in 89 of 100 experiments with three runs. The constants give 93
/// to 97 for the distributions in docs/concepts/confidence.md.
fn arms(values: &[f64], mean: f64) -> Option<(f64, f64)> {
    let n = values.len();
    let squares = squares(values, mean);
    let both = half_width(squares, n)?;
    let skew = values.iter().map(|v| (v - mean).powi(3)).sum::<f64>() / squares.powf(1.5);
    // Two values, or equal ones, are not skewed; rounding may say otherwise, and the skew of equal
    // ones is not a number.
    if n == 2 || skew.is_nan() || skew.abs() < 1e-9 {
        return Some((both, both));
    }
    let arm = |tail| t_quantile(tail, n - 1) * standard_error(squares, n);
    let short = arm(SHORT_ARM);
    let long = arm((LONG_ARM.0 * n as f64).min(LONG_ARM.1));
    Some(if skew > 0.0 { (short, long) } else { (long, short) })
}

/// Returns the value that a variable with the t distribution exceeds with probability `tail`, below
/// one half.
fn t_quantile(tail: f64, degrees: usize) -> f64 {
    let v = degrees as f64;
    let x = puruspe::invbetai(2.0 * tail, v / 2.0, 0.5);
    (v * (1.0 - x) / x).sqrt()
}

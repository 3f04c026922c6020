// SPDX-License-Identifier: GPL-2.0-only
//! Scores: how often predictions had the published sign, order and size.
//!
//! Owns: the definitions.
//! - Sign agreement: among the effects that count (larger than the published noise, or than 5 %
//!   where none is published), the share whose predicted effect has the same sign. A predicted
//!   effect below 1 % disagrees, and so does a cell whose runs failed.
//! - Twin agreement: the share of these effects whose twin, a row that the thread measured in other
//!   circumstances (`Experiment::twin`), has the same published sign. It tells how far the thread
//!   agrees with itself.
//! - Rank correlation: Spearman's, over the table's figures. Tables that print changes only are
//!   ranked by these.
//! - Size error: the factor, less 1, by which a predicted effect is too large or too small; the
//!   median over the effects that count.
//!
//! Each has a 95 % interval by bootstrap over cells, with a fixed seed.

use scxlab_machine::hash::splitmix_finalize;
use serde::Serialize;

use super::experiment::Kind;
use super::figure::{Effects, Outcome, Prediction};

/// The score of one table, or of a thread.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Score {
    pub thread: String,
    /// Id of the table; `all` for the thread.
    pub table: String,
    /// Number of published figures.
    pub figures: usize,
    pub predicted: usize,
    pub not_predicted: usize,
    /// Number of figures whose runs do not count.
    pub failed: usize,
    /// Number of effects that count for the sign agreement.
    pub cells: usize,
    pub sign_agreement: Option<f64>,
    pub sign_agreement_interval: Option<(f64, f64)>,
    /// Number of these effects that have a twin, the share of them whose twin has the same sign,
    /// and the share of them whose prediction has.
    pub twin_cells: usize,
    pub twin_agreement: Option<f64>,
    pub twin_cells_sign_agreement: Option<f64>,
    pub rank_correlation: Option<f64>,
    pub rank_correlation_interval: Option<(f64, f64)>,
    /// Rank correlation of the effects, over all cells that have one.
    pub rank_correlation_of_effects: Option<f64>,
    pub median_size_error: Option<f64>,
    pub median_size_error_interval: Option<(f64, f64)>,
    /// Number of published effects that do not exceed their noise, and the share of them whose
    /// prediction does not exceed 5 % either.
    pub quiet_cells: usize,
    pub quiet_agreement: Option<f64>,
}

/// One figure as a score sees it.
pub struct Scored<'a> {
    pub published: f64,
    pub outcome: &'a Outcome,
    /// Whether the figure's twin has the sign of its effect (see `figure::twin_agrees`).
    pub twin_agrees: Option<bool>,
}

/// Relative size up to which a predicted effect is none.
const QUIET: f64 = 0.05;
const RESAMPLES: usize = 1000;
/// Least number of figures that have an order.
const RANKED_MIN: usize = 3;

/// Scores the figures of a table or thread.
pub fn score(thread: &str, table: &str, cells: &[Scored<'_>]) -> Score {
    let count = |is: fn(&Outcome) -> bool| cells.iter().filter(|c| is(c.outcome)).count();
    let effects: Vec<&Effects> = cells.iter().filter_map(|c| effect(c.outcome)).collect();
    // 1: the sign agrees, 0: it does not.
    let mut signs: Vec<f64> = Vec::new();
    let mut sizes: Vec<f64> = Vec::new();
    let mut quiet: Vec<f64> = Vec::new();
    for effects in &effects {
        match (effects.published, effects.counts) {
            (None, _) => {}
            (Some(_), true) => {
                signs.push(f64::from(effects.same_sign() == Some(true)));
                sizes.extend(effects.size_error());
            }
            (Some(_), false) => quiet.push(f64::from((effects.predicted - 1.0).abs() <= QUIET)),
        }
    }
    let twinned = cells.iter().filter_map(|cell| Some((cell.twin_agrees?, cell.outcome)));
    let is_right = |outcome| effect(outcome).is_some_and(|e| e.same_sign() == Some(true));
    let twins: Vec<(f64, f64)> = twinned
        .map(|(agrees, outcome)| (f64::from(agrees), f64::from(is_right(outcome))))
        .collect();
    let failed = |c: &&Scored<'_>| matches!(c.outcome, Outcome::Failed { counts: true, .. });
    signs.extend(cells.iter().filter(failed).map(|_| 0.0));
    let values = figures(cells, |kind| kind == Kind::Value);
    let ranked = match values.len() >= RANKED_MIN {
        true => values,
        false => {
            figures(cells, |kind| matches!(kind, Kind::Improvement | Kind::ImprovementOverMax))
        }
    };
    let of_effects: Vec<(f64, f64)> =
        effects.iter().filter_map(|e| Some((e.published?, e.predicted))).collect();
    Score {
        thread: thread.to_owned(),
        table: table.to_owned(),
        figures: cells.len(),
        predicted: count(|o| matches!(o, Outcome::Predicted(_))),
        not_predicted: count(|o| matches!(o, Outcome::NotPredicted(_))),
        failed: count(|o| matches!(o, Outcome::Failed { .. })),
        cells: signs.len(),
        sign_agreement: mean(&signs),
        sign_agreement_interval: bootstrap(&signs, mean),
        twin_cells: twins.len(),
        twin_agreement: mean(&twins.iter().map(|twin| twin.0).collect::<Vec<_>>()),
        twin_cells_sign_agreement: mean(&twins.iter().map(|twin| twin.1).collect::<Vec<_>>()),
        rank_correlation: spearman(&ranked),
        rank_correlation_interval: bootstrap(&ranked, spearman),
        rank_correlation_of_effects: spearman(&of_effects),
        median_size_error: median(&sizes),
        median_size_error_interval: bootstrap(&sizes, median),
        quiet_cells: quiet.len(),
        quiet_agreement: mean(&quiet),
    }
}

fn effect(outcome: &Outcome) -> Option<&Effects> {
    match outcome {
        Outcome::Predicted(Prediction { effect, .. }) => effect.as_ref(),
        _ => None,
    }
}

/// Returns the published and predicted figures of these kinds.
fn figures(cells: &[Scored<'_>], is: impl Fn(Kind) -> bool) -> Vec<(f64, f64)> {
    let pair = |cell: &Scored<'_>| match cell.outcome {
        Outcome::Predicted(p) if is(p.kind) => Some((cell.published, p.value)),
        _ => None,
    };
    cells.iter().filter_map(pair).collect()
}

fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// Returns the median; the mean of the middle two of an even number.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let half = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        n if n % 2 == 1 => Some(sorted[half]),
        _ => Some((sorted[half - 1] + sorted[half]) / 2.0),
    }
}

/// Returns Spearman's rank correlation; None for fewer than three pairs, or if all values of one
/// side are equal.
pub fn spearman(pairs: &[(f64, f64)]) -> Option<f64> {
    if pairs.len() < RANKED_MIN {
        return None;
    }
    let a = ranks(&pairs.iter().map(|p| p.0).collect::<Vec<_>>());
    let b = ranks(&pairs.iter().map(|p| p.1).collect::<Vec<_>>());
    let (ma, mb) = (mean(&a)?, mean(&b)?);
    let products = a.iter().zip(&b).map(|(x, y)| (x - ma) * (y - mb)).sum::<f64>();
    let squares = |ranks: &[f64], m: f64| ranks.iter().map(|x| (x - m) * (x - m)).sum::<f64>();
    let spread = (squares(&a, ma) * squares(&b, mb)).sqrt();
    (spread > 0.0).then(|| products / spread)
}

/// Returns the ranks of values; equal values share the mean of their ranks.
fn ranks(values: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
    let mut ranks = vec![0.0; values.len()];
    let mut first = 0;
    while first < order.len() {
        let equal = order[first..].iter().take_while(|i| values[**i] == values[order[first]]);
        let count = equal.count();
        let rank = first as f64 + (count - 1) as f64 / 2.0;
        order[first..first + count].iter().for_each(|i| ranks[*i] = rank);
        first += count;
    }
    ranks
}

/// Returns the 95 % interval of a statistic by resampling; None for fewer than two values.
fn bootstrap<T: Copy>(values: &[T], statistic: impl Fn(&[T]) -> Option<f64>) -> Option<(f64, f64)> {
    if values.len() < 2 {
        return None;
    }
    let mut state = 1u64;
    let mut draw = || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        values[(splitmix_finalize(state) % values.len() as u64) as usize]
    };
    let resample = |_| (0..values.len()).map(|_| draw()).collect::<Vec<T>>();
    let samples: Vec<Vec<T>> = (0..RESAMPLES).map(resample).collect();
    let mut found: Vec<f64> = samples.iter().filter_map(|sample| statistic(sample)).collect();
    found.sort_by(f64::total_cmp);
    let at = |share: f64| found.get(((found.len() as f64 - 1.0) * share).round() as usize).copied();
    Some((at(0.025)?, at(0.975)?))
}

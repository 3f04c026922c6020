// SPDX-License-Identifier: GPL-2.0-only
//! A cell's prediction from its runs, beside the published figure.
//!
//! Owns: the arithmetic of figures and effects. An effect is the factor by which the figure is
//! better than its baseline: above 1 is better, whatever the direction of the measure.

use super::experiment::{Better, Figure, Kind, Term};
use super::job::{KeptRun, Runs};
use super::plan::{Cell, Content, Plan, PlannedFigure};
use crate::stats::{Summary, change};

/// Relative size from which an effect counts, where the thread prints no noise.
const EFFECT_MIN: f64 = 0.05;

/// Relative size below which a predicted effect has no sign.
const SIGN_MIN: f64 = 0.01;

/// The outcome of one cell.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Predicted(Prediction),
    NotPredicted(String),
    /// A run of the cell or of its baseline does not count.
    Failed {
        why: String,
        /// Whether the published effect is larger than its noise.
        counts: bool,
    },
}

#[derive(Clone, Debug, PartialEq)]
pub struct Prediction {
    pub kind: Kind,
    /// The predicted figure, as the thread prints it.
    pub value: f64,
    /// 95 % interval of `value`.
    pub interval: Option<(f64, f64)>,
    /// The effect; None for a baseline and for statistics such as a standard deviation.
    pub effect: Option<Effects>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Effects {
    /// The published effect; None without a published baseline.
    pub published: Option<f64>,
    pub predicted: f64,
    /// 95 % interval of the predicted effect.
    pub interval: Option<(f64, f64)>,
    /// Whether the published effect is larger than its noise.
    pub counts: bool,
}

impl Effects {
    /// Whether both effects have the same sign. A predicted effect below 1 % has none.
    pub fn same_sign(&self) -> Option<bool> {
        Some(has_sign_of(self.predicted, self.published?))
    }

    /// Whether the predicted effect has the published sign, and between half and twice the
    /// published size, as a logarithm.
    pub fn agrees(&self) -> bool {
        let Some(published) = self.published.filter(|effect| *effect > 0.0) else { return false };
        let ratio = self.predicted.max(f64::MIN_POSITIVE).ln() / published.ln();
        self.same_sign() == Some(true) && (0.5..=2.0).contains(&ratio)
    }

    /// Factor, less 1, by which the predicted effect is too large or too small.
    pub fn size_error(&self) -> Option<f64> {
        let published = self.published.filter(|effect| *effect > 0.0)?;
        (self.predicted > 0.0).then(|| (self.predicted / published).ln().abs().exp() - 1.0)
    }
}

/// Whether an effect has the sign of the published one. An effect below 1 % has none.
fn has_sign_of(effect: f64, published: f64) -> bool {
    (published - 1.0) * (effect - 1.0) > 0.0 && (effect - 1.0).abs() >= SIGN_MIN
}

/// Whether the published effect of a cell's twin has the sign of its own; None if the cell has no
/// twin, or no effect that counts.
pub fn twin_agrees(cell: &Cell) -> Option<bool> {
    let Content::Figure(planned) = &cell.content else { return None };
    let published = of_thread(planned, cell.published?);
    counts(planned, published).then_some(has_sign_of(planned.twin?, published?))
}

/// Predicts one cell.
pub fn predict(plan: &Plan, cell: &Cell, runs: &Runs) -> Outcome {
    match &cell.content {
        Content::NotPredicted(why) => Outcome::NotPredicted(why.clone()),
        Content::Figure(planned)
            if planned.figure.kind == Kind::Stddev
                && matches!(&runs.0[planned.setup][..], [run] if run.failed.is_none()) =>
        {
            Outcome::NotPredicted("One run of a setup has no deviation.".to_owned())
        }
        Content::Figure(planned) => {
            let published = cell.published.and_then(|figure| of_thread(planned, figure));
            match prediction(planned, published, runs) {
                Ok(prediction) => Outcome::Predicted(prediction),
                Err(why) => {
                    let setup = &plan.setups[planned.setup].text;
                    let why = format!("{}: {why}", setup.scheduler);
                    Outcome::Failed { why, counts: counts(planned, published) }
                }
            }
        }
    }
}

/// Whether the published effect is larger than its noise.
fn counts(planned: &PlannedFigure, published: Option<f64>) -> bool {
    let least = planned.noise.unwrap_or(EFFECT_MIN);
    published.is_some_and(|effect| (effect - 1.0).abs() > least)
}

fn prediction(
    planned: &PlannedFigure,
    published: Option<f64>,
    runs: &Runs,
) -> Result<Prediction, String> {
    let figure = &planned.figure;
    let values = measures(figure, &runs.0[planned.setup])?;
    let baseline = planned.baseline.as_ref();
    let bases = baseline.map(|b| measures(&b.figure, &runs.0[b.setup])).transpose()?;
    let compared =
        bases.as_ref().map(|bases| compare(figure.better, bases, &values)).transpose()?;
    let own = Summary::of(&values);
    let mean = own.mean.ok_or("no runs")?;
    let max = values.iter().copied().fold(f64::MIN, f64::max);
    let min = values.iter().copied().fold(f64::MAX, f64::min);
    let no_baseline = "no rule gives a baseline";
    let (value, own_interval) = match figure.kind {
        Kind::Value => (mean, own.low.zip(own.high)),
        Kind::Min => (min, None),
        Kind::Max => (max, None),
        Kind::Stddev => (stddev(&values, mean).ok_or("fewer than two runs")?, None),
        Kind::Improvement => {
            let compared = compared.ok_or(no_baseline)?;
            (compared.percent, compared.percent_interval)
        }
        Kind::ImprovementOverMax => {
            let compared = compared.ok_or(no_baseline)?;
            let base = bases.as_deref().map_or(0.0, mean_of);
            let scale = base / max;
            let ends = compared.percent_interval;
            (compared.percent * scale, ends.map(|(low, high)| (low * scale, high * scale)))
        }
    };
    let effect = match figure.kind {
        Kind::Stddev | Kind::Min | Kind::Max => None,
        _ => compared.map(|compared| {
            let Compared { effect: predicted, interval, .. } = compared;
            Effects { published, predicted, interval, counts: counts(planned, published) }
        }),
    };
    Ok(Prediction { kind: figure.kind, value, interval: own_interval, effect })
}

/// Returns the published effect of a cell; None for a baseline.
fn of_thread(planned: &PlannedFigure, published: f64) -> Option<f64> {
    let baseline = planned.baseline.as_ref()?;
    published_effect(&planned.figure, baseline.published, published)
}

/// Returns the effect of a published figure that has a baseline. `base` is the published figure of
/// that; an improvement needs none.
pub fn published_effect(figure: &Figure, base: Option<f64>, published: f64) -> Option<f64> {
    Some(match (figure.kind, figure.better) {
        (Kind::Improvement, Better::Higher) => 1.0 + published / 100.0,
        (Kind::Improvement, Better::Lower) => 1.0 / (1.0 - published / 100.0),
        (Kind::ImprovementOverMax, _) => 1.0 + published / 100.0,
        (Kind::Stddev | Kind::Min | Kind::Max, _) => return None,
        (Kind::Value, Better::Higher) => published / base?,
        (Kind::Value, Better::Lower) => base? / published,
    })
}

/// A comparison of runs with those of the baseline under the same seeds.
#[derive(Clone, Copy)]
struct Compared {
    /// Improvement in percent of the baseline, and its interval.
    percent: f64,
    percent_interval: Option<(f64, f64)>,
    effect: f64,
    interval: Option<(f64, f64)>,
}

fn compare(better: Better, bases: &[f64], values: &[f64]) -> Result<Compared, String> {
    let pairs: Vec<(f64, f64)> = bases.iter().copied().zip(values.iter().copied()).collect();
    let change = change(&pairs);
    let relative = change.relative.ok_or("the baseline's measure is 0")?;
    let sign = if better == Better::Higher { 1.0 } else { -1.0 };
    let effect = |relative: f64| match better {
        Better::Higher => 1.0 + relative,
        Better::Lower => 1.0 / (1.0 + relative),
    };
    let ends = change.low.zip(change.high);
    let percent_interval = ends.map(|(low, high)| match better {
        Better::Higher => (low * 100.0, high * 100.0),
        Better::Lower => (-high * 100.0, -low * 100.0),
    });
    let interval = ends.map(|(low, high)| match better {
        Better::Higher => (effect(low), effect(high)),
        // A linearised interval of a ratio may reach below 0, where the effect has no limit.
        Better::Lower if low <= -1.0 => (effect(high), f64::INFINITY),
        Better::Lower => (effect(high), effect(low)),
    });
    let percent = sign * relative * 100.0;
    Ok(Compared { percent, percent_interval, effect: effect(relative), interval })
}

/// Returns the measure of each run. A run that does not count is an error: no mean hides it.
fn measures(figure: &Figure, runs: &[KeptRun]) -> Result<Vec<f64>, String> {
    let measure = |run: &KeptRun| {
        if let Some(why) = &run.failed {
            return Err(why.clone());
        }
        let sum = |terms: &[Term]| {
            let value = |Term { weight, name }: &Term| {
                let value =
                    run.metrics.get(name).ok_or_else(|| format!("the run has no {name}"))?;
                Ok(weight * value)
            };
            terms.iter().map(value).sum::<Result<f64, String>>()
        };
        let mut metric = sum(&figure.metric)?;
        if !figure.per.is_empty() {
            metric /= sum(&figure.per)?;
        }
        match figure.invert {
            true if metric == 0.0 => {
                let names: Vec<&str> = figure.metric.iter().map(|term| &term.name[..]).collect();
                Err(format!("{} is 0", names.join("+")))
            }
            true => Ok(figure.scale / metric),
            false => Ok(figure.scale * metric),
        }
    };
    runs.iter().map(measure).collect()
}

fn mean_of(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len().max(1) as f64
}

fn stddev(values: &[f64], mean: f64) -> Option<f64> {
    let squares: f64 = values.iter().map(|v| (v - mean) * (v - mean)).sum();
    (values.len() >= 2).then(|| (squares / (values.len() - 1) as f64).sqrt())
}

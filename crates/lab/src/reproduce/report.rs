// SPDX-License-Identifier: GPL-2.0-only
//! The report of a reproduction: as a table for a terminal, as Markdown, as JSON.
//!
//! Owns: what is shown of a cell, and the order of the worst cells.

mod markdown;
mod text;

use indexmap::IndexMap;
use serde::Serialize;

use super::figure::{Effects, Outcome, Prediction, predict, twin_agrees};
use super::job::Runs;
use super::plan::{Cell, Content, Plan, name_of};
use super::score::{Score, Scored, score};

pub use markdown::markdown;
pub use text::document;

/// The outcome of a thread.
#[derive(Serialize)]
pub struct ThreadReport {
    pub thread: String,
    #[serde(skip)]
    pub title: String,
    #[serde(skip)]
    pub date: String,
    #[serde(skip)]
    pub doc: String,
    /// Number of runs of each setup.
    pub runs: u32,
    /// Machine that replaces those of the experiment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    #[serde(skip)]
    pub fitted: Vec<FittedReport>,
    /// One score for each table, and one for all.
    pub scores: Vec<Score>,
    pub cells: Vec<CellReport>,
    /// Title and unit of each table, by id.
    #[serde(skip)]
    pub tables: IndexMap<String, (String, String)>,
}

/// A fitted parameter.
pub struct FittedReport {
    pub name: String,
    pub value: String,
    pub default: String,
    /// Thread that gives the factor between value and default.
    pub from: Option<String>,
    pub why: String,
}

/// One cell of a report.
#[derive(Clone, Debug, Serialize)]
pub struct CellReport {
    pub thread: String,
    pub table: String,
    pub row: usize,
    pub keys: IndexMap<String, String>,
    pub column: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted: Option<f64>,
    /// 95 % interval of `predicted`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_interval: Option<(f64, f64)>,
    /// Change against the baseline in percent, positive if better: published, predicted, and the
    /// 95 % interval of the latter.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub published_change: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub predicted_change: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub change_interval: Option<(f64, f64)>,
    pub verdict: Verdict,
    /// The reason why the figure is not predicted, or why a run does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub why: Option<String>,
    /// What is known about the disagreement.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cause: Option<String>,
    #[serde(skip)]
    size_error: Option<f64>,
}

/// How a prediction compares with the published figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// A baseline, or a statistic without an effect.
    NoEffect,
    /// The sign is right, and the size between half and twice the published one, as a logarithm.
    Agrees,
    /// The sign is right, the size is not.
    Size,
    Sign,
    /// The published effect does not exceed its noise, nor the predicted one 5 %.
    Quiet,
    /// The published effect does not exceed its noise, but the predicted one exceeds 5 %.
    Loud,
    /// There is no published figure.
    Unpublished,
    NotPredicted,
    Failed,
}

/// Makes the report of a thread from its runs.
pub fn report(plan: &Plan, runs: &Runs, count: u32) -> ThreadReport {
    let outcomes: Vec<Outcome> = plan.cells.iter().map(|cell| predict(plan, cell, runs)).collect();
    let published = &plan.experiment.published;
    let tables = published.tables.iter().enumerate();
    let scored = |table: Option<usize>| {
        let cells = plan.cells.iter().zip(&outcomes);
        let cells = cells.filter(|(cell, _)| table.is_none_or(|table| cell.table == table));
        let cells = cells.filter_map(|(cell, outcome)| {
            let (published, twin_agrees) = (cell.published?, twin_agrees(cell));
            Some(Scored { published, outcome, twin_agrees })
        });
        cells.collect::<Vec<_>>()
    };
    let mut scores: Vec<Score> = Vec::new();
    if plan.machine.is_none() {
        let planned = tables.filter(|(at, _)| plan.cells.iter().any(|cell| cell.table == *at));
        scores.extend(
            planned.map(|(at, table)| score(&published.thread, &table.id, &scored(Some(at)))),
        );
        scores.push(score(&published.thread, "all", &scored(None)));
    }
    let cells = plan.cells.iter().zip(&outcomes);
    let fitted = plan.experiment.fitted.iter().map(|(name, f)| FittedReport {
        name: name.clone(),
        value: f.value.clone(),
        default: f.default.clone(),
        from: f.from.clone(),
        why: f.why.clone(),
    });
    let titles = published.tables.iter();
    ThreadReport {
        thread: published.thread.clone(),
        title: published.title.clone(),
        date: published.date.clone(),
        doc: plan.experiment.doc.clone(),
        runs: count,
        machine: plan.machine.clone(),
        fitted: fitted.collect(),
        scores,
        cells: cells.map(|(cell, outcome)| cell_report(plan, cell, outcome)).collect(),
        tables: titles.map(|t| (t.id.clone(), (t.title.clone(), t.unit.clone()))).collect(),
    }
}

fn cell_report(plan: &Plan, cell: &Cell, outcome: &Outcome) -> CellReport {
    let mut vars = name_of(plan, cell);
    let keys = plan.table(cell).keys_of(cell.row);
    vars.insert("table".into(), plan.table(cell).id.clone());
    if let Content::Figure(planned) = &cell.content {
        vars.extend(planned.figure.vars.clone());
    }
    let published = cell.published.filter(|_| plan.machine.is_none());
    let mut report = CellReport {
        thread: plan.experiment.published.thread.clone(),
        table: plan.table(cell).id.clone(),
        row: cell.row,
        keys,
        column: cell.column.clone(),
        published,
        predicted: None,
        predicted_interval: None,
        published_change: None,
        predicted_change: None,
        change_interval: None,
        verdict: Verdict::NoEffect,
        why: None,
        cause: None,
        size_error: None,
    };
    match outcome {
        Outcome::NotPredicted(why) => {
            report.verdict = Verdict::NotPredicted;
            report.why = Some(why.clone());
        }
        Outcome::Failed { why, .. } => {
            report.verdict = Verdict::Failed;
            report.why = Some(why.clone());
        }
        Outcome::Predicted(Prediction { value, interval, effect, .. }) => {
            report.predicted = Some(*value);
            report.predicted_interval = *interval;
            if let Some(effect) = effect {
                let percent = |effect: f64| (effect - 1.0) * 100.0;
                let of_thread = effect.published.filter(|_| published.is_some());
                report.published_change = of_thread.map(percent);
                report.predicted_change = Some(percent(effect.predicted));
                let ends = effect.interval.filter(|(_, high)| high.is_finite());
                report.change_interval = ends.map(|(low, high)| (percent(low), percent(high)));
                report.size_error = effect.size_error();
                report.verdict = match published {
                    Some(_) => verdict(effect),
                    None => Verdict::Unpublished,
                };
            }
        }
    }
    if matches!(report.verdict, Verdict::Sign | Verdict::Size | Verdict::Loud | Verdict::Failed) {
        report.cause = plan.experiment.cause(&vars).map(str::to_owned);
    }
    report
}

fn verdict(effect: &Effects) -> Verdict {
    match (effect.same_sign(), effect.counts) {
        (None, _) => Verdict::Unpublished,
        (Some(_), false) if (effect.predicted - 1.0).abs() <= 0.05 => Verdict::Quiet,
        (Some(_), false) => Verdict::Loud,
        (Some(false), true) => Verdict::Sign,
        (Some(true), true) if effect.agrees() => Verdict::Agrees,
        (Some(true), true) => Verdict::Size,
    }
}

impl ThreadReport {
    /// Returns the cells that disagree, the worst first: failed runs, wrong signs, wrong sizes.
    pub fn worst(&self) -> Vec<&CellReport> {
        let rank = |cell: &CellReport| match cell.verdict {
            Verdict::Failed => Some(0),
            Verdict::Sign => Some(1),
            Verdict::Size => Some(2),
            _ => None,
        };
        let mut worst: Vec<&CellReport> =
            self.cells.iter().filter(|cell| rank(cell).is_some()).collect();
        let size = |cell: &CellReport| cell.size_error.unwrap_or(f64::MAX);
        worst.sort_by(|a, b| rank(a).cmp(&rank(b)).then(size(b).total_cmp(&size(a))));
        worst
    }

    /// Returns the cells that disagree by explanation, the one of the worst cell first.
    pub fn worst_by_cause(&self) -> Vec<(&str, Vec<&CellReport>)> {
        let mut by_cause: Vec<(&str, Vec<&CellReport>)> = Vec::new();
        for cell in self.worst() {
            let cause = cell.cause.as_deref().or(cell.why.as_deref());
            let cause = cause.unwrap_or("The cause is not known.");
            match by_cause.iter_mut().find(|(known, _)| *known == cause) {
                Some((_, cells)) => cells.push(cell),
                None => by_cause.push((cause, vec![cell])),
            }
        }
        by_cause
    }

    pub fn score_of(&self, table: &str) -> Option<&Score> {
        self.scores.iter().find(|score| score.table == table)
    }
}

/// Returns the reports of several threads as JSON.
pub fn json(threads: &[ThreadReport]) -> String {
    #[derive(Serialize)]
    struct All<'a> {
        scores: Vec<&'a Score>,
        cells: Vec<&'a CellReport>,
    }
    let all = All {
        scores: threads.iter().flat_map(|t| &t.scores).collect(),
        cells: threads.iter().flat_map(|t| &t.cells).collect(),
    };
    let mut text = serde_json::to_string_pretty(&all).expect("a report is plain data");
    text.push('\n');
    text
}

/// Formats a figure with about four significant digits.
fn number(value: f64) -> String {
    let size = value.abs();
    let decimals = match size {
        0.0 => 0,
        s if s >= 1000.0 => 0,
        s if s >= 100.0 => 1,
        s if s >= 10.0 => 2,
        s if s >= 0.1 => 3,
        _ => 5,
    };
    let text = format!("{value:.decimals$}");
    match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text,
    }
}

/// Formats a change in percent with its sign.
fn percent(value: f64) -> String {
    match value.abs() {
        s if s >= 100.0 => format!("{value:+.0} %"),
        _ => format!("{value:+.1} %"),
    }
}

impl Verdict {
    /// Returns the word that tables show.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::NoEffect => "",
            Verdict::Agrees => "agrees",
            Verdict::Size => "size",
            Verdict::Sign => "SIGN",
            Verdict::Quiet => "no effect, agrees",
            Verdict::Loud => "no effect, but predicted",
            Verdict::Unpublished => "",
            Verdict::NotPredicted => "not predicted",
            Verdict::Failed => "FAILED",
        }
    }
}

/// The texts of a cell's columns in tables: published, predicted, both changes, verdict.
fn columns(cell: &CellReport) -> [String; 5] {
    let published = cell.published.map_or(String::new(), number);
    let predicted = match (cell.predicted, cell.predicted_interval) {
        (Some(value), Some((low, high))) => {
            format!("{} ±{}", number(value), number((value - low).max(high - value)))
        }
        (Some(value), None) => number(value),
        (None, _) => "-".to_owned(),
    };
    let change = |change: Option<f64>| change.map_or(String::new(), percent);
    let predicted_change = match cell.change_interval {
        Some((low, high)) if low <= 0.0 && high >= 0.0 => {
            format!("({})", change(cell.predicted_change))
        }
        _ => change(cell.predicted_change),
    };
    let verdict = cell.verdict.word().to_owned();
    [published, predicted, change(cell.published_change), predicted_change, verdict]
}

/// The texts of a score's columns in tables.
fn score_columns(score: &Score) -> [String; 8] {
    let share = |value: Option<f64>, interval: Option<(f64, f64)>| match (value, interval) {
        (Some(v), Some((low, high))) => {
            format!("{:.0} % ({:.0} to {:.0})", v * 100.0, low * 100.0, high * 100.0)
        }
        (Some(v), None) => format!("{:.0} %", v * 100.0),
        (None, _) => "-".to_owned(),
    };
    let rank = match (score.rank_correlation, score.rank_correlation_interval) {
        (Some(v), Some((low, high))) => format!("{v:.2} ({low:.2} to {high:.2})"),
        (Some(v), None) => format!("{v:.2}"),
        (None, _) => "-".to_owned(),
    };
    let of_effects = score.rank_correlation_of_effects.map_or("-".into(), |v| format!("{v:.2}"));
    let quiet = match score.quiet_cells {
        0 => "-".to_owned(),
        n => format!("{} of {n}", share(score.quiet_agreement, None)),
    };
    let twins = match score.twin_cells {
        0 => "-".to_owned(),
        n => format!(
            "{} of {n} ({})",
            share(score.twin_agreement, None),
            share(score.twin_cells_sign_agreement, None)
        ),
    };
    [
        format!("{} of {}", score.predicted, score.figures),
        score.cells.to_string(),
        share(score.sign_agreement, score.sign_agreement_interval),
        twins,
        rank,
        of_effects,
        share(score.median_size_error, score.median_size_error_interval),
        quiet,
    ]
}

/// Headings of `score_columns`.
const SCORE_HEADINGS: [&str; 8] = [
    "predicted",
    "effects",
    "sign agreement",
    "twin agreement",
    "rank correlation",
    "of effects",
    "size error",
    "no effect, agrees",
];

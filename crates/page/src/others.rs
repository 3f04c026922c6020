// SPDX-License-Identifier: GPL-2.0-only
//! Advice and predictions on a page, from the JSON of `scxlab advise` and `scxlab reproduce`.

use serde::Deserialize;
use serde_json::Value;

use crate::data::{Advice, PublishedCell, PublishedTable, Rank, Verdict};

#[derive(Deserialize)]
struct AdviceJson {
    recommendation: Recommendation,
    candidates: Vec<Candidate>,
    goals: Vec<String>,
    #[serde(default)]
    unfinished: Option<String>,
    #[serde(default)]
    notes: Vec<String>,
}

#[derive(Deserialize)]
struct Recommendation {
    scheduler: String,
    command: Option<String>,
    by: Option<String>,
    change: Option<Change>,
    holds_in: Option<HoldsIn>,
}

#[derive(Clone, Copy, Deserialize)]
struct Change {
    relative: Option<f64>,
    low: Option<f64>,
    high: Option<f64>,
}

#[derive(Deserialize)]
struct HoldsIn {
    worlds: u32,
    of: u32,
}

#[derive(Deserialize)]
struct Candidate {
    scheduler: String,
    place: String,
    #[serde(default)]
    failed: Option<String>,
    worlds: u32,
    goals: Vec<Goal>,
}

#[derive(Deserialize)]
struct Goal {
    goal: String,
    change: Change,
    better_in: u32,
}

/// Returns the ranking of an advice, and the verdict that it is.
pub fn advice(json: &Value) -> Result<(Advice, Verdict), serde_json::Error> {
    let read = AdviceJson::deserialize(json)?;
    let best = &read.recommendation;
    let by = best.by.clone().or_else(|| read.goals.first().cloned()).unwrap_or_default();
    // A change of a quantity that should be small is a gain if it is negative.
    let sign = if by.starts_with("max:") { 1.0 } else { -1.0 };
    let percent = |part: f64| format!("{:+.1} %", part * 100.0);
    let sentence = match (&best.command, best.change.and_then(|change| change.relative)) {
        (Some(_), Some(change)) => format!("Take {}: {by} {}.", best.scheduler, percent(change)),
        (Some(_), None) => format!("Take {}.", best.scheduler),
        (None, _) => format!("Stay with {}: nothing is better beyond noise.", best.scheduler),
    };
    let sure = match &best.holds_in {
        Some(holds) => format!("It holds in {} of {} perturbed worlds.", holds.worlds, holds.of),
        None => format!("{} candidates were tried.", read.candidates.len()),
    };
    let rank = |candidate: &Candidate| {
        let goal = candidate.goals.iter().find(|goal| goal.goal == by);
        let part = |of: fn(&Change) -> Option<f64>| goal.and_then(|goal| of(&goal.change));
        let (low, high) = (part(|change| change.low), part(|change| change.high));
        let (low, high) = if sign > 0.0 { (low, high) } else { (high, low) };
        Rank {
            scheduler: candidate.scheduler.clone(),
            change: part(|change| change.relative).map(|change| change * sign),
            low: low.map(|low| low * sign),
            high: high.map(|high| high * sign),
            worlds: goal.map_or_else(String::new, |goal| {
                format!("{} of {}", goal.better_in, candidate.worlds)
            }),
            state: candidate.failed.clone().unwrap_or_else(|| candidate.place.replace('_', " ")),
        }
    };
    let mut reasons = read.notes.clone();
    reasons.splice(0..0, read.unfinished.iter().map(|why| format!("Unfinished: {why}")));
    let verdict = Verdict { sentence: sentence.clone(), sure, reasons };
    let ranks = read.candidates.iter().map(rank).collect();
    Ok((Advice { sentence, command: best.command.clone(), goals: read.goals, ranks }, verdict))
}

#[derive(Deserialize)]
struct Reproduced {
    scores: Vec<Score>,
    cells: Vec<Cell>,
}

#[derive(Deserialize)]
struct Score {
    thread: String,
    table: String,
    figures: usize,
    predicted: usize,
    cells: usize,
    sign_agreement: Option<f64>,
    rank_correlation: Option<f64>,
}

#[derive(Deserialize)]
struct Cell {
    thread: String,
    table: String,
    keys: serde_json::Map<String, Value>,
    column: String,
    published: Option<f64>,
    predicted: Option<f64>,
    verdict: String,
}

/// Returns the tables of a reproduction, and the verdict about it.
pub fn published(json: &Value) -> Result<(Vec<PublishedTable>, Verdict), serde_json::Error> {
    let read = Reproduced::deserialize(json)?;
    let percent =
        |part: Option<f64>| part.map_or("–".into(), |part| format!("{:.0} %", part * 100.0));
    let tables = read.scores.iter().map(|score| {
        let of_it = read.cells.iter().filter(|cell| {
            cell.thread == score.thread && cell.table == score.table
        });
        let rank = score.rank_correlation.map_or("–".to_owned(), |rank| format!("{rank:.2}"));
        PublishedTable {
            name: format!("{} {}", score.thread, score.table),
            score: format!(
                "{} of {} figures predicted; sign agreement {} of {} effects; rank correlation {rank}",
                score.predicted,
                score.figures,
                percent(score.sign_agreement),
                score.cells
            ),
            cells: of_it.filter_map(cell).collect(),
        }
    });
    let all = read.scores.iter().filter(|score| score.table == "all");
    let reasons: Vec<String> = all
        .map(|score| {
            format!(
                "{}: sign agreement {} of {} effects.",
                score.thread,
                percent(score.sign_agreement),
                score.cells
            )
        })
        .collect();
    let verdict = Verdict {
        sentence: "Published figures beside predicted ones.".to_owned(),
        sure: "A predicted change below 1 % counts as a wrong sign.".to_owned(),
        reasons,
    };
    Ok((tables.collect(), verdict))
}

fn cell(cell: &Cell) -> Option<PublishedCell> {
    let keys = cell.keys.values().map(|value| match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    });
    let label = keys.chain([cell.column.clone()]).collect::<Vec<_>>().join(", ");
    let agrees = match cell.verdict.as_str() {
        "agrees" | "size" => Some(true),
        "sign" => Some(false),
        _ => None,
    };
    Some(PublishedCell { label, published: cell.published?, predicted: cell.predicted?, agrees })
}

// SPDX-License-Identifier: GPL-2.0-only
//! Advice beside a real kernel: whether the order of the best candidates held there.
//!
//! Owns: the comparison. Does not: make the runs (the caller does).

use serde::Serialize;

use super::goal::{Direction, Term};
use super::judge::{Paired, Values};
use super::trials::failure;
use super::value::Seen;
use super::{Advice, Place};
use crate::report::change_text;
use crate::report::document::{Align, Cell, Document, Mark, Table};
use crate::report::format::ABSENT;
use crate::run::Run;
use crate::scheduler::DEFAULT_CLASS;
use crate::stats::{Change, Verdict, change};

/// Number of candidates that are verified, besides the default class.
const VERIFIED: usize = 2;

/// Returns the schedulers to verify: the default class and the best candidates.
pub fn schedulers(advice: &Advice) -> Vec<String> {
    let is_finalist = |place: &Place| matches!(place, Place::Finalist(_));
    let best = advice.candidates.iter().filter(|c| is_finalist(&c.place)).take(VERIFIED);
    let best = best.map(|candidate| candidate.scheduler.clone());
    [DEFAULT_CLASS.to_owned()].into_iter().chain(best).collect()
}

/// The comparison of the simulation with a real kernel.
#[derive(Clone, Debug, Serialize)]
pub struct Verified {
    pub target: String,
    /// Number of runs of each scheduler.
    pub runs: u32,
    pub pairs: Vec<VerifiedPair>,
    /// Runs that speak against their scheduler, and remarks on the target.
    pub notes: Vec<String>,
}

/// One goal of two schedulers.
#[derive(Clone, Debug, Serialize)]
pub struct VerifiedPair {
    pub goal: String,
    pub scheduler: String,
    /// The scheduler to which `scheduler` is compared.
    pub against: String,
    pub simulated: Change,
    /// None if the target does not measure the goal's quantity.
    pub real: Option<Change>,
    pub order: OrderHeld,
}

/// Whether the order of two schedulers by a goal is that of the simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OrderHeld {
    Held,
    /// The real kernel has the opposite order.
    Reversed,
    /// The runs on the real kernel do not tell the two apart.
    Open,
    /// The simulation does not tell the two apart.
    NoOrder,
    NotMeasured,
}

impl OrderHeld {
    fn text(self) -> &'static str {
        match self {
            OrderHeld::Held => "held",
            OrderHeld::Reversed => "REVERSED",
            OrderHeld::Open => "open",
            OrderHeld::NoOrder => "no order in sim",
            OrderHeld::NotMeasured => "not measured",
        }
    }
}

/// Compares the advice with runs on a real kernel. `runs` has the runs of each scheduler of
/// `schedulers`, in order, each with the same number of runs.
pub fn verify(advice: &Advice, target: &str, runs: &[Run]) -> Verified {
    let names = schedulers(advice);
    let groups: Vec<&[Run]> = runs.chunks((runs.len() / names.len()).max(1)).collect();
    let values = |name: &str| -> &Values {
        let found = advice.candidates.iter().find(|candidate| candidate.scheduler == *name);
        found.map_or(&advice.baseline_values, |candidate| &candidate.values)
    };
    let mut pairs = Vec::new();
    for (at, term) in advice.goals.terms().enumerate() {
        for (one, two) in [(1, 0), (2, 0), (2, 1)] {
            let (Some(scheduler), Some(against)) = (names.get(one), names.get(two)) else {
                continue;
            };
            let simulated = Paired::of(term, &values(against)[at], &values(scheduler)[at]).change;
            let real = measured(term, groups[two], groups[one]);
            pairs.push(VerifiedPair {
                goal: term.text.clone(),
                scheduler: scheduler.clone(),
                against: against.clone(),
                simulated,
                real,
                order: order(term, &simulated, real.as_ref()),
            });
        }
    }
    let per_scheduler = groups.first().map_or(0, |group| group.len()) as u32;
    Verified { target: target.to_owned(), runs: per_scheduler, pairs, notes: notes(runs) }
}

/// Returns the change from the runs `baseline` to the runs `treated`; None if no pair of runs has
/// both values.
fn measured(term: &Term, baseline: &[Run], treated: &[Run]) -> Option<Change> {
    let value = |run: &Run| {
        let seen = Seen { run, watched: None };
        seen.value(&term.measure).ok().filter(|_| failure(run).is_none())
    };
    let pairs = baseline.iter().zip(treated).filter_map(|(a, b)| Some((value(a)?, value(b)?)));
    let pairs: Vec<(f64, f64)> = pairs.collect();
    (!pairs.is_empty()).then(|| change(&pairs))
}

fn order(term: &Term, simulated: &Change, real: Option<&Change>) -> OrderHeld {
    let Some(real) = real else { return OrderHeld::NotMeasured };
    let sign = if term.better == Direction::Less { -1.0 } else { 1.0 };
    let gain = |change: &Change| {
        let certain = change.verdict == Verdict::Different;
        change.relative.filter(|_| certain).map(|relative| relative * sign)
    };
    match (gain(simulated), gain(real)) {
        (None, _) => OrderHeld::NoOrder,
        (_, None) => OrderHeld::Open,
        (Some(a), Some(b)) if (a > 0.0) == (b > 0.0) => OrderHeld::Held,
        _ => OrderHeld::Reversed,
    }
}

fn notes(runs: &[Run]) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    let failed = runs.iter().filter_map(|run| Some((run, failure(run)?)));
    let failed = failed.map(|(run, why)| format!("{}, seed {}: {why}", run.scheduler, run.seed));
    for note in failed.chain(runs.iter().flat_map(|run| run.notes.iter().cloned())) {
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    notes
}

/// Returns the comparison for a screen.
pub fn document(verified: &Verified) -> Document {
    let target = verified.target.as_str();
    let head = ["goal", "scheduler", "against", "sim", target, "order"];
    let mut table = Table::new(head.map(Cell::head).to_vec(), 3, 3);
    table.aligns =
        vec![Align::Left, Align::Left, Align::Left, Align::Right, Align::Right, Align::Left];
    for pair in &verified.pairs {
        let mark = match pair.order {
            OrderHeld::Held => Mark::Better,
            OrderHeld::Reversed => Mark::Worse,
            OrderHeld::Open | OrderHeld::NoOrder | OrderHeld::NotMeasured => Mark::Noise,
        };
        table.rows.push(vec![
            Cell::plain(pair.goal.clone()),
            Cell::plain(pair.scheduler.clone()),
            Cell::plain(pair.against.clone()),
            Cell::plain(change_text(&pair.simulated)),
            Cell::plain(pair.real.as_ref().map_or_else(|| ABSENT.to_owned(), change_text)),
            Cell::new(pair.order.text(), mark),
        ]);
    }
    let mut document = Document::default();
    document.push_text(format!(
        "\nDid the order hold on {target}, in {} runs each? (open: these runs do not tell)\n",
        verified.runs,
    ));
    document.push(table);
    for note in &verified.notes {
        let first = note.lines().next().unwrap_or_default();
        document.push_text(format!("{target}: {first}\n"));
    }
    document
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::advise::goal::Goals;

    fn change_of(relative: f64, verdict: Verdict) -> Change {
        Change { relative: Some(relative), low: None, high: None, verdict }
    }

    #[test]
    fn an_order_holds_if_both_tell_the_same() {
        let goals = Goals::parse(&["p99:wakeup_latency".into()]).unwrap();
        let term = &goals.objectives[0];
        let (less, more) =
            (change_of(-0.2, Verdict::Different), change_of(0.3, Verdict::Different));
        let noise = change_of(-0.1, Verdict::Noise);
        for (simulated, real, expected) in [
            (&less, Some(&less), OrderHeld::Held),
            (&less, Some(&more), OrderHeld::Reversed),
            (&less, Some(&noise), OrderHeld::Open),
            (&noise, Some(&less), OrderHeld::NoOrder),
            (&less, None, OrderHeld::NotMeasured),
        ] {
            assert_eq!(order(term, simulated, real), expected);
        }
    }
}

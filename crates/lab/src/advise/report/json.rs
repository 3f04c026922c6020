// SPDX-License-Identifier: GPL-2.0-only
//! The advice as JSON, in the form that `docs/reference/advise.md` describes.

use serde::Serialize;

use super::{Asked, command, goal_texts, shown, why_stay};
use crate::advise::candidate::LeftOut;
use crate::advise::judge::Standing;
use crate::advise::verify::Verified;
use crate::advise::{Advice, CandidateResult, Place, TermResult};
use crate::recorded::Pair;
use crate::report::differences;
use crate::scheduler::DEFAULT_CLASS;
use crate::stats::{Change, Summary};

#[derive(Serialize)]
struct Document<'a> {
    recommendation: Recommendation<'a>,
    candidates: Vec<Candidate<'a>>,
    goals: Vec<&'a str>,
    baseline: Vec<Quantity<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    differences: Option<Differences<'a>>,
    workload: &'a str,
    machine: &'a str,
    seed: u64,
    /// The replay of a recording beside it, under the default class.
    #[serde(skip_serializing_if = "Option::is_none")]
    replay: Option<Alike>,
    #[serde(skip_serializing_if = "Option::is_none")]
    verified: Option<&'a Verified>,
    /// As --rounds takes it.
    rounds: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    unfinished: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    left_out: &'a [LeftOut],
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    notes: &'a [String],
}

/// What else differs between the default class and a candidate.
#[derive(Serialize)]
struct Differences<'a> {
    candidate: &'a str,
    metrics: Vec<Difference<'a>>,
}

#[derive(Serialize)]
struct Difference<'a> {
    metric: &'a str,
    unit: &'static str,
    baseline: Summary,
    candidate: Summary,
    change: Change,
}

#[derive(Serialize)]
struct Alike {
    /// The reason why it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    unknown: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    figures: Vec<Pair>,
}

#[derive(Serialize)]
struct Recommendation<'a> {
    scheduler: &'a str,
    /// The command that applies it; None to stay with the default class.
    command: Option<String>,
    /// The reason for staying with the default class.
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<String>,
    /// The goal by which it is better.
    by: Option<&'a str>,
    change: Option<Change>,
    holds_in: Option<HoldsIn>,
}

#[derive(Serialize)]
struct HoldsIn {
    worlds: u32,
    of: u32,
}

#[derive(Serialize)]
struct Candidate<'a> {
    scheduler: &'a str,
    place: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    by: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed: Option<&'a str>,
    worlds: u32,
    goals: Vec<Goal<'a>>,
}

#[derive(Serialize)]
struct Goal<'a> {
    #[serde(flatten)]
    quantity: Quantity<'a>,
    baseline: Summary,
    change: Change,
    better_in: u32,
    worse_in: u32,
    /// Number of worlds in which it breaks the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    broken_in: Option<u32>,
}

#[derive(Serialize)]
struct Quantity<'a> {
    goal: &'a str,
    #[serde(flatten)]
    summary: Summary,
}

/// Returns the advice as JSON.
pub fn json(advice: &Advice, asked: &Asked<'_>, verified: Option<&Verified>) -> String {
    let texts: Vec<&str> = goal_texts(&advice.goals).collect();
    let summaries = advice.baseline.iter().zip(&texts);
    let baseline =
        summaries.map(|((_, summary), goal)| Quantity { goal, summary: *summary }).collect();
    let document = Document {
        recommendation: recommendation(advice, &texts),
        candidates: advice.candidates.iter().map(|c| candidate(c, &texts)).collect(),
        goals: texts.clone(),
        baseline,
        differences: shown(advice).map(|at| Differences {
            candidate: &advice.candidates[at].scheduler,
            metrics: advice.differences.iter().map(difference).collect(),
        }),
        workload: asked.workload,
        machine: asked.machine,
        seed: asked.seed,
        replay: asked.likeness.map(|likeness| match likeness {
            Ok(likeness) => Alike { unknown: None, figures: likeness.pairs() },
            Err(why) => Alike { unknown: Some(why.clone()), figures: Vec::new() },
        }),
        verified,
        rounds: advice.rounds.to_string(),
        unfinished: advice.unfinished.as_deref(),
        left_out: &advice.left_out,
        notes: &advice.notes,
    };
    serde_json::to_string_pretty(&document).expect("advice is plain data") + "\n"
}

fn difference(of: &differences::Difference) -> Difference<'_> {
    let (metric, unit) = (of.metric(), of.unit());
    Difference { metric, unit, baseline: of.baseline, candidate: of.candidate, change: of.change }
}

fn recommendation<'a>(advice: &'a Advice, texts: &[&'a str]) -> Recommendation<'a> {
    let Some(best) = advice.chosen.map(|at| &advice.candidates[at]) else {
        return Recommendation {
            scheduler: DEFAULT_CLASS,
            command: None,
            why: Some(why_stay(advice)),
            by: None,
            change: None,
            holds_in: None,
        };
    };
    let term = deciding(best);
    Recommendation {
        scheduler: &best.scheduler,
        command: Some(command(&best.scheduler)),
        why: None,
        by: term.and_then(|term| texts.get(term).copied()),
        change: term.and_then(|term| best.terms.get(term)).map(|term| term.paired.change),
        holds_in: best.holds.map(|worlds| HoldsIn { worlds, of: best.worlds }),
    }
}

/// Returns the index of the term that decides between a finalist and the default class.
fn deciding(candidate: &CandidateResult) -> Option<usize> {
    match candidate.place {
        Place::Finalist(Standing::Better { term } | Standing::Worse { term }) => Some(term),
        Place::Finalist(Standing::BreaksLimit { limit }) => Some(limit),
        _ => None,
    }
}

fn candidate<'a>(candidate: &'a CandidateResult, texts: &[&'a str]) -> Candidate<'a> {
    let goal = |(result, goal): (&TermResult, &&'a str)| Goal {
        quantity: Quantity { goal, summary: result.paired.candidate },
        baseline: result.paired.baseline,
        change: result.paired.change,
        better_in: result.paired.wins,
        worse_in: result.paired.losses,
        broken_in: result.bound.map(|_| result.broken.0),
    };
    Candidate {
        scheduler: &candidate.scheduler,
        place: place(&candidate.place),
        by: deciding(candidate).and_then(|term| texts.get(term).copied()),
        failed: match &candidate.place {
            Place::Failed { why } => Some(why),
            _ => None,
        },
        worlds: candidate.worlds,
        goals: candidate.terms.iter().zip(texts).map(goal).collect(),
    }
}

fn place(place: &Place) -> &'static str {
    match place {
        Place::Finalist(Standing::Better { .. }) => "better",
        Place::Finalist(Standing::Worse { .. }) => "worse",
        Place::Finalist(Standing::BreaksLimit { .. }) => "breaks_limit",
        Place::Finalist(Standing::Same) => "same",
        Place::Left => "left_behind",
        Place::Failed { .. } => "failed",
        Place::Untried => "untried",
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! Advice as text for people and as JSON for programs (`docs/reference/advise.md`).
//!
//! Owns: the sentences. Does not: decide anything.

mod json;
#[cfg(test)]
mod tests;

use std::fmt::Write;

use scxlab_machine::plural;
use scxlab_workload::program::TimeSpan;

use super::goal::{Direction, Goals, Measure, Term};
use super::judge::Standing;
use super::verify::{self, Verified};
use super::{Advice, CandidateResult, Place, TermResult};
use crate::metric::{self, Better, Unit};
use crate::recorded::Likeness;
use crate::report::document::{Align, Cell, Document, Table};
use crate::report::format::Scale;
use crate::report::{change_mark, change_text, differences};
use crate::results::quoted;
use crate::scheduler::DEFAULT_CLASS;
pub use json::json;

/// The parts of the request that a report names.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    /// The workload and the machine as the user named them.
    pub workload: &'a str,
    pub machine: &'a str,
    /// The workload's unit of work.
    pub unit: &'a str,
    pub seed: u64,
    /// How like its recording the replay is, or why that is not known; None: the workload is no
    /// recording.
    pub likeness: Option<&'a Result<Likeness, String>>,
}

/// Maximum number of runners-up, and of failures, that the text names.
const SHOWN: usize = 5;

/// Returns the advice for a screen.
pub fn document(advice: &Advice, asked: &Asked<'_>, verified: Option<&Verified>) -> Document {
    let mut document = Document::default();
    document.push_text(head(advice, asked));
    document.push_text(match advice.chosen.map(|at| &advice.candidates[at]) {
        Some(best) => recommendation(advice, best),
        None => format!("Stay with {DEFAULT_CLASS}: {}.\n", why_stay(advice)),
    });
    if let Some(shown) = shown(advice) {
        let shown = &advice.candidates[shown];
        document.push_text("\n");
        document.push(comparison(shown, asked.unit));
        if !advice.differences.is_empty() {
            document.push_text("\nwhat else differs, in other runs as requested\n");
            let names = [DEFAULT_CLASS, &shown.scheduler];
            document.push(differences::table(names, &advice.differences));
        }
    }
    if let Some(table) = runners_up(advice) {
        document.push_text("\n");
        document.push(table);
    }
    document.push_text(failures(advice));
    document.append(verified.map(verify::document).unwrap_or_default());
    document.push_text(remarks(advice, asked));
    document
}

/// Returns the candidate that is shown beside the default class.
pub fn shown(advice: &Advice) -> Option<usize> {
    let promising = promising(advice).map(|(at, _)| at);
    advice.chosen.or(promising).or_else(|| first_finalist(advice))
}

/// Returns the candidate that seems to be better, and the goal by which.
fn promising(advice: &Advice) -> Option<(usize, &TermResult)> {
    advice.candidates.iter().enumerate().find_map(|(at, c)| Some((at, promise(c)?)))
}

fn first_finalist(advice: &Advice) -> Option<usize> {
    advice.candidates.iter().position(|c| matches!(c.place, Place::Finalist(_)))
}

fn head(advice: &Advice, asked: &Asked<'_>) -> String {
    let mut text = String::new();
    if let Some(why) = &advice.unfinished {
        let _ = writeln!(text, "UNFINISHED: {why}\n");
    }
    let terms: Vec<&str> = goal_texts(&advice.goals).collect();
    let _ = writeln!(
        text,
        "workload {}   machine {}   goal {}\n{} in {}, the last of them in {} more\n",
        asked.workload,
        asked.machine,
        terms.join(","),
        plural(advice.candidates.len(), "candidate"),
        plural(advice.rounds.search, "world"),
        advice.rounds.decide,
    );
    if let Some(Ok(likeness)) = asked.likeness
        && let Some(differences) = differences(likeness)
    {
        let _ = writeln!(
            text,
            "NOT LIKE THE RECORDING: under {DEFAULT_CLASS}, the replay has {differences}.\n\
             Advice by what depends on them can be wrong.\n"
        );
    }
    text
}

/// Names the figures of a replay that are not like those of its recording.
fn differences(likeness: &Likeness) -> Option<String> {
    let pairs = likeness.pairs().into_iter().filter(|pair| pair.differs);
    let texts = pairs.map(|pair| match pair.percent() {
        Some(percent) => format!("{} {percent:+.0} %", pair.name),
        None => format!("{} that it did not have", pair.name),
    });
    let texts: Vec<String> = texts.collect();
    (!texts.is_empty()).then(|| texts.join(", "))
}

/// Returns the goals as written, the limits first.
pub fn goal_texts(goals: &Goals) -> impl Iterator<Item = &str> {
    let limits = goals.limits.iter().map(|limit| limit.text.as_str());
    limits.chain(goals.objectives.iter().map(|term| term.text.as_str()))
}

/// Returns the command that applies a scheduler.
pub fn command(scheduler: &str) -> String {
    format!("sudo scxlab attach {}", quoted(scheduler))
}

fn recommendation(advice: &Advice, best: &CandidateResult) -> String {
    let Place::Finalist(Standing::Better { term }) = best.place else {
        unreachable!("only a better candidate is recommended")
    };
    let mut text = format!("Use {}:\n\n    {}\n\n", best.scheduler, command(&best.scheduler));
    let result = &best.terms[term];
    let _ = match (&result.bound, change_text(&result.paired.change)) {
        (Some(_), _) => write!(
            text,
            "It keeps the limit {}, which {DEFAULT_CLASS} breaks in {} of {} worlds",
            advice.goals.limits[term].text, result.broken.1, best.worlds
        ),
        (None, change) => {
            write!(text, "It is better than {DEFAULT_CLASS} by {}: {change}", result.term.text)
        }
    };
    let _ =
        writeln!(text, ". This holds in {} of {} worlds.", best.holds.unwrap_or(0), best.worlds);
    let worse = best.terms.iter().filter(|result| result.paired.is_worse());
    for result in worse {
        let change = change_text(&result.paired.change);
        let _ = writeln!(text, "It is worse by {}: {change}.", result.term.text);
    }
    if let Some(goals) = best.terms.iter().find_map(|result| with_limit(advice, result)) {
        let _ = writeln!(text, "A limit rules that out: -g {}", quoted(&goals));
    }
    text
}

/// Returns the goals with a limit in place of a time, or of the unfairness, by which a candidate is
/// worse: halfway between the means of the default class and of the candidate. Times differ by 3 %
/// at least, so that three digits tell the limit from both; unfairness by 1 % of all CPU time.
fn with_limit(advice: &Advice, result: &TermResult) -> Option<String> {
    if result.bound.is_some() || !result.paired.is_worse() {
        return None;
    }
    let halfway = (result.paired.baseline.mean? + result.paired.candidate.mean?) / 2.0;
    let measure = &result.term.measure;
    let bound = match result.term.better {
        Direction::Less if measure.is_time() => {
            let halfway = halfway.max(1.0) as u64;
            let digit = 10u64.pow(halfway.ilog10().saturating_sub(2));
            TimeSpan(halfway / digit * digit).to_string()
        }
        Direction::Less if *measure == Measure::Unfairness => format!("{:.1}%", halfway * 100.0),
        _ => return None,
    };
    let texts = goal_texts(&advice.goals).map(|text| match text == result.term.text {
        true => format!("{text}<{bound}"),
        false => text.to_owned(),
    });
    Some(texts.collect::<Vec<_>>().join(","))
}

/// Returns the reason for staying with the default class.
fn why_stay(advice: &Advice) -> String {
    let all = &advice.candidates;
    let broken = |(at, _): &(usize, &super::goal::Limit)| {
        all.iter().all(|c| c.terms.get(*at).is_none_or(|t| t.broken.0 * 10 > c.worlds))
    };
    if advice.candidates.is_empty() {
        "there is no other candidate".to_owned()
    } else if advice.candidates.iter().all(|c| matches!(c.place, Place::Failed { .. })) {
        "every candidate failed".to_owned()
    } else if advice.rounds.decide == 0 {
        "nothing is decided, because the work ended before the decision".to_owned()
    } else if let Some((at, limit)) = advice.goals.limits.iter().enumerate().find(broken) {
        match all.iter().any(|c| c.terms.get(at).is_some_and(|t| t.broken.1 * 10 > c.worlds)) {
            true => format!(
                "neither {DEFAULT_CLASS} nor a candidate keeps the limit {}; without it, or with \
                 another, the goals can have an answer",
                limit.text
            ),
            false => {
                format!("no candidate keeps the limit {}, which {DEFAULT_CLASS} keeps", limit.text)
            }
        }
    } else if let Some((at, by)) = promising(advice) {
        let candidate = &all[at];
        format!(
            "{} seems to be better by {}, but {} are too few to be sure; a longer --budget, or \
             more --rounds, has more",
            candidate.scheduler,
            by.term.text,
            plural(candidate.worlds, "world")
        )
    } else if advice.candidates.iter().any(gains_too_little) {
        "no candidate is so much better that a change pays".to_owned()
    } else {
        "no candidate is better beyond noise".to_owned()
    }
}

/// Returns the goal by which a candidate that is not told from the default class seems to be so
/// much better that a change would pay.
fn promise(candidate: &CandidateResult) -> Option<&TermResult> {
    let is_open = matches!(candidate.place, Place::Finalist(Standing::Same));
    let promises = |t: &&TermResult| t.bound.is_none() && t.paired.promises();
    is_open.then(|| candidate.terms.iter().find(promises)).flatten()
}

/// Tells whether a candidate that is not told from the default class has a gain.
fn gains_too_little(candidate: &CandidateResult) -> bool {
    matches!(candidate.place, Place::Finalist(Standing::Same))
        && candidate.terms.iter().any(|t| t.paired.gains())
}

/// Returns the unit in which values of a term are shown.
fn scale(term: &Term, largest: f64) -> Scale {
    match &term.measure {
        Measure::Unfairness => Scale::share(),
        measure if measure.is_time() => Scale::time(largest),
        _ => Scale::count(largest),
    }
}

/// Returns the term with the unit of work, if its metric has one.
fn label(term: &Term, unit: &str) -> String {
    let unit_of = |name: &str| metric::find(name).map(|metric| metric.unit);
    match &term.measure {
        Measure::Metric(name) if unit_of(name) == Some(Unit::WorkPerSecond) => {
            format!("{}, {unit}/s", term.text)
        }
        _ => term.text.clone(),
    }
}

/// Returns a table of the goals: the default class beside a candidate.
fn comparison(candidate: &CandidateResult, unit: &str) -> Table {
    let head = ["", DEFAULT_CLASS, &candidate.scheduler, "change", "better in"];
    let mut table = Table::new(head.map(Cell::head).to_vec(), 2, 3);
    for result in &candidate.terms {
        let paired = &result.paired;
        let scale = scale(&result.term, paired.baseline.size().max(paired.candidate.size()));
        table.rows.push(vec![
            Cell::plain(scale.label(&label(&result.term, unit))),
            Cell::plain(scale.summary(&paired.baseline)),
            Cell::plain(scale.summary(&paired.candidate)),
            change_cell(result),
            Cell::plain(format!("{} of {}", paired.wins, candidate.worlds)),
        ]);
    }
    table
}

fn change_cell(result: &TermResult) -> Cell {
    let change = &result.paired.change;
    let better = match result.term.better {
        Direction::More => Better::More,
        Direction::Less => Better::Less,
    };
    Cell::new(change_text(change), change_mark(change, better))
}

/// Describes a finalist against the default class in a few words.
fn verdict(candidate: &CandidateResult, goals: &Goals) -> String {
    let Place::Finalist(standing) = candidate.place else { return String::new() };
    let text = |term: usize| match candidate.terms.get(term) {
        Some(TermResult { term, .. }) => term.text.as_str(),
        None => "",
    };
    match standing {
        Standing::Better { term } => format!("better by {}", text(term)),
        Standing::Worse { term } => format!("worse by {}", text(term)),
        Standing::BreaksLimit { limit } => {
            let broken = candidate.terms.get(limit).map_or(0, |result| result.broken.0);
            let text = &goals.limits[limit].text;
            format!("breaks {text} in {broken} of {} worlds", candidate.worlds)
        }
        Standing::Same if promise(candidate).is_some() => {
            let worlds = plural(candidate.worlds, "world");
            format!("seems better; {worlds} are too few to be sure")
        }
        Standing::Same if candidate.terms.iter().any(|t| t.paired.differs_too_little()) => {
            format!("differs from {DEFAULT_CLASS} by too little")
        }
        Standing::Same if gains_too_little(candidate) => "gains too little for a change".to_owned(),
        Standing::Same => format!("cannot be told from {DEFAULT_CLASS}"),
    }
}

/// Lists the best candidates that are not recommended, with their changes against the default
/// class.
fn runners_up(advice: &Advice) -> Option<Table> {
    let others = advice.candidates.iter().enumerate();
    let others = others.filter(|(at, c)| Some(*at) != advice.chosen && !c.terms.is_empty());
    let goals = advice.goals.terms().map(|term| term.text.as_str());
    let head = ["runner-up"].into_iter().chain(goals).chain(["worlds", ""]);
    let mut table = Table::new(head.map(Cell::head).collect(), 1, 1);
    if let Some(verdict) = table.aligns.last_mut() {
        *verdict = Align::Left;
    }
    for (_, candidate) in others.take(SHOWN) {
        let mut row = vec![Cell::plain(candidate.scheduler.clone())];
        row.extend(candidate.terms.iter().map(change_cell));
        row.push(Cell::plain(candidate.worlds.to_string()));
        row.push(Cell::plain(verdict(candidate, &advice.goals)));
        table.rows.push(row);
    }
    (!table.rows.is_empty()).then_some(table)
}

fn failures(advice: &Advice) -> String {
    let all: Vec<(&str, &str)> = advice
        .candidates
        .iter()
        .filter_map(|candidate| match &candidate.place {
            Place::Failed { why } => Some((candidate.scheduler.as_str(), why.as_str())),
            _ => None,
        })
        .collect();
    let left_out: Vec<(&str, &str)> =
        advice.left_out.iter().map(|left| (left.scheduler.as_str(), left.why.as_str())).collect();
    let mut text = list("never recommended", &all);
    text.push_str(&list("left out, because they cannot be loaded", &left_out));
    text
}

fn list(what: &str, all: &[(&str, &str)]) -> String {
    if all.is_empty() {
        return String::new();
    }
    let mut text = format!("\n{} {what}:\n", all.len());
    for (scheduler, why) in all.iter().take(SHOWN) {
        let why = why.lines().next().unwrap_or_default();
        let _ = writeln!(text, "  {scheduler}: {why}");
    }
    if all.len() > SHOWN {
        let _ = writeln!(text, "  and {} more", all.len() - SHOWN);
    }
    text
}

fn remarks(advice: &Advice, asked: &Asked<'_>) -> String {
    let mut text = String::new();
    for note in &advice.notes {
        let _ = write!(text, "\n{note}");
    }
    match asked.likeness {
        Some(Ok(likeness)) if differences(likeness).is_none() => {
            let _ = write!(
                text,
                "\nUnder {DEFAULT_CLASS}, the replay is like the recording (`scxlab workload show`)."
            );
        }
        Some(Err(why)) => {
            let _ = write!(text, "\nHow like the recording the replay is, is not known: {why}.");
        }
        _ => {}
    }
    let finalists = advice.candidates.iter().filter(|c| matches!(c.place, Place::Finalist(_)));
    if finalists.flat_map(|c| &c.terms).any(|t| t.paired.differs_too_little()) {
        text.push_str(
            "\nDifferences that are too small to matter count as equal (docs/guide/advise.md).",
        );
    }
    if advice.rounds.search == 0 {
        return text + "\n";
    }
    let _ = writeln!(
        text,
        "\nChanges are against {DEFAULT_CLASS}, with 95 % intervals, over worlds: seeds, with costs of {} that vary\n\
         by up to a factor of two. --rounds {} --seed {} gives the same advice.",
        asked.machine, advice.rounds, asked.seed
    );
    text
}

// SPDX-License-Identifier: GPL-2.0-only
//! Advice: which scheduler, with which settings, a workload should run on, on a machine.
//!
//! Owns: the order of the work: a first run that shows whether the workload can answer for the
//! goals, the search (`search.rs`), the decision (`decide.rs`), the advice.
//! Does not: read clocks or signals (the caller's `Observer` does), or format (`report.rs`).

pub mod candidate;
pub mod decide;
pub mod goal;
pub mod judge;
pub mod report;
mod search;
pub mod trials;
pub mod value;
pub mod verify;
pub mod world;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use scxlab_machine::Machine;
use scxlab_machine::id::Nanos;
use scxlab_workload::Program;

use crate::metric::WEIGHT_ERROR;
use crate::report::differences::{Difference, differences};
use crate::session::SessionError;
use crate::sim::{NumaBalancing, left_out};
use crate::stats::Summary;
use candidate::{CandidateError, Candidates, LeftOut};
use decide::{Decision, decide};
use goal::{Goals, Term};
use judge::{Paired, Standing, Values, holds};
use search::Search;
use trials::Trials;
use value::refused_by;

/// A question for advice.
pub struct Request<'a> {
    pub machine: Arc<Machine>,
    pub program: &'a Program,
    pub goals: Goals,
    /// First seed of all worlds.
    pub seed: u64,
    pub duration: Option<Nanos>,
    /// Maximum length of a run whose workload has no duration.
    pub cap: Option<Nanos>,
    /// Maximum numbers of rounds; None: as many as there is time for.
    pub rounds: Option<Rounds>,
    pub max_memory: u64,
    pub numa_balancing: NumaBalancing,
    /// Number of threads; 0 means one per CPU of the host.
    pub threads: usize,
}

impl Request<'_> {
    /// Returns the length of a run, if it is known.
    fn length(&self) -> Option<Nanos> {
        self.duration.or(self.program.duration.map(|length| length.0))
    }
}

/// Numbers of worlds in which candidates ran. Equal numbers give equal advice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rounds {
    pub search: u32,
    pub decide: u32,
}

impl std::fmt::Display for Rounds {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}+{}", self.search, self.decide)
    }
}

impl std::str::FromStr for Rounds {
    type Err = String;

    /// ```
    /// use scxlab_lab::advise::Rounds;
    /// assert_eq!("8+12".parse(), Ok(Rounds { search: 8, decide: 12 }));
    /// assert!("8".parse::<Rounds>().is_err());
    /// ```
    fn from_str(text: &str) -> Result<Rounds, String> {
        let form = || format!("\"{text}\" is not SEARCH+DECISION, such as 24+12");
        let (search, decide) = text.split_once('+').ok_or_else(form)?;
        let number = |text: &str, least: u32| {
            text.parse().ok().filter(|n| (least..=1000).contains(n)).ok_or_else(form)
        };
        Ok(Rounds { search: number(search, 1)?, decide: number(decide, 0)? })
    }
}

/// The caller's side of the work: its budget, signals, and a view of the progress.
pub trait Observer: Sync {
    /// Returns the reason why the work must end now.
    fn interrupt(&self) -> Option<String>;
    /// Returns the time that is left; None: as long as it takes.
    fn time_left(&self) -> Option<Duration>;
    /// Receives the state of the work.
    fn tell(&self, state: &State);
}

/// How far the work is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct State {
    /// Number of worlds so far.
    pub rounds: u32,
    /// Number of candidates that are left, without the default class.
    pub candidates: usize,
    /// The best of them so far.
    pub best: String,
    /// Whether the search has ended, and the decision is being made.
    pub decides: bool,
}

/// An `Observer` that lets the work take its time.
pub struct Unhurried;

impl Observer for Unhurried {
    fn interrupt(&self) -> Option<String> {
        None
    }

    fn time_left(&self) -> Option<Duration> {
        None
    }

    fn tell(&self, _: &State) {}
}

/// Reason why there is no advice.
#[derive(Debug, thiserror::Error)]
pub enum AdviseError {
    #[error("goal {goal}: {why}")]
    Goal { goal: String, why: String },
    #[error(
        "the workload has neither units of work nor enough wake-ups to go by ({why}); say with --goal what to improve"
    )]
    NoGoal { why: String },
    #[error("under eevdf, the workload does not run as it should: {why}")]
    Baseline { why: String },
    #[error(transparent)]
    Candidate(#[from] CandidateError),
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// One term of the goals for one candidate.
#[derive(Clone, Debug)]
pub struct TermResult {
    pub term: Term,
    /// The candidate beside the default class, in the same worlds.
    pub paired: Paired,
    /// Bound of the term, if it is a limit.
    pub bound: Option<f64>,
    /// Number of worlds in which the candidate, and the default class, break the limit.
    pub broken: (u32, u32),
}

/// How far a candidate came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// It is among the best few, and has this standing against the default class.
    Finalist(Standing),
    /// The search left it behind.
    Left,
    /// It is unsuitable in at least one world.
    Failed { why: String },
    /// It did not run, because the time was over.
    Untried,
}

/// Everything known of one candidate.
#[derive(Clone, Debug)]
pub struct CandidateResult {
    /// The candidate, as `-s` takes it.
    pub scheduler: String,
    pub place: Place,
    /// Number of worlds of `terms`.
    pub worlds: u32,
    /// The limits' terms first, then the objectives; empty if it failed.
    pub terms: Vec<TermResult>,
    /// The values of the terms by world; empty if it failed.
    pub values: Values,
    /// Number of worlds in which it is better than the default class by the deciding term.
    pub holds: Option<u32>,
}

/// The answer to a request.
#[derive(Clone, Debug)]
pub struct Advice {
    pub goals: Goals,
    /// Index into `candidates` of the recommended one; None: the default class.
    pub chosen: Option<usize>,
    /// All candidates but the default class, the best first.
    pub candidates: Vec<CandidateResult>,
    /// The default class's values in the decision, or else in the search.
    pub baseline: Vec<(Term, Summary)>,
    /// The values of these terms by world.
    pub baseline_values: Values,
    pub left_out: Vec<LeftOut>,
    /// What differs between the default class and the candidate that the report shows beside it,
    /// in runs as the request has them.
    pub differences: Vec<Difference>,
    pub rounds: Rounds,
    /// The reason why the work ended early.
    pub unfinished: Option<String>,
    /// Remarks on the goals, and those on the workload, such as what of a recording is missing.
    pub notes: Vec<String>,
}

/// Seeks advice. An interruption ends the work early; the advice then says so.
pub fn advise(
    request: &Request<'_>,
    candidates: Candidates<'_>,
    observer: &dyn Observer,
) -> Result<Advice, AdviseError> {
    let trials = Trials::new(request, &request.goals, observer)?;
    let (goals, notes) = answerable(request, &candidates, &trials)?;
    let trials = trials.with_goals(&goals);
    let mut search = Search {
        trials: &trials,
        goals: &goals,
        candidates,
        failed: BTreeMap::new(),
        seen: BTreeMap::new(),
        rounds: 0,
        max_rounds: request.rounds.map(|rounds| rounds.search),
    };
    let finalists = search.finalists()?;
    if search.rounds == 0 && search.candidates.all().len() > 1 {
        let why = trials.interrupted().unwrap_or_default();
        return Err(SessionError::Interrupted { why }.into());
    }
    let decision = decide(&mut search, &finalists, request.rounds.map(|rounds| rounds.decide))?;
    for candidate in &decision.order {
        let values = decision.scores.of(*candidate).clone();
        search.seen.insert(*candidate, (decision.scores.of(0).clone(), values));
    }
    let unfinished = match decision.is_whole || finalists.is_empty() && search.all_failed() {
        true => None,
        false => Some(unfinished(&trials, &decision)),
    };
    let notes = notes.into_iter().chain(not_run(&search, &decision)).collect();
    let mut advice = advice(&search, &decision, finalists, unfinished, notes);
    let shown = report::shown(&advice).and_then(|at| search.find(&advice.candidates[at].scheduler));
    if let Some([baseline, candidate]) =
        shown.and_then(|shown| trials.explain([search.candidate(0), shown]))
    {
        let is_goal = |d: &Difference| goals.terms().any(|term| term.measure.is_metric(d.metric()));
        advice.differences = differences(&baseline, &candidate);
        advice.differences.retain(|difference| !is_goal(difference));
    }
    Ok(advice)
}

/// Names the parts of the finalists that no run of theirs executes.
fn not_run<'a>(
    search: &'a Search<'_>,
    decision: &'a Decision,
) -> impl Iterator<Item = String> + 'a {
    decision.order.iter().filter_map(|at| {
        let candidate = search.candidate(*at);
        let parts = left_out(&candidate.prepared);
        (!parts.is_empty()).then(|| format!("{}: not run: {}", candidate.text(), parts.join("; ")))
    })
}

/// Tells why the work ended early, and how much time the decision lacked.
fn unfinished(trials: &Trials<'_>, decision: &Decision) -> String {
    let lacks = decide::FIRST_LOOK.saturating_sub(decision.rounds as usize);
    let time = trials.time_of(lacks * (search::FINALISTS + 1)).as_secs() + 1;
    match trials.interrupted() {
        Some(why) if lacks > 0 => format!("{why}; the decision takes about {time} s more"),
        Some(why) => why,
        None => "the numbers of rounds are used".to_owned(),
    }
}

/// Checks with one run of the default class that the workload can answer for the goals. Returns the
/// goals without default ones that it cannot answer for, and remarks on these.
fn answerable(
    request: &Request<'_>,
    candidates: &Candidates<'_>,
    trials: &Trials<'_>,
) -> Result<(Goals, Vec<String>), AdviseError> {
    for term in request.goals.terms() {
        if let Some(why) = refused_by(request.program, &term.measure) {
            return Err(AdviseError::Goal { goal: term.text.clone(), why });
        }
    }
    let terms: Vec<&Term> = request.goals.terms().collect();
    let pilot = trials.pilot(&candidates.all()[0], |seen| {
        let failure = trials::failure(seen.run);
        let weighs = seen.run.metrics.contains_key(WEIGHT_ERROR.name);
        (failure, weighs, terms.iter().map(|term| seen.suffices(term)).collect::<Vec<_>>())
    })?;
    let Some((failure, weighs, checks)) = pilot else {
        let why = trials.interrupted().unwrap_or_default();
        return Err(SessionError::Interrupted { why }.into());
    };
    if let Some(why) = failure {
        return Err(AdviseError::Baseline { why });
    }
    let mut goals = request.goals.clone();
    let mut notes = Vec::new();
    let (of_limits, of_objectives) = checks.split_at(goals.limits.len());
    let mut kept = Vec::new();
    for (at, (term, check)) in terms.iter().zip(of_limits.iter().chain(of_objectives)).enumerate() {
        match check {
            Ok(()) if at < goals.limits.len() => {}
            Ok(()) => kept.push((*term).clone()),
            Err(why) if goals.are_default && at >= goals.limits.len() => {
                notes.push(format!("{} is no goal here: {why}", term.text));
            }
            Err(why) => {
                return Err(AdviseError::Goal { goal: term.text.clone(), why: why.clone() });
            }
        }
    }
    if kept.is_empty() && goals.limits.is_empty() {
        return Err(AdviseError::NoGoal { why: notes.join("; ") });
    }
    goals.objectives = kept;
    if weighs && let Some(text) = goals.add_fairness() {
        notes.push(format!("{text} is the last goal, because the workload has weights"));
    }
    notes.extend(request.program.notes.iter().cloned());
    Ok((goals, notes))
}

fn advice(
    search: &Search<'_>,
    decision: &Decision,
    finalists: Vec<usize>,
    unfinished: Option<String>,
    notes: Vec<String>,
) -> Advice {
    let goals = search.goals;
    let order = order(search, decision, finalists);
    let result = |at: usize| {
        let place = match (search.failed.get(&at), decision.standings.get(&at)) {
            (Some(why), _) => Place::Failed { why: why.clone() },
            (None, Some(standing)) => Place::Finalist(*standing),
            (None, None) if search.seen.contains_key(&at) => Place::Left,
            (None, None) => Place::Untried,
        };
        let seen = search.seen.get(&at).filter(|_| !search.failed.contains_key(&at));
        let terms = seen.map(|(base, own)| terms(goals, base, own)).unwrap_or_default();
        let worlds = seen.map_or(0, |(_, own)| own.first().map_or(0, Vec::len) as u32);
        let held = match (seen, place.clone()) {
            (Some((base, own)), Place::Finalist(Standing::Better { term })) => {
                Some(holds(goals, base, own, term).iter().filter(|held| **held).count() as u32)
            }
            _ => None,
        };
        let scheduler = search.candidate(at).text().to_owned();
        let values = seen.map(|(_, own)| own.clone()).unwrap_or_default();
        CandidateResult { scheduler, place, worlds, terms, values, holds: held }
    };
    let base = decision.scores.get(0).or_else(|| search.seen.get(&0).map(|(base, _)| base));
    let summaries = |values: &Values| {
        let all = goals.terms().zip(values);
        all.map(|(term, values)| (term.clone(), Summary::of(values))).collect()
    };
    Advice {
        goals: goals.clone(),
        chosen: decision.chosen.and_then(|chosen| order.iter().position(|at| *at == chosen)),
        candidates: order.iter().map(|at| result(*at)).collect(),
        baseline: base.map(summaries).unwrap_or_default(),
        baseline_values: base.cloned().unwrap_or_default(),
        left_out: search.candidates.left_out.clone(),
        differences: Vec::new(),
        rounds: Rounds { search: search.rounds, decide: decision.rounds },
        unfinished,
        notes,
    }
}

/// Orders all candidates but the default class: the finalists by the decision, then those that the
/// search left behind, the longest in it first, then those that failed.
fn order(search: &Search<'_>, decision: &Decision, finalists: Vec<usize>) -> Vec<usize> {
    let mut order: Vec<usize> =
        decision.chosen.into_iter().chain(decision.order.iter().copied()).collect();
    order.extend(finalists);
    let mut others: Vec<usize> = (1..search.candidates.all().len()).collect();
    let worlds =
        |at: &usize| search.seen.get(at).map_or(0, |(_, own)| own.first().map_or(0, Vec::len));
    others.sort_by_key(|at| (search.failed.contains_key(at), usize::MAX - worlds(at)));
    order.extend(others);
    let mut seen = vec![false; search.candidates.all().len()];
    seen[0] = true;
    order.retain(|at| !std::mem::replace(&mut seen[*at], true));
    order.sort_by_key(|at| search.failed.contains_key(at));
    order
}

fn terms(goals: &Goals, base: &Values, own: &Values) -> Vec<TermResult> {
    let result = |(at, term): (usize, &Term)| {
        let limit = goals.limits.get(at);
        let broken = |values: &Values| {
            let all = limit.map(|_| judge::breaches(goals, values, at)).unwrap_or_default();
            all.iter().filter(|broken| **broken).count() as u32
        };
        TermResult {
            term: term.clone(),
            paired: Paired::of(term, &base[at], &own[at]),
            bound: limit.map(|limit| limit.bound),
            broken: (broken(own), broken(base)),
        }
    };
    goals.terms().enumerate().map(result).collect()
}

// SPDX-License-Identifier: GPL-2.0-only
//! Comparisons of candidates by the goals, in worlds that they share.
//!
//! Owns: when two candidates can be told apart, the order of candidates, and when one is better
//! than the default class beyond doubt.
//! Does not: run anything.
//!
//! Two candidates are told apart by a quantity if the difference matters and the 95 % interval of
//! the change excludes 0. That suffices for the search. The verdict against the default class also
//! needs a sign test over the worlds, which assumes nothing of how the values are distributed, at a
//! level that is divided by the number of tests of one decision.

#[cfg(test)]
mod tests;

use super::goal::{Direction, Goals, Measure, Term};
use crate::metric::{self, Unit};
use crate::stats::{Change, Summary, Verdict, change};

/// The values of one candidate: by term (the limits' first), then by world.
pub type Values = Vec<Vec<f64>>;

/// One term of two candidates, in the same worlds.
#[derive(Clone, Copy, Debug)]
pub struct Paired {
    /// The change from the baseline to the candidate.
    pub change: Change,
    /// Number of worlds in which the candidate is better, and in which it is worse.
    pub wins: u32,
    pub losses: u32,
    /// The baseline's mean; the candidate's is `candidate`.
    pub baseline: Summary,
    pub candidate: Summary,
    /// Difference of the means in units of the smallest difference that matters; positive if the
    /// candidate is better.
    steps: f64,
    /// Whether the interval of the change excludes 0; false if there is none.
    is_certain: bool,
}

impl Paired {
    /// Compares two candidates by a term.
    pub fn of(term: &Term, baseline: &[f64], candidate: &[f64]) -> Paired {
        let sign = match term.better {
            Direction::More => 1.0,
            Direction::Less => -1.0,
        };
        let pairs: Vec<(f64, f64)> =
            baseline.iter().copied().zip(candidate.iter().copied()).collect();
        let gains: Vec<f64> = pairs.iter().map(|(b, c)| (c - b) * sign).collect();
        let count = |is: fn(f64) -> bool| gains.iter().filter(|gain| is(**gain)).count() as u32;
        let (b, c) = (Summary::of(baseline), Summary::of(candidate));
        let smallest = smallest_difference(&term.measure, b.size().max(c.size()));
        let difference = Summary::of(&gains);
        let change = change(&pairs);
        Paired {
            change,
            wins: count(|gain| gain > 0.0),
            losses: count(|gain| gain < 0.0),
            baseline: b,
            candidate: c,
            steps: difference.mean.unwrap_or_default() / smallest,
            is_certain: change.verdict == Verdict::Different,
        }
    }

    /// Tells whether the difference matters.
    fn matters(&self) -> bool {
        self.steps.abs() >= 1.0
    }

    /// Tells whether the two differ, by too little to matter.
    pub fn differs_too_little(&self) -> bool {
        self.is_certain && !self.matters()
    }

    /// Tells whether the two differ. With few worlds there is hardly an interval, and a difference
    /// that matters counts.
    fn are_told_apart(&self) -> bool {
        self.matters() && (self.is_certain || self.baseline.n < WORLDS_FOR_INTERVAL)
    }

    /// Tells whether the candidate is better, by however little.
    pub fn gains(&self) -> bool {
        self.is_certain && self.steps > 0.0
    }

    pub fn is_worse(&self) -> bool {
        self.steps < 0.0 && self.matters() && self.is_certain
    }

    /// Tells whether the candidate is so much better that a change would pay, by its interval.
    pub fn promises(&self) -> bool {
        self.is_certain && self.steps >= STEPS_FOR_CHANGE
    }

    /// Tells whether the candidate is so much better that a change pays, at a level of error of the
    /// sign test.
    pub fn is_better(&self, level: f64) -> bool {
        self.promises() && sign_test(self.wins, self.losses) <= level
    }
}

/// Number of worlds from which intervals decide.
const WORLDS_FOR_INTERVAL: usize = 4;

/// Gain for which another scheduler is recommended, in units of the smallest difference that
/// matters: 2 % of a throughput, 6 % of a wait.
const STEPS_FOR_CHANGE: f64 = 2.0;

/// Returns the smallest difference that matters, for values of about this size. A smaller one is
/// within what the cost tables know, or is nothing that a user would notice.
fn smallest_difference(measure: &Measure, size: f64) -> f64 {
    let unit = match measure {
        Measure::Metric(name) => metric::find(name).map(|metric| metric.unit),
        Measure::Quantile { .. } => Some(Unit::Ns),
        Measure::Finish | Measure::Unfairness => None,
    };
    match (measure, unit) {
        (Measure::Unfairness, _) => 0.01,
        (_, Some(Unit::Ns)) => (size * 0.03).max(WAIT_MIN_NS),
        (_, Some(Unit::One)) => (size * 0.03).max(10.0),
        // Any change of 0 differs from 0.
        _ => (size * 0.01).max(f64::MIN_POSITIVE),
    }
}

/// Tells whether two values of a metric differ by enough to matter.
pub fn matters(metric: &str, a: f64, b: f64) -> bool {
    let smallest = smallest_difference(&Measure::Metric(metric.to_owned()), a.abs().max(b.abs()));
    (a - b).abs() >= smallest
}

/// Waits that differ by less, in ns, do not matter: the time in which an idle CPU wakes up.
const WAIT_MIN_NS: f64 = 20_000.0;

/// Returns the probability of so many wins or more, if wins and losses were equally likely.
fn sign_test(wins: u32, losses: u32) -> f64 {
    let n = wins + losses;
    // `part` is the probability of exactly k wins, from n wins on downwards.
    let mut part = 0.5f64.powi(n as i32);
    let mut sum = 0.0;
    for k in (wins..=n).rev() {
        sum += part;
        part *= f64::from(k) / f64::from(n - k + 1);
    }
    if n == 0 { 1.0 } else { sum }
}

/// How a candidate compares with the default class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// It is better by the term with this index, and not worse by the objectives before it.
    Better { term: usize },
    /// It is worse by the term with this index, and not better by the objectives before it.
    Worse { term: usize },
    /// It breaks the limit with this index in too many worlds.
    BreaksLimit { limit: usize },
    /// No objective tells the two apart.
    Same,
}

/// Judges a candidate against the default class. `level` is the level of error of each test.
pub fn standing(goals: &Goals, baseline: &Values, candidate: &Values, level: f64) -> Standing {
    if let Some(limit) = (0..goals.limits.len()).find(|at| !keeps(goals, candidate, *at)) {
        return Standing::BreaksLimit { limit };
    }
    for term in 0..goals.limits.len() {
        let broken = |values: &Values| breaches(goals, values, term);
        let (base, own) = (broken(baseline), broken(candidate));
        let saved = base.iter().zip(&own).filter(|(base, own)| **base && !**own).count() as u32;
        let lost = base.iter().zip(&own).filter(|(base, own)| !**base && **own).count() as u32;
        if !keeps(goals, baseline, term) && sign_test(saved, lost) <= level {
            return Standing::Better { term };
        }
    }
    for (term, objective) in objectives(goals) {
        let paired = Paired::of(objective, &baseline[term], &candidate[term]);
        if paired.is_better(level) {
            return Standing::Better { term };
        }
        if paired.is_worse() {
            return Standing::Worse { term };
        }
    }
    Standing::Same
}

/// Returns the objectives, each with its index among all terms.
fn objectives(goals: &Goals) -> impl Iterator<Item = (usize, &Term)> {
    goals.objectives.iter().enumerate().map(|(at, term)| (goals.limits.len() + at, term))
}

/// Tells in which worlds a candidate breaks a limit.
pub fn breaches(goals: &Goals, values: &Values, limit: usize) -> Vec<bool> {
    let limit_of = &goals.limits[limit];
    let breaks = |value: &f64| match limit_of.term.better {
        Direction::Less => *value > limit_of.bound,
        Direction::More => *value < limit_of.bound,
    };
    values[limit].iter().map(breaks).collect()
}

/// Tells whether a candidate keeps a limit: in nine of ten worlds or more.
pub fn keeps(goals: &Goals, values: &Values, limit: usize) -> bool {
    let all = breaches(goals, values, limit);
    all.iter().filter(|breaks| **breaks).count() * 10 <= all.len()
}

/// Tells in which worlds a candidate is better than the default class by a term. By a limit, it is
/// so in the worlds in which it keeps the limit.
pub fn holds(goals: &Goals, baseline: &Values, candidate: &Values, term: usize) -> Vec<bool> {
    let mut held = match goals.objectives.get(term.wrapping_sub(goals.limits.len())) {
        None => vec![true; candidate[term].len()],
        Some(objective) => {
            let better = |(base, own): (&f64, &f64)| match objective.better {
                Direction::Less => own < base,
                Direction::More => own > base,
            };
            baseline[term].iter().zip(&candidate[term]).map(better).collect()
        }
    };
    for limit in 0..goals.limits.len() {
        let broken = breaches(goals, candidate, limit);
        held.iter_mut().zip(broken).for_each(|(held, broken)| *held &= !broken);
    }
    held
}

/// Orders candidates, the best first. `values` returns a candidate's values; all candidates have
/// the same worlds.
pub fn rank<'a>(
    goals: &Goals,
    candidates: &[usize],
    values: &impl Fn(usize) -> &'a Values,
) -> Vec<usize> {
    let broken = |candidate: usize| -> usize {
        let limits = (0..goals.limits.len()).filter(|at| !keeps(goals, values(candidate), *at));
        let breaches = |at| breaches(goals, values(candidate), at).iter().filter(|b| **b).count();
        limits.map(breaches).sum()
    };
    let mut groups: Vec<(usize, usize)> = candidates.iter().map(|c| (broken(*c), *c)).collect();
    groups.sort_unstable();
    let by_objectives = |group: &[(usize, usize)]| {
        let members: Vec<usize> = group.iter().map(|(_, candidate)| *candidate).collect();
        rank_by(goals, 0, members, values)
    };
    groups.chunk_by(|a, b| a.0 == b.0).flat_map(by_objectives).collect()
}

/// Orders candidates by the objectives from number `from` on.
fn rank_by<'a>(
    goals: &Goals,
    from: usize,
    mut candidates: Vec<usize>,
    values: &impl Fn(usize) -> &'a Values,
) -> Vec<usize> {
    let Some(objective) = goals.objectives.get(from) else {
        return rank_by_mean(goals, candidates, values);
    };
    let series = |candidate: usize| &values(candidate)[goals.limits.len() + from][..];
    let mut ordered = Vec::new();
    while let Some(leader) = best(objective, &candidates, &series) {
        let is_tied = |candidate: &usize| {
            let paired = Paired::of(objective, series(leader), series(*candidate));
            *candidate == leader || !paired.are_told_apart()
        };
        let (tied, rest): (Vec<usize>, Vec<usize>) = candidates.into_iter().partition(is_tied);
        ordered.extend(rank_by(goals, from + 1, tied, values));
        candidates = rest;
    }
    ordered
}

/// Returns the candidate with the best mean; the first of equal ones.
fn best<'a>(
    term: &Term,
    candidates: &[usize],
    series: &impl Fn(usize) -> &'a [f64],
) -> Option<usize> {
    let badness = |candidate: &usize| {
        let mean = Summary::of(series(*candidate)).mean.unwrap_or_default();
        if term.better == Direction::More { -mean } else { mean }
    };
    candidates.iter().copied().min_by(|a, b| badness(a).total_cmp(&badness(b)))
}

/// Orders candidates that no objective tells apart by the mean of the first objective, in steps of
/// the smallest difference that matters; equal ones stay in their order.
fn rank_by_mean<'a>(
    goals: &Goals,
    mut candidates: Vec<usize>,
    values: &impl Fn(usize) -> &'a Values,
) -> Vec<usize> {
    let Some((term, objective)) = objectives(goals).next() else { return candidates };
    let series = |candidate: usize| &values(candidate)[term][..];
    let Some(leader) = best(objective, &candidates, &series) else { return candidates };
    let behind = |candidate: &usize| {
        (-Paired::of(objective, series(leader), series(*candidate)).steps).floor() as i64
    };
    candidates.sort_by_key(behind);
    candidates
}

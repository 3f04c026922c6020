// SPDX-License-Identifier: GPL-2.0-only
//! The sentence at the top of a page, and how sure it is.
//!
//! Owns: the rule. A scheduler is recommended if it is better than the first one beyond noise, by
//! throughput or, if no scheduler is, by p99 wake-up latency. If it is worse by the other beyond
//! noise, the sentence names the best for each, and what that one costs. Differences count from the
//! size on from which they matter to `scxlab advise`, and a p99 from 100 wake-ups on. A scheduler
//! that was ejected, starved a task, was cut off or did not keep `cpu.max` in any run is never
//! recommended.

#[cfg(test)]
mod tests;

use scxlab_lab::advise::judge::matters;
use scxlab_lab::advise::value::samples;
use scxlab_lab::compare::{change_of, known, values};
use scxlab_lab::metric::{WAKEUP_LATENCY, WAKEUPS};
use scxlab_lab::run::Run;
use scxlab_lab::stats::{self, Summary};

use crate::data::Verdict;
use crate::session::{Document, Group};

const THROUGHPUT: &str = "throughput";
const LATENCY: &str = "wakeup_latency_p99";

/// A quantity by which schedulers are judged.
#[derive(Clone, Copy)]
struct Goal {
    metric: &'static str,
    words: &'static str,
    /// 1 if more is better, else -1.
    sign: f64,
}

const GOALS: [Goal; 2] = [
    Goal { metric: THROUGHPUT, words: "throughput", sign: 1.0 },
    Goal { metric: LATENCY, words: "p99 wake-up latency", sign: -1.0 },
];

/// The answer for one session.
struct Answer {
    /// The recommended scheduler; None to stay with the first one.
    best: Option<String>,
    verdict: Verdict,
}

/// Returns the verdict about the sessions.
pub fn verdict(documents: &[Document]) -> Verdict {
    let mut answers: Vec<Answer> = documents.iter().map(answer).collect();
    if answers.len() < 2 {
        return answers.pop().map(|answer| answer.verdict).unwrap_or_default();
    }
    let same = answers.iter().all(|answer| answer.best == answers[0].best);
    let sentence = match (&answers[0].best, same) {
        (Some(best), true) => format!("Take {best} in all {} cases.", answers.len()),
        (None, true) => "Stay with the baseline in all cases.".to_owned(),
        (_, false) => "It depends on the case.".to_owned(),
    };
    let reasons = documents.iter().zip(answers).map(|(document, Answer { verdict, .. })| {
        let manifest = &document.manifest;
        let case = format!("{} on {}", manifest.workload.workload, manifest.machine.machine);
        format!("{case}: {} {}", verdict.sentence, verdict.sure)
    });
    Verdict {
        sentence,
        sure: "Each case is judged by itself.".to_owned(),
        reasons: reasons.collect(),
    }
}

fn answer(document: &Document) -> Answer {
    let groups = document.groups();
    let stay = |sentence: String, sure: String, reasons| Answer {
        best: None,
        verdict: Verdict { sentence, sure, reasons },
    };
    let Some((base, others)) = groups.split_first() else {
        return stay("There are no runs.".to_owned(), String::new(), Vec::new());
    };
    let mut reasons: Vec<String> = groups.iter().filter_map(bad).collect();
    if bad(base).is_some() {
        let sentence = format!("There is no verdict: {} itself went wrong.", base.name);
        return stay(sentence, "Nothing can be compared with it.".to_owned(), reasons);
    }
    if others.is_empty() {
        let sentence = format!("{} ran alone; name others with -s to compare.", base.name);
        return stay(sentence, String::new(), reasons);
    }
    let fit: Vec<&Group<'_>> = others.iter().filter(|group| bad(group).is_none()).collect();
    let winners = GOALS.map(|goal| Some((goal, winner(goal, base, &fit)?)));
    if let Some((goal, (group, gain))) = winners.iter().flatten().next() {
        let other = GOALS.into_iter().find(|other| other.metric != goal.metric);
        let lost = other.and_then(|other| Some((other, cost(other, base, group)?)));
        reasons.splice(0..0, other.and_then(|other| beside(other, base, group)));
        let is = format!("{} {} than under {}", goal.words, amount(*goal, gain.mean), base.name);
        let sentence = match lost {
            None => format!("Take {}: {is}.", group.name),
            Some((other, lost)) => {
                let best = winners.iter().flatten().find(|(goal, _)| goal.metric == other.metric);
                let instead = match best {
                    Some((_, (best, _))) => match cost(*goal, base, best) {
                        Some(price) => {
                            format!("take {} ({} {})", best.name, goal.words, amount(*goal, price))
                        }
                        None => format!("take {}", best.name),
                    },
                    None => format!("stay with {}", base.name),
                };
                format!(
                    "It depends on the goal: for {} take {} ({is}); for {} {instead} ({} has it {}).",
                    goal.words,
                    group.name,
                    other.words,
                    group.name,
                    amount(other, lost)
                )
            }
        };
        let sure = format!(
            "The 95 % interval of the change in {} is {} to {}, over {} pairs of runs with equal \
             seeds; {} compared with {}.",
            goal.words,
            percent(goal.sign * gain.low.min(gain.high)),
            percent(goal.sign * gain.low.max(gain.high)),
            base.runs.len(),
            count(others.len()),
            base.name
        );
        let best = Some(group.name.clone());
        return Answer { best, verdict: Verdict { sentence, sure, reasons } };
    }
    reasons.extend(
        fit.iter().flat_map(|group| GOALS.into_iter().filter_map(|goal| beside(goal, base, group))),
    );
    if base.runs.len() < 2 {
        let sentence =
            format!("Undecided: one run each cannot be told from {} beyond noise.", base.name);
        return stay(sentence, "Not sure; -n 5 gives intervals.".to_owned(), reasons);
    }
    let sentence = format!("Stay with {}: nothing here is better beyond noise.", base.name);
    let sure =
        format!("By throughput and p99 wake-up latency, over {} runs each.", base.runs.len());
    stay(sentence, sure, reasons)
}

/// A relative gain with its interval; positive is better.
struct Gain {
    mean: f64,
    low: f64,
    high: f64,
}

/// Returns the gain of a scheduler; None if it is too small to matter, or comes from too few
/// wake-ups.
fn gain(goal: Goal, base: &Group<'_>, group: &Group<'_>) -> Option<Gain> {
    let change = change(goal, base.runs, group.runs);
    let (mean, low, high) = (change.relative?, change.low?, change.high?);
    let of = |runs: &[Run], metric| Summary::of(&known(&values(runs, metric))).mean;
    let p99 =
        WAKEUP_LATENCY.parts.iter().find(|part| WAKEUP_LATENCY.named(part.name) == goal.metric);
    let few = p99.is_some_and(|p99| {
        of(base.runs, WAKEUPS.name).is_some_and(|found| found < samples(p99) as f64)
    });
    if few || !matters(goal.metric, of(base.runs, goal.metric)?, of(group.runs, goal.metric)?) {
        return None;
    }
    let (low, high) = if goal.sign > 0.0 { (low, high) } else { (-high, -low) };
    Some(Gain { mean: goal.sign * mean, low, high })
}

fn change(goal: Goal, base: &[Run], treated: &[Run]) -> stats::Change {
    change_of(base, treated, &values(base, goal.metric), &values(treated, goal.metric))
}

/// Returns the scheduler that gains most by a goal, among those that gain beyond noise.
fn winner<'a>(
    goal: Goal,
    base: &Group<'_>,
    fit: &[&'a Group<'a>],
) -> Option<(&'a Group<'a>, Gain)> {
    let gains = fit.iter().filter_map(|group| Some((*group, gain(goal, base, group)?)));
    let sure = gains.filter(|(_, gain)| gain.low > 0.0);
    sure.max_by(|a, b| a.1.mean.total_cmp(&b.1.mean))
}

/// Returns the gain of a scheduler that is worse by a goal beyond noise.
fn cost(goal: Goal, base: &Group<'_>, group: &Group<'_>) -> Option<f64> {
    gain(goal, base, group).filter(|gain| gain.high < 0.0).map(|gain| gain.mean)
}

/// Tells how a scheduler stands by a goal.
fn beside(goal: Goal, base: &Group<'_>, group: &Group<'_>) -> Option<String> {
    if known(&values(group.runs, goal.metric)).is_empty() {
        return None;
    }
    let change = change(goal, base.runs, group.runs);
    let how = match change.verdict {
        stats::Verdict::Equal => "equal".to_owned(),
        stats::Verdict::Different => match change.relative {
            Some(by) => format!("{}, beyond noise", percent(by)),
            None => "different beyond noise".to_owned(),
        },
        stats::Verdict::Noise => format!("{}, which may be noise", percent(change.relative?)),
        stats::Verdict::Unknown | stats::Verdict::NoRuns => {
            format!("{}, from too few runs to judge", percent(change.relative?))
        }
    };
    Some(format!("{}: {} {how}.", group.name, goal.words))
}

/// Tells what went wrong in the runs of a group.
fn bad(group: &Group<'_>) -> Option<String> {
    let count = |is: fn(&Run) -> bool| group.runs.iter().filter(|run| is(run)).count();
    let of = group.runs.len();
    let (ejected, cut) = (count(Run::was_ejected), count(|run| !run.stop.is_regular()));
    let starved = count(|run| !run.never_ran.is_empty());
    let beyond = count(|run| !run.keeps_quotas());
    let what = [
        (ejected, "ejected"),
        (cut, "cut off"),
        (starved, "with a task that never or hardly ever ran"),
        (beyond, "with more CPU time than cpu.max allows"),
    ];
    let what = what.into_iter().filter(|(runs, _)| *runs > 0);
    let what: Vec<String> = what.map(|(runs, what)| format!("{runs} of {of} {what}")).collect();
    (!what.is_empty()).then(|| format!("{} is out: {}.", group.name, what.join(", ")))
}

fn count(schedulers: usize) -> String {
    match schedulers {
        1 => "one scheduler was".to_owned(),
        n => format!("the best of {n} schedulers that were"),
    }
}

fn amount(goal: Goal, gain: f64) -> String {
    let direction = if (goal.sign > 0.0) == (gain > 0.0) { "higher" } else { "lower" };
    format!("{:.1} % {direction}", gain.abs() * 100.0)
}

fn percent(change: f64) -> String {
    format!("{:+.1} %", change * 100.0)
}

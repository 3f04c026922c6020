// SPDX-License-Identifier: GPL-2.0-only
//! What tasks do between their anchors.
//!
//! Owns: the anchors of each task, and the usual sequence between two of them.

use std::collections::{BTreeMap, BTreeSet};

use scxlab_machine::Nanos;
use scxlab_workload::program::Op;

use crate::history::{Origin, TaskIndex};
use crate::infer::task::{Act, Item, Semaphore};
use crate::infer::{Plan, futexes, roles};

/// A post or a wait as the tasks of a role share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Token {
    Post(Target),
    Wait(Target),
    Lock(u64),
    Unlock(u64),
}

/// A semaphore from the view of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    Own,
    Parent,
    This(Semaphore),
}

/// The acts between two anchors.
#[derive(Clone, Debug, Default)]
pub struct Gap {
    pub tokens: Vec<Token>,
    /// Work before each token, since the token or anchor before it.
    pub before: Vec<Nanos>,
    /// Indices of the items from the first anchor's successor to the second anchor.
    pub from: usize,
    pub to: usize,
    /// Whether the end of the recording cut the gap off.
    pub is_cut: bool,
}

/// The tasks that are alike, and the acts on both sides of a gap.
pub type Anchors = (Alike, String, String);

/// What was seen between two anchors, with the work before each token each time.
pub type Cases = BTreeMap<Vec<Token>, Vec<Vec<Nanos>>>;

/// What tasks do between two anchors, and the work before each token.
pub type Usual = (Vec<Token>, Vec<Nanos>);

/// Tasks that show the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Alike {
    /// A task that lived until the end shows by itself what it does.
    Task(TaskIndex),
    /// Tasks that ended, by their role.
    Role(u32),
}

pub fn alike(plan: &Plan<'_>, task: TaskIndex) -> Alike {
    match plan.history.tasks[task as usize].ended {
        Some(_) => Alike::Role(plan.roles[task as usize]),
        None => Alike::Task(task),
    }
}

/// Returns what was seen between anchors.
pub fn cases(
    plan: &Plan<'_>,
    items: &BTreeMap<TaskIndex, Vec<Item>>,
    frequent: &BTreeMap<Alike, Token>,
) -> BTreeMap<Anchors, Cases> {
    let mut seen: BTreeMap<Anchors, Cases> = BTreeMap::new();
    for (&task, items) in items {
        let gaps = gaps(plan, task, items, frequent.get(&alike(plan, task)));
        for (anchors, gap) in gaps.into_iter().filter(|(_, gap)| !gap.is_cut) {
            seen.entry(anchors).or_default().entry(gap.tokens).or_default().push(gap.before);
        }
    }
    seen
}

/// Returns the anchors of one kind between which the usual sequence is another one several times.
/// It may be as it seems, or anchors that no call shows may lie between.
pub fn repeated(seen: BTreeMap<Anchors, Cases>) -> BTreeSet<Anchors> {
    let alike = seen.into_iter().filter(|((_, from, to), _)| from == to);
    let repeated = alike.filter(|(_, cases)| {
        let usual = longest(cases, false);
        usual.is_some_and(|(tokens, _)| is_repeated(cases, &tokens, frequent_from(cases)))
    });
    repeated.map(|(anchors, _)| anchors).collect()
}

/// Returns the only sequence of these tasks after an anchor.
pub fn after<'a>(usual: &'a BTreeMap<Anchors, Usual>, anchors: &Anchors) -> Option<&'a Usual> {
    let same = |(of, _): &(&Anchors, &Usual)| (&of.0, &of.1) == (&anchors.0, &anchors.1);
    let mut all = usual.iter().filter(same).map(|(_, usual)| usual);
    let first = all.next()?;
    all.all(|other| other.0 == first.0).then_some(first)
}

/// Returns the only sequence of these tasks of which `tokens` is a part.
pub fn elsewhere<'a>(
    usual: &'a BTreeMap<Anchors, Usual>,
    tasks: &Alike,
    tokens: &[Token],
) -> Option<&'a Usual> {
    let own = usual.iter().filter(|((of, ..), _)| of == tasks).map(|(_, usual)| usual);
    let mut fitting = own.filter(|(whole, _)| missing(tokens, whole).is_some());
    let first = fitting.next().filter(|_| !tokens.is_empty())?;
    fitting.all(|(whole, _)| *whole == first.0).then_some(first)
}

/// Number of posts and waits without another act between from which these acts are a long run.
pub const RUN: usize = 20;

/// The posts and waits of tasks that are alike.
#[derive(Default)]
struct Counts {
    tokens: BTreeMap<Token, usize>,
    /// Number of those in long runs.
    in_runs: usize,
    others: usize,
}

/// Returns the most frequent post or wait of the tasks that have hardly any other acts, or that do
/// most of their posts and waits in long runs.
pub fn most_frequent(
    plan: &Plan<'_>,
    items: &BTreeMap<TaskIndex, Vec<Item>>,
) -> BTreeMap<Alike, Token> {
    let mut all: BTreeMap<Alike, Counts> = BTreeMap::new();
    for (&task, items) in items {
        let counts = all.entry(alike(plan, task)).or_default();
        let mut run = 0;
        for item in items {
            match (token(plan, task, &item.act), &item.act) {
                (Some(token), _) => {
                    *counts.tokens.entry(token).or_default() += 1;
                    run += 1;
                    counts.in_runs += match run {
                        RUN => RUN,
                        _ => usize::from(run > RUN),
                    };
                }
                (None, Act::Op(_)) => (counts.others, run) = (counts.others + 1, 0),
                _ => {}
            }
        }
    }
    let most = |(role, counts): (Alike, Counts)| {
        let Counts { tokens, in_runs, others } = counts;
        let total: usize = tokens.values().sum();
        let (token, count) = tokens.into_iter().max_by_key(|(_, count)| *count)?;
        (others * RUN < count || in_runs * 2 > total).then_some((role, token))
    };
    all.into_iter().filter_map(most).collect()
}

pub fn token(plan: &Plan<'_>, task: TaskIndex, act: &Act) -> Option<Token> {
    let target = |semaphore: Semaphore| match semaphore {
        Semaphore::Of(owner) if owner == task => Target::Own,
        Semaphore::Of(owner) if plan.history.tasks[task as usize].origin == Origin::Fork(owner) => {
            Target::Parent
        }
        other => Target::This(other),
    };
    match act {
        // The recording shows each end of a child, so that none must be inferred.
        Act::Post(Semaphore::Exits(_)) | Act::Wait(Semaphore::Exits(_)) => None,
        Act::Post(semaphore) => Some(Token::Post(target(*semaphore))),
        Act::Wait(semaphore) => Some(Token::Wait(target(*semaphore))),
        Act::Lock(mutex) => Some(Token::Lock(*mutex)),
        Act::Unlock(mutex) => Some(Token::Unlock(*mutex)),
        _ => None,
    }
}

/// Returns the semaphore of a token of this task.
pub fn semaphore(plan: &Plan<'_>, task: TaskIndex, token: Token) -> Option<Semaphore> {
    let (Token::Post(target) | Token::Wait(target)) = token else { return None };
    match (target, plan.history.tasks[task as usize].origin) {
        (Target::Own, _) => Some(Semaphore::Of(task)),
        (Target::Parent, Origin::Fork(parent)) => Some(Semaphore::Of(parent)),
        (Target::Parent, _) => None,
        (Target::This(semaphore), _) => Some(semaphore),
    }
}

/// Splits the acts of a task at its anchors.
pub fn gaps(
    plan: &Plan<'_>,
    task: TaskIndex,
    items: &[Item],
    frequent: Option<&Token>,
) -> Vec<(Anchors, Gap)> {
    let role = alike(plan, task);
    let mut gaps = Vec::new();
    // A virtual CPU waits for any interrupt, and its guest's threads take turns on it.
    if plan.history.tasks[task as usize].is_vcpu {
        return gaps;
    }
    let anchor_of = |item: &Item| match (&item.act, token(plan, task, &item.act)) {
        (Act::Op(op), _) => Some(label(op)),
        (_, Some(token)) if Some(&token) == frequent => Some(format!("{token:?}")),
        _ => None,
    };
    // A task that lived until the end begins again after its last act, so that its first act
    // follows its last one.
    let ends = plan.history.tasks[task as usize].ended.is_some();
    let before = items.iter().rev().find_map(anchor_of).filter(|_| !ends);
    let mut last = before.unwrap_or_else(|| "begin".to_owned());
    let (mut gap, mut work) = (Gap::default(), 0);
    for (i, item) in items.iter().enumerate() {
        let Some(anchor) = anchor_of(item) else {
            match (&item.act, token(plan, task, &item.act)) {
                (_, Some(token)) => {
                    gap.tokens.push(token);
                    gap.before.push(std::mem::take(&mut work));
                }
                (Act::Work(ns), _) => work += ns,
                _ => {}
            }
            continue;
        };
        gap.to = i;
        let from = Gap { from: i + 1, ..Gap::default() };
        let anchors = (role, std::mem::replace(&mut last, anchor.clone()), anchor);
        gaps.push((anchors, std::mem::replace(&mut gap, from)));
        work = 0;
    }
    gap.to = items.len();
    gap.is_cut = !ends;
    gaps.push(((role, last, "end".to_owned()), gap));
    gaps
}

/// Returns the kind of an op, with its role if it names a thread.
pub fn label(op: &Op) -> String {
    match op {
        Op::Fork(name) => format!("fork {}", roles::name(name)),
        Op::Barrier(name) => format!("{} {name}", op.name()),
        _ => op.name().to_owned(),
    }
}

/// Returns the longest frequent sequence, and the usual work before each of its tokens. With
/// `single`, it is none that is another one several times.
pub fn longest(cases: &Cases, single: bool) -> Option<Usual> {
    let least = frequent_from(cases);
    let frequent = cases.iter().filter(|(_, seen)| seen.len() >= least);
    let fitting = frequent.filter(|(tokens, _)| !single || !is_repeated(cases, tokens, least));
    let (tokens, seen) = fitting.max_by_key(|(tokens, seen)| (tokens.len(), seen.len()))?;
    let before = |at: usize| futexes::median(seen.iter().map(|b| b[at]).collect());
    let before: Option<Vec<Nanos>> = (0..tokens.len()).map(before).collect();
    let usual = (tokens.clone(), before?);
    (!tokens.is_empty()).then_some(usual)
}

/// Returns how often a frequent sequence is seen at least.
fn frequent_from(cases: &Cases) -> usize {
    cases.values().map(Vec::len).sum::<usize>().div_ceil(20).max(2)
}

/// Whether a sequence is another frequent one several times.
fn is_repeated(cases: &Cases, tokens: &[Token], least: usize) -> bool {
    let times = |part: &usize| tokens.len().is_multiple_of(*part);
    (1..tokens.len()).filter(times).any(|part| {
        let is_seen = cases.get(&tokens[..part]).is_some_and(|seen| seen.len() >= least);
        is_seen && tokens.chunks(part).all(|chunk| *chunk == tokens[..part])
    })
}

/// Returns the indices in `whole` that `part` lacks; None if `part` is no part of `whole`, or
/// equals it.
pub fn missing(part: &[Token], whole: &[Token]) -> Option<Vec<usize>> {
    let mut left = part.iter().peekable();
    let lacks = |(i, token): (usize, &Token)| match left.next_if(|next| *next == token) {
        Some(_) => None,
        None => Some(i),
    };
    let missing: Vec<usize> = whole.iter().enumerate().filter_map(lacks).collect();
    let ok = left.peek().is_none() && !missing.is_empty();
    ok.then_some(missing)
}

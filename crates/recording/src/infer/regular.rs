// SPDX-License-Identifier: GPL-2.0-only
//! Posts, waits, and uses of mutexes that no system call shows, because the semaphore was above 0,
//! the mutex was free, or nobody waited.
//!
//! Owns: the rule that tasks are regular. Between the same two acts (its anchors), a task does the
//! same posts, waits and uses of mutexes. The longest sequence that was seen between two anchors,
//! in at least a twentieth of the cases, is what the task does there; a case with a part of the
//! sequence is completed. Between anchors that are rare, such as those of a task's begin, a task
//! does what it does elsewhere, if only one such sequence has what was seen as a part. Tasks that
//! ended during the recording are judged together with those of their role.
//!
//! The posts of a pass must equal its waits. Surplus inferred ones are taken back, and a semaphore
//! starts at the value that the recorded order needs.

use std::collections::BTreeMap;

use scxlab_machine::Nanos;
use scxlab_workload::program::{Op, SemaphoreDef};

use super::Plan;
use super::task::{Act, Item, Semaphore};
use crate::history::{Origin, TaskIndex};

/// A post or a wait as the tasks of a role share it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Token {
    Post(Target),
    Wait(Target),
    Lock(u64),
    Unlock(u64),
}

/// A semaphore from the view of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Target {
    Own,
    Parent,
    This(Semaphore),
}

/// The acts between two anchors.
#[derive(Clone, Debug, Default)]
struct Gap {
    tokens: Vec<Token>,
    /// Work before each token, since the token or anchor before it.
    before: Vec<Nanos>,
    /// Indices of the items from the first anchor's successor to the second anchor.
    from: usize,
    to: usize,
}

/// The tasks that are alike, and the acts on both sides of a gap.
type Anchors = (Alike, String, String);

/// What tasks do between two anchors, and the work before each token.
type Usual = (Vec<Token>, Vec<Nanos>);

/// Tasks that show the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Alike {
    /// A task that lived until the end shows by itself what it does.
    Task(TaskIndex),
    /// Tasks that ended, by their role.
    Role(u32),
}

fn alike(plan: &Plan<'_>, task: TaskIndex) -> Alike {
    match plan.history.tasks[task as usize].ended {
        Some(_) => Alike::Role(plan.roles[task as usize]),
        None => Alike::Task(task),
    }
}

/// Completes the posts and waits of all tasks. Returns the semaphores that do not start at 0.
pub fn complete(plan: &Plan<'_>, items: &mut BTreeMap<TaskIndex, Vec<Item>>) -> Vec<SemaphoreDef> {
    let frequent = most_frequent(plan, items);
    let gaps = |task: TaskIndex, items: &[Item]| -> Vec<(Anchors, Gap)> {
        gaps(plan, task, items, frequent.get(&alike(plan, task)))
    };
    let mut seen: BTreeMap<Anchors, BTreeMap<Vec<Token>, Vec<Vec<Nanos>>>> = BTreeMap::new();
    for (&task, items) in items.iter() {
        for (anchors, gap) in gaps(task, items) {
            seen.entry(anchors).or_default().entry(gap.tokens).or_default().push(gap.before);
        }
    }
    let usual: BTreeMap<Anchors, Usual> =
        seen.into_iter().filter_map(|(anchors, cases)| Some((anchors, longest(cases)?))).collect();
    let mut inferred: BTreeMap<Semaphore, Vec<Inferred>> = BTreeMap::new();
    for (&task, list) in items.iter_mut() {
        let found = gaps(task, list);
        for (anchors, mut gap) in found.into_iter().rev() {
            let known = usual.get(&anchors).or_else(|| elsewhere(&usual, &anchors.0, &gap.tokens));
            let Some((tokens, before)) = known else { continue };
            for at in missing(&gap.tokens, tokens).unwrap_or_default() {
                let new = (at, tokens[at], before[at]);
                insert(plan, task, list, &mut gap, new, &mut inferred);
            }
        }
    }
    balance(plan, items, &inferred)
}

/// Returns the only sequence of these tasks of which `tokens` is a part.
fn elsewhere<'a>(
    usual: &'a BTreeMap<Anchors, Usual>,
    tasks: &Alike,
    tokens: &[Token],
) -> Option<&'a Usual> {
    let own = usual.iter().filter(|((of, ..), _)| of == tasks).map(|(_, usual)| usual);
    let mut fitting = own.filter(|(whole, _)| missing(tokens, whole).is_some());
    let first = fitting.next().filter(|_| !tokens.is_empty())?;
    fitting.all(|(whole, _)| *whole == first.0).then_some(first)
}

/// An inferred post or wait.
struct Inferred {
    task: TaskIndex,
    at: Nanos,
    is_post: bool,
}

/// Returns the most frequent post or wait of the tasks that have hardly any other acts.
fn most_frequent(
    plan: &Plan<'_>,
    items: &BTreeMap<TaskIndex, Vec<Item>>,
) -> BTreeMap<Alike, Token> {
    let mut counts: BTreeMap<Alike, BTreeMap<Token, usize>> = BTreeMap::new();
    let mut others: BTreeMap<Alike, usize> = BTreeMap::new();
    for (&task, items) in items {
        let role = alike(plan, task);
        for item in items {
            match (token(plan, task, &item.act), &item.act) {
                (Some(token), _) => {
                    *counts.entry(role).or_default().entry(token).or_default() += 1;
                }
                (None, Act::Op(_)) => *others.entry(role).or_default() += 1,
                _ => {}
            }
        }
    }
    let most = |(role, counts): (Alike, BTreeMap<Token, usize>)| {
        let (token, count) = counts.into_iter().max_by_key(|(_, count)| *count)?;
        let others = others.get(&role).copied().unwrap_or(0);
        (others * 20 < count).then_some((role, token))
    };
    counts.into_iter().filter_map(most).collect()
}

fn token(plan: &Plan<'_>, task: TaskIndex, act: &Act) -> Option<Token> {
    let target = |semaphore: Semaphore| match semaphore {
        Semaphore::Of(owner) if owner == task => Target::Own,
        Semaphore::Of(owner) if plan.history.tasks[task as usize].origin == Origin::Fork(owner) => {
            Target::Parent
        }
        other => Target::This(other),
    };
    match act {
        Act::Post(semaphore) => Some(Token::Post(target(*semaphore))),
        Act::Wait(semaphore) => Some(Token::Wait(target(*semaphore))),
        Act::Lock(mutex) => Some(Token::Lock(*mutex)),
        Act::Unlock(mutex) => Some(Token::Unlock(*mutex)),
        _ => None,
    }
}

/// Returns the semaphore of a token of this task.
fn semaphore(plan: &Plan<'_>, task: TaskIndex, token: Token) -> Option<Semaphore> {
    let (Token::Post(target) | Token::Wait(target)) = token else { return None };
    match (target, plan.history.tasks[task as usize].origin) {
        (Target::Own, _) => Some(Semaphore::Of(task)),
        (Target::Parent, Origin::Fork(parent)) => Some(Semaphore::Of(parent)),
        (Target::Parent, _) => None,
        (Target::This(semaphore), _) => Some(semaphore),
    }
}

/// Splits the acts of a task at its anchors.
fn gaps(
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
    if ends {
        gap.to = items.len();
        gaps.push(((role, last, "end".to_owned()), gap));
    }
    gaps
}

/// Returns the kind of an op, with its role if it names a thread.
pub fn label(op: &Op) -> String {
    match op {
        Op::Fork(name) => format!("fork {}", super::roles::name(name)),
        Op::Barrier(name) => format!("{} {name}", op.name()),
        _ => op.name().to_owned(),
    }
}

/// Returns the longest frequent sequence, and the usual work before each of its tokens.
fn longest(cases: BTreeMap<Vec<Token>, Vec<Vec<Nanos>>>) -> Option<Usual> {
    let total: usize = cases.values().map(Vec::len).sum();
    let frequent = cases.into_iter().filter(|(_, seen)| seen.len() > 1 && seen.len() * 20 >= total);
    let (tokens, seen) = frequent.max_by_key(|(tokens, seen)| (tokens.len(), seen.len()))?;
    let before = |at: usize| super::futexes::median(seen.iter().map(|b| b[at]).collect());
    let before: Option<Vec<Nanos>> = (0..tokens.len()).map(before).collect();
    let before = before?;
    (!tokens.is_empty()).then_some((tokens, before))
}

/// Returns the indices in `whole` that `part` lacks; None if `part` is no part of `whole`, or
/// equals it.
fn missing(part: &[Token], whole: &[Token]) -> Option<Vec<usize>> {
    let mut left = part.iter().peekable();
    let lacks = |(i, token): (usize, &Token)| match left.next_if(|next| *next == token) {
        Some(_) => None,
        None => Some(i),
    };
    let missing: Vec<usize> = whole.iter().enumerate().filter_map(lacks).collect();
    let ok = left.peek().is_none() && !missing.is_empty();
    ok.then_some(missing)
}

/// Inserts a token into a gap: its index among the gap's tokens, the token, and the work before it.
fn insert(
    plan: &Plan<'_>,
    task: TaskIndex,
    items: &mut Vec<Item>,
    gap: &mut Gap,
    (index, token, before): (usize, Token, Nanos),
    inferred: &mut BTreeMap<Semaphore, Vec<Inferred>>,
) {
    let semaphore = semaphore(plan, task, token);
    let (is_post, act) = match (token, semaphore) {
        (Token::Lock(mutex), _) => (false, Act::Lock(mutex)),
        (Token::Unlock(mutex), _) => (true, Act::Unlock(mutex)),
        (Token::Post(_), Some(semaphore)) => (true, Act::Post(semaphore)),
        (Token::Wait(_), Some(semaphore)) => (false, Act::Wait(semaphore)),
        (Token::Post(_) | Token::Wait(_), None) => return,
    };
    let begin = gap.from.checked_sub(1).map_or(plan.history.start, |i| items[i].at);
    let end = items.get(gap.to).map_or(plan.history.end, |item| item.at);
    let at = if is_post { begin } else { end };
    let place = place_in(items, gap, index, before);
    items.insert(place, Item { at, act, with: None, copy: 0 });
    gap.to += 1;
    if let Some(semaphore) = semaphore {
        inferred.entry(semaphore).or_default().push(Inferred { task, at, is_post });
    }
}

/// Returns the place in a gap after `index` tokens and then this much work. Splits the work there.
fn place_in(items: &mut Vec<Item>, gap: &mut Gap, index: usize, before: Nanos) -> usize {
    let (mut passed, mut work, mut place) = (0, 0, gap.from);
    while place < gap.to {
        match &mut items[place].act {
            Act::Work(_) if passed == index && work >= before => break,
            Act::Work(ns) if passed == index && work + *ns > before => {
                let rest = Act::Work(work + *ns - before);
                *ns = before - work;
                let at = items[place].at;
                items.insert(place + 1, Item { at, act: rest, with: None, copy: 0 });
                gap.to += 1;
                return place + 1;
            }
            Act::Work(ns) => work += *ns,
            _ if passed == index => break,
            _ => (passed, work) = (passed + 1, 0),
        }
        place += 1;
    }
    place
}

/// Takes back surplus inferred tokens, and returns the semaphores that start above 0.
fn balance(
    plan: &Plan<'_>,
    items: &mut BTreeMap<TaskIndex, Vec<Item>>,
    inferred: &BTreeMap<Semaphore, Vec<Inferred>>,
) -> Vec<SemaphoreDef> {
    let mut defs = Vec::new();
    for (&semaphore, added) in inferred {
        let changes = |items: &BTreeMap<TaskIndex, Vec<Item>>| -> Vec<(Nanos, i64)> {
            let mut changes: Vec<(Nanos, i64)> = items
                .values()
                .flatten()
                .filter_map(|item| match item.act {
                    Act::Post(s) if s == semaphore => Some((item.at, 1)),
                    Act::Wait(s) if s == semaphore => Some((item.at, -1)),
                    _ => None,
                })
                .collect();
            changes.sort_by_key(|(at, change)| (*at, -change));
            changes
        };
        let surplus: i64 = changes(items).iter().map(|c| c.1).sum();
        let posts = surplus > 0;
        let mut spare: Vec<&Inferred> = added.iter().filter(|i| i.is_post == posts).collect();
        spare.sort_by_key(|i| i.at);
        // Surplus posts are those of the end, surplus waits those of the begin.
        if posts {
            spare.reverse();
        }
        for gone in spare.into_iter().take(surplus.unsigned_abs() as usize) {
            remove(items, gone, semaphore);
        }
        let mut level = 0i64;
        let lowest = changes(items).into_iter().fold(0, |lowest: i64, (_, change)| {
            level += change;
            lowest.min(level)
        });
        if lowest < 0 {
            let value = u32::try_from(-lowest).unwrap_or(u32::MAX);
            defs.push(SemaphoreDef { name: plan.semaphore_name(semaphore), value });
        }
    }
    defs
}

fn remove(items: &mut BTreeMap<TaskIndex, Vec<Item>>, gone: &Inferred, semaphore: Semaphore) {
    let act = if gone.is_post { Act::Post(semaphore) } else { Act::Wait(semaphore) };
    let Some(list) = items.get_mut(&gone.task) else { return };
    let same = |item: &Item| item.at == gone.at && item.act == act && item.with.is_none();
    if let Some(at) = list.iter().position(same) {
        list.remove(at);
    }
}

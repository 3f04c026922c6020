// SPDX-License-Identifier: GPL-2.0-only
//! Posts, waits, and uses of mutexes that no system call shows, because the semaphore was above 0,
//! the mutex was free, or nobody waited.
//!
//! Owns: the rule that tasks are regular. Between the same two acts (its anchors), a task does the
//! same posts, waits and uses of mutexes. The longest sequence that was seen between two anchors,
//! in at least a twentieth of the cases, is what the task does there; a case with a part of the
//! sequence is completed. Between anchors that are rare, such as those of a task's begin, a task
//! does what it does elsewhere, if only one such sequence has what was seen as a part. After the
//! last anchor, the sequence is completed up to what was seen last. Tasks that ended during the
//! recording are judged together with those of their role.
//!
//! An anchor that no call shows leaves no gap. If a task is the only one that posts to a semaphore,
//! and these posts are its anchors, then each inferred wait for which there is no post shows one.
//!
//! The posts of a pass must equal its waits. Surplus inferred ones are taken back, and a semaphore
//! starts at the value that the recorded order needs.

use std::collections::{BTreeMap, BTreeSet};

use scxlab_machine::Nanos;
use scxlab_workload::program::{Op, SemaphoreDef};

use super::Plan;
use super::task::{Act, Item, Semaphore};
use crate::history::{Origin, TaskIndex};

/// Most rounds in which added posts show further posts and waits.
const ROUNDS: u32 = 4;

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
    /// Whether the end of the recording cut the gap off.
    is_cut: bool,
}

/// The items of a gap, and the times of the anchors on both sides.
struct Part {
    items: Vec<Item>,
    begin: Nanos,
    end: Nanos,
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
    let mut inferred: BTreeSet<Semaphore> = BTreeSet::new();
    for _ in 0..ROUNDS {
        fill(plan, items, &frequent, &mut inferred);
        if !give(plan, items, &frequent, &inferred) {
            break;
        }
    }
    balance(plan, items, &inferred)
}

/// Completes the gaps of all tasks.
fn fill(
    plan: &Plan<'_>,
    items: &mut BTreeMap<TaskIndex, Vec<Item>>,
    frequent: &BTreeMap<Alike, Token>,
    inferred: &mut BTreeSet<Semaphore>,
) {
    let gaps = |task: TaskIndex, items: &[Item]| -> Vec<(Anchors, Gap)> {
        gaps(plan, task, items, frequent.get(&alike(plan, task)))
    };
    let mut seen: BTreeMap<Anchors, BTreeMap<Vec<Token>, Vec<Vec<Nanos>>>> = BTreeMap::new();
    for (&task, items) in items.iter() {
        for (anchors, gap) in gaps(task, items).into_iter().filter(|(_, gap)| !gap.is_cut) {
            seen.entry(anchors).or_default().entry(gap.tokens).or_default().push(gap.before);
        }
    }
    let usual: BTreeMap<Anchors, Usual> =
        seen.into_iter().filter_map(|(anchors, cases)| Some((anchors, longest(cases)?))).collect();
    for (&task, list) in items.iter_mut() {
        let found = gaps(task, list);
        let mut old = std::mem::take(list).into_iter();
        for (anchors, mut gap) in found {
            let own: Vec<Item> = old.by_ref().take(gap.to - gap.from).collect();
            let after = old.next();
            let begin = list.last().map_or(plan.history.start, |item| item.at);
            let end = after.as_ref().map_or(plan.history.end, |item| item.at);
            let mut part = Part { items: own, begin, end };
            let known = match gap.is_cut {
                true => self::after(&usual, &anchors),
                false => usual.get(&anchors).or_else(|| elsewhere(&usual, &anchors.0, &gap.tokens)),
            };
            (gap.from, gap.to) = (0, part.items.len());
            if let Some((tokens, before)) = known {
                let mut missing = missing(&gap.tokens, tokens).unwrap_or_default();
                if gap.is_cut {
                    let last = (0..tokens.len()).rev().find(|at| !missing.contains(at));
                    missing.retain(|at| last.is_some_and(|last| *at < last));
                }
                for at in missing {
                    let new = (at, tokens[at], before[at]);
                    insert(plan, task, &mut part, &mut gap, new, inferred);
                }
            }
            list.extend(part.items);
            list.extend(after);
        }
        list.extend(old);
    }
}

/// Returns the only sequence of these tasks after an anchor.
fn after<'a>(usual: &'a BTreeMap<Anchors, Usual>, anchors: &Anchors) -> Option<&'a Usual> {
    let same = |(of, _): &(&Anchors, &Usual)| (&of.0, &of.1) == (&anchors.0, &anchors.1);
    let mut all = usual.iter().filter(same).map(|(_, usual)| usual);
    let first = all.next()?;
    all.all(|other| other.0 == first.0).then_some(first)
}

/// Adds the posts that inferred waits need and that no gap shows, because the post is itself the
/// anchor of the only task that posts. Returns whether it added some.
fn give(
    plan: &Plan<'_>,
    items: &mut BTreeMap<TaskIndex, Vec<Item>>,
    frequent: &BTreeMap<Alike, Token>,
    inferred: &BTreeSet<Semaphore>,
) -> bool {
    let mut gave = false;
    for (semaphore, changes) in changes(items, inferred) {
        let posters: BTreeSet<TaskIndex> =
            changes.iter().filter(|change| change.is_post).map(|change| change.task).collect();
        let (Some(&poster), 1) = (posters.first(), posters.len()) else { continue };
        let anchor = frequent.get(&alike(plan, poster));
        if anchor != token(plan, poster, &Act::Post(semaphore)).as_ref() {
            continue;
        }
        let (lacks, waits) = unpaired(changes);
        let Some(list) = items.get_mut(&poster).filter(|_| lacks < 0) else { continue };
        let times = waits.iter().map(|wait| wait.at).collect();
        let places = places(list, semaphore, times);
        gave |= !places.is_empty();
        let mut old = std::mem::take(list).into_iter();
        for (passed, (place, at)) in places.into_iter().enumerate() {
            list.extend(old.by_ref().take(place + passed - list.len()));
            list.push(Item { at, act: Act::Post(semaphore), with: None, copy: 0 });
        }
        list.extend(old);
    }
    gave
}

/// Returns the places in a poster's acts at which it gave what these waits took, in order: where it
/// waits twice on one semaphore without a post between, and otherwise at the times of the waits.
fn places(list: &[Item], semaphore: Semaphore, waits: Vec<Nanos>) -> Vec<(usize, Nanos)> {
    let (mut places, mut others) = (Vec::new(), Vec::new());
    let mut waits = waits.into_iter().peekable();
    let (mut waited, mut last) = (BTreeSet::new(), 0);
    for (i, item) in list.iter().enumerate() {
        match item.act {
            Act::Post(of) if of == semaphore => waited.clear(),
            Act::Wait(of) if !waited.insert(of) => {
                others.extend(std::iter::from_fn(|| waits.next_if(|at| *at < last)));
                places.extend(waits.next().map(|_| (i, last)));
                waited = BTreeSet::from([of]);
            }
            _ => {}
        }
        last = item.at;
    }
    others.extend(waits);
    places.extend(others.into_iter().map(|at| (list.partition_point(|item| item.at <= at), at)));
    places.sort_unstable();
    places
}

/// Returns the posts and waits of these semaphores in order.
fn changes(
    items: &BTreeMap<TaskIndex, Vec<Item>>,
    semaphores: &BTreeSet<Semaphore>,
) -> BTreeMap<Semaphore, Vec<Change>> {
    let mut all: BTreeMap<Semaphore, Vec<Change>> = BTreeMap::new();
    for (&task, items) in items {
        for item in items {
            let (semaphore, is_post) = match item.act {
                Act::Post(semaphore) => (semaphore, true),
                Act::Wait(semaphore) => (semaphore, false),
                _ => continue,
            };
            if semaphores.contains(&semaphore) {
                let is_inferred = item.with.is_none();
                let change = Change { at: item.at, task, is_post, is_inferred };
                all.entry(semaphore).or_default().push(change);
            }
        }
    }
    all.values_mut().for_each(|of| of.sort_by_key(|change| (change.at, !change.is_post)));
    all
}

/// Returns by how many the posts of a semaphore outnumber its waits, and so many inferred ones of
/// the surplus kind: waits for which no post had come, or posts for which no wait came. What the
/// semaphore starts or ends with can be the reason for the first and last ones of these.
fn unpaired(mut changes: Vec<Change>) -> (i64, Vec<Change>) {
    let surplus: i64 = changes.iter().map(Change::sign).sum();
    let posts = surplus > 0;
    if posts {
        changes.reverse();
    }
    let (mut open, mut most) = (0, 0);
    changes.retain(|change| {
        open += if change.is_post == posts { 1 } else { -1 };
        let is_unpaired = open > most;
        most = most.max(open);
        is_unpaired && change.is_inferred
    });
    let count = usize::try_from(surplus.unsigned_abs()).unwrap_or(usize::MAX);
    changes.drain(..changes.len().saturating_sub(count));
    (surplus, changes)
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

/// A post or a wait.
struct Change {
    at: Nanos,
    task: TaskIndex,
    is_post: bool,
    is_inferred: bool,
}

impl Change {
    /// The change of the semaphore's value.
    fn sign(&self) -> i64 {
        if self.is_post { 1 } else { -1 }
    }
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
    gap.to = items.len();
    gap.is_cut = !ends;
    gaps.push(((role, last, "end".to_owned()), gap));
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
    part: &mut Part,
    gap: &mut Gap,
    (index, token, before): (usize, Token, Nanos),
    inferred: &mut BTreeSet<Semaphore>,
) {
    let semaphore = semaphore(plan, task, token);
    let (is_post, act) = match (token, semaphore) {
        (Token::Lock(mutex), _) => (false, Act::Lock(mutex)),
        (Token::Unlock(mutex), _) => (true, Act::Unlock(mutex)),
        (Token::Post(_), Some(semaphore)) => (true, Act::Post(semaphore)),
        (Token::Wait(_), Some(semaphore)) => (false, Act::Wait(semaphore)),
        (Token::Post(_) | Token::Wait(_), None) => return,
    };
    let at = if is_post { part.begin } else { part.end };
    let place = place_in(&mut part.items, gap, index, before);
    part.items.insert(place, Item { at, act, with: None, copy: 0 });
    gap.to += 1;
    if let Some(semaphore) = semaphore {
        inferred.insert(semaphore);
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
    inferred: &BTreeSet<Semaphore>,
) -> Vec<SemaphoreDef> {
    for (semaphore, changes) in changes(items, inferred) {
        remove(items, &unpaired(changes).1, semaphore);
    }
    let start = |(semaphore, changes): (Semaphore, Vec<Change>)| {
        let mut level = 0i64;
        let lowest = changes.iter().fold(0, |lowest: i64, change| {
            level += change.sign();
            lowest.min(level)
        });
        let value = u32::try_from(-lowest).unwrap_or(u32::MAX);
        (value > 0).then(|| SemaphoreDef { name: plan.semaphore_name(semaphore), value })
    };
    changes(items, inferred).into_iter().filter_map(start).collect()
}

/// Removes these inferred posts or waits of a semaphore.
fn remove(items: &mut BTreeMap<TaskIndex, Vec<Item>>, gone: &[Change], semaphore: Semaphore) {
    let mut times: BTreeMap<TaskIndex, BTreeMap<(Nanos, bool), usize>> = BTreeMap::new();
    for change in gone {
        let of = times.entry(change.task).or_default();
        *of.entry((change.at, change.is_post)).or_default() += 1;
    }
    for (task, mut times) in times {
        let Some(list) = items.get_mut(&task) else { continue };
        list.retain(|item| {
            let is_post = item.act == Act::Post(semaphore);
            let is_of = is_post || item.act == Act::Wait(semaphore);
            match times.get_mut(&(item.at, is_post)).filter(|_| is_of && item.with.is_none()) {
                Some(left) if *left > 0 => {
                    *left -= 1;
                    false
                }
                _ => true,
            }
        });
    }
}

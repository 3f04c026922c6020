// SPDX-License-Identifier: GPL-2.0-only
//! Posts and waits in pairs.
//!
//! Owns: what is added to, moved between and taken back from the acts of all tasks, so that the
//! posts of a pass equal its waits, and come before them.

use std::collections::{BTreeMap, BTreeSet};

use scxlab_machine::Nanos;
use scxlab_workload::program::SemaphoreDef;

use super::gaps::{Alike, Token, alike, token};
use super::rounds::{alternate, answers};
use crate::history::TaskIndex;
use crate::infer::Plan;
use crate::infer::task::{Act, Item, Semaphore};

/// Returns by how much the posts and waits of each of these semaphores differ, in all.
pub fn unequal(
    plan: &Plan<'_>,
    items: &BTreeMap<TaskIndex, Vec<Item>>,
    semaphores: &BTreeSet<Semaphore>,
) -> u64 {
    let of = |changes: Vec<Change>| changes.iter().map(Change::sign).sum::<i64>().unsigned_abs();
    changes(plan, items, semaphores).into_values().map(of).sum()
}

/// Adds the posts that inferred waits need, and the waits for inferred posts, that no gap shows,
/// because they are themselves the anchors of the only task that posts or waits. Returns whether it
/// added some.
pub fn give(
    plan: &Plan<'_>,
    items: &mut BTreeMap<TaskIndex, Vec<Item>>,
    frequent: &BTreeMap<Alike, Token>,
    inferred: &BTreeSet<Semaphore>,
) -> bool {
    let mut gave = false;
    for (semaphore, changes) in changes(plan, items, inferred) {
        let surplus: i64 = changes.iter().map(Change::sign).sum();
        let act = if surplus < 0 { Act::Post(semaphore) } else { Act::Wait(semaphore) };
        let Some(task) = only(&changes, surplus < 0) else { continue };
        if frequent.get(&alike(plan, task)) != token(plan, task, &act).as_ref() {
            continue;
        }
        let Some(list) = items.get_mut(&task) else { continue };
        let mut times: Vec<Nanos> = unpaired(changes).iter().map(|change| change.at).collect();
        times.sort_unstable();
        let places = places(list, &act, times);
        gave |= !places.is_empty();
        insert_at(list, &act, places);
    }
    gave
}

/// Returns the only task that posts, or waits.
fn only(changes: &[Change], posts: bool) -> Option<TaskIndex> {
    let mut tasks = changes.iter().filter(|c| c.is_post == posts).map(|change| change.task);
    let first = tasks.next()?;
    tasks.all(|task| task == first).then_some(first)
}

/// Inserts an act at these places, with their times.
pub fn insert_at(list: &mut Vec<Item>, act: &Act, places: Vec<(usize, Nanos)>) {
    let mut old = std::mem::take(list).into_iter();
    for (passed, (place, at)) in places.into_iter().enumerate() {
        list.extend(old.by_ref().take(place + passed - list.len()));
        list.push(Item { at, act: act.clone(), with: None, copy: 0 });
    }
    list.extend(old);
}

/// Returns the places in a task's acts at which it gave what waits of these times took, or took
/// what posts of these times gave, in order: where it waits, or posts, twice on one semaphore
/// without this act between, and otherwise at the times.
fn places(list: &[Item], act: &Act, times: Vec<Nanos>) -> Vec<(usize, Nanos)> {
    let (mut places, mut others) = (Vec::new(), Vec::new());
    let mut times = times.into_iter().peekable();
    let (mut seen, mut last) = (BTreeSet::new(), 0);
    for (i, item) in list.iter().enumerate() {
        let opposite = match (act, &item.act) {
            (Act::Post(_), Act::Wait(of)) | (Act::Wait(_), Act::Post(of)) => Some(*of),
            _ => None,
        };
        if item.act == *act {
            seen.clear();
        } else if let Some(of) = opposite.filter(|of| !seen.insert(*of)) {
            if matches!(act, Act::Post(_)) {
                others.extend(std::iter::from_fn(|| times.next_if(|at| *at < last)));
                places.extend(times.next().map(|_| (i, last)));
            } else {
                places.extend(times.next_if(|at| *at <= last).map(|_| (i, last)));
            }
            seen = BTreeSet::from([of]);
        }
        last = item.at;
    }
    others.extend(times);
    places.extend(others.into_iter().map(|at| (list.partition_point(|item| item.at <= at), at)));
    places.sort_unstable();
    places
}

/// Returns the posts and waits of these semaphores in order. An inferred post may have been as
/// early, and an inferred wait as late, as the visible acts around it.
fn changes(
    plan: &Plan<'_>,
    items: &BTreeMap<TaskIndex, Vec<Item>>,
    semaphores: &BTreeSet<Semaphore>,
) -> BTreeMap<Semaphore, Vec<Change>> {
    let is_visible = |item: &Item| match item.act {
        Act::Post(_) | Act::Wait(_) => item.with.is_some(),
        ref act => matches!(act, Act::Op(_)),
    };
    let mut all: BTreeMap<Semaphore, Vec<Change>> = BTreeMap::new();
    for (&task, items) in items {
        let mut last = plan.history.start;
        // Inferred waits since the last visible act.
        let mut open: Vec<(Semaphore, usize)> = Vec::new();
        for (index, item) in items.iter().enumerate() {
            if is_visible(item) {
                last = item.at;
                for (semaphore, place) in open.drain(..) {
                    all.entry(semaphore).or_default()[place].at = last;
                }
            }
            let (semaphore, is_post) = match item.act {
                Act::Post(semaphore) => (semaphore, true),
                Act::Wait(semaphore) => (semaphore, false),
                _ => continue,
            };
            if semaphores.contains(&semaphore) {
                let is_inferred = item.with.is_none();
                let of = all.entry(semaphore).or_default();
                if is_inferred && !is_post {
                    open.push((semaphore, of.len()));
                }
                of.push(Change { at: last, task, index, is_post, is_inferred });
            }
        }
        for (semaphore, place) in open {
            all.entry(semaphore).or_default()[place].at = plan.history.end;
        }
    }
    all.values_mut().for_each(|of| of.sort_by_key(|change| (change.at, !change.is_post)));
    all
}

/// Returns inferred posts or waits, as many as these outnumber the others: waits for which no post
/// had come, or posts for which no wait came. What the semaphore starts or ends with can be the
/// reason for the first and last ones of these.
fn unpaired(changes: Vec<Change>) -> Vec<Change> {
    let surplus: i64 = changes.iter().map(Change::sign).sum();
    let mut unpaired = records(changes, surplus > 0);
    unpaired.retain(|change| change.is_inferred);
    let count = usize::try_from(surplus.unsigned_abs()).unwrap_or(usize::MAX);
    unpaired.drain(..unpaired.len().saturating_sub(count));
    unpaired
}

/// Returns the waits for which no post had come, or, from the last to the first, the posts for
/// which no wait came.
fn records(mut changes: Vec<Change>, posts: bool) -> Vec<Change> {
    if posts {
        changes.reverse();
    }
    let (mut open, mut most) = (0, 0);
    changes.retain(|change| {
        open += if change.is_post == posts { 1 } else { -1 };
        let is_unpaired = open > most;
        most = most.max(open);
        is_unpaired
    });
    changes
}

/// A post or a wait.
#[derive(Clone, Copy)]
struct Change {
    at: Nanos,
    task: TaskIndex,
    /// Index among the task's acts.
    index: usize,
    is_post: bool,
    is_inferred: bool,
}

impl Change {
    /// The change of the semaphore's value.
    fn sign(&self) -> i64 {
        if self.is_post { 1 } else { -1 }
    }
}

/// Takes back surplus inferred tokens, and returns the semaphores that start above 0.
pub fn balance(
    plan: &Plan<'_>,
    items: &mut BTreeMap<TaskIndex, Vec<Item>>,
    frequent: &BTreeMap<Alike, Token>,
    inferred: &BTreeSet<Semaphore>,
) -> Starts {
    let mut gone: BTreeMap<TaskIndex, BTreeSet<usize>> = BTreeMap::new();
    for changes in changes(plan, items, inferred).into_values() {
        for change in unpaired(changes) {
            gone.entry(change.task).or_default().insert(change.index);
        }
    }
    for (task, gone) in gone {
        items.entry(task).and_modify(|list| remove(list, &gone));
    }
    bring_forward(plan, items, inferred);
    for (&task, list) in items.iter_mut() {
        if let Some(anchor) = frequent.get(&alike(plan, task)) {
            alternate(plan, task, list, anchor);
        }
    }
    let mut starts = Starts::default();
    for (semaphore, changes) in changes(plan, items, inferred) {
        let mut level = 0i64;
        let lowest = changes.iter().fold(0, |lowest: i64, change| {
            level += change.sign();
            lowest.min(level)
        });
        let value = u32::try_from(-lowest).unwrap_or(u32::MAX);
        if value > 0 {
            let def = SemaphoreDef { name: plan.semaphore_name(semaphore), value };
            let poster = only(&changes, true);
            match poster.is_some_and(|task| answers(plan, items, frequent, task, semaphore)) {
                true => starts.doubtful.push(def),
                false => starts.needed.push(def),
            }
        }
    }
    starts
}

/// Semaphores that start above 0.
#[derive(Default)]
pub struct Starts {
    pub needed: Vec<SemaphoreDef>,
    /// Those of answers, which come after their requests: the inferred times may be wrong.
    pub doubtful: Vec<SemaphoreDef>,
}

/// Removes the acts with these indices.
fn remove(list: &mut Vec<Item>, gone: &BTreeSet<usize>) {
    let mut index = 0..;
    list.retain(|_| index.next().is_none_or(|index| !gone.contains(&index)));
}

/// Moves inferred posts for which no wait came to where a wait found no post, if only one task
/// posts. Otherwise the semaphore would have to start above 0, and would always be ahead.
fn bring_forward(
    plan: &Plan<'_>,
    items: &mut BTreeMap<TaskIndex, Vec<Item>>,
    inferred: &BTreeSet<Semaphore>,
) {
    for (semaphore, changes) in changes(plan, items, inferred) {
        let Some(list) = only(&changes, true).and_then(|task| items.get_mut(&task)) else {
            continue;
        };
        // Each visible wait has its visible post.
        let inferred: Vec<Change> = changes.into_iter().filter(|c| c.is_inferred).collect();
        let waits = records(inferred.clone(), false);
        let posts = records(inferred, true).into_iter().take(waits.len());
        let gone: BTreeSet<usize> = posts.map(|post| post.index).collect();
        let times = waits.iter().take(gone.len()).map(|wait| wait.at).collect();
        remove(list, &gone);
        let act = Act::Post(semaphore);
        let places = places(list, &act, times);
        insert_at(list, &act, places);
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! The posts, waits and uses of mutexes that a gap lacks of the usual sequence.
//!
//! Owns: their places in the gap, and their times.

use std::collections::{BTreeMap, BTreeSet};

use scxlab_machine::Nanos;

use super::gaps::{
    Alike, Anchors, Cases, Gap, Token, Usual, after, alike, cases, elsewhere, gaps, longest,
    missing, semaphore, token,
};
use crate::history::TaskIndex;
use crate::infer::Plan;
use crate::infer::task::{Act, Item, Semaphore};

/// The items of a gap, and the times of the anchors on both sides.
struct Part {
    items: Vec<Item>,
    begin: Nanos,
    end: Nanos,
}

/// Completes the gaps of all tasks.
pub fn fill(
    plan: &Plan<'_>,
    items: &mut BTreeMap<TaskIndex, Vec<Item>>,
    frequent: &BTreeMap<Alike, Token>,
    single: &BTreeSet<Anchors>,
    inferred: &mut BTreeSet<Semaphore>,
) {
    let usual = |(anchors, cases): (Anchors, Cases)| {
        let usual = longest(&cases, single.contains(&anchors))?;
        Some((anchors, usual))
    };
    let usual: BTreeMap<Anchors, Usual> =
        cases(plan, items, frequent).into_iter().filter_map(usual).collect();
    let posters = posters(items);
    for (&task, list) in items.iter_mut() {
        let found = gaps(plan, task, list, frequent.get(&alike(plan, task)));
        let (mut first, mut rest) = match &*found {
            [head, .., tail] if tail.1.is_cut => match turn(&usual, head, tail) {
                Some((first, rest)) if takes_turns(plan, task, &posters, &first, &rest) => {
                    (Some(first), rest)
                }
                _ => {
                    let anchor = list.get(head.1.to).and_then(|item| token(plan, task, &item.act));
                    (None, rest(&usual, head, tail, anchor))
                }
            },
            _ => (None, Vec::new()),
        };
        let mut old = std::mem::take(list).into_iter();
        for (anchors, mut gap) in found {
            let own: Vec<Item> = old.by_ref().take(gap.to - gap.from).collect();
            let after = old.next();
            let begin = list.last().map_or(plan.history.start, |item| item.at);
            let end = after.as_ref().map_or(plan.history.end, |item| item.at);
            let mut part = Part { items: own, begin, end };
            let known =
                || usual.get(&anchors).or_else(|| elsewhere(&usual, &anchors.0, &gap.tokens));
            let new = match (gap.is_cut, first.take()) {
                (true, _) => std::mem::take(&mut rest),
                (false, Some(first)) => first,
                (false, None) => known().map(|usual| lacks(&gap.tokens, usual)).unwrap_or_default(),
            };
            (gap.from, gap.to) = (0, part.items.len());
            for new in new {
                insert(plan, task, &mut part, &mut gap, new, inferred);
            }
            list.extend(part.items);
            list.extend(after);
        }
        list.extend(old);
    }
}

/// A token to insert: its index among the gap's tokens, the token, and the work before it.
type New = (usize, Token, Nanos);

/// Returns what the first gap of a task lacks, and what its last one lacks, if together they are a
/// part of one usual sequence, or all of it: the task begins again after its last act. The last gap
/// gets all that may be in either, because a first gap with a post that the task did not make would
/// give its first pass a turn too many.
fn turn(
    usual: &BTreeMap<Anchors, Usual>,
    head: &(Anchors, Gap),
    tail: &(Anchors, Gap),
) -> Option<(Vec<New>, Vec<New>)> {
    let (whole, before) = usual.get(&head.0)?;
    let seen = [&tail.1.tokens[..], &head.1.tokens].concat();
    if seen == *whole {
        return Some((Vec::new(), Vec::new()));
    }
    let missing = missing(&seen, whole)?;
    let mut present = (0..whole.len()).filter(|at| !missing.contains(at));
    let begin = present.nth(tail.1.tokens.len()).unwrap_or(whole.len());
    let (rest, first): (Vec<usize>, Vec<usize>) = missing.iter().partition(|at| **at < begin);
    let of = |at: usize, begin: usize| (at - begin, whole[at], before[at]);
    let first = first.into_iter().map(|at| of(at, begin)).collect();
    Some((first, rest.into_iter().map(|at| of(at, 0)).collect()))
}

/// Returns the tasks that post to each semaphore.
fn posters(items: &BTreeMap<TaskIndex, Vec<Item>>) -> BTreeMap<Semaphore, BTreeSet<TaskIndex>> {
    let mut posters: BTreeMap<Semaphore, BTreeSet<TaskIndex>> = BTreeMap::new();
    for (&task, items) in items {
        for item in items {
            if let Act::Post(semaphore) = item.act {
                posters.entry(semaphore).or_default().insert(task);
            }
        }
    }
    posters
}

/// Whether a task takes turns: only one task wakes it, and it alone wakes the tasks to which it
/// lacks posts. A server, or the client of one that others use, may have been ahead at the begin.
fn takes_turns(
    plan: &Plan<'_>,
    task: TaskIndex,
    posters: &BTreeMap<Semaphore, BTreeSet<TaskIndex>>,
    first: &[New],
    rest: &[New],
) -> bool {
    let posters = |semaphore| posters.get(&semaphore).map_or(0, BTreeSet::len);
    let is_alone = |(_, token, _): &New| match (token, semaphore(plan, task, *token)) {
        (Token::Post(_), Some(of @ Semaphore::Of(_))) => posters(of) == 1,
        _ => false,
    };
    posters(Semaphore::Of(task)) == 1 && first.iter().chain(rest).all(is_alone)
}

/// Returns what a round lacks that the end of the recording cut off. The task begins again after
/// its last act, so the round ends with the task's first anchor. A half round would leave something
/// to the next pass, and so would each further pass.
fn rest(
    usual: &BTreeMap<Anchors, Usual>,
    head: &(Anchors, Gap),
    tail: &(Anchors, Gap),
    anchor: Option<Token>,
) -> Vec<New> {
    let seen = &tail.1.tokens;
    if seen.is_empty() {
        return Vec::new();
    }
    let fits = |usual: &&Usual| usual.0 == *seen || missing(seen, &usual.0).is_some();
    if let Some(whole) = usual.get(&head.0).filter(fits) {
        let mut rest = lacks(seen, whole);
        rest.extend(anchor.map(|anchor| (whole.0.len(), anchor, 0)));
        return rest;
    }
    after(usual, &tail.0).map(|whole| lacks(seen, whole)).unwrap_or_default()
}

/// Returns what a gap lacks of a usual sequence of which it is a part.
fn lacks(tokens: &[Token], (whole, before): &Usual) -> Vec<New> {
    let missing = missing(tokens, whole).unwrap_or_default();
    missing.into_iter().map(|at| (at, whole[at], before[at])).collect()
}

/// Inserts a token into a gap.
fn insert(
    plan: &Plan<'_>,
    task: TaskIndex,
    part: &mut Part,
    gap: &mut Gap,
    (index, token, before): New,
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
    let place = place_in(&mut part.items, gap, index, before);
    let at = match is_post {
        true => earliest(part, place),
        false => latest(part, place),
    };
    part.items.insert(place, Item { at, act, with: None, copy: 0 });
    gap.to += 1;
    if let Some(semaphore) = semaphore {
        inferred.insert(semaphore);
    }
}

/// Returns the earliest time of a place in a gap: that of the act before it, and the work since.
fn earliest(part: &Part, place: usize) -> Nanos {
    let mut work = 0;
    for item in part.items[..place].iter().rev() {
        match item.act {
            Act::Work(ns) => work += ns,
            _ => return item.at + work,
        }
    }
    part.begin + work
}

/// Returns the latest time of a place in a gap: the begin of the work after it, or the time of the
/// act. A wait that comes next began earlier than it ended.
fn latest(part: &Part, place: usize) -> Nanos {
    match part.items.get(place) {
        Some(Item { act: Act::Work(ns), at, .. }) => at.saturating_sub(*ns),
        Some(Item { act: Act::Wait(_), .. }) => earliest(part, place),
        Some(item) => item.at,
        None => part.end,
    }
}

/// Returns the place in a gap after `index` tokens and then this much work. Splits the work there.
fn place_in(items: &mut Vec<Item>, gap: &mut Gap, index: usize, before: Nanos) -> usize {
    let (mut passed, mut work, mut place) = (0, 0, gap.from);
    while place < gap.to {
        match &mut items[place].act {
            Act::Work(_) if passed == index && work >= before => break,
            Act::Work(ns) if passed == index && work + *ns > before => {
                let rest = work + *ns - before;
                *ns = before - work;
                let at = items[place].at;
                items[place].at = at.saturating_sub(rest);
                items.insert(place + 1, Item { at, act: Act::Work(rest), with: None, copy: 0 });
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

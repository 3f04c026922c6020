// SPDX-License-Identifier: GPL-2.0-only
//! Rounds: two acts of a task that alternate, such as the requests and answers of a server.
//!
//! Owns: which of the two begins a round, and the moves of inferred acts that keep them in turn.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use scxlab_machine::Nanos;

use super::gaps::{Alike, RUN, Token, alike, semaphore, token};
use super::pair::insert_at;
use crate::history::TaskIndex;
use crate::infer::Plan;
use crate::infer::task::{Act, Item, Semaphore};

/// Least number of rounds that show which act begins one.
const FEW_ROUNDS: usize = 4;

/// Adds the first act of a round where a long run of rounds begins without it. A server's round is
/// a request and the answer to the same task. With a single other task it is not known which of
/// them comes first. Returns the semaphores of what was added.
pub fn lead(
    plan: &Plan<'_>,
    items: &mut BTreeMap<TaskIndex, Vec<Item>>,
    frequent: &BTreeMap<Alike, Token>,
) -> BTreeSet<Semaphore> {
    let mut added = BTreeSet::new();
    for (&task, list) in items.iter_mut() {
        let Some(anchor) = frequent.get(&alike(plan, task)) else { continue };
        let runs = runs(plan, task, list);
        let Some((other, _)) = next_to(&runs, anchor) else { continue };
        let Some([first, second]) = round(list, &runs, [*anchor, other]) else { continue };
        let Some(semaphore) = semaphore(plan, task, first) else { continue };
        let act = match first {
            Token::Post(_) => Act::Post(semaphore),
            _ => Act::Wait(semaphore),
        };
        let late = begin_late(&runs, second);
        let places: Vec<(usize, Nanos)> =
            late.map(|run| (run.begin, list[run.tokens[0].0].at)).collect();
        if !places.is_empty() {
            insert_at(list, &act, places);
            added.insert(semaphore);
        }
    }
    added
}

/// Whether a task posts to a semaphore as the second act of its rounds.
pub fn answers(
    plan: &Plan<'_>,
    items: &BTreeMap<TaskIndex, Vec<Item>>,
    frequent: &BTreeMap<Alike, Token>,
    task: TaskIndex,
    semaphore: Semaphore,
) -> bool {
    let known = || {
        let (list, anchor) = (items.get(&task)?, frequent.get(&alike(plan, task))?);
        let runs = runs(plan, task, list);
        let (other, _) = next_to(&runs, anchor)?;
        let [_, second] = round(list, &runs, [*anchor, other])?;
        Some(Some(second) == token(plan, task, &Act::Post(semaphore)))
    };
    known().unwrap_or(false)
}

/// Lets two acts of a task alternate if they do so in four of five cases: an inferred one moves
/// from where it is too many to where it lacks. A server that answers before it took the request
/// would be one request ahead until it took one without an answer.
pub fn alternate(plan: &Plan<'_>, task: TaskIndex, list: &mut Vec<Item>, anchor: &Token) {
    let runs = runs(plan, task, list);
    let Some((other, times)) = next_to(&runs, anchor) else { return };
    let all = runs.iter().flat_map(|run| &run.tokens).filter(|(_, t)| t == anchor).count();
    if times * 5 < all * 4 {
        return;
    }
    let pairs = || runs.iter().flat_map(|run| run.tokens.windows(2));
    let mut moves = Moves::default();
    // Places at which the anchor, and the other act, lack: before the second of two equal ones.
    let mut lacks: [VecDeque<usize>; 2] = Default::default();
    for pair in pairs().filter(|pair| pair[0].1 == pair[1].1) {
        let [(first, token), (second, _)] = [pair[0], pair[1]];
        let kind = usize::from(token != *anchor);
        if token != *anchor && token != other {
            continue;
        }
        let free = [second, first].into_iter().find(|i| moves.can_move(list, *i));
        // Of this act there is one too many here.
        match free.filter(|_| !lacks[kind].is_empty()) {
            Some(free) => moves.add(free, lacks[kind].pop_front().unwrap_or(free)),
            None => lacks[1 - kind].push_back(second),
        }
    }
    if let Some([_, second]) = round(list, &runs, [*anchor, other]) {
        for run in begin_late(&runs, second) {
            let (index, _) = run.tokens[0];
            let lacks = &mut lacks[usize::from(second != *anchor)];
            if let Some(place) = lacks.pop_front_if(|_| moves.can_move(list, index)) {
                moves.add(index, place);
            }
        }
    }
    moves.carry_out(list);
}

/// Posts and waits of a task without an op between.
struct Run {
    /// Index of the first item.
    begin: usize,
    tokens: Vec<(usize, Token)>,
}

/// Returns the other act that comes most often after this one, and how often.
fn next_to(runs: &[Run], act: &Token) -> Option<(Token, usize)> {
    let mut after: BTreeMap<Token, usize> = BTreeMap::new();
    for pair in runs.iter().flat_map(|run| run.tokens.windows(2)) {
        if pair[0].1 == *act && pair[1].1 != *act {
            *after.entry(pair[1].1).or_default() += 1;
        }
    }
    after.into_iter().max_by_key(|(_, times)| *times)
}

/// Returns two acts that alternate in the order of a round, which the other tasks of both show.
fn round(list: &[Item], runs: &[Run], acts: [Token; 2]) -> Option<[Token; 2]> {
    let mut rounds = [0usize; 2];
    for pair in runs.iter().flat_map(|run| run.tokens.windows(2)) {
        let [(first, token), (second, next)] = [pair[0], pair[1]];
        let with = list[first].with;
        if with.is_some() && with == list[second].with && token != next {
            for (count, _) in rounds.iter_mut().zip(acts).filter(|(_, act)| *act == token) {
                *count += 1;
            }
        }
    }
    let [a, b] = rounds;
    match a >= b {
        true => (a >= FEW_ROUNDS && a >= 4 * b).then_some(acts),
        false => (b >= FEW_ROUNDS && b >= 4 * a).then_some([acts[1], acts[0]]),
    }
}

/// Returns the long runs that begin with the second act of a round. The first act of a run at the
/// begin of the recording may have come before it.
fn begin_late(runs: &[Run], second: Token) -> impl Iterator<Item = &Run> {
    let long = runs.iter().filter(|run| run.begin > 0 && run.tokens.len() >= RUN);
    long.filter(move |run| run.tokens[0].1 == second)
}

/// Splits the acts of a task at its ops.
fn runs(plan: &Plan<'_>, task: TaskIndex, list: &[Item]) -> Vec<Run> {
    let mut runs = vec![Run { begin: 0, tokens: Vec::new() }];
    for (i, item) in list.iter().enumerate() {
        if matches!(item.act, Act::Op(_)) {
            runs.push(Run { begin: i + 1, tokens: Vec::new() });
        } else if let (Some(token), Some(run)) = (token(plan, task, &item.act), runs.last_mut()) {
            run.tokens.push((i, token));
        }
    }
    runs
}

/// Inferred acts that move to other places, by their indices.
#[derive(Default)]
struct Moves(BTreeMap<usize, usize>);

impl Moves {
    fn can_move(&self, list: &[Item], index: usize) -> bool {
        list[index].with.is_none() && !self.0.contains_key(&index)
    }

    fn add(&mut self, from: usize, to: usize) {
        self.0.insert(from, to);
    }

    fn carry_out(self, list: &mut Vec<Item>) {
        let mut moved: BTreeMap<usize, Vec<Item>> = BTreeMap::new();
        for (from, to) in &self.0 {
            let item = Item { at: list[to.saturating_sub(1)].at, ..list[*from].clone() };
            moved.entry(*to).or_default().push(item);
        }
        for (i, item) in std::mem::take(list).into_iter().enumerate() {
            list.extend(moved.remove(&i).unwrap_or_default());
            list.extend((!self.0.contains_key(&i)).then_some(item));
        }
    }
}

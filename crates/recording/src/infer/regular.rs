// SPDX-License-Identifier: GPL-2.0-only
//! Posts, waits, and uses of mutexes that no system call shows, because the semaphore was above 0,
//! the mutex was free, or nobody waited.
//!
//! Owns: the rule that tasks are regular. Between the same two acts (its anchors), a task does the
//! same posts, waits and uses of mutexes. The longest sequence that was seen between two anchors,
//! in at least a twentieth of the cases, is what the task does there; a case with a part of the
//! sequence is completed. Between anchors that are rare, such as those of a task's begin, a task
//! does what it does elsewhere, if only one such sequence has what was seen as a part. If the
//! recording's end cut a sequence off, it is completed, so that no pass leaves a half one behind.
//! Tasks that ended during the recording are judged together with those of their role.
//!
//! An anchor that no call shows leaves no gap. If a task is the only one that posts to a semaphore,
//! and these posts are its anchors, then each inferred wait for which there is no post shows one;
//! likewise, if it is the only one that waits, each inferred post for which there is no wait.
//!
//! A round of a server is a request and its answer. If many clients show which of the two comes
//! first, a run of rounds that begins with the second one gets a first one.
//!
//! The posts of a pass must equal its waits. Surplus inferred ones are taken back, and a semaphore
//! starts at the value that the recorded order needs. That of a server's answers starts at 0 if the
//! program ends with it.

mod fill;
mod gaps;
mod pair;
mod rounds;

use std::collections::{BTreeMap, BTreeSet};

use super::Plan;
use super::task::{Item, Semaphore};
use crate::history::TaskIndex;
use fill::fill;
pub use gaps::label;
use gaps::{Alike, Anchors, Token, cases, most_frequent, repeated};
pub use pair::Starts;
use pair::{balance, give, unequal};
use rounds::lead;

/// Most rounds in which added posts show further posts and waits.
const ROUNDS: u32 = 4;

/// Most anchors that are tried alone.
const ALONE: usize = 8;

/// Completes the posts and waits of all tasks. Returns the semaphores that do not start at 0.
pub fn complete(plan: &Plan<'_>, items: &mut BTreeMap<TaskIndex, Vec<Item>>) -> Starts {
    let frequent = most_frequent(plan, items);
    let led = lead(plan, items, &frequent);
    let repeated = repeated(cases(plan, items, &frequent));
    let visible = if repeated.is_empty() { BTreeMap::new() } else { items.clone() };
    let mut inferred = complete_with(plan, items, &frequent, &BTreeSet::new(), &led);
    // All of them, or one that is so alone.
    let alone = repeated.iter().take(ALONE).map(|anchors| BTreeSet::from([anchors.clone()]));
    let all = (!repeated.is_empty()).then(|| repeated.clone());
    for single in all.into_iter().chain(alone) {
        let mut other = visible.clone();
        let of_other = complete_with(plan, &mut other, &frequent, &single, &led);
        if unequal(plan, &other, &of_other) <= unequal(plan, items, &inferred) {
            (*items, inferred) = (other, of_other);
            break;
        }
    }
    balance(plan, items, &frequent, &inferred)
}

/// Completes the posts and waits. Between the anchors of `single`, no sequence is another one
/// several times. Returns the semaphores of the inferred ones, with those in `led`.
fn complete_with(
    plan: &Plan<'_>,
    items: &mut BTreeMap<TaskIndex, Vec<Item>>,
    frequent: &BTreeMap<Alike, Token>,
    single: &BTreeSet<Anchors>,
    led: &BTreeSet<Semaphore>,
) -> BTreeSet<Semaphore> {
    let mut inferred = led.clone();
    for _ in 0..ROUNDS {
        fill(plan, items, frequent, single, &mut inferred);
        if !give(plan, items, frequent, &inferred) {
            break;
        }
    }
    inferred
}

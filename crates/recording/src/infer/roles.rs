// SPDX-License-Identifier: GPL-2.0-only
//! Roles: tasks that do the same.
//!
//! Owns: the rule. Tasks whose names differ only in digits have one role.

use std::collections::{BTreeMap, BTreeSet};

use super::futexes::{self, Futex};
use super::{Plan, Wait};
use crate::history::History;

/// Returns the name of a task's role.
pub fn name(comm: &str) -> String {
    let plain = comm.trim_end_matches(|c: char| c.is_ascii_digit() || "-._/:#".contains(c));
    let whole = if plain.is_empty() { comm } else { plain };
    whole.chars().map(|c| if c.is_ascii_digit() { 'N' } else { c }).collect()
}

/// Returns the number of each task's role.
pub fn roles(history: &History) -> Vec<u32> {
    let mut numbers: BTreeMap<String, u32> = BTreeMap::new();
    let role = |comm: &str| {
        let next = numbers.len() as u32;
        *numbers.entry(name(comm)).or_insert(next)
    };
    history.tasks.iter().map(|t| t.name.comm.as_str()).map(role).collect()
}

/// Returns the futexes on which several tasks of one role, and no others, wait for tasks.
pub fn shared(plan: &Plan<'_>) -> BTreeSet<u64> {
    let mut waiters: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
    let mut roles: BTreeMap<u64, BTreeSet<u32>> = BTreeMap::new();
    for task in plan.tasks() {
        let t = &plan.history.tasks[task as usize];
        for sleep in 0..t.sleeps.len() as u32 {
            if plan.wait(task, sleep) != Wait::Dependency {
                continue;
            }
            let Some(futex) = futexes::waited_on(t, sleep) else { continue };
            waiters.entry(futex).or_default().insert(task);
            roles.entry(futex).or_default().insert(plan.roles[task as usize]);
        }
    }
    let single = |futex: &u64| plan.futexes.get(futex) == Some(&Futex::Semaphore);
    let shared = waiters.into_iter().filter(|(futex, tasks)| {
        let one_role = roles.get(futex).is_some_and(|roles| roles.len() == 1);
        tasks.len() > 1 && one_role && single(futex)
    });
    shared.map(|(futex, _)| futex).collect()
}

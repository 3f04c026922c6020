// SPDX-License-Identifier: GPL-2.0-only
//! Pools: tasks of one role that take whatever work comes, so that another one may take it in the
//! replay than did in the recording.
//!
//! Owns: the rules.
//!
//! - Several tasks of one role, and no others, wait on one futex.
//! - Each task waits on a futex of its own, as the threads of most language runtimes do, and a task
//!   of another role wakes them in the order in which they came to wait, or in the opposite one.
//!   Tasks of which each has work of its own are woken in the order of that work.

use std::collections::{BTreeMap, BTreeSet};

use scxlab_machine::Nanos;

use super::futexes::{self, Futex};
use super::{Plan, Wait};
use crate::history::{TaskIndex, Waker};

/// Least number of wake-ups that must tell the order.
const EVIDENCE: usize = 8;

/// A wait of a task on a futex for another task.
struct Waited {
    task: TaskIndex,
    by: TaskIndex,
    from: Nanos,
    until: Nanos,
}

/// Returns the futexes on which pools wait, each with one that stands for its pool.
pub fn of(plan: &Plan<'_>) -> BTreeMap<u64, u64> {
    let mut waits: BTreeMap<u64, Vec<Waited>> = BTreeMap::new();
    for task in plan.tasks() {
        let t = &plan.history.tasks[task as usize];
        for (sleep, recorded) in t.sleeps.iter().enumerate() {
            let is_dependency = plan.waits[task as usize][sleep] == Wait::Dependency;
            let futex = futexes::waited_on(t, sleep as u32).filter(|_| is_dependency);
            if let (Some(futex), Waker::Task(by), Some(until)) =
                (futex, recorded.by, recorded.until)
            {
                let wait = Waited { task, by, from: recorded.from, until };
                waits.entry(futex).or_default().push(wait);
            }
        }
    }
    let mut pools = BTreeMap::new();
    let mut own: BTreeMap<(u32, u32), BTreeMap<u64, Vec<Waited>>> = BTreeMap::new();
    for (futex, waits) in waits {
        let tasks: BTreeSet<TaskIndex> = waits.iter().map(|wait| wait.task).collect();
        let roles: BTreeSet<u32> = tasks.iter().map(|task| plan.roles[*task as usize]).collect();
        let (Some(&first), 1) = (tasks.first(), roles.len()) else { continue };
        if tasks.len() > 1 {
            if plan.futexes.get(&futex) == Some(&Futex::Semaphore) {
                pools.insert(futex, futex);
            }
        } else {
            let process = plan.history.tasks[first as usize].name.tgid;
            let role = plan.roles[first as usize];
            own.entry((role, process)).or_default().insert(futex, waits);
        }
    }
    for ((role, _), futexes) in own {
        for pool in by_waker(plan, role, &futexes) {
            if let Some(first) = pool.first().filter(|_| is_pool(plan, &pool, &futexes)) {
                pools.extend(pool.iter().map(|futex| (*futex, *first)));
            }
        }
    }
    pools
}

/// Returns the sets of futexes that have a waker in common. What seldom wakes a task does not
/// count. A futex whose waiter tasks of its own role wake is in no set.
fn by_waker(
    plan: &Plan<'_>,
    role: u32,
    futexes: &BTreeMap<u64, Vec<Waited>>,
) -> Vec<BTreeSet<u64>> {
    let mut sets: Vec<(BTreeSet<TaskIndex>, BTreeSet<u64>)> = Vec::new();
    for (&futex, waits) in futexes {
        let mut counts: BTreeMap<TaskIndex, usize> = BTreeMap::new();
        waits.iter().for_each(|wait| *counts.entry(wait.by).or_default() += 1);
        let often = |(_, count): &(TaskIndex, usize)| count * 4 >= waits.len();
        let mut wakers: BTreeSet<TaskIndex> =
            counts.into_iter().filter(often).map(|(waker, _)| waker).collect();
        if wakers.iter().any(|waker| plan.roles[*waker as usize] == role) {
            continue;
        }
        let mut of_set = BTreeSet::from([futex]);
        sets.retain_mut(|(others, set)| {
            let apart = others.is_disjoint(&wakers);
            if !apart {
                wakers.append(others);
                of_set.append(set);
            }
            apart
        });
        sets.push((wakers, of_set));
    }
    sets.into_iter().map(|(_, set)| set).collect()
}

/// Whether the tasks that wait on these futexes are alike, and are woken first come, first served,
/// or last come, first served.
fn is_pool(plan: &Plan<'_>, pool: &BTreeSet<u64>, futexes: &BTreeMap<u64, Vec<Waited>>) -> bool {
    let waits = || pool.iter().flat_map(|futex| &futexes[futex]);
    let tasks: BTreeSet<TaskIndex> = waits().map(|wait| wait.task).collect();
    let attributes = |task: &TaskIndex| &plan.history.tasks[*task as usize].attributes;
    let Some(first) = tasks.first() else { return false };
    if tasks.len() < pool.len().max(2) || tasks.iter().any(|t| attributes(t) != attributes(first)) {
        return false;
    }
    // Time, whether the wait begins then, and its begin and task.
    let mut changes: Vec<(Nanos, bool, (Nanos, TaskIndex))> = waits()
        .filter(|wait| wait.from < wait.until)
        .flat_map(|wait| {
            let of = (wait.from, wait.task);
            [(wait.from, true, of), (wait.until, false, of)]
        })
        .collect();
    changes.sort_unstable();
    let mut waiting: BTreeSet<(Nanos, TaskIndex)> = BTreeSet::new();
    let (mut all, mut first_come, mut last_come) = (0, 0, 0);
    for (_, begins, wait) in changes {
        if begins {
            waiting.insert(wait);
            continue;
        }
        if waiting.len() > 1 {
            all += 1;
            first_come += usize::from(waiting.first() == Some(&wait));
            last_come += usize::from(waiting.last() == Some(&wait));
        }
        waiting.remove(&wait);
    }
    all >= EVIDENCE && first_come.max(last_come) * 10 >= all * 9
}

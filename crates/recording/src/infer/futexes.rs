// SPDX-License-Identifier: GPL-2.0-only
//! The meaning of each futex: a barrier, a mutex, or a plain dependency.
//!
//! Owns: the rules. A recording has only the calls of tasks that waited or that woke a waiter.
//!
//! - A barrier: each call wakes all waiters, and the same set of tasks takes part in each round.
//!   The last one to come is not always the same, or there are many rounds with several waiters.
//! - A mutex: each call wakes one task, and at least four of five calls are by tasks that also
//!   wait. It is barging, as glibc's are, if some call woke nobody, or some wait did not sleep:
//!   a mutex that is handed over has calls only where tasks wait.
//! - A semaphore: each call wakes one task, and no task that calls also waits. Whichever task waits
//!   may take what is posted.
//! - Otherwise each wake-up is a dependency of the woken task. Tasks that wake each other could all
//!   wait at once if one took what was posted for another.

use std::collections::{BTreeMap, BTreeSet};

use scxlab_machine::Nanos;
use scxlab_trace::Call;
use scxlab_workload::program::{BarrierDef, MutexDef};

use super::{Mutexes, Plan};
use crate::history::{Step, TaskHistory, TaskIndex};

/// The meaning of a futex.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Futex {
    /// A barrier of this many tasks.
    Barrier(u32),
    /// A mutex. `barging`: an unlock does not hand it to the waiter that it wakes.
    Mutex { barging: bool },
    /// A dependency of each waiter on its waker. Each call woke at most one task.
    Semaphore,
    /// A dependency of each waiter on its waker.
    Dependency,
}

/// Number of rounds of a barrier from which the same task may always be the last.
const MANY: usize = 8;

/// A call that woke tasks.
struct Round {
    waker: TaskIndex,
    woken: Vec<TaskIndex>,
    most: u32,
}

/// Returns the meaning of each futex on which a task waited.
pub fn classify(plan: &Plan<'_>, mutexes: Mutexes) -> BTreeMap<u64, Futex> {
    let mut rounds: BTreeMap<u64, Vec<Round>> = BTreeMap::new();
    for task in plan.tasks() {
        collect(plan, task, &mut rounds);
    }
    let idle = idle_calls(plan);
    let meaning = |(object, rounds): (u64, Vec<Round>)| {
        let futex = match meaning(&rounds) {
            Futex::Mutex { .. } => match mutexes {
                Mutexes::Used => Futex::Mutex { barging: idle.contains(&object) },
                Mutexes::Dependencies => Futex::Dependency,
            },
            other => other,
        };
        (object, futex)
    };
    rounds.into_iter().map(meaning).collect()
}

/// Returns the futexes with calls that woke nobody, or that did not sleep.
fn idle_calls(plan: &Plan<'_>) -> BTreeSet<u64> {
    let mut idle = BTreeSet::new();
    for task in plan.tasks() {
        let steps = &plan.history.tasks[task as usize].steps;
        for (i, step) in steps.iter().enumerate() {
            match (step, steps.get(i + 1)) {
                (Step::Call(_, Call::FutexWait { .. }), Some(Step::Sleep(_)) | None) => {}
                (Step::Call(_, Call::FutexWake { .. }), Some(Step::Wake(..)) | None) => {}
                (Step::Call(_, Call::FutexWait { object, .. }), _)
                | (Step::Call(_, Call::FutexWake { object, .. }), _) => {
                    idle.insert(*object);
                }
                _ => {}
            }
        }
    }
    idle
}

fn collect(plan: &Plan<'_>, waker: TaskIndex, rounds: &mut BTreeMap<u64, Vec<Round>>) {
    let steps = &plan.history.tasks[waker as usize].steps;
    for (i, step) in steps.iter().enumerate() {
        let Step::Call(_, Call::FutexWake { object, most }) = *step else { continue };
        let woken: Vec<TaskIndex> = woken(&steps[i + 1..])
            .filter(|(task, sleep)| {
                plan.is_kept(*task)
                    && waited_on(&plan.history.tasks[*task as usize], *sleep) == Some(object)
            })
            .map(|(task, _)| task)
            .collect();
        if !woken.is_empty() {
            rounds.entry(object).or_default().push(Round { waker, woken, most });
        }
    }
}

/// Returns the wake-ups at the begin of these steps: tasks and their waits.
pub fn woken(steps: &[Step]) -> impl Iterator<Item = (TaskIndex, u32)> + '_ {
    steps.iter().map_while(|step| match step {
        Step::Wake(task, sleep) => Some((*task, *sleep)),
        _ => None,
    })
}

/// Returns the futex on which a task waited in one of its waits.
pub fn waited_on(task: &TaskHistory, sleep: u32) -> Option<u64> {
    let at = task.sleeps[sleep as usize].step as usize;
    match task.steps[..at].last() {
        Some(Step::Call(_, Call::FutexWait { object, .. })) => Some(*object),
        _ => None,
    }
}

fn meaning(rounds: &[Round]) -> Futex {
    let party = |round: &Round| -> BTreeSet<TaskIndex> {
        round.woken.iter().copied().chain([round.waker]).collect()
    };
    let parties = rounds.first().map(party).unwrap_or_default();
    let wakers: BTreeSet<TaskIndex> = rounds.iter().map(|r| r.waker).collect();
    let all = rounds.iter().all(|r| r.most > 1 && party(r) == parties);
    if all && (wakers.len() > 1 || parties.len() > 2 && rounds.len() >= MANY) {
        return Futex::Barrier(u32::try_from(parties.len()).unwrap_or(u32::MAX));
    }
    let waiters: BTreeSet<TaskIndex> = rounds.iter().flat_map(|r| r.woken.clone()).collect();
    let by_waiters = rounds.iter().filter(|r| waiters.contains(&r.waker)).count();
    let single = rounds.iter().all(|r| r.most == 1);
    if single && waiters.len() > 1 && by_waiters * 5 >= rounds.len() * 4 {
        return Futex::Mutex { barging: false };
    }
    if single && wakers.is_disjoint(&waiters) { Futex::Semaphore } else { Futex::Dependency }
}

/// Returns the declarations of the barriers.
pub fn barriers(plan: &Plan<'_>) -> Vec<BarrierDef> {
    let barrier = |(object, futex): (&u64, &Futex)| match futex {
        Futex::Barrier(parties) => {
            Some(BarrierDef { name: barrier_name(*object), parties: *parties })
        }
        _ => None,
    };
    plan.futexes.iter().filter_map(barrier).collect()
}

/// Returns the declarations of the mutexes that are not handed over.
pub fn mutexes(plan: &Plan<'_>) -> Vec<MutexDef> {
    let barging = |(object, futex): (&u64, &Futex)| {
        let is_barging = *futex == Futex::Mutex { barging: true };
        is_barging.then(|| MutexDef { name: mutex_name(*object), barging: true })
    };
    plan.futexes.iter().filter_map(barging).collect()
}

/// Returns the name of a barrier.
pub fn barrier_name(object: u64) -> String {
    format!("barrier {object:#x}")
}

/// Returns the name of a mutex.
pub fn mutex_name(object: u64) -> String {
    format!("mutex {object:#x}")
}

/// Returns the middle of the values.
pub fn median(mut values: Vec<Nanos>) -> Option<Nanos> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The meaning of calls that each wake one task: pairs of waker and woken task.
    fn of(pairs: &[(TaskIndex, TaskIndex)]) -> Futex {
        let round = |(waker, woken): &(TaskIndex, TaskIndex)| Round {
            waker: *waker,
            woken: vec![*woken],
            most: 1,
        };
        meaning(&pairs.iter().map(round).collect::<Vec<_>>())
    }

    #[test]
    fn who_wakes_whom_tells_what_a_futex_is() {
        assert_eq!(of(&[(1, 2), (2, 3), (3, 1), (1, 3)]), Futex::Mutex { barging: false });
        assert_eq!(of(&[(9, 1), (9, 2), (8, 1), (9, 2)]), Futex::Semaphore);
        // Task 9 does not wait; the others wake each other, too.
        assert_eq!(of(&[(9, 1), (9, 2), (1, 3), (2, 3)]), Futex::Dependency);
    }

    /// A task that wakes the same tasks in each of many rounds is the last one at their barrier.
    #[test]
    fn many_rounds_of_the_same_tasks_are_a_barrier() {
        let round = |woken: &[TaskIndex]| Round { waker: 9, woken: woken.to_vec(), most: u32::MAX };
        let rounds = |n, woken| (0..n).map(|_| round(woken)).collect::<Vec<_>>();
        assert_eq!(meaning(&rounds(MANY, &[1, 2])), Futex::Barrier(3));
        assert_eq!(meaning(&rounds(MANY - 1, &[1, 2])), Futex::Dependency);
        assert_eq!(meaning(&rounds(MANY, &[1])), Futex::Dependency);
        let mut others = rounds(MANY, &[1, 2]);
        others.push(round(&[1, 3]));
        assert_eq!(meaning(&others), Futex::Dependency);
    }
}

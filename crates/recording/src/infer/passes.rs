// SPDX-License-Identifier: GPL-2.0-only
//! Passes: a task that lived until the end of the recording begins again after its last step.
//!
//! Owns: the first pass and the later ones, in which only tasks that repeat take part.
//!
//! Each wait of a pass has its counterpart in the same pass of another task: a wait for a task has
//! one post, a read has its write, a round of a barrier all its parties. So passes add up to
//! nothing that is left over, and the recorded order is an order in which every pass can end.

use scxlab_workload::program::{Op, TimeSpan};

use super::Plan;
use super::futexes::mutex_name;
use super::scale::Scaled;
use super::task::{self, Act, Item};
use super::units::{STEPS, Unit, count_steps};
use crate::history::TaskIndex;

/// Returns the ops of a task from the acts of its first pass.
pub fn ops(plan: &Plan<'_>, task: TaskIndex, items: &[Item], scaled: &Scaled) -> Vec<Op> {
    let counts = matches!(&plan.unit, Unit::Steps(tasks) if tasks[task as usize]);
    let steps = counts.then(|| scaled.steps(&plan.names[task as usize], STEPS));
    let first = pass(plan, items.to_vec(), steps, scaled);
    if plan.ends[task as usize] || first.is_empty() {
        return first;
    }
    let again = pass(plan, task::again(plan, items), steps, scaled);
    if again == first {
        return vec![Op::Loop { times: None, ops: first }];
    }
    let mut ops = first;
    if !again.is_empty() {
        ops.push(Op::Loop { times: None, ops: again });
    }
    ops
}

fn pass(plan: &Plan<'_>, items: Vec<Item>, steps: Option<u64>, scaled: &Scaled) -> Vec<Op> {
    let items = match steps {
        Some(steps) if !items.is_empty() => count_steps(items, steps),
        _ => items,
    };
    let op = |item: Item| {
        let mut op = op(plan, item.act)?;
        scaled.rename(item.copy, &mut op);
        Some(op)
    };
    items.into_iter().filter_map(op).collect()
}

fn op(plan: &Plan<'_>, act: Act) -> Option<Op> {
    match act {
        Act::Work(work) => Some(Op::Compute(TimeSpan(work).into())),
        Act::Op(op) => Some(op),
        Act::Lock(mutex) => Some(Op::Lock(mutex_name(mutex))),
        Act::Unlock(mutex) => Some(Op::Unlock(mutex_name(mutex))),
        Act::Wait(semaphore) => Some(Op::SemWait(plan.semaphore_name(semaphore))),
        Act::Post(semaphore) => Some(Op::SemPost(plan.semaphore_name(semaphore))),
        // `locks::place` has replaced these.
        Act::Acquired(_) | Act::Released(_) => None,
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! Passes: a task that lived until the end of the recording begins again after its last step.
//!
//! Owns: the first pass and the later ones, in which only tasks that repeat take part.
//!
//! Each wait of a pass has its counterpart in the same pass of another task: a wait for a task has
//! one post, a read has its write, a round of a barrier all its parties. So passes add up to
//! nothing that is left over, and the recorded order is an order in which every pass can end.

use scxlab_workload::program::{Op, TimeSpan};

use super::futexes::mutex_name;
use super::task::{self, Act, Item};
use super::{Plan, units};
use crate::history::TaskIndex;

/// Returns the ops of a task from the acts of its first pass.
pub fn ops(plan: &Plan<'_>, task: TaskIndex, items: &[Item], counted: bool) -> Vec<Op> {
    let first = pass(plan, items.to_vec(), counted);
    let ended = plan.history.tasks[task as usize].ended.is_some();
    if ended || first.is_empty() {
        return first;
    }
    let again = pass(plan, task::again(plan, items), counted);
    if again == first {
        return vec![Op::Loop { times: None, ops: first }];
    }
    let mut ops = first;
    if !again.is_empty() {
        ops.push(Op::Loop { times: None, ops: again });
    }
    ops
}

fn pass(plan: &Plan<'_>, items: Vec<Item>, counted: bool) -> Vec<Op> {
    let items = if counted || items.is_empty() { items } else { units::count_steps(items) };
    items.into_iter().filter_map(|item| op(plan, item.act)).collect()
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

// SPDX-License-Identifier: GPL-2.0-only
//! Passes: a task that lived until the end of the recording begins again after its last step.
//!
//! Owns: the first pass and the later ones, in which only tasks that repeat take part.
//!
//! Each wait of a pass has its counterpart in the same pass of another task: a wait for a task has
//! one post, a read has its write, a round of a barrier all its parties. So passes add up to
//! nothing that is left over, and the recorded order is an order in which every pass can end.

use scxlab_machine::Nanos;
use scxlab_workload::program::{Op, Program, ThreadTemplate, TimeSpan};

use super::Plan;
use super::futexes::mutex_name;
use super::scale::Scaled;
use super::task::{self, Act, Item};
use super::units::{STEPS, Unit, count_steps};
use crate::history::TaskIndex;

/// A time below this part of the recording is short.
const SHORT: Nanos = 10;

/// An endless pass has at least this part of the work that its task could have done on a CPU of its
/// own.
const LEAST_PART: u64 = 10;

/// Maximum number of items of a pass that is repeated.
const MAX_REPEATED: u64 = 100_000;

/// Returns the ops of a task from the acts of its first pass.
pub fn ops(plan: &Plan<'_>, task: TaskIndex, items: &[Item], scaled: &Scaled) -> Vec<Op> {
    let counts = matches!(&plan.unit, Unit::Steps(tasks) if tasks[task as usize]);
    let steps = counts.then(|| scaled.steps(&plan.names[task as usize], STEPS));
    let first = pass(plan, items.to_vec(), steps, scaled);
    if plan.ends[task as usize] || first.is_empty() {
        return first;
    }
    let mut again = task::again(plan, items);
    if !again.is_empty() && !task::is_paced(&again, plan.length() / SHORT) {
        again = endless(plan, task, again);
    }
    let again = pass(plan, again, steps, scaled);
    if again == first {
        return vec![Op::Loop { times: None, ops: first }];
    }
    let mut ops = first;
    if !again.is_empty() {
        ops.push(Op::Loop { times: None, ops: again });
    }
    ops
}

/// Returns the units of work that the threads of a program report in their first passes.
pub fn units(program: &Program) -> u64 {
    let units = |op: &Op| if let Op::Count(units) = op { *units } else { 0 };
    let of = |thread: &ThreadTemplate| match &*thread.ops {
        [Op::Loop { times: None, ops }] => ops.iter().map(units).sum::<u64>(),
        first => first.iter().map(units).sum(),
    };
    program.threads.iter().map(of).sum()
}

/// Returns a later pass that waits for hardly anything, as it is repeated. A task that wanted a CPU
/// for less than a tenth of the recording has done its work, and does it once in each length of
/// the recording. Any other works all the time. If the recording shows little of that work,
/// because the task waited for a CPU, the pass has it several times, so that a step is no trifle.
fn endless(plan: &Plan<'_>, task: TaskIndex, pass: Vec<Item>) -> Vec<Item> {
    let t = &plan.history.tasks[task as usize];
    let wanted = t.run_ns.saturating_add(t.wait_ns);
    if wanted < plan.length() / SHORT {
        let timer = task::until_next_recording(plan);
        let first = Item { at: pass[0].at, act: Act::Op(timer), with: None, copy: pass[0].copy };
        return [vec![first], pass].concat();
    }
    let work = |item: &Item| if let Act::Work(work) = item.act { work } else { 0 };
    let total = pass.iter().map(work).fold(0, Nanos::saturating_add);
    let times = (wanted / LEAST_PART).div_ceil(total.max(1)).max(1);
    if times > 1 && times.saturating_mul(pass.len() as u64) <= MAX_REPEATED {
        return std::iter::repeat_n(pass, times as usize).flatten().collect();
    }
    pass
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

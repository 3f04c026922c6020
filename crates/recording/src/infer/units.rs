// SPDX-License-Identifier: GPL-2.0-only
//! Units of work, so that throughput compares schedulers.
//!
//! Owns: the unit of a recording whose tasks count nothing.
//!
//! There, a step is a hundredth of the work that a task did in the recording. Each task has the
//! same weight, however much CPU time it uses: a scheduler that starves a hundred short sleepers
//! for the sake of one hog loses steps.

use scxlab_machine::Nanos;
use scxlab_trace::Call;
use scxlab_workload::program::Op;

use super::Plan;
use super::task::{Act, Item};
use crate::history::Step;

/// Number of steps of each task in a pass.
pub const STEPS: u64 = 100;

/// Whether a task of the workload counts finished work.
pub fn has_counts(plan: &Plan<'_>) -> bool {
    let counts = |step: &Step| matches!(step, Step::Call(_, Call::Count { .. }));
    plan.tasks().any(|task| plan.history.tasks[task as usize].steps.iter().any(counts))
}

/// Adds the counts of so many steps to a pass.
pub fn count_steps(items: Vec<Item>, steps: u64) -> Vec<Item> {
    let work = |item: &Item| if let Act::Work(work) = item.act { work } else { 0 };
    let total: Nanos = items.iter().map(work).fold(0, Nanos::saturating_add);
    let step = total.div_ceil(steps).max(1);
    let mut out = Vec::with_capacity(items.len() + steps as usize);
    let (mut done, mut counted, mut at) = (0u64, 0u64, 0);
    for item in items {
        at = item.at;
        let Act::Work(mut work) = item.act else {
            out.push(item);
            continue;
        };
        let of = |act: Act| Item { at, act, with: None, copy: 0 };
        while done + work >= (counted + 1) * step {
            let part = (counted + 1) * step - done;
            out.extend([of(Act::Work(part)), of(Act::Op(Op::Count(1)))]);
            (done, counted, work) = (done + part, counted + 1, work - part);
        }
        done += work;
        if work > 0 {
            out.push(of(Act::Work(work)));
        }
    }
    if counted < steps {
        out.push(Item { at, act: Act::Op(Op::Count(steps - counted)), with: None, copy: 0 });
    }
    out
}

// SPDX-License-Identifier: GPL-2.0-only
//! Units of work, so that throughput compares schedulers.
//!
//! Owns: what a program counts, and where the steps of a task end.
//!
//! If the recording's tasks count nothing, or the user has chosen whose work counts, a step is a
//! hundredth of the work that a task did in the recording. Each of these tasks has the same weight,
//! however much CPU time it uses: a scheduler that starves a hundred short sleepers for the sake of
//! one hog loses steps.

use scxlab_machine::Nanos;
use scxlab_trace::Call;
use scxlab_workload::program::Op;

use super::task::{Act, Item};
use crate::history::{History, Step};
use crate::scope::name_matches;

/// Number of steps of each task in a pass.
pub const STEPS: u64 = 100;

/// What the throughput of a program counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unit {
    /// The units of work that the tasks reported.
    Reported,
    /// Steps; for each task, whether its own count.
    Steps(Vec<bool>),
}

impl Unit {
    /// Returns the unit of a workload of the kept tasks. `patterns` are those of the names of the
    /// tasks whose steps count; without any, steps of all tasks count unless some report units.
    pub fn of(history: &History, kept: &[bool], patterns: &[String]) -> Unit {
        let counts = |step: &Step| matches!(step, Step::Call(_, Call::Count { .. }));
        let mut tasks = history.tasks.iter().zip(kept).filter(|(_, kept)| **kept);
        if patterns.is_empty() && tasks.any(|(task, _)| task.steps.iter().any(counts)) {
            return Unit::Reported;
        }
        let chosen = |name: &str| patterns.is_empty() || name_matches(patterns, name);
        Unit::Steps(history.tasks.iter().map(|task| chosen(&task.name.comm)).collect())
    }

    /// Returns the unit's name.
    pub fn name(&self) -> &'static str {
        if *self == Unit::Reported { "unit" } else { "step" }
    }
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

// SPDX-License-Identifier: GPL-2.0-only
//! Conformance: runs the same scheduler object in the same situation in the simulator and on a real
//! kernel, and compares the operations that both kernels call.
//!
//! Owns: the format of a case, the simulated half, the comparison. Does not: run a real kernel (the
//! live crate does, with the same case), open files.
//! The object is `bpf/selftest/tracer`, which records every operation. The cases are in
//! `cases/conform`.

mod case;
pub mod log;
mod shipped;
mod sim;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use case::{Action, Case, CaseError, Timed};
pub use log::{Entry, Sequences};
pub use shipped::SHIPPED;
pub use sim::{SimCaseError, simulate};

/// The record of one kernel in one case.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    /// Operations in order with repeats folded, by task name; `-` holds operations about no task.
    pub sequences: Sequences,
    /// Exit kind; `none` if the scheduler stayed until it was detached.
    pub exit: String,
    /// Number of entries for which the ring had no room; if not 0, the sequences are incomplete.
    pub lost: u64,
}

/// The first point at which two kernels differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// A task's name, `-`, or `exit`.
    pub about: String,
    /// Number of operations on which both agree.
    pub same: usize,
    /// The next operation of each kernel; None if it has no further one.
    pub sim: Option<String>,
    pub real: Option<String>,
}

/// Returns the first difference of each sequence.
pub fn compare(case: &Case, sim: &Observed, real: &Observed) -> Vec<Difference> {
    let mut found = Vec::new();
    for about in &case.watch {
        let of = |o: &Observed| o.sequences.get(about).cloned().unwrap_or_default();
        let (a, b) = (of(sim), of(real));
        let same = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
        if same < a.len() || same < b.len() {
            let (sim, real) = (a.get(same).cloned(), b.get(same).cloned());
            found.push(Difference { about: about.clone(), same, sim, real });
        }
    }
    if sim.exit != real.exit {
        let (sim, real) = (Some(sim.exit.clone()), Some(real.exit.clone()));
        found.push(Difference { about: "exit".into(), same: 0, sim, real });
    }
    found
}

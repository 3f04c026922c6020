// SPDX-License-Identifier: GPL-2.0-only
//! Conformance: the same scheduler object in the same situation, simulated and on a real kernel, and what both call.
//!
//! Owns: the form of a case, the simulated half, the comparison. Does not: run a real kernel (the live crate does, with
//! the same case), open files.
//! The object is `bpf/selftest/tracer`, which writes down every operation. Cases are in `cases/conform`.

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

/// What one kernel did in a case.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    /// By task, and `-` for operations about none: the operations in order, repeats folded.
    pub sequences: Sequences,
    /// Exit kind; `none` if the scheduler stayed until it was detached.
    pub exit: String,
    /// Entries for which the ring had no room: the sequences are not whole.
    pub lost: u64,
}

/// Where two kernels differ first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// A task's name, `-`, or `exit`.
    pub about: String,
    /// Operations on which both agree.
    pub same: usize,
    /// What each did next; None: nothing more.
    pub sim: Option<String>,
    pub real: Option<String>,
}

/// The first difference of each sequence.
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

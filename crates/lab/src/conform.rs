// SPDX-License-Identifier: GPL-2.0-only
//! Conformance: runs the same scheduler object in the same situation in the simulator and on a real
//! kernel, and compares the operations that both kernels call.
//!
//! Owns: the format of a case, the simulated half, the comparison. Does not: run a real kernel (the
//! live crate does, with the same case), open files.
//! By default, the object is `bpf/selftest/tracer`, which implements every operation. A witness on
//! each side records the calls. The cases are in `cases/conform`.

mod case;
pub mod log;
mod shipped;
mod sim;
#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};

pub use case::{Action, Case, CaseError, Timed};
pub use log::{LogEntry, Sequences};
pub use shipped::SHIPPED;
pub use sim::{SimCaseError, simulate};

/// The operations that one kernel called in one case, and the scheduler's exit.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Observed {
    /// Operations in order, by task name; the name `-` holds operations about no task. A repeated
    /// stretch appears once, followed by `+`.
    pub sequences: Sequences,
    /// Exit kind; `none` if the scheduler stayed until it was detached.
    pub exit: String,
    /// Number of calls that the witness could not record because its ring buffer was full; if not
    /// 0, the sequences are incomplete.
    pub lost: u64,
}

/// The first point at which two kernels differ.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// Subject of the difference: a task's name, `-` for operations about no task, or `exit`.
    pub about: String,
    /// Number of operations before the difference, which both kernels called.
    pub same: usize,
    /// The operation at this point in the simulated kernel, and in `real` the one in the real
    /// kernel; None if that kernel's sequence has ended. For the subject `exit`, the fields hold
    /// the two exit kinds.
    pub sim: Option<String>,
    pub real: Option<String>,
}

/// Returns the first difference in the sequence of each watched task, and a difference of the
/// exits.
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

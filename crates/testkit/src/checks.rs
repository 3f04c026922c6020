// SPDX-License-Identifier: GPL-2.0-only
//! Checks of the simulated kernel's conservation laws. A check computes a law's quantities from the
//! kernel's state, independently of the kernel's own code.
//!
//! Owns: `run_checked` and the assertions that every simulation test makes after a run. Does not:
//! share code with the kernel.
//! Each family of laws has its own file, and a canary breaks each law (see `canary.rs`).

mod guests;
mod idle;
mod memory;
mod places;
mod time;

use scxlab_kernel::Kernel;
use scxlab_kernel::kernel::Stop;
use scxlab_machine::id::Nanos;

/// A violation of a law by the kernel's state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Name of the law.
    pub law: &'static str,
    /// Virtual time at which the violation was found.
    pub at: Nanos,
    pub what: String,
}

/// Guarantees of one scheduler beyond the laws that apply to all schedulers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Contract {
    /// Longest time that a CPU may be idle while a task waits that may run on this CPU. None if the
    /// scheduler gives no such guarantee.
    pub idle_grace: Option<Nanos>,
    /// Whether the scheduler may keep a CPU in the kernel for long. The time law then has a looser
    /// bound (see `time.rs`).
    pub long_paths: bool,
}

/// A checker that inspects a run step by step.
pub struct LawChecker {
    contract: Contract,
    idle: idle::IdleWatch,
    pub broken: Vec<Violation>,
}

impl LawChecker {
    pub fn new(contract: Contract) -> Self {
        LawChecker { contract, idle: idle::IdleWatch::default(), broken: Vec::new() }
    }

    /// Checks all laws on the kernel's present state.
    pub fn look(&mut self, k: &Kernel) {
        places::check(k, &mut self.broken);
        memory::check(k, &mut self.broken);
        guests::check(k, &mut self.broken);
        idle::count(k, &mut self.broken);
        time::check(k, self.contract.long_paths, &mut self.broken);
        if let Some(grace) = self.contract.idle_grace {
            self.idle.check(k, grace, &mut self.broken);
        }
    }
}

/// Runs to `duration` and checks the state every `step`; stops at the first violation.
pub fn run_checked(
    k: &mut Kernel,
    duration: Nanos,
    step: Nanos,
    contract: Contract,
) -> Result<Stop, Violation> {
    let mut watch = LawChecker::new(contract);
    k.start();
    let mut at = 0;
    while at < duration && k.end.stop.is_none() {
        at = (at + step).min(duration);
        k.advance(at);
        watch.look(k);
        if let Some(broken) = watch.broken.first() {
            return Err(broken.clone());
        }
    }
    k.close();
    Ok(k.end.stop.clone().unwrap_or(Stop::Finished))
}

/// Asserts the laws that hold at any moment of any run; panics with all violations.
pub fn after(k: &Kernel) {
    let mut watch = LawChecker::new(Contract::default());
    watch.look(k);
    assert!(watch.broken.is_empty(), "{:#?}", watch.broken);
}

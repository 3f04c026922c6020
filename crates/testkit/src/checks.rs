// SPDX-License-Identifier: GPL-2.0-only
//! Conservation laws of the simulated kernel, recomputed from its state by means of their own.
//!
//! Owns: `run_checked` and what every simulation test asserts after a run. Does not: share code with the kernel.
//! One file per family; a canary breaks each (see `canary.rs`).

mod idle;
mod places;
mod time;

use scxlab_kernel::Kernel;
use scxlab_kernel::kernel::Stop;
use scxlab_machine::id::Nanos;

/// A law that the kernel's state breaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// Which family.
    pub law: &'static str,
    /// Virtual time at which it was seen.
    pub at: Nanos,
    pub what: String,
}

/// What a scheduler promises, beyond what holds for all.
#[derive(Clone, Copy, Debug, Default)]
pub struct Contract {
    /// No CPU is idle for longer than this beside a task that waits and may run there.
    pub idle_grace: Option<Nanos>,
    /// It may keep a CPU in the kernel for long (see `time.rs`).
    pub long_paths: bool,
}

/// Watches a run in steps.
pub struct Watch {
    contract: Contract,
    idle: idle::IdleWatch,
    pub broken: Vec<Broken>,
}

impl Watch {
    pub fn new(contract: Contract) -> Self {
        Watch { contract, idle: idle::IdleWatch::default(), broken: Vec::new() }
    }

    /// Looks at the present state.
    pub fn look(&mut self, k: &Kernel) {
        places::check(k, &mut self.broken);
        time::check(k, self.contract.long_paths, &mut self.broken);
        if let Some(grace) = self.contract.idle_grace {
            self.idle.check(k, grace, &mut self.broken);
        }
    }
}

/// Runs to `duration`, looking every `step`; stops at the first broken law.
pub fn run_checked(
    k: &mut Kernel,
    duration: Nanos,
    step: Nanos,
    contract: Contract,
) -> Result<Stop, Broken> {
    let mut watch = Watch::new(contract);
    k.start();
    let mut at = 0;
    while at < duration && k.stop.is_none() {
        at = (at + step).min(duration);
        k.advance(at);
        watch.look(k);
        if let Some(broken) = watch.broken.first() {
            return Err(broken.clone());
        }
    }
    k.close();
    Ok(k.stop.clone().unwrap_or(Stop::Finished))
}

/// What holds at any moment of any run; panics with the law and the place.
pub fn after(k: &Kernel) {
    let mut watch = Watch::new(Contract::default());
    watch.look(k);
    assert!(watch.broken.is_empty(), "{:#?}", watch.broken);
}

// SPDX-License-Identifier: GPL-2.0-only
//! Helpers for tests: they attach the shipped schedulers with their recipes, and run the syscall
//! programs of the self-tests.
//!
//! Owns: loading and attaching. Does not: read a scheduler's state (see `state.rs`), or judge it.

use std::sync::Arc;

use scxlab_kernel::Kernel;
use scxlab_lab::input::{NoFiles, SchedulerInput};
use scxlab_lab::prepare::Prepared;
use scxlab_lab::sim::attach;
use scxlab_loader::link::Loaded;
use scxlab_machine::Machine;

use crate::sim;

/// Boots a machine with a workload under a shipped scheduler, given as for `-s NAME,knob=value`.
pub fn scheduled(scheduler: &str, machine: &str, workload: &str, seed: u64) -> (Kernel, Loaded) {
    let machine = Machine::resolve(machine).unwrap_or_else(|e| panic!("{e}"));
    scheduled_on(scheduler, machine, workload, seed)
}

/// As `scheduled`, on a machine whose costs a test may have changed.
pub fn scheduled_on(
    scheduler: &str,
    machine: Machine,
    workload: &str,
    seed: u64,
) -> (Kernel, Loaded) {
    let machine = Arc::new(machine);
    let mut k = sim::kernel_on(Machine::clone(&machine), workload, seed);
    let loaded = attach_with_recipe(&mut k, scheduler, &machine);
    (k, loaded)
}

/// Attaches a shipped scheduler to a booted machine.
pub fn attach_with_recipe(k: &mut Kernel, scheduler: &str, machine: &Arc<Machine>) -> Loaded {
    let input = SchedulerInput::resolve(scheduler, &NoFiles).unwrap_or_else(|e| panic!("{e}"));
    let prepared = Prepared::simulated(&input, machine).unwrap_or_else(|e| panic!("{e}"));
    let object = prepared.object.expect("an object");
    attach(k, &object, &input.arg.name, machine).unwrap_or_else(|e| panic!("{e}"))
}

/// Loads an object of `bpf/selftest` that contains no scheduler, for its syscall programs.
pub fn selftest(k: &mut Kernel, name: &str) -> Loaded {
    sim::link(k, name, selftest_object(name), &[])
}

/// Returns the object of `bpf/selftest/NAME`.
pub fn selftest_object(name: &str) -> &'static [u8] {
    let found = scxlab_sched::selftests().iter().find(|s| s.name == name);
    found.unwrap_or_else(|| panic!("no selftest {name}")).object
}

/// As `run_program`, for a program whose context is an array of 64-bit words and that must return
/// 0.
pub fn run_on_words(k: &mut Kernel, loaded: &Loaded, program: &str, words: &mut [u64]) {
    let mut bytes: Vec<u8> = words.iter().flat_map(|w| w.to_le_bytes()).collect();
    assert_eq!(run_program(k, loaded, program, &mut bytes), 0, "{program}");
    for (word, bytes) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    }
}

/// Runs a syscall program of an object and returns its return value.
pub fn run_program(k: &mut Kernel, loaded: &Loaded, program: &str, ctx: &mut [u8]) -> i32 {
    let func = loaded.func(program).unwrap_or_else(|| panic!("no program {program}"));
    let result = k.user(|k| k.run_syscall(loaded.instance, func, ctx));
    result.unwrap_or_else(|e| panic!("{e}")) as i32
}

// SPDX-License-Identifier: GPL-2.0-only
//! The shipped schedulers in tests: attached with their recipe, and asked for what they count.
//!
//! Owns: the way to a scheduler's statistics and syscall programs. Does not: judge what they say.

use std::sync::Arc;

use scxlab_bpf::link::{Loaded, OpenObject};
use scxlab_bpf::object::Object;
use scxlab_kernel::Kernel;
use scxlab_lab::prepare::{Prepared, RecipeChoice, Source};
use scxlab_lab::scheduler::SchedulerArg;
use scxlab_lab::sim::{attach, kernel_target};
use scxlab_machine::Machine;

use crate::sim;

/// A machine that runs that workload under a shipped scheduler, as `-s NAME,knob=value` gives it.
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
    let loaded = put_on(&mut k, scheduler, &machine);
    (k, loaded)
}

fn put_on(k: &mut Kernel, scheduler: &str, machine: &Arc<Machine>) -> Loaded {
    let arg = SchedulerArg::parse(scheduler).unwrap_or_else(|e| panic!("{e}"));
    let name = scheduler.split(',').next().unwrap_or_default();
    let shipped = scxlab_sched::find(name).unwrap_or_else(|| panic!("no scheduler {name}"));
    let target = kernel_target(machine).unwrap_or_else(|e| panic!("{e}"));
    let source = Source { name, bytes: shipped.object };
    let prepared = Prepared::object(&arg, source, RecipeChoice::Auto, machine, &target.btf);
    let prepared = prepared.unwrap_or_else(|e| panic!("{e}")).object.expect("an object");
    attach(k, &prepared, name, machine).unwrap_or_else(|e| panic!("{e}"))
}

/// Loads an object of `bpf/selftest` that is no scheduler, for its syscall programs.
pub fn selftest(k: &mut Kernel, name: &str) -> Loaded {
    let found = scxlab_sched::selftests().iter().find(|s| s.name == name);
    let found = found.unwrap_or_else(|| panic!("no selftest {name}"));
    let object = Arc::new(Object::parse(found.object, name).unwrap_or_else(|e| panic!("{e}")));
    let target = k.target();
    OpenObject::new(object).load(k, &target).unwrap_or_else(|e| panic!("{e}"))
}

/// Runs a syscall program of an object; what it returns.
pub fn run_program(k: &mut Kernel, loaded: &Loaded, program: &str, ctx: &mut [u8]) -> i32 {
    let at = loaded.object.functions.iter().position(|f| f.name == program);
    let func = at.and_then(|at| loaded.funcs[at]).unwrap_or_else(|| panic!("no {program}"));
    let result = k.user(|k| k.run_syscall(loaded.instance, func, ctx));
    result.unwrap_or_else(|e| panic!("{e}")) as i32
}

/// A counter of a scheduler's map `stats`, summed over CPUs.
pub fn stat(k: &Kernel, loaded: &Loaded, name: &str) -> u64 {
    let at = loaded.object.maps.iter().position(|m| m.name == "stats").expect("a map of counters");
    let ty = loaded.object.maps[at].value_ty.expect("a map's value has a type");
    let field = loaded.object.btf.path(ty, name).unwrap_or_else(|e| panic!("{name}: {e}"));
    let offset = field.byte_off() as usize;
    let value = k.vm.map_lookup(loaded.maps[at], &0u32.to_ne_bytes()).expect("one element");
    let word =
        |copy: &[u8]| u64::from_ne_bytes(copy[offset..offset + 8].try_into().expect("eight bytes"));
    value.chunks(value.len() / k.cpus.len()).map(word).sum()
}

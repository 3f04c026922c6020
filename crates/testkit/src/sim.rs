// SPDX-License-Identifier: GPL-2.0-only
//! Helpers that build a simulated kernel with a workload, for tests.
//!
//! Owns: nothing but the wiring. Does not: check anything (see `checks.rs`).

use scxlab_bpf::vm::Engine;
use scxlab_kernel::Kernel;
use scxlab_kernel::boot::Setup;
use scxlab_kernel::kernel::Limits;
use scxlab_loader::link::{Loaded, OpenObject};
use scxlab_loader::object::Object;
use scxlab_machine::Machine;
use scxlab_workload::{
    ExecConfig, Perturb, Program, RegionPages, SyscallCosts, WorkloadArg, behavior, load,
    parse_workload_arg,
};
use std::sync::Arc;

/// Size of a test's guest address space, in bytes; pages take host memory only once they are
/// touched.
const MEM_SIZE: u64 = 16 << 30;

/// Parses a workload from a generator's argument, or from TOML text (recognised by `[[thread]]` or
/// `[[guest]]`).
pub fn workload(text: &str) -> Program {
    if text.contains("[[thread]]") || text.contains("[[guest]]") {
        return load("test.toml", text).unwrap_or_else(|e| panic!("{e}"));
    }
    match parse_workload_arg(text) {
        Ok(WorkloadArg::Program(program)) => *program,
        Ok(WorkloadArg::File { path, .. }) => panic!("{path} is a file"),
        Ok(WorkloadArg::Command(words)) => panic!("{words:?} is a command"),
        Err(e) => panic!("{e}"),
    }
}

/// Boots a machine with the workload `text` and no scheduler loaded.
pub fn kernel(machine: &str, text: &str, seed: u64) -> Kernel {
    kernel_on(Machine::resolve(machine).unwrap_or_else(|e| panic!("{e}")), text, seed)
}

/// As `kernel`, on a machine whose costs a test may have changed.
pub fn kernel_on(machine: Machine, text: &str, seed: u64) -> Kernel {
    boot(machine, text, seed, SyscallCosts::default(), Perturb::default())
}

/// As `kernel_on`, with system calls that take the time that the machine's cost table gives. With
/// `kernel` and `kernel_on`, system calls take no time.
pub fn kernel_with_calls(machine: Machine, text: &str, seed: u64) -> Kernel {
    let costs = SyscallCosts::of(&machine.costs);
    boot(machine, text, seed, costs, Perturb::default())
}

/// As `kernel_with_calls`, with the default perturbation of `scxlab run`: each thread starts at a
/// random offset of up to 1 ms, and each computation is up to 1 % longer or shorter.
pub fn kernel_as_run(machine: Machine, text: &str, seed: u64) -> Kernel {
    kernel_of(machine, &workload(text), seed)
}

/// As `kernel_as_run`, for a program.
pub fn kernel_of(machine: Machine, program: &Program, seed: u64) -> Kernel {
    let costs = SyscallCosts::of(&machine.costs);
    let perturb = Perturb { start_offset_max: 1_000_000, compute_noise_permille: 10 };
    boot_program(machine, program, seed, costs, perturb)
}

/// As `kernel_with_calls`, for a workload with guests whose kernels have another cost table than
/// the host.
pub fn kernel_with_guest_costs(host: Machine, guest: Machine, text: &str, seed: u64) -> Kernel {
    let costs = SyscallCosts::of(&guest.costs);
    let program = workload(text);
    let nr_cpus = host.topology.nr_cpus() as u32;
    let config = ExecConfig { nr_cpus, costs, ..Default::default() };
    let behavior = behavior(&program, config, &Arc::new(guest)).unwrap_or_else(|e| panic!("{e}"));
    let (machine, limits) = (Arc::new(host), Limits::default());
    let setup = Setup { machine, seed, limits, tracer: Default::default(), mem_size: MEM_SIZE };
    Kernel::boot(setup, behavior).unwrap_or_else(|e| panic!("{e}"))
}

fn boot(machine: Machine, text: &str, seed: u64, costs: SyscallCosts, perturb: Perturb) -> Kernel {
    boot_program(machine, &workload(text), seed, costs, perturb)
}

fn boot_program(
    machine: Machine,
    program: &Program,
    seed: u64,
    costs: SyscallCosts,
    perturb: Perturb,
) -> Kernel {
    let machine = Arc::new(machine);
    let nr_cpus = machine.topology.nr_cpus() as u32;
    let nodes = scxlab_lab::sim::nodes(&machine);
    let config = ExecConfig { nr_cpus, costs, perturb, nodes, ..Default::default() };
    let behavior = behavior(program, config, &machine).unwrap_or_else(|e| panic!("{e}"));
    let limits = Limits::default();
    let setup = Setup { machine, seed, limits, tracer: Default::default(), mem_size: MEM_SIZE };
    Kernel::boot(setup, behavior).unwrap_or_else(|e| panic!("{e}"))
}

/// Chooses the engine for objects that are linked from now on. Functions are compiled at their
/// first call.
pub fn choose_engine(k: &mut Kernel, engine: Engine) {
    k.vm.engine = engine;
    k.vm.limits.compile_after = 0;
}

/// Links an object, with its knobs set, and attaches its first scheduler.
pub fn attach(k: &mut Kernel, name: &str, bytes: &[u8], knobs: &[(&str, &str)]) {
    let loaded = link(k, name, bytes, knobs);
    k.attach_object(&loaded, None).unwrap_or_else(|e| panic!("{e}"));
}

/// As `attach`, for a shipped scheduler. Returns the loaded object, so that the test can read its
/// state.
pub fn attach_shipped(k: &mut Kernel, name: &str, knobs: &[(&str, &str)]) -> Loaded {
    let shipped = scxlab_sched::find(name).unwrap_or_else(|| panic!("no scheduler {name}"));
    let loaded = link(k, name, shipped.object, knobs);
    k.attach_object(&loaded, None).unwrap_or_else(|e| panic!("{e}"));
    loaded
}

/// Links an object, with its knobs set, and attaches nothing.
pub fn link(k: &mut Kernel, name: &str, bytes: &[u8], knobs: &[(&str, &str)]) -> Loaded {
    let object = Arc::new(Object::parse(bytes, name).unwrap_or_else(|e| panic!("{e}")));
    let target = k.target();
    let mut open = OpenObject::new(object);
    open.globals.fill_enum_globals("__", &target.btf);
    for (knob, value) in knobs {
        open.globals.set(knob, value).unwrap_or_else(|e| panic!("{e}"));
    }
    open.load(k, &target).unwrap_or_else(|e| panic!("{e}"))
}

/// Returns the CPU time of the task `name`, in ns.
pub fn run_ns(k: &Kernel, name: &str) -> u64 {
    let task = k.tasks.iter().find(|t| t.name == name);
    task.unwrap_or_else(|| panic!("no task {name}")).account.run_ns
}

/// Returns where the pages of each of the workload's regions lie.
pub fn region_pages(k: &Kernel) -> Vec<RegionPages> {
    scxlab_workload::exec::region_pages(k)
}

/// Returns the CPU time of the cgroup at `path`, in ns. Tasks of its child cgroups do not count.
pub fn group_ns(k: &Kernel, path: &str) -> u64 {
    let group = k.cgroups.iter().find(|g| g.path == path);
    group.unwrap_or_else(|| panic!("no cgroup {path}")).run_ns
}

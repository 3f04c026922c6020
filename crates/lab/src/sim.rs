// SPDX-License-Identifier: GPL-2.0-only
//! The simulated target: boots a kernel, attaches the scheduler, runs the workload, reads the
//! result.
//!
//! Owns: the order of these steps. Does not: read files or clocks, prepare schedulers
//! (`prepare.rs`).

mod empty;
mod key;
mod measure;
mod measure_guests;

use std::sync::Arc;

use scxlab_bpf::map::map_type;
use scxlab_bpf::mem::ARENA_WINDOW;
use scxlab_bpf::vm::Engine;
use scxlab_kernel::abi::KERNEL_BTF;
use scxlab_kernel::behavior::Behavior;
use scxlab_kernel::boot::Setup;
use scxlab_kernel::ext::host::KernelTarget;
use scxlab_kernel::ext::object::ObjectAttachError;
use scxlab_kernel::kernel::{Kernel, Limits, Stop};
use scxlab_kernel::metrics::Watched;
pub use scxlab_kernel::numa::NumaBalancing;
use scxlab_loader::btf::Btf;
use scxlab_loader::link::{LinkError, Loaded};
use scxlab_machine::Machine;
use scxlab_machine::id::Nanos;
use scxlab_trace::Tracer;
use scxlab_workload::{ExecConfig, NodeInfo, Perturb, Program, SyscallCosts, WorkloadError};

use crate::counters::Counters;
use crate::prepare::{Prepared, PreparedObject};
use crate::recipe::frontend::Simulated;
use crate::recipe::{RecipeError, Subject};
use crate::run::Run;
pub use key::SIMULATOR;
use measure::FinishedRun;
pub use measure::left_out;

/// All inputs of one simulated run.
#[derive(Clone, Copy)]
pub struct SimSpec<'a> {
    pub machine: &'a Arc<Machine>,
    pub workload: &'a Program,
    pub scheduler: &'a Prepared,
    pub seed: u64,
    /// Replaces the workload's own duration.
    pub duration: Option<Nanos>,
    /// Maximum length of a run whose workload has no duration.
    pub cap: Option<Nanos>,
    pub perturb: Perturb,
    /// Engine that executes the scheduler's programs; all engines give the same results.
    pub engine: Engine,
    /// Maximum memory in bytes that the object and the workload may occupy.
    pub max_memory: u64,
    pub numa_balancing: NumaBalancing,
    /// Time at which the scheduler is attached; until then, the default class has all tasks. None:
    /// before the start.
    pub attach_after: Option<Nanos>,
}

impl<'a> SimSpec<'a> {
    /// Returns a run for the workload's own duration, with the defaults of everything else and
    /// without random variation.
    pub fn new(
        machine: &'a Arc<Machine>,
        workload: &'a Program,
        scheduler: &'a Prepared,
        seed: u64,
    ) -> Self {
        SimSpec {
            machine,
            workload,
            scheduler,
            seed,
            duration: None,
            cap: None,
            perturb: Perturb::default(),
            engine: Engine::default(),
            max_memory: MAX_MEMORY,
            numa_balancing: NumaBalancing::default(),
            attach_after: None,
        }
    }

    /// Returns the duration that the user asked for, or else the workload's own.
    fn length(&self) -> Option<Nanos> {
        self.duration.or(self.workload.duration.map(|d| d.0))
    }
}

/// Reason why there is no run. An ejected scheduler is no error; its run reports the exit.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    #[error("scheduler \"{label}\": {error}")]
    Attach { label: String, error: ObjectAttachError },
    #[error("scheduler \"{label}\" was not attached: the run ended before --attach-after")]
    NotAttached { label: String },
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    #[error(
        "no memory for the simulation: {0}. `ulimit -v` or a container's limit is too low for it; --memory-limit and --jobs make it need less"
    )]
    Memory(#[from] scxlab_bpf::mem::OutOfMemory),
    #[error("scheduler \"{label}\" needs a feature that the simulator does not model: {what}")]
    Unmodelled { label: String, what: String },
}

/// Default of the maximum memory of a run, in bytes.
pub const MAX_MEMORY: u64 = Limits::MAX_MEMORY;

/// Address space for the kernel's own tables of tasks and cgroups, in bytes.
const TABLES: u64 = 1 << 30;

/// Returns the size of the address space for a simulation's guest memory: the kernel's tables of
/// tasks and cgroups, the memory that the run may occupy, and an address window for each arena.
/// Only touched pages use memory.
fn mem_size(max_memory: u64, object: Option<&PreparedObject>) -> u64 {
    let maps = object.map_or(&[][..], |o| &o.open.object().maps);
    let arenas = maps.iter().filter(|map| map.map_type == map_type::ARENA).count() as u64;
    let heap = max_memory.saturating_add(TABLES).checked_next_power_of_two().unwrap_or(u64::MAX);
    match arenas {
        0 => heap,
        _ => heap.max(ARENA_WINDOW).saturating_add(arenas * ARENA_WINDOW),
    }
}

/// Function that receives the run's progress in virtual time, and ends the run by returning a
/// reason. The function must not affect the run in any other way.
pub type Watch<'a> = dyn Fn(Nanos) -> Option<String> + 'a;

/// Runs one simulation. `tracer` records its events.
pub fn simulate(
    spec: &SimSpec<'_>,
    tracer: Tracer,
    watch: &Watch<'_>,
) -> Result<(Run, Tracer), SimError> {
    let (run, tracer, _) = simulate_watching(spec, &[], tracer, watch)?;
    Ok((run, tracer))
}

/// Runs one simulation, and also returns the waits of the tasks whose names match each of `tasks`.
pub fn simulate_watching(
    spec: &SimSpec<'_>,
    tasks: &[String],
    tracer: Tracer,
    watch: &Watch<'_>,
) -> Result<(Run, Tracer, Watched), SimError> {
    let Ready { mut kernel, mut loaded } = ready(spec, tracer)?;
    kernel.metrics.watched = Watched::new(tasks);
    let length = spec.length().or(spec.cap);
    let object = spec.scheduler.object.as_ref();
    let stop = match (spec.attach_after, object) {
        (Some(at), Some(object)) => {
            kernel.run_until(length, at, watch);
            let label = spec.scheduler.label();
            match &kernel.end.stop {
                None => loaded = Some(attach(&mut kernel, object, label, spec.machine)?),
                // An interrupted run is reported as such.
                Some(Stop::Interrupted(_)) => {}
                Some(_) => return Err(SimError::NotAttached { label: label.to_owned() }),
            }
            kernel.run_on(watch)
        }
        _ => kernel.run_watched(length, watch),
    };
    if let Stop::Unmodelled(what) = stop {
        return Err(SimError::Unmodelled { label: spec.scheduler.label().to_owned(), what });
    }
    if let Some(object) = object {
        object.open.keep_code();
    }
    sleep_on(&mut kernel, spec, &stop);
    let counters = loaded.as_ref().map_or_else(Counters::default, |loaded| {
        Counters::read(&Simulated { kernel: &mut kernel, loaded })
    });
    let tracer = std::mem::take(&mut kernel.tracer);
    let seen = FinishedRun { kernel: &kernel, loaded: loaded.as_ref(), counters: &counters };
    let run = measure::result(seen, spec, &stop, tracer.hash());
    Ok((run, tracer, std::mem::take(&mut kernel.metrics.watched)))
}

/// A booted kernel with its scheduler attached, before the workload starts.
pub(crate) struct Ready {
    pub kernel: Kernel,
    /// The loaded object; None if only the default class runs.
    pub loaded: Option<Loaded>,
}

pub(crate) fn ready(spec: &SimSpec<'_>, tracer: Tracer) -> Result<Ready, SimError> {
    let object = spec.scheduler.object.as_ref();
    let mem_size = mem_size(spec.max_memory, object);
    let limits = Limits { max_memory: spec.max_memory, ..Limits::default() };
    let setup = Setup { machine: spec.machine.clone(), seed: spec.seed, limits, tracer, mem_size };
    let mut kernel = Kernel::boot(setup, behavior(spec)?)?;
    kernel.vm.engine = spec.engine;
    let label = spec.scheduler.label();
    kernel.numa_balancing = spec.numa_balancing;
    for (tunable, value) in spec.scheduler.input.arg.tuning() {
        kernel.fair.tune(tunable, value);
    }
    let object = object.filter(|_| spec.attach_after.is_none());
    let loaded = object.map(|object| attach(&mut kernel, object, label, spec.machine));
    let loaded = loaded.transpose()?;
    Ok(Ready { kernel, loaded })
}

/// Extends a run that ended in a deadlock to its requested length, because its tasks would have
/// waited until then. The throughput is thus relative to the requested length.
fn sleep_on(kernel: &mut Kernel, spec: &SimSpec<'_>, stop: &Stop) {
    let end = spec.length().filter(|end| *end > kernel.now);
    if let (Stop::Deadlock { .. }, Some(end)) = (stop, end) {
        kernel.now = end;
        kernel.close();
    }
}

/// Returns the types of the simulated kernel, for preparing objects. No kernel is booted.
pub fn kernel_types() -> Btf {
    Btf::parse(KERNEL_BTF).expect("the kernel's own BTF is valid")
}

/// Boots a kernel without a workload, and returns its types and functions for linking. Commands
/// that inspect objects use it.
pub fn kernel_target(machine: &Arc<Machine>) -> Result<KernelTarget, SimError> {
    Ok(idle_kernel(machine, 2 * TABLES)?.target())
}

/// Loads a prepared object into a kernel without a workload, to learn whether that is possible.
pub fn try_load(object: &PreparedObject, machine: &Arc<Machine>) -> Result<(), SimError> {
    let mut kernel = idle_kernel(machine, mem_size(MAX_MEMORY, Some(object)))?;
    let target = kernel.target();
    object.open.load(&mut kernel, &target)?;
    Ok(())
}

fn idle_kernel(machine: &Arc<Machine>, mem_size: u64) -> Result<Kernel, SimError> {
    let limits = Limits::default();
    let tracer = Tracer::default();
    let setup = Setup { machine: machine.clone(), seed: 0, limits, tracer, mem_size };
    Ok(Kernel::boot(setup, Box::new(empty::EmptyWorkload))?)
}

/// Creates the behaviour of the workload, without the workload's duration. The kernel ends the run,
/// because a timer of the behaviour would look like an event that tasks may wait for.
fn behavior(spec: &SimSpec<'_>) -> Result<Box<dyn Behavior>, SimError> {
    let config = ExecConfig {
        nr_cpus: spec.machine.topology.nr_cpus() as u32,
        costs: SyscallCosts::of(&spec.machine.costs),
        perturb: spec.perturb,
        duration: None,
        nodes: nodes(spec.machine),
        endless: false,
    };
    let endless = Program { duration: None, ..spec.workload.clone() };
    Ok(scxlab_workload::behavior(&endless, config, spec.machine)?)
}

/// Returns the nodes of a machine as programs see them.
pub fn nodes(machine: &Machine) -> Vec<NodeInfo> {
    let nodes = machine.topology.nodes().iter();
    nodes.map(|node| NodeInfo { memory_bytes: node.memory_bytes }).collect()
}

/// Loads a prepared object, carries out the recipe's steps after load, attaches the object, and
/// carries out the steps after attach. `label` is for messages.
pub fn attach(
    kernel: &mut Kernel,
    prepared: &PreparedObject,
    label: &str,
    machine: &Machine,
) -> Result<Loaded, SimError> {
    let target = kernel.target();
    let loaded = prepared.open.load(kernel, &target)?;
    let subject = Subject { machine, kernel: &target.btf, table: &prepared.table };
    let failed = |error: RecipeError| match error.unmodelled() {
        Some(what) => SimError::Unmodelled { label: label.to_owned(), what: what.to_owned() },
        None => SimError::Recipe(error),
    };
    let applied = match &prepared.recipe {
        None => None,
        Some(r) => {
            let applied = r.recipe.after_load(
                subject,
                &r.applied,
                &mut Simulated { kernel, loaded: &loaded },
            );
            Some((r, applied.map_err(failed)?))
        }
    };
    kernel
        .attach_object(&loaded, Some(&prepared.table))
        .map_err(|error| SimError::Attach { label: label.to_owned(), error })?;
    if let Some((r, applied)) = applied {
        let mut frontend = Simulated { kernel, loaded: &loaded };
        r.recipe.after_attach(subject, &applied, &mut frontend).map_err(failed)?;
    }
    Ok(loaded)
}

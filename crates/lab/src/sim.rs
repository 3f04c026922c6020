// SPDX-License-Identifier: GPL-2.0-only
//! The simulated target: builds a kernel, attaches the scheduler, runs the workload, reads the result.
//!
//! Owns: the order of these steps. Does not: read files or clocks.

use crate::run::{CgroupResult, Exit, Metric, Run, TaskResult};
use indexmap::IndexMap;
use scxlab_bpf::link::{GlobalError, LinkError, OpenObject};
use scxlab_bpf::object::{Object, ObjectError};
use scxlab_kernel::boot::Setup;
use scxlab_kernel::ext::object::ObjectAttachError;
use scxlab_kernel::ext::op::Op;
use scxlab_kernel::kernel::{Kernel, Limits, Stop};
use scxlab_kernel::metrics::{TaskReport, Times};
use scxlab_machine::id::Nanos;
use scxlab_machine::topology::Distance;
use scxlab_machine::Machine;
use scxlab_trace::Tracer;
use scxlab_workload::{ExecConfig, Executor, Perturb, Program, SyscallCosts, WorkloadError};
use std::sync::Arc;

/// Everything that decides one simulated run.
pub struct SimSpec<'a> {
    pub machine: Arc<Machine>,
    pub workload: &'a Program,
    /// None: the default class alone.
    pub scheduler: Option<Arc<Object>>,
    /// How the run is labelled.
    pub label: &'a str,
    pub knobs: &'a [(String, String)],
    pub seed: u64,
    /// Takes the place of the workload's own duration.
    pub duration: Option<Nanos>,
    pub perturb: Perturb,
}

/// Why there is no run. A scheduler that is ejected is no error: its run says so.
#[derive(Debug, thiserror::Error)]
pub enum SimError {
    #[error(transparent)]
    Object(#[from] ObjectError),
    #[error("scheduler \"{label}\": {error}")]
    Knob { label: String, error: GlobalError },
    #[error(transparent)]
    Link(#[from] LinkError),
    #[error("scheduler \"{label}\": {error}")]
    Attach { label: String, error: ObjectAttachError },
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    #[error("no memory for the simulation: {0}")]
    Memory(#[from] scxlab_bpf::mem::OutOfMemory),
    #[error("not modelled: {0}")]
    Unmodelled(String),
}

/// Address space of a simulation's guest memory.
const MEM_SIZE: u64 = 64 << 30;

/// Runs one simulation, with `tracer` to take its events.
pub fn simulate(spec: &SimSpec, tracer: Tracer) -> Result<(Run, Tracer), SimError> {
    let mut kernel = boot(spec, tracer)?;
    if let Some(object) = &spec.scheduler {
        attach(&mut kernel, object, spec)?;
    }
    let stop = kernel.run(spec.duration);
    if let Stop::Unmodelled(what) = stop {
        return Err(SimError::Unmodelled(what));
    }
    let tracer = std::mem::take(&mut kernel.tracer);
    Ok((result(&kernel, spec, &stop, tracer.hash()), tracer))
}

fn boot(spec: &SimSpec, tracer: Tracer) -> Result<Kernel, SimError> {
    let costs = spec.machine.costs.clone();
    let config = ExecConfig {
        nr_cpus: spec.machine.topology.nr_cpus() as u32,
        costs: SyscallCosts::from_lookup(|name| costs.workload_ns(name)),
        perturb: spec.perturb,
        duration: spec.duration,
    };
    let executor = Executor::new(spec.workload, config)?;
    let setup = Setup {
        machine: spec.machine.clone(),
        seed: spec.seed,
        limits: Limits::default(),
        tracer,
        mem_size: MEM_SIZE,
    };
    Ok(Kernel::boot(setup, Box::new(executor))?)
}

fn attach(kernel: &mut Kernel, object: &Arc<Object>, spec: &SimSpec) -> Result<(), SimError> {
    let label = || spec.label.to_owned();
    let target = kernel.target();
    let mut open = OpenObject::new(object.clone());
    open.globals.fill_enum_globals("__", &target.btf);
    for (knob, value) in spec.knobs {
        open.globals
            .set(knob, value)
            .map_err(|error| SimError::Knob { label: label(), error })?;
    }
    let loaded = open.load(kernel, &target)?;
    kernel
        .attach_object(&loaded, None)
        .map_err(|error| SimError::Attach { label: label(), error })
}

fn result(k: &Kernel, spec: &SimSpec, stop: &Stop, hash: u64) -> Run {
    let mut notes = spec.workload.notes.clone();
    match stop {
        Stop::Finished | Stop::AllExited => {}
        Stop::Deadlock { waiting } => notes.push(format!("deadlock: {}", waiting.join("; "))),
        other => notes.push(format!("stopped: {other:?}")),
    }
    Run {
        scheduler: spec.label.to_owned(),
        seed: spec.seed,
        target: "sim",
        exit: exit(k),
        trace_hash: format!("{hash:016x}"),
        wall_ns: 0,
        virtual_ns: k.now,
        metrics: metrics(k, spec.workload),
        tasks: tasks(k),
        cgroups: cgroups(k),
        notes,
    }
}

fn exit(k: &Kernel) -> Exit {
    k.ext.exits.last().map_or_else(Exit::none, |info| Exit {
        kind: info.kind.name().into(),
        code: info.code,
        message: info.message.clone(),
        dump: info.dump.clone(),
    })
}

/// Accumulates metrics in the order in which they are shown.
struct Table(IndexMap<String, Metric>);

impl Table {
    fn put(&mut self, name: impl Into<String>, value: f64, unit: &'static str) {
        self.0.insert(name.into(), Metric { value, unit });
    }

    fn count(&mut self, name: impl Into<String>, value: u64) {
        self.put(name, value as f64, "1");
    }

    fn ns(&mut self, name: impl Into<String>, value: u64) {
        self.put(name, value as f64, "ns");
    }

    /// The five numbers of a distribution.
    fn times(&mut self, name: &str, times: &Times) {
        for (suffix, permille) in [("p50", 500), ("p90", 900), ("p99", 990), ("p99.9", 999)] {
            self.ns(format!("{name}_{suffix}"), times.permille(permille));
        }
        self.ns(format!("{name}_max"), times.max());
    }
}

fn metrics(k: &Kernel, workload: &Program) -> IndexMap<String, Metric> {
    let mut t = Table(IndexMap::new());
    let m = &k.metrics;
    let seconds = k.now as f64 / 1e9;
    let per_second = |n: u64| if seconds > 0.0 { n as f64 / seconds } else { 0.0 };
    t.put("throughput", per_second(m.work_units), "1/s");
    t.count("work_units", m.work_units);
    let _ = &workload.unit;
    t.times("wakeup_latency", &m.wakeup_latency);
    t.times("run_queue_wait", &m.run_queue_wait);
    t.count("context_switches", m.switches);
    let reports = reports(k);
    t.count("switches_voluntary", reports.iter().map(|r| r.switches_voluntary).sum());
    t.count("switches_involuntary", reports.iter().map(|r| r.switches - r.switches_voluntary).sum());
    t.count("wakeups", m.wakeups);
    for distance in [Distance::Smt, Distance::Core, Distance::Llc, Distance::Node] {
        t.count(format!("migrations_{}", distance.name()), m.migrations[distance as usize]);
    }
    t.count("migrations", m.migrations.iter().sum());
    t.count("kicks", k.cpus.iter().map(|c| c.kicks).sum());
    cpu_times(&mut t, k);
    t.ns("cache_refill", m.refill_ns);
    t.count("lock_waits", m.lock_wait.count());
    t.times("lock_wait", &m.lock_wait);
    op_costs(&mut t, k);
    t.count("events", m.events);
    t.count("bpf_instructions", k.vm.executed);
    t.0
}

fn cpu_times(t: &mut Table, k: &Kernel) {
    let sum = |f: fn(&scxlab_kernel::cpu::CpuTime) -> u64| k.cpus.iter().map(|c| f(&c.time)).sum();
    t.ns("cpu_busy", sum(|c| c.busy));
    t.ns("cpu_idle", sum(|c| c.idle));
    t.ns("cpu_overhead", sum(|c| c.overhead));
    t.ns("cpu_lock_wait", sum(|c| c.lock_wait));
    for c in &k.cpus {
        t.ns(format!("cpu{}_busy", c.id), c.time.busy);
        t.ns(format!("cpu{}_idle", c.id), c.time.idle);
        t.ns(format!("cpu{}_overhead", c.id), c.time.overhead);
    }
}

fn op_costs(t: &mut Table, k: &Kernel) {
    for op in Op::ALL {
        let cost = k.ext.op_stats.0[op as usize];
        if cost.calls > 0 {
            t.count(format!("op_{}_calls", op.name()), cost.calls);
            t.ns(format!("op_{}_mean", op.name()), cost.ns / cost.calls);
            t.count(format!("op_{}_insns", op.name()), cost.insns / cost.calls);
        }
    }
}

fn reports(k: &Kernel) -> Vec<TaskReport> {
    let ours = |t: &&scxlab_kernel::task::Task| k.is_workload(t);
    let living = k.tasks.iter().filter(ours).map(TaskReport::of);
    let mut all: Vec<TaskReport> = k.metrics.tasks.iter().cloned().chain(living).collect();
    all.sort_by_key(|r| r.pid);
    all
}

fn tasks(k: &Kernel) -> Vec<TaskResult> {
    let path = |id| k.cgroups.get(id).map_or_else(String::new, |g| g.path.clone());
    let result = |r: TaskReport| TaskResult {
        name: r.name,
        nice: r.nice,
        cgroup: path(r.cgroup),
        run_ns: r.run_ns,
        wait_ns: r.wait_ns,
        switches: r.switches,
        migrations: r.migrations,
    };
    reports(k).into_iter().map(result).collect()
}

fn cgroups(k: &Kernel) -> Vec<CgroupResult> {
    let total: u64 = k.cgroups.iter().map(|g| g.run_ns).sum();
    let result = |g: &scxlab_kernel::cgroup::Cgroup| CgroupResult {
        path: g.path.clone(),
        weight: g.spec.weight,
        run_ns: g.run_ns,
        share_permille: if total == 0 { 0.0 } else { g.run_ns as f64 * 1000.0 / total as f64 },
    };
    k.cgroups.iter().map(result).collect()
}

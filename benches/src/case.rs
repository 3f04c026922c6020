// SPDX-License-Identifier: GPL-2.0-only
//! One simulation: a scheduler's name, a workload's text, a machine's name.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use scxlab_bpf::vm::Engine;
use scxlab_lab::input::{NoFiles, SchedulerInput, Workload};
use scxlab_lab::prepare::Prepared;
use scxlab_lab::run::Run;
use scxlab_lab::session::Session;
use scxlab_lab::sim::{SimSpec, simulate};
use scxlab_machine::Machine;
use scxlab_machine::id::Nanos;
use scxlab_trace::Tracer;
use scxlab_workload::{Perturb, Program, WorkloadArg, parse_workload_arg};

use crate::host::cpu_time;

/// A case that can be run many times.
pub struct Case {
    machine: Arc<Machine>,
    workload: Program,
    scheduler: Prepared,
    duration: Nanos,
    pub engine: Engine,
}

/// One run of a case, and its cost.
pub struct Measured {
    pub run: Run,
    /// CPU time of the run, including the construction of the kernel.
    pub took: Duration,
}

impl Case {
    /// `scheduler` is `eevdf` or a shipped scheduler; `workload` is a generator with its
    /// parameters.
    pub fn new(
        scheduler: &str,
        workload: &str,
        machine: &str,
        duration: Nanos,
    ) -> Result<Case, Box<dyn Error>> {
        let machine = Arc::new(Machine::resolve(machine)?);
        let WorkloadArg::Program(workload) = parse_workload_arg(workload)? else {
            return Err(format!("{workload} is a file, not a generator").into());
        };
        let scheduler = SchedulerInput::resolve(scheduler, &NoFiles)?;
        let scheduler = Prepared::simulated(&scheduler, &machine)?;
        let engine = Engine::default();
        Ok(Case { machine, workload: *workload, scheduler, duration, engine })
    }

    /// Returns the case's machine.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// Returns a session (a series of runs) of `runs` runs with successive seeds, as
    /// `scxlab run --runs` makes it.
    pub fn session(self, runs: u32, threads: usize) -> Session {
        Session {
            machine: self.machine,
            workload: Workload::Program(Box::new(self.workload)),
            schedulers: vec![self.scheduler],
            runs,
            seed: 1,
            duration: Some(self.duration),
            cap: None,
            perturb: Perturb::default(),
            engine: self.engine,
            max_memory: scxlab_lab::sim::MAX_MEMORY,
            numa_balancing: None,
            attach_after: None,
            threads,
        }
    }

    /// Builds the kernel and runs the case once. Returns an error if the run does not count, for
    /// example because the scheduler was ejected.
    pub fn run(&self, tracer: Tracer) -> Result<Measured, Box<dyn Error>> {
        let spec = SimSpec {
            duration: Some(self.duration),
            engine: self.engine,
            ..SimSpec::new(&self.machine, &self.workload, &self.scheduler, 1)
        };
        let start = cpu_time();
        let (run, mut tracer) = simulate(&spec, tracer, &|_| None)?;
        tracer.finish()?;
        let took = cpu_time().saturating_sub(start);
        if !run.counts {
            return Err(format!("{}: {:?} {:?}", run.scheduler, run.stop, run.exit).into());
        }
        Ok(Measured { run, took })
    }
}

impl Measured {
    /// Returns a metric of the run; NaN if the run does not have it.
    pub fn metric(&self, name: &str) -> f64 {
        self.run.metrics.get(name).map_or(f64::NAN, |metric| metric.value)
    }

    /// Returns a metric per second of CPU time.
    pub fn rate(&self, name: &str) -> f64 {
        self.metric(name) / self.took.as_secs_f64()
    }

    /// Returns virtual seconds per second of CPU time.
    pub fn speed(&self) -> f64 {
        self.run.virtual_ns as f64 / 1e9 / self.took.as_secs_f64()
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! One simulation: a scheduler's name, a workload's text, a machine's name.

use std::cell::Cell;
use std::error::Error;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use scxlab_bpf::vm::Engine;
use scxlab_lab::input::{InputFiles, SchedulerInput, Workload};
use scxlab_lab::prepare::Prepared;
use scxlab_lab::run::Run;
use scxlab_lab::session::Session;
use scxlab_lab::sim::{SimSpec, simulate};
use scxlab_machine::id::Nanos;
use scxlab_machine::{Machine, SysfsReader};
use scxlab_trace::Tracer;
use scxlab_workload::{Perturb, Program, WorkloadArg, parse_workload_arg};

use crate::callgrind;
use crate::host::cpu_time;

/// A case that can be run many times.
pub struct Case {
    machine: Arc<Machine>,
    workload: Program,
    scheduler: Prepared,
    duration: Nanos,
    pub engine: Engine,
    /// Virtual time from which on a run's CPU time counts. At 0, the construction of the kernel
    /// counts as well. A profile of callgrind covers the same part.
    pub counted_from: Nanos,
}

/// One run of a case, and its cost.
pub struct Measured {
    pub run: Run,
    /// CPU time of the counted part of the run.
    pub took: Duration,
    counted_from: Nanos,
}

/// The object files of published schedulers, which `make scx-objects` downloads.
struct Objects;

impl SysfsReader for Objects {
    fn read(&self, _: &str) -> io::Result<String> {
        Err(io::ErrorKind::NotFound.into())
    }
}

impl InputFiles for Objects {
    fn is_file(&self, path: &str) -> bool {
        Path::new(path).is_file()
    }

    fn read(&self, path: &str) -> io::Result<Bytes> {
        std::fs::read(path).map(Bytes::from)
    }
}

/// Returns the path of a published scheduler's object, if it was downloaded.
pub fn published(scheduler: &str) -> Option<PathBuf> {
    let objects = Path::new(env!("CARGO_MANIFEST_DIR")).join("../build/scx/objects");
    Some(objects.join(format!("{scheduler}.bpf.o"))).filter(|path| path.is_file())
}

impl Case {
    /// `scheduler` is `eevdf`, a shipped scheduler, or the path of an object; `workload` is a
    /// generator with its parameters.
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
        let scheduler = SchedulerInput::resolve(scheduler, &Objects)?;
        let scheduler = Prepared::simulated(&scheduler, &machine)?;
        let engine = Engine::default();
        let workload = *workload;
        Ok(Case { machine, workload, scheduler, duration, engine, counted_from: 0 })
    }

    /// Changes the length of the runs that follow.
    pub fn set_duration(&mut self, duration: Nanos) {
        self.duration = duration;
    }

    /// Compiles what the runs so far have interpreted.
    pub fn compile_used(&self) {
        self.scheduler.object.iter().for_each(|object| object.open.compile_used());
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
        let begun = Cell::new(None);
        let begin = |now| {
            if now >= self.counted_from && begun.get().is_none() {
                callgrind::start();
                begun.set(Some(cpu_time()));
            }
            None
        };
        begin(0);
        let (run, mut tracer) = simulate(&spec, tracer, &begin)?;
        callgrind::stop();
        tracer.finish()?;
        let took = begun.get().map_or(Duration::ZERO, |start| cpu_time().saturating_sub(start));
        if !run.counts {
            return Err(format!("{}: {:?} {:?}", run.scheduler, run.stop, run.exit).into());
        }
        Ok(Measured { run, took, counted_from: self.counted_from })
    }
}

impl Measured {
    /// Returns a metric of the run; NaN if the run does not have it.
    pub fn metric(&self, name: &str) -> f64 {
        self.run.metrics.get(name).map_or(f64::NAN, |metric| metric.value)
    }

    /// Returns a metric per second of CPU time, if the whole run counts.
    pub fn rate(&self, name: &str) -> f64 {
        self.metric(name) / self.took.as_secs_f64()
    }

    /// Returns virtual seconds of the counted part per second of CPU time.
    pub fn speed(&self) -> f64 {
        let counted = self.run.virtual_ns - self.counted_from;
        counted as f64 / 1e9 / self.took.as_secs_f64()
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! One run on the running kernel.
//!
//! Owns: the order of attaching the scheduler and the probe, running the workload, and detaching
//! both.
//! Does not: repeat or compare runs.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use scxlab_lab::input::Workload;
use scxlab_lab::prepare::Prepared;
use scxlab_lab::run::{Exit, Run};
use scxlab_machine::Machine;
use scxlab_machine::id::Nanos;
use scxlab_workload::native::{
    self, Calibration, CommandReport, CommandStatus, NativeConfig, NativeReport, NativeStop,
    Unlisted,
};
use scxlab_workload::{Perturb, Program};

use crate::LiveError;
use crate::guest::{self, GuestHost, GuestReport};
use crate::kernel::{RunningKernel, now};
use crate::measure::{Measured, NumaCounts};
use crate::probe::{Probe, Window};
use crate::scheduler::Scheduler;
use crate::trace::Recording;
use crate::tuning::Tuning;

/// The reports of a workload and of its guests.
type Reports = (NativeReport, Vec<GuestReport>);

/// Runs the workload. With `attach`, calls it when the workload has run for `spec.attach_after`.
fn run_workload<T>(
    spec: &LiveSpec<'_>,
    probe: &Probe,
    attach: Option<impl FnOnce() -> Result<T, LiveError>>,
) -> Result<(Reports, Option<T>), LiveError> {
    let (after, attach) = match (spec.attach_after, attach) {
        (Some(after), Some(attach)) => (after, attach),
        _ => return Ok((run_all(spec, probe.window()?)?, None)),
    };
    let (window, seen) = (probe.window()?, probe.window()?);
    let ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let work = scope.spawn(|| {
            let report = run_all(spec, window);
            ended.store(true, Ordering::Relaxed);
            report
        });
        let is_time = || seen.start().is_some_and(|start| now() >= start.saturating_add(after));
        while !is_time() && !ended.load(Ordering::Relaxed) {
            std::thread::sleep(ATTACH_POLL);
        }
        let attached = (!ended.load(Ordering::Relaxed)).then(attach);
        let report = work.join().expect("the workload's thread does not panic")?;
        match attached {
            Some(attached) => Ok((report, Some(attached?))),
            None => Err(LiveError::NotAttached),
        }
    })
}

/// Interval between two looks at the time of a late attach.
const ATTACH_POLL: Duration = Duration::from_millis(5);

fn run_all(spec: &LiveSpec<'_>, window: Window) -> Result<Reports, LiveError> {
    let program = match spec.workload {
        Workload::Program(program) => program,
        Workload::Command(words) => {
            let start = now();
            let until = spec.duration.map_or(u64::MAX, |d| start.saturating_add(d));
            window.set(start, until)?;
            return Ok((of_command(native::run_command(words, spec.duration)?), Vec::new()));
        }
    };
    let config = NativeConfig {
        duration: spec.duration,
        cgroup_root: spec.cgroup_root.clone(),
        seed: spec.seed,
        perturb: spec.perturb,
        calibration: spec.calibration,
        on_start: Some(window.start_signal()?),
        ..NativeConfig::default()
    };
    guest::run(program, config, spec.guests)
}

/// Converts the report of a workload that is a command to the form of the report of a workload
/// program. The result lists no threads, because only the probe knows them.
fn of_command(report: CommandReport) -> NativeReport {
    let mut notes = Vec::new();
    if !report.succeeded() {
        let words = report.command.join(" ");
        let said = if report.stderr.trim().is_empty() { &report.stdout } else { &report.stderr };
        let end: Vec<&str> = said.trim_end().lines().rev().take(5).collect();
        let end: Vec<&str> = end.into_iter().rev().collect();
        notes.push(format!("{words}: {:?}: {}", report.status, end.join(" | ")));
    }
    NativeReport {
        started_ns: report.started_ns,
        ended_ns: report.ended_ns,
        stop: match report.status {
            CommandStatus::TimedOut => NativeStop::Duration,
            _ => NativeStop::AllExited,
        },
        calibration: Calibration { iterations: 0, ns: 1, cpu: 0 },
        unit: "run".into(),
        tasks: Vec::new(),
        templates: Vec::new(),
        unlisted: Unlisted { work_units: report.work_units(), ..Unlisted::default() },
        regions: Vec::new(),
        uncounted: 0,
        errors: Vec::new(),
        nr_errors: 0,
        notes,
    }
}

/// All inputs of one run.
pub struct LiveSpec<'a> {
    /// Description of this machine.
    pub machine: &'a Machine,
    pub workload: &'a Workload,
    pub scheduler: &'a Prepared,
    pub seed: u64,
    pub duration: Option<Nanos>,
    pub perturb: Perturb,
    /// Directory in which the workload's cgroups are made.
    pub cgroup_root: Option<PathBuf>,
    /// Speed of the `compute` loop on this machine. Runs that are compared must have the same
    /// calibration.
    pub calibration: Option<Calibration>,
    /// Hypervisor for the workload's guests.
    pub guests: &'a dyn GuestHost,
    /// Time after the workload's start at which the scheduler is attached; None: before the start.
    pub attach_after: Option<Nanos>,
    /// Target name for the result: `host` or `vm`.
    pub target: &'static str,
    /// Buffer size in bytes, a power of two, for the events of a traced run.
    pub trace: Option<u32>,
}

/// Runs the workload under the scheduler, from attaching to detaching.
pub fn run(
    kernel: &RunningKernel,
    spec: &LiveSpec<'_>,
) -> Result<(Run, Option<Recording>), LiveError> {
    kernel.check_free()?;
    let began = Instant::now();
    let label = spec.scheduler.label();
    let object = spec.scheduler.object.as_ref();
    let attach = |object| Scheduler::attach(object, label, spec.machine, kernel);
    let late = object.filter(|_| spec.attach_after.is_some());
    let attached = object.filter(|_| late.is_none()).map(attach).transpose()?;
    let tuning = Tuning::apply(&spec.scheduler.input.arg)?;
    let stats = RunStats::enable();
    let nr_cpus = spec.machine.topology.nr_cpus() as u32;
    let directed = matches!(spec.workload, Workload::Program(_));
    let probe = Probe::attach(kernel, directed, nr_cpus, spec.trace)?;
    let before = NumaCounts::read();
    let ((report, guests), later) =
        run_workload(spec, &probe, late.map(|object| || attach(object)))?;
    let attached = attached.or(later);
    let numa = NumaCounts::read().since(before);
    let program = match spec.workload {
        Workload::Program(program) => Program::clone(program),
        Workload::Command(_) => Program::default(),
    };
    let reading = probe.read(report.started_ns, report.ended_ns)?;
    let recording = spec.trace.map(|_| probe.recording()).transpose()?;
    let trace = recording.as_ref().map(Recording::counts);
    let ops = attached.as_ref().map(Scheduler::op_costs).unwrap_or_default();
    let verified = attached.as_ref().map(Scheduler::verified_insns).unwrap_or_default();
    let counters = attached.as_ref().map(Scheduler::counters).unwrap_or_default();
    drop(stats);
    tuning.restore()?;
    let left_out = attached.as_ref().map(Scheduler::left_out).unwrap_or_default();
    let (exit, notes) = match attached {
        None => (Exit::none(), Vec::new()),
        Some(mut scheduler) => {
            let notes = std::mem::take(&mut scheduler.notes);
            (scheduler.detach(report.started_ns), notes)
        }
    };
    let measured = Measured {
        report: &report,
        guests: &guests,
        reading: &reading,
        numa,
        topology: &spec.machine.topology,
        ops: &ops,
        counters: &counters,
        verified: &verified,
        trace,
        perturb: spec.perturb,
    };
    let run = Run {
        scheduler: label.to_owned(),
        seed: spec.seed,
        target: spec.target.into(),
        stop: measured.stop(),
        counts: false,
        never_ran: Vec::new(),
        left_out,
        // The trace of a real run cannot be reproduced, so it has no hash.
        trace_hash: String::new(),
        trace,
        wall_ns: u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX),
        virtual_ns: report.length_ns(),
        metrics: measured.metrics().into_values(),
        tasks: measured.tasks(),
        cgroups: measured.cgroups(&program),
        memory: measured.regions(),
        guests: guest::results(&guests, &measured.tasks()),
        notes: measured.notes(&program, &exit, &notes),
        exit,
    };
    Ok((run.with_verdict(&program), recording))
}

/// Makes the kernel count calls and run time of BPF programs until dropped.
pub struct RunStats(i32);

impl RunStats {
    pub fn enable() -> RunStats {
        // SAFETY: bpf_enable_stats takes a number and returns a file descriptor or an error.
        RunStats(unsafe { libbpf_sys::bpf_enable_stats(libbpf_sys::BPF_STATS_RUN_TIME) })
    }
}

impl Drop for RunStats {
    fn drop(&mut self) {
        if self.0 >= 0 {
            // SAFETY: this struct owns the descriptor, and nothing uses it afterwards.
            unsafe { libc::close(self.0) };
        }
    }
}

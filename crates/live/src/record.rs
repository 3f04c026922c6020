// SPDX-License-Identifier: GPL-2.0-only
//! Recording of a workload on the running kernel: scheduling events of all tasks, and system calls
//! and attributes of the tasks of the workload, as events of the trace schema.
//!
//! Owns: the order of a recording, and its limits. Does not: know the form of the output (any
//! `Sink` takes the events), or infer anything from events.
//!
//! ```text
//! record.bpf.c -> ring -> Recorder (loads, drains) -> Converter (pids, names, order of time) -> Sink
//! ```
//!
//! Tasks of the workload have attributes in the recording, other tasks have none. Others are
//! recorded too, because a CPU that runs them is not free for the workload.

mod cgroups;
mod command;
mod convert;
mod recorder;
#[cfg(test)]
mod tests;

use std::cell::RefCell;
use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use scxlab_loader::btf::BtfKind;
use scxlab_trace::Sink;

use crate::LiveError;
use crate::abi::record as abi;
use crate::kernel::{RunningKernel, now};
use crate::run::RunStats;
use cgroups::Cgroups;
use command::{Child, CommandEnd};
use convert::{Converter, Totals};
use recorder::{Recorder, Settings};

/// Interval at which the ring is drained. An event waits at most two intervals for earlier events
/// of other CPUs.
const INTERVAL: Duration = Duration::from_millis(20);

/// The workload: tasks whose calls and attributes are recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// All tasks of the machine, except those of this process.
    Machine,
    /// A process, by its id, with its descendants.
    Process(u32),
    /// A cgroup, by its directory or its path from the top of the hierarchy, with those below it.
    Cgroup(String),
    /// A command that is started for the recording, with its descendants.
    Command(Vec<OsString>),
}

/// A recording to make.
#[derive(Clone, Debug)]
pub struct RecordSpec {
    pub scope: Scope,
    /// Time after which the recording ends; None: when the command ends, or `stop` is set.
    pub duration: Option<Duration>,
    /// Size of the ring in bytes, a power of two.
    pub ring: u32,
}

/// Figures of a recording that was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Recorded {
    pub length: Duration,
    pub events: u64,
    /// Tasks of the workload.
    pub members: u64,
    /// Calls of the workload among the events.
    pub calls: u64,
    /// Events for which the ring had no room.
    pub lost: u64,
    /// Events at which the kernel did not run the recorder's programs.
    pub missed: u64,
    /// Calls that are left out, because their arguments could not be read.
    pub unread: u64,
    /// Run time of the recorder's BPF programs, on all CPUs.
    pub bpf: Duration,
    /// CPU time of this process while it drained the ring.
    pub cpu: Duration,
    /// How the command ended, if it was none of the usual ways.
    pub note: Option<String>,
}

/// A recording that can begin: everything that can be refused has been checked.
pub struct Recording {
    spec: RecordSpec,
    recorder: Recorder,
    cgroups: Cgroups,
    nr_cpus: usize,
}

impl Recording {
    /// Loads and attaches the recorder's programs, on a machine with `nr_cpus` CPUs.
    pub fn prepare(spec: RecordSpec, nr_cpus: usize) -> Result<Recording, LiveError> {
        let interrupt_mask = check_kernel()?.interrupt_mask();
        let cgroups = Cgroups::find(nr_cpus);
        let (scope, process, cgroup) = match &spec.scope {
            Scope::Machine => (abi::SCOPE_ALL, 0, 0),
            Scope::Process(pid) => (abi::SCOPE_PROCESS, check_process(*pid)?, 0),
            Scope::Cgroup(name) => (abi::SCOPE_CGROUP, 0, cgroups.id_of(name)?),
            Scope::Command(words) => {
                command::check(words)?;
                (abi::SCOPE_CHILDREN, 0, 0)
            }
        };
        let settings =
            Settings { scope, process, cgroup, nr_cpus, interrupt_mask, ring: spec.ring };
        Ok(Recording { spec, recorder: Recorder::attach(&settings)?, cgroups, nr_cpus })
    }

    /// Records until the end of the command, of the time, or until `stop` is set. The caller
    /// finishes the sink.
    pub fn run(self, sink: &mut dyn Sink, stop: &AtomicBool) -> Result<Recorded, LiveError> {
        let Recording { spec, recorder, cgroups, nr_cpus } = self;
        let stats = RunStats::enable();
        let mut converter = Converter::new(sink, cgroups, nr_cpus);
        recorder.list_tasks(|bytes| converter.take(bytes))?;
        let (bpf_before, cpu_before, began) = (recorder.run_time(), cpu_time(), Instant::now());
        converter.start(now());
        let converter = RefCell::new(converter);
        let ring = recorder.ring(|bytes| converter.borrow_mut().take(bytes))?;
        let mut child = match &spec.scope {
            Scope::Command(words) => Some(Child::start(words)?),
            _ => None,
        };
        let is_over = || spec.duration.is_some_and(|d| began.elapsed() >= d);
        let mut settled = 0;
        loop {
            let ended = child.as_mut().is_some_and(Child::has_ended);
            let last = ended || is_over() || stop.load(Ordering::Relaxed);
            if last {
                converter.borrow_mut().end(now());
            }
            let noted = now();
            ring.drain()?;
            converter.borrow_mut().count(&recorder.counts()?);
            if last {
                break;
            }
            converter.borrow_mut().release(settled);
            settled = noted;
            std::thread::sleep(INTERVAL);
        }
        let length = began.elapsed();
        drop(ring);
        let mut converter = converter.into_inner();
        converter.release(u64::MAX);
        let missed = recorder.missed();
        converter.miss(missed);
        let (bpf, cpu) = (recorder.run_time() - bpf_before, cpu_time() - cpu_before);
        drop(stats);
        let note = child.and_then(|child| child.end().map(|end| said(&end)));
        let Totals { events, members, calls, lost, unread } = converter.totals();
        Ok(Recorded { length, events, members, calls, lost, missed, unread, bpf, cpu, note })
    }
}

fn said(end: &CommandEnd) -> String {
    match end {
        CommandEnd::Status(status) => format!("the command ended with {status}"),
        CommandEnd::Killed => "the command was still running, and was ended".into(),
    }
}

/// Checks that this kernel can be recorded.
fn check_kernel() -> Result<RunningKernel, LiveError> {
    let kernel = RunningKernel::to_observe()?;
    match kernel.btf.find(NEWEST, BtfKind::Func) {
        Some(_) => Ok(kernel),
        None => Err(LiveError::TooOld { release: kernel.release }),
    }
}

/// The newest function of the kernel that the programs cannot do without.
const NEWEST: &str = "bpf_rdonly_cast";

fn check_process(pid: u32) -> Result<u32, LiveError> {
    let status = std::fs::read_to_string(Path::new("/proc").join(pid.to_string()).join("status"));
    let status = status.map_err(|_| LiveError::NoSuchProcess { pid })?;
    let process = status.lines().find_map(|line| line.strip_prefix("Tgid:"));
    process.and_then(|id| id.trim().parse().ok()).ok_or(LiveError::NoSuchProcess { pid })
}

/// Returns the CPU time that this process has used.
fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable, and every process has this clock.
    unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

fn failed(error: libbpf_rs::Error) -> LiveError {
    LiveError::Recorder(format!("{error:#}"))
}

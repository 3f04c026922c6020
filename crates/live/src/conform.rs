// SPDX-License-Identifier: GPL-2.0-only
//! A conformance case on the real kernel. The simulator runs the same case, and the lab compares
//! both runs.
//!
//! Owns: the actions that the case takes on tasks from outside, at their times. Does not: compare
//! the two runs.

use std::fs;
use std::path::Path;
use std::time::Duration;

use libbpf_rs::Object;
use scxlab_lab::conform::{Action, Case, Observed, Timed, log};
use scxlab_lab::prepare::Prepared;
use scxlab_machine::Machine;
use scxlab_workload::native::{self, NativeConfig};
use scxlab_workload::program::PolicyDef;

use crate::LiveError;
use crate::kernel::{RunningKernel, now};
use crate::scheduler::Scheduler;
use crate::witness::Witness;

/// Runs the case once under a scheduler.
pub fn observe(
    kernel: &RunningKernel,
    case: &Case,
    scheduler: &Prepared,
    machine: &Machine,
    cgroup_root: &Path,
) -> Result<Observed, LiveError> {
    kernel.check_free()?;
    let failed = |what: String| LiveError::Case { case: case.name.clone(), what };
    let object = scheduler.object.as_ref();
    let object = object.ok_or_else(|| failed("the default class has no operations".into()))?;
    let mut witness = None;
    let watched = |loaded: &Object| {
        witness = Some(Witness::attach(object, loaded)?);
        Ok(())
    };
    let scheduler = Scheduler::attach_with(object, scheduler.label(), machine, kernel, watched)?;
    let started = native::StartSignal::new().map_err(|e| failed(e.to_string()))?;
    let config = NativeConfig {
        duration: Some(case.duration.0),
        cgroup_root: Some(cgroup_root.to_owned()),
        on_start: Some(started.clone()),
        ..NativeConfig::default()
    };
    let (report, acted) = std::thread::scope(|threads| {
        let actor = threads.spawn(|| act_in_time(&case.timeline, &started, cgroup_root));
        let report = native::run(&case.workload, &config);
        started.cancel();
        (report, actor.join())
    });
    let report = report?;
    match acted {
        Ok(Ok(())) => {}
        Ok(Err(what)) => return Err(failed(what)),
        Err(_) => return Err(failed("the thread that acts on tasks panicked".into())),
    }
    // Read the recorded calls before the scheduler is detached, because a case does not compare the
    // operations that the detach causes. It compares the exit.
    let (entries, lost) = witness.map_or(Ok(Default::default()), |w| w.entries())?;
    let exit = scheduler.detach(report.started_ns);
    Ok(Observed {
        sequences: log::sequences(case, &entries, report.started_ns),
        exit: exit.kind,
        lost,
    })
}

fn act_in_time(
    timeline: &[Timed],
    started: &native::StartSignal,
    cgroup_root: &Path,
) -> Result<(), String> {
    if timeline.is_empty() {
        return Ok(());
    }
    let Some(start) = started.wait() else { return Ok(()) };
    for timed in timeline {
        sleep_until(start + timed.at.0);
        act(&timed.action, cgroup_root)
            .map_err(|why| format!("at {} ms: {why}", timed.at.0 / 1_000_000))?;
    }
    Ok(())
}

/// Sleeps until a time on CLOCK_MONOTONIC, in ns.
fn sleep_until(at: u64) {
    std::thread::sleep(Duration::from_nanos(at.saturating_sub(now())));
}

fn act(action: &Action, cgroup_root: &Path) -> Result<(), String> {
    match action {
        Action::Nice { task, value } => {
            let tid = task_named(task)?;
            // SAFETY: setpriority takes numbers only.
            let ret = unsafe { libc::setpriority(libc::PRIO_PROCESS, tid as u32, (*value).into()) };
            checked(ret, "setpriority")
        }
        Action::Affinity { task, cpus } => {
            let tid = task_named(task)?;
            // SAFETY: an all-zero cpu_set_t is valid.
            let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
            for cpu in cpus.iter() {
                // SAFETY: CPU_SET checks that the CPU is within the bounds of `set`.
                unsafe { libc::CPU_SET(cpu as usize, &mut set) };
            }
            // SAFETY: `set` has the size that the call passes.
            let ret = unsafe { libc::sched_setaffinity(tid, size_of_val(&set), &raw const set) };
            checked(ret, "sched_setaffinity")
        }
        Action::Policy { task, policy } => {
            let tid = task_named(task)?;
            let (policy, priority) = match policy {
                PolicyDef::Normal => (libc::SCHED_OTHER, 0),
                PolicyDef::Batch => (libc::SCHED_BATCH, 0),
                PolicyDef::Idle => (libc::SCHED_IDLE, 0),
                PolicyDef::Fifo(priority) => (libc::SCHED_FIFO, i32::from(*priority)),
                PolicyDef::Rr(priority) => (libc::SCHED_RR, i32::from(*priority)),
                other => return Err(format!("policy {other:?} cannot be set from outside")),
            };
            let param = libc::sched_param { sched_priority: priority };
            // SAFETY: `param` outlives the call of sched_setscheduler.
            let ret = unsafe { libc::sched_setscheduler(tid, policy, &raw const param) };
            checked(ret, "sched_setscheduler")
        }
        Action::Cgroup { task, path } => {
            let tid = task_named(task)?;
            write(&group(cgroup_root, path).join("cgroup.procs"), &tid.to_string())
        }
        Action::Weight { path, weight } => {
            write(&group(cgroup_root, path).join("cpu.weight"), &weight.to_string())
        }
        Action::Hotplug { cpu, online } => {
            let file = format!("/sys/devices/system/cpu/cpu{cpu}/online");
            write(Path::new(&file), if *online { "1" } else { "0" })
        }
    }
}

fn group(root: &Path, path: &str) -> std::path::PathBuf {
    root.join(path.trim_start_matches('/'))
}

fn write(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|e| format!("writing {text} to {}: {e}", path.display()))
}

fn checked(ret: i32, call: &str) -> Result<(), String> {
    if ret == 0 { Ok(()) } else { Err(format!("{call}: {}", std::io::Error::last_os_error())) }
}

/// Returns the thread id of the task with this name.
fn task_named(name: &str) -> Result<i32, String> {
    let entries = |path: &str| {
        let dir = fs::read_dir(path).into_iter().flatten();
        dir.filter_map(|e| e.ok()?.file_name().into_string().ok()?.parse::<i32>().ok())
    };
    for pid in entries("/proc") {
        for tid in entries(&format!("/proc/{pid}/task")) {
            let comm = fs::read_to_string(format!("/proc/{pid}/task/{tid}/comm"));
            if comm.is_ok_and(|comm| comm.trim_end() == name) {
                return Ok(tid);
            }
        }
    }
    Err(format!("no task is called {name}"))
}

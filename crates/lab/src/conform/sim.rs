// SPDX-License-Identifier: GPL-2.0-only
//! Runs a conformance case on the simulated kernel, and returns the operations that this kernel
//! called.

use std::sync::Arc;

use scxlab_kernel::Kernel;
use scxlab_kernel::behavior::{Sys, SysError};
use scxlab_machine::Machine;
use scxlab_machine::cpumask::CpuMask;
use scxlab_machine::id::{CgroupId, CpuId, TaskId};

use super::{Action, Case, LogEntry, Observed, log};
use crate::prepare::Prepared;
use crate::sim::{Ready, SimError, SimSpec, ready};

#[derive(Debug, thiserror::Error)]
pub enum SimCaseError {
    #[error(transparent)]
    Sim(#[from] SimError),
    #[error("{case}: at {at_ms} ms: {why}")]
    Action { case: String, at_ms: u64, why: String },
}

/// Runs the case under a scheduler. `Case::tracer` gives the `-s` argument that sets the tracer's
/// knobs.
pub fn simulate(
    case: &Case,
    scheduler: &Prepared,
    machine: &Arc<Machine>,
    seed: u64,
) -> Result<Observed, SimCaseError> {
    let spec = SimSpec {
        duration: Some(case.duration.0),
        ..SimSpec::new(machine, &case.workload, scheduler, seed)
    };
    let Ready { mut kernel, .. } = ready(&spec, Default::default())?;
    let failed = |at: u64, why: String| SimCaseError::Action {
        case: case.name.clone(),
        at_ms: at / 1_000_000,
        why,
    };
    kernel.ext.op_record = Some(Vec::new());
    kernel.start();
    for timed in &case.timeline {
        kernel.advance(timed.at.0);
        let done = kernel.user(|k| act(k, &timed.action));
        done.map_err(|why| failed(timed.at.0, why))?;
    }
    kernel.advance(case.duration.0);
    let exit = kernel.ext.exits.last().map_or("none", |e| e.kind.name()).to_owned();
    kernel.detach();
    let calls = kernel.ext.op_record.take().unwrap_or_default();
    let entries: Vec<LogEntry> = calls.iter().filter_map(LogEntry::of).collect();
    Ok(Observed {
        sequences: log::sequences(case, &entries, scxlab_kernel::kernel::BOOT_NS),
        exit,
        lost: 0,
    })
}

fn act(k: &mut Kernel, action: &Action) -> Result<(), String> {
    let error = |e: SysError| e.to_string();
    match action {
        Action::Nice { task, value } => {
            let task = task_named(k, task)?;
            k.set_nice(task, *value).map_err(error)
        }
        Action::Affinity { task, cpus } => {
            let task = task_named(k, task)?;
            let mask = CpuMask::of(k.cpus.len(), cpus.iter().map(CpuId));
            k.set_affinity(task, &mask).map_err(error)
        }
        Action::Policy { task, policy } => {
            let task = task_named(k, task)?;
            k.set_policy(task, scxlab_workload::exec::kernel_policy(*policy)).map_err(error)
        }
        Action::Cgroup { task, path } => {
            let (task, group) = (task_named(k, task)?, group_at(k, path)?);
            k.move_to_cgroup(task, group).map_err(error)
        }
        Action::Weight { path, weight } => {
            let group = group_at(k, path)?;
            let spec = k.cgroups.get(group).ok_or("no such cgroup")?.spec;
            let spec = scxlab_kernel::behavior::CgroupSpec { weight: *weight, ..spec };
            k.set_cgroup(group, spec).map_err(error)
        }
        Action::Hotplug { cpu, online } => k.set_cpu_online(CpuId(*cpu), *online).map_err(error),
    }
}

fn task_named(k: &Kernel, name: &str) -> Result<TaskId, String> {
    let found = k.tasks.iter().find(|t| t.name == name).map(|t| t.id);
    found.ok_or_else(|| format!("no task {name}"))
}

fn group_at(k: &Kernel, path: &str) -> Result<CgroupId, String> {
    let found = k.cgroups.iter().find(|g| g.path == path).map(|g| g.id);
    found.ok_or_else(|| format!("no cgroup {path}"))
}

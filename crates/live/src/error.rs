// SPDX-License-Identifier: GPL-2.0-only
//! Errors on a real kernel, with advice.

use std::path::PathBuf;

use scxlab_lab::prepare::PrepareError;
use scxlab_workload::native::NativeError;

use crate::gang::GangError;
use crate::guest::GuestError;

/// Reason why a request to a real kernel was not carried out.
#[derive(Debug, thiserror::Error)]
pub enum LiveError {
    #[error(
        "loading a scheduler needs root (CAP_BPF, CAP_SYS_ADMIN, CAP_PERFMON); run as root, or use --on vm"
    )]
    NotRoot,
    #[error(
        "this kernel ({release}) has no sched_ext: it needs Linux 6.12 or later with CONFIG_SCHED_CLASS_EXT; \
         `scxlab run --on vm` brings one"
    )]
    NoSchedExt { release: String },
    #[error("this kernel ({release}) does not show its types (CONFIG_DEBUG_INFO_BTF): {why}")]
    NoBtf { release: String, why: String },
    #[error("the sched_ext scheduler \"{name}\" is loaded already; stop it first")]
    Busy { name: String },
    #[error("scheduler \"{label}\": {what}{}", detail(.log))]
    Load { label: String, what: String, log: String },
    #[error("scheduler \"{label}\": program {program} is rejected by the kernel's verifier{}{}",
        .source_line.as_ref().map_or(String::new(), |s| format!(" at {s}")), detail(.log))]
    Verifier { label: String, program: String, source_line: Option<String>, log: String },
    #[error("scheduler \"{label}\" could not be attached: {why}")]
    Attach { label: String, why: String },
    #[error("{name} of the default class cannot be set: {}: {why}", .file.display())]
    Tunable { name: &'static str, file: PathBuf, why: String },
    #[error(
        "kernel.numa_balancing is {found}, not {wanted}; set it with `sysctl kernel.numa_balancing={wanted}`"
    )]
    NumaBalancing { wanted: String, found: String },
    #[error(
        "this kernel has no NUMA balancing (CONFIG_NUMA_BALANCING): /proc/sys/kernel/numa_balancing: {why}"
    )]
    NoNumaBalancing { why: String },
    #[error("the scheduler was not attached: the workload ended before --attach-after")]
    NotAttached,
    #[error("the probe: {0}")]
    Probe(String),
    #[error(
        "recording needs root (CAP_BPF, CAP_PERFMON, and CAP_SYS_ADMIN for statistics); run as root"
    )]
    NotRootToRecord,
    #[error("this kernel ({release}) is too old to be recorded: it needs Linux 6.2 or later")]
    TooOld { release: String },
    #[error(
        "this kernel does not show the variable {symbol} (CONFIG_KALLSYMS_ALL), by which scxlab tells wake-ups by interrupts from those by tasks"
    )]
    NoSymbol { symbol: String },
    #[error("there is no process {pid}")]
    NoSuchProcess { pid: u32 },
    #[error("cgroup v2 is not mounted here")]
    NoCgroups,
    #[error(transparent)]
    Cgroup(#[from] GangError),
    #[error("the command \"{command}\" cannot be started: {why}")]
    Command { command: String, why: String },
    #[error("the recorder: {0}")]
    Recorder(String),
    #[error("the witness of operations: {0}")]
    Witness(String),
    #[error(transparent)]
    Recipe(#[from] scxlab_lab::recipe::RecipeError),
    #[error(transparent)]
    Prepare(#[from] PrepareError),
    #[error(transparent)]
    Workload(#[from] NativeError),
    #[error(
        "{at}: guest \"{guest}\" cannot run here, where each guest is a virtual machine under KVM: {why}"
    )]
    NoKvm { at: String, guest: String, why: String },
    #[error("{at}: guest \"{guest}\" cannot run on a real kernel: {what}")]
    GuestProperty { at: String, guest: String, what: String },
    #[error(transparent)]
    Guest(#[from] GuestError),
    #[error(transparent)]
    Machine(scxlab_machine::MachineError),
    #[error(transparent)]
    CaseText(#[from] scxlab_lab::conform::CaseError),
    #[error("case {case}: {what}")]
    Case { case: String, what: String },
}

/// Formats the end of a log, to follow the message on a new line.
fn detail(log: &str) -> String {
    if log.trim().is_empty() { String::new() } else { format!("\n{}", log.trim_end()) }
}

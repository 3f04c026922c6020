// SPDX-License-Identifier: GPL-2.0-only
//! Errors that prevent a native run, and calls that the kernel refuses during a run.
//!
//! Owns: the messages. The message on a refused call names the thread, the op, the kernel's reason,
//! and a remedy.

use scxlab_machine::id::Nanos;
use serde::{Deserialize, Serialize};

use super::sys::Errno;
use crate::error::WorkloadError;

/// The reason why a native run gives no report.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NativeError {
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    #[error(transparent)]
    Setup(#[from] SetupError),
    /// The process that runs the workload could not be started, or ended without a report.
    #[error("the process that runs the workload: {problem}")]
    Director { problem: String },
    #[error("command \"{command}\": {problem}")]
    Command { command: String, problem: String },
}

/// The reason why the director could not release the threads: the machine, its limits, or the
/// rights of the caller.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
pub enum SetupError {
    #[error("{0}")]
    Op(OpError),
    #[error("cgroup {path}: {what}: {}{advice}", text(*errno))]
    Cgroup { path: String, what: String, errno: Errno, advice: String },
    #[error("{what}: {}{advice}", text(*errno))]
    System { what: String, errno: Errno, advice: String },
    /// The kernel, or its boot parameters, lack something; the rights of the caller do not matter.
    #[error("the workload needs {what}, which this kernel lacks{advice}")]
    Lacks { what: String, advice: String },
    #[error("thread \"{thread}\" takes CPUs off line, which scxlab does only in the simulation")]
    Hotplug { thread: String },
    #[error("the program touches {wanted} bytes of memory, but only {available} are available")]
    Memory { wanted: u64, available: u64 },
    #[error("guest \"{guest}\": {problem}")]
    Guest { guest: String, problem: String },
    #[error("the caller gave the run up before the start")]
    GivenUp,
    #[error("interrupted by signal {0} before the start")]
    Interrupted(i32),
    #[error("only {ready} of {total} threads were ready after {seconds} s")]
    Slow { ready: u32, total: u32, seconds: u64 },
    #[error("a process of the workload ended before the start ({how})")]
    Died { how: String },
}

/// An op, or an attribute of a thread, that the kernel refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[error("{at} ns, thread \"{thread}\": {op}: {}{}", text(*errno), advice(*what, *errno))]
pub struct OpError {
    /// Time since the start of the run.
    pub at: Nanos,
    pub thread: String,
    /// The op with its argument.
    pub op: String,
    pub what: RefusedCallKind,
    pub errno: Errno,
}

/// Kinds of calls that can be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u32)]
pub enum RefusedCallKind {
    Fork,
    Exec,
    Affinity,
    Nice,
    Policy,
    Cgroup,
    Xattr,
    Memory,
    Write,
    Read,
    Io,
    /// A fork of a template with `{i}` names beyond the prepared number of instances.
    ForkLimit,
    /// A fork into another process that already lives.
    ForeignFork,
    /// An exec in a process that has other threads.
    ExecThreads,
    /// The mapping of a region, its policy, or its populated pages.
    Region,
}

impl RefusedCallKind {
    pub const ALL: [RefusedCallKind; 15] = [
        RefusedCallKind::Fork,
        RefusedCallKind::Exec,
        RefusedCallKind::Affinity,
        RefusedCallKind::Nice,
        RefusedCallKind::Policy,
        RefusedCallKind::Cgroup,
        RefusedCallKind::Xattr,
        RefusedCallKind::Memory,
        RefusedCallKind::Write,
        RefusedCallKind::Read,
        RefusedCallKind::Io,
        RefusedCallKind::ForkLimit,
        RefusedCallKind::ForeignFork,
        RefusedCallKind::ExecThreads,
        RefusedCallKind::Region,
    ];

    /// Name of the op, for calls that are described by nothing more precise.
    pub fn name(self) -> &'static str {
        match self {
            RefusedCallKind::Fork | RefusedCallKind::ForkLimit | RefusedCallKind::ForeignFork => {
                "fork"
            }
            RefusedCallKind::Exec | RefusedCallKind::ExecThreads => "exec",
            RefusedCallKind::Affinity => "set_affinity",
            RefusedCallKind::Nice => "set_nice",
            RefusedCallKind::Policy => "set_policy",
            RefusedCallKind::Cgroup => "move_cgroup",
            RefusedCallKind::Xattr => "set_xattr",
            RefusedCallKind::Memory => "touch",
            RefusedCallKind::Region => "region",
            RefusedCallKind::Write => "write",
            RefusedCallKind::Read => "read",
            RefusedCallKind::Io => "io",
        }
    }
}

/// Returns the kernel's reason in words.
pub fn text(errno: Errno) -> String {
    std::io::Error::from_raw_os_error(errno).to_string()
}

/// Returns a remedy after a semicolon, or nothing if there is none.
pub fn advice(what: RefusedCallKind, errno: Errno) -> String {
    let advice = match (what, errno) {
        (RefusedCallKind::Policy | RefusedCallKind::Nice, libc::EPERM | libc::EACCES) => {
            "needs root or CAP_SYS_NICE"
        }
        (RefusedCallKind::Policy, libc::EINVAL) => {
            "the kernel lacks this policy (ext needs CONFIG_SCHED_CLASS_EXT) or refuses its parameters"
        }
        (RefusedCallKind::Policy, libc::EBUSY) => {
            "the deadline tasks would need more CPU time than is available"
        }
        (RefusedCallKind::Affinity, libc::EINVAL) => {
            "none of these CPUs is online and in the thread's cpuset"
        }
        (RefusedCallKind::Affinity, libc::EBUSY) => "a deadline task must be allowed on every CPU",
        (RefusedCallKind::Affinity, libc::EPERM) => "needs root or CAP_SYS_NICE",
        (RefusedCallKind::Fork, libc::EAGAIN) => {
            "limits: ulimit -u, pids.max, kernel.threads-max, kernel.pid_max"
        }
        (RefusedCallKind::Fork | RefusedCallKind::Memory, libc::ENOMEM) => {
            "there is not enough memory"
        }
        (RefusedCallKind::Cgroup, libc::EACCES | libc::EPERM) => {
            "needs root, or a cgroup delegated to this user"
        }
        (RefusedCallKind::Cgroup, libc::EOPNOTSUPP) => {
            "the process is not below the root of the program's cgroups"
        }
        (RefusedCallKind::Cgroup, libc::ENODEV | libc::ENOENT) => {
            "the cgroup was removed during the run"
        }
        (RefusedCallKind::Cgroup, libc::EINVAL) => {
            "a real-time thread needs a cgroup with real-time bandwidth"
        }
        (RefusedCallKind::Region, libc::ENOMEM) => "there is not enough memory",
        (RefusedCallKind::Region, libc::EFAULT) => "no node that the policy allows has room",
        (RefusedCallKind::Region, libc::EINVAL) => "the thread's cpuset excludes these nodes",
        (RefusedCallKind::ForkLimit, _) => {
            "1024 forked instances with {i} names per template, and 16384 living forked threads, \
             are the limit"
        }
        (RefusedCallKind::ForeignFork, _) => {
            "a thread cannot be added to another process that already runs"
        }
        (RefusedCallKind::ExecThreads, _) => "exec would end the other threads of the process",
        _ => return String::new(),
    };
    format!("; {advice}")
}

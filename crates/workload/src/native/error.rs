// SPDX-License-Identifier: GPL-2.0-only
//! Errors that prevent a native run, and calls that the kernel refuses during one.
//!
//! Owns: the messages. Each names the thread, the op, the kernel's reason, and a remedy.

use scxlab_machine::id::Nanos;
use serde::{Deserialize, Serialize};

use super::sys::Errno;
use crate::error::WorkloadError;

/// The reason why there is no report.
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
    #[error("the program's touched memory is {wanted} bytes, and {available} are available")]
    Memory { wanted: u64, available: u64 },
    #[error("interrupted by signal {0} before the start")]
    Interrupted(i32),
    #[error("{ready} of {total} threads were ready after {seconds} s")]
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
    pub what: What,
    pub errno: Errno,
}

/// Kinds of calls that can be refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[repr(u32)]
pub enum What {
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
}

impl What {
    pub const ALL: [What; 14] = [
        What::Fork,
        What::Exec,
        What::Affinity,
        What::Nice,
        What::Policy,
        What::Cgroup,
        What::Xattr,
        What::Memory,
        What::Write,
        What::Read,
        What::Io,
        What::ForkLimit,
        What::ForeignFork,
        What::ExecThreads,
    ];

    /// Name of the op, for calls without a more precise text.
    pub fn name(self) -> &'static str {
        match self {
            What::Fork | What::ForkLimit | What::ForeignFork => "fork",
            What::Exec | What::ExecThreads => "exec",
            What::Affinity => "set_affinity",
            What::Nice => "set_nice",
            What::Policy => "set_policy",
            What::Cgroup => "move_cgroup",
            What::Xattr => "set_xattr",
            What::Memory => "touch",
            What::Write => "write",
            What::Read => "read",
            What::Io => "io",
        }
    }
}

/// Returns the kernel's reason in words.
pub fn text(errno: Errno) -> String {
    std::io::Error::from_raw_os_error(errno).to_string()
}

/// Returns a remedy after a semicolon, or nothing if there is none.
pub fn advice(what: What, errno: Errno) -> String {
    let advice = match (what, errno) {
        (What::Policy | What::Nice, libc::EPERM | libc::EACCES) => "needs root or CAP_SYS_NICE",
        (What::Policy, libc::EINVAL) => {
            "the kernel lacks this policy (ext needs CONFIG_SCHED_CLASS_EXT) or refuses its parameters"
        }
        (What::Policy, libc::EBUSY) => "the deadline tasks would need more CPU time than there is",
        (What::Affinity, libc::EINVAL) => "none of these CPUs is online and in the thread's cpuset",
        (What::Affinity, libc::EBUSY) => "a deadline task must be allowed on every CPU",
        (What::Affinity, libc::EPERM) => "needs root or CAP_SYS_NICE",
        (What::Fork, libc::EAGAIN) => {
            "limits: ulimit -u, pids.max, kernel.threads-max, kernel.pid_max"
        }
        (What::Fork | What::Memory, libc::ENOMEM) => "there is not enough memory",
        (What::Cgroup, libc::EACCES | libc::EPERM) => "needs root, or a cgroup given to this user",
        (What::Cgroup, libc::EOPNOTSUPP) => {
            "the process is not below the root of the program's cgroups"
        }
        (What::Cgroup, libc::ENODEV | libc::ENOENT) => "somebody else removed it",
        (What::Cgroup, libc::EINVAL) => {
            "a real-time thread needs a cgroup with real-time bandwidth"
        }
        (What::ForkLimit, _) => {
            "1024 forked instances with {i} names per template, and 16384 living forked threads, \
             are the limit"
        }
        (What::ForeignFork, _) => "a thread cannot be made in another process that lives already",
        (What::ExecThreads, _) => "it would end the other threads of its process",
        _ => return String::new(),
    };
    format!("; {advice}")
}

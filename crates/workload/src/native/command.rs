// SPDX-License-Identifier: GPL-2.0-only
//! An external command as a workload.
//!
//! Owns: one run of the command: wall time, exit status, resource usage of the command and its
//! children, the end of its output. The unit of work is "run", so the throughput is runs per
//! second.
//! Does not: interpret the output.

use std::io::Read;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use scxlab_machine::id::Nanos;
use serde::{Deserialize, Serialize};

use super::error::NativeError;
use super::sys;

/// Number of bytes kept from the end of stdout and of stderr each.
const KEPT: usize = 64 << 10;
/// Time to wait for output after the command has ended: a process that left the process group may
/// still hold the pipe open.
const OUTPUT_WAIT: Duration = Duration::from_secs(1);

/// Result of one run of a command.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CommandReport {
    pub command: Vec<String>,
    /// Start and end on CLOCK_MONOTONIC.
    pub started_ns: Nanos,
    pub ended_ns: Nanos,
    pub status: CommandStatus,
    pub usage: Usage,
    /// The last 64 KiB of each stream; bytes that are not UTF-8 are replaced.
    pub stdout: String,
    pub stderr: String,
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CommandStatus {
    Exited(i32),
    Signaled(i32),
    /// The duration had passed, so the command and its process group were killed.
    TimedOut,
}

/// Resource usage of the command and of all its descendants that were waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    pub user_ns: Nanos,
    pub system_ns: Nanos,
    pub switches_voluntary: u64,
    pub switches_involuntary: u64,
    pub max_rss_kib: u64,
}

impl CommandReport {
    pub fn length_ns(&self) -> Nanos {
        self.ended_ns.saturating_sub(self.started_ns)
    }

    /// Whether the command ended by itself with exit code 0.
    pub fn succeeded(&self) -> bool {
        self.status == CommandStatus::Exited(0)
    }

    /// Returns 1 if the command succeeded, else 0: a failed run does no work.
    pub fn work_units(&self) -> u64 {
        self.succeeded().into()
    }
}

/// Runs a command to its end, or until `duration` has passed. The command has a process group of
/// its own. When the command has ended, this function kills the group, so that no process of the
/// command is left behind.
pub fn run_command(
    command: &[String],
    duration: Option<Nanos>,
) -> Result<CommandReport, NativeError> {
    let fail = |problem: String| NativeError::Command { command: command.join(" "), problem };
    let Some((program, args)) = command.split_first() else {
        return Err(fail("it is empty".to_owned()));
    };
    let mut spawn = Command::new(program);
    spawn.args(args).process_group(0);
    spawn.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let started_ns = sys::now();
    let mut child = spawn.spawn().map_err(|e| fail(e.to_string()))?;
    let stdout = child.stdout.take().map(tail_of);
    let stderr = child.stderr.take().map(tail_of);
    let deadline = duration.map(|d| started_ns.saturating_add(d));
    let (status, usage) = wait(child.id() as i32, deadline).map_err(|e| fail(e.to_string()))?;
    let ended_ns = sys::now();
    kill_group(child.id() as i32);
    let text = |tail: Option<Receiver<Vec<u8>>>| {
        let bytes = tail.and_then(|t| t.recv_timeout(OUTPUT_WAIT).ok()).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    };
    Ok(CommandReport {
        command: command.to_vec(),
        started_ns,
        ended_ns,
        status,
        usage,
        stdout: text(stdout),
        stderr: text(stderr),
    })
}

/// Waits for the child, and kills its group at the deadline. Returns how the child ended and its
/// resource usage, which the standard library's wait does not return.
fn wait(pid: i32, deadline: Option<Nanos>) -> std::io::Result<(CommandStatus, Usage)> {
    let late = Arc::new(AtomicBool::new(false));
    // A thread sleeps until the deadline, because a wait that looks at intervals would preempt the
    // command at each of them. It ends when `_running` is dropped.
    let (_running, ended) = channel::<()>();
    if let Some(at) = deadline {
        let late = late.clone();
        std::thread::spawn(move || {
            let left = Duration::from_nanos(at.saturating_sub(sys::now()));
            if ended.recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
                late.store(true, Relaxed);
                kill_group(pid);
            }
        });
    }
    loop {
        let mut status = 0;
        // SAFETY: all zeroes is a valid rusage.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: both are valid to write to; nobody else collects this child.
        let got = unsafe { libc::wait4(pid, &mut status, 0, &mut usage) };
        if got == pid {
            let late = late.load(Relaxed);
            let status = if late { CommandStatus::TimedOut } else { how(status) };
            return Ok((status, usage_of(&usage)));
        }
        if got < 0 && sys::errno() != libc::EINTR {
            return Err(std::io::Error::last_os_error());
        }
    }
}

fn how(status: i32) -> CommandStatus {
    let status = ExitStatus::from_raw(status);
    match (status.code(), status.signal()) {
        (Some(code), _) => CommandStatus::Exited(code),
        (None, signal) => CommandStatus::Signaled(signal.unwrap_or(0)),
    }
}

fn usage_of(usage: &libc::rusage) -> Usage {
    let ns = |t: libc::timeval| {
        let micros = t.tv_sec.unsigned_abs().saturating_mul(1_000_000);
        micros.saturating_add(t.tv_usec.unsigned_abs()).saturating_mul(1000)
    };
    Usage {
        user_ns: ns(usage.ru_utime),
        system_ns: ns(usage.ru_stime),
        switches_voluntary: usage.ru_nvcsw.unsigned_abs(),
        switches_involuntary: usage.ru_nivcsw.unsigned_abs(),
        max_rss_kib: usage.ru_maxrss.unsigned_abs(),
    }
}

/// Kills the process group. The group exists as long as one of its processes does; if none is left,
/// the call fails harmlessly.
fn kill_group(pid: i32) {
    // SAFETY: no pointers.
    unsafe { libc::kill(-pid, libc::SIGKILL) };
}

/// Reads a stream to its end in a thread of its own; the receiver gets the last `KEPT` bytes.
fn tail_of(mut from: impl Read + Send + 'static) -> Receiver<Vec<u8>> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let mut tail = Vec::new();
        let mut chunk = [0; 8192];
        while let Ok(size) = from.read(&mut chunk) {
            if size == 0 {
                break;
            }
            tail.extend_from_slice(&chunk[..size]);
            if tail.len() > 2 * KEPT {
                tail.drain(..tail.len() - KEPT);
            }
        }
        let excess = tail.len().saturating_sub(KEPT);
        tail.drain(..excess);
        // Nobody receives the tail once `OUTPUT_WAIT` has passed.
        let _ = sender.send(tail);
    });
    receiver
}

// SPDX-License-Identifier: GPL-2.0-only
//! The command that is recorded.
//!
//! Owns: the process group of the command, which ends with the recording. If this process is
//! killed, the kernel kills the command's first process.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::LiveError;

/// Time that the command has to end after SIGTERM, before it is killed.
const PATIENCE: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(10);

/// An end of a command that the user should know of.
pub enum CommandEnd {
    /// It failed, with this status.
    Status(ExitStatus),
    /// It ran when the recording ended.
    Killed,
}

/// A running command.
pub struct Child {
    process: std::process::Child,
    status: Option<ExitStatus>,
}

/// Checks that a command's program exists.
pub fn check(words: &[OsString]) -> Result<(), LiveError> {
    let program = words.first().ok_or_else(|| refused(words, "it is empty".into()))?;
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path);
    let is_path = program.to_string_lossy().contains('/');
    if is_path && std::fs::metadata(program).is_err() {
        return Err(refused(words, "no such file".into()));
    }
    if !is_path && !folders.any(|folder| folder.join(program).is_file()) {
        return Err(refused(words, "no such program in PATH".into()));
    }
    Ok(())
}

impl Child {
    /// Starts the command in a process group of its own, without standard input.
    pub fn start(words: &[OsString]) -> Result<Child, LiveError> {
        let (program, args) =
            words.split_first().ok_or_else(|| refused(words, "it is empty".into()))?;
        let mut command = Command::new(program);
        command.args(args).process_group(0).stdin(Stdio::null());
        // SAFETY: between fork and exec, the closure makes one system call and allocates nothing.
        unsafe {
            command.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            });
        }
        let process = command.spawn().map_err(|e| refused(words, e.to_string()))?;
        Ok(Child { process, status: None })
    }

    pub fn has_ended(&mut self) -> bool {
        if self.status.is_none() {
            self.status = self.process.try_wait().ok().flatten();
        }
        self.status.is_some()
    }

    /// Ends the processes of the group that still run. Returns how the command ended, if it did not
    /// succeed.
    pub fn end(mut self) -> Option<CommandEnd> {
        let had_ended = self.has_ended();
        self.signal(if had_ended { libc::SIGKILL } else { libc::SIGTERM });
        let began = Instant::now();
        while !self.has_ended() && began.elapsed() < PATIENCE {
            std::thread::sleep(POLL);
        }
        self.signal(libc::SIGKILL);
        let _ = self.process.wait();
        match self.status {
            Some(status) if had_ended => (!status.success()).then_some(CommandEnd::Status(status)),
            _ => Some(CommandEnd::Killed),
        }
    }

    fn signal(&self, signal: libc::c_int) {
        let Ok(group) = libc::pid_t::try_from(self.process.id()) else { return };
        // SAFETY: kill takes two numbers. The group has the number of its first process.
        unsafe { libc::kill(-group, signal) };
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if self.status.is_none() {
            self.signal(libc::SIGKILL);
            let _ = self.process.wait();
        }
    }
}

fn refused(words: &[OsString], why: String) -> LiveError {
    let words: Vec<_> = words.iter().map(|word| word.to_string_lossy()).collect();
    LiveError::Command { command: words.join(" "), why }
}

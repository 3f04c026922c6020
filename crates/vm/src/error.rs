// SPDX-License-Identifier: GPL-2.0-only
//! Everything that can keep a guest from returning its bytes, and what to do about it.
//!
//! Owns: the messages. Does not: choose exit codes; [`VmError::fault`] says whose fault it is.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use crate::closure::ClosureError;
use crate::shape::ShapeError;

/// What is shown of a log inside a message.
const TAIL_LINES: usize = 20;

/// The guest's console: the kernel's log and what programs printed. Shown, it is its last lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Console(String);

impl Console {
    pub(crate) fn new(bytes: &[u8]) -> Console {
        Console(String::from_utf8_lossy(bytes).replace('\r', ""))
    }

    /// All of it.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// The kernel's word for a breakpoint that nobody set.
    pub(crate) fn has_stray_breakpoint(&self) -> bool {
        self.0.contains("int3: ")
    }

    pub(crate) fn has_panic(&self) -> bool {
        self.0.contains("Kernel panic - not syncing")
    }
}

impl fmt::Display for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let lines: Vec<&str> = self.0.lines().filter(|line| !line.trim().is_empty()).collect();
        if lines.is_empty() {
            return f.write_str("the guest's console is empty");
        }
        f.write_str("the end of the guest's console:")?;
        for line in &lines[lines.len().saturating_sub(TAIL_LINES)..] {
            write!(f, "\n    {line}")?;
        }
        Ok(())
    }
}

/// Whose fault a failure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// What was asked for cannot be.
    Input,
    /// The host lacks something.
    Host,
    /// The guest came up and misbehaved, or never came up.
    Guest,
    /// Somebody said stop.
    Cancelled,
}

/// Why a guest returned nothing.
#[derive(Debug, Error)]
pub enum VmError {
    /// The emulator is not installed.
    #[error(
        "no {program} on this host: install Debian's package {package} (or what your distribution calls it)"
    )]
    NoQemu {
        /// The program looked for.
        program: &'static str,
        /// The package that has it.
        package: &'static str,
    },
    /// The image is not there or cannot be read.
    #[error(
        "the kernel {path} cannot be read: {why} (`scxlab vm setup` prepares one; --kernel names another)"
    )]
    NoKernel {
        /// The image.
        path: PathBuf,
        /// What reading it said.
        #[source]
        why: io::Error,
    },
    /// The file is no kernel, or seen from outside to lack something.
    #[error("the kernel {path}: {why}")]
    Kernel {
        /// The image.
        path: PathBuf,
        /// What is wrong with it.
        #[source]
        why: crate::image::ImageError,
    },
    /// The guest runs this executable, so it must be of a machine that is emulated.
    #[error(
        "virtual machines need an x86-64 host: the guest runs this executable, which is built for {arch}"
    )]
    Architecture {
        /// What this executable is built for.
        arch: &'static str,
    },
    /// QEMU has no such machine.
    #[error("QEMU cannot have this machine: {0}")]
    Shape(#[from] ShapeError),
    /// Too little for the kernel, the files in the initramfs and the CPUs.
    #[error("{asked_mib} MiB are too little for this guest: give it at least {needed_mib} MiB")]
    GuestMemory {
        /// What was asked for.
        asked_mib: u64,
        /// What it takes at least.
        needed_mib: u64,
    },
    /// The host would swap or kill.
    #[error(
        "the guest takes {needed_mib} MiB of memory (with QEMU's own), and only {available_mib} MiB are available: \
         free some, or ask for less or for fewer CPUs"
    )]
    HostMemory {
        /// The guest's and QEMU's.
        needed_mib: u64,
        /// What the host says is available.
        available_mib: u64,
    },
    /// Hardware virtualization was insisted on.
    #[error("KVM does not work here: {why} (emulation does: leave the choice open or ask for tcg)")]
    NoKvm {
        /// What the probe found.
        why: String,
    },
    /// A program or this executable cannot be taken along.
    #[error("a program for the guest: {0}")]
    Program(#[from] ClosureError),
    /// A file cannot be in the archive.
    #[error("a file for the guest, \"{path}\": {why}")]
    File {
        /// The path in the guest.
        path: String,
        /// What is wrong with it.
        why: String,
    },
    /// The host refused something to us.
    #[error("{what}: {why}")]
    Host {
        /// What was tried.
        what: &'static str,
        /// What the host said.
        #[source]
        why: io::Error,
    },
    /// QEMU ended by itself before the guest said anything.
    #[error("QEMU ended ({status}) before the guest came up; it said: {stderr}")]
    QemuDied {
        /// Its exit status.
        status: String,
        /// The end of its messages.
        stderr: String,
        /// What the guest printed until then.
        console: Console,
    },
    /// The guest's kernel panicked.
    #[error("the guest's kernel panicked{hint}; {console}")]
    Panicked {
        /// What may be behind it, in brackets, or nothing.
        hint: &'static str,
        /// The log with the panic in it.
        console: Console,
    },
    /// The kernel lacks what the caller needs.
    #[error(
        "the kernel {release} lacks {}: `scxlab vm setup` prepares one that has it",
        lacks.join(" and ")
    )]
    Lacks {
        /// The kernel's release.
        release: String,
        /// What it lacks, by name.
        lacks: Vec<String>,
    },
    /// The guest came up with another topology than asked for.
    #[error("the guest's kernel sees another machine than asked for: {difference}")]
    Topology {
        /// The first difference.
        difference: String,
    },
    /// The guest's program ended without a result, or could not start.
    #[error("the guest failed: {why}; {console}")]
    GuestFailed {
        /// What the guest said.
        why: String,
        /// What it printed.
        console: Console,
    },
    /// Time is up.
    #[error("the guest was still {phase} after {:.1} s and was stopped; {console}", after.as_secs_f64())]
    Deadline {
        /// "booting" or "running".
        phase: &'static str,
        /// The deadline.
        after: Duration,
        /// What it printed.
        console: Console,
    },
    /// The guest ended without a result, or with a damaged one.
    #[error("the guest returned nothing: {why}; {console}")]
    NoResult {
        /// What is wrong.
        why: String,
        /// What it printed.
        console: Console,
    },
    /// The caller's flag was raised.
    #[error("stopped while the guest was {phase}")]
    Cancelled {
        /// "booting" or "running".
        phase: &'static str,
        /// What it printed.
        console: Console,
    },
}

impl VmError {
    /// The guest's console, if there was one.
    pub fn console(&self) -> Option<&Console> {
        match self {
            VmError::QemuDied { console, .. }
            | VmError::Panicked { console, .. }
            | VmError::GuestFailed { console, .. }
            | VmError::Deadline { console, .. }
            | VmError::NoResult { console, .. }
            | VmError::Cancelled { console, .. } => Some(console),
            _ => None,
        }
    }

    pub(crate) fn is_cancel(&self) -> bool {
        matches!(self, VmError::Cancelled { .. })
    }

    /// Whose fault it is; exit codes follow from this.
    pub fn fault(&self) -> Fault {
        match self {
            VmError::NoKernel { .. }
            | VmError::Kernel { .. }
            | VmError::Shape(_)
            | VmError::GuestMemory { .. }
            | VmError::Program(_)
            | VmError::File { .. }
            | VmError::Lacks { .. } => Fault::Input,
            VmError::NoQemu { .. }
            | VmError::Architecture { .. }
            | VmError::HostMemory { .. }
            | VmError::NoKvm { .. }
            | VmError::Host { .. }
            | VmError::QemuDied { .. } => Fault::Host,
            VmError::Panicked { .. }
            | VmError::Topology { .. }
            | VmError::GuestFailed { .. }
            | VmError::Deadline { .. }
            | VmError::NoResult { .. } => Fault::Guest,
            VmError::Cancelled { .. } => Fault::Cancelled,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_console_shows_its_end() {
        let text: String = (0..100).map(|n| format!("line {n}\r\n\r\n")).collect();
        let console = Console::new(text.as_bytes());
        let shown = console.to_string();
        assert!(shown.ends_with("\n    line 99"), "{shown}");
        assert_eq!(shown.lines().count(), 1 + TAIL_LINES);
        assert!(console.text().starts_with("line 0\n"));
        assert_eq!(Console::default().to_string(), "the guest's console is empty");
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! All errors that keep a guest from returning a result, each with advice.
//!
//! Owns: the messages. Does not: choose exit codes; [`VmError::fault`] classifies the error.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use thiserror::Error;

use crate::closure::ClosureError;
use crate::shape::ShapeError;

/// Number of lines of the guest's console that an error message shows.
const TAIL_LINES: usize = 20;

/// The guest's console: the kernel's log and the programs' output. `Display` shows its last lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Console(String);

impl Console {
    pub(crate) fn new(bytes: &[u8]) -> Console {
        Console(String::from_utf8_lossy(bytes).replace('\r', ""))
    }

    /// Returns the whole console.
    pub fn text(&self) -> &str {
        &self.0
    }

    /// Returns whether the log has the kernel's message about a breakpoint that nobody set.
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

/// Cause of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VmFault {
    /// The request cannot be fulfilled.
    Input,
    /// The host lacks a program, memory or a working KVM.
    Host,
    /// The guest came up and misbehaved, or never came up.
    Guest,
    /// The caller cancelled the run.
    Cancelled,
}

/// Why a guest returned no result.
#[derive(Debug, Error)]
pub enum VmError {
    /// The emulator is not installed.
    #[error(
        "no {program} on this host: install Debian's package {package} (or what your distribution calls it)"
    )]
    NoQemu {
        /// File name of the emulator that was looked for.
        program: &'static str,
        /// Debian's package that contains the emulator.
        package: &'static str,
    },
    /// The kernel image does not exist or cannot be read.
    #[error(
        "the kernel {path} cannot be read: {why} (`scxlab vm setup` prepares one; --kernel names another)"
    )]
    NoKernel {
        /// Path of the kernel image.
        path: PathBuf,
        /// Error of the read.
        #[source]
        why: io::Error,
    },
    /// The file is not a kernel image, or the image shows that the kernel lacks a required feature.
    #[error("the kernel {path}: {why}")]
    Kernel {
        /// Path of the kernel image.
        path: PathBuf,
        /// Defect of the image.
        #[source]
        why: crate::image::ImageError,
    },
    /// This executable, which the guest runs, is built for an architecture that is not emulated.
    #[error(
        "virtual machines need an x86-64 host: the guest runs this executable, which is built for {arch}"
    )]
    Architecture {
        /// Architecture that this executable is built for.
        arch: &'static str,
    },
    /// QEMU cannot emulate the requested machine.
    #[error("QEMU cannot have this machine: {0}")]
    Shape(#[from] ShapeError),
    /// The requested memory is too little for the kernel, the files in the initramfs and the CPUs.
    #[error("{asked_mib} MiB are too little for this guest: give it at least {needed_mib} MiB")]
    GuestMemory {
        /// Requested memory, in MiB.
        asked_mib: u64,
        /// Least memory that suffices, in MiB.
        needed_mib: u64,
    },
    /// The host has too little memory for the guest: the host would swap or kill processes.
    #[error(
        "the guest takes {needed_mib} MiB of memory (with QEMU's own), and only {available_mib} MiB are available: \
         free some, or ask for less or for fewer CPUs"
    )]
    HostMemory {
        /// Memory of the guest and of QEMU, in MiB.
        needed_mib: u64,
        /// Memory that the host reports as available, in MiB.
        available_mib: u64,
    },
    /// KVM was requested and does not work.
    #[error("KVM does not work here: {why} (emulation does: use --accel auto or --accel tcg)")]
    NoKvm {
        /// Reason why KVM does not work, as the probe reports it.
        why: String,
    },
    /// A machine of several CPUs that runs guests itself cannot be emulated by a counted clock.
    #[error(
        "a machine of several CPUs with guests cannot have a counted clock: use --accel tcg, or a machine with one CPU"
    )]
    NestedCounted,
    /// A program or this executable cannot be copied into the guest.
    #[error("a program for the guest: {0}")]
    Program(#[from] ClosureError),
    /// A file cannot be put into the guest's initramfs.
    #[error("a file for the guest, \"{path}\": {why}")]
    File {
        /// Path of the file in the guest.
        path: String,
        /// Reason why the initramfs cannot hold the file.
        why: String,
    },
    /// A system call on the host failed.
    #[error("{what}: {why}")]
    Host {
        /// The attempted action, such as "making a socket".
        what: &'static str,
        /// Error of the system call.
        #[source]
        why: io::Error,
    },
    /// QEMU exited before the guest reported anything.
    #[error("QEMU ended ({status}) before the guest came up; it said: {stderr}")]
    QemuDied {
        /// QEMU's exit status.
        status: String,
        /// The end of QEMU's messages.
        stderr: String,
        /// The guest's console until QEMU exited.
        console: Console,
    },
    /// The guest's kernel panicked.
    #[error("the guest's kernel panicked{hint}; {console}")]
    Panicked {
        /// A possible cause of the panic, in parentheses; empty if none is known.
        hint: &'static str,
        /// The guest's console, which shows the panic.
        console: Console,
    },
    /// The guest's kernel lacks features that the caller needs.
    #[error(
        "the kernel {release} lacks {}: `scxlab vm setup` prepares one that has it",
        lacks.join(" and ")
    )]
    Lacks {
        /// The kernel's release.
        release: String,
        /// Names of the features that the kernel lacks.
        lacks: Vec<String>,
    },
    /// The guest's topology is not the requested one.
    #[error("the guest's kernel sees another machine than asked for: {difference}")]
    Topology {
        /// The first difference between the two topologies, as a sentence.
        difference: String,
    },
    /// The guest's program ended without a result, or could not start.
    #[error("the guest failed: {why}; {console}")]
    GuestFailed {
        /// The reason, as the guest reported it.
        why: String,
        /// The guest's console.
        console: Console,
    },
    /// The deadline passed before the guest returned its result.
    #[error("the guest was still {phase} after {:.1} s and was stopped; {console}", after.as_secs_f64())]
    Deadline {
        /// Phase of the guest when the deadline passed: "booting" or "running".
        phase: &'static str,
        /// The deadline that passed, as time since QEMU's start.
        after: Duration,
        /// The guest's console.
        console: Console,
    },
    /// The guest ended without a result, or with a damaged one.
    #[error("the guest returned nothing: {why}; {console}")]
    NoResult {
        /// Reason why there is no result, or the damage of the result.
        why: String,
        /// The guest's console.
        console: Console,
    },
    /// The caller's cancel flag was raised.
    #[error("stopped while the guest was {phase}")]
    Cancelled {
        /// Phase of the guest when it was stopped: "booting" or "running".
        phase: &'static str,
        /// The guest's console.
        console: Console,
    },
}

impl VmError {
    /// Returns the guest's console, if the error has one.
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

    /// Returns the cause of the error, from which the caller derives the exit code.
    pub fn fault(&self) -> VmFault {
        match self {
            VmError::NoKernel { .. }
            | VmError::Kernel { .. }
            | VmError::Shape(_)
            | VmError::GuestMemory { .. }
            | VmError::NestedCounted
            | VmError::Program(_)
            | VmError::File { .. }
            | VmError::Lacks { .. } => VmFault::Input,
            VmError::NoQemu { .. }
            | VmError::Architecture { .. }
            | VmError::HostMemory { .. }
            | VmError::NoKvm { .. }
            | VmError::Host { .. }
            | VmError::QemuDied { .. } => VmFault::Host,
            VmError::Panicked { .. }
            | VmError::Topology { .. }
            | VmError::GuestFailed { .. }
            | VmError::Deadline { .. }
            | VmError::NoResult { .. } => VmFault::Guest,
            VmError::Cancelled { .. } => VmFault::Cancelled,
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

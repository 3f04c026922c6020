// SPDX-License-Identifier: GPL-2.0-only
//! A virtual machine among several that another process starts, and that begin their work together.
//!
//! Owns: the inputs of its QEMU, and the way to its guest. Does not: start or end QEMU: the process
//! that measures the machines is its parent.
//!
//! ```text
//! prepare --process()--> the caller has QEMU started --connect--> next: Up (the guest waits for
//!                                                                 the process's `go`), Output
//! ```

use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::time::Duration;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

use crate::accel::Engine;
use crate::boot::{self, PreparedGuest, VmSpec};
use crate::error::{Console, VmError};
use crate::initramfs::Initramfs;
use crate::process::{self, Connection, Launch, Message};
use crate::protocol::{self, FrameError, FrameKind, Ready};
use crate::qemu;

/// Time that a member's output may still take to arrive after its result port was closed.
const END_PATIENCE: Duration = Duration::from_secs(3);

/// A virtual machine whose QEMU is not started yet.
#[derive(Debug)]
pub struct Member {
    process: MemberProcess,
    launch: Launch,
    /// Reading and writing end of the pipe for QEMU's messages.
    stderr: (OwnedFd, OwnedFd),
    memory_mib: u64,
}

/// QEMU as a process that the caller starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberProcess {
    /// Path of QEMU.
    pub program: String,
    /// Its arguments.
    pub args: Vec<String>,
    /// Descriptors of this process that QEMU must inherit under the same numbers.
    pub fds: Vec<RawFd>,
    /// Descriptor of this process for QEMU's standard error.
    pub stderr: RawFd,
    /// Descriptor of this process to which `go` is to be written once.
    pub go_fd: RawFd,
    /// The message that ends [`crate::guest::Guest::wait_for_go`].
    pub go: Vec<u8>,
    /// Names of QEMU's threads for the virtual CPUs, by CPU.
    pub vcpu_threads: Vec<String>,
}

/// A member whose QEMU was started.
#[derive(Debug)]
pub struct RunningMember {
    connection: Connection,
    phase: &'static str,
}

/// Message of a member.
#[derive(Debug)]
pub enum MemberMessage {
    /// No message has arrived.
    Nothing,
    /// The guest's program waits for `go`.
    Up,
    /// Output that the guest gave to [`crate::guest::Guest::finish`].
    Output(Vec<u8>),
    /// There will be no output.
    Failed(VmError),
}

impl Member {
    /// Prepares a virtual machine. `spec.accel`, `spec.deadline` and `spec.cancel` are ignored: the
    /// caller chooses the engine, and decides how long it waits.
    pub fn prepare(
        spec: &VmSpec<'_>,
        initramfs: &Initramfs,
        engine: Engine,
    ) -> Result<Member, VmError> {
        let guest = PreparedGuest::new(spec, initramfs.clone())?;
        let launch = Launch::new(initramfs)?;
        let stderr = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC)
            .map_err(|why| process::host("making a pipe")(why.into()))?;
        let go_fd = launch.result.0.as_raw_fd();
        let fds = vec![launch.initramfs_fd(), launch.console_fd(), launch.result_fd()];
        for &fd in fds.iter().chain([&go_fd, &stderr.1.as_raw_fd()]) {
            keep_open(fd).map_err(process::host("passing a descriptor on"))?;
        }
        let mut go = Vec::new();
        protocol::send(&mut go, FrameKind::Go, &[]).expect("a vector takes all bytes");
        let process = MemberProcess {
            program: guest.program.display().to_string(),
            args: guest.args(engine, &launch),
            fds,
            stderr: stderr.1.as_raw_fd(),
            go_fd,
            go,
            vcpu_threads: qemu::vcpu_threads(engine, guest.shape.nr_cpus()),
        };
        Ok(Member { process, launch, stderr, memory_mib: guest.memory_mib + qemu::OWN_MIB })
    }

    /// Returns the memory of the host that QEMU takes, in MiB, that of the guest included.
    pub fn memory_mib(&self) -> u64 {
        self.memory_mib
    }

    /// Returns the process that the caller must start.
    pub fn process(&self) -> &MemberProcess {
        &self.process
    }

    /// Begins to listen to the guest. QEMU must have been started, because this process closes its
    /// copies of QEMU's descriptors.
    pub fn connect(self) -> RunningMember {
        let connection = self.launch.connect(File::from(self.stderr.0));
        RunningMember { connection, phase: boot::BOOTING }
    }
}

impl RunningMember {
    /// Returns the guest's next message, if it comes within `patience`.
    pub fn next(&mut self, patience: Duration) -> MemberMessage {
        match self.connection.next(patience) {
            Message::Nothing => MemberMessage::Nothing,
            Message::Frame(frame) => self.frame(frame.kind, frame.payload),
            Message::Broken(why) => MemberMessage::Failed(self.broken(why)),
        }
    }

    /// Returns the error that the guest has sent nothing for this time.
    pub fn too_late(&self, after: Duration) -> VmError {
        VmError::Deadline { phase: self.phase, after, console: self.connection.console_so_far() }
    }

    fn frame(&mut self, kind: FrameKind, payload: Vec<u8>) -> MemberMessage {
        match kind {
            FrameKind::Ready => match boot::check_ready(&Ready::from_bytes(&payload)) {
                Ok(()) => MemberMessage::Nothing,
                Err(why) => MemberMessage::Failed(why),
            },
            FrameKind::Waiting => {
                self.phase = boot::RUNNING;
                MemberMessage::Up
            }
            FrameKind::Result => MemberMessage::Output(payload),
            FrameKind::Failed => {
                let why = String::from_utf8_lossy(&payload).into();
                let console = self.connection.console_so_far();
                MemberMessage::Failed(VmError::GuestFailed { why, console })
            }
            FrameKind::Go => {
                let console = self.connection.console_so_far();
                let why = "it sent a frame that only the host sends".to_owned();
                MemberMessage::Failed(VmError::NoResult { why, console })
            }
        }
    }

    fn broken(&mut self, why: FrameError) -> VmError {
        let console: Console = self.connection.last_console(END_PATIENCE);
        if console.has_panic() {
            return VmError::Panicked { hint: "", console };
        }
        let why = match why {
            FrameError::End => {
                let said = self.connection.last_stderr(END_PATIENCE);
                format!("it ended while it was {}; QEMU said: {said}", self.phase)
            }
            why => why.to_string(),
        };
        VmError::NoResult { why, console }
    }
}

/// Makes a descriptor survive the `execve` of a child.
fn keep_open(fd: RawFd) -> io::Result<()> {
    // SAFETY: the caller owns the descriptor, and it is open.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    fcntl(fd, FcntlArg::F_SETFD(FdFlag::empty()))?;
    Ok(())
}

/// Builds the initramfs of a machine, which several members may share.
pub fn build_initramfs(spec: &VmSpec<'_>) -> Result<Initramfs, VmError> {
    boot::initramfs_of(spec)
}

/// Memory of a member on chosen nodes of the host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostMemory {
    /// Policy as QEMU names it: `bind`, `interleave` or `preferred`.
    pub policy: &'static str,
    /// Numbers of the host's nodes.
    pub nodes: Vec<u32>,
}

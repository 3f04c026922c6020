// SPDX-License-Identifier: GPL-2.0-only
//! The gate: lets the caller of a run decide when the run's threads are released, and collect the
//! results of guests before their processes are killed.
//!
//! Owns: the messages between the caller and the director.
//!
//! ```text
//! director                          caller
//! threads and guests exist, Prepared -->
//!                                   boots the guests
//!                           <-- Begin
//! places vCPUs, releases all
//!                           <-- Ended(n), when it has the result of guest n
//! the duration is over; waits for the guests
//!                           <-- closes the gate, when it has all results, or gives up
//! ```

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::Arc;

use super::sys;

/// The message with which the caller releases the threads; n + 1 stands for the end of guest n.
const BEGIN: u32 = 0;

/// The caller's side of a gate. Dropping it closes the gate.
#[derive(Debug)]
pub struct Gate(File);

/// The director's side of a gate, for one run.
#[derive(Clone, Debug)]
pub struct GateEnd(Arc<OwnedFd>);

/// Makes a gate. The caller must drop its copies of the director's side after the run, so that
/// `Gate::wait_prepared` returns also after a run that failed.
pub fn gate() -> io::Result<(Gate, GateEnd)> {
    let mut fds = [-1; 2];
    // Packets keep the messages apart.
    let kind = libc::SOCK_SEQPACKET | libc::SOCK_CLOEXEC;
    // SAFETY: `fds` has room for two descriptors.
    let got = unsafe { libc::socketpair(libc::AF_UNIX, kind, 0, fds.as_mut_ptr()) };
    sys::checked(got.into()).map_err(io::Error::from_raw_os_error)?;
    // SAFETY: new descriptors that nobody else owns.
    let (ours, theirs) = unsafe { (File::from_raw_fd(fds[0]), OwnedFd::from_raw_fd(fds[1])) };
    // The director inherits its side: its execve must not close it.
    // SAFETY: takes numbers.
    let got = unsafe { libc::fcntl(theirs.as_raw_fd(), libc::F_SETFD, 0) };
    sys::checked(got.into()).map_err(io::Error::from_raw_os_error)?;
    Ok((Gate(ours), GateEnd(Arc::new(theirs))))
}

impl Gate {
    /// Waits until all threads and all processes of guests exist. Returns false if the run failed
    /// before.
    pub fn wait_prepared(&mut self) -> io::Result<bool> {
        self.0.read(&mut [0; 4]).map(|size| size > 0)
    }

    /// Releases the threads.
    pub fn begin(&mut self) -> io::Result<()> {
        self.send(BEGIN)
    }

    /// Reports that the guest has ended. The director kills its process.
    pub fn guest_ended(&mut self, guest: usize) -> io::Result<()> {
        self.send(u32::try_from(guest).map_or(u32::MAX, |guest| guest.saturating_add(1)))
    }

    fn send(&mut self, message: u32) -> io::Result<()> {
        self.0.write_all(&message.to_ne_bytes())
    }
}

impl GateEnd {
    pub(super) fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

impl PartialEq for GateEnd {
    fn eq(&self, other: &GateEnd) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for GateEnd {}

/// A message of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum GateMessage {
    /// No message has arrived.
    Nothing,
    Begin,
    /// The guest of this number has ended.
    Ended(usize),
    /// The caller has closed the gate.
    Closed,
}

/// Makes the kernel send SIGIO to this process when a message arrives or the caller closes the
/// gate.
pub(super) fn listen(fd: RawFd) -> Result<(), sys::Errno> {
    // SAFETY: takes numbers.
    unsafe {
        sys::checked(libc::fcntl(fd, libc::F_SETOWN, sys::getpid()).into())?;
        sys::checked(libc::fcntl(fd, libc::F_SETFL, libc::O_ASYNC | libc::O_NONBLOCK).into())?;
    }
    Ok(())
}

/// Tells the caller that all threads and all processes of guests exist.
pub(super) fn tell_prepared(fd: RawFd) {
    // A caller that is gone is noticed when the director reads.
    let _ = sys::write(fd, &[0; 4]);
}

/// Returns the caller's next message.
pub(super) fn receive(fd: RawFd) -> GateMessage {
    let mut word = [0u8; 4];
    // SAFETY: `word` has room for the bytes.
    let got = unsafe { libc::recv(fd, word.as_mut_ptr().cast(), word.len(), libc::MSG_DONTWAIT) };
    match (got, u32::from_ne_bytes(word)) {
        (4, BEGIN) => GateMessage::Begin,
        (4, guest) => GateMessage::Ended(guest as usize - 1),
        (got, _) if got < 0 && sys::errno() == libc::EAGAIN => GateMessage::Nothing,
        (got, _) if got < 0 && sys::errno() == libc::EINTR => GateMessage::Nothing,
        _ => GateMessage::Closed,
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! Real pipes and Unix stream sockets, one per name.
//!
//! Owns: whole transfers: a read ends when it has all its bytes, a write when all its bytes are in
//! the pipe. Where the transfer sizes on a pipe differ, or exceed PIPE_BUF (4 KiB), readers take
//! turns with readers and writers with writers, as in the queues of `exec/pipe.rs`. On other pipes
//! the kernel's own order decides.

use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering::Relaxed};

use scxlab_machine::id::Nanos;

use super::error::{RefusedCallKind, SetupError};
use super::plan::PipeTable;
use super::sync::Mutex;
use super::sys::{self, Errno};
use super::worker::{Flow, Thread};
use crate::compile::insn::{Poll, WaitObject};
use crate::program::PipeKind;

/// Maximum number of bytes that one system call transfers.
const CHUNK: usize = 65_536;

/// Largest number of bytes of a short message.
const SHORT_MAX: u64 = 2_048;

/// Maximum number of pipes of one poll; `program::arg::Pipes` refuses more.
const MAX_POLLED: usize = 64;

/// Source of the bytes written.
static ZEROES: [u8; CHUNK] = [0; CHUNK];

#[repr(C)]
pub struct Pipe {
    read_fd: AtomicI32,
    write_fd: AtomicI32,
    turns: AtomicU32,
    reading: Mutex,
    writing: Mutex,
}

impl Pipe {
    /// Opens the pipe. All processes of the run inherit the descriptors.
    pub fn open(&self, table: &PipeTable) -> Result<(), SetupError> {
        let mut fds = [0; 2];
        let got = match table.kind {
            // SAFETY: room for two descriptors.
            PipeKind::Pipe => unsafe { libc::pipe2(fds.as_mut_ptr(), 0) },
            // SAFETY: room for two descriptors.
            PipeKind::Socket => unsafe {
                libc::socketpair(libc::AF_UNIX, libc::SOCK_STREAM, 0, fds.as_mut_ptr())
            },
        };
        sys::checked(got.into()).map_err(|errno| failed("a pipe", errno))?;
        self.read_fd.store(fds[0], Relaxed);
        self.write_fd.store(fds[1], Relaxed);
        self.turns.store(table.turns.into(), Relaxed);
        match table.capacity {
            Some(bytes) => resize(table.kind, fds[1], bytes),
            None => Ok(()),
        }
    }
}

fn resize(kind: PipeKind, fd: i32, bytes: u64) -> Result<(), SetupError> {
    let size = i32::try_from(bytes).unwrap_or(i32::MAX);
    let got = match kind {
        // SAFETY: no pointers.
        PipeKind::Pipe => unsafe { libc::fcntl(fd, libc::F_SETPIPE_SZ, size) },
        PipeKind::Socket => {
            // The kernel doubles the value that it is given, so give it half of the size.
            let half = (size / 2).max(1);
            let (at, length) = ((&raw const half).cast(), size_of::<i32>() as u32);
            let force = libc::SO_SNDBUFFORCE;
            // SAFETY: `at` points at `length` bytes.
            match unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, force, at, length) } {
                0 => 0,
                // Without the rights for SO_SNDBUFFORCE, use SO_SNDBUF, to which the kernel applies
                // its limit for unprivileged users.
                // SAFETY: as above.
                _ => unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_SNDBUF, at, length) },
            }
        }
    };
    sys::checked(got.into()).map(drop).map_err(|errno| failed("the capacity of a pipe", errno))
}

fn failed(what: &str, errno: Errno) -> SetupError {
    let advice = match errno {
        libc::EMFILE | libc::ENFILE => "; limits: ulimit -n (hard), fs.file-max",
        libc::EPERM => "; beyond fs.pipe-max-size it needs CAP_SYS_RESOURCE",
        _ => "",
    };
    SetupError::System { what: what.to_owned(), errno, advice: advice.to_owned() }
}

impl Thread {
    pub fn write(&self, p: usize, bytes: u64) -> Flow {
        let pipe = &self.env.shared.pipes[p];
        self.transfer(p, bytes, &pipe.writing, WaitObject::PipeWrite, |chunk| {
            sys::write(pipe.write_fd.load(Relaxed), &ZEROES[..chunk])
        })
    }

    pub fn read(&self, p: usize, bytes: u64) -> Flow {
        // A large frame is probed page by page, which real programs with short messages do not do.
        match bytes {
            ..=SHORT_MAX => self.read_in::<{ SHORT_MAX as usize }>(p, bytes),
            _ => self.read_in::<CHUNK>(p, bytes),
        }
    }

    /// Reads in parts of at most `SIZE` bytes.
    #[inline(never)]
    fn read_in<const SIZE: usize>(&self, p: usize, bytes: u64) -> Flow {
        let pipe = &self.env.shared.pipes[p];
        let mut buffer = [const { MaybeUninit::<u8>::uninit() }; SIZE];
        self.transfer(p, bytes, &pipe.reading, WaitObject::PipeRead, |chunk| {
            sys::read(pipe.read_fd.load(Relaxed), &mut buffer[..chunk])
        })
    }

    /// Waits until one of the pipes can be read, and reads from it.
    pub fn poll(&self, poll: &Poll, binding: &[u32]) -> Flow {
        let pipes = &poll.pipes[..poll.pipes.len().min(MAX_POLLED)];
        let index = |i: usize| pipes[i].index(binding);
        let mut fds = [libc::pollfd { fd: -1, events: libc::POLLIN, revents: 0 }; MAX_POLLED];
        for (i, to) in fds[..pipes.len()].iter_mut().enumerate() {
            to.fd = self.env.shared.pipes[index(i)].read_fd.load(Relaxed);
        }
        let end = || poll.timeout.map(|length| self.now().saturating_add(length));
        let mut until = end();
        // A thread with a timeout goes on by itself: it is in no deadlock.
        let object = if until.is_some() { WaitObject::Nothing } else { WaitObject::PipePoll };
        self.waiting(object, index(0));
        let ready = loop {
            self.stopped()?;
            let left = until.map(|at| relative(at.saturating_sub(self.now())));
            let left = left.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
            let count = pipes.len() as libc::nfds_t;
            // SAFETY: `fds` has at least `count` entries; `left` is null or valid for the call.
            let got = unsafe { libc::ppoll(fds.as_mut_ptr(), count, left, std::ptr::null()) };
            match sys::checked(got.into()) {
                Ok(0) if poll.again => until = end(),
                Ok(_) => break fds[..pipes.len()].iter().position(|fd| fd.revents != 0),
                Err(libc::EINTR) => {}
                Err(errno) => {
                    self.fault(RefusedCallKind::Read, errno);
                    break None;
                }
            }
        };
        self.waiting(WaitObject::Nothing, 0);
        match ready {
            Some(i) if poll.bytes > 0 => self.read(index(i), poll.bytes),
            _ => Ok(()),
        }
    }

    fn transfer(
        &self,
        p: usize,
        bytes: u64,
        turn: &Mutex,
        what: WaitObject,
        mut call: impl FnMut(usize) -> Result<usize, Errno>,
    ) -> Flow {
        let turns = self.env.shared.pipes[p].turns.load(Relaxed) != 0;
        if turns {
            self.lock_mutex(turn, what, p)?;
        }
        let mut left = bytes;
        self.waiting(what, p);
        while left > 0 {
            self.stopped()?;
            let size = usize::try_from(left).unwrap_or(CHUNK).min(CHUNK);
            match call(size) {
                // This cannot happen: 0 bytes would mean the end of the file, but nobody closes a
                // descriptor.
                Ok(0) => break,
                Ok(moved) => left -= moved as u64,
                Err(libc::EINTR) => {}
                Err(errno) => {
                    let kind = if what == WaitObject::PipeRead {
                        RefusedCallKind::Read
                    } else {
                        RefusedCallKind::Write
                    };
                    self.fault(kind, errno);
                    break;
                }
            }
        }
        self.waiting(WaitObject::Nothing, 0);
        if turns {
            self.unlock_mutex(turn);
        }
        Ok(())
    }
}

fn relative(ns: Nanos) -> libc::timespec {
    libc::timespec {
        tv_sec: (ns / 1_000_000_000) as libc::time_t,
        tv_nsec: (ns % 1_000_000_000) as libc::c_long,
    }
}

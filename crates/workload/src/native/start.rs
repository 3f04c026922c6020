// SPDX-License-Identifier: GPL-2.0-only
//! The start signal: tells the caller when a run's threads are released, while the run continues.
//!
//! Owns: two words of memory that the director writes once, before it releases the threads: the
//! start time and the time at which the run's duration will be over. The memory may be a BPF map's,
//! so that the measurements of BPF programs have no gap at the start.

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use scxlab_machine::id::Nanos;

use super::sys;

/// Interval between two looks at the start time. A late look delays anything timed from the start
/// by the same amount.
const POLL: Duration = Duration::from_micros(500);

const WORDS: usize = 2;

/// The signal that a run's threads are released. The caller gives it to one run, and waits for it
/// in another thread.
#[derive(Clone, Debug)]
pub struct StartSignal {
    words: Arc<File>,
    cancelled: Arc<AtomicBool>,
}

impl StartSignal {
    pub fn new() -> std::io::Result<StartSignal> {
        // The director inherits the descriptor: its execve does not close it.
        // SAFETY: the name is a C string.
        let fd = unsafe { libc::memfd_create(c"scxlab-start".as_ptr(), 0) };
        sys::checked(fd.into()).map_err(std::io::Error::from_raw_os_error)?;
        // SAFETY: a new descriptor that nobody else owns.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(WORDS as u64 * 8)?;
        Ok(StartSignal::of(file))
    }

    /// Makes a signal of memory that can be mapped through a descriptor; the two words are at its
    /// start.
    pub fn in_memory(fd: BorrowedFd<'_>) -> std::io::Result<StartSignal> {
        // SAFETY: takes numbers. The copy is inherited, because it has no close-on-exec flag.
        let copy = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD, 3) };
        sys::checked(copy.into()).map_err(std::io::Error::from_raw_os_error)?;
        // SAFETY: a new descriptor that nobody else owns.
        Ok(StartSignal::of(unsafe { File::from_raw_fd(copy) }))
    }

    fn of(file: File) -> StartSignal {
        StartSignal { words: Arc::new(file), cancelled: Arc::default() }
    }

    pub(super) fn fd(&self) -> RawFd {
        self.words.as_raw_fd()
    }

    /// Waits for the start and returns its time on CLOCK_MONOTONIC. Returns None if `cancel` was
    /// called first.
    pub fn wait(&self) -> Option<Nanos> {
        loop {
            let mut word = [0; 8];
            let read = self.words.read_exact_at(&mut word, 0);
            match u64::from_ne_bytes(word) {
                at if at > 0 && read.is_ok() => return Some(at),
                _ if self.cancelled.load(Ordering::Relaxed) => return None,
                _ => std::thread::sleep(POLL),
            }
        }
    }

    /// Ends the wait without a start, for a caller that knows that the run will not start or is
    /// over.
    pub fn cancel(&self) {
        self.cancelled.store(true, Ordering::Relaxed);
    }
}

impl PartialEq for StartSignal {
    fn eq(&self, other: &StartSignal) -> bool {
        Arc::ptr_eq(&self.words, &other.words)
    }
}

impl Eq for StartSignal {}

/// Writes the start time `from` and the time `until` at which the duration will be over. The
/// director calls this before it releases the threads. On failure both words stay zero, which a
/// reader notices.
pub(super) fn tell(fd: RawFd, from: Nanos, until: Nanos) {
    let Ok(at) = sys::map_shared(fd, size_of::<[AtomicU64; WORDS]>()) else { return };
    // SAFETY: the mapping is a page, has room for the words and stays mapped; other accesses are
    // whole words too.
    let words = unsafe { &*at.cast::<[AtomicU64; WORDS]>() };
    // `until` is written first, so that a reader that has `from` has `until` too.
    words[1].store(until, Ordering::Relaxed);
    words[0].store(from, Ordering::Release);
}

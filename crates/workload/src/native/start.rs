// SPDX-License-Identifier: GPL-2.0-only
//! The moment at which a run's threads are released, told to the caller while the run goes on.
//!
//! Owns: two words of memory that the director writes once, before it releases them: when that is, and when the run's duration
//! will be over. The memory may be a BPF map's: what its programs measure then has no gap at the start.

use std::fs::File;
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use scxlab_machine::id::Nanos;

use super::sys;

/// Between two looks. A late look delays what is timed from the start by as much.
const POLL: Duration = Duration::from_micros(500);

const WORDS: usize = 2;

/// Given to one run, and asked by another thread.
#[derive(Clone, Debug)]
pub struct StartSignal {
    words: Arc<File>,
    cancelled: Arc<AtomicBool>,
}

impl StartSignal {
    pub fn new() -> std::io::Result<StartSignal> {
        // Inherited by the director: not closed by its execve.
        // SAFETY: the name is a C string.
        let fd = unsafe { libc::memfd_create(c"scxlab-start".as_ptr(), 0) };
        sys::checked(fd.into()).map_err(std::io::Error::from_raw_os_error)?;
        // SAFETY: a new descriptor that nobody else owns.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(WORDS as u64 * 8)?;
        Ok(StartSignal::of(file))
    }

    /// In memory that can be mapped through a descriptor, at its start.
    pub fn in_memory(fd: BorrowedFd<'_>) -> std::io::Result<StartSignal> {
        // SAFETY: takes numbers. The copy is inherited, unlike most descriptors.
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

    /// Waits for the start: its time by CLOCK_MONOTONIC. None: cancelled before.
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

    /// There will be no start, or there was one.
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

/// In the director: the threads are released at `from`. Who reads the words notices when they have not been written.
pub(super) fn tell(fd: RawFd, from: Nanos, until: Nanos) {
    let Ok(at) = sys::map_shared(fd, size_of::<[AtomicU64; WORDS]>()) else { return };
    // SAFETY: a page, which has room for the words and stays mapped; others access them in one piece too.
    let words = unsafe { &*at.cast::<[AtomicU64; WORDS]>() };
    // A reader that has the first has the second.
    words[1].store(until, Ordering::Relaxed);
    words[0].store(from, Ordering::Release);
}

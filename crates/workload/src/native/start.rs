// SPDX-License-Identifier: GPL-2.0-only
//! The moment at which a run's threads are released, told to the caller while the run goes on.
//!
//! Owns: a word of memory that the director writes once.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use scxlab_machine::id::Nanos;

use super::sys;

/// Between two looks. A late look delays what is timed from the start by as much.
const POLL: Duration = Duration::from_micros(500);

/// Given to one run, and asked by another thread.
#[derive(Clone, Debug)]
pub struct StartSignal {
    word: Arc<File>,
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
        file.write_all_at(&0u64.to_ne_bytes(), 0)?;
        Ok(StartSignal { word: Arc::new(file), cancelled: Arc::default() })
    }

    pub(super) fn fd(&self) -> RawFd {
        self.word.as_raw_fd()
    }

    /// Waits for the start: its time by CLOCK_MONOTONIC. None: cancelled before.
    pub fn wait(&self) -> Option<Nanos> {
        loop {
            let mut word = [0; 8];
            let read = self.word.read_exact_at(&mut word, 0);
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
        Arc::ptr_eq(&self.word, &other.word)
    }
}

impl Eq for StartSignal {}

/// In the director: the threads are released at `at`.
pub(super) fn tell(fd: RawFd, at: Nanos) {
    let word = at.to_ne_bytes();
    // SAFETY: the bytes live; a descriptor that is not open is an error that costs nothing.
    unsafe { libc::pwrite(fd, word.as_ptr().cast(), word.len(), 0) };
}

// SPDX-License-Identifier: GPL-2.0-only
//! A thread's buffer, and the accesses to it.
//!
//! Owns: the mapping. All its pages are present before the first op. The buffer always holds
//! zeroes, so that a chase can add the value read to the next address: each access depends on the
//! one before.

use super::sys::{self, Errno};
use crate::program::{Pattern, Touch, TouchKind};

/// Number of accesses between two checks whether to stop.
const STRETCH: u64 = 4096;

/// Maps a page, writes to it and unmaps it, so that the kernel flushes TLBs. Does nothing if there
/// is no memory.
pub fn unmap_page() {
    if let Ok(mut page) = Buffer::new(1) {
        page.access(0, TouchKind::Write);
        page.free();
    }
}

pub struct Buffer {
    at: *mut u8,
    bytes: usize,
}

impl Buffer {
    pub fn none() -> Self {
        Buffer { at: std::ptr::null_mut(), bytes: 0 }
    }

    pub fn new(bytes: u64) -> Result<Self, Errno> {
        let bytes = usize::try_from(bytes).map_err(|_| libc::ENOMEM)?;
        match bytes {
            0 => Ok(Self::none()),
            _ => Ok(Buffer { at: sys::map_memory(bytes)?, bytes }),
        }
    }

    pub fn free(&mut self) {
        if self.bytes > 0 {
            // SAFETY: mapped by `new` with this length, and not used again: the length becomes 0.
            unsafe { libc::munmap(self.at.cast(), self.bytes) };
        }
        *self = Self::none();
    }

    /// Does the accesses of one op; returns early when `stop` returns true.
    pub fn touch(&mut self, touch: &Touch, stop: impl Fn() -> bool) {
        let size = touch.size.min(self.bytes as u64);
        if size == 0 {
            return;
        }
        let stride = touch.stride.max(1);
        let per_pass = size.div_ceil(stride);
        let count = if touch.count == 0 { per_pass } else { touch.count };
        let mut place = 0;
        let mut random = 0x9e37_79b9_7f4a_7c15_u64;
        for access in 0..count {
            if access % STRETCH == STRETCH - 1 && stop() {
                return;
            }
            let read = self.access(place, touch.kind);
            place = match touch.pattern {
                Pattern::Sequential => {
                    let next = place.saturating_add(stride).saturating_add(read);
                    if next >= size { 0 } else { next }
                }
                Pattern::Random => {
                    random = random.wrapping_add(read).wrapping_mul(6_364_136_223_846_793_005);
                    random = random.wrapping_add(1_442_695_040_888_963_407);
                    (random >> 33) % per_pass * stride
                }
            };
        }
    }

    /// Does one access. Returns the value that a chase reads (always 0); other kinds return 0
    /// without waiting for memory.
    #[inline]
    fn access(&mut self, place: u64, kind: TouchKind) -> u64 {
        // SAFETY: `place` is below `size`, which is at most the mapping's length.
        unsafe {
            let at = self.at.add(place as usize);
            match kind {
                TouchKind::Write => at.write_volatile(0),
                TouchKind::Read => drop(at.read_volatile()),
                TouchKind::Chase => return at.read_volatile().into(),
            }
        }
        0
    }
}

/// Writes this many bytes to /dev/null, which discards them.
pub fn write_null(fd: i32, bytes: u64) -> Result<(), Errno> {
    static ZEROES: [u8; 65_536] = [0; 65_536];
    let mut left = bytes;
    while left > 0 {
        let size = left.min(ZEROES.len() as u64);
        sys::write(fd, &ZEROES[..size as usize])?;
        left -= size;
    }
    Ok(())
}

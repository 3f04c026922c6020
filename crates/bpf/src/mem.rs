// SPDX-License-Identifier: GPL-2.0-only
//! Linear memory: every byte that a program of one simulation can touch.
//!
//! Owns: the reservation, page permissions, the deterministic allocator, checked access, the run's
//! memory limit.
//! Does not: know which object lives at an address.
//! Models: kernel virtual memory, as far as a BPF program can see it.
//! Differs: one flat window at a fixed guest address; a bad access returns an error instead of
//! causing an oops.
//!
//! ```text
//!   GUEST_BASE        heap: grows up                                   arenas: 4 GiB windows, grow down    end
//!   | guard page | slabs | guard | region | guard | ...   ->    ...   <-  | arena 1 | arena 0 |  guard page |
//! ```
//!
//! The operating system commits a page when the simulator first touches it, so an unused region
//! costs no memory. Allocated objects never move.

use memmap2::{MmapMut, MmapOptions};

use crate::fault::{Access, MemFault, MemFaultReason};

mod access;
mod alloc;
#[cfg(test)]
mod tests;

/// First guest address. Like a kernel address, it is negative as a signed number. It is aligned to
/// 4 GiB.
pub const GUEST_BASE: u64 = 0xffff_8800_0000_0000;
pub const PAGE: u64 = 4096;
pub(crate) const PAGE_SHIFT: u32 = 12;
/// Size of an arena's window, and the alignment of its address.
pub const ARENA_WINDOW: u64 = 1 << 32;
/// Address space reserved by default, in bytes: 16 arena windows.
pub const DEFAULT_SIZE: u64 = 64 << 30;
/// Smallest size of a memory in bytes (1 MiB). No kernel boots in less.
const SIZE_MIN: u64 = 1 << 20;
/// Bytes mapped beyond the end of the memory. `own_mut` masks only the address of a structure's
/// first byte, and a structure that begins in the last bytes must still lie in the mapping.
const TAIL: u64 = 64 << 10;
/// Largest size of a memory in bytes. `GUEST_BASE` is a multiple of it, so the low bits of a guest
/// address are its offset.
const SIZE_MAX: u64 = 1 << GUEST_BASE.trailing_zeros();

/// Permission of a page for programs, as bits: 1 load, 2 store, 4 ask `Host` before a store.
#[repr(u8)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Perm {
    None = 0,
    Read = LOAD,
    ReadWrite = LOAD | STORE,
    /// Structures of the simulated kernel: readable; a store needs the consent of
    /// `Host::store_to_kernel`.
    Kernel = LOAD | ASK,
}

pub(crate) const LOAD: u8 = 1;
pub(crate) const STORE: u8 = 2;
pub(crate) const ASK: u8 = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OutOfMemory {
    #[error("the host refused to reserve {size} bytes of address space")]
    Reserve { size: u64 },
    #[error("no room for {size} bytes in the simulated memory of {limit} bytes")]
    Exhausted { size: u64, limit: u64 },
    #[error("{size} more bytes would exceed the run's memory limit of {limit} bytes")]
    Limit { size: u64, limit: u64 },
}

/// Alignment in bytes of the kernel structures that `own_mut` accesses. No such structure needs
/// more.
const WORD: u64 = 8;

/// Bytes before the table of permissions. The last of them stands for the page before the memory's
/// first page. The bytes before that one keep the table aligned.
const BEFORE: u64 = PAGE;

/// One reservation of address space, with its table of page permissions. Dropping it frees both.
pub struct Memory {
    base: *mut u8,
    /// One `Perm` byte per page. The `BEFORE` bytes in front of it are 0 (no permission).
    perms: *mut u8,
    size: u64,
    /// Mask that turns an address into its offset, rounded down to a multiple of `WORD`. A mask can
    /// do this because the size is a power of two.
    mask: u64,
    alloc: alloc::Allocator,
    /// Reserved arena windows, newest last.
    arenas: Vec<ArenaRange>,
    /// Bytes that the run may use, bytes in use, and whether `charge` has refused a request.
    limit: u64,
    taken: u64,
    refused: bool,
    /// Number of requests until `charge` refuses one regardless of the limit (see
    /// `refuse_request`).
    requests_left: u64,
    /// Number of stores to arena pages that were not allocated. The engines drop such a store, as
    /// the kernel does. It is usually a bug of the program.
    pub arena_stores_dropped: u64,
    // These fields keep the mappings alive. All access goes through the raw pointers above.
    _data: MmapMut,
    _perms: MmapMut,
}

/// The 4 GiB window of an arena, and the largest number of pages that the arena has in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaRange {
    pub window: u64,
    pub pages: u64,
}

// SAFETY: the pointers lead into mappings that this value owns and that nothing else refers to.
unsafe impl Send for Memory {}

impl Memory {
    pub fn new() -> Result<Memory, OutOfMemory> {
        Memory::with_size(DEFAULT_SIZE)
    }

    /// Reserves a memory of `size` bytes, rounded up to a power of two of at least 1 MiB.
    pub fn with_size(size: u64) -> Result<Memory, OutOfMemory> {
        let refused = OutOfMemory::Reserve { size };
        let size = size.max(SIZE_MIN).checked_next_power_of_two().ok_or(refused)?;
        if size > SIZE_MAX {
            return Err(refused);
        }
        let mut data = reserve(size + TAIL)?;
        let mut perms = reserve(BEFORE + (size >> PAGE_SHIFT))?;
        Ok(Memory {
            base: data.as_mut_ptr(),
            perms: perms.as_mut_ptr().wrapping_add(BEFORE as usize),
            size,
            mask: (size - 1) & !(WORD - 1),
            alloc: alloc::Allocator::new(size)?,
            arenas: Vec::new(),
            limit: u64::MAX,
            taken: 0,
            refused: false,
            requests_left: u64::MAX,
            arena_stores_dropped: 0,
            _data: data,
            _perms: perms,
        })
    }

    /// Limits the bytes that the run may use. Bytes already in use count towards the limit.
    pub fn set_limit(&mut self, limit: u64) {
        self.limit = limit;
    }

    /// Refuses the `nth` request from now on (counted from 0) as if it exceeded the limit. Tests
    /// use it to fail each allocation in turn.
    pub fn refuse_request(&mut self, nth: u64) {
        self.requests_left = nth;
    }

    /// Returns the limit if `charge` has refused a request because of it.
    pub fn exceeded(&self) -> Option<u64> {
        self.refused.then_some(self.limit)
    }

    /// Charges bytes to the run: memory that scxlab keeps, in this linear memory or elsewhere in
    /// the process, for a program, a workload or a machine.
    pub fn charge(&mut self, size: u64) -> Result<(), OutOfMemory> {
        let taken = self.taken.saturating_add(size);
        let chosen = self.requests_left == 0;
        self.requests_left = self.requests_left.wrapping_sub(1);
        if taken > self.limit || chosen {
            self.refused = true;
            return Err(OutOfMemory::Limit { size, limit: self.limit });
        }
        self.taken = taken;
        Ok(())
    }

    /// Gives bytes back that `charge` has charged to the run.
    pub fn give_back(&mut self, size: u64) {
        self.taken = self.taken.saturating_sub(size);
    }

    /// Returns the number of bytes that are charged to the run.
    pub fn charged(&self) -> u64 {
        self.taken
    }

    /// Returns the size of the address space in bytes, used or not.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Returns the permission of the page that `addr` lies on; `Perm::None` outside the memory.
    pub fn perm(&self, addr: u64) -> Perm {
        let off = addr.wrapping_sub(GUEST_BASE);
        if off >= self.size {
            return Perm::None;
        }
        match self.perm_byte(off >> PAGE_SHIFT) {
            0 => Perm::None,
            p if p & STORE != 0 => Perm::ReadWrite,
            p if p & ASK != 0 => Perm::Kernel,
            _ => Perm::Read,
        }
    }

    /// Changes the permission of whole pages. `addr` must be page-aligned; `len` is rounded up.
    pub fn set_perm(&mut self, addr: u64, len: u64, perm: Perm) {
        let off = addr.wrapping_sub(GUEST_BASE);
        assert!(
            off.is_multiple_of(PAGE) && self.in_range(off, len),
            "set_perm of {len} bytes at {addr:#x}"
        );
        for page in off >> PAGE_SHIFT..(off + len).div_ceil(PAGE) {
            self.set_perm_byte(page, perm as u8);
        }
    }

    /// Returns the arena whose window contains `addr`, if any.
    pub fn arena_at(&self, addr: u64) -> Option<ArenaRange> {
        self.arenas.iter().copied().find(|a| addr.wrapping_sub(a.window) < ARENA_WINDOW)
    }

    fn in_range(&self, off: u64, len: u64) -> bool {
        off <= self.size && len <= self.size - off
    }

    #[inline]
    fn perm_byte(&self, page: u64) -> u8 {
        debug_assert!(page < self.size >> PAGE_SHIFT);
        // SAFETY: callers pass pages below size / PAGE, which is the length of the table.
        unsafe { *self.perms.add(page as usize) }
    }

    fn set_perm_byte(&mut self, page: u64, byte: u8) {
        assert!(page < self.size >> PAGE_SHIFT);
        // SAFETY: the page was checked against the table's length above.
        unsafe { *self.perms.add(page as usize) = byte }
    }

    /// Returns the fault of an access that failed, with its reason, for the report.
    pub fn fault(&self, addr: u64, len: u32, access: Access) -> MemFault {
        let off = addr.wrapping_sub(GUEST_BASE);
        let why = if addr < PAGE || addr.wrapping_neg() <= PAGE {
            MemFaultReason::Null
        } else if !self.in_range(off, u64::from(len)) {
            MemFaultReason::OutOfRange
        } else {
            self.page_fault_reason(off, u64::from(len), access)
        };
        MemFault { addr, len, access, why }
    }

    fn page_fault_reason(&self, off: u64, len: u64, access: Access) -> MemFaultReason {
        let pages = off >> PAGE_SHIFT..(off + len).div_ceil(PAGE);
        for byte in pages.map(|page| self.perm_byte(page)) {
            if byte & LOAD == 0 {
                return MemFaultReason::Unmapped;
            }
            if access == Access::Store && byte & STORE == 0 {
                return if byte & ASK != 0 {
                    MemFaultReason::KernelField
                } else {
                    MemFaultReason::ReadOnly
                };
            }
        }
        MemFaultReason::Unmapped
    }
}

fn reserve(size: u64) -> Result<MmapMut, OutOfMemory> {
    let len = usize::try_from(size).map_err(|_| OutOfMemory::Reserve { size })?;
    MmapOptions::new()
        .len(len)
        .no_reserve_swap()
        .map_anon()
        .map_err(|_| OutOfMemory::Reserve { size })
}

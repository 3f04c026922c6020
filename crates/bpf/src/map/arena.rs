// SPDX-License-Identifier: GPL-2.0-only
//! ARENA: a window of 4 GiB that programs and user space share, page by page.
//!
//! Owns: which pages are allocated.
//! Does not: translate addresses (`CastKern`, `CastUser` in `vm/interp.rs`).
//! Models: kernel/bpf/arena.c, v7.3.
//! Differs: user space and programs see the arena at the same address, so casts only replace the
//! upper half.

use super::{MapDef, map_flag};
use crate::errno::*;
use crate::mem::{ARENA_WINDOW, Memory, OutOfMemory, PAGE};

/// Offset of page 0 in the window. Because of the offset, no address in the arena has a lower half
/// of 0, which would be a NULL arena pointer. If the arena's pages leave no room for this offset in
/// the window, the offset is 0.
const START: u64 = 16 << 20;

pub struct Arena {
    /// Address of the window, aligned to 4 GiB.
    pub window: u64,
    /// Address of page 0.
    pub start: u64,
    pub pages: u64,
    pub allocated: u64,
    /// Whether an access of user space to a missing page fails (`BPF_F_SEGV_ON_FAULT`) instead of
    /// allocating the page.
    pub segv_on_fault: bool,
    /// One bit per page, set for pages in use. The vector grows as needed.
    used: Vec<u64>,
}

pub(super) fn check(def: &MapDef) -> Result<(), (i64, &'static str)> {
    let known = map_flag::SEGV_ON_FAULT | map_flag::MMAPABLE | map_flag::NO_USER_CONV;
    if def.key_size != 0 || def.value_size != 0 || def.max_entries == 0 {
        return Err((
            EINVAL,
            "an arena needs max_entries (its number of pages), and no key or value size",
        ));
    }
    if def.map_flags & map_flag::MMAPABLE == 0 || def.map_flags & !known != 0 {
        return Err((
            EINVAL,
            "an arena needs BPF_F_MMAPABLE, and allows only BPF_F_SEGV_ON_FAULT and BPF_F_NO_USER_CONV besides",
        ));
    }
    if !def.map_extra.is_multiple_of(PAGE) {
        return Err((EINVAL, "the arena's address is not page-aligned"));
    }
    if u64::from(def.max_entries) * PAGE > ARENA_WINDOW {
        return Err((E2BIG, "arena larger than 4 GiB"));
    }
    Ok(())
}

impl Arena {
    pub fn new(mem: &mut Memory, def: &MapDef) -> Result<Arena, OutOfMemory> {
        let pages = u64::from(def.max_entries);
        let window = mem.reserve_arena(pages)?;
        let shift = if pages * PAGE + START <= ARENA_WINDOW { START } else { 0 };
        let segv_on_fault = def.map_flags & map_flag::SEGV_ON_FAULT != 0;
        Ok(Arena {
            window,
            start: window + shift,
            pages,
            allocated: 0,
            segv_on_fault,
            used: Vec::new(),
        })
    }

    /// Models `bpf_arena_alloc_pages`: allocates `count` pages at `addr`, or anywhere if `addr` is
    /// 0. Returns the address of the first page, or None.
    pub fn alloc(&mut self, mem: &mut Memory, addr: u64, count: u32) -> Option<u64> {
        let count = u64::from(count);
        if count == 0 || count > self.pages {
            return None;
        }
        let first = if addr == 0 {
            self.find_free(count)?
        } else {
            let first = self.page_of(addr).filter(|_| addr.is_multiple_of(PAGE))?;
            (first + count <= self.pages && !self.any_used(first, count)).then_some(first)?
        };
        for page in first..first + count {
            if mem.alloc_arena_page(self.start + page * PAGE).is_err() {
                self.free(mem, self.start + first * PAGE, (page - first) as u32);
                return None;
            }
            self.set_used(page, true);
            self.allocated += 1;
        }
        Some(self.start + first * PAGE)
    }

    /// Models `bpf_arena_reserve_pages`: marks pages as used without giving them memory.
    pub fn reserve(&mut self, addr: u64, count: u32) -> Result<(), i64> {
        let first = self.page_of(addr).ok_or(EINVAL)?;
        let count = u64::from(count);
        if first + count > self.pages {
            return Err(EINVAL);
        }
        if self.any_used(first, count) {
            return Err(EBUSY);
        }
        (first..first + count).for_each(|page| self.set_used(page, true));
        self.allocated += count;
        Ok(())
    }

    /// Models `bpf_arena_free_pages`. Skips pages that are not in use and pages beyond the arena.
    pub fn free(&mut self, mem: &mut Memory, addr: u64, count: u32) {
        let Some(first) = self.page_of(addr & !(PAGE - 1)) else {
            return;
        };
        for page in first..first.saturating_add(u64::from(count)).min(self.pages) {
            if self.is_used(page) {
                self.set_used(page, false);
                self.allocated -= 1;
                mem.free_arena_page(self.start + page * PAGE);
            }
        }
    }

    /// Models a page fault of user space: allocates every missing page of the range.
    pub fn fault_in(&mut self, mem: &mut Memory, addr: u64, len: u64) -> Result<(), i64> {
        let first = self.page_of(addr).ok_or(EFAULT)?;
        let last = self.page_of(addr.wrapping_add(len.max(1) - 1)).filter(|&last| last >= first);
        for page in first..=last.ok_or(EFAULT)? {
            if !self.is_used(page) {
                if self.segv_on_fault {
                    return Err(EFAULT);
                }
                self.alloc(mem, self.start + page * PAGE, 1).ok_or(ENOMEM)?;
            }
        }
        Ok(())
    }

    /// Returns the page number of an address. Only the lower half of the address counts.
    fn page_of(&self, addr: u64) -> Option<u64> {
        let off = u64::from((addr as u32).wrapping_sub(self.start as u32));
        Some(off / PAGE).filter(|&page| page < self.pages)
    }

    /// Returns the first page of the lowest free range that fits. The kernel takes the best fit,
    /// which is the same range as long as no page has been freed.
    fn find_free(&self, count: u64) -> Option<u64> {
        let (mut first, mut page) = (0, 0);
        while first + count <= self.pages {
            let word = self.used.get((page / 64) as usize).copied().unwrap_or(0);
            if page % 64 == 0 && word == u64::MAX {
                page += 64;
                first = page;
            } else if word >> (page % 64) & 1 != 0 {
                page += 1;
                first = page;
            } else {
                page += 1;
                if page - first == count {
                    return Some(first);
                }
            }
        }
        None
    }

    fn any_used(&self, first: u64, count: u64) -> bool {
        (first..first + count).any(|page| self.is_used(page))
    }

    fn is_used(&self, page: u64) -> bool {
        self.used.get((page / 64) as usize).is_some_and(|word| word >> (page % 64) & 1 != 0)
    }

    fn set_used(&mut self, page: u64, used: bool) {
        let word = (page / 64) as usize;
        if word >= self.used.len() {
            self.used.resize(word + 1, 0);
        }
        let bit = 1 << (page % 64);
        self.used[word] = if used { self.used[word] | bit } else { self.used[word] & !bit };
    }
}

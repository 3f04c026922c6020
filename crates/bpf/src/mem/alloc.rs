// SPDX-License-Identifier: GPL-2.0-only
//! Allocation in linear memory: slabs of size classes, page regions with guards, arena windows.
//!
//! Owns: the record of which bytes are in use. The same calls in the same order give the same
//! addresses on every machine.
//! Does not: shrink; it keeps freed memory for the next allocation of the same class or length.

use std::collections::BTreeMap;

use memmap2::MmapMut;

use super::{
    ARENA_WINDOW, ArenaRange, GUEST_BASE, Memory, OutOfMemory, PAGE, PAGE_SHIFT, Perm, reserve,
};

/// Object sizes of the slabs in bytes. A slab of 64 KiB holds many objects of each size with little
/// waste.
const CLASSES: [u64; 18] =
    [8, 16, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 8192];
const SLAB: u64 = 64 << 10;
/// Permissions that small objects can have. Each permission has a pool of slabs of its own.
const POOLS: [Perm; 2] = [Perm::ReadWrite, Perm::Kernel];

pub(super) struct Allocator {
    /// Number of the next fresh heap page. Page 0 stays a guard.
    heap_page: u64,
    /// Number of the lowest page of any arena window so far.
    arena_page: u64,
    /// Indexed by page. For a page of a slab: 1 + index in `CLASSES` + index in `POOLS` times the
    /// number of classes. For any other page: 0.
    class_of_page: MmapMut,
    /// Free objects by pool and class, most recently freed last.
    free: [[Vec<u64>; CLASSES.len()]; POOLS.len()],
    /// Unused part of the newest slab by pool and class: (next address, end).
    fresh: [[(u64, u64); CLASSES.len()]; POOLS.len()],
    /// Addresses of freed regions by number of pages.
    free_regions: BTreeMap<u64, Vec<u64>>,
    free_windows: Vec<u64>,
}

impl Allocator {
    pub fn new(size: u64) -> Result<Allocator, OutOfMemory> {
        Ok(Allocator {
            heap_page: 1,
            arena_page: size >> PAGE_SHIFT,
            class_of_page: reserve(size >> PAGE_SHIFT)?,
            free: Default::default(),
            fresh: Default::default(),
            free_regions: BTreeMap::new(),
            free_windows: Vec::new(),
        })
    }
}

impl Memory {
    /// Allocates zeroed memory that programs may write. `align` is a power of two of at most 4096.
    /// `free` frees it.
    pub fn alloc(&mut self, size: u64, align: u64) -> Result<u64, OutOfMemory> {
        self.alloc_in(0, size, align)
    }

    /// Allocates zeroed memory for a structure of the simulated kernel, which programs may only
    /// read.
    pub fn alloc_kernel(&mut self, size: u64, align: u64) -> Result<u64, OutOfMemory> {
        self.alloc_in(1, size, align)
    }

    fn alloc_in(&mut self, pool: usize, size: u64, align: u64) -> Result<u64, OutOfMemory> {
        assert!(align.is_power_of_two() && align <= PAGE, "alignment {align}");
        // An object is aligned to the largest power of two (up to a page) that divides the size of
        // its class, so that size must be a multiple of `align`.
        let need = size.max(1).checked_next_multiple_of(align).ok_or(self.exhausted(size))?;
        if need > self.size {
            return Err(self.exhausted(size));
        }
        let fits = |&class: &u64| class >= need && class.is_multiple_of(align);
        match CLASSES.iter().position(fits) {
            Some(class) => self.alloc_class(pool, class),
            None => self.alloc_region(size, POOLS[pool]),
        }
    }

    fn alloc_class(&mut self, pool: usize, class: usize) -> Result<u64, OutOfMemory> {
        let size = CLASSES[class];
        if let Some(addr) = self.alloc.free[pool][class].pop() {
            self.host_slice_mut::<u8>(addr, size as usize).fill(0);
            return Ok(addr);
        }
        if self.alloc.fresh[pool][class].1 - self.alloc.fresh[pool][class].0 < size {
            self.charge(SLAB)?;
            let slab = self.take_pages(SLAB >> PAGE_SHIFT, 0);
            let slab = slab.inspect_err(|_| self.give_back(SLAB))?;
            self.set_perm(slab, SLAB, POOLS[pool]);
            let page = ((slab - GUEST_BASE) >> PAGE_SHIFT) as usize;
            self.alloc.class_of_page[page..page + (SLAB >> PAGE_SHIFT) as usize]
                .fill(1 + class as u8 + (pool * CLASSES.len()) as u8);
            self.alloc.fresh[pool][class] = (slab, slab + SLAB);
        }
        let fresh = &mut self.alloc.fresh[pool][class];
        let addr = fresh.0;
        fresh.0 += size;
        Ok(addr)
    }

    /// Frees memory from `alloc`, `alloc_kernel` or `alloc_region`, given the size that the caller
    /// requested. The contents of an object stay readable until an allocation reuses the memory, as
    /// after `kfree`. The pages of a region become inaccessible at once.
    pub fn free(&mut self, addr: u64, size: u64) {
        let off = addr.wrapping_sub(GUEST_BASE);
        assert!(self.in_range(off, size), "free of {size} bytes at {addr:#x}");
        match self.alloc.class_of_page[(off >> PAGE_SHIFT) as usize] {
            0 => self.free_region(addr, size),
            tag => {
                let tag = usize::from(tag - 1);
                self.alloc.free[tag / CLASSES.len()][tag % CLASSES.len()].push(addr);
            }
        }
    }

    /// Allocates whole zeroed pages with an unmapped page before and after.
    pub fn alloc_region(&mut self, len: u64, perm: Perm) -> Result<u64, OutOfMemory> {
        if len > self.size {
            return Err(self.exhausted(len));
        }
        let pages = len.div_ceil(PAGE).max(1);
        self.charge(pages * PAGE)?;
        let reused = self.alloc.free_regions.get_mut(&pages).and_then(Vec::pop);
        let addr = match reused {
            Some(addr) => addr,
            None => {
                let fresh = self.take_pages(pages, 1);
                fresh.inspect_err(|_| self.give_back(pages * PAGE))?
            }
        };
        self.set_perm(addr, pages * PAGE, perm);
        Ok(addr)
    }

    /// Allocates a region for a table that fills gradually. Unlike `alloc_region`, this function
    /// does not charge the pages to the run; the caller charges the bytes that it uses.
    pub fn reserve_region(&mut self, len: u64, perm: Perm) -> Result<u64, OutOfMemory> {
        let pages = len.div_ceil(PAGE).max(1);
        let addr = self.take_pages(pages, 1)?;
        self.set_perm(addr, pages * PAGE, perm);
        Ok(addr)
    }

    /// Tells the operating system that the simulator will soon use most of this range, so that it
    /// may back the range with huge pages and spare TLB entries. Does nothing where there are no
    /// huge pages.
    pub fn expect_use(&mut self, addr: u64, len: u64) {
        let off = addr.wrapping_sub(GUEST_BASE);
        assert!(self.in_range(off, len), "{len} bytes at {addr:#x}: outside the memory");
        // The advice is only a hint: if the operating system refuses it, the pages stay small.
        let _refused = self.advise_huge(off as usize, len as usize);
    }

    #[cfg(target_os = "linux")]
    fn advise_huge(&self, off: usize, len: usize) -> std::io::Result<()> {
        self._data.advise_range(memmap2::Advice::HugePage, off, len)
    }

    #[cfg(not(target_os = "linux"))]
    fn advise_huge(&self, _off: usize, _len: usize) -> std::io::Result<()> {
        Ok(())
    }

    /// Allocates a region as `alloc_region` does, and returns the address at which contents of
    /// `len` bytes (rounded up to 8) end with the last page, so that an access beyond the contents
    /// faults. The address is aligned to 8 bytes.
    pub fn alloc_region_end_aligned(&mut self, len: u64, perm: Perm) -> Result<u64, OutOfMemory> {
        let len = len.max(1).checked_next_multiple_of(8).ok_or(self.exhausted(len))?;
        let addr = self.alloc_region(len, perm)?;
        Ok(addr + (len.next_multiple_of(PAGE) - len))
    }

    /// Frees a region, given its address and the length that the caller requested. The pages read
    /// as zero when an allocation reuses them.
    pub fn free_region(&mut self, addr: u64, len: u64) {
        let start = addr & !(PAGE - 1);
        let pages = len.div_ceil(PAGE).max(1);
        self.set_perm(start, pages * PAGE, Perm::None);
        self.discard(start, pages);
        self.give_back(pages * PAGE);
        self.alloc.free_regions.entry(pages).or_default().push(start);
    }

    /// Reserves a 4 GiB window for an arena of `pages` pages. A page has no permission until
    /// `alloc_arena_page` allocates it.
    pub fn reserve_arena(&mut self, pages: u64) -> Result<u64, OutOfMemory> {
        assert!(pages <= ARENA_WINDOW >> PAGE_SHIFT, "arena of {pages} pages");
        let window = match self.alloc.free_windows.pop() {
            Some(window) => window,
            None => {
                let window_pages = ARENA_WINDOW >> PAGE_SHIFT;
                let first = self.alloc.arena_page - window_pages.min(self.alloc.arena_page);
                if first <= self.alloc.heap_page {
                    return Err(self.exhausted(ARENA_WINDOW));
                }
                self.alloc.arena_page = first;
                GUEST_BASE + (first << PAGE_SHIFT)
            }
        };
        self.arenas.push(ArenaRange { window, pages });
        Ok(window)
    }

    pub fn free_arena(&mut self, window: u64) {
        let before = self.arenas.len();
        self.arenas.retain(|arena| arena.window != window);
        assert!(self.arenas.len() < before, "no arena at {window:#x}");
        for page in 0..ARENA_WINDOW >> PAGE_SHIFT {
            let addr = window + (page << PAGE_SHIFT);
            if self.perm(addr) != Perm::None {
                self.free_arena_page(addr);
            }
        }
        self.alloc.free_windows.push(window);
    }

    /// Makes one page of an arena readable and writable. It reads as zero.
    pub fn alloc_arena_page(&mut self, addr: u64) -> Result<(), OutOfMemory> {
        self.charge(PAGE)?;
        self.set_perm(addr, PAGE, Perm::ReadWrite);
        Ok(())
    }

    pub fn free_arena_page(&mut self, addr: u64) {
        if self.perm(addr) != Perm::None {
            self.give_back(PAGE);
        }
        self.set_perm(addr, PAGE, Perm::None);
        self.discard(addr, 1);
    }

    /// Takes `pages` fresh heap pages, with `guard` unmapped pages before and after them.
    fn take_pages(&mut self, pages: u64, guard: u64) -> Result<u64, OutOfMemory> {
        let first = self.alloc.heap_page + guard;
        let end = first.checked_add(pages).and_then(|end| end.checked_add(guard));
        match end.filter(|&end| end <= self.alloc.arena_page.min((self.size >> PAGE_SHIFT) - 1)) {
            Some(end) => {
                self.alloc.heap_page = end;
                Ok(GUEST_BASE + (first << PAGE_SHIFT))
            }
            None => Err(self.exhausted(pages.saturating_mul(PAGE))),
        }
    }

    fn exhausted(&self, size: u64) -> OutOfMemory {
        OutOfMemory::Exhausted { size, limit: self.size }
    }

    /// Clears whole pages: they read as zero from now on.
    fn discard(&mut self, addr: u64, pages: u64) {
        let off = (addr - GUEST_BASE) as usize;
        let len = (pages * PAGE) as usize;
        if len <= SLAB as usize {
            self.host_slice_mut::<u8>(addr, len).fill(0);
            return;
        }
        // SAFETY: the mapping is private and anonymous, so dropped pages read as zero; no reference
        // into it is alive while self is borrowed exclusively; offset and length are page-aligned
        // and inside the mapping (`set_perm` asserts it).
        let dropped = unsafe {
            self._data.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, off, len)
        };
        if dropped.is_err() {
            self.host_slice_mut::<u8>(addr, len).fill(0);
        }
    }
}

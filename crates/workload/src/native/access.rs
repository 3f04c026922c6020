// SPDX-License-Identifier: GPL-2.0-only
//! The accesses of threads to regions: `touch` of a region, and `compute` with one.
//!
//! Owns: the order of accesses, and the part of a `compute` that is memory time.
//! Does not: map regions (see `region.rs`).

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use super::burn::burn;
use super::region::{self, PAGE, RegionTable};
use super::sys::Errno;
use super::worker::{CHUNK_NS, Env, Flow, Thread};
use crate::compile::insn::RegionAccess;
use crate::program::{Pattern, Sharing, TouchKind};

/// Number of accesses between two checks whether to stop.
const STRETCH: u64 = 4096;

impl Thread {
    /// Maps the regions of the thread's accesses.
    pub fn map_regions(&self) -> Result<(), Errno> {
        let Env { tables, shared } = self.env;
        let accesses = tables.compiled.templates[self.template as usize].accesses.clone();
        for (local, index) in accesses.enumerate() {
            let object = tables.compiled.tables.accesses[index as usize].region.index(self.binding);
            let owner = self.owner(tables.regions[object].of);
            let at = region::map(tables, shared, owner, object, &self.slot.who)?;
            self.region_at[local].store(at, Relaxed);
            // Any value differs between threads, and so do the places that they draw.
            self.cursors[local].store(u64::from(self.index) << 32, Relaxed);
        }
        Ok(())
    }

    fn owner(&self, of: Sharing) -> u64 {
        let slot = self.slot;
        region::owner_of(of, slot.process.load(Relaxed), slot.serial.load(Relaxed))
    }

    /// Counts and unmaps the thread's own regions, and those of its process if no other thread of
    /// it is left.
    pub fn unmap_regions(&self, last_of_process: bool) {
        let Env { tables, shared } = self.env;
        if tables.max_accesses > 0 {
            region::unmap(tables, shared, self.owner(Sharing::Thread));
            if last_of_process {
                region::unmap(tables, shared, self.owner(Sharing::Process));
            }
        }
    }

    /// Executes `touch` of a region, or `compute` with one.
    pub fn access_region(&mut self, index: u32) -> Flow {
        let tables = &self.env.tables;
        let access = &tables.compiled.tables.accesses[index as usize];
        let first = tables.compiled.templates[self.template as usize].accesses.start;
        let local = (index - first) as usize;
        let table = &tables.regions[access.region.index(self.binding)];
        let window = Window::new(table, self.region_at[local].load(Relaxed), access);
        let cursor = &self.cursors[local];
        let head = self.env.shared.head();
        let stop = || head.stop.load(Relaxed) != 0;
        let Some((work, percent)) = access.work else {
            if access.touch.pattern == Pattern::Sequential {
                cursor.store(0, Relaxed);
            }
            window.access(cursor, window.nr_accesses(), stop);
            return Ok(());
        };
        let since = self.now();
        let random =
            access.touch.pattern == Pattern::Random || access.touch.kind == TouchKind::Chase;
        let each = if random { &head.random_ps } else { &head.sequential_ps };
        let each = u128::from(each.load(Relaxed).max(1));
        let mut left = self.noisy(work);
        while left > 0 {
            self.stopped()?;
            let part = left.min(CHUNK_NS);
            let memory = part * percent / 100;
            burn(self.iterations(part - memory));
            window.access(cursor, (u128::from(memory) * 1000 / each) as u64, stop);
            left -= part;
        }
        self.note_run(since);
        Ok(())
    }
}

/// The part of a mapped region that an access names.
pub struct Window<'a> {
    /// Address of the region's first byte.
    at: *mut u8,
    bits: *const AtomicU64,
    access: &'a RegionAccess,
}

/// Where a thread's accesses of one kind are: the next place of a sequence, or the state of the
/// generator that draws places.
pub type Cursor = AtomicU64;

impl Window<'_> {
    /// `at` is an address that `map` returned for the access's region in this process.
    pub fn new<'a>(table: &RegionTable, at: u64, access: &'a RegionAccess) -> Window<'a> {
        let at = at as *mut u8;
        Window { at, bits: at.wrapping_add(table.bits()).cast(), access }
    }

    /// Does `count` accesses from the cursor on; returns early when `stop` returns true.
    pub fn access(&self, cursor: &Cursor, count: u64, stop: impl Fn() -> bool) {
        let touch = &self.access.touch;
        let stride = touch.stride.max(1);
        let per_pass = touch.size.div_ceil(stride).max(1);
        let random = touch.pattern == Pattern::Random || touch.kind == TouchKind::Chase;
        let mut state = cursor.load(Relaxed);
        for n in 0..count {
            if n % STRETCH == STRETCH - 1 && stop() {
                break;
            }
            let place = if random {
                state = state.wrapping_mul(6_364_136_223_846_793_005);
                state = state.wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % per_pass * stride
            } else {
                state % per_pass * stride
            };
            let read = self.one(place, touch.kind);
            // The value that a chase reads is 0, which the processor cannot know in advance.
            state = state.wrapping_add(if random { read } else { 1 });
        }
        cursor.store(state, Relaxed);
    }

    /// Number of accesses of a `touch`.
    pub fn nr_accesses(&self) -> u64 {
        let touch = &self.access.touch;
        if touch.count > 0 { touch.count } else { touch.size.div_ceil(touch.stride.max(1)) }
    }

    #[inline]
    fn one(&self, place: u64, kind: TouchKind) -> u64 {
        let place = (self.access.offset + place) as usize;
        let page = place / PAGE;
        let bit = 1 << (page % 64);
        // SAFETY: `compile::region` has refused accesses beyond the region's end; the region is
        // mapped until its last thread has ended, and has a bit for each page. Other threads access
        // the same bytes, which are 0 and stay 0.
        unsafe {
            let at = self.at.add(place);
            let bits = &*self.bits.add(page / 64);
            if bits.load(Relaxed) & bit == 0 {
                bits.fetch_or(bit, Relaxed);
                at.write_volatile(0);
            }
            match kind {
                TouchKind::Write => at.write_volatile(0),
                TouchKind::Read => drop(at.read_volatile()),
                TouchKind::Chase => return at.read_volatile().into(),
            }
        }
        0
    }
}

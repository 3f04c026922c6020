// SPDX-License-Identifier: GPL-2.0-only
//! Regions of memory with real pages.
//!
//! Owns: a process's mappings of its regions, their memory policies, the pages that `populate`
//! places, and the count of each region's pages by node.
//! Follows: the rules of `exec/region.rs` for owners, and for the life of a region.
//!
//! A mapping lies in address space of its own, so that the kernel does not merge it with another
//! one and its policy stays its own:
//!
//! ```text
//!   no access | the region's pages | no access, one page | one bit per page | no access
//! ```
//!
//! A bit is set once this process has accessed its page. The first access writes, because a read
//! of an absent page would map the kernel's page of zeroes, which lies on no node of the region.

use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{Acquire, Relaxed, Release},
};

use super::plan::{NO_PROCESS, Tables};
use super::shared::{Ident, Shared};
use super::sys::{self, Errno};
use crate::compile::insn::ObjectKind;
use crate::exec::RegionPages;
use crate::program::{NodeList, RegionDef, RegionPolicy, Sharing, names};

/// Number of nodes whose pages are counted.
pub const MAX_NODES: usize = 64;
pub const PAGE: usize = 4096;
const HUGE: usize = 2 << 20;
/// Number of pages of one `move_pages` call.
const BATCH: usize = 512;

/// Properties of the region with a name, by the index of its object.
pub struct RegionTable {
    pub of: Sharing,
    /// Size in bytes, a multiple of the size of a small page.
    pub bytes: usize,
    /// Bytes of the mapping: with huge pages, a multiple of their size.
    mapped: usize,
    mode: libc::c_int,
    mask: u64,
    populate: Vec<u32>,
    huge: bool,
    /// First byte that same-page merging may share.
    merged_from: usize,
}

impl RegionTable {
    pub fn new(def: &RegionDef) -> Self {
        let bytes = (def.size.0 as usize).next_multiple_of(PAGE);
        let huge = def.is_huge();
        let pages = bytes / PAGE;
        let mask = |list: &NodeList| list.0.iter().fold(0, |mask, n| mask | node_bit(n));
        let (mode, mask) = match &def.policy {
            RegionPolicy::FirstTouch => (libc::MPOL_DEFAULT, 0),
            RegionPolicy::Interleave(list) => (libc::MPOL_INTERLEAVE, mask(list)),
            RegionPolicy::Bind(list) => (libc::MPOL_BIND, mask(list)),
            RegionPolicy::Preferred(node) => (libc::MPOL_PREFERRED, node_bit(*node)),
        };
        RegionTable {
            of: def.of,
            bytes,
            mapped: bytes.next_multiple_of(if huge { HUGE } else { PAGE }),
            mode,
            mask,
            populate: def.populate.iter().flat_map(|list| list.0.iter()).collect(),
            huge,
            merged_from: (pages - pages * usize::from(def.merge) / 100) * PAGE,
        }
    }

    /// Returns the tables of all regions, by the index of their objects.
    pub fn all(tables: &Tables) -> Vec<RegionTable> {
        let defs = &tables.plan.program.regions;
        let table = |name: &String| {
            let def = defs.iter().find(|def| names::declares(&def.name, name));
            // `compile::region` has refused names without a declaration.
            RegionTable::new(def.expect("a declared region"))
        };
        tables.compiled.objects.names(ObjectKind::Region).iter().map(table).collect()
    }

    /// Distance from a region's first byte to its bits.
    pub fn bits(&self) -> usize {
        self.mapped + PAGE
    }
}

fn node_bit(node: u32) -> u64 {
    1u64.checked_shl(node).unwrap_or(0)
}

/// States of a record: FREE -> MAPPED (by a thread of the owner, under `Header::mapping`) ->
/// COUNTED or FREE (by the last thread of the owner).
const FREE: u32 = 0;
const MAPPED: u32 = 1;
const COUNTED: u32 = 2;

/// Record of one mapping of a region, in shared memory.
#[repr(C)]
pub struct Record {
    state: AtomicU32,
    /// Index of the region's object.
    object: AtomicU32,
    /// See `owner_of`.
    owner: AtomicU64,
    /// The thread that made the mapping.
    who: Ident,
    /// Address of the region's first byte in the owner's process.
    at: AtomicU64,
    /// Present pages by node, once the record is COUNTED.
    pages: [AtomicU64; MAX_NODES],
}

/// Returns the owner of a thread's mapping of a region: a process's number, or 2^32 plus the
/// thread's serial number. A region that all processes share has a mapping in each of them.
pub fn owner_of(of: Sharing, process: u32, serial: u64) -> u64 {
    match (of, process) {
        (Sharing::Thread, _) | (_, NO_PROCESS) => (1 << 32) + serial,
        (_, process) => process.into(),
    }
}

/// Maps a region for an owner, unless the owner has it already. Returns its address.
pub fn map(
    tables: &Tables,
    shared: &Shared,
    owner: u64,
    object: usize,
    who: &Ident,
) -> Result<u64, Errno> {
    let _held = shared.head().mapping.lock();
    let is_it = |r: &&Record| {
        r.state.load(Acquire) == MAPPED
            && r.owner.load(Relaxed) == owner
            && r.object.load(Relaxed) == object as u32
    };
    if let Some(record) = shared.regions.iter().find(is_it) {
        return Ok(record.at.load(Relaxed));
    }
    let state = |wanted| shared.regions.iter().find(|r| r.state.load(Acquire) == wanted);
    let record = match state(FREE) {
        Some(free) => free,
        None => {
            let reused = state(COUNTED).ok_or(libc::ENOMEM)?;
            shared.head().uncounted.fetch_add(1, Relaxed);
            reused
        }
    };
    let table = &tables.regions[object];
    let at = match table.of {
        Sharing::All => reserve(table, shared.region_fds[object].load(Relaxed), 1)?,
        _ => {
            let at = reserve(table, -1, nr_nodes(table))?;
            place(table, at)?;
            at
        }
    };
    record.object.store(object as u32, Relaxed);
    record.owner.store(owner, Relaxed);
    record.who.copy(who);
    record.at.store(at as u64, Relaxed);
    record.state.store(MAPPED, Release);
    Ok(at as u64)
}

/// Makes the memory file of a region that all processes share, with its policy and its populated
/// pages. Returns its descriptor, and the address in the director.
pub fn make_shared(table: &RegionTable) -> Result<(i32, u64), Errno> {
    let fd = sys::memory_fd(table.bytes)?;
    let at = reserve(table, fd, 1)?;
    place(table, at)?;
    Ok((fd, at as u64))
}

/// Number of nodes round which an interleaved region's pages go. The kernel interleaves by address,
/// so a region begins at an address at which the first node's turn comes.
fn nr_nodes(table: &RegionTable) -> usize {
    match table.mode {
        libc::MPOL_INTERLEAVE => table.mask.count_ones().max(1) as usize,
        _ => 1,
    }
}

/// Maps a region with its bits. `turns` is the number of huge pages of which its address is a
/// multiple.
fn reserve(table: &RegionTable, fd: i32, turns: usize) -> Result<*mut u8, Errno> {
    let bits = (table.bytes / PAGE).div_ceil(8).next_multiple_of(PAGE);
    let align = HUGE * turns;
    let length = table.bits().checked_add(bits + align + PAGE).ok_or(libc::ENOMEM)?;
    let start = sys::reserve(length)?;
    // The page before the region stays without access.
    let region = start.map_addr(|a| (a + PAGE).next_multiple_of(align));
    // SAFETY: both ranges lie in the reservation, which nothing else uses.
    unsafe {
        sys::map_at(region, table.mapped, fd)?;
        sys::map_at(region.add(table.bits()), bits, -1)?;
    }
    // A forked process has regions of its own. Copies of these would move pages at the next write.
    sys::advise(region, table.mapped, libc::MADV_DONTFORK)?;
    Ok(region)
}

/// Sets the policy of a new mapping, and places the pages that `populate` names.
fn place(table: &RegionTable, at: *mut u8) -> Result<(), Errno> {
    let huge = if table.huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
    match sys::advise(at, table.mapped, huge) {
        // A kernel without transparent huge pages. `note_huge` tells the reader.
        Err(libc::EINVAL) => {}
        got => got?,
    }
    let unit = if table.huge { HUGE } else { PAGE };
    let units = table.mapped / unit;
    for (part, node) in table.populate.iter().enumerate() {
        let count = table.populate.len();
        let (from, to) = (part * units / count * unit, (part + 1) * units / count * unit);
        if from < to {
            let start = at.wrapping_add(from);
            sys::mbind(start, to - from, libc::MPOL_BIND, node_bit(*node))?;
            sys::advise(start, to - from, libc::MADV_POPULATE_WRITE)?;
        }
    }
    if !table.populate.is_empty() || table.mode != libc::MPOL_DEFAULT {
        sys::mbind(at, table.mapped, table.mode, table.mask)?;
    }
    if table.merged_from < table.bytes {
        let from = at.wrapping_add(table.merged_from);
        match sys::advise(from, table.bytes - table.merged_from, libc::MADV_MERGEABLE) {
            Err(libc::EINVAL) => {}
            got => got?,
        }
    }
    Ok(())
}

/// Counts and unmaps the regions of an owner that ends, or executes another program. Only the last
/// thread of the owner may call this.
pub fn unmap(tables: &Tables, shared: &Shared, owner: u64) {
    let own = |r: &&Record| r.state.load(Acquire) == MAPPED && r.owner.load(Relaxed) == owner;
    for record in shared.regions.iter().filter(own) {
        let table = &tables.regions[record.object.load(Relaxed) as usize];
        let at = record.at.load(Relaxed);
        let counted = table.of != Sharing::All && count(table, at, &record.pages).is_ok();
        // SAFETY: the mapping was made by `map` in this process, and its last user has ended.
        unsafe { sys::unmap(at as *mut u8, table.mapped) };
        record.state.store(if counted { COUNTED } else { FREE }, Release);
    }
}

/// Asks the kernel for the node of each page.
fn count(table: &RegionTable, at: u64, pages: &[AtomicU64; MAX_NODES]) -> Result<(), Errno> {
    pages.iter().for_each(|node| node.store(0, Relaxed));
    let mut status = [0; BATCH];
    let mut from = 0;
    while from < table.bytes {
        let size = BATCH.min((table.bytes - from) / PAGE);
        let first = at + from as u64;
        let addresses: [u64; BATCH] = std::array::from_fn(|i| first + (i * PAGE) as u64);
        sys::nodes_of(&addresses[..size], &mut status[..size])?;
        // A negative status is an error number: no page is present.
        for node in status[..size].iter().filter_map(|s| usize::try_from(*s).ok()) {
            if let Some(sum) = pages.get(node) {
                sum.store(sum.load(Relaxed) + 1, Relaxed);
            }
        }
        from += size * PAGE;
    }
    Ok(())
}

/// Counts the pages of a region that all processes share, through the director's mapping.
pub fn count_shared(table: &RegionTable, at: u64) -> Result<[AtomicU64; MAX_NODES], Errno> {
    let mut present = [0; BATCH];
    let mut from = 0;
    while from < table.bytes {
        let size = BATCH.min((table.bytes - from) / PAGE);
        let first = (at + from as u64) as *mut u8;
        sys::present(first, size * PAGE, &mut present[..size])?;
        for page in (0..size).filter(|page| present[*page] & 1 == 1) {
            let page = first.wrapping_add(page * PAGE);
            sys::advise(page, PAGE, libc::MADV_POPULATE_READ)?;
        }
        from += size * PAGE;
    }
    let pages = [const { AtomicU64::new(0) }; MAX_NODES];
    count(table, at, &pages)?;
    Ok(pages)
}

/// Returns the counted regions, in the order of their records, and the number of regions whose
/// process ended before it could count them.
pub fn counted(tables: &Tables, shared: &Shared) -> (Vec<RegionPages>, u64) {
    let mut lost = shared.head().uncounted.load(Relaxed);
    let mut all = Vec::new();
    let names = tables.compiled.objects.names(ObjectKind::Region);
    for record in shared.regions {
        let object = record.object.load(Relaxed) as usize;
        match record.state.load(Acquire) {
            COUNTED => all.push(RegionPages {
                owner: owner_name(tables, record),
                region: names[object].clone(),
                pages: numbers(&record.pages),
            }),
            MAPPED if tables.regions[object].of != Sharing::All => lost += 1,
            _ => {}
        }
    }
    (all, lost)
}

fn owner_name(tables: &Tables, record: &Record) -> String {
    match usize::try_from(record.owner.load(Relaxed)) {
        Ok(process) if process < tables.process_names.len() => {
            tables.process_names[process].clone()
        }
        _ => record.who.name(tables),
    }
}

/// Returns the counts up to the last node that has pages.
pub fn numbers(pages: &[AtomicU64; MAX_NODES]) -> Vec<u64> {
    let all: Vec<u64> = pages.iter().map(|pages| pages.load(Relaxed)).collect();
    let nodes = all.iter().rposition(|pages| *pages > 0).map_or(0, |last| last + 1);
    all[..nodes].to_vec()
}

/// A remark about huge pages or same-page merging that the kernel does not do.
pub fn note(tables: &Tables) -> Vec<String> {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let mut notes = Vec::new();
    let huge = read("/sys/kernel/mm/transparent_hugepage/enabled");
    if tables.regions.iter().any(|table| table.huge)
        && (huge.is_empty() || huge.contains("[never]"))
    {
        notes.push("this kernel makes no transparent huge pages: regions have small pages".into());
    }
    if tables.regions.iter().any(|table| table.merged_from < table.bytes) {
        let pages = read("/sys/kernel/mm/ksm/pages_sharing");
        let pages = if pages.is_empty() { "0" } else { pages.trim() };
        notes.push(format!(
            "merge is only advice to KSM, which shared {pages} pages in the whole system"
        ));
    }
    notes
}

// SPDX-License-Identifier: GPL-2.0-only
//! The guest's memory: one region of the host, in which the program's regions are ranges.
//!
//! Owns: which pages of the memory each region of the program has.
//! Does not: know on which nodes pages lie (the host does), or give pages back to the host.

use std::collections::BTreeMap;

use scxlab_kernel::behavior::{Access, AccessId, Order, RegionId, RegionSpec, Sys, SysError};

/// Pages to which the begin of a region is aligned: a huge page.
const ALIGN_PAGES: u64 = 512;

/// A guest's memory.
#[derive(Debug)]
pub(crate) struct GuestMemory {
    /// The host's region.
    pub region: RegionId,
    pages: u64,
    /// Ranges of the program's regions, by the region's number; None: freed.
    ranges: Vec<Option<Range>>,
    /// The program's accesses as accesses to the host's region, by their number.
    accesses: Vec<Access>,
    /// Their numbers at the host, by thread and number. None: of all threads.
    at_host: BTreeMap<(Option<u32>, u32), AccessId>,
}

#[derive(Clone, Copy, Debug)]
struct Range {
    first: u64,
    pages: u64,
}

impl GuestMemory {
    /// Makes the memory as a region of the host.
    pub fn new(host: &mut dyn Sys, spec: RegionSpec) -> Result<GuestMemory, SysError> {
        let pages = spec.pages;
        Ok(GuestMemory::of(host.region_new(spec)?, pages))
    }

    fn of(region: RegionId, pages: u64) -> GuestMemory {
        let (accesses, at_host) = (Vec::new(), BTreeMap::new());
        GuestMemory { region, pages, ranges: Vec::new(), accesses, at_host }
    }

    /// Reserves the first range that is long enough.
    pub fn reserve(&mut self, pages: u64) -> Result<RegionId, SysError> {
        let mut used: Vec<Range> = self.ranges.iter().flatten().copied().collect();
        used.sort_by_key(|range| range.first);
        let mut first = 0;
        for range in used {
            if first + pages <= range.first {
                break;
            }
            first = (range.first + range.pages).next_multiple_of(ALIGN_PAGES);
        }
        if first + pages > self.pages {
            return Err(SysError::NoMemory);
        }
        self.ranges.push(Some(Range { first, pages }));
        Ok(RegionId(self.ranges.len() as u32 - 1))
    }

    pub fn free(&mut self, region: RegionId) {
        if let Some(range) = self.ranges.get_mut(region.0 as usize) {
            *range = None;
        }
    }

    /// Declares an access of the program.
    pub fn access(&mut self, access: Access) -> Result<AccessId, SysError> {
        let range = self.ranges.get(access.region.0 as usize).copied().flatten();
        let range = range.ok_or(SysError::Invalid)?;
        if access.first_page.checked_add(access.pages).is_none_or(|end| end > range.pages) {
            return Err(SysError::Invalid);
        }
        let first_page = range.first + access.first_page;
        self.accesses.push(Access { region: self.region, first_page, ..access });
        Ok(AccessId(self.accesses.len() as u32 - 1))
    }

    /// Returns the host's number of an access by a thread. A sequential access goes on where its
    /// last step ended, so that a step that was cut goes on; a complete pass ends where it began.
    /// Each thread has its own place.
    pub fn at_host(&mut self, host: &mut dyn Sys, t: u32, id: AccessId) -> Option<AccessId> {
        let access = self.accesses.get(id.0 as usize)?;
        let (key, order) = match access.order {
            Order::Sequential { .. } => ((Some(t), id.0), Order::Sequential { resume: true }),
            Order::Random => ((None, id.0), Order::Random),
        };
        if let Some(known) = self.at_host.get(&key) {
            return Some(*known);
        }
        let new = host.access_new(Access { order, ..access.clone() }).ok()?;
        self.at_host.insert(key, new);
        Some(new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_reserved_first_fit() {
        let mut memory = GuestMemory::of(RegionId(0), 2048);
        assert_eq!(memory.reserve(100), Ok(RegionId(0)));
        assert_eq!(memory.reserve(600), Ok(RegionId(1)));
        assert_eq!(memory.reserve(512), Ok(RegionId(2)));
        assert_eq!(memory.reserve(1), Err(SysError::NoMemory), "1536 + 512 pages are in use");
        memory.free(RegionId(1));
        assert_eq!(memory.reserve(1025), Err(SysError::NoMemory));
        assert_eq!(memory.reserve(1024), Ok(RegionId(3)));
        let first = |n: usize| memory.ranges[n].map(|range| range.first);
        assert_eq!(
            [first(0), first(1), first(2), first(3)],
            [Some(0), None, Some(1536), Some(512)]
        );
    }
}

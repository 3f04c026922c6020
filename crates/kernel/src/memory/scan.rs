// SPDX-License-Identifier: GPL-2.0-only
//! Scans of address spaces: the marks that make the next access to a page a hinting fault.
//!
//! Owns: address spaces as lists of regions, the place of the next scan, and the threads that
//! accessed a region lately.
//! Does not: decide when to scan (the crate `fair` does).
//! Models: the loop of `task_numa_work()`, `vma_is_accessed()`, fair.c; `change_prot_numa()`,
//! `folio_can_map_prot_numa()`, `vma_policy_mof()`, mempolicy.c, 7.3.
//! Differs: the regions of an address space lie in it in the order in which they were mapped. A
//! mark on a page that several address spaces map is one mark for all of them. Memory outside
//! regions is not scanned.

use super::region::{MemPolicy, Place, Region, RegionId};
use super::{HUGE_PAGES, Memory};
use scxlab_fair::{MmScan, NumaRules, ScanBudget};
use scxlab_machine::cost::to_jiffies;
use scxlab_machine::id::{Nanos, NodeId, TaskId};

/// `VMA_PID_RESET_PERIOD`: time after which a region's oldest record of threads is dropped, ms.
const PID_RESET_MS: u64 = 4000;
/// `numa_balancing_scan_delay_ms`.
const SCAN_DELAY_MS: u64 = 1000;
/// Scans of the whole address space in which a region is scanned whoever accessed it.
const SCANS_FOR_ALL: u32 = 2;
/// Golden ratio that the kernel's `hash_32()` multiplies by.
const GOLDEN_RATIO_32: u32 = 0x61c8_8647;

/// An address space.
#[derive(Debug, Default)]
pub(crate) struct Mm {
    vmas: Vec<Vma>,
    pub scan: MmScan,
    /// Index into `vmas` and unit at which the next scan begins.
    at: (usize, usize),
}

/// A region as one address space maps it.
#[derive(Debug)]
struct Vma {
    region: RegionId,
    numa: Option<VmaNuma>,
}

/// `struct vma_numab_state`. Times are jiffies.
#[derive(Debug, Default)]
struct VmaNuma {
    start_seq: u32,
    prev_seq: u32,
    next_scan: u64,
    pids_reset: u64,
    /// Hashed pids of threads that had a hinting fault: in the last period and in this one.
    pids: [u64; 2],
}

/// The task that scans.
pub(crate) struct Scanner {
    pub pid: u32,
    pub nr_threads: u32,
    pub node: NodeId,
    pub jiffies: u64,
    pub tick_ns: Nanos,
    pub rules: NumaRules,
}

/// What a scan marked.
#[derive(Debug, Default)]
pub(crate) struct Scanned {
    /// Page-table entries.
    pub entries: u64,
    pub regions: Vec<RegionId>,
}

impl Memory {
    /// Adds a region to an address space.
    pub(crate) fn map(&mut self, leader: TaskId, id: RegionId, scan: MmScan) {
        let mm = self.mms.entry(leader).or_insert_with(|| Mm { scan, ..Mm::default() });
        let region = self.regions.get_mut(id.0 as usize).and_then(Option::as_deref_mut);
        if let Some(region) = region
            && !mm.vmas.iter().any(|vma| vma.region == id)
        {
            region.mappers += 1;
            mm.vmas.push(Vma { region: id, numa: None });
        }
    }

    /// Takes a freed region out of all address spaces.
    pub(super) fn unmap(&mut self, id: RegionId) {
        for mm in self.mms.values_mut() {
            let Some(at) = mm.vmas.iter().position(|vma| vma.region == id) else { continue };
            mm.vmas.remove(at);
            mm.at = match mm.at {
                (next, unit) if next < at => (next, unit),
                (next, _) if next == at => (next, 0),
                (next, unit) => (next - 1, unit),
            };
        }
    }

    /// Forgets an address space, because a new process has its leader's id.
    pub(crate) fn mm_gone(&mut self, leader: TaskId) {
        self.mms.remove(&leader);
    }

    /// Begins a new address space: a process executes another program.
    pub(crate) fn mm_restart(&mut self, leader: TaskId, scan: MmScan) {
        if let Some(mm) = self.mms.get_mut(&leader) {
            mm.scan = scan;
            mm.at = (0, 0);
            mm.vmas.iter_mut().for_each(|vma| vma.numa = None);
        }
    }

    pub(crate) fn mm(&self, leader: TaskId) -> Option<&Mm> {
        self.mms.get(&leader)
    }

    pub(crate) fn mm_mut(&mut self, leader: TaskId) -> Option<&mut Mm> {
        self.mms.get_mut(&leader)
    }

    /// `mm->total_vm`, as far as regions go.
    pub(crate) fn vm_pages(&self, leader: TaskId) -> u64 {
        let vmas = self.mms.get(&leader).into_iter().flat_map(|mm| &mm.vmas);
        vmas.filter_map(|vma| self.region(vma.region)).map(|region| region.spec.pages).sum()
    }

    /// `get_mm_rss()`, as far as regions go.
    pub(crate) fn rss(&self, leader: TaskId) -> u64 {
        let vmas = self.mms.get(&leader).into_iter().flat_map(|mm| &mm.vmas);
        vmas.filter_map(|vma| self.region(vma.region)).map(Region::present).sum()
    }

    /// Records that a thread had a hinting fault in a region (`vma_set_access_pid_bit()`).
    pub(super) fn note_access(&mut self, leader: TaskId, id: RegionId, pid: u32) {
        let mm = self.mms.get_mut(&leader);
        let vma = mm.and_then(|mm| mm.vmas.iter_mut().find(|vma| vma.region == id));
        if let Some(numa) = vma.and_then(|vma| vma.numa.as_mut()) {
            numa.pids[1] |= pid_bit(pid);
        }
    }

    /// Marks the pages of a process's next scan.
    pub(crate) fn scan(&mut self, leader: TaskId, by: &Scanner, budget: ScanBudget) -> Scanned {
        let Memory { mms, regions, .. } = self;
        let mut done = Scanned::default();
        let Some(mm) = mms.get_mut(&leader) else { return done };
        let mut left = Left { pages: budget.pages as i64, virt: budget.virtual_pages as i64 };
        let mut forced = false;
        loop {
            if mm.at.0 >= mm.vmas.len() {
                mm.restart();
            }
            let (mut index, mut unit) = mm.at;
            let (mut skipped, mut stop) = (false, false);
            while let Some(vma) = mm.vmas.get_mut(index).filter(|_| !stop) {
                let region = regions[vma.region.0 as usize].as_deref_mut().expect("mapped");
                let begun = mm.at.0 == index && mm.at.1 > 0;
                match vma.look(region, &mm.scan, by, begun || forced) {
                    Look::Scan => {
                        unit = left.mark(region, unit, by, &mut done, vma.region);
                        let end = unit >= region.nr_units();
                        stop = left.is_used_up();
                        if end {
                            (index, unit) = (index + 1, 0);
                        }
                        // A scan that stops in the midst of a region goes on there.
                        if end && !stop {
                            vma.numa.as_mut().expect("looked at").prev_seq = mm.scan.seq;
                            stop = forced;
                        }
                        continue;
                    }
                    Look::Done => mm.at = (index + 1, 0),
                    Look::NotAccessed => skipped = true,
                    Look::Skip => {}
                }
                (index, unit) = (index + 1, 0);
            }
            if !stop && !forced && skipped {
                forced = true;
                continue;
            }
            match stop {
                // After the last region, the next scan begins anew.
                true => mm.at = (index, unit),
                false => mm.restart(),
            }
            return done;
        }
    }
}

impl Mm {
    /// `reset_ptenuma_scan()`: the next scan begins with the first region.
    fn restart(&mut self) {
        self.scan.seq += 1;
        self.at = (0, 0);
    }
}

enum Look {
    Scan,
    /// The region is not scanned, for its policy or because it is new.
    Skip,
    /// It was scanned in this sequence.
    Done,
    /// The scanning thread did not access it lately.
    NotAccessed,
}

impl Vma {
    /// Decides whether to scan. `anyway`: also if the scanning thread did not access the region.
    fn look(&mut self, region: &Region, mm: &MmScan, by: &Scanner, anyway: bool) -> Look {
        // Only pages under the default policy move with their users.
        if region.spec.policy != MemPolicy::FirstTouch {
            return Look::Skip;
        }
        if by.rules != NumaRules::Linux73 {
            // `page_mapcount() == 1` in `change_pte_range()` of 3.9.
            let shared = by.rules == NumaRules::Linux39 && region.mappers > 1;
            self.numa.get_or_insert_with(VmaNuma::default);
            return if shared { Look::Skip } else { Look::Scan };
        }
        let jiffies = |ms| to_jiffies(ms, by.tick_ns);
        let numa = self.numa.get_or_insert_with(|| VmaNuma {
            start_seq: mm.seq,
            prev_seq: mm.seq.wrapping_sub(1),
            next_scan: by.jiffies + jiffies(SCAN_DELAY_MS),
            pids_reset: by.jiffies + jiffies(SCAN_DELAY_MS) + jiffies(PID_RESET_MS),
            pids: [0; 2],
        });
        if mm.seq > 0 && by.jiffies < numa.next_scan {
            return Look::Skip;
        }
        if mm.seq > 0 && by.jiffies > numa.pids_reset {
            numa.pids_reset += jiffies(PID_RESET_MS);
            numa.pids = [numa.pids[1], 0];
        }
        if numa.prev_seq == mm.seq {
            return Look::Done;
        }
        let accessed = mm.seq.wrapping_sub(numa.start_seq) < SCANS_FOR_ALL
            || (numa.pids[0] | numa.pids[1]) & pid_bit(by.pid) != 0
            || i64::from(mm.seq) > i64::from(numa.prev_seq as i32) + i64::from(by.nr_threads);
        if accessed || anyway { Look::Scan } else { Look::NotAccessed }
    }
}

/// Pages that a scan may still look at.
struct Left {
    pages: i64,
    virt: i64,
}

impl Left {
    fn is_used_up(&self) -> bool {
        self.pages <= 0 || self.virt <= 0
    }

    /// Marks units of a region from one on, while pages are left. Returns the next unit.
    fn mark(
        &mut self,
        region: &mut Region,
        mut unit: usize,
        by: &Scanner,
        done: &mut Scanned,
        id: RegionId,
    ) -> usize {
        while unit < region.nr_units() && !self.is_used_up() {
            let start = unit as u64 * region.unit_pages();
            // The part ends at a multiple of 2 MiB, at which every region begins.
            let end = (start + self.pages as u64).next_multiple_of(HUGE_PAGES);
            let end = end.min(region.spec.pages);
            let to = end.div_ceil(region.unit_pages()) as usize;
            let entries: u64 = (unit..to).map(|unit| region.mark(unit, by)).sum();
            if entries > 0 {
                self.pages -= (end - start) as i64;
                done.entries += entries;
                if !done.regions.contains(&id) {
                    done.regions.push(id);
                }
            }
            self.virt -= (end - start) as i64;
            unit = to;
        }
        unit
    }
}

impl Region {
    /// Makes the next access to a unit a hinting fault. Returns the number of page-table entries
    /// that changed.
    fn mark(&mut self, unit: usize, by: &Scanner) -> u64 {
        let Place::On(node) = self.place(unit) else { return 0 };
        let early = by.rules != NumaRules::Linux73;
        let alone = self.mappers <= 1 && by.nr_threads == 1 && !early;
        if self.is_marked(unit) || alone && node == by.node {
            return 0;
        }
        self.trapped.set(unit);
        self.epoch += 1;
        let pages = self.pages_of(unit);
        if self.spec.huge { pages.div_ceil(HUGE_PAGES) } else { pages }
    }
}

fn pid_bit(pid: u32) -> u64 {
    1 << (pid.wrapping_mul(GOLDEN_RATIO_32) >> 26)
}

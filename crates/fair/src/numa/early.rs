// SPDX-License-Identifier: GPL-2.0-only
//! NUMA balancing in 2013: that of Linux 3.9, and that of the series "Basic scheduler support for
//! automatic NUMA balancing V5".
//!
//! Owns: the rules of both for scan periods, pages, and preferred nodes.
//! Does not: move tasks, which 3.9 does not do, and which the series does in its balancer.
//! Models: `task_tick_numa()`, `task_numa_work()`, `task_numa_fault()`, `task_numa_placement()`,
//! fair.c, and `mpol_misplaced()`, mempolicy.c, v3.9 and v3.9 with the series.
//! Differs: an address space is scanned while all its threads are on one node, too.

use super::super::Env;
use super::faults::{KINDS, Kind, index};
use super::scan::{MAX_SCAN_WINDOW, SCAN_PAGES};
use super::{HintFault, LastAccess, MmScan, Numa, NumaAction, NumaRules, to_jiffies};
use scxlab_machine::id::{Nanos, TaskId};

/// `numa_balancing_scan_period_min`, `_max` and `_reset` of 3.9, ms.
const PERIOD_MIN_MS: u64 = 100;
const PERIOD_MAX_MS: u64 = 5000;
const PERIOD_RESET_MS: u64 = 60_000;
/// Shortest and longest time in which the series scans a whole address space, ms.
const SERIES_MIN_MS: u64 = 1000;
const SERIES_MAX_MS: u64 = 600_000;
/// Jiffies by which a fault on a page that stays lengthens the period.
const SLOWER_JIFFIES: u64 = 10;
/// `numa_balancing_settle_count`: placements after which a task counts as settled.
const SETTLE_COUNT: u32 = 3;

impl Numa {
    pub(super) fn is_early(&self) -> bool {
        self.rules != NumaRules::Linux73
    }

    /// Returns the shortest scan period of a task, ms.
    pub(super) fn early_min(&self, env: &dyn Env, id: TaskId) -> u64 {
        match self.rules {
            NumaRules::SeriesV5 => {
                let floor = 1000 / (MAX_SCAN_WINDOW / (SCAN_PAGES >> 8));
                floor.max(SERIES_MIN_MS / windows(env, id))
            }
            _ => PERIOD_MIN_MS,
        }
    }

    fn early_max(&self, env: &dyn Env, id: TaskId) -> u64 {
        match self.rules {
            NumaRules::SeriesV5 => self.early_min(env, id).max(SERIES_MAX_MS / windows(env, id)),
            _ => PERIOD_MAX_MS,
        }
    }

    /// Begins the scan of the current task. Returns false if another thread of the process scans in
    /// this period.
    pub(super) fn early_scan(
        &mut self,
        env: &dyn Env,
        id: TaskId,
        mm: &mut MmScan,
        (jiffies, tick_ns): (u64, Nanos),
    ) -> bool {
        if self.rules == NumaRules::Linux39 && jiffies > mm.next_reset {
            self.task_mut(id).scan_period = self.early_min(env, id);
            mm.next_reset = jiffies + to_jiffies(PERIOD_RESET_MS, tick_ns);
        }
        if jiffies < mm.next_scan {
            return false;
        }
        mm.next_scan = jiffies + to_jiffies(self.task_mut(id).scan_period, tick_ns);
        true
    }

    /// Whether a page should move to the node of the faulting CPU: if the last fault on it came
    /// from there, too. 3.9 leaves pages of several address spaces alone; the series moves pages
    /// that had no fault before.
    pub(super) fn early_wants_page(&self, fault: &HintFault) -> bool {
        let to = self.topo.node_of[fault.cpu.idx()];
        let from_there = |last: LastAccess| self.topo.node_of[last.cpu.idx()] == to;
        match self.rules {
            NumaRules::SeriesV5 => fault.last.is_none_or(from_there),
            _ => !fault.shared && fault.last.is_some_and(from_there),
        }
    }

    /// Counts a fault. Under the series, chooses the task's preferred node after each scan of the
    /// whole address space.
    pub(super) fn early_fault(
        &mut self,
        env: &dyn Env,
        fault: &HintFault,
        mm: &MmScan,
        tick_ns: Nanos,
    ) -> NumaAction {
        let (nr, id) = (self.topo.nr_nodes(), fault.task);
        let (rules, max) = (self.rules, self.early_max(env, id));
        let row = self.task_mut(id);
        row.pages_migrated += if fault.migrated { fault.pages } else { 0 };
        if !fault.migrated {
            let slower = SLOWER_JIFFIES * tick_ns / 1_000_000 * fault.faults;
            row.scan_period = (row.scan_period + slower).min(max);
        }
        if rules == NumaRules::Linux39 {
            row.seq = mm.seq;
            return NumaAction::default();
        }
        if row.faults.is_empty() {
            row.faults = vec![0; KINDS * 2 * nr];
        }
        let preferred = row.preferred;
        if row.seq != mm.seq {
            self.early_placement(env, id, mm.seq);
        }
        let private = fault.last.is_none_or(|last| Self::matches(env, id, last));
        let row = self.task_mut(id);
        // A page that moved counts twice.
        let weight = (fault.pages as i64) << u32::from(fault.migrated);
        row.faults[index(nr, Kind::MemBuf, fault.node, private.into())] += weight;
        let changed = row.preferred.filter(|_| row.preferred != preferred);
        NumaAction { preferred: changed, ..NumaAction::default() }
    }

    /// Ages the counts by half, adds those since the last placement, and prefers the node with the
    /// most private faults.
    fn early_placement(&mut self, env: &dyn Env, id: TaskId, seq: u32) {
        let nr = self.topo.nr_nodes();
        let min = self.early_min(env, id);
        let row = self.task_mut(id);
        row.seq = seq;
        row.settled = row.settled.saturating_add(1);
        let (mut most, mut found, mut total) = (0, None, 0);
        for node in 0..nr as u32 {
            for private in 0..2 {
                let new = std::mem::take(&mut row.faults[index(nr, Kind::MemBuf, node, private)]);
                let faults = &mut row.faults[index(nr, Kind::Mem, node, private)];
                *faults = *faults / 2 + new;
                total += *faults;
                if private == 1 && *faults > most {
                    (most, found) = (*faults, Some(node));
                }
            }
        }
        row.total_faults = total;
        if found.is_some() && found != row.preferred {
            if row.settled >= SETTLE_COUNT {
                row.scan_period = (row.scan_period / 2).max(min);
            }
            (row.preferred, row.settled) = (found, 0);
        }
    }
}

/// Returns the number of scans that an address space takes.
fn windows(env: &dyn Env, id: TaskId) -> u64 {
    env.vm_pages(id).max(1).div_ceil(SCAN_PAGES)
}

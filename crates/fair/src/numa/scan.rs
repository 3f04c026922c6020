// SPDX-License-Identifier: GPL-2.0-only
//! The time of scans: the scan period of a task, and how it adapts.
//!
//! Owns: scan periods.
//! Models: `task_nr_scan_windows()`, `task_scan_min()`, `task_scan_start()`, `task_scan_max()`,
//! `task_tick_numa()`, the begin and the end of `task_numa_work()`, `update_scan_period()`,
//! `update_task_scan_period()`, fair.c v7.3.

use super::super::{Env, Fair};
use super::{MmScan, Numa, ScanBudget, known, to_jiffies};
use scxlab_machine::id::{CpuId, Nanos, TaskId};

/// Defaults of the scan period, ms.
const PERIOD_MIN_MS: u64 = 1000;
const PERIOD_MAX_MS: u64 = 60_000;
/// Pages of one scan: 256 MB.
pub(super) const SCAN_PAGES: u64 = 256 << 8;
/// Largest rate at which one address space is scanned, MB/s.
pub(super) const MAX_SCAN_WINDOW: u64 = 2560;
/// A scan looks at most at this multiple of its pages.
const VIRTUAL_FACTOR: u64 = 8;
/// A task runs at least this many times as long as it scans.
const RUN_PER_SCAN: Nanos = 32;
/// Slots of a period by which it changes, and the number of them at which it stays as it is.
const SLOTS: u64 = 10;
const THRESHOLD: u64 = 7;

impl Numa {
    fn scan_windows(env: &dyn Env, id: TaskId) -> u64 {
        env.rss_pages(id).max(1).div_ceil(SCAN_PAGES)
    }

    fn scan_min(env: &dyn Env, id: TaskId) -> u64 {
        let floor = 1000 / (MAX_SCAN_WINDOW / (SCAN_PAGES >> 8));
        floor.max(PERIOD_MIN_MS / Self::scan_windows(env, id))
    }

    /// Scales a period with the number of the group's tasks and its part of shared faults.
    fn scaled(&self, id: TaskId, period: u64) -> Option<u64> {
        let group = self.group_of(id)?;
        let (private, shared) = self.private_and_shared(group);
        Some(period * group.nr_tasks * (shared + 1) / (private + shared + 1))
    }

    fn scan_start(&self, env: &dyn Env, id: TaskId) -> u64 {
        let min = Self::scan_min(env, id);
        min.max(self.scaled(id, min).unwrap_or(min))
    }

    pub(super) fn scan_max(&self, env: &dyn Env, id: TaskId) -> u64 {
        let max = PERIOD_MAX_MS / Self::scan_windows(env, id);
        Self::scan_min(env, id).max(max).max(self.scaled(id, max).unwrap_or(0))
    }

    /// Slows scans down if most faults are private or local, and speeds them up otherwise. `types`
    /// are the shared and the private faults of the last sequence.
    pub(in super::super) fn adapt_period(
        &mut self,
        env: &dyn Env,
        id: TaskId,
        types: [i64; 2],
        mm: &mut MmScan,
        (jiffies, tick_ns): (u64, Nanos),
    ) {
        let (min, max) = (Self::scan_min(env, id), self.scan_max(env, id));
        let task = self.task_mut(id);
        let [remote, local, failed] = std::mem::take(&mut task.locality);
        let [shared, private] = types.map(|faults| faults.max(0) as u64);
        if local + shared == 0 || failed > 0 {
            task.scan_period = task.scan_period_max.min(task.scan_period * 2);
            mm.next_scan = jiffies + to_jiffies(task.scan_period, tick_ns);
            return;
        }
        let slot = task.scan_period.div_ceil(SLOTS);
        let local_ratio = (local * SLOTS).checked_div(local + remote).unwrap_or(0);
        let private_ratio = (private * SLOTS).checked_div(private + shared).unwrap_or(0);
        let period = if private_ratio >= THRESHOLD {
            task.scan_period + (private_ratio - THRESHOLD).max(1) * slot
        } else if local_ratio >= THRESHOLD {
            task.scan_period + (local_ratio - THRESHOLD).max(1) * slot
        } else {
            let missing = THRESHOLD - local_ratio.max(private_ratio);
            task.scan_period.saturating_sub(missing * slot)
        };
        task.scan_period = period.clamp(min, max);
    }
}

impl Fair {
    /// Handles the tick of a task with an address space. Returns whether the task should scan
    /// (`numa_scan`).
    pub fn numa_tick(&mut self, env: &dyn Env, task: TaskId, mm: &MmScan, jiffies: u64) -> bool {
        let due = self.with_numa(|fair, numa| {
            if !env.has_mm(task) {
                return false;
            }
            let row = known(fair, numa, env, task, mm.seq);
            let (period, stamp) = (row.scan_period * 1_000_000, row.node_stamp);
            let run = env.run_ns(task);
            if run <= stamp + period {
                return false;
            }
            let early = numa.is_early();
            let start = if early { numa.early_min(env, task) } else { numa.scan_start(env, task) };
            let row = numa.task_mut(task);
            if stamp == 0 {
                row.scan_period = start;
            }
            row.node_stamp = if early { run } else { stamp + period };
            jiffies >= mm.next_scan
        });
        due.unwrap_or(false)
    }

    /// Begins the scan of the current task. Returns None if another thread of the process scans in
    /// this period.
    pub fn numa_scan(
        &mut self,
        env: &dyn Env,
        task: TaskId,
        mm: &mut MmScan,
        jiffies: u64,
    ) -> Option<ScanBudget> {
        let tick_ns = self.params.tick_ns;
        let budget = ScanBudget { pages: SCAN_PAGES, virtual_pages: SCAN_PAGES * VIRTUAL_FACTOR };
        self.with_numa(|fair, numa| {
            if numa.is_early() {
                return numa.early_scan(env, task, mm, (jiffies, tick_ns)).then_some(budget);
            }
            if mm.next_scan == 0 {
                mm.next_scan = jiffies + to_jiffies(super::SCAN_DELAY_MS, tick_ns);
            }
            if jiffies < mm.next_scan {
                return None;
            }
            let row = known(fair, numa, env, task, mm.seq);
            mm.next_scan = jiffies + to_jiffies(row.scan_period, tick_ns);
            row.node_stamp += 2 * tick_ns;
            Some(budget)
        })
        .flatten()
    }

    /// Records that a scan took this much of its task's CPU time.
    pub fn numa_scanned(&mut self, task: TaskId, took: Nanos) {
        if let Some(numa) = self.numa.as_mut().filter(|numa| !numa.is_early()) {
            numa.task_mut(task).node_stamp += RUN_PER_SCAN * took;
        }
    }

    /// Resets the scan period of a task that moves away from its preferred node.
    pub fn numa_migrated(&mut self, env: &dyn Env, task: TaskId, from: CpuId, to: CpuId) {
        self.with_numa(|_, numa| {
            let (from, to) = (numa.topo.node_of[from.idx()], numa.topo.node_of[to.idx()]);
            if from == to || numa.is_early() || !numa.has_faults(task) || !env.has_mm(task) {
                return;
            }
            let row = numa.task_mut(task);
            let settled = row.preferred == Some(to)
                || row.preferred.is_some_and(|preferred| preferred != from);
            if row.seq == 0 || !settled {
                let start = numa.scan_start(env, task);
                numa.task_mut(task).scan_period = start;
            }
        });
    }

    /// Returns a task's scan period, ms.
    pub fn numa_scan_period(&self, task: TaskId) -> Option<u64> {
        let row = self.numa.as_ref()?.task(task)?;
        row.known.then_some(row.scan_period)
    }
}

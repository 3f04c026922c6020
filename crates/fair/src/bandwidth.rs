// SPDX-License-Identifier: GPL-2.0-only
//! CPU bandwidth control. A group's queues take the group's quota of a period from a pool, in
//! slices. A queue that finds the pool empty when its slice is used up is throttled.
//!
//! Owns: the pool of each group with its timers, the runtime of each queue, throttled queues, and
//! the tasks in limbo (taken off a queue until the queue is unthrottled).
//! Does not: arm timers. The kernel takes them from `take_timers` and calls `bandwidth_timer` when
//! one expires.
//! Models: `account_cfs_rq_runtime()`, `throttle_cfs_rq()`, `unthrottle_cfs_rq()`,
//! `do_sched_cfs_period_timer()`, `distribute_cfs_runtime()`, the slack timer, fair.c v7.3
//! (task-based throttling).
//! Differs: the class unthrottles the queue of a remote CPU at once, without an IPI.
//!
//! ```text
//!   queue:  runs --(runtime used up, pool empty)--> throttled --(pool refilled, debt paid)--> runs
//!   task in the queue:  queued --(picked)--> limbo --(unthrottled)--> queued
//! ```

use super::queue::Leave;
use super::state::{Bandwidth, CfsRqId, EntityId, Resched};
use super::{DequeueFlags, EnqueueFlags, Fair};
use scxlab_machine::id::{CgroupId, CpuId, Nanos, TaskId};
use std::ops::Bound;

/// Kind of a group's bandwidth timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerKind {
    /// Refills the pool.
    Period,
    /// Hands out the runtime that CPUs returned.
    Slack,
}

/// A timer for the kernel to arm. A timer that the kernel armed earlier for another time may still
/// fire; `bandwidth_timer` then ignores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BandwidthTimer {
    pub group: CgroupId,
    pub kind: TimerKind,
    pub at: Nanos,
}

impl Fair {
    /// Returns the timers that have been started since the last call.
    pub fn take_timers(&mut self) -> Vec<BandwidthTimer> {
        std::mem::take(&mut self.timers)
    }

    /// Returns the groups that were throttled (true) or unthrottled on a CPU since the last call,
    /// in order.
    pub fn take_throttles(&mut self) -> Vec<(CgroupId, CpuId, bool)> {
        std::mem::take(&mut self.throttles)
    }

    /// Whether `take_throttles` would return anything. The check is cheap, so that the caller can
    /// make it after each call.
    #[inline]
    pub fn has_throttles(&self) -> bool {
        !self.throttles.is_empty()
    }

    /// Whether `take_timers` would return anything. The check is cheap, so that the caller can make
    /// it after each call.
    #[inline]
    pub fn has_timers(&self) -> bool {
        !self.timers.is_empty()
    }

    /// Handles a timer that fired. Returns the CPUs whose queues of the group were unthrottled. The
    /// idle ones of these CPUs should reschedule (`take_resched`).
    pub fn bandwidth_timer(&mut self, group: CgroupId, kind: TimerKind, now: Nanos) -> Vec<CpuId> {
        let Some(bw) = self.group_mut(group).map(|g| &mut g.bw) else {
            return Vec::new();
        };
        match kind {
            TimerKind::Period if bw.period_at == Some(now) => self.period_timer(group, now),
            TimerKind::Slack if bw.slack_at == Some(now) => self.slack_timer(group, now),
            _ => Vec::new(),
        }
    }

    /// Whether the task is in limbo, where it waits until its group has runtime again.
    pub fn is_throttled(&self, task: TaskId) -> bool {
        self.task(task).throttled
    }

    fn bw(&mut self, group: CgroupId) -> &mut Bandwidth {
        &mut self.group_mut(group).expect("a queue's group exists").bw
    }

    /// Charges `delta` to the runtime of a queue. `curr` is the queue's entity that is about to
    /// run, if there is one. Returns true if the queue is throttled.
    #[inline(always)]
    pub(super) fn account_runtime(
        &mut self,
        rq: CfsRqId,
        delta: Nanos,
        curr: Option<EntityId>,
    ) -> bool {
        self.rqs[rq].runtime_enabled && self.use_runtime(rq, delta, curr)
    }

    #[inline(never)]
    fn use_runtime(&mut self, rq: CfsRqId, delta: Nanos, curr: Option<EntityId>) -> bool {
        let row = &mut self.rqs[rq];
        row.runtime_remaining -= delta as i64;
        if row.runtime_remaining > 0 {
            return false;
        }
        row.throttled || self.throttle(rq, curr)
    }

    /// Requests runtime from the pool, and throttles the queue if the pool has too little. Returns
    /// true if the queue is throttled.
    fn throttle(&mut self, rq: CfsRqId, curr: Option<EntityId>) -> bool {
        let cpu = self.rqs[rq].cpu;
        let h_curr = self.rqs[rq].h_curr.some().filter(|&e| self.ents[e].on_rq);
        let running = h_curr.or(curr).is_some();
        let target = if running { self.params.bandwidth_slice_ns } else { 1 };
        if self.assign_runtime(rq, target) {
            return false;
        }
        let group = self.rqs[rq].group.expect("the root has no quota");
        self.bw(group).throttled.push(rq);
        self.walk_below(group, cpu, &mut |fair, rq| fair.throttle_down(rq));
        self.rqs[rq].throttled = true;
        self.throttles.push((group, cpu, true));
        if h_curr.is_some() {
            self.want_resched(cpu, Resched::Now);
        }
        true
    }

    /// Moves runtime from the pool to a queue. Returns true if the queue may run.
    fn assign_runtime(&mut self, rq: CfsRqId, target: Nanos) -> bool {
        let now = self.cpus[self.rqs[rq].cpu].clock;
        let group = self.rqs[rq].group.expect("the root has no quota");
        let wanted = (target as i64 - self.rqs[rq].runtime_remaining).max(0) as Nanos;
        let unlimited = self.bw(group).quota.is_none();
        let amount = if unlimited {
            wanted
        } else {
            self.start_bandwidth(group, now);
            let bw = self.bw(group);
            let amount = bw.runtime.min(wanted);
            if amount != 0 {
                bw.runtime -= amount;
                bw.idle = false;
            }
            amount
        };
        self.rqs[rq].runtime_remaining += amount as i64;
        self.rqs[rq].runtime_remaining > 0
    }

    /// Starts the group's period timer for the next period boundary, unless the timer is already
    /// running.
    pub(super) fn start_bandwidth(&mut self, group: CgroupId, now: Nanos) {
        let bw = self.bw(group);
        if bw.period_at.is_some() {
            return;
        }
        let phase = bw.phase % bw.period;
        let at = match now < phase {
            true => phase,
            false => phase + ((now - phase) / bw.period + 1) * bw.period,
        };
        bw.period_at = Some(at);
        self.timers.push(BandwidthTimer { group, kind: TimerKind::Period, at });
    }

    fn period_timer(&mut self, group: CgroupId, now: Nanos) -> Vec<CpuId> {
        let bw = self.bw(group);
        bw.period_at = None;
        if bw.quota.is_none() {
            return Vec::new();
        }
        let throttled = !bw.throttled.is_empty();
        bw.nr_periods += 1;
        refill(bw);
        if bw.idle && !throttled {
            return Vec::new();
        }
        let mut cpus = Vec::new();
        if throttled {
            bw.nr_throttled += 1;
            while self.bw(group).runtime > 0 && self.distribute(group, now, &mut cpus) {}
            self.bw(group).idle = false;
        } else {
            bw.idle = true;
        }
        self.start_bandwidth(group, now);
        cpus
    }

    fn slack_timer(&mut self, group: CgroupId, now: Nanos) -> Vec<CpuId> {
        let (slice, margin) =
            (self.params.bandwidth_slice_ns, self.params.min_bandwidth_expiration_ns);
        let bw = self.bw(group);
        bw.slack_at = None;
        let mut cpus = Vec::new();
        if !refresh_within(bw, now, margin) && bw.quota.is_some() && bw.runtime > slice {
            self.distribute(group, now, &mut cpus);
        }
        cpus
    }

    /// Lifts the runtime of a group's throttled queues above 0 with runtime from the pool, in the
    /// order in which they were throttled, and unthrottles them. Returns true if some queues stay
    /// throttled.
    fn distribute(&mut self, group: CgroupId, now: Nanos, cpus: &mut Vec<CpuId>) -> bool {
        let waiting = self.bw(group).throttled.clone();
        for rq in waiting {
            if self.bw(group).runtime == 0 {
                return true;
            }
            if !self.rqs[rq].throttled {
                continue;
            }
            let cpu = self.rqs[rq].cpu;
            self.update_clock(cpu, now);
            if !self.rqs[rq].h_curr.is_nil() {
                self.update_curr(rq);
            }
            let debt = (1 - self.rqs[rq].runtime_remaining).max(0) as Nanos;
            let bw = self.bw(group);
            let amount = debt.min(bw.runtime);
            bw.runtime -= amount;
            self.rqs[rq].runtime_remaining += amount as i64;
            if self.rqs[rq].runtime_remaining <= 0 {
                return true;
            }
            self.unthrottle(rq);
            cpus.push(cpu);
        }
        false
    }

    /// Unthrottles a queue if it has runtime.
    pub(super) fn unthrottle(&mut self, rq: CfsRqId) {
        let (cpu, now) = (self.rqs[rq].cpu, self.cpus[self.rqs[rq].cpu].clock);
        self.update_curr(rq);
        if self.rqs[rq].runtime_enabled && self.rqs[rq].runtime_remaining <= 0 {
            return;
        }
        let group = self.rqs[rq].group.expect("the root is never throttled");
        self.rqs[rq].throttled = false;
        self.throttles.push((group, cpu, false));
        let since = self.rqs[rq].throttled_at.take();
        let bw = self.bw(group);
        bw.throttled.retain(|&r| r != rq);
        bw.throttled_time += since.map_or(0, |at| now - at);
        self.walk_below_up(group, cpu);
        if self.cpus[cpu].curr.is_nil() && self.nr_running(cpu) != 0 {
            self.want_resched(cpu, Resched::Now);
        }
    }

    /// Calls `f` for a CPU's queues of a group and of all groups below it, parents first.
    fn walk_below(&mut self, group: CgroupId, cpu: CpuId, f: &mut impl FnMut(&mut Fair, CfsRqId)) {
        let rq = self.queue_of(Some(group), cpu);
        f(self, rq);
        let mut last = group;
        while let Some(child) = self.child_after(group, last) {
            self.walk_below(child, cpu, f);
            last = child;
        }
    }

    /// Decrements `throttle_count` of a CPU's queues of a group and of all groups below it,
    /// children first. A queue whose count becomes 0 takes its tasks back from limbo.
    fn walk_below_up(&mut self, group: CgroupId, cpu: CpuId) {
        let mut last = group;
        while let Some(child) = self.child_after(group, last) {
            self.walk_below_up(child, cpu);
            last = child;
        }
        let rq = self.queue_of(Some(group), cpu);
        self.throttle_up(rq);
    }

    /// Returns the child of `group` that was created next after `last`. `last` may be the group
    /// itself, which was created before its children.
    fn child_after(&self, group: CgroupId, last: CgroupId) -> Option<CgroupId> {
        let children = &self.group(group)?.children;
        children.range((Bound::Excluded(last), Bound::Unbounded)).next().copied()
    }

    fn throttle_down(&mut self, rq: CfsRqId) {
        self.rqs[rq].throttle_count += 1;
        if self.rqs[rq].throttle_count == 1 && self.rqs[rq].nr_queued == 0 {
            self.stop_pelt_clock(rq);
        }
    }

    fn throttle_up(&mut self, rq: CfsRqId) {
        self.update_curr(rq);
        self.rqs[rq].throttle_count -= 1;
        if self.rqs[rq].throttle_count != 0 {
            return;
        }
        self.resume_pelt_clock(rq);
        let cpu = self.rqs[rq].cpu;
        let mut limbo = std::mem::take(&mut self.rqs[rq].limbo);
        while let Some(task) = limbo.pop() {
            if self.rqs[rq].throttle_count != 0 {
                limbo.push(task);
                break;
            }
            self.task_mut(task).throttled = false;
            let e = self.task(task).ent;
            self.enqueue_task(cpu, e, EnqueueFlags::WAKEUP);
        }
        // An enqueue above may have throttled the queue again, and so put tasks into its new limbo
        // list. Append these tasks to those that have not left limbo. Tasks leave from the end of
        // the list, so the appended tasks leave first.
        limbo.append(&mut self.rqs[rq].limbo);
        self.rqs[rq].limbo = limbo;
        self.list_leaf(rq);
    }

    /// Moves a task of a throttled group from the CPU to limbo.
    pub(super) fn send_to_limbo(&mut self, cpu: CpuId, e: EntityId) {
        let leave = Leave { sleep: true, throttle: true, ..Leave::default() };
        self.dequeue_task(cpu, e, leave);
        let task = self.ents[e].task.expect("groups are not picked");
        self.task_mut(task).throttled = true;
        let rq = self.ents[e].cfs_rq;
        self.rqs[rq].limbo.push(task);
    }

    /// Removes a task from limbo because it moves elsewhere or goes to sleep.
    pub(super) fn leave_limbo(&mut self, task: TaskId, flags: DequeueFlags) {
        let e = self.task(task).ent;
        let rq = self.ents[e].cfs_rq;
        self.rqs[rq].limbo.retain(|&t| t != task);
        if flags.sleep {
            self.task_mut(task).throttled = false;
        } else if flags.migrating {
            self.detach_entity(e);
            self.ents[e].avg.last_update_time = 0;
        }
    }

    /// Handles the enqueue of a task that is in limbo. If the task's new queue is throttled too,
    /// the task goes into the limbo of that queue. Returns true in that case.
    pub(super) fn stays_in_limbo(&mut self, cpu: CpuId, task: TaskId) -> bool {
        if !self.task(task).throttled {
            return false;
        }
        let e = self.task(task).ent;
        let stays = self.in_throttled(e) && self.cpus[cpu].curr != e;
        if stays {
            let rq = self.ents[e].cfs_rq;
            self.rqs[rq].limbo.push(task);
        }
        self.task_mut(task).throttled = stays;
        stays
    }

    pub(super) fn record_throttle(&mut self, rq: CfsRqId) {
        let now = self.cpus[self.rqs[rq].cpu].clock;
        let row = &mut self.rqs[rq];
        if row.throttled && row.throttled_at.is_none() {
            row.throttled_at = Some(now);
        }
    }

    /// Checks the runtime of a queue that gets its first task. If the queue has none left and gets
    /// none from the pool, it is throttled now.
    pub(super) fn check_enqueue_throttle(&mut self, rq: CfsRqId) {
        let row = &self.rqs[rq];
        if row.runtime_enabled && row.h_curr.is_nil() && !row.throttled {
            self.account_runtime(rq, 0, None);
        }
    }

    /// Gives the runtime of a queue that has become empty back to the pool, except for
    /// `min_cfs_rq_runtime_ns`.
    pub(super) fn return_runtime(&mut self, rq: CfsRqId) {
        let row = &self.rqs[rq];
        if !row.runtime_enabled || row.nr_queued != 0 {
            return;
        }
        let slack = row.runtime_remaining - self.params.min_cfs_rq_runtime_ns as i64;
        let (Some(group), true) = (row.group, slack > 0) else {
            return;
        };
        let (now, slice) = (self.cpus[row.cpu].clock, self.params.bandwidth_slice_ns);
        self.rqs[rq].runtime_remaining -= slack;
        let bw = self.bw(group);
        if bw.quota.is_some() {
            bw.runtime += slack as Nanos;
            if bw.runtime > slice && !bw.throttled.is_empty() {
                self.start_slack(group, now);
            }
        }
    }

    fn start_slack(&mut self, group: CgroupId, now: Nanos) {
        let (slack, margin) =
            (self.params.slack_period_ns, self.params.min_bandwidth_expiration_ns);
        let bw = self.bw(group);
        if bw.slack_at.is_some() || refresh_within(bw, now, slack + margin) {
            return;
        }
        let at = now + slack;
        bw.slack_at = Some(at);
        self.timers.push(BandwidthTimer { group, kind: TimerKind::Slack, at });
    }
}

/// Adds the quota of a new period to the pool. The pool keeps unused runtime, up to the burst.
pub(super) fn refill(bw: &mut Bandwidth) {
    let Some(quota) = bw.quota else { return };
    bw.runtime += quota;
    if bw.runtime_snap > bw.runtime {
        bw.burst_time += bw.runtime_snap - bw.runtime;
        bw.nr_burst += 1;
    }
    bw.runtime = bw.runtime.min(quota + bw.burst);
    bw.runtime_snap = bw.runtime;
}

fn refresh_within(bw: &Bandwidth, now: Nanos, margin: Nanos) -> bool {
    bw.period_at.is_none_or(|at| at.saturating_sub(now) < margin)
}

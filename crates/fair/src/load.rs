// SPDX-License-Identifier: GPL-2.0-only
//! Load averages of entities and queues: ageing, attaching, detaching, and propagation from groups
//! to their parents.
//!
//! Owns: the times at which a `SchedAvg` is updated, and the sums of a queue, which follow the sums
//! of the queue's entities.
//! Models: `update_load_avg()`, `attach_entity_load_avg()`, `propagate_entity_load_avg()`,
//! `update_cfs_rq_load_avg()`, `util_est_update()`, `task_h_load()`, fair.c v7.3.
//! Differs: no per-task NUMA or cache accounting; one global clock, so that a remote queue is never
//! behind.

use super::Fair;
use super::pelt::{self, SchedAvg};
use super::state::{CfsRqId, EntityId, Removed};
use super::weight::scale_load_down;
use scxlab_machine::id::{CpuId, Nanos};

/// Actions of a load update besides ageing.
#[derive(Clone, Copy, Default)]
pub(super) struct LoadFlags {
    pub update_tg: bool,
    pub skip_age: bool,
    pub attach: bool,
    pub detach: bool,
    pub util_est: bool,
}

impl LoadFlags {
    pub const NONE: LoadFlags = LoadFlags {
        update_tg: false,
        skip_age: false,
        attach: false,
        detach: false,
        util_est: false,
    };
    pub const TG: LoadFlags = LoadFlags { update_tg: true, ..LoadFlags::NONE };
}

/// Top bit of `util_est`: the utilisation has not changed since the estimate was taken.
const UTIL_AVG_UNCHANGED: u32 = 1 << 31;
/// Smallest difference that is worth an update of the utilisation estimate: 1 % of capacity.
const UTIL_EST_MARGIN: u32 = 1024 / 100;
/// A utilisation estimate above the task's present utilisation falls by a quarter of the
/// difference. This constant is the shift that divides by four.
const UTIL_EST_WEIGHT_SHIFT: u32 = 2;

/// PELT clock at boot, ns. The averages take zero for "never updated", so no clock may show zero.
const EPOCH: u64 = 1 << 30;

impl Fair {
    /// Advances a CPU's clocks to `now`. The PELT clock runs slower on a slow CPU and catches up
    /// when the CPU idles.
    pub(super) fn update_clock(&mut self, cpu: CpuId, now: Nanos) {
        let idle = self.cpus[cpu].curr.is_nil() && self.rqs[CfsRqId(cpu.0)].h_nr_queued == 0;
        let row = &mut self.cpus[cpu];
        let delta = now.saturating_sub(row.clock);
        row.clock = row.clock.max(now);
        if idle {
            row.clock_pelt = row.clock;
        } else {
            row.clock_pelt += (delta * row.capacity) >> 10;
        }
    }

    /// Lets the PELT clock catch up when the CPU runs out of tasks. If the CPU was busy all along,
    /// the time by which the PELT clock lags is dropped (`lost_idle_time`).
    pub(super) fn idle_clock_pelt(&mut self, cpu: CpuId) {
        let divider = (pelt::MIN_DIVIDER << 10) - pelt::LOAD_AVG_MAX;
        let util_sum = self.rqs[CfsRqId(cpu.0)].avg.util_sum;
        let row = &mut self.cpus[cpu];
        if util_sum >= divider {
            row.lost_idle_time += row.clock - row.clock_pelt;
        }
        row.clock_pelt = row.clock;
    }

    pub(super) fn rq_clock_pelt(&self, cpu: CpuId) -> u64 {
        EPOCH + self.cpus[cpu].clock_pelt - self.cpus[cpu].lost_idle_time
    }

    /// Clock of a queue's averages. It stands still while the queue is throttled and empty.
    fn cfs_rq_clock_pelt(&self, rq: CfsRqId) -> u64 {
        let row = &self.rqs[rq];
        let clock = if row.pelt_clock_throttled {
            row.throttled_clock_pelt
        } else {
            self.rq_clock_pelt(row.cpu)
        };
        clock.saturating_sub(row.throttled_clock_pelt_time)
    }

    #[inline]
    pub(super) fn se_weight(&self, e: EntityId) -> u64 {
        scale_load_down(self.ents[e].load)
    }

    fn se_runnable(&self, e: EntityId) -> u64 {
        let entity = &self.ents[e];
        match () {
            _ if entity.sched_delayed => 0,
            _ if entity.task.is_some() => u64::from(entity.on_rq),
            _ => entity.runnable_weight,
        }
    }

    /// Updates the number of runnable tasks below a group entity, which the entity's averages
    /// count.
    pub(super) fn se_update_runnable(&mut self, e: EntityId) {
        let my_q = self.ents[e].my_q;
        if !my_q.is_nil() {
            self.ents[e].runnable_weight = u64::from(self.rqs[my_q].h_nr_runnable);
        }
    }

    /// Ages the averages of a sleeping or departing entity without a new contribution.
    fn age_blocked(&mut self, now: u64, e: EntityId) {
        let weight = self.se_weight(e);
        let avg = &mut self.ents[e].avg;
        if avg.update_sum(now, 0, 0, false) {
            avg.update_avg(weight);
        }
    }

    fn age_entity(&mut self, now: u64, rq: CfsRqId, e: EntityId) {
        if self.ents[e].avg.is_current(now) {
            return;
        }
        let weight = self.se_weight(e);
        let runnable = self.se_runnable(e);
        let running = self.rqs[rq].h_curr == e;
        let entity = &mut self.ents[e];
        if entity.avg.update_sum(now, u64::from(entity.on_rq), runnable, running) {
            entity.avg.update_avg(weight);
            entity.avg.util_est &= !UTIL_AVG_UNCHANGED;
        }
    }

    /// Ages the averages of a queue, and subtracts the load of sleepers that left for other CPUs.
    /// Returns true if the averages changed.
    pub(super) fn age_queue(&mut self, rq: CfsRqId) -> bool {
        let now = self.cfs_rq_clock_pelt(rq);
        let mut changed = false;
        let row = &mut self.rqs[rq];
        if row.removed.nr != 0 {
            let gone = std::mem::take(&mut row.removed);
            subtract_removed(&mut row.avg, gone);
            row.propagate = true;
            let divider = row.avg.divider();
            row.prop_runnable_sum += -((gone.runnable_avg * divider) as i64) >> 10;
            self.sums.touch(rq);
            changed = true;
        }
        if row.avg.is_current(now) {
            return changed;
        }
        let load = scale_load_down(row.load);
        let running = !row.h_curr.is_nil();
        if row.avg.update_sum(now, load, u64::from(row.h_nr_runnable), running) {
            row.avg.update_avg(1);
            self.sums.touch(rq);
            changed = true;
        }
        changed
    }

    /// Brings the averages of an entity and its queue up to date.
    pub(super) fn update_load_avg(&mut self, e: EntityId, flags: LoadFlags) {
        let rq = self.ents[e].cfs_rq;
        let now = self.cfs_rq_clock_pelt(rq);
        if self.ents[e].avg.last_update_time != 0 && !flags.skip_age {
            self.age_entity(now, rq, e);
        }
        let mut changed = self.age_queue(rq);
        changed |= self.propagate(e);
        if self.ents[e].avg.last_update_time == 0 && flags.attach {
            self.attach_load(rq, e);
            self.update_tg_load_avg(rq);
        } else if flags.detach {
            self.detach_load(rq, e);
            self.update_tg_load_avg(rq);
        } else if changed && flags.update_tg {
            self.update_tg_load_avg(rq);
        }
        if flags.util_est {
            self.util_est_update(e);
        }
    }

    pub(super) fn enqueue_load_avg(&mut self, rq: CfsRqId, e: EntityId) {
        let weight = self.se_weight(e);
        let avg = self.ents[e].avg;
        let queue = &mut self.rqs[rq].avg;
        let sum = (weight * avg.load_sum) as i64;
        pelt::shift(&mut queue.load_avg, &mut queue.load_sum, avg.load_avg as i64, sum);
        self.sums.touch(rq);
    }

    pub(super) fn dequeue_load_avg(&mut self, rq: CfsRqId, e: EntityId) {
        let weight = self.se_weight(e);
        let avg = self.ents[e].avg;
        let queue = &mut self.rqs[rq].avg;
        let sum = (weight * avg.load_sum) as i64;
        pelt::shift(&mut queue.load_avg, &mut queue.load_sum, -(avg.load_avg as i64), -sum);
        self.sums.touch(rq);
    }

    fn attach_load(&mut self, rq: CfsRqId, e: EntityId) {
        let weight = self.se_weight(e);
        let queue = self.rqs[rq].avg;
        let divider = queue.divider();
        let avg = &mut self.ents[e].avg;
        // The entity keeps its averages, and takes over the queue's position in the PELT period.
        // The entity's sums are recomputed from its averages for this position.
        avg.last_update_time = queue.last_update_time;
        avg.period_contrib = queue.period_contrib;
        avg.util_sum = avg.util_avg * divider;
        avg.runnable_sum = avg.runnable_avg * divider;
        let load_sum = avg.load_avg * divider;
        avg.load_sum = if weight < load_sum { load_sum / weight.max(1) } else { 1 };
        let avg = *avg;
        self.enqueue_load_avg(rq, e);
        let row = &mut self.rqs[rq];
        row.avg.util_avg += avg.util_avg;
        row.avg.util_sum += avg.util_sum;
        row.avg.runnable_avg += avg.runnable_avg;
        row.avg.runnable_sum += avg.runnable_sum;
        row.propagate = true;
        row.prop_runnable_sum += avg.load_sum as i64;
    }

    pub(super) fn detach_load(&mut self, rq: CfsRqId, e: EntityId) {
        self.dequeue_load_avg(rq, e);
        let gone = self.ents[e].avg;
        let row = &mut self.rqs[rq];
        let avg = &mut row.avg;
        let (util, sum) = (gone.util_avg as i64, gone.util_sum as i64);
        pelt::shift(&mut avg.util_avg, &mut avg.util_sum, -util, -sum);
        let (runnable, sum) = (gone.runnable_avg as i64, gone.runnable_sum as i64);
        pelt::shift(&mut avg.runnable_avg, &mut avg.runnable_sum, -runnable, -sum);
        row.propagate = true;
        row.prop_runnable_sum -= gone.load_sum as i64;
    }

    /// Propagates changes of a group's queue (from tasks that came or went) to the group's entity.
    /// Returns true if there were changes.
    fn propagate(&mut self, e: EntityId) -> bool {
        let gq = self.ents[e].my_q;
        if gq.is_nil() || !self.rqs[gq].propagate {
            return false;
        }
        let rq = self.ents[e].cfs_rq;
        self.rqs[gq].propagate = false;
        self.rqs[rq].propagate = true;
        self.rqs[rq].prop_runnable_sum += self.rqs[gq].prop_runnable_sum;
        self.sums.touch(rq);
        self.propagate_util(rq, e, gq);
        self.propagate_runnable(rq, e, gq);
        self.propagate_load(rq, e, gq);
        true
    }

    fn propagate_util(&mut self, rq: CfsRqId, e: EntityId, gq: CfsRqId) {
        let target = self.rqs[gq].avg.util_avg;
        let queue = &mut self.rqs[rq].avg;
        let avg = &mut self.ents[e].avg;
        let delta = target as i64 - avg.util_avg as i64;
        if delta == 0 {
            return;
        }
        avg.util_avg = target;
        let sum = target * queue.divider();
        let delta_sum = sum as i64 - avg.util_sum as i64;
        avg.util_sum = sum;
        pelt::shift(&mut queue.util_avg, &mut queue.util_sum, delta, delta_sum);
    }

    fn propagate_runnable(&mut self, rq: CfsRqId, e: EntityId, gq: CfsRqId) {
        let target = self.rqs[gq].avg.runnable_avg;
        let queue = &mut self.rqs[rq].avg;
        let avg = &mut self.ents[e].avg;
        let delta = target as i64 - avg.runnable_avg as i64;
        if delta == 0 {
            return;
        }
        avg.runnable_avg = target;
        let sum = target * queue.divider();
        let delta_sum = sum as i64 - avg.runnable_sum as i64;
        avg.runnable_sum = sum;
        pelt::shift(&mut queue.runnable_avg, &mut queue.runnable_sum, delta, delta_sum);
    }

    fn propagate_load(&mut self, rq: CfsRqId, e: EntityId, gq: CfsRqId) {
        let moved = std::mem::take(&mut self.rqs[gq].prop_runnable_sum);
        if moved == 0 {
            return;
        }
        let weight = self.se_weight(e);
        let divider = self.rqs[rq].avg.divider();
        let avg = &self.ents[e].avg;
        let mut runnable_sum = if moved >= 0 {
            (avg.load_sum + moved as u64).min(divider)
        } else {
            // Tasks left the group's queue. The entity's new sum is estimated from the load that
            // the queue still has, as if one task made this load.
            let gq_weight = scale_load_down(self.rqs[gq].load);
            let left = self.rqs[gq].avg.load_sum.checked_div(gq_weight).unwrap_or(0);
            avg.load_sum.min(left)
        };
        runnable_sum = runnable_sum.max(avg.util_sum >> 10);
        let load_sum = weight * runnable_sum;
        let load_avg = load_sum / divider;
        let delta = load_avg as i64 - avg.load_avg as i64;
        if delta == 0 {
            return;
        }
        let delta_sum = load_sum as i64 - (weight * avg.load_sum) as i64;
        let avg = &mut self.ents[e].avg;
        avg.load_sum = runnable_sum;
        avg.load_avg = load_avg;
        let queue = &mut self.rqs[rq].avg;
        pelt::shift(&mut queue.load_avg, &mut queue.load_sum, delta, delta_sum);
    }

    /// Records the load of a sleeper that leaves its queue. The queue subtracts the load at its
    /// next update.
    pub(super) fn remove_load(&mut self, e: EntityId) {
        let rq = self.ents[e].cfs_rq;
        if rq.is_nil() {
            return;
        }
        self.sync_load(e);
        let avg = self.ents[e].avg;
        let removed = &mut self.rqs[rq].removed;
        removed.nr += 1;
        removed.util_avg += avg.util_avg;
        removed.load_avg += avg.load_avg;
        removed.runnable_avg += avg.runnable_avg;
    }

    /// Ages a sleeper's averages to the time of its queue's last update.
    pub(super) fn sync_load(&mut self, e: EntityId) {
        let rq = self.ents[e].cfs_rq;
        if !rq.is_nil() {
            self.age_blocked(self.rqs[rq].avg.last_update_time, e);
        }
    }

    /// Ages the averages of a sleeper that leaves an idle CPU, up to the present time. The averages
    /// of an idle CPU's queue are rarely updated, so ageing only to the last update of the queue
    /// would leave the sleeper's averages too high.
    pub(super) fn age_to_now(&mut self, e: EntityId) {
        let rq = self.ents[e].cfs_rq;
        if rq.is_nil() || self.ents[e].avg.is_decayed() || self.rqs[rq].pelt_clock_throttled {
            return;
        }
        if self.cpus[self.rqs[rq].cpu].curr.is_nil() {
            self.age_blocked(self.cfs_rq_clock_pelt(rq), e);
        }
    }

    fn util_est_update(&mut self, e: EntityId) {
        if !self.params.features.util_est {
            return;
        }
        let avg = &mut self.ents[e].avg;
        let ewma = avg.util_est;
        if ewma & UTIL_AVG_UNCHANGED != 0 {
            return;
        }
        let dequeued = avg.util_avg as u32;
        avg.util_est = UTIL_AVG_UNCHANGED | smooth_util(ewma, dequeued, avg.runnable_avg as u32);
    }

    pub(super) fn task_util_est(&self, e: EntityId) -> u64 {
        u64::from(self.ents[e].avg.util_est & !UTIL_AVG_UNCHANGED)
    }

    pub(super) fn util_est_enqueue(&mut self, cpu: CpuId, e: EntityId) {
        if self.params.features.util_est {
            self.rqs[CfsRqId(cpu.0)].avg.util_est += self.task_util_est(e) as u32;
        }
    }

    pub(super) fn util_est_dequeue(&mut self, cpu: CpuId, e: EntityId) {
        if self.params.features.util_est {
            let est = self.task_util_est(e) as u32;
            let queue = &mut self.rqs[CfsRqId(cpu.0)].avg;
            queue.util_est = queue.util_est.saturating_sub(est);
        }
    }

    /// Initialises the averages of a new task. Its utilisation is at most half of the capacity that
    /// its CPU has left.
    pub(super) fn init_task_avg(&mut self, cpu: CpuId, e: EntityId) {
        let queue = self.rqs[self.ents[e].cfs_rq].avg;
        let weight = self.se_weight(e);
        let spare = (self.cpus[cpu].capacity as i64 - queue.util_avg as i64) / 2;
        let avg = &mut self.ents[e].avg;
        if spare > 0 {
            avg.util_avg = match queue.util_avg {
                0 => spare as u64,
                util => (util * weight / (queue.load_avg + 1)).min(spare as u64),
            };
        }
        avg.runnable_avg = avg.util_avg;
    }

    /// Ages the queues in a CPU's list `leaves` (the queues with load that decays), children first.
    /// Removes fully decayed queues from the list.
    pub(super) fn update_blocked(&mut self, cpu: CpuId) {
        let mut done = true;
        self.cpus[cpu].last_blocked_update = self.jiffies(self.cpus[cpu].clock);
        let mut at = 0;
        while let Some(&rq) = self.cpus[cpu].leaves.get(at) {
            if self.age_queue(rq) {
                self.update_tg_load_avg(rq);
            }
            let e = self.rqs[rq].ent;
            if !e.is_nil() && !self.blocked_done(e) {
                self.update_load_avg(e, LoadFlags::TG);
            }
            let avg = &self.rqs[rq].avg;
            done &= avg.load_avg == 0 && avg.util_avg == 0;
            if self.queue_is_decayed(rq) {
                self.rqs[rq].on_leaf_list = false;
                self.cpus[cpu].leaves.remove(at);
            } else {
                at += 1;
            }
        }
        if done {
            self.cpus[cpu].has_blocked_load = false;
        }
    }

    fn blocked_done(&self, e: EntityId) -> bool {
        let avg = &self.ents[e].avg;
        avg.load_avg == 0 && avg.util_avg == 0 && !self.rqs[self.ents[e].my_q].propagate
    }

    fn queue_is_decayed(&self, rq: CfsRqId) -> bool {
        let row = &self.rqs[rq];
        let child_listed = || {
            let leaves = &self.cpus[row.cpu].leaves;
            leaves.iter().any(|&l| {
                let e = self.rqs[l].ent;
                !e.is_nil() && self.ents[e].cfs_rq == rq
            })
        };
        row.load == 0 && row.avg.is_decayed() && row.tg_load_avg_contrib == 0 && !child_listed()
    }

    /// Adds a queue to its CPU's list `leaves`, before the queue of the parent group.
    pub(super) fn list_leaf(&mut self, rq: CfsRqId) {
        if self.rqs[rq].on_leaf_list {
            return;
        }
        self.rqs[rq].on_leaf_list = true;
        let (cpu, depth) = (self.rqs[rq].cpu, self.rqs[rq].depth);
        let at = self.cpus[cpu].leaves.partition_point(|&l| self.rqs[l].depth > depth);
        self.cpus[cpu].leaves.insert(at, rq);
    }

    pub(super) fn unlist_leaf(&mut self, rq: CfsRqId) {
        if std::mem::take(&mut self.rqs[rq].on_leaf_list) {
            let cpu = self.rqs[rq].cpu;
            self.cpus[cpu].leaves.retain(|&l| l != rq);
        }
    }

    /// Propagates a change of load to the groups above a task that came or went without an enqueue.
    pub(super) fn propagate_up(&mut self, e: EntityId) {
        let rq = self.ents[e].cfs_rq;
        if !self.rqs[rq].pelt_clock_throttled {
            self.list_leaf(rq);
        }
        let mut at = self.ents[e].parent;
        while let Some(e) = at.some() {
            self.update_load_avg(e, LoadFlags::TG);
            let rq = self.ents[e].cfs_rq;
            if !self.rqs[rq].pelt_clock_throttled {
                self.list_leaf(rq);
            }
            at = self.ents[e].parent;
        }
    }

    /// Adds a task's load to its queue outside of an enqueue (class or group change).
    pub(super) fn attach_entity(&mut self, e: EntityId) {
        let rq = self.ents[e].cfs_rq;
        let skip_age = !self.params.features.attach_age_load;
        self.update_load_avg(e, LoadFlags { skip_age, ..LoadFlags::NONE });
        self.attach_load(rq, e);
        self.update_tg_load_avg(rq);
        self.propagate_up(e);
    }

    pub(super) fn detach_entity(&mut self, e: EntityId) {
        let rq = self.ents[e].cfs_rq;
        if rq.is_nil() || self.ents[e].avg.last_update_time == 0 {
            return;
        }
        self.update_load_avg(e, LoadFlags::NONE);
        self.detach_load(rq, e);
        self.update_tg_load_avg(rq);
        self.propagate_up(e);
    }

    /// Load of a queue on the scale of its CPU: the shares of all groups above are applied. The
    /// value is cached for a jiffy.
    fn queue_h_load(&mut self, rq: CfsRqId) -> u64 {
        let jiffy = self.jiffies(self.cpus[self.rqs[rq].cpu].clock);
        if self.rqs[rq].h_load_at == jiffy {
            return self.rqs[rq].h_load;
        }
        let h_load = match self.rqs[rq].ent.some() {
            None => self.rqs[rq].avg.load_avg,
            Some(e) => {
                let up = self.ents[e].cfs_rq;
                let above = self.queue_h_load(up);
                above * self.ents[e].avg.load_avg / (self.rqs[up].avg.load_avg + 1)
            }
        };
        self.rqs[rq].h_load = h_load;
        self.rqs[rq].h_load_at = jiffy;
        h_load
    }

    /// Load of a task on the scale of its CPU.
    pub(super) fn task_h_load(&mut self, e: EntityId) -> u64 {
        let rq = self.ents[e].cfs_rq;
        if rq.is_nil() {
            return 0;
        }
        let h_load = self.queue_h_load(rq);
        self.ents[e].avg.load_avg * h_load / (self.rqs[rq].avg.load_avg + 1)
    }
}

fn subtract_removed(avg: &mut SchedAvg, gone: Removed) {
    let divider = avg.divider() as i64;
    let (load, util, runnable) =
        (gone.load_avg as i64, gone.util_avg as i64, gone.runnable_avg as i64);
    pelt::shift(&mut avg.load_avg, &mut avg.load_sum, -load, -load * divider);
    pelt::shift(&mut avg.util_avg, &mut avg.util_sum, -util, -util * divider);
    pelt::shift(&mut avg.runnable_avg, &mut avg.runnable_sum, -runnable, -runnable * divider);
}

/// Returns the next utilisation estimate from the last one (`ewma`) and the utilisation at the
/// dequeue (`dequeued`). The estimate rises to the utilisation at once, and falls by a quarter of
/// the difference between the two. It does not fall if the difference is below the margin, or while
/// the task is starved (its runnable average is well above its utilisation).
fn smooth_util(ewma: u32, dequeued: u32, runnable_avg: u32) -> u32 {
    if ewma <= dequeued {
        return dequeued;
    }
    let diff = ewma - dequeued;
    if diff < UTIL_EST_MARGIN || dequeued + UTIL_EST_MARGIN < runnable_avg {
        return ewma;
    }
    ((ewma << UTIL_EST_WEIGHT_SHIFT) - diff) >> UTIL_EST_WEIGHT_SHIFT
}

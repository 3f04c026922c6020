// SPDX-License-Identifier: GPL-2.0-only
//! Conversion of a cgroup's weight to the weight of its entity on each CPU, and of the entity's
//! weight to the weights of the group's tasks.
//!
//! Owns: a group's load over all CPUs, which decides each CPU's share of the group's weight.
//! Models: `calc_group_shares` (5 cgroup modes), `reweight_entity()`, `__calc_prop_weight()`,
//! `update_tg_load_avg()`, fair.c v7.3.

use super::Fair;
use super::params::CgroupMode;
use super::state::{CfsRqId, EntityId};
use super::weight::{MIN_SHARES, NICE_0_LOAD, nice_weight, scale_load, scale_load_down};
use scxlab_machine::id::{CgroupId, CpuId, Nanos};

/// Shortest time between two reports of a queue's load to its group: 1 ms.
const TG_UPDATE_INTERVAL: Nanos = 1_000_000;

impl Fair {
    /// Recomputes the weight of a group's entity on one CPU from the group's queue on that CPU.
    pub(super) fn update_group_weight(&mut self, e: EntityId) {
        let gq = self.ents[e].my_q;
        // An empty group keeps its weight, because its tasks may come back before their lag is
        // gone.
        if gq.is_nil() || self.rqs[gq].load == 0 {
            return;
        }
        let shares = self.group_shares(gq);
        self.reweight_entity(e, shares);
    }

    fn group_shares(&self, gq: CfsRqId) -> u64 {
        let Some(group) = self.rqs[gq].group.and_then(|id| self.group(id)) else {
            return NICE_0_LOAD;
        };
        let shares = group.shares;
        let tasks = (group.runnable_avg >> 10).max(1) as u64;
        let cpus = u64::from(group.nr_cpus.unwrap_or(self.nr_online).max(1));
        let (scaled, max) = match self.params.cgroup_mode {
            CgroupMode::Up => return shares,
            CgroupMode::Smp => (shares, shares),
            CgroupMode::Concur => (shares * tasks.min(cpus), shares * tasks.min(cpus)),
            CgroupMode::Max => (shares * cpus, scale_load(nice_weight(-20))),
            CgroupMode::Tasks => (shares * tasks, shares * tasks),
        };
        let row = &self.rqs[gq];
        // This CPU's load counts as it is now. The load of every other CPU counts as that CPU last
        // reported it.
        let load = scale_load_down(row.load).max(row.avg.load_avg);
        let total = group.load_avg - row.tg_load_avg_contrib as i64 + load as i64;
        let part = if total > 0 { scaled * load / total as u64 } else { scaled * load };
        // The upper bound wins over the lower bound, because the kernel's clamp applies the lower
        // bound only while it is below the upper bound.
        part.max(MIN_SHARES).min(max)
    }

    /// Sets a new weight of an entity within its queue.
    pub(super) fn reweight_entity(&mut self, e: EntityId, weight: u64) {
        if self.ents[e].load == weight {
            return;
        }
        let rq = self.ents[e].cfs_rq;
        if rq.is_nil() {
            self.ents[e].load = weight;
            return;
        }
        let on_rq = self.ents[e].on_rq;
        if on_rq {
            self.rqs[rq].load -= self.ents[e].load;
        }
        self.dequeue_load_avg(rq, e);
        self.ents[e].load = weight;
        let scaled = self.se_weight(e);
        let avg = &mut self.ents[e].avg;
        avg.load_avg = scaled * avg.load_sum / avg.divider();
        self.enqueue_load_avg(rq, e);
        if on_rq {
            self.rqs[rq].load += weight;
        }
    }

    /// Applies one level of groups to a task's weight on its CPU: multiplies the weight by the
    /// entity's part of the load of its queue.
    pub(super) fn prop_weight(&self, e: EntityId, weight: u64) -> u64 {
        let entity = &self.ents[e];
        let whole = match entity.parent.is_nil() {
            true => NICE_0_LOAD,
            false => self.rqs[entity.cfs_rq].load.max(1),
        };
        let part = u128::from(weight) * u128::from(entity.load) / u128::from(whole);
        (part as u64).max(MIN_SHARES)
    }

    /// Reports a queue's load and runnable average to its group, if one of them changed by more
    /// than 1/64 since the last report.
    #[inline]
    pub(super) fn update_tg_load_avg(&mut self, rq: CfsRqId) {
        if let Some(id) = self.rqs[rq].group {
            self.update_group_load_avg(rq, id);
        }
    }

    fn update_group_load_avg(&mut self, rq: CfsRqId, id: CgroupId) {
        let row = &self.rqs[rq];
        let now = self.cpus[row.cpu].clock;
        if !self.cpus[row.cpu].online || now - row.last_update_tg < TG_UPDATE_INTERVAL {
            return;
        }
        let load = row.avg.load_avg as i64 - row.tg_load_avg_contrib as i64;
        let runnable = row.avg.runnable_avg as i64 - row.tg_runnable_avg_contrib as i64;
        if load.unsigned_abs() > row.tg_load_avg_contrib / 64
            || runnable.unsigned_abs() > row.tg_runnable_avg_contrib / 64
        {
            self.report_to_group(rq, id, load, runnable, now);
        }
    }

    fn report_to_group(
        &mut self,
        rq: CfsRqId,
        id: scxlab_machine::id::CgroupId,
        load: i64,
        runnable: i64,
        now: Nanos,
    ) {
        let row = &mut self.rqs[rq];
        row.tg_load_avg_contrib = row.tg_load_avg_contrib.saturating_add_signed(load);
        row.tg_runnable_avg_contrib = row.tg_runnable_avg_contrib.saturating_add_signed(runnable);
        row.last_update_tg = now;
        if let Some(group) = self.group_mut(id) {
            group.load_avg += load;
            group.runnable_avg += runnable;
        }
    }

    /// Removes the load of a CPU that goes off line from the loads of all groups.
    pub(super) fn clear_tg_load_avg(&mut self, cpu: CpuId) {
        for at in 0..self.rqs.0.len() {
            let rq = CfsRqId(at as u32);
            let row = &self.rqs[rq];
            if let (true, Some(id)) = (row.cpu == cpu, row.group) {
                let (load, runnable) = (row.tg_load_avg_contrib, row.tg_runnable_avg_contrib);
                let now = self.cpus[cpu].clock;
                self.report_to_group(rq, id, -(load as i64), -(runnable as i64), now);
            }
        }
    }
}

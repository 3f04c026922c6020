// SPDX-License-Identifier: GPL-2.0-only
//! EEVDF among the tasks of a CPU: virtual time, lag, eligibility, deadlines, and the pick.
//!
//! Owns: a CPU's tree, the sums that give the zero-lag point, the protected slice of the running
//! task.
//! Does not: know groups; they enter through `h_load`, the weight of a task on its CPU.
//! Models: `avg_vruntime()`, `entity_lag()`, `vruntime_eligible()`, `pick_eevdf()`,
//! `place_entity()`, `update_deadline()`, `reweight_eevdf()`, `set_protect_slice()`, v7.3.
//! Differs: the weighted sum has 128 bits, so it cannot overflow and needs no `PARANOID_AVG`.

use super::state::{CfsRqId, EntityId};
use super::tree::{self, vdiff};
use super::weight::{delta_fair, rescale};
use super::{EnqueueFlags, Fair};
use scxlab_machine::id::{CpuId, Nanos};

impl Fair {
    /// The running task of this class, if it is still queued.
    #[inline]
    pub(super) fn curr_queued(&self, cpu: CpuId) -> Option<EntityId> {
        self.cpus[cpu].curr.some().filter(|&e| self.ents[e].on_rq)
    }

    /// Vruntime of an entity relative to the CPU's reference point `zero_vruntime`. The difference
    /// is small, whatever the absolute vruntime.
    #[inline]
    fn key(&self, cpu: CpuId, e: EntityId) -> i64 {
        vdiff(self.ents[e].vruntime, self.cpus[cpu].zero_vruntime)
    }

    #[inline]
    fn weighted_key(&self, cpu: CpuId, e: EntityId) -> i128 {
        i128::from(self.key(cpu, e)) * i128::from(self.ents[e].h_load)
    }

    pub(super) fn tree_insert(&mut self, cpu: CpuId, e: EntityId) {
        let term = self.weighted_key(cpu, e);
        let row = &mut self.cpus[cpu];
        row.sum_w_vruntime += term;
        row.sum_weight += self.ents[e].h_load;
        self.ents[e].node.seq = row.seq;
        row.seq += 1;
        row.tree = tree::insert(&mut self.ents, row.tree, e);
    }

    pub(super) fn tree_remove(&mut self, cpu: CpuId, e: EntityId) {
        let term = self.weighted_key(cpu, e);
        let row = &mut self.cpus[cpu];
        row.tree = tree::remove(&mut self.ents, row.tree, e);
        row.sum_w_vruntime -= term;
        row.sum_weight -= self.ents[e].h_load;
    }

    /// Two sums over all queued tasks, the running one included: of weight times `key` (vruntime
    /// relative to the reference point), and of the weights.
    #[inline]
    fn totals(&self, cpu: CpuId) -> (i128, u64) {
        let row = &self.cpus[cpu];
        match self.curr_queued(cpu) {
            Some(curr) => (
                row.sum_w_vruntime + self.weighted_key(cpu, curr),
                row.sum_weight + self.ents[curr].h_load,
            ),
            None => (row.sum_w_vruntime, row.sum_weight),
        }
    }

    /// Returns V, the zero-lag point, rounded down, and makes it the CPU's reference point.
    pub(super) fn avg_vruntime(&mut self, cpu: CpuId) -> u64 {
        let delta = if self.cpus[cpu].sum_weight != 0 {
            let (sum, weight) = self.totals(cpu);
            div_floor(sum, weight)
        } else {
            self.curr_queued(cpu).map_or(0, |curr| self.key(cpu, curr))
        };
        self.move_zero(cpu, delta);
        self.cpus[cpu].zero_vruntime
    }

    /// Moves the CPU's reference point by `delta`, and adjusts the weighted sum of the waiting
    /// entities' keys, which are relative to the point.
    fn move_zero(&mut self, cpu: CpuId, delta: i64) {
        let row = &mut self.cpus[cpu];
        row.sum_w_vruntime -= i128::from(row.sum_weight) * i128::from(delta);
        row.zero_vruntime = row.zero_vruntime.wrapping_add_signed(delta);
    }

    /// Returns the least vruntime at which the running task is not eligible: one unit past the
    /// zero-lag point of the waiting tasks.
    fn ineligible_vruntime(&self, cpu: CpuId) -> u64 {
        let row = &self.cpus[cpu];
        let delta = match row.sum_weight {
            0 => 0,
            weight => div_floor(row.sum_w_vruntime, weight),
        };
        row.zero_vruntime.wrapping_add_signed(delta + 1)
    }

    /// Whether an entity with this vruntime has received no more than its due (v <= V). The test
    /// needs no division.
    #[inline]
    pub(super) fn vruntime_eligible(&self, cpu: CpuId, vruntime: u64) -> bool {
        let (sum, weight) = self.totals(cpu);
        let key = vdiff(vruntime, self.cpus[cpu].zero_vruntime);
        sum >= i128::from(key) * i128::from(weight)
    }

    #[inline]
    pub(super) fn eligible(&self, cpu: CpuId, e: EntityId) -> bool {
        self.vruntime_eligible(cpu, self.ents[e].vruntime)
    }

    fn min_slice(&self, cpu: CpuId) -> Nanos {
        let waiting = self.cpus[cpu].tree.some().map(|root| self.ents[root].node.min_slice);
        let curr = self.curr_queued(cpu).map(|e| self.ents[e].slice);
        waiting.into_iter().chain(curr).min().unwrap_or(Nanos::MAX)
    }

    fn max_slice(&self, cpu: CpuId) -> Nanos {
        let waiting = self.cpus[cpu].tree.some().map(|root| self.ents[root].node.max_slice);
        let curr = self.curr_queued(cpu).map(|e| self.ents[e].slice);
        waiting.into_iter().chain(curr).max().unwrap_or(0)
    }

    /// Bound on the lag of an entity of this CPU, in either direction, in the entity's virtual
    /// time.
    pub(super) fn lag_limit(&self, cpu: CpuId, e: EntityId) -> i64 {
        delta_fair(self.max_slice(cpu) + self.params.tick_ns, self.ents[e].h_load) as i64
    }

    fn clamped_lag(&self, cpu: CpuId, e: EntityId, avg_vruntime: u64) -> i64 {
        let limit = self.lag_limit(cpu, e);
        vdiff(avg_vruntime, self.ents[e].vruntime).clamp(-limit, limit)
    }

    /// Stores the lag with which an entity leaves the queue. Returns true if the stored lag differs
    /// from the lag that the entity's vruntime gives.
    pub(super) fn update_entity_lag(&mut self, cpu: CpuId, e: EntityId) -> bool {
        let avg = self.avg_vruntime(cpu);
        let mut vlag = self.clamped_lag(cpu, e, avg);
        if self.ents[e].sched_delayed {
            // The entity was ineligible when it fell asleep. Its debt may shrink, but not grow or
            // turn into credit.
            vlag = vlag.max(self.ents[e].vlag);
            if self.params.features.delay_zero {
                vlag = vlag.min(0);
            }
        }
        self.ents[e].vlag = vlag;
        avg.wrapping_sub(vlag as u64) != self.ents[e].vruntime
    }

    /// Sets the vruntime and deadline of a task that joins the competition. The task must not be in
    /// the tree.
    pub(super) fn place(&mut self, cpu: CpuId, e: EntityId, flags: EnqueueFlags, counted: bool) {
        let vruntime = self.avg_vruntime(cpu);
        if !self.ents[e].custom_slice {
            self.ents[e].slice = self.base_slice;
        }
        let others = self.rqs[CfsRqId(cpu.0)].h_nr_queued - u32::from(counted);
        let lag = if self.params.features.place_lag && others != 0 && self.ents[e].vlag != 0 {
            self.inflated_lag(cpu, e)
        } else {
            0
        };
        self.ents[e].vruntime = vruntime.wrapping_sub(lag as u64);
        // A heavy newcomer moves V far away from the reference point. The reference point moves
        // along, so that keys stay small.
        if lag != 0 && self.ents[e].h_load > self.totals(cpu).1.max(1) {
            self.move_zero(cpu, -lag);
        }
        self.place_deadline(e, flags);
    }

    /// Returns the lag with which to place a newcomer. The newcomer moves the zero-lag point V
    /// towards itself when it joins, which shrinks this lag to its stored lag `vlag`.
    fn inflated_lag(&self, cpu: CpuId, e: EntityId) -> i64 {
        let load = self.totals(cpu).1.max(1);
        let vlag = self.ents[e].vlag;
        vlag + (i128::from(vlag) * i128::from(self.ents[e].h_load) / i128::from(load)) as i64
    }

    fn place_deadline(&mut self, e: EntityId, flags: EnqueueFlags) {
        let features = self.params.features;
        let entity = &mut self.ents[e];
        if features.place_rel_deadline && entity.rel_deadline {
            entity.deadline = entity.deadline.wrapping_add(entity.vruntime);
            entity.rel_deadline = false;
            return;
        }
        let mut vslice = delta_fair(entity.slice, entity.h_load);
        if features.place_deadline_initial && flags.initial {
            vslice /= 2;
        }
        entity.deadline = entity.vruntime.wrapping_add(vslice);
    }

    /// Gives an entity a new deadline, and returns true, if its request is served (its vruntime has
    /// reached its deadline).
    pub(super) fn update_deadline(&mut self, cpu: CpuId, e: EntityId) -> bool {
        let base_slice = self.base_slice;
        let entity = &mut self.ents[e];
        if vdiff(entity.vruntime, entity.deadline) < 0 {
            return false;
        }
        if !entity.custom_slice {
            entity.slice = base_slice;
        }
        entity.deadline = entity.vruntime.wrapping_add(delta_fair(entity.slice, entity.h_load));
        self.avg_vruntime(cpu);
        true
    }

    /// Changes an entity's weight on its CPU. The lag and the distance to the deadline keep their
    /// size in real time.
    pub(super) fn reweight_eevdf(&mut self, cpu: CpuId, e: EntityId, weight: u64, on_rq: bool) {
        if self.ents[e].h_load == weight {
            return;
        }
        if !on_rq {
            self.rescale_entity(e, weight, false);
            self.ents[e].h_load = weight;
            return;
        }
        let curr = self.cpus[cpu].curr == e;
        let avg = self.avg_vruntime(cpu);
        self.ents[e].vlag = self.clamped_lag(cpu, e, avg);
        if !curr {
            self.tree_remove(cpu, e);
        }
        let entity = &mut self.ents[e];
        entity.deadline = entity.deadline.wrapping_sub(avg);
        entity.rel_deadline = true;
        let rel_vprot = curr && vdiff(entity.vruntime, entity.vprot) < 0;
        if rel_vprot {
            entity.vprot = entity.vprot.wrapping_sub(avg);
        }
        self.rescale_entity(e, weight, rel_vprot);
        let entity = &mut self.ents[e];
        entity.h_load = weight;
        if rel_vprot {
            entity.vprot = entity.vprot.wrapping_add(avg);
        }
        entity.deadline = entity.deadline.wrapping_add(avg);
        entity.rel_deadline = false;
        entity.vruntime = avg.wrapping_sub(entity.vlag as u64);
        if !curr {
            self.tree_insert(cpu, e);
        }
    }

    fn rescale_entity(&mut self, e: EntityId, weight: u64, rel_vprot: bool) {
        let entity = &mut self.ents[e];
        let old = entity.h_load;
        entity.vlag = rescale(entity.vlag, old, weight);
        if entity.rel_deadline {
            entity.deadline = rescale(entity.deadline as i64, old, weight) as u64;
        }
        if rel_vprot {
            entity.vprot = rescale(entity.vprot as i64, old, weight) as u64;
        }
    }

    /// Sets how long a task that starts to run keeps its CPU although another task has an earlier
    /// deadline: for its slice, or for less if a task with a shorter slice waits.
    pub(super) fn set_protect_slice(&mut self, cpu: CpuId, e: EntityId) {
        let features = self.params.features;
        let entity = &self.ents[e];
        let mut slice = self.params.base_slice_ns;
        if features.run_to_parity {
            slice = self.min_slice(cpu);
        }
        slice = slice.min(entity.slice);
        let mut vprot = entity.deadline;
        if slice != entity.slice {
            let limit = if features.preempt_short {
                self.ineligible_vruntime(cpu)
            } else {
                entity.vruntime.wrapping_add(delta_fair(slice, entity.h_load))
            };
            vprot = vmin(vprot, limit);
        }
        self.ents[e].vprot = vprot;
    }

    /// Shortens the protection of the running task after an enqueue, if the newcomer has a shorter
    /// slice.
    pub(super) fn update_protect_slice(&mut self, cpu: CpuId, e: EntityId) {
        let slice = self.min_slice(cpu);
        let vruntime = vmin(self.ents[e].vruntime, self.avg_vruntime(cpu));
        let entity = &mut self.ents[e];
        let limit = vruntime.wrapping_add(delta_fair(slice, entity.h_load));
        entity.vprot = vmin(entity.vprot, limit);
    }

    #[inline]
    pub(super) fn protected(&self, e: EntityId) -> bool {
        vdiff(self.ents[e].vruntime, self.ents[e].vprot) < 0
    }

    pub(super) fn cancel_protect_slice(&mut self, e: EntityId) {
        if self.protected(e) {
            self.ents[e].vprot = self.ents[e].vruntime;
        }
    }

    /// Returns the eligible entity with the earliest deadline. `protect` lets the running task
    /// finish its protected slice.
    pub(super) fn pick_eevdf(&self, cpu: CpuId, protect: bool) -> Option<EntityId> {
        let row = &self.cpus[cpu];
        let curr = self.curr_queued(cpu);
        if self.rqs[CfsRqId(cpu.0)].h_nr_queued == 1 {
            return curr.or_else(|| tree::first(&self.ents, row.tree));
        }
        if self.params.features.pick_buddy
            && protect
            && let Some(next) = row.next.some().filter(|&e| self.eligible(cpu, e))
        {
            return Some(next);
        }
        let curr = curr.filter(|&e| self.eligible(cpu, e));
        if let Some(e) = curr.filter(|&e| protect && self.protected(e)) {
            return Some(e);
        }
        let (sum, weight) = self.totals(cpu);
        let zero = row.zero_vruntime;
        let best = tree::first_eligible(&self.ents, row.tree, |vruntime| {
            sum >= i128::from(vdiff(vruntime, zero)) * i128::from(weight)
        });
        match (best, curr) {
            (Some(best), Some(curr)) if self.entity_before(curr, best) => Some(curr),
            (Some(best), _) => Some(best),
            (None, curr) => curr,
        }
    }

    #[inline]
    pub(super) fn entity_before(&self, a: EntityId, b: EntityId) -> bool {
        vdiff(self.ents[a].deadline, self.ents[b].deadline) < 0
    }
}

/// Returns the earlier of two virtual times.
fn vmin(a: u64, b: u64) -> u64 {
    if vdiff(b, a) < 0 { b } else { a }
}

/// Divides and rounds towards minus infinity, so that an entity exactly at V stays eligible.
fn div_floor(sum: i128, weight: u64) -> i64 {
    match i64::try_from(sum) {
        Ok(sum) => sum.div_euclid(weight as i64),
        Err(_) => sum.div_euclid(i128::from(weight)) as i64,
    }
}

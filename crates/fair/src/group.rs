// SPDX-License-Identifier: GPL-2.0-only
//! Cgroups: their tree, weight, idleness and quota.
//!
//! Owns: the creation and removal of groups. The class creates a group's queue and entity on a CPU
//! when something first needs them.
//! Models: `sched_group_set_shares()`, `sched_group_set_idle()`, `tg_set_cfs_bandwidth()`, core.c
//! and fair.c v7.3.

use super::Fair;
use super::bandwidth::refill;
use super::load::LoadFlags;
use super::state::{CfsRq, CfsRqId, Entity, EntityId, Group};
use super::weight::{
    MAX_SHARES, MIN_SHARES, NICE_0_LOAD, WEIGHT_IDLEPRIO, cgroup_weight, scale_load,
};
use scxlab_machine::id::{CgroupId, CpuId, Nanos};

/// The values of a group's `cpu.max` and `cpu.max.burst`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BandwidthSpec {
    /// Run time per period, at least 1 ms. None means no limit.
    pub quota: Option<Nanos>,
    /// Length of a period, 1 ms to 1 s.
    pub period: Nanos,
    pub burst: Nanos,
    /// Offset of the period boundaries, ns. When the kernel makes the group, it draws a random
    /// offset below the period (`init_cfs_bandwidth()`).
    pub phase: Nanos,
}

/// The values in a group's `cpu.stat` that concern its quota.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BandwidthStat {
    pub nr_periods: u64,
    pub nr_throttled: u64,
    pub throttled_ns: Nanos,
    pub nr_bursts: u64,
    pub burst_ns: Nanos,
}

impl Fair {
    /// Adds a cgroup of the default weight, without limits. `parent` 0 is the root.
    pub fn add_group(&mut self, id: CgroupId, parent: CgroupId) {
        assert!(id.0 != 0, "the root group is always there");
        assert!(self.group(id).is_none(), "cgroup {id} exists already");
        let parent = nested(parent);
        if self.groups.len() <= id.idx() {
            self.groups.resize(id.idx() + 1, None);
        }
        self.groups[id.idx()] = Some(Group::new(parent, self.cpus.0.len()));
        if let Some(parent) = parent {
            let up = self.group_mut(parent).expect("a group's parent exists");
            up.children.insert(id);
        }
    }

    /// Returns the bytes that the class allocates for a new group. They grow with the number of
    /// CPUs, because a group's table of queues has an entry for each CPU.
    pub fn bytes_per_group(&self) -> u64 {
        (size_of::<Option<Group>>() + self.cpus.0.len() * size_of::<CfsRqId>()) as u64
    }

    /// Returns the bytes that the class has allocated for queues and entities. The class creates a
    /// group's queue on a CPU when a task first needs it, and does not free it before the run ends.
    pub fn bytes_of_queues(&self) -> u64 {
        (self.rqs.0.len() * size_of::<CfsRq>() + self.ents.0.len() * size_of::<Entity>()) as u64
    }

    /// Removes a cgroup that has no tasks and no children.
    pub fn remove_group(&mut self, id: CgroupId, now: Nanos) {
        let group = self.group(id).expect("a cgroup to remove exists");
        assert!(group.children.is_empty(), "cgroup {id} has children");
        let parent = group.parent;
        let mine: Vec<CfsRqId> = group.rqs.iter().copied().filter(|rq| !rq.is_nil()).collect();
        for rq in mine {
            assert_eq!(self.rqs[rq].h_nr_queued, 0, "cgroup {id} has tasks");
            self.update_clock(self.rqs[rq].cpu, now);
            let e = self.rqs[rq].ent;
            self.remove_load(e);
            self.unlist_leaf(rq);
            self.free_rqs.push(rq);
            self.free_ents.push(e);
            self.rqs[rq].group = None;
        }
        if let Some(up) = parent.and_then(|p| self.group_mut(p)) {
            up.children.remove(&id);
        }
        self.groups[id.idx()] = None;
    }

    /// Sets `cpu.weight`, 1 to 10000. It has no effect on an idle group.
    pub fn set_group_weight(&mut self, id: CgroupId, weight: u32, now: Nanos) {
        if self.group(id).is_some_and(|g| !g.idle) {
            self.set_shares(id, scale_load(cgroup_weight(weight)), now);
        }
    }

    /// Sets `cpu.idle`: the group gets the smallest weight, and a CPU that runs only tasks of idle
    /// groups or idle policy counts as idle for the placement of other tasks. Turning `cpu.idle`
    /// off sets the default weight.
    pub fn set_group_idle(&mut self, id: CgroupId, idle: bool, now: Nanos) {
        let Some(group) = self.group_mut(id).filter(|g| g.idle != idle) else {
            return;
        };
        group.idle = idle;
        for cpu in self.cpu_ids() {
            if let Some(rq) = self.existing_queue(id, cpu) {
                self.set_queue_idle(rq, idle);
                self.update_maybe_idle(cpu);
            }
        }
        let shares = if idle { scale_load(WEIGHT_IDLEPRIO) } else { NICE_0_LOAD };
        self.set_shares(id, shares, now);
    }

    fn set_queue_idle(&mut self, rq: CfsRqId, idle: bool) {
        self.rqs[rq].idle = idle;
        let delta = (self.rqs[rq].h_nr_queued - self.rqs[rq].h_nr_idle) as i32;
        let delta = if idle { delta } else { -delta };
        let mut at = self.rqs[rq].ent;
        while let Some(e) = at.some().filter(|&e| self.ents[e].on_rq) {
            let row = &mut self.rqs[self.ents[e].cfs_rq];
            row.h_nr_idle = row.h_nr_idle.strict_add_signed(delta);
            if row.idle {
                return;
            }
            at = self.ents[e].parent;
        }
    }

    fn set_shares(&mut self, id: CgroupId, shares: u64, now: Nanos) {
        let shares = shares.clamp(scale_load(MIN_SHARES), scale_load(MAX_SHARES));
        let group = self.group_mut(id).expect("a group that is changed exists");
        if group.shares == shares {
            return;
        }
        group.shares = shares;
        for cpu in self.cpu_ids() {
            let Some(rq) = self.existing_queue(id, cpu) else {
                continue;
            };
            self.update_clock(cpu, now);
            let mut at = self.rqs[rq].ent;
            while let Some(e) = at.some() {
                self.update_load_avg(e, LoadFlags::TG);
                self.update_group_weight(e);
                at = self.ents[e].parent;
            }
        }
    }

    /// Sets the number of CPUs of the group's cpuset; None means all on-line CPUs. The number
    /// bounds the concurrency by which `CgroupMode` scales the group's weight.
    pub fn set_group_cpus(&mut self, id: CgroupId, nr_cpus: Option<u32>) {
        if let Some(group) = self.group_mut(id) {
            group.nr_cpus = nr_cpus;
        }
    }

    /// Sets `cpu.max`, and unthrottles the group's queues. The caller must then check
    /// `take_resched` of all CPUs, and `take_timers`.
    pub fn set_group_bandwidth(&mut self, id: CgroupId, spec: BandwidthSpec, now: Nanos) {
        let Some(group) = self.group_mut(id) else {
            return;
        };
        let bw = &mut group.bw;
        bw.period = spec.period.max(1);
        bw.quota = spec.quota;
        bw.burst = spec.burst;
        bw.phase = spec.phase;
        refill(bw);
        bw.period_at = None;
        let limited = spec.quota.is_some();
        if limited {
            self.start_bandwidth(id, now);
        }
        for cpu in self.cpu_ids() {
            let Some(rq) = self.existing_queue(id, cpu) else {
                continue;
            };
            self.update_clock(cpu, now);
            self.rqs[rq].runtime_enabled = limited;
            self.rqs[rq].runtime_remaining = 1;
            if self.rqs[rq].throttled {
                self.unthrottle(rq);
            }
        }
    }

    /// Returns the values of `cpu.stat` for the group's quota.
    pub fn bandwidth_stat(&self, id: CgroupId) -> BandwidthStat {
        self.group(id).map_or_else(BandwidthStat::default, |group| BandwidthStat {
            nr_periods: group.bw.nr_periods,
            nr_throttled: group.bw.nr_throttled,
            throttled_ns: group.bw.throttled_time,
            nr_bursts: group.bw.nr_burst,
            burst_ns: group.bw.burst_time,
        })
    }

    pub(super) fn cpu_ids(&self) -> impl Iterator<Item = CpuId> + use<> {
        (0..self.cpus.0.len() as u32).map(CpuId)
    }

    fn existing_queue(&self, id: CgroupId, cpu: CpuId) -> Option<CfsRqId> {
        self.group(id).map(|g| g.rqs[cpu.idx()]).filter(|rq| !rq.is_nil())
    }

    /// Returns a group's queue on a CPU, and creates the queue if necessary. Group None is the
    /// root.
    pub(super) fn queue_of(&mut self, group: Option<CgroupId>, cpu: CpuId) -> CfsRqId {
        let Some(id) = group else { return CfsRqId(cpu.0) };
        match self.existing_queue(id, cpu) {
            Some(rq) => rq,
            None => self.make_queue(id, cpu),
        }
    }

    fn make_queue(&mut self, id: CgroupId, cpu: CpuId) -> CfsRqId {
        let up = self.queue_of(self.group(id).expect("a task's group exists").parent, cpu);
        let rq = self.free_rqs.pop().unwrap_or_else(|| {
            self.rqs.0.push(CfsRq::new(cpu, None, EntityId::NIL, 0));
            CfsRqId(self.rqs.0.len() as u32 - 1)
        });
        let mut entity = Entity::new(None, rq, NICE_0_LOAD, 0);
        entity.cfs_rq = up;
        entity.parent = self.rqs[up].ent;
        let e = self.add_entity(entity);
        let mut row = CfsRq::new(cpu, Some(id), e, self.rqs[up].depth + 1);
        let group = self.group(id).expect("it has just been there");
        row.idle = group.idle;
        row.runtime_enabled = group.bw.quota.is_some();
        row.runtime_remaining = i64::from(row.runtime_enabled);
        row.throttle_count = self.rqs[up].throttle_count;
        row.pelt_clock_throttled = row.throttle_count != 0;
        row.throttled_clock_pelt = self.rq_clock_pelt(cpu);
        self.rqs[rq] = row;
        self.group_mut(id).expect("it has just been there").rqs[cpu.idx()] = rq;
        rq
    }

    pub(super) fn add_entity(&mut self, entity: Entity) -> EntityId {
        match self.free_ents.pop() {
            Some(e) => {
                self.ents[e] = entity;
                e
            }
            None => {
                self.ents.0.push(entity);
                EntityId(self.ents.0.len() as u32 - 1)
            }
        }
    }
}

/// Returns the id of a cgroup, or None for the root group, which has no `Group` record.
pub(super) fn nested(id: CgroupId) -> Option<CgroupId> {
    (id.0 != 0).then_some(id)
}

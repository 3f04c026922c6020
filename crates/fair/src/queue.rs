// SPDX-License-Identifier: GPL-2.0-only
//! Enqueue and dequeue on a CPU: the counts, loads and weights on every level between a task and
//! the root.
//!
//! Owns: `nr_queued`, `h_nr_*` and `load` of the queues; the order of `cfs_tasks`; charging of run
//! time.
//! Models: `enqueue_task_fair()`, `__dequeue_task()`, `enqueue_hierarchy()`, `dequeue_hierarchy()`,
//! `update_curr()`, `requeue_delayed_entity()`, fair.c v7.3.

use super::load::LoadFlags;
use super::state::{CfsRqId, EntityId, FairPolicy, Resched};
use super::weight::{NICE_0_LOAD, delta_fair};
use super::{Dequeued, EnqueueFlags, Fair};
use scxlab_machine::cpumask;
use scxlab_machine::id::CpuId;

/// Kind of a dequeue: the flags of `DequeueFlags`, and two kinds that only this crate uses.
#[derive(Clone, Copy, Default)]
pub(super) struct Leave {
    pub sleep: bool,
    pub special: bool,
    pub migrating: bool,
    /// The dequeue ends a delayed dequeue.
    pub delayed: bool,
    /// The task goes to a throttled queue's limbo.
    pub throttle: bool,
}

impl Fair {
    /// Charges the running entity of a queue for the time since it was last charged, which is
    /// mostly none.
    #[inline(always)]
    pub(super) fn update_curr(&mut self, rq: CfsRqId) {
        let row = &self.rqs[rq];
        let (curr, cpu) = (row.h_curr, row.cpu);
        if !curr.is_nil() && self.ents[curr].exec_start < self.cpus[cpu].clock {
            self.charge(rq, cpu, curr);
        }
    }

    #[inline(never)]
    fn charge(&mut self, rq: CfsRqId, cpu: CpuId, curr: EntityId) {
        let now = self.cpus[cpu].clock;
        let entity = &mut self.ents[curr];
        let delta = now - entity.exec_start;
        entity.exec_start = now;
        entity.sum_exec_runtime += delta;
        self.account_runtime(rq, delta, None);
        if self.ents[curr].task.is_none() {
            return;
        }
        if self.caches.is_some() {
            self.account_process(cpu, curr, delta);
        }
        let entity = &mut self.ents[curr];
        entity.vruntime = entity.vruntime.wrapping_add(delta_fair(delta, entity.h_load));
        let served = self.update_deadline(cpu, curr);
        if self.rqs[CfsRqId(cpu.0)].h_nr_queued == 1 {
            return;
        }
        if served || !self.protected(curr) {
            self.want_resched(cpu, Resched::Lazy);
            self.clear_buddy(cpu, curr);
        }
    }

    /// Charges the running task without the groups above it.
    pub(super) fn update_curr_task(&mut self, cpu: CpuId) {
        if let Some(curr) = self.cpus[cpu].curr.some() {
            self.update_curr(self.ents[curr].cfs_rq);
        }
    }

    /// Charges the running task and all groups above it.
    pub(super) fn update_curr_all(&mut self, cpu: CpuId) {
        let mut at = self.cpus[cpu].curr;
        while let Some(e) = at.some() {
            self.update_curr(self.ents[e].cfs_rq);
            at = self.ents[e].parent;
        }
    }

    pub(super) fn clear_buddy(&mut self, cpu: CpuId, e: EntityId) {
        if self.cpus[cpu].next == e {
            self.cpus[cpu].next = EntityId::NIL;
        }
    }

    pub(super) fn has_idle_policy(&self, e: EntityId) -> bool {
        let task = self.ents[e].task;
        task.is_some_and(|t| self.task(t).policy == FairPolicy::Idle)
    }

    /// Puts a task on the queues of its CPU. The caller must have set `cfs_rq` of the task's
    /// entity.
    pub(super) fn enqueue_task(&mut self, cpu: CpuId, e: EntityId, flags: EnqueueFlags) {
        if !self.ents[e].sched_delayed {
            self.util_est_enqueue(cpu, e);
        }
        self.update_curr_task(cpu);
        let curr = self.cpus[cpu].curr == e;
        if curr {
            self.place(cpu, e, flags, false);
        }
        let weight = self.enqueue_hierarchy(e, flags);
        if !curr {
            self.reweight_eevdf(cpu, e, weight, false);
            self.place(cpu, e, flags, true);
            self.tree_insert(cpu, e);
        }
        if self.rqs[CfsRqId(cpu.0)].h_nr_queued >= 2 {
            self.overloaded = true;
        }
    }

    fn enqueue_hierarchy(&mut self, task: EntityId, flags: EnqueueFlags) -> u64 {
        let mut weight = NICE_0_LOAD;
        let mut h_nr_idle = u32::from(self.has_idle_policy(task));
        // A delayed task that is only moved stays delayed, so it does not count as runnable.
        let h_nr_runnable = u32::from(flags.wakeup || !self.ents[task].sched_delayed);
        let mut flags = flags;
        let mut at = task;
        while let Some(e) = at.some() {
            let rq = self.ents[e].cfs_rq;
            self.update_curr(rq);
            if self.ents[e].on_rq {
                self.refresh_entity(e);
            } else {
                self.enqueue_entity(rq, e, flags);
            }
            let row = &mut self.rqs[rq];
            row.h_nr_runnable += h_nr_runnable;
            row.h_nr_queued += 1;
            row.h_nr_idle += h_nr_idle;
            if row.idle {
                h_nr_idle = 1;
            }
            weight = self.prop_weight(e, weight);
            flags = EnqueueFlags::WAKEUP;
            at = self.ents[e].parent;
        }
        self.update_maybe_idle(self.rqs[self.ents[task].cfs_rq].cpu);
        weight
    }

    /// Updates `maybe_idle_cpus` after a change of a CPU's counts of tasks.
    pub(super) fn update_maybe_idle(&mut self, cpu: CpuId) {
        let row = &self.rqs[CfsRqId(cpu.0)];
        self.sums.touch(CfsRqId(cpu.0));
        let change = if row.h_nr_queued == row.h_nr_idle { cpumask::set } else { cpumask::clear };
        change(&mut self.maybe_idle_cpus, cpu);
    }

    /// Updates a group's entity that stays queued while tasks enter or leave the group's own queue.
    fn refresh_entity(&mut self, e: EntityId) {
        self.update_load_avg(e, LoadFlags::TG);
        self.se_update_runnable(e);
        self.update_group_weight(e);
    }

    fn enqueue_entity(&mut self, rq: CfsRqId, e: EntityId, flags: EnqueueFlags) {
        self.update_load_avg(e, LoadFlags { attach: true, ..LoadFlags::TG });
        self.se_update_runnable(e);
        self.update_group_weight(e);
        self.rqs[rq].load += self.ents[e].load;
        self.rqs[rq].nr_queued += 1;
        if self.ents[e].task.is_some() {
            self.count_preference(e);
            self.list_task(e);
        }
        if flags.migrated {
            self.ents[e].exec_start = 0;
        }
        self.ents[e].on_rq = true;
        if self.rqs[rq].nr_queued == 1 {
            self.check_enqueue_throttle(rq);
            self.list_leaf(rq);
            self.resume_pelt_clock(rq);
        }
    }

    pub(super) fn resume_pelt_clock(&mut self, rq: CfsRqId) {
        let now = self.rq_clock_pelt(self.rqs[rq].cpu);
        let row = &mut self.rqs[rq];
        if std::mem::take(&mut row.pelt_clock_throttled) {
            row.throttled_clock_pelt_time += now - row.throttled_clock_pelt;
        }
    }

    pub(super) fn stop_pelt_clock(&mut self, rq: CfsRqId) {
        self.unlist_leaf(rq);
        self.rqs[rq].throttled_clock_pelt = self.rq_clock_pelt(self.rqs[rq].cpu);
        self.rqs[rq].pelt_clock_throttled = true;
    }

    /// Takes a task off its CPU, unless it must pay back lag first (delayed dequeue).
    pub(super) fn dequeue_task(&mut self, cpu: CpuId, e: EntityId, leave: Leave) -> Dequeued {
        if !self.ents[e].sched_delayed {
            self.util_est_dequeue(cpu, e);
        }
        self.clear_buddy(cpu, e);
        self.update_curr_task(cpu);
        self.update_entity_lag(cpu, e);
        let may_delay = leave.sleep && !leave.delayed && !leave.special && !leave.throttle;
        if may_delay && self.params.features.delay_dequeue && !self.eligible(cpu, e) {
            self.update_load_avg(e, LoadFlags { util_est: true, ..LoadFlags::NONE });
            self.set_delayed(e);
            return Dequeued::Delayed;
        }
        self.leave_competition(cpu, e, leave);
        Dequeued::Done
    }

    fn leave_competition(&mut self, cpu: CpuId, e: EntityId, leave: Leave) {
        let was_idle = self.sched_idle_cpu(cpu);
        if self.cpus[cpu].curr != e {
            self.tree_remove(cpu, e);
        }
        self.dequeue_hierarchy(e, leave);
        if self.params.features.place_rel_deadline && !leave.sleep {
            let entity = &mut self.ents[e];
            entity.deadline = entity.deadline.wrapping_sub(entity.vruntime);
            entity.rel_deadline = true;
        }
        if !was_idle && self.sched_idle_cpu(cpu) {
            self.cpus[cpu].next_balance = self.jiffies(self.cpus[cpu].clock);
        }
        if leave.delayed {
            self.ents[e].sched_delayed = false;
        }
    }

    /// Ends a delayed dequeue: the sleeping task leaves its queue.
    pub(super) fn finish_delayed(&mut self, cpu: CpuId, e: EntityId) {
        self.dequeue_task(cpu, e, Leave { sleep: true, delayed: true, ..Leave::default() });
    }

    fn dequeue_hierarchy(&mut self, task: EntityId, leave: Leave) {
        let mut h_nr_idle = u32::from(self.has_idle_policy(task));
        // A delayed task was taken out of the count of runnable tasks when it fell asleep.
        let h_nr_runnable = u32::from(!self.ents[task].sched_delayed);
        let mut leave = leave;
        let mut emptied = true;
        let mut at = task;
        while let Some(e) = at.some() {
            let rq = self.ents[e].cfs_rq;
            self.update_curr(rq);
            if emptied {
                self.dequeue_entity(rq, e, leave);
                emptied = self.rqs[rq].load == 0;
            } else {
                self.refresh_entity(e);
            }
            let row = &mut self.rqs[rq];
            row.h_nr_runnable -= h_nr_runnable;
            row.h_nr_queued -= 1;
            row.h_nr_idle -= h_nr_idle;
            if row.idle {
                h_nr_idle = 1;
            }
            if leave.throttle && row.throttle_count != 0 {
                self.record_throttle(rq);
            }
            leave = Leave { sleep: true, delayed: false, special: false, ..leave };
            at = self.ents[e].parent;
        }
        self.update_maybe_idle(self.rqs[self.ents[task].cfs_rq].cpu);
    }

    fn dequeue_entity(&mut self, rq: CfsRqId, e: EntityId, leave: Leave) {
        let is_task = self.ents[e].task.is_some();
        let flags = LoadFlags {
            detach: is_task && leave.migrating,
            util_est: is_task && leave.sleep && !leave.delayed,
            ..LoadFlags::TG
        };
        self.update_load_avg(e, flags);
        self.se_update_runnable(e);
        self.ents[e].on_rq = false;
        self.rqs[rq].load -= self.ents[e].load;
        self.rqs[rq].nr_queued -= 1;
        if is_task {
            self.forget_preference(e);
            self.unlist_task(e);
        }
        self.return_runtime(rq);
        self.update_group_weight(e);
        if self.rqs[rq].nr_queued == 0 && self.rqs[rq].throttle_count != 0 {
            self.stop_pelt_clock(rq);
        }
    }

    /// Makes a delayed task runnable again when it wakes. The task keeps what is left of its
    /// negative lag.
    pub(super) fn requeue_delayed(&mut self, cpu: CpuId, e: EntityId) {
        self.util_est_enqueue(cpu, e);
        self.update_curr_task(cpu);
        if self.update_entity_lag(cpu, e) {
            let curr = self.cpus[cpu].curr == e;
            if !curr {
                self.tree_remove(cpu, e);
            }
            self.place(cpu, e, EnqueueFlags::RESTORE, true);
            if !curr {
                self.tree_insert(cpu, e);
            }
        }
        self.update_load_avg(e, LoadFlags::NONE);
        self.ents[e].sched_delayed = false;
        self.count_at_home(e, 1);
        self.count_runnable(e, 1);
    }

    fn set_delayed(&mut self, e: EntityId) {
        self.count_at_home(e, -1);
        self.ents[e].sched_delayed = true;
        self.count_runnable(e, -1);
    }

    fn count_runnable(&mut self, task: EntityId, by: i32) {
        let mut at = task;
        while let Some(e) = at.some() {
            let rq = self.ents[e].cfs_rq;
            let row = &mut self.rqs[rq];
            row.h_nr_runnable = row.h_nr_runnable.strict_add_signed(by);
            self.sums.touch(rq);
            at = self.ents[e].parent;
        }
    }

    /// Whether only tasks of idle policy or in idle groups are queued: for other tasks the CPU is
    /// as good as idle.
    pub(super) fn sched_idle_cpu(&self, cpu: CpuId) -> bool {
        let row = &self.rqs[CfsRqId(cpu.0)];
        row.h_nr_queued != 0 && row.h_nr_queued == row.h_nr_idle
    }

    /// Inserts a task at the front of its CPU's list of queued tasks (`cfs_tasks`). Balancing takes
    /// tasks from the back.
    pub(super) fn list_task(&mut self, e: EntityId) {
        let cpu = self.rqs[self.ents[e].cfs_rq].cpu;
        let head = self.cpus[cpu].tasks_head;
        let task = self.task_of_mut(e);
        task.prev = EntityId::NIL;
        task.next = head;
        match head.some() {
            Some(head) => self.task_of_mut(head).prev = e,
            None => self.cpus[cpu].tasks_tail = e,
        }
        self.cpus[cpu].tasks_head = e;
    }

    pub(super) fn unlist_task(&mut self, e: EntityId) {
        let cpu = self.rqs[self.ents[e].cfs_rq].cpu;
        let task = self.task_of_mut(e);
        let (prev, next) = (task.prev, task.next);
        match prev.some() {
            Some(prev) => self.task_of_mut(prev).next = next,
            None => self.cpus[cpu].tasks_head = next,
        }
        match next.some() {
            Some(next) => self.task_of_mut(next).prev = prev,
            None => self.cpus[cpu].tasks_tail = prev,
        }
    }

    pub(super) fn task_of_mut(&mut self, e: EntityId) -> &mut super::state::FairTask {
        let task = self.ents[e].task.expect("a group entity is in no task list");
        self.task_mut(task)
    }
}

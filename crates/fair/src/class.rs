// SPDX-License-Identifier: GPL-2.0-only
//! The operations of the scheduling class, as the core of the kernel's scheduler calls them.
//!
//! Owns: the sequence of steps within an operation.
//! Does not: decide placement (`select.rs`) or balance.
//! Models: `enqueue_task`, `dequeue_task`, `pick_task`, `set_next_task`, `put_prev_task`,
//! `task_tick`, `yield_task`, `yield_to_task`, `wakeup_preempt` of `fair_sched_class`, v7.3.
//! Differs: a task in a throttled group leaves its queue for limbo (see `bandwidth.rs`) when it is
//! picked, not at its next return to user mode.

use super::load::LoadFlags;
use super::queue::Leave;
use super::state::{CfsRqId, EntityId, FairPolicy, Resched};
use super::weight::NICE_0_LOAD;
use super::{DequeueFlags, Dequeued, EnqueueFlags, Fair, WakeFlags};
use scxlab_machine::id::{CpuId, Nanos, TaskId};

/// Kind of wake-up preemption.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Preempt {
    /// The newcomer's slice is shorter than the running task's slice, so the newcomer may preempt
    /// even while that slice is protected.
    Short,
    Pick,
}

impl Fair {
    /// Puts a task on a CPU's queue. A sleeper that is still on this queue (delayed dequeue)
    /// becomes runnable there.
    pub fn enqueue(&mut self, cpu: CpuId, task: TaskId, now: Nanos, flags: EnqueueFlags) {
        self.update_clock(cpu, now);
        let e = self.task(task).ent;
        if self.ents[e].on_rq {
            assert!(self.ents[e].sched_delayed, "task {task} is queued twice");
            if self.delayed_on(task) == Some(cpu) {
                return self.requeue_delayed(cpu, e);
            }
            self.end_delay(task, now);
        }
        if flags.wakeup {
            self.ents[e].sched_delayed = false;
        }
        self.account_on(task, cpu, now);
        if flags.initial && self.ents[e].avg.last_update_time == 0 {
            self.init_task_avg(cpu, e);
        }
        if !self.stays_in_limbo(cpu, task) {
            self.enqueue_task(cpu, e, flags);
        }
    }

    /// Takes a task off its queue.
    pub fn dequeue(
        &mut self,
        cpu: CpuId,
        task: TaskId,
        now: Nanos,
        flags: DequeueFlags,
    ) -> Dequeued {
        self.update_clock(cpu, now);
        let e = self.task(task).ent;
        if self.task(task).throttled {
            self.leave_limbo(task, flags);
            return Dequeued::Done;
        }
        if !self.ents[e].on_rq {
            return Dequeued::Done;
        }
        assert_eq!(self.task(task).cpu, Some(cpu), "task {task} is dequeued where it is not");
        let delayed = flags.sleep && self.ents[e].sched_delayed;
        let DequeueFlags { sleep, special, migrating } = flags;
        let leave = Leave { sleep, special, migrating, delayed, throttle: false };
        let done = self.dequeue_task(cpu, e, leave);
        if migrating {
            self.ents[e].avg.last_update_time = 0;
        }
        done
    }

    /// Returns the CPU on which a sleeping task is still queued (delayed dequeue). The kernel wakes
    /// the task on that CPU.
    pub fn delayed_on(&self, task: TaskId) -> Option<CpuId> {
        let row = self.task(task);
        let entity = &self.ents[row.ent];
        row.cpu.filter(|_| entity.on_rq && entity.sched_delayed)
    }

    /// Ends a sleeper's delayed dequeue at once: the task leaves its queue and may be woken on any
    /// CPU.
    pub fn end_delay(&mut self, task: TaskId, now: Nanos) {
        if let Some(cpu) = self.delayed_on(task) {
            self.update_clock(cpu, now);
            let e = self.task(task).ent;
            self.finish_delayed(cpu, e);
        }
        // If the kernel took a delayed sleeper off its queue for a moment (`DEQUEUE_SAVE`),
        // `sched_delayed` is still set. The sleeper will not be put back, so clear the flag.
        let e = self.task(task).ent;
        self.ents[e].sched_delayed = false;
    }

    /// Returns the task to run next, which may be the running task, or None if the CPU has no task
    /// to run. In that case the caller can try `newidle_balance`.
    pub fn pick_next(&mut self, cpu: CpuId, now: Nanos) -> Option<TaskId> {
        self.update_clock(cpu, now);
        self.cpus[cpu].resched = Resched::No;
        self.limbo_curr(cpu);
        while self.nr_running(cpu) != 0 {
            if self.curr_queued(cpu).is_some() {
                self.update_curr_task(cpu);
            }
            let Some(e) = self.pick_entity(cpu, true) else {
                continue;
            };
            if self.may_run(e) {
                self.cpus[cpu].resched = Resched::No;
                return self.ents[e].task;
            }
            self.send_to_limbo(cpu, e);
        }
        self.idle_clock_pelt(cpu);
        self.cpus[cpu].resched = Resched::No;
        None
    }

    /// If the running task's group was throttled while the task ran, sends the task to limbo, where
    /// it waits until the group has runtime again.
    fn limbo_curr(&mut self, cpu: CpuId) {
        let awake = |e: &EntityId| !self.ents[*e].sched_delayed && self.in_throttled(*e);
        if let Some(curr) = self.curr_queued(cpu).filter(awake) {
            self.update_curr_all(cpu);
            self.send_to_limbo(cpu, curr);
        }
    }

    /// Picks an entity. If the pick is a delayed sleeper, the sleeper has paid back its lag, and so
    /// leaves its queue. The result is None in that case, and the caller picks again.
    fn pick_entity(&mut self, cpu: CpuId, protect: bool) -> Option<EntityId> {
        let e = self.pick_eevdf(cpu, protect).expect("some queued entity is always eligible");
        if self.ents[e].sched_delayed {
            self.finish_delayed(cpu, e);
            return None;
        }
        Some(e)
    }

    /// Makes `task` the running task of `cpu`: the task leaves the tree of waiting tasks, and its
    /// run time counts from `now`.
    pub fn set_next(&mut self, cpu: CpuId, task: TaskId, now: Nanos) {
        self.leave_idle(cpu, now);
        self.run_entity(cpu, self.task(task).ent, true);
        self.cpus[cpu].resched = Resched::No;
    }

    /// Makes a task the running task. `first` is true after a pick. It is false if the task ran
    /// before and only continues.
    pub(super) fn run_entity(&mut self, cpu: CpuId, task: EntityId, first: bool) {
        self.clear_buddy(cpu, task);
        let on_rq = self.ents[task].on_rq;
        if on_rq {
            self.tree_remove(cpu, task);
        }
        let mut weight = NICE_0_LOAD;
        let mut at = task;
        while let Some(e) = at.some() {
            self.set_next_entity(e);
            if on_rq {
                weight = self.prop_weight(e, weight);
            }
            at = self.ents[e].parent;
        }
        assert!(self.cpus[cpu].curr.is_nil(), "CPU {cpu} runs two tasks");
        self.cpus[cpu].curr = task;
        if on_rq {
            self.reweight_eevdf(cpu, task, weight, true);
            if first {
                self.set_protect_slice(cpu, task);
            }
            self.unlist_task(task);
            self.list_task(task);
        }
    }

    fn set_next_entity(&mut self, e: EntityId) {
        let rq = self.ents[e].cfs_rq;
        if self.ents[e].on_rq {
            self.update_load_avg(e, LoadFlags::TG);
        }
        self.ents[e].exec_start = self.cpus[self.rqs[rq].cpu].clock;
        self.ents[e].prev_sum_exec_runtime = self.ents[e].sum_exec_runtime;
        self.rqs[rq].h_curr = e;
        let limited = self.account_runtime(rq, 0, None);
        if limited {
            self.want_resched(self.rqs[rq].cpu, Resched::Now);
        }
    }

    /// Stops the running task. If the task is still queued, it goes back into the tree of waiting
    /// tasks.
    pub fn put_prev(&mut self, cpu: CpuId, now: Nanos) {
        self.update_clock(cpu, now);
        if let Some(task) = self.cpus[cpu].curr.some() {
            self.stop_entity(cpu, task);
        }
    }

    pub(super) fn stop_entity(&mut self, cpu: CpuId, task: EntityId) {
        let mut at = task;
        while let Some(e) = at.some() {
            let rq = self.ents[e].cfs_rq;
            if self.ents[e].on_rq {
                self.update_curr(rq);
                self.update_load_avg(e, LoadFlags::NONE);
            }
            self.rqs[rq].h_curr = EntityId::NIL;
            at = self.ents[e].parent;
        }
        self.cpus[cpu].curr = EntityId::NIL;
        if self.ents[task].on_rq {
            self.tree_insert(cpu, task);
        }
    }

    /// Charges the running task and its groups for the time up to now.
    pub fn charge_curr(&mut self, cpu: CpuId, now: Nanos) {
        self.update_clock(cpu, now);
        self.update_curr_all(cpu);
    }

    /// Handles the tick while a task of this class runs.
    pub fn tick(&mut self, cpu: CpuId, now: Nanos) -> Resched {
        self.update_clock(cpu, now);
        let lazy_before = self.cpus[cpu].resched;
        if let Some(task) = self.curr_queued(cpu) {
            let mut weight = NICE_0_LOAD;
            let mut at = task;
            while let Some(e) = at.some() {
                self.update_curr(self.ents[e].cfs_rq);
                self.update_load_avg(e, LoadFlags::TG);
                self.update_group_weight(e);
                weight = self.prop_weight(e, weight);
                at = self.ents[e].parent;
            }
            self.reweight_eevdf(cpu, task, weight, true);
        }
        // A lazy request that was pending before the tick has waited long enough, so it becomes
        // urgent.
        if lazy_before == Resched::Lazy {
            self.want_resched(cpu, Resched::Now);
        }
        self.take_resched(cpu)
    }

    /// Returns the time at which the running task's slice ends if nothing changes. `HRTICK` ends
    /// the slice at that time and not at a tick.
    pub fn slice_end(&self, cpu: CpuId) -> Option<Nanos> {
        let curr = self.curr_queued(cpu).filter(|_| self.nr_running(cpu) > 1)?;
        let entity = &self.ents[curr];
        let left = entity.deadline.wrapping_sub(entity.vruntime) as i64;
        let left = u128::from(left.max(0) as u64) * u128::from(entity.h_load);
        Some(entity.exec_start + (left / u128::from(NICE_0_LOAD)) as Nanos)
    }

    /// `sched_yield(2)`: gives up the rest of the running task's request.
    pub fn yield_task(&mut self, cpu: CpuId, now: Nanos) {
        self.update_clock(cpu, now);
        let Some(curr) = self.curr_queued(cpu).filter(|_| self.nr_running(cpu) > 1) else {
            return;
        };
        self.clear_buddy(cpu, curr);
        self.update_curr_task(cpu);
        if self.eligible(cpu, curr) {
            self.ents[curr].vruntime = self.ents[curr].deadline;
            self.update_deadline(cpu, curr);
        }
    }

    /// Gives the turn of a CPU's running task to a task that waits, there or on another CPU, where
    /// it becomes the buddy. Returns false if the waiting task is not queued or is throttled.
    pub fn yield_to_task(&mut self, cpu: CpuId, target: TaskId, now: Nanos) -> bool {
        let e = self.task(target).ent;
        let Some(queue) = self.task(target).cpu else { return false };
        if !self.ents[e].on_rq || self.in_throttled(e) {
            return false;
        }
        self.set_buddy(queue, e);
        self.yield_task(cpu, now);
        true
    }

    /// Decides whether a task that has just been queued should preempt the running task of this
    /// class.
    ///
    /// The decision uses the clock of the enqueue, because the kernel reads the clock once for the
    /// enqueue and the decision. With a later clock the running task would have run past its due,
    /// and would lose to every newcomer.
    pub fn wakeup_preempt(&mut self, cpu: CpuId, woken: TaskId, flags: WakeFlags) -> Resched {
        let pse = self.task(woken).ent;
        if let Some(se) = self.cpus[cpu].curr.some()
            && se != pse
            && !self.task(woken).throttled
            && self.params.features.wakeup_preemption
        {
            self.consider_preempt(cpu, se, pse, flags);
        }
        self.cpus[cpu].resched
    }

    fn consider_preempt(&mut self, cpu: CpuId, se: EntityId, pse: EntityId, flags: WakeFlags) {
        let (curr_idle, new_idle) = (self.has_idle_policy(se), self.has_idle_policy(pse));
        if curr_idle && !new_idle {
            return self.preempt(cpu, se, pse, Preempt::Pick);
        }
        self.update_curr_all(cpu);
        let how = match self.preempt_kind(se, pse, flags) {
            Some(how) if curr_idle == new_idle => how,
            _ => return self.keep_running(cpu, se),
        };
        if how == Preempt::Pick
            && self.params.features.next_buddy
            && self.set_preempt_buddy(cpu, pse)
            && flags.sync
        {
            if self.preempt_sync(cpu, se, pse) {
                self.preempt(cpu, se, pse, how);
            }
            return;
        }
        if self.would_pick(cpu, how) == Some(pse)
            || how == Preempt::Short && self.eligible(cpu, pse)
        {
            return self.preempt(cpu, se, pse, how);
        }
        self.keep_running(cpu, se);
    }

    /// Returns the kind of preemption, or None if the newcomer does not preempt, whatever its
    /// deadline.
    fn preempt_kind(&self, se: EntityId, pse: EntityId, flags: WakeFlags) -> Option<Preempt> {
        let task = self.ents[pse].task.expect("a woken entity is a task");
        if self.task(task).policy != FairPolicy::Normal || self.ents[pse].sched_delayed {
            return None;
        }
        if self.params.features.preempt_short && self.ents[pse].slice < self.ents[se].slice {
            return Some(Preempt::Short);
        }
        (!flags.fork).then_some(Preempt::Pick)
    }

    fn would_pick(&mut self, cpu: CpuId, how: Preempt) -> Option<EntityId> {
        while self.nr_running(cpu) != 0 {
            if let Some(e) = self.pick_entity(cpu, how != Preempt::Short) {
                return Some(e);
            }
        }
        None
    }

    fn set_preempt_buddy(&mut self, cpu: CpuId, pse: EntityId) -> bool {
        let next = self.cpus[cpu].next;
        if !next.is_nil() && self.entity_before(next, pse) {
            return false;
        }
        self.set_buddy(cpu, pse);
        true
    }

    /// Whether a sync wake-up of `pse` preempts the running task `se`: the deadline of `pse` must
    /// be earlier, and `se` must have run for at least the migration cost.
    fn preempt_sync(&self, cpu: CpuId, se: EntityId, pse: EntityId) -> bool {
        let ran = self.cpus[cpu].clock.saturating_sub(self.ents[se].exec_start);
        self.entity_before(pse, se) && ran >= self.params.migration_cost_ns
    }

    fn keep_running(&mut self, cpu: CpuId, se: EntityId) {
        if self.params.features.run_to_parity {
            self.update_protect_slice(cpu, se);
        }
    }

    fn preempt(&mut self, cpu: CpuId, se: EntityId, pse: EntityId, how: Preempt) {
        self.cancel_protect_slice(se);
        if how == Preempt::Short {
            let next = self.cpus[cpu].next;
            if next.is_nil() || self.ents[next].slice >= self.ents[pse].slice {
                self.set_buddy(cpu, pse);
            }
        }
        self.want_resched(cpu, Resched::Lazy);
    }

    fn set_buddy(&mut self, cpu: CpuId, e: EntityId) {
        let entity = &self.ents[e];
        if entity.on_rq && !entity.sched_delayed && !self.has_idle_policy(e) {
            self.cpus[cpu].next = e;
        }
    }

    /// Whether a picked task may run: all groups above the task must have runtime.
    fn may_run(&mut self, task: EntityId) -> bool {
        let mut at = task;
        while let Some(e) = at.some() {
            let rq = self.ents[e].cfs_rq;
            self.account_runtime(rq, 0, Some(e));
            at = self.ents[e].parent;
        }
        !self.in_throttled(task)
    }

    pub(super) fn in_throttled(&self, e: EntityId) -> bool {
        let rq: CfsRqId = self.ents[e].cfs_rq;
        self.rqs[rq].throttle_count != 0
    }
}

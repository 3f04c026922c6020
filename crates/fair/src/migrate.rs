// SPDX-License-Identifier: GPL-2.0-only
//! Migration of tasks between CPUs: which tasks may move, which tasks are too cache hot, and the
//! push of a running task.
//!
//! Owns: the choice among a CPU's tasks, and their move from queue to queue.
//! Does not: choose the CPUs (`balance.rs`).
//! Models: `detach_tasks()`, `can_migrate_task()`, `task_hot()`, `active_load_balance_cpu_stop()`,
//! fair.c v7.3.
//! Differs: the move does not pause after 32 tasks, because it moves no more than that at a time.

use super::balance::{Attempt, IdleType, ImbalanceKind, Move};
use super::queue::Leave;
use super::state::{CfsRqId, EntityId, Push, Resched};
use super::{Balanced, EnqueueFlags, Env, Fair, WakeFlags};
use scxlab_machine::cpumask;
use scxlab_machine::id::{CpuId, Nanos, TaskId};
use smallvec::SmallVec;

impl Fair {
    pub(super) fn detach_and_attach(
        &mut self,
        env: &dyn Env,
        lb: &mut Attempt,
        out: &mut Balanced,
    ) -> u32 {
        let now = self.cpus[lb.this_cpu].clock;
        self.update_clock(lb.src, now);
        self.update_clock(lb.dst, now);
        let mut detached: SmallVec<[EntityId; 8]> = SmallVec::new();
        while let Some(e) = self.cpus[lb.src].tasks_tail.some() {
            if lb.imbalance <= 0
                || lb.idle != IdleType::Busy && self.rq_nr_running(env, lb.src) <= 1
            {
                break;
            }
            lb.looped += 1;
            if lb.looped > lb.loop_max {
                break;
            }
            if !self.can_migrate(env, lb, e) || !self.take_from_imbalance(lb, e) {
                self.unlist_task(e);
                self.list_task(e);
                continue;
            }
            self.detach(lb.src, e);
            detached.push(e);
            if lb.idle == IdleType::NewlyIdle {
                break;
            }
        }
        for &e in detached.iter().rev() {
            out.moves.push(self.attach(e, lb.src, lb.dst, now));
        }
        detached.len() as u32
    }

    /// Whether moving the task brings the domain nearer to balance. If so, subtracts the task's
    /// amount (load, utilisation or 1) from the imbalance.
    fn take_from_imbalance(&mut self, lb: &mut Attempt, e: EntityId) -> bool {
        let failed = self.domains.of_cpu[lb.this_cpu.idx()][lb.level].nr_balance_failed;
        let amount = match lb.kind {
            ImbalanceKind::Load => {
                let load = self.task_h_load(e).max(1);
                if self.params.features.lb_min && load < 16 && failed == 0 {
                    return false;
                }
                load
            }
            ImbalanceKind::Util => self.ents[e].avg.util_avg.max(self.task_util_est(e)),
            ImbalanceKind::Task | ImbalanceKind::LlcTask => {
                lb.imbalance -= 1;
                return true;
            }
            ImbalanceKind::Misfit => {
                let misfit = !self.task_fits(e, lb.src);
                if misfit {
                    lb.imbalance = 0;
                }
                return misfit;
            }
        };
        // After n failed balances of the domain, a task's load or utilisation may be up to about
        // 2^n times the imbalance.
        if amount >> failed.min(63) > lb.imbalance as u64 {
            return false;
        }
        lb.imbalance -= amount as i64;
        true
    }

    fn can_migrate(&mut self, env: &dyn Env, lb: &mut Attempt, e: EntityId) -> bool {
        let task = self.ents[e].task.expect("only tasks are listed");
        let domain = &self.domains.of_cpu[lb.this_cpu.idx()][lb.level];
        if self.ents[e].sched_delayed && lb.kind != ImbalanceKind::Load {
            return false;
        }
        if self.throttled_at(task, lb.dst) {
            return false;
        }
        let joins_others = self.nr_running(lb.dst) != 0;
        if domain.nr_balance_failed == 0
            && self.params.features.place_lag
            && joins_others
            && !self.eligible(lb.src, e)
        {
            return false;
        }
        if env.per_cpu_kthread(task) {
            return false;
        }
        if !cpumask::test(env.allowed(task), lb.dst) {
            self.note_pinned(env, lb, task);
            return false;
        }
        lb.all_pinned = false;
        // A running task cannot be moved, except by a push, for which the kernel has stopped the
        // source CPU.
        if !lb.active && (self.cpus[lb.src].curr == e || env.curr_task(lb.src) == Some(task)) {
            return false;
        }
        if lb.active {
            return !self.wrong_llc(lb, e);
        }
        let nice_tries = self.domains.shape(lb.this_cpu, lb.level).cache_nice_tries;
        let failed = domain.nr_balance_failed;
        let hot = match self.locality_lost(env, lb, task) {
            0 if self.degrades_llc(lb, e) => {
                lb.llc_pinned |= lb.kind != ImbalanceKind::LlcTask;
                return false;
            }
            0 => self.task_hot(env, lb, e),
            lost => lost > 0,
        };
        !hot || failed > nice_tries
    }

    /// `migrate_degrades_locality()`: above 0 if the move takes the task away from its memory,
    /// below 0 if it brings the task nearer.
    fn locality_lost(&self, env: &dyn Env, lb: &Attempt, task: TaskId) -> i64 {
        if self.numa.is_none() || !self.domains.shape(lb.this_cpu, lb.level).flags.numa {
            return 0;
        }
        let prefers = || self.rq_nr_running(env, lb.src) > self.numa_running(lb.src).1;
        self.numa_locality_lost(task, lb.src, lb.dst, lb.idle == IdleType::Idle, prefers)
    }

    /// Records that the task may not run on the destination CPU. If it may run on another CPU of
    /// the destination's group, records that CPU.
    fn note_pinned(&self, env: &dyn Env, lb: &mut Attempt, task: TaskId) {
        lb.some_pinned = true;
        if lb.idle == IdleType::NewlyIdle || lb.dst_pinned || lb.active {
            return;
        }
        let allowed = env.allowed(task);
        let other = cpumask::iter(&lb.dst_groups)
            .find(|&cpu| cpumask::test(&lb.cpus, cpu) && cpumask::test(allowed, cpu));
        if let Some(cpu) = other {
            lb.dst_pinned = true;
            lb.new_dst = cpu;
        }
    }

    /// Whether the task's group is throttled on the destination CPU. If the group has no queue
    /// there yet, the answer is that of the nearest ancestor that has one.
    pub(super) fn throttled_at(&self, task: TaskId, cpu: CpuId) -> bool {
        let mut group = self.task(task).group;
        while let Some(g) = group.and_then(|id| self.group(id)) {
            let rq = g.rqs[cpu.idx()];
            if !rq.is_nil() {
                return self.rqs[rq].throttle_count != 0;
            }
            group = g.parent;
        }
        false
    }

    /// Whether the task ran so recently that its cache content is worth more than balance.
    fn task_hot(&self, env: &dyn Env, lb: &Attempt, e: EntityId) -> bool {
        let cost = self.params.migration_cost_ns;
        let shape = self.domains.shape(lb.this_cpu, lb.level);
        if self.has_idle_policy(e) || shape.flags.share_capacity {
            return false;
        }
        let buddy = self.cpus[lb.src].next == e && self.params.features.cache_hot_buddy;
        if buddy && self.rq_nr_running(env, lb.dst) != 0 {
            return true;
        }
        self.cpus[lb.src].clock.saturating_sub(self.ents[e].exec_start) < cost
    }

    fn detach(&mut self, src: CpuId, e: EntityId) {
        self.dequeue_task(src, e, Leave { migrating: true, ..Leave::default() });
        self.ents[e].avg.last_update_time = 0;
    }

    fn attach(&mut self, e: EntityId, from: CpuId, to: CpuId, now: Nanos) -> Move {
        let task = self.ents[e].task.expect("only tasks are moved");
        self.account_on(task, to, now);
        self.enqueue_task(to, e, EnqueueFlags { migrated: true, ..EnqueueFlags::RESTORE });
        if self.cpus[to].curr.is_nil() {
            self.want_resched(to, Resched::Now);
        } else {
            self.wakeup_preempt(to, task, WakeFlags::default());
        }
        Move { task, from, to, delayed: self.ents[e].sched_delayed }
    }

    /// Carries out a push that balancing requested, after the caller has stopped the CPU. Moves one
    /// task that may go, possibly the running task. If the running task moved, this class no longer
    /// counts it as running; otherwise the class still does.
    pub fn active_balance(&mut self, env: &dyn Env, from: CpuId, now: Nanos) -> Option<Move> {
        let Push { to, llc_only } = self.cpus[from].active_balance.take()?;
        self.update_clock(from, now);
        self.update_clock(to, now);
        if !self.cpus[from].online || !self.cpus[to].online || self.nr_running(from) == 0 {
            return None;
        }
        let level = (0..self.domains.of_cpu[to.idx()].len())
            .find(|&l| cpumask::test(&self.domains.shape(to, l).span, from))?;
        let curr = self.curr_queued(from);
        if let Some(curr) = curr {
            self.stop_entity(from, curr);
        }
        let mut lb = self.attempt(to, level, IdleType::Idle);
        (lb.src, lb.active, lb.llc_only) = (from, true, llc_only);
        let moved = self.push_one(env, lb, now);
        if let Some(curr) =
            curr.filter(|&e| moved.is_none_or(|m| self.ents[e].task != Some(m.task)))
        {
            self.run_entity(from, curr, false);
        }
        moved
    }

    fn push_one(&mut self, env: &dyn Env, mut lb: Attempt, now: Nanos) -> Option<Move> {
        let (from, to) = (lb.src, lb.dst);
        let mut at = self.cpus[from].tasks_tail;
        while let Some(e) = at.some() {
            if self.can_migrate(env, &mut lb, e) {
                self.domains.of_cpu[to.idx()][lb.level].nr_balance_failed = 0;
                self.detach(from, e);
                return Some(self.attach(e, from, to, now));
            }
            at = self.task_of_mut(e).prev;
        }
        None
    }

    /// Returns the tasks that must leave a CPU that goes off line, including delayed and throttled
    /// tasks.
    pub fn tasks_on(&self, cpu: CpuId) -> Vec<TaskId> {
        let queued = |rq: &CfsRqId| self.rqs[*rq].cpu == cpu && !self.rqs[*rq].limbo.is_empty();
        let limbo = (0..self.rqs.0.len() as u32).map(CfsRqId).filter(queued);
        let mut tasks: Vec<TaskId> = Vec::new();
        let mut at = self.cpus[cpu].tasks_head;
        while let Some(e) = at.some() {
            let task = self.ents[e].task.expect("only tasks are listed");
            tasks.push(task);
            at = self.task(task).next;
        }
        for rq in limbo {
            tasks.extend(&self.rqs[rq].limbo);
        }
        tasks.sort_unstable();
        tasks
    }
}

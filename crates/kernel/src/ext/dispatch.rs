// SPDX-License-Identifier: GPL-2.0-only
//! The search of a CPU for its next task: local and global DSQs, `ops.dispatch`, and putting the
//! previous task back.
//!
//! Owns: sched_ext's choice of a CPU's next task (the pick). Models: kernel `dispatch_one()`,
//! `scx_dispatch_sched()`, `finish_dispatch()`, `dispatch_to_local_dsq()`,
//! `scx_consume_dispatch_q()`, `put_prev_task_scx()`, `do_pick_task_scx()`, 7.3.

use super::dsq::{DsqId, DsqKind};
use super::entity::OpsState;
use super::op::Op;
use super::stats::Ev;
use super::{BufferedInsert, DirectDispatchArgs};
use crate::bpf::flags::{enq, ent, limit, ops};
use crate::cpu::lock::LockId;
use crate::kernel::Kernel;
use crate::task::Class;
use scxlab_machine::id::{CpuId, TaskId};
use scxlab_trace::event::EventKind;

/// Result of sched_ext's pick.
pub enum PickResult {
    Task(TaskId),
    Nothing,
    /// A task of a higher class arrived during the pick, so the kernel must start again with the
    /// highest class.
    Retry,
}

/// Result of the search for a CPU's next task: none, a task in the local DSQ, or the previous task.
#[derive(Clone, Copy, PartialEq, Eq)]
enum SearchResult {
    Nothing,
    Local,
    Prev,
}

impl Kernel {
    /// `do_pick_task_scx()`: chooses the CPU's next task of sched_ext, which may be the previous
    /// task again.
    #[inline(always)]
    pub(crate) fn ext_pick(&mut self, cpu: CpuId, prev: TaskId) -> PickResult {
        if !self.ext.enabled {
            return PickResult::Nothing;
        }
        self.ext_kick_sync(cpu);
        self.cpus[cpu].next_class = Class::Ext;
        let found = self.dispatch_one(cpu, prev);
        if self.cpus[cpu].next_class > Class::Ext {
            return PickResult::Retry;
        }
        if found == SearchResult::Prev {
            if self.scx(prev).slice == 0 {
                self.refill_slice(prev);
            }
            return PickResult::Task(prev);
        }
        let local = self.ext.dsqs.local(cpu);
        let Some(task) = self.ext.dsqs.get(local).first() else { return PickResult::Nothing };
        if self.scx(task).slice == 0 {
            self.warn_zero_slice(cpu, task);
            self.refill_slice(task);
        }
        PickResult::Task(task)
    }

    fn warn_zero_slice(&mut self, cpu: CpuId, task: TaskId) {
        if self.ext.bypassing(cpu) {
            return;
        }
        let text = {
            let t = &self.tasks[task];
            format!("sched_ext: {}[{}] has zero slice in ext_pick()", t.name, t.pid)
        };
        if let Some(sched) = &mut self.ext.root
            && !sched.warned_zero_slice
        {
            sched.warned_zero_slice = true;
            self.ext.printk.push(text);
        }
    }

    /// `dispatch_one()`: looks for a task to run: the previous task if it has slice left, then the
    /// local DSQ, then the global DSQ and `ops.dispatch`.
    #[inline(always)]
    fn dispatch_one(&mut self, cpu: CpuId, prev: TaskId) -> SearchResult {
        self.ext.cpus[cpu].in_dispatch = true;
        let found = self.find_work(cpu, prev);
        let local = self.ext.dsqs.get(self.ext.dsqs.local(cpu));
        if found != SearchResult::Nothing && local.len() > 1 && local.nr_immed > 0 {
            self.schedule_reenq_local(cpu, 0);
        }
        self.ext.cpus[cpu].in_dispatch = false;
        found
    }

    #[inline(always)]
    fn find_work(&mut self, cpu: CpuId, prev: TaskId) -> SearchResult {
        if std::mem::take(&mut self.ext.cpus[cpu].cpu_released) && self.ext.has_op(Op::CpuAcquire) {
            self.op(Op::CpuAcquire, Some(cpu), &[u64::from(cpu.0), 0]);
        }
        let prev_ext = self.tasks[prev].class == Class::Ext;
        if prev_ext {
            self.ext_update_curr(cpu);
            if self.may_keep(prev) && !self.ext.bypassing(cpu) {
                return SearchResult::Prev;
            }
        }
        if !self.ext.dsqs.get(self.ext.dsqs.local(cpu)).is_empty() {
            return SearchResult::Local;
        }
        let found = self.dispatch_sched(cpu, prev, prev_ext);
        if found != SearchResult::Nothing {
            return found;
        }
        let keep_last = self.ext.flags() & ops::ENQ_LAST == 0 || self.ext.bypassing(cpu);
        if prev_ext && self.scx_flag(prev, ent::QUEUED) && keep_last {
            self.ext.count(Ev::DispatchKeepLast, 1);
            return SearchResult::Prev;
        }
        SearchResult::Nothing
    }

    fn may_keep(&mut self, prev: TaskId) -> bool {
        let (t, guest) = self.task_and_guest(prev);
        t.ext.flags & ent::QUEUED != 0 && guest.scx.slice != 0
    }

    /// `scx_dispatch_sched()`: looks for a task in the global DSQ, and then calls `ops.dispatch`.
    /// In bypass it looks in the bypass DSQ instead of calling `ops.dispatch`.
    #[inline(always)]
    fn dispatch_sched(&mut self, cpu: CpuId, prev: TaskId, prev_ext: bool) -> SearchResult {
        let global = self.global_dsq(cpu);
        if self.consume(cpu, global, 0) {
            return SearchResult::Local;
        }
        if self.ext.bypassing(cpu) {
            let bypass = self.ext.dsqs.bypass(cpu);
            return if self.consume(cpu, bypass, 0) {
                SearchResult::Local
            } else {
                SearchResult::Nothing
            };
        }
        if !self.ext.has_op(Op::Dispatch) || !self.ext_cpu_online(cpu) {
            return SearchResult::Nothing;
        }
        let prev_addr = if prev_ext { self.tasks[prev].addr } else { 0 };
        for _ in 0..limit::DSP_MAX_LOOPS {
            self.ext.cpus[cpu].dispatch.nr_tasks = 0;
            self.op_dispatch(cpu, prev_addr);
            self.flush_dispatch(cpu);
            if prev_ext && self.may_keep(prev) {
                return SearchResult::Prev;
            }
            if !self.ext.dsqs.get(self.ext.dsqs.local(cpu)).is_empty()
                || self.consume(cpu, global, 0)
            {
                return SearchResult::Local;
            }
            if self.ext.cpus[cpu].dispatch.nr_tasks == 0 {
                return SearchResult::Nothing;
            }
        }
        self.ext_kick(cpu, 0);
        SearchResult::Nothing
    }

    /// `scx_flush_dispatch_buf()`: carries out the insertions that `ops.dispatch` has buffered.
    #[inline(always)]
    pub(crate) fn flush_dispatch(&mut self, cpu: CpuId) {
        if !self.ext.cpus[cpu].dispatch.entries.is_empty() {
            self.flush_entries(cpu);
        }
    }

    #[inline(never)]
    fn flush_entries(&mut self, cpu: CpuId) {
        let entries = std::mem::take(&mut self.ext.cpus[cpu].dispatch.entries);
        for entry in &entries {
            self.finish_dispatch(cpu, entry);
        }
        let buf = &mut self.ext.cpus[cpu].dispatch;
        buf.nr_tasks += entries.len() as u32;
        if buf.entries.is_empty() {
            buf.entries = entries;
            buf.entries.clear();
        }
    }

    /// `finish_dispatch()`: carries out one buffered insertion. Ignores the insertion, without an
    /// error, if the scheduler no longer owns the task, or if it owns the task through a later
    /// enqueue.
    fn finish_dispatch(&mut self, cpu: CpuId, entry: &BufferedInsert) {
        let task = entry.task;
        let waiting = self
            .tasks
            .get(task)
            .is_some_and(|t| t.ext.ops_state == OpsState::Queued { qseq: entry.qseq });
        if !waiting {
            return;
        }
        self.tasks[task].ext.inserted_by = entry.inserted_by;
        self.with_verdict_of(task, |k| k.dispatch_entry(cpu, entry));
    }

    fn dispatch_entry(&mut self, cpu: CpuId, entry: &BufferedInsert) {
        let task = entry.task;
        let task_cpu = self.tasks[task].cpu;
        let dsq = self.dsq_for_dispatch(cpu, entry.dsq_id, task_cpu);
        let args =
            DirectDispatchArgs { slice: entry.slice, vtime: entry.vtime, flags: entry.enq_flags };
        if let Some(dst) = self.ext.dsqs.local_cpu(dsq) {
            self.dispatch_to_local(cpu, dst, task, args);
        } else {
            self.dsq_insert(
                cpu,
                dsq,
                task,
                Some((args.slice, args.vtime)),
                args.flags | enq::CLEAR_OPSS,
            );
        }
    }

    /// `dispatch_to_local_dsq()`: inserts the task into the local DSQ of `dst`, or into a global
    /// DSQ if the task cannot run on `dst`. The caller holds the run queue lock of `rq`.
    pub(crate) fn dispatch_to_local(
        &mut self,
        rq: CpuId,
        dst: CpuId,
        task: TaskId,
        args: DirectDispatchArgs,
    ) {
        let dsq = self.ext.dsqs.local(dst);
        let src = self.tasks[task].cpu;
        let sv = Some((args.slice, args.vtime));
        if rq == src && rq == dst {
            self.dsq_insert(rq, dsq, task, sv, args.flags | enq::CLEAR_OPSS);
            return;
        }
        self.tasks[task].ext.ops_state = OpsState::None;
        self.switch_rq_lock(rq, src);
        let mut locked = src;
        let mut fallback = false;
        if src == dst {
            self.dsq_insert(dst, dsq, task, sv, args.flags);
        } else if !self.can_run_remote(task, dst, true) {
            fallback = true;
            let global = self.global_dsq_of(task);
            self.dsq_insert(src, global, task, sv, args.flags | enq::GDSQ_FALLBACK);
        } else {
            self.apply_verdict_slice(task, args);
            self.move_remote_to_local(task, args.flags, src, dst);
            locked = dst;
        }
        if !fallback && Class::Ext > self.curr_class(dst) {
            self.resched(dst);
        }
        self.switch_rq_lock(locked, rq);
    }

    fn apply_verdict_slice(&mut self, task: TaskId, args: DirectDispatchArgs) {
        if args.slice != 0 {
            self.set_slice(task, args.slice);
        } else if self.scx(task).slice == 0 {
            self.scx(task).slice = 1;
        }
        if args.flags & enq::DSQ_PRIQ != 0 {
            self.scx(task).dsq_vtime = args.vtime;
        }
    }

    fn curr_class(&self, cpu: CpuId) -> Class {
        self.tasks[self.cpus[cpu].curr].class
    }

    /// `move_remote_task_to_local_dsq()`: dequeues the task on `src` and enqueues it on the local
    /// DSQ of `dst`. The caller holds the run queue lock of `src`, and afterwards that of `dst`.
    pub(crate) fn move_remote_to_local(
        &mut self,
        task: TaskId,
        flags: u64,
        src: CpuId,
        dst: CpuId,
    ) {
        self.charge(self.machine.costs.kfunc.dsq_move_ns);
        self.tasks[task].ext.sticky_cpu = Some(dst);
        self.tasks.migrating = Some(task);
        self.dequeue_task(src, task, 0);
        self.set_task_cpu(task, dst);
        self.switch_rq_lock(src, dst);
        let outer = std::mem::replace(&mut self.ext.remote_activate_flags, flags);
        self.enqueue_task(dst, task, 0);
        self.ext.remote_activate_flags = outer;
        self.tasks.migrating = None;
    }

    /// `task_can_run_on_remote_rq()`: returns whether the task may move to `cpu`. With `enforce`, a
    /// CPU outside of the task's affinity is an error of the scheduler.
    pub(crate) fn can_run_remote(&mut self, task: TaskId, cpu: CpuId, enforce: bool) -> bool {
        let t = &self.tasks[task];
        if !t.allowed_on(cpu) {
            if enforce {
                let text = format!(
                    "SCX_DSQ_LOCAL[_ON] target CPU {cpu} not allowed for {}[{}]",
                    t.name, t.pid
                );
                self.scx_error(text);
            }
            return false;
        }
        if !self.ext_cpu_online(cpu) {
            if enforce {
                self.ext.count(Ev::DispatchLocalDsqOffline, 1);
            }
            return false;
        }
        true
    }

    /// `scx_consume_dispatch_q()`: moves the first task that can run on `cpu` to the CPU's local
    /// DSQ; returns whether there was such a task.
    #[inline]
    pub(crate) fn consume(&mut self, cpu: CpuId, dsq: DsqId, flags: u64) -> bool {
        !self.ext.dsqs.get(dsq).is_empty() && self.consume_some(cpu, dsq, flags)
    }

    fn consume_some(&mut self, cpu: CpuId, dsq: DsqId, flags: u64) -> bool {
        self.lock(LockId::Dsq(dsq));
        let aborting =
            self.ext_aborting() && !matches!(self.ext.dsqs.get(dsq).kind, DsqKind::Bypass(_));
        let found = if aborting { None } else { self.first_runnable_on(dsq, cpu) };
        let Some(task) = found else {
            self.unlock(LockId::Dsq(dsq));
            return false;
        };
        self.dsq_changes(dsq);
        let by = self.ext_live_caller();
        let Kernel { tasks, ext, .. } = self;
        let t = &mut tasks[task];
        let src = t.cpu;
        t.ext.inserted_by = by;
        t.ext.unlink(&mut ext.dsqs);
        let q = ext.dsqs.get(dsq);
        let from = q.user_visible_id();
        if let Some(next) = q.first() {
            self.prefetch_next_task(next);
        }
        self.unlock(LockId::Dsq(dsq));
        self.charge(self.machine.costs.kfunc.dsq_move_ns);
        let to = crate::bpf::flags::dsq_id::LOCAL_ON | u64::from(cpu.0);
        self.trace(EventKind::DsqMove { task, from, to });
        if src == cpu {
            let local = self.ext.dsqs.local(cpu);
            self.dsq_insert(cpu, local, task, None, flags);
        } else {
            self.switch_rq_lock(cpu, src);
            self.move_remote_to_local(task, flags, src, cpu);
        }
        true
    }

    fn first_runnable_on(&mut self, dsq: DsqId, cpu: CpuId) -> Option<TaskId> {
        let q = self.ext.dsqs.get(dsq);
        let online = self.ext_cpu_online(cpu);
        let fits = |t: &TaskId| {
            let task = &self.tasks[*t];
            task.cpu == cpu || (online && task.allowed_on(cpu))
        };
        if let Some(first) = q.first()
            && fits(&first)
        {
            return Some(first);
        }
        let mut skipped = 0;
        let found = q.iter().inspect(|_| skipped += 1).find(fits);
        self.charge(self.machine.costs.kfunc.dsq_scan_task_ns * (skipped as u64).saturating_sub(1));
        found
    }

    /// `put_prev_task_scx()`: charges the task that leaves the CPU, and queues it again if it is
    /// still runnable.
    #[inline(always)]
    pub(crate) fn ext_put_prev(&mut self, cpu: CpuId, task: TaskId, next: Option<TaskId>) {
        self.ext_kick_sync(cpu);
        self.ext_update_curr(cpu);
        let queued = self.scx_flag(task, ent::QUEUED);
        if queued && self.ext.has_op(Op::Stopping) {
            self.op_task(Op::Stopping, Some(cpu), task, &[1]);
        }
        if queued {
            self.set_runnable(task, 0);
            self.requeue_prev(cpu, task, next);
        }
        if let Some(next) = next
            && self.tasks[next].class != Class::Ext
        {
            self.ext_switch_class(cpu, next);
        }
    }

    fn requeue_prev(&mut self, cpu: CpuId, task: TaskId, next: Option<TaskId>) {
        if self.scx(task).slice != 0 && !self.ext.bypassing(cpu) {
            if self.scx_flag(task, ent::IMMED) {
                self.change_flags(task, ent::REENQ_PREEMPTED, 0);
                self.ext_do_enqueue(cpu, task, enq::REENQ, None);
                self.change_flags(task, 0, ent::REENQ_REASON_MASK);
            } else {
                let local = self.ext.dsqs.local(cpu);
                self.tasks[task].ext.inserted_by = None;
                self.dsq_insert(cpu, local, task, None, enq::HEAD);
            }
            return;
        }
        let to_lower = next.is_some_and(|n| self.tasks[n].class < Class::Ext);
        if to_lower {
            self.ext_do_enqueue(cpu, task, enq::LAST, None);
            if self.tasks[task].ext.dsq == Some(self.ext.dsqs.local(cpu)) {
                self.cpus[cpu].need_resched = true;
            }
        } else {
            self.ext_do_enqueue(cpu, task, 0, None);
        }
    }

    /// `switch_class()`: tells the scheduler that a higher class takes the CPU, if it implements
    /// `ops.cpu_acquire` or `ops.cpu_release`.
    pub(crate) fn ext_switch_class(&mut self, cpu: CpuId, next: TaskId) {
        let class = self.tasks[next].class;
        let wants = self.ext.root.as_ref().is_some_and(|s| s.has_cpu_preempt);
        if !wants || class < Class::Ext || self.ext.cpus[cpu].cpu_released {
            return;
        }
        self.ext.cpus[cpu].cpu_released = true;
        if self.ext.has_op(Op::CpuRelease) {
            let reason = match class {
                Class::Rt => 0,
                Class::Deadline => 1,
                _ => 3,
            };
            let task = self.tasks[next].addr;
            let args = self.scratch_release_args(reason, task);
            self.op(Op::CpuRelease, Some(cpu), &[u64::from(cpu.0), args]);
        }
    }
}

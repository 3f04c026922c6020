// SPDX-License-Identifier: GPL-2.0-only
//! A task enters and leaves the class: enqueue, dequeue, insertion into DSQs, custody.
//!
//! Owns: every change of which DSQ a task is on. Does not: pick (see `dispatch.rs`).
//! Models: kernel `scx_do_enqueue_task()`, `scx_dispatch_enqueue()`, `direct_dispatch()`, `enqueue_task_scx()`,
//! `dequeue_task_scx()`, `ops_dequeue()`, `select_task_rq_scx()`, 7.3.

use super::DirectSlot;
use super::dsq::{DsqId, DsqKind, Place};
use super::entity::{DirectDispatch, OpsState};
use super::exit::ExitKind;
use super::op::Op;
use super::stats::Ev;
use crate::abi;
use crate::behavior::Policy;
use crate::flags::{deq, dsq_id, enq, ent, limit, ops, queue, slice, wake};
use crate::kernel::Kernel;
use crate::lock::LockId;
use scxlab_machine::id::{CpuId, TaskId};
use scxlab_trace::event::Kind;

impl Kernel {
    /// What BPF sees of a task's sched_ext state.
    #[inline]
    pub(crate) fn scx(&mut self, task: TaskId) -> &mut abi::sched_ext_entity {
        let addr = self.tasks[task].addr;
        &mut self.vm.mem.host_mut::<abi::task_struct>(addr).scx
    }

    #[inline]
    pub(crate) fn scx_flag(&mut self, task: TaskId, flag: u32) -> bool {
        self.scx(task).flags & flag != 0
    }

    /// Whether tasks of `policy` go to the class now.
    pub(crate) fn ext_takes(&self, policy: Policy) -> bool {
        let partial_only = !self.ext.switching_all;
        self.ext.enabled
            && self.ext.state != super::EnableState::Disabling
            && (policy == Policy::Ext || !partial_only)
    }

    pub(crate) fn ext_allows_queued_wakeup(&self) -> bool {
        !self.ext.enabled || self.ext.flags() & ops::ALLOW_QUEUED_WAKEUP != 0
    }

    /// Chooses a CPU for a waking or new task.
    pub(crate) fn ext_select_cpu(&mut self, task: TaskId, prev: CpuId, flags: u64) -> CpuId {
        if flags & wake::EXEC != 0 {
            return prev;
        }
        let task_cpu = self.tasks[task].cpu;
        if self.ext.bypassing(task_cpu) {
            self.ext.count(Ev::BypassDispatch, 1);
            self.scx(task).selected_cpu = prev.0 as i32;
            return prev;
        }
        if !self.ext.has_op(Op::SelectCpu) {
            return self.select_cpu_builtin(task, prev, flags);
        }
        let here = self.exec.cpu;
        self.ext.cpus[here.idx()].in_select_cpu = true;
        let cpu = self.op_direct(Op::SelectCpu, None, task, &[u64::from(prev.0), flags]) as i32;
        self.ext.cpus[here.idx()].in_select_cpu = false;
        let valid = self.ext_cpu_valid(cpu, "from ops.select_cpu()");
        let chosen = valid.unwrap_or(prev);
        self.scx(task).selected_cpu = chosen.0 as i32;
        chosen
    }

    fn select_cpu_builtin(&mut self, task: TaskId, prev: CpuId, flags: u64) -> CpuId {
        let found = self.idle_select_cpu_dfl(task, prev, flags, None, 0);
        let cpu = found.unwrap_or(prev);
        if found.is_some() {
            self.ext.count(Ev::RefillSliceDfl, 1);
            let slice = self.slice_dfl();
            let enq_flags = enq::SLICE_DFL;
            let verdict = DirectDispatch { dsq_id: dsq_id::LOCAL, slice, vtime: 0, enq_flags };
            self.set_ddsp(task, verdict);
        }
        self.scx(task).selected_cpu = cpu.0 as i32;
        cpu
    }

    /// A CPU number from a program; None is an error of the scheduler.
    pub(crate) fn ext_cpu_valid(&mut self, cpu: i32, place: &str) -> Option<CpuId> {
        if cpu >= 0 && (cpu as usize) < self.cpus.len() {
            return Some(CpuId(cpu as u32));
        }
        let space = if place.is_empty() { "" } else { " " };
        self.scx_error(format!("invalid CPU {cpu}{space}{place}"));
        None
    }

    pub(crate) fn slice_dfl(&self) -> u64 {
        self.ext.root.as_ref().map_or(slice::DFL, |s| s.slice_dfl)
    }

    /// `enqueue_task_scx()`
    pub(crate) fn ext_enqueue(&mut self, cpu: CpuId, task: TaskId, core_flags: u64) {
        let mut sticky = self.tasks[task].ext.sticky_cpu.take();
        let mut flags = core_flags | self.ext.remote_activate_flags;
        if core_flags & queue::WAKEUP != 0 {
            self.ext.cpus[cpu.idx()].in_wakeup = true;
        }
        if flags & queue::RESTORE != 0 && self.tasks[task].on_cpu {
            sticky = Some(cpu);
            flags |= enq::IGNORE_CAPS;
        }
        if core_flags & queue::RQ_SELECTED != 0 {
            flags |= enq::CPU_SELECTED;
        }
        if !self.scx_flag(task, ent::QUEUED) {
            self.set_runnable(task);
            self.scx(task).flags |= ent::QUEUED;
            self.ext.cpus[cpu.idx()].nr_running += 1;
            if self.ext.has_op(Op::Runnable) && self.migrating != Some(task) {
                self.op_task(Op::Runnable, Some(cpu), task, &[flags]);
            }
            self.ext_do_enqueue(cpu, task, flags, sticky);
        }
        self.ext.cpus[cpu.idx()].in_wakeup = false;
        if flags & enq::CPU_SELECTED != 0 && self.scx(task).selected_cpu != cpu.0 as i32 {
            self.ext.count(Ev::SelectCpuFallback, 1);
        }
    }

    /// `scx_do_enqueue_task()`: the order of the questions is the kernel's.
    pub(crate) fn ext_do_enqueue(
        &mut self,
        cpu: CpuId,
        task: TaskId,
        flags: u64,
        sticky: Option<CpuId>,
    ) {
        if sticky == Some(cpu) {
            let local = self.ext.dsqs.local(cpu);
            self.dsq_insert(cpu, local, task, None, flags);
            return;
        }
        self.scx(task).flags &= !ent::IMMED;
        if flags & enq::REENQ != 0 && self.too_many_reenqueues(task) {
            return;
        }
        if !self.ext_cpu_online(cpu) {
            return self.insert_refilled(cpu, self.ext.dsqs.local(cpu), task, flags);
        }
        if self.ext.bypassing(cpu) {
            self.ext.count(Ev::BypassDispatch, 1);
            let target = self.ext.dsqs.bypass(self.tasks[task].cpu);
            return self.insert_refilled(cpu, target, task, flags);
        }
        if self.tasks[task].ext.ddsp.is_set() {
            return self.direct_dispatch(cpu, task, flags);
        }
        if self.ext.flags() & ops::ENQ_EXITING == 0 && self.tasks[task].exiting {
            self.ext.count(Ev::EnqSkipExiting, 1);
            return self.insert_refilled(cpu, self.ext.dsqs.local(cpu), task, flags);
        }
        if !self.ext.has_op(Op::Enqueue) {
            let global = self.global_dsq_of(task);
            return self.insert_refilled(cpu, global, task, flags);
        }
        self.ask_enqueue(cpu, task, flags);
    }

    fn ask_enqueue(&mut self, cpu: CpuId, task: TaskId, flags: u64) {
        let e = &mut self.tasks[task].ext;
        e.qseq += 1;
        let qseq = e.qseq;
        e.ops_state = OpsState::Queueing;
        self.op_direct(Op::Enqueue, Some(cpu), task, &[flags & !enq::INTERNAL_MASK]);
        if self.tasks[task].ext.ddsp.is_set() {
            return self.direct_dispatch(cpu, task, flags);
        }
        self.scx(task).flags |= ent::IN_CUSTODY;
        self.tasks[task].ext.ops_state = OpsState::Queued { qseq };
    }

    fn too_many_reenqueues(&mut self, task: TaskId) -> bool {
        let e = &mut self.tasks[task].ext;
        e.reenq_count += 1;
        let count = e.reenq_count;
        if count > 1 {
            self.ext.count(Ev::ReenqRepeat, 1);
        }
        if count <= limit::REENQ_MAX_REPEAT {
            return false;
        }
        let (name, pid) = (self.tasks[task].name.clone(), self.tasks[task].pid);
        let text = format!("{name}[{pid}] reenqueued {count} times without running");
        self.ext_exit(ExitKind::ErrorReenq, 0, &text);
        true
    }

    /// Inserts with a fresh default slice, as the paths do that bypass the scheduler.
    fn insert_refilled(&mut self, cpu: CpuId, dsq: DsqId, task: TaskId, flags: u64) {
        self.refill_slice(task);
        self.clear_ddsp(task);
        self.dsq_insert(cpu, dsq, task, None, flags);
    }

    pub(crate) fn refill_slice(&mut self, task: TaskId) {
        let slice = self.slice_dfl();
        self.scx(task).slice = slice;
        self.ext.count(Ev::RefillSliceDfl, 1);
    }

    /// The global queue of the node of the task's CPU.
    pub(crate) fn global_dsq_of(&self, task: TaskId) -> DsqId {
        self.global_dsq(self.tasks[task].cpu)
    }

    pub(crate) fn global_dsq(&self, cpu: CpuId) -> DsqId {
        self.ext.dsqs.global(self.machine.topology.cpu(cpu).node.0)
    }

    pub(crate) fn ext_cpu_online(&self, cpu: CpuId) -> bool {
        self.cpus[cpu.idx()].online
    }

    /// `mark_direct_dispatch()`
    pub(crate) fn mark_direct_dispatch(
        &mut self,
        open: DirectSlot,
        task: TaskId,
        verdict: DirectDispatch,
    ) {
        self.ext.direct = DirectSlot::Used;
        if open == DirectSlot::Open(task) {
            return self.set_ddsp(task, verdict);
        }
        let t = &self.tasks[task];
        let text = match open {
            DirectSlot::Open(expected) => {
                let e = &self.tasks[expected];
                format!(
                    "scheduling for {}[{}] but trying to direct-dispatch {}[{}]",
                    e.name, e.pid, t.name, t.pid
                )
            }
            _ => format!("{}[{}] already direct-dispatched", t.name, t.pid),
        };
        self.scx_error(text);
    }

    /// Carries out the verdict of select_cpu or enqueue.
    fn direct_dispatch(&mut self, cpu: CpuId, task: TaskId, flags: u64) {
        let mut verdict = self.tasks[task].ext.ddsp;
        let dsq = self.dsq_for_dispatch(cpu, verdict.dsq_id, self.tasks[task].cpu);
        verdict.enq_flags |= flags;
        let remote = self.ext.dsqs.get(dsq).is_local() && dsq != self.ext.dsqs.local(cpu);
        if remote {
            self.set_ddsp(task, verdict);
            self.tasks[task].ext.ops_state = OpsState::None;
            self.ext.cpus[cpu.idx()].ddsp_deferred.push_back(task);
            self.schedule_deferred_locked(cpu);
            return;
        }
        self.set_ddsp(task, DirectDispatch::default());
        let flags = verdict.enq_flags | enq::CLEAR_OPSS;
        self.dsq_insert(cpu, dsq, task, Some((verdict.slice, verdict.vtime)), flags);
    }

    /// No verdict waits.
    #[inline]
    fn clear_ddsp(&mut self, task: TaskId) {
        if self.tasks[task].ext.ddsp.is_set() {
            self.set_ddsp(task, DirectDispatch::default());
        }
    }

    /// The verdict that waits, here and where programs see it.
    pub(crate) fn set_ddsp(&mut self, task: TaskId, verdict: DirectDispatch) {
        let old = std::mem::replace(&mut self.tasks[task].ext.ddsp, verdict);
        if old.is_set() || verdict.is_set() {
            let e = self.scx(task);
            e.ddsp_dsq_id = verdict.dsq_id;
            e.ddsp_slice = verdict.slice;
            e.ddsp_vtime = verdict.vtime;
            e.ddsp_enq_flags = verdict.enq_flags;
        }
    }

    /// `find_dsq_for_dispatch()`: a missing queue is an error and means the global one.
    pub(crate) fn dsq_for_dispatch(&mut self, rq: CpuId, id: u64, task_cpu: CpuId) -> DsqId {
        if id == dsq_id::LOCAL {
            return self.ext.dsqs.local(rq);
        }
        if id & dsq_id::LOCAL_ON == dsq_id::LOCAL_ON {
            let cpu = (id & dsq_id::LOCAL_CPU_MASK) as i32;
            return match self.ext_cpu_valid(cpu, "in SCX_DSQ_LOCAL_ON dispatch verdict") {
                Some(cpu) => self.ext.dsqs.local(cpu),
                None => self.global_dsq(task_cpu),
            };
        }
        if id == dsq_id::GLOBAL {
            return self.global_dsq(task_cpu);
        }
        match self.ext.dsqs.user(id) {
            Some(dsq) => dsq,
            None => {
                self.scx_error(format!("non-existent DSQ {id:#x}"));
                self.global_dsq(task_cpu)
            }
        }
    }

    /// `scx_dispatch_enqueue()`: puts a task on a queue. `rq` is the run queue that the caller holds.
    pub(crate) fn dsq_insert(
        &mut self,
        rq: CpuId,
        mut dsq: DsqId,
        task: TaskId,
        slice_vtime: Option<(u64, u64)>,
        mut flags: u64,
    ) {
        assert!(self.tasks[task].ext.dsq.is_none(), "task {task} is on a DSQ already");
        let kind = self.ext.dsqs.get(dsq).kind;
        if let DsqKind::Gone { .. } = kind {
            self.scx_error("attempting to dispatch to a destroyed dsq");
            dsq = self.global_dsq_of(task);
        }
        let local = match kind {
            DsqKind::Local(cpu) => Some(cpu),
            _ => None,
        };
        if local.is_none() {
            self.lock(LockId::Dsq(dsq));
        }
        if flags & enq::DSQ_PRIQ != 0 && self.ext.dsqs.get(dsq).is_builtin() {
            self.scx_error("cannot use vtime ordering for built-in DSQs");
            flags &= !enq::DSQ_PRIQ;
        }
        if let Some((slice, vtime)) = slice_vtime {
            self.apply_slice_vtime(task, slice, vtime, flags);
        }
        self.charge(self.machine.costs.kfunc.dsq_insert_ns);
        self.dsq_link(dsq, task, flags);
        if let Some(cpu) = local {
            self.count_immed(cpu, dsq, task, flags);
            self.local_post_enqueue(cpu, task, flags);
        } else {
            self.unlock(LockId::Dsq(dsq));
            self.queue_post_enqueue(rq, dsq, task);
        }
        if flags & enq::CLEAR_OPSS != 0 {
            self.tasks[task].ext.ops_state = OpsState::None;
        }
    }

    fn apply_slice_vtime(&mut self, task: TaskId, slice: u64, vtime: u64, flags: u64) {
        if slice != 0 {
            self.scx(task).slice = slice;
            if flags & enq::SLICE_DFL == 0 {
                self.tasks[task].ext.slice_oob = None;
            }
        } else if self.scx(task).slice == 0 {
            self.scx(task).slice = 1;
        }
        if flags & enq::DSQ_PRIQ != 0 {
            self.scx(task).dsq_vtime = vtime;
        }
    }

    /// Links the task at its place and remembers it.
    fn dsq_link(&mut self, dsq: DsqId, task: TaskId, flags: u64) {
        let priq = flags & enq::DSQ_PRIQ != 0;
        let vtime = if priq { self.scx(task).dsq_vtime } else { 0 };
        let q = self.ext.dsqs.get_mut(dsq);
        let id = q.user_visible_id();
        let mixed = if priq { q.has_fifo() } else { q.has_priq() };
        let place = match flags {
            _ if priq => Place::Vtime(vtime),
            f if f & (enq::HEAD | enq::PREEMPT) != 0 => Place::Head,
            _ => Place::Tail,
        };
        let key = q.insert(task, place);
        let e = &mut self.tasks[task].ext;
        (e.dsq, e.dsq_key, e.on_priq) = (Some(dsq), key, priq);
        if mixed {
            let other = if priq { "FIFO" } else { "PRIQ" };
            self.scx_error(format!("DSQ ID {id:#018x} already had {other}-enqueued tasks"));
        }
        self.trace(Kind::DsqInsert { task, dsq: id, flags });
    }

    /// Takes the task off its queue.
    pub(crate) fn dsq_unlink(&mut self, task: TaskId) {
        let e = &mut self.tasks[task].ext;
        let Some(dsq) = e.dsq.take() else { return };
        let (key, on_priq) = (e.dsq_key, e.on_priq);
        let immed = self.scx_flag(task, ent::IMMED);
        let q = self.ext.dsqs.get_mut(dsq);
        q.remove(key, on_priq);
        if q.is_local() && immed {
            q.nr_immed = q.nr_immed.saturating_sub(1);
        }
    }

    /// `dsq_inc_nr()` of a local queue: an IMMED task that cannot run at once goes back.
    fn count_immed(&mut self, cpu: CpuId, dsq: DsqId, task: TaskId, flags: u64) {
        if flags & enq::IMMED != 0 {
            self.scx(task).flags |= ent::IMMED;
        }
        if !self.scx_flag(task, ent::IMMED) {
            return;
        }
        let q = self.ext.dsqs.get_mut(dsq);
        q.nr_immed += 1;
        if q.len() > 1 || !self.rq_is_open(cpu, flags) {
            self.schedule_reenq_local(cpu, 0);
        }
    }

    /// `rq_is_open()`: whether a task put on this local queue would run without delay.
    pub(crate) fn rq_is_open(&self, cpu: CpuId, flags: u64) -> bool {
        use crate::task::Class;
        let next = self.cpus[cpu.idx()].next_class;
        if next > Class::Ext {
            return false;
        }
        next < Class::Ext || self.ext.cpus[cpu.idx()].in_dispatch || flags & enq::PREEMPT != 0
    }

    /// What follows an insertion into a local queue: custody ends, and its CPU may have to reschedule.
    fn local_post_enqueue(&mut self, cpu: CpuId, task: TaskId, flags: u64) {
        use crate::task::Class;
        self.leave_custody(cpu, task, 0);
        if self.tasks[task].class > self.cpus[cpu.idx()].next_class {
            self.wakeup_preempt(cpu, task, 0);
        }
        if self.ext.cpus[cpu.idx()].in_dispatch || flags & enq::PREEMPT == 0 {
            return;
        }
        let curr = self.cpus[cpu.idx()].curr;
        if curr != task && self.tasks[curr].class == Class::Ext {
            self.set_slice(curr, 0);
            self.resched(cpu);
        }
    }

    /// What follows an insertion elsewhere: user queues keep the task in the scheduler's custody.
    fn queue_post_enqueue(&mut self, rq: CpuId, dsq: DsqId, task: TaskId) {
        match self.ext.dsqs.get(dsq).kind {
            DsqKind::Global { .. } | DsqKind::Bypass(_) => self.leave_custody(rq, task, 0),
            _ => self.scx(task).flags |= ent::IN_CUSTODY,
        }
    }

    /// `task_leave_custody()` and the `ops.dequeue` that goes with it.
    fn leave_custody(&mut self, rq: CpuId, task: TaskId, deq_flags: u64) {
        if !self.scx_flag(task, ent::IN_CUSTODY) || self.tasks[task].ext.sticky_cpu.is_some() {
            return;
        }
        self.scx(task).flags &= !ent::IN_CUSTODY;
        if self.ext.has_op(Op::Dequeue) {
            self.op_task(Op::Dequeue, Some(rq), task, &[deq_flags]);
        }
    }

    /// `ops_dequeue()`: the task stops waiting.
    pub(crate) fn ext_ops_dequeue(&mut self, rq: CpuId, task: TaskId, deq_flags: u64) {
        self.tasks[task].ext.runnable = None;
        self.tasks[task].ext.ops_state = OpsState::None;
        self.leave_custody(rq, task, deq_flags);
    }

    /// `dequeue_task_scx()`; never delayed.
    pub(crate) fn ext_dequeue(&mut self, cpu: CpuId, task: TaskId, core_flags: u64) -> bool {
        let mut flags = core_flags;
        if flags & queue::SLEEP == 0 {
            flags |= deq::SCHED_CHANGE;
        }
        if !self.scx_flag(task, ent::QUEUED) {
            return false;
        }
        self.ext_ops_dequeue(cpu, task, flags);
        if self.tasks[task].on_cpu && self.ext.has_op(Op::Stopping) {
            self.ext_update_curr(cpu);
            self.op_task(Op::Stopping, Some(cpu), task, &[0]);
        }
        if self.ext.has_op(Op::Quiescent) && self.migrating != Some(task) {
            self.op_task(Op::Quiescent, Some(cpu), task, &[flags]);
        }
        let e = self.scx(task);
        if flags & deq::SLEEP != 0 {
            e.flags |= ent::DEQD_FOR_SLEEP;
        } else {
            e.flags &= !ent::DEQD_FOR_SLEEP;
        }
        e.flags &= !ent::QUEUED;
        self.ext.cpus[cpu.idx()].nr_running -= 1;
        self.dispatch_dequeue(task);
        self.clear_ddsp(task);
        false
    }

    /// `scx_dispatch_dequeue()`: off its queue, or off the list of deferred verdicts.
    pub(crate) fn dispatch_dequeue(&mut self, task: TaskId) {
        match self.tasks[task].ext.dsq {
            Some(dsq) if self.ext.dsqs.get(dsq).is_local() => self.dsq_unlink(task),
            Some(dsq) => {
                self.lock(LockId::Dsq(dsq));
                self.dsq_unlink(task);
                self.unlock(LockId::Dsq(dsq));
            }
            None if self.tasks[task].ext.ddsp.is_set() => {
                let cpu = self.tasks[task].cpu;
                self.ext.cpus[cpu.idx()].ddsp_deferred.retain(|&t| t != task);
            }
            None => {}
        }
    }

    /// `set_task_runnable()`
    pub(crate) fn set_runnable(&mut self, task: TaskId) {
        if self.scx_flag(task, ent::RESET_RUNNABLE_AT) {
            let jiffies = self.jiffies();
            let e = self.scx(task);
            e.runnable_at = jiffies;
            e.flags &= !ent::RESET_RUNNABLE_AT;
        }
        self.ext.arrivals += 1;
        self.tasks[task].ext.runnable = Some(self.ext.arrivals);
    }

    /// `scx_set_task_slice()`
    pub(crate) fn set_slice(&mut self, task: TaskId, slice: u64) {
        self.scx(task).slice = slice;
        self.tasks[task].ext.slice_oob = None;
    }

    /// A slice that was set without the run queue's lock takes effect.
    #[inline]
    fn apply_slice_oob(&mut self, task: TaskId) {
        if let Some(slice) = self.tasks[task].ext.slice_oob.take() {
            self.scx(task).slice = slice;
        }
    }

    /// `update_curr_scx()`: CPU time eats the slice.
    pub(crate) fn ext_update_curr(&mut self, cpu: CpuId) {
        let curr = self.cpus[cpu.idx()].curr;
        self.apply_slice_oob(curr);
        let delta = self.charge_curr(cpu);
        if delta == 0 {
            return;
        }
        let entity = self.scx(curr);
        if entity.slice != slice::INF {
            entity.slice = entity.slice.saturating_sub(delta);
        }
    }

    /// `set_next_task_scx()`
    pub(crate) fn ext_set_next(&mut self, cpu: CpuId, task: TaskId) {
        if self.scx_flag(task, ent::QUEUED) {
            self.ext_ops_dequeue(cpu, task, deq::CORE_SCHED_EXEC);
            self.dispatch_dequeue(task);
            if self.ext.has_op(Op::Running) && self.scx_flag(task, ent::QUEUED) {
                self.op_task(Op::Running, Some(cpu), task, &[]);
            }
        }
        let e = &mut self.tasks[task].ext;
        e.runnable = None;
        e.reenq_count = 0;
        self.apply_slice_oob(task);
        let entity = self.scx(task);
        entity.flags |= ent::RESET_RUNNABLE_AT;
        let infinite = entity.slice == slice::INF;
        self.ext.cpus[cpu.idx()].can_stop_tick = infinite;
    }
}

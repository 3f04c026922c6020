// SPDX-License-Identifier: GPL-2.0-only
//! A task's way into and out of sched_ext: `ops.select_cpu`, `ops.enqueue`, direct dispatch,
//! dequeue, and the use of the task's slice on a CPU.
//!
//! Owns: the order in which an enqueue tries its paths. Does not: link a task into a DSQ (see
//! `insert.rs`), or pick a task (see `dispatch.rs`).
//! Models: kernel `scx_do_enqueue_task()`, `direct_dispatch()`, `enqueue_task_scx()`,
//! `dequeue_task_scx()`, `ops_dequeue()`, `select_task_rq_scx()`, 7.3.

use super::DirectSlot;
use super::dsq::DsqId;
use super::entity::{DirectDispatch, ExtEntity, OpsState};
use super::exit::ExitKind;
use super::op::Op;
use super::stats::Ev;
use crate::bpf::abi;
use crate::bpf::flags::{deq, dsq_id, enq, ent, limit, ops, queue, slice, wake};
use crate::cpu::lock::LockId;
use crate::kernel::Kernel;
use crate::task::behavior::Policy;
use scxlab_machine::id::{CpuId, TaskId};

impl Kernel {
    /// Returns the part of a task's sched_ext state that BPF sees (`p->scx`).
    #[inline]
    pub(crate) fn scx(&mut self, task: TaskId) -> &mut abi::sched_ext_entity {
        let addr = self.tasks[task].addr;
        &mut self.vm.mem.own_mut::<abi::task_struct>(addr).scx
    }

    #[inline]
    pub(crate) fn scx_flag(&self, task: TaskId, flag: u32) -> bool {
        self.tasks[task].ext.flags & flag != 0
    }

    /// Sets the flags `set` and clears the flags `clear` in `p->scx.flags`.
    #[inline]
    pub(crate) fn change_flags(&mut self, task: TaskId, set: u32, clear: u32) {
        let (t, ts) = self.task_and_guest(task);
        t.ext.flags = t.ext.flags & !clear | set;
        ts.scx.flags = t.ext.flags;
    }

    /// Returns whether tasks of `policy` belong to sched_ext now.
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
    #[inline(always)]
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
        self.ext.cpus[here].in_select_cpu = true;
        let cpu = self.op_direct(Op::SelectCpu, None, task, &[u64::from(prev.0), flags]) as i32;
        self.ext.cpus[here].in_select_cpu = false;
        let chosen = self.ext_cpu(cpu).unwrap_or_else(|| self.bad_selection(cpu, prev));
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
            self.tasks[task].ext.inserted_by = None;
            self.set_ddsp(task, verdict);
        }
        self.scx(task).selected_cpu = cpu.0 as i32;
        cpu
    }

    /// Checks a CPU number from a program. Reports an error of the scheduler and returns None if
    /// there is no such CPU.
    #[inline]
    pub(crate) fn ext_cpu_valid(&mut self, cpu: i32, place: &str) -> Option<CpuId> {
        self.ext_cpu(cpu).or_else(|| self.invalid_cpu(cpu, place))
    }

    #[inline]
    fn ext_cpu(&self, cpu: i32) -> Option<CpuId> {
        (cpu >= 0 && (cpu as usize) < self.cpus.len()).then_some(CpuId(cpu as u32))
    }

    #[cold]
    #[inline(never)]
    fn bad_selection(&mut self, cpu: i32, prev: CpuId) -> CpuId {
        self.returned_error(Op::SelectCpu, &format!("invalid CPU {cpu} from ops.select_cpu()"));
        prev
    }

    #[cold]
    #[inline(never)]
    fn invalid_cpu(&mut self, cpu: i32, place: &str) -> Option<CpuId> {
        let space = if place.is_empty() { "" } else { " " };
        self.scx_error(format!("invalid CPU {cpu}{space}{place}"));
        None
    }

    pub(crate) fn slice_dfl(&self) -> u64 {
        self.ext.root.as_ref().map_or(slice::DFL, |s| s.slice_dfl)
    }

    /// `enqueue_task_scx()`: calls `ops.runnable` and enqueues the task, unless it is queued
    /// already.
    #[inline(always)]
    pub(crate) fn ext_enqueue(&mut self, cpu: CpuId, task: TaskId, core_flags: u64) {
        let t = &mut self.tasks[task];
        let (queued, on_cpu) = (t.ext.flags & ent::QUEUED != 0, t.on_cpu);
        let mut sticky = t.ext.sticky_cpu.take();
        let mut flags = core_flags | self.ext.remote_activate_flags;
        if core_flags & queue::WAKEUP != 0 {
            self.ext.cpus[cpu].in_wakeup = true;
        }
        if flags & queue::RESTORE != 0 && on_cpu {
            sticky = Some(cpu);
            flags |= enq::IGNORE_CAPS;
        }
        if core_flags & queue::RQ_SELECTED != 0 {
            flags |= enq::CPU_SELECTED;
        }
        if !queued {
            self.set_runnable(task, ent::QUEUED);
            self.ext.cpus[cpu].nr_running += 1;
            self.ext.nr_queued += 1;
            if self.ext.has_op(Op::Runnable) && self.tasks.migrating != Some(task) {
                self.op_task(Op::Runnable, Some(cpu), task, &[flags]);
            }
            self.ext_do_enqueue(cpu, task, flags, sticky);
        }
        self.ext.cpus[cpu].in_wakeup = false;
        if flags & enq::CPU_SELECTED != 0 && self.scx(task).selected_cpu != cpu.0 as i32 {
            self.ext.count(Ev::SelectCpuFallback, 1);
        }
    }

    /// `scx_do_enqueue_task()`: finds out, with the kernel's checks in the kernel's order, whether
    /// the task goes to a local, bypass or global DSQ, is dispatched directly, or is given to
    /// `ops.enqueue`.
    pub(crate) fn ext_do_enqueue(
        &mut self,
        cpu: CpuId,
        task: TaskId,
        flags: u64,
        sticky: Option<CpuId>,
    ) {
        if sticky == Some(cpu) {
            if self.tasks.migrating != Some(task) {
                self.tasks[task].ext.inserted_by = None;
            }
            let local = self.ext.dsqs.local(cpu);
            self.dsq_insert(cpu, local, task, None, flags);
            return;
        }
        let t = &self.tasks[task];
        let (verdict, exiting) = (t.ext.ddsp.is_set(), t.exiting);
        if t.ext.flags & ent::IMMED != 0 {
            self.change_flags(task, 0, ent::IMMED);
        }
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
        if verdict {
            return self.direct_dispatch(cpu, task, flags);
        }
        if exiting && self.ext.flags() & ops::ENQ_EXITING == 0 {
            self.ext.count(Ev::EnqSkipExiting, 1);
            return self.insert_refilled(cpu, self.ext.dsqs.local(cpu), task, flags);
        }
        if !self.ext.has_op(Op::Enqueue) {
            let global = self.global_dsq_of(task);
            return self.insert_refilled(cpu, global, task, flags);
        }
        self.ask_enqueue(cpu, task, flags);
    }

    #[inline(always)]
    fn ask_enqueue(&mut self, cpu: CpuId, task: TaskId, flags: u64) {
        let e = &mut self.tasks[task].ext;
        e.qseq += 1;
        let qseq = e.qseq;
        e.ops_state = OpsState::Queueing;
        self.op_direct(Op::Enqueue, Some(cpu), task, &[flags & !enq::INTERNAL_MASK]);
        let (t, guest) = self.task_and_guest(task);
        if t.ext.ddsp.is_set() {
            return self.direct_dispatch(cpu, task, flags);
        }
        t.ext.ops_state = OpsState::Queued { qseq };
        t.ext.flags |= ent::IN_CUSTODY;
        guest.scx.flags = t.ext.flags;
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
        self.with_verdict_of(task, |k| k.ext_exit(ExitKind::ErrorReenq, 0, &text));
        true
    }

    /// Inserts a task with a new default slice, when the kernel queues it without asking the
    /// scheduler.
    fn insert_refilled(&mut self, cpu: CpuId, dsq: DsqId, task: TaskId, flags: u64) {
        self.refill_slice(task);
        self.clear_ddsp(task);
        self.tasks[task].ext.inserted_by = None;
        self.dsq_insert(cpu, dsq, task, None, flags);
    }

    pub(crate) fn refill_slice(&mut self, task: TaskId) {
        let slice = self.slice_dfl();
        self.scx(task).slice = slice;
        self.ext.count(Ev::RefillSliceDfl, 1);
    }

    /// Returns the global DSQ of the node of the task's CPU.
    pub(crate) fn global_dsq_of(&self, task: TaskId) -> DsqId {
        self.global_dsq(self.tasks[task].cpu)
    }

    pub(crate) fn global_dsq(&self, cpu: CpuId) -> DsqId {
        self.ext.dsqs.global(self.machine.topology.cpu(cpu).node.0)
    }

    pub(crate) fn ext_cpu_online(&self, cpu: CpuId) -> bool {
        self.cpus[cpu].online
    }

    /// `mark_direct_dispatch()`: keeps an insertion by `ops.select_cpu` or `ops.enqueue` as the
    /// task's verdict. It is an error of the scheduler to insert another task, or to insert twice.
    pub(crate) fn mark_direct_dispatch(
        &mut self,
        open: DirectSlot,
        task: TaskId,
        verdict: DirectDispatch,
    ) {
        self.ext.direct = DirectSlot::Used;
        if open == DirectSlot::Open(task) {
            self.tasks[task].ext.inserted_by = self.ext_live_caller();
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

    /// Carries out the direct dispatch that `ops.select_cpu` or `ops.enqueue` requested.
    #[inline(always)]
    fn direct_dispatch(&mut self, cpu: CpuId, task: TaskId, flags: u64) {
        let t = &self.tasks[task];
        let (mut verdict, task_cpu) = (t.ext.ddsp, t.cpu);
        let outer = self.begin_verdict_of(task);
        let dsq = self.dsq_for_dispatch(cpu, verdict.dsq_id, task_cpu);
        verdict.enq_flags |= flags;
        let remote = self.ext.dsqs.local_cpu(dsq).is_some_and(|target| target != cpu);
        if remote {
            self.set_ddsp(task, verdict);
            self.tasks[task].ext.ops_state = OpsState::None;
            self.ext.cpus[cpu].ddsp_deferred.push_back(task);
            self.schedule_deferred_locked(cpu);
        } else {
            self.set_ddsp(task, DirectDispatch::default());
            let flags = verdict.enq_flags | enq::CLEAR_OPSS;
            self.dsq_insert(cpu, dsq, task, Some((verdict.slice, verdict.vtime)), flags);
        }
        self.ext.deferred_verdict = outer;
    }

    /// Clears the task's pending direct-dispatch verdict, if there is one.
    #[inline]
    fn clear_ddsp(&mut self, task: TaskId) {
        if self.tasks[task].ext.ddsp.is_set() {
            self.set_ddsp(task, DirectDispatch::default());
        }
    }

    /// Sets the task's pending direct-dispatch verdict, in the private state and in the fields that
    /// programs see.
    #[inline(always)]
    pub(crate) fn set_ddsp(&mut self, task: TaskId, verdict: DirectDispatch) {
        let (t, guest) = self.task_and_guest(task);
        let old = std::mem::replace(&mut t.ext.ddsp, verdict);
        if old.is_set() || verdict.is_set() {
            let e = &mut guest.scx;
            e.ddsp_dsq_id = verdict.dsq_id;
            e.ddsp_slice = verdict.slice;
            e.ddsp_vtime = verdict.vtime;
            e.ddsp_enq_flags = verdict.enq_flags;
        }
    }

    /// `ops_dequeue()`: ends the task's wait, and the scheduler's custody of it.
    pub(crate) fn ext_ops_dequeue(&mut self, rq: CpuId, task: TaskId, deq_flags: u64) {
        let e = &mut self.tasks[task].ext;
        e.runnable_seq = None;
        e.ops_state = OpsState::None;
        if e.in_custody() {
            self.end_custody(rq, task, deq_flags);
        }
    }

    /// `dequeue_task_scx()`. Returns false, because sched_ext never delays a dequeue.
    #[inline(always)]
    pub(crate) fn ext_dequeue(&mut self, cpu: CpuId, task: TaskId, core_flags: u64) -> bool {
        let mut flags = core_flags;
        if flags & queue::SLEEP == 0 {
            flags |= deq::SCHED_CHANGE;
        }
        let t = &self.tasks[task];
        let on_cpu = t.on_cpu;
        if t.ext.flags & ent::QUEUED == 0 {
            return false;
        }
        self.ext_ops_dequeue(cpu, task, flags);
        if on_cpu && self.ext.has_op(Op::Stopping) {
            self.ext_update_curr(cpu);
            self.op_task(Op::Stopping, Some(cpu), task, &[0]);
        }
        if self.ext.has_op(Op::Quiescent) && self.tasks.migrating != Some(task) {
            self.op_task(Op::Quiescent, Some(cpu), task, &[flags]);
        }
        let slept = if flags & deq::SLEEP != 0 { ent::DEQD_FOR_SLEEP } else { 0 };
        self.change_flags(task, slept, ent::DEQD_FOR_SLEEP | ent::QUEUED);
        self.ext.cpus[cpu].nr_running -= 1;
        self.ext.nr_queued -= 1;
        let e = &self.tasks[task].ext;
        if e.dsq.is_some() || e.ddsp.is_set() {
            self.dispatch_dequeue(task);
            self.clear_ddsp(task);
        }
        false
    }

    /// `scx_dispatch_dequeue()`: takes the task off its DSQ, or off the list of deferred direct
    /// dispatches.
    #[inline(always)]
    pub(crate) fn dispatch_dequeue(&mut self, task: TaskId) {
        let t = &mut self.tasks[task];
        match t.ext.dsq {
            Some(dsq) if self.ext.dsqs.local_cpu(dsq).is_some() => {
                t.ext.unlink(&mut self.ext.dsqs);
            }
            Some(dsq) => {
                self.lock(LockId::Dsq(dsq));
                self.dsq_unlink(task);
                self.unlock(LockId::Dsq(dsq));
            }
            None if t.ext.ddsp.is_set() => {
                self.ext.cpus[t.cpu].ddsp_deferred.retain(|&t| t != task);
            }
            None => {}
        }
    }

    /// `set_task_runnable()`: appends the task to the list of runnable tasks. Also sets the flags
    /// `more` in `p->scx.flags`.
    #[inline(always)]
    pub(crate) fn set_runnable(&mut self, task: TaskId, more: u32) {
        self.ext.runnable_count += 1;
        let (jiffies, arrival) = (self.jiffies(), self.ext.runnable_count);
        let (t, ts) = self.task_and_guest(task);
        t.ext.runnable_seq = Some(arrival);
        if t.ext.flags & ent::RESET_RUNNABLE_AT != 0 {
            ts.scx.runnable_at = jiffies;
        }
        t.ext.flags = t.ext.flags & !ent::RESET_RUNNABLE_AT | more;
        ts.scx.flags = t.ext.flags;
    }

    /// `scx_set_task_slice()`: sets the task's slice. If a program has set a slice without the run
    /// queue's lock, and the kernel has not applied it yet, drops that slice.
    pub(crate) fn set_slice(&mut self, task: TaskId, slice: u64) {
        let (t, ts) = self.task_and_guest(task);
        ts.scx.slice = slice;
        t.ext.slice_oob = None;
    }

    /// `update_curr_scx()`: charges CPU time to the current task and subtracts it from the slice.
    // Not inlined, so that all callers share one copy: see "instructions" in
    // docs/internals/performance.md.
    #[inline(never)]
    pub(crate) fn ext_update_curr(&mut self, cpu: CpuId) {
        let at = self.clock();
        let Kernel { cpus, tasks, vm, cgroups, .. } = self;
        let c = &mut cpus[cpu];
        let t = &mut tasks[c.curr];
        let ts: &mut abi::task_struct = vm.mem.own_mut(t.addr);
        apply_slice_oob(&mut t.ext, ts);
        let delta = c.charge(t, ts, cgroups, at);
        if delta != 0 && ts.scx.slice != slice::INF {
            ts.scx.slice = ts.scx.slice.saturating_sub(delta);
        }
        self.server_update(cpu, delta);
    }

    /// `set_next_task_scx()`: takes the task off its DSQ, because the CPU switches to it, and calls
    /// `ops.running`.
    #[inline(always)]
    pub(crate) fn ext_set_next(&mut self, cpu: CpuId, task: TaskId) {
        if self.scx_flag(task, ent::QUEUED) {
            self.ext_ops_dequeue(cpu, task, deq::CORE_SCHED_EXEC);
            self.dispatch_dequeue(task);
            if self.ext.has_op(Op::Running) && self.scx_flag(task, ent::QUEUED) {
                self.op_task(Op::Running, Some(cpu), task, &[]);
            }
        }
        let (t, ts) = self.task_and_guest(task);
        t.ext.runnable_seq = None;
        t.ext.reenq_count = 0;
        apply_slice_oob(&mut t.ext, ts);
        t.ext.flags |= ent::RESET_RUNNABLE_AT;
        ts.scx.flags = t.ext.flags;
        let infinite = ts.scx.slice == slice::INF;
        self.ext.cpus[cpu].can_stop_tick = infinite;
    }
}

/// Applies a slice that a program set without the run queue's lock.
#[inline]
fn apply_slice_oob(e: &mut ExtEntity, guest: &mut abi::task_struct) {
    if let Some(slice) = e.slice_oob.take() {
        guest.scx.slice = slice;
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! Insertion of tasks into a DSQ and their removal: the task's position, the slice that the
//! insertion sets, and whether the scheduler has custody of the task.
//!
//! Owns: the code that puts a task on a DSQ or takes it off. Does not: choose the DSQ (see
//! `enqueue.rs`, `dispatch.rs`).
//! Models: kernel `scx_dispatch_enqueue()`, `find_dsq_for_dispatch()`, `task_leave_custody()`, 7.3.

use super::dsq::{DsqId, DsqKind, DsqTable, InsertAt};
use super::entity::{ExtEntity, OpsState};
use super::op::Op;
use crate::bpf::abi;
use crate::bpf::flags::{dsq_id, enq, ent};
use crate::cpu::lock::LockId;
use crate::kernel::Kernel;
use scxlab_machine::id::{CpuId, TaskId};
use scxlab_trace::event::EventKind;

impl Kernel {
    /// `find_dsq_for_dispatch()`: returns the DSQ that a program names by `id`. If there is none,
    /// reports an error of the scheduler and returns a global DSQ.
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
        self.ext.dsqs.user(id).unwrap_or_else(|| self.no_such_dsq(id, task_cpu))
    }

    #[cold]
    #[inline(never)]
    fn no_such_dsq(&mut self, id: u64, task_cpu: CpuId) -> DsqId {
        self.scx_error(format!("non-existent DSQ {id:#x}"));
        self.global_dsq(task_cpu)
    }

    /// `scx_dispatch_enqueue()`: inserts a task into a DSQ. `rq` is the run queue that the caller
    /// has locked.
    pub(crate) fn dsq_insert(
        &mut self,
        rq: CpuId,
        mut dsq: DsqId,
        task: TaskId,
        slice_vtime: Option<(u64, u64)>,
        mut flags: u64,
    ) {
        if let Some(cpu) = self.ext.dsqs.local_cpu(dsq) {
            flags = self.dsq_link(dsq, task, slice_vtime, flags);
            self.local_post_enqueue(cpu, dsq, task, flags);
        } else {
            if let DsqKind::Gone { .. } = self.ext.dsqs.get(dsq).kind {
                self.scx_error("attempting to dispatch to a destroyed dsq");
                dsq = self.global_dsq_of(task);
            }
            self.lock(LockId::Dsq(dsq));
            flags = self.dsq_link(dsq, task, slice_vtime, flags);
            self.unlock(LockId::Dsq(dsq));
            self.queue_post_enqueue(rq, dsq, task);
        }
        if flags & enq::CLEAR_OPSS != 0 {
            self.tasks[task].ext.ops_state = OpsState::None;
        }
    }

    /// Sets the task's slice and vtime if they are given, and links the task into the DSQ. Returns
    /// the enqueue flags that apply, without SCX_ENQ_DSQ_PRIQ if the DSQ does not allow it.
    // Not inlined, so that all callers share one copy: see "instructions" in
    // docs/internals/performance.md.
    #[inline(never)]
    fn dsq_link(
        &mut self,
        dsq: DsqId,
        task: TaskId,
        slice_vtime: Option<(u64, u64)>,
        mut flags: u64,
    ) -> u64 {
        if flags & enq::DSQ_PRIQ != 0 && self.ext.dsqs.is_builtin(dsq) {
            self.scx_error("cannot use vtime ordering for built-in DSQs");
            flags &= !enq::DSQ_PRIQ;
        }
        self.charge(self.machine.costs.kfunc.dsq_insert_ns);
        self.dsq_changes(dsq);
        let Kernel { tasks, vm, ext, .. } = self;
        let t = &mut tasks[task];
        assert!(t.ext.dsq.is_none(), "task {task} is on a DSQ already");
        let guest = &mut vm.mem.own_mut::<abi::task_struct>(t.addr).scx;
        let priq = flags & enq::DSQ_PRIQ != 0;
        if let Some((slice, vtime)) = slice_vtime {
            apply_slice_vtime(&mut t.ext, guest, slice, vtime, flags);
        }
        let q = ext.dsqs.get_mut(dsq);
        let mixed = if priq { q.has_fifo() } else { q.has_priq() };
        let place = match flags {
            _ if priq => InsertAt::Vtime(guest.dsq_vtime),
            f if f & (enq::HEAD | enq::PREEMPT) != 0 => InsertAt::Head,
            _ => InsertAt::Tail,
        };
        t.ext.dsq_key = q.insert(task, place);
        (t.ext.dsq, t.ext.on_priq) = (Some(dsq), priq);
        if mixed {
            let id = q.user_visible_id();
            self.mixed_error(id, priq);
        }
        let id = self.ext.dsqs.traced_id(dsq);
        self.trace(EventKind::DsqInsert { task, dsq: id, flags });
        flags
    }

    #[cold]
    fn mixed_error(&mut self, id: u64, priq: bool) {
        let other = if priq { "FIFO" } else { "PRIQ" };
        self.scx_error(format!("DSQ ID {id:#018x} already had {other}-enqueued tasks"));
    }

    /// Makes machine code forget what it knows of a DSQ that gets or loses a task, or is destroyed.
    #[inline(always)]
    pub(super) fn dsq_changes(&mut self, dsq: DsqId) {
        if self.ext.dsqs.get(dsq).noted {
            self.forget_dsq(dsq);
        }
    }

    #[inline(never)]
    fn forget_dsq(&mut self, dsq: DsqId) {
        let q = self.ext.dsqs.get_mut(dsq);
        q.noted = false;
        self.vm.forget_dsq(q.user_visible_id());
    }

    /// Takes the task off its DSQ.
    pub(crate) fn dsq_unlink(&mut self, task: TaskId) {
        if let Some(dsq) = self.tasks[task].ext.dsq {
            self.dsq_changes(dsq);
        }
        self.tasks[task].ext.unlink(&mut self.ext.dsqs);
    }

    /// `dsq_inc_nr()` of a local DSQ: counts an IMMED task, and schedules a re-enqueue if the task
    /// cannot run at once.
    #[cold]
    fn count_immed(&mut self, cpu: CpuId, dsq: DsqId, task: TaskId, flags: u64) {
        self.change_flags(task, ent::IMMED, 0);
        let q = self.ext.dsqs.get_mut(dsq);
        q.nr_immed += 1;
        if q.len() > 1 || !self.rq_is_open(cpu, flags) {
            self.schedule_reenq_local(cpu, 0);
        }
    }

    /// `rq_is_open()`: returns whether a task that is put on the CPU's local DSQ would run without
    /// delay.
    pub(crate) fn rq_is_open(&self, cpu: CpuId, flags: u64) -> bool {
        use crate::task::Class;
        let next = self.cpus[cpu].next_class;
        if next > Class::Ext {
            return false;
        }
        next < Class::Ext || self.ext.cpus[cpu].in_dispatch || flags & enq::PREEMPT != 0
    }

    /// Completes an insertion into a local DSQ: ends the scheduler's custody of the task, and
    /// reschedules the CPU if needed.
    fn local_post_enqueue(&mut self, cpu: CpuId, dsq: DsqId, task: TaskId, flags: u64) {
        use crate::task::Class;
        let t = &self.tasks[task];
        let (class, custody) = (t.class, t.ext.in_custody());
        if flags & enq::IMMED != 0 || t.ext.flags & ent::IMMED != 0 {
            self.count_immed(cpu, dsq, task, flags);
        }
        if custody {
            self.end_custody(cpu, task, 0);
        }
        if class > self.cpus[cpu].next_class {
            self.wakeup_preempt(cpu, task, 0);
        }
        if self.ext.cpus[cpu].in_dispatch || flags & enq::PREEMPT == 0 {
            return;
        }
        let curr = self.cpus[cpu].curr;
        if curr != task && self.tasks[curr].class == Class::Ext {
            self.set_slice(curr, 0);
            self.resched(cpu);
        }
    }

    /// Completes an insertion into a DSQ that is not local. A task on a user DSQ is in the
    /// scheduler's custody.
    fn queue_post_enqueue(&mut self, rq: CpuId, dsq: DsqId, task: TaskId) {
        if self.ext.dsqs.is_builtin(dsq) {
            self.leave_custody(rq, task, 0);
        } else {
            self.change_flags(task, ent::IN_CUSTODY, 0);
        }
    }

    /// `task_leave_custody()`: ends the scheduler's custody of the task, if it has any, and calls
    /// `ops.dequeue`.
    #[inline]
    pub(super) fn leave_custody(&mut self, rq: CpuId, task: TaskId, deq_flags: u64) {
        if self.tasks[task].ext.in_custody() {
            self.end_custody(rq, task, deq_flags);
        }
    }

    pub(super) fn end_custody(&mut self, rq: CpuId, task: TaskId, deq_flags: u64) {
        self.change_flags(task, 0, ent::IN_CUSTODY);
        if self.ext.has_op(Op::Dequeue) {
            self.op_task(Op::Dequeue, Some(rq), task, &[deq_flags]);
        }
    }
}

impl ExtEntity {
    /// Returns whether the task is in the scheduler's custody, and the kernel is not just moving
    /// the task to another CPU.
    #[inline]
    pub(super) fn in_custody(&self) -> bool {
        self.flags & ent::IN_CUSTODY != 0 && self.sticky_cpu.is_none()
    }

    /// Takes the task off its DSQ, if it is on one.
    #[inline]
    pub(super) fn unlink(&mut self, dsqs: &mut DsqTable) {
        let Some(dsq) = self.dsq.take() else { return };
        let local = dsqs.local_cpu(dsq).is_some();
        let q = dsqs.get_mut(dsq);
        q.remove(self.dsq_key, self.on_priq);
        if local && self.flags & ent::IMMED != 0 {
            q.nr_immed = q.nr_immed.saturating_sub(1);
        }
    }
}

/// Applies the slice and the vtime that a program gave with an insertion.
#[inline]
fn apply_slice_vtime(
    e: &mut ExtEntity,
    guest: &mut abi::sched_ext_entity,
    slice: u64,
    vtime: u64,
    flags: u64,
) {
    if slice != 0 {
        guest.slice = slice;
        if flags & enq::SLICE_DFL == 0 {
            e.slice_oob = None;
        }
    } else if guest.slice == 0 {
        guest.slice = 1;
    }
    if flags & enq::DSQ_PRIQ != 0 {
        guest.dsq_vtime = vtime;
    }
}

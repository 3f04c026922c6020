// SPDX-License-Identifier: GPL-2.0-only
//! Work that the kernel defers until it holds no run queue lock: direct dispatches to other CPUs,
//! and re-enqueueing.
//!
//! Models: kernel `run_deferred()`, `process_ddsp_deferred_locals()`, `reenq_local()`,
//! `reenq_user()`, `schedule_deferred_locked()`, 7.3.

use super::DirectDispatchArgs;
use super::dsq::{DsqId, DsqKind};
use super::entity::DirectDispatch;
use super::stats::Ev;
use crate::bpf::flags::{enq, ent, reenq};
use crate::cpu::lock::LockId;
use crate::kernel::Kernel;
use crate::kernel::event::Event;
use scxlab_machine::id::{CpuId, TaskId};

impl Kernel {
    /// Makes sure that `ext_run_deferred` runs soon: at the end of the wake-up or the pass through
    /// the scheduler that is in progress, else in an irq_work.
    pub(crate) fn schedule_deferred_locked(&mut self, cpu: CpuId) {
        let pcpu = &mut self.ext.cpus[cpu];
        if pcpu.in_wakeup || pcpu.balance_pending {
            return;
        }
        if pcpu.in_dispatch {
            pcpu.balance_pending = true;
            return;
        }
        self.schedule_deferred(cpu);
    }

    fn schedule_deferred(&mut self, cpu: CpuId) {
        let at = self.clock();
        if !std::mem::replace(&mut self.ext.cpus[cpu].deferred_posted, true) {
            self.push_wakeup(at, Event::ExtDeferred { cpu });
        }
    }

    pub(crate) fn ext_deferred_work(&mut self, cpu: CpuId) {
        self.end.pending_wakeups -= 1;
        self.ext.cpus[cpu].deferred_posted = false;
        self.ext_run_deferred(cpu);
    }

    /// Does the work that a pass through the scheduler left: deferred work, and the wait of
    /// SCX_KICK_WAIT.
    pub(crate) fn ext_after_schedule(&mut self, cpu: CpuId) {
        let c = &mut self.ext.cpus[cpu];
        let mut waits = !c.sync_pending.is_empty();
        if std::mem::take(&mut c.balance_pending) {
            self.ext_run_deferred(cpu);
            waits = !self.ext.cpus[cpu].sync_pending.is_empty();
        }
        if waits {
            self.ext_wait_for_kicked(cpu);
        }
    }

    /// `run_deferred()`: carries out the direct dispatches and re-enqueues that `cpu` has deferred.
    #[inline(always)]
    pub(crate) fn ext_run_deferred(&mut self, cpu: CpuId) {
        let c = &self.ext.cpus[cpu];
        let reenq = c.reenq_local.is_some() || !c.reenq_users.is_empty();
        if reenq || !c.ddsp_deferred.is_empty() {
            self.run_deferred(cpu);
        }
    }

    #[inline(never)]
    fn run_deferred(&mut self, cpu: CpuId) {
        if !self.ext.cpus[cpu].ddsp_deferred.is_empty() {
            self.lock(LockId::Rq(cpu));
            while let Some(task) = self.ext.cpus[cpu].ddsp_deferred.pop_front() {
                self.deferred_verdict(cpu, task);
            }
            self.unlock(LockId::Rq(cpu));
        }
        if let Some(flags) = self.ext.cpus[cpu].reenq_local.take() {
            self.reenq_local(cpu, flags);
        }
        if !self.ext.cpus[cpu].reenq_users.is_empty() {
            for (dsq, flags) in std::mem::take(&mut self.ext.cpus[cpu].reenq_users) {
                self.reenq_user(dsq, flags);
            }
        }
    }

    fn deferred_verdict(&mut self, cpu: CpuId, task: TaskId) {
        let verdict = self.tasks[task].ext.ddsp;
        self.set_ddsp(task, Default::default());
        self.with_verdict_of(task, |k| k.dispatch_verdict(cpu, task, verdict));
    }

    fn dispatch_verdict(&mut self, cpu: CpuId, task: TaskId, verdict: DirectDispatch) {
        let dsq = self.dsq_for_dispatch(cpu, verdict.dsq_id, self.tasks[task].cpu);
        let args = DirectDispatchArgs {
            slice: verdict.slice,
            vtime: verdict.vtime,
            flags: verdict.enq_flags,
        };
        // Only verdicts for local DSQs are deferred. If `dsq` is not local, `dsq_for_dispatch` has
        // reported an error, with which the scheduler exits.
        if let Some(dst) = self.ext.dsqs.local_cpu(dsq) {
            self.dispatch_to_local(cpu, dst, task, args);
        }
    }

    /// Schedules a re-enqueue of IMMED tasks when a higher class takes the CPU, because they cannot
    /// run there at once.
    pub(crate) fn ext_preempted_by_class(&mut self, cpu: CpuId) {
        if self.ext.dsqs.get(self.ext.dsqs.local(cpu)).nr_immed > 0 {
            self.schedule_reenq_local(cpu, 0);
        }
    }

    /// `scx_schedule_reenq_local()`: requests that tasks of the CPU's local DSQ are enqueued again
    /// soon: all of them with SCX_REENQ_ANY, else only IMMED tasks.
    pub(crate) fn schedule_reenq_local(&mut self, cpu: CpuId, flags: u64) {
        if self.ext.root.as_ref().is_none_or(|s| s.bypass_depth > 0) || !self.cpus.is_online(cpu) {
            return;
        }
        let pending = &mut self.ext.cpus[cpu].reenq_local;
        *pending = Some(pending.unwrap_or(0) | flags);
        self.schedule_deferred_locked(cpu);
    }

    /// `schedule_dsq_reenq()`: requests that tasks of a DSQ, which a program named, are enqueued
    /// again soon.
    pub(crate) fn schedule_reenq(&mut self, dsq: DsqId, flags: u64) {
        match self.ext.dsqs.get(dsq).kind {
            DsqKind::Local(cpu) => self.schedule_reenq_local(cpu, flags),
            DsqKind::User { .. } => {
                if self.ext.root.as_ref().is_none_or(|s| s.bypass_depth > 0) {
                    return;
                }
                let cpu = self.exec.cpu;
                self.ext.cpus[cpu].reenq_users.push((dsq, flags));
                self.schedule_deferred_locked(cpu);
            }
            _ => {
                let id = self.ext.dsqs.get(dsq).user_visible_id();
                self.scx_error(format!("DSQ {id:#x} not allowed for reenq"));
            }
        }
    }

    /// `reenq_local()`: enqueues tasks of the CPU's local DSQ again; returns the number of tasks
    /// that went back to the scheduler.
    pub(crate) fn reenq_local(&mut self, cpu: CpuId, flags: u64) -> u32 {
        let local = self.ext.dsqs.local(cpu);
        let open = self.rq_is_open(cpu, 0);
        let queued: Vec<TaskId> = self.ext.dsqs.get(local).iter().collect();
        let mut back = Vec::new();
        for (nth, task) in queued.into_iter().enumerate() {
            let immed = self.scx_flag(task, ent::IMMED) && !(nth == 0 && open);
            if !immed && flags & reenq::ANY == 0 {
                continue;
            }
            if immed {
                self.ext.count(Ev::ReenqImmed, 1);
            }
            self.dsq_unlink(task);
            let why = if immed { ent::REENQ_IMMED } else { ent::REENQ_KFUNC };
            self.change_flags(task, why, 0);
            back.push(task);
        }
        back.iter().for_each(|&task| self.reenq_task(cpu, task));
        back.len() as u32
    }

    fn reenq_user(&mut self, dsq: DsqId, flags: u64) {
        if flags & reenq::ANY == 0 || matches!(self.ext.dsqs.get(dsq).kind, DsqKind::Gone { .. }) {
            return;
        }
        let queued: Vec<TaskId> = self.ext.dsqs.get(dsq).iter().collect();
        for task in queued {
            if self.tasks.get(task).is_none_or(|t| t.ext.dsq != Some(dsq)) {
                continue;
            }
            self.dispatch_dequeue(task);
            self.change_flags(task, ent::REENQ_KFUNC, 0);
            let cpu = self.tasks[task].cpu;
            self.reenq_task(cpu, task);
        }
    }

    fn reenq_task(&mut self, cpu: CpuId, task: TaskId) {
        self.ext_do_enqueue(cpu, task, enq::REENQ, None);
        self.change_flags(task, 0, ent::REENQ_REASON_MASK);
    }
}

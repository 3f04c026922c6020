// SPDX-License-Identifier: GPL-2.0-only
//! The life cycle of a task under a loaded scheduler: init_task, enable, set_weight, disable,
//! exit_task.
//!
//! Models: kernel `scx_fork()`, `scx_post_fork()`, `__scx_init_task()`, `__scx_enable_task()`,
//! `scx_disable_task()`, `sched_ext_dead()`, `reweight_task_scx()`, `switching_to_scx()`,
//! `switched_from_scx()`, 7.3.

use super::EnableState;
use super::entity::{DirectDispatch, TaskPhase};
use super::op::Op;
use crate::bpf::flags::{ent, slice};
use crate::kernel::Kernel;
use crate::task::behavior::{Policy, SysError};
use crate::task::{Class, weight_to_cgroup};
use scxlab_machine::id::TaskId;

impl Kernel {
    /// `init_scx_entity()`: gives a new task a task id, the default slice and a `runnable_at`.
    pub(crate) fn ext_init_entity(&mut self, task: TaskId) {
        self.ext.next_tid += 1;
        self.tasks[task].ext.tid = self.ext.next_tid;
        let (jiffies, tid) = (self.jiffies(), self.ext.next_tid);
        let e = self.scx(task);
        e.slice = slice::DFL;
        e.runnable_at = jiffies;
        e.tid = tid;
    }

    fn set_phase(&mut self, task: TaskId, phase: TaskPhase) {
        self.tasks[task].ext.phase = phase;
        self.change_flags(task, (phase as u32) << ent::STATE_SHIFT, ent::STATE_MASK);
    }

    /// `scx_fork()`: calls `ops.init_task` for a new task, which the scheduler may refuse.
    pub(crate) fn ext_fork(&mut self, task: TaskId) -> Result<(), SysError> {
        if !self.ext.init_task_enabled {
            return Ok(());
        }
        let ret = self.ext_init_task(task, true);
        if ret != 0 {
            return Err(SysError::Refused(-ret));
        }
        self.set_phase(task, TaskPhase::Init);
        Ok(())
    }

    /// `scx_post_fork()`: makes a new task ready for the scheduler, and enables it if its class is
    /// sched_ext.
    pub(crate) fn ext_post_fork(&mut self, task: TaskId) {
        if !self.ext.init_task_enabled {
            return;
        }
        self.set_phase(task, TaskPhase::Ready);
        if self.tasks[task].class == Class::Ext {
            self.ext_enable_task(task);
        }
    }

    /// `__scx_init_task()`: calls `ops.init_task`, and honours `scx.disallow`; returns 0 or a
    /// negative errno.
    fn ext_init_task(&mut self, task: TaskId, fork: bool) -> i32 {
        self.scx(task).disallow = 0;
        if self.ext.has_op(Op::InitTask) {
            let args = self.scratch_init_task_args(task, fork);
            let ret = self.op_task(Op::InitTask, None, task, &[args]);
            if ret as i32 != 0 {
                return self.sanitize_err(Op::InitTask, ret);
            }
        }
        if self.scx(task).disallow != 0 {
            self.honour_disallow(task, fork);
        }
        0
    }

    fn honour_disallow(&mut self, task: TaskId, fork: bool) {
        let (name, pid) = (self.tasks[task].name.clone(), self.tasks[task].pid);
        let where_ = match (fork, self.ext.state) {
            (true, _) => "during fork",
            (false, EnableState::Enabling) => {
                if self.tasks[task].policy == Policy::Ext {
                    self.tasks[task].policy = Policy::Normal;
                    self.ext.nr_rejected += 1;
                    crate::bpf::mirror::identity(&mut self.vm.mem, &self.tasks[task]);
                }
                return;
            }
            _ => "outside the enable path",
        };
        let text = format!("ops.init_task() set task->scx.disallow for {name}[{pid}] {where_}");
        self.returned_error(Op::InitTask, &text);
    }

    /// Initialises a task that exists while a scheduler is being loaded.
    pub(crate) fn ext_init_existing(&mut self, task: TaskId) -> Result<(), i32> {
        let ret = self.ext_init_task(task, false);
        if ret != 0 {
            return Err(ret);
        }
        self.set_phase(task, TaskPhase::Ready);
        Ok(())
    }

    /// `scx_enable_task()`: calls `ops.enable` and `ops.set_weight` for a task that joins
    /// sched_ext.
    pub(crate) fn ext_enable_task(&mut self, task: TaskId) {
        let weight = weight_to_cgroup(self.tasks[task].load_weight());
        self.scx(task).weight = weight;
        let cpu = self.tasks[task].cpu;
        if self.ext.has_op(Op::Enable) {
            self.op_task(Op::Enable, Some(cpu), task, &[]);
        }
        if self.ext.has_op(Op::SetWeight) {
            self.op_task(Op::SetWeight, Some(cpu), task, &[u64::from(weight)]);
        }
        self.set_phase(task, TaskPhase::Enabled);
    }

    fn ext_disable_task(&mut self, task: TaskId) {
        self.set_ddsp(task, DirectDispatch::default());
        let cpu = self.tasks[task].cpu;
        if self.ext.has_op(Op::Disable) {
            self.op_task(Op::Disable, Some(cpu), task, &[]);
        }
        self.set_phase(task, TaskPhase::Ready);
        self.set_slice(task, 0);
        self.tasks[task].ext.reenq_count = 0;
        self.scx(task).dsq_vtime = 0;
        self.change_flags(task, ent::RESET_RUNNABLE_AT, 0);
    }

    /// `scx_disable_and_exit_task()`: calls `ops.disable` if the task is enabled, and then
    /// `ops.exit_task`.
    pub(crate) fn ext_exit_task(&mut self, task: TaskId) {
        let cancelled = match self.tasks[task].ext.phase {
            TaskPhase::None | TaskPhase::Dead => return,
            TaskPhase::Init => true,
            TaskPhase::Ready => false,
            TaskPhase::Enabled => {
                self.ext_disable_task(task);
                false
            }
        };
        if self.ext.has_op(Op::ExitTask) {
            let cpu = self.tasks[task].cpu;
            let args = self.scratch_exit_task_args(cancelled);
            self.op_task(Op::ExitTask, Some(cpu), task, &[args]);
        }
        self.set_phase(task, TaskPhase::None);
    }

    /// `sched_ext_dead()`: calls `ops.disable` and `ops.exit_task`, as far as they are due, for a
    /// dead task.
    pub(crate) fn ext_dead(&mut self, task: TaskId) {
        if self.tasks[task].ext.phase != TaskPhase::None {
            self.ext_exit_task(task);
            self.set_phase(task, TaskPhase::Dead);
        }
    }

    /// `reweight_task_scx()`: calls `ops.set_weight`, because the task's weight may have changed.
    pub(crate) fn ext_reweight(&mut self, task: TaskId) {
        if self.tasks[task].ext.phase != TaskPhase::Enabled {
            return;
        }
        let weight = weight_to_cgroup(self.tasks[task].load_weight());
        self.scx(task).weight = weight;
        if self.ext.has_op(Op::SetWeight) {
            let cpu = self.tasks[task].cpu;
            self.op_task(Op::SetWeight, Some(cpu), task, &[u64::from(weight)]);
        }
    }

    /// `set_cpus_allowed_scx()`: calls `ops.set_cpumask` with the task's new affinity, which the
    /// caller has already set.
    pub(crate) fn ext_set_cpumask(&mut self, task: TaskId) {
        if self.ext.has_op(Op::SetCpumask) && self.tasks[task].ext.phase != TaskPhase::None {
            let cpu = self.tasks[task].cpu;
            let mask = self.cpus_ptr(task);
            self.op_task(Op::SetCpumask, Some(cpu), task, &[mask]);
        }
    }

    /// Notifies the old and the new class of a task's change of class, before the task is enqueued
    /// in the new class. sched_ext disables a task that leaves, and enables a task that joins.
    pub(crate) fn switching_to(&mut self, task: TaskId, old: Class, new: Class) {
        if old == Class::Ext && self.tasks[task].ext.phase == TaskPhase::Enabled {
            self.ext_disable_task(task);
        }
        if new == Class::Ext {
            self.ext_enable_task(task);
            if self.ext.has_op(Op::SetCpumask) {
                self.ext_set_cpumask(task);
            }
        }
        if old == Class::Fair {
            self.fair_switched_from(task);
        }
        if new == Class::Fair {
            self.fair_switched_to(task);
        }
    }
}

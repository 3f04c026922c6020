// SPDX-License-Identifier: GPL-2.0-only
//! CPU hotplug: CPUs go off line and come back.
//!
//! Models: kernel `sched_cpu_deactivate()`, `sched_cpu_activate()`, `handle_hotplug()`,
//! `rq_offline_scx()`, 7.3.
//! Differs: one event moves all tasks off the CPU; the real kernel does so step by step.

use crate::bpf::flags::{ecode, queue};
use crate::ext::exit::ExitKind;
use crate::ext::op::Op;
use crate::kernel::Kernel;
use crate::task::TaskState;
use crate::task::behavior::SysError;
use scxlab_machine::id::{CpuId, TaskId};
use scxlab_trace::event::EventKind;

impl Kernel {
    /// Number of times that CPUs came on line or went off line since boot
    /// (`/sys/kernel/sched_ext/hotplug_seq`).
    pub fn hotplug_seq(&self) -> u64 {
        self.ext.hotplug_seq
    }

    pub(crate) fn hotplug(&mut self, cpu: CpuId, online: bool) -> Result<(), SysError> {
        if cpu.idx() >= self.cpus.len() {
            return Err(SysError::Invalid);
        }
        if self.cpus[cpu].online == online {
            return Ok(());
        }
        let last = self.cpus.iter().filter(|c| c.online).count() == 1;
        if !online && (last || cpu == self.exec.cpu) {
            return Err(SysError::Busy);
        }
        self.charge(self.machine.costs.sched.context_switch_ns);
        self.settle(cpu);
        self.cpus[cpu].online = online;
        self.mirror_online(cpu, online);
        self.metrics.hotplugged = true;
        self.cpus[cpu].progress_from = self.now;
        self.fair_cpu_online(cpu, online);
        self.idle_set_online(cpu, online);
        let time = self.clock();
        let kind = EventKind::CpuOnline { online };
        self.tracer.emit(scxlab_trace::event::Event { time, cpu, kind });
        if !online {
            self.evacuate(cpu);
        }
        self.hotplug_notify(cpu, online);
        if online {
            self.resched(cpu);
        }
        Ok(())
    }

    /// `handle_hotplug()`: calls `ops.cpu_online` or `ops.cpu_offline`. A scheduler that lacks the
    /// operation exits.
    fn hotplug_notify(&mut self, cpu: CpuId, online: bool) {
        self.ext.hotplug_seq += 1;
        if self.ext.root.is_none() {
            return;
        }
        if self.ext.enabled {
            self.idle_update_selcpu_topology();
        }
        let op = if online { Op::CpuOnline } else { Op::CpuOffline };
        if self.ext.has_op(op) {
            self.op(op, None, &[u64::from(cpu.0)]);
            return;
        }
        let going = if online { "online" } else { "offline" };
        let text = format!("cpu {cpu} going {going}, exiting scheduler");
        self.ext_exit(ExitKind::UnregKern, ecode::ACT_RESTART | ecode::RSN_HOTPLUG, &text);
    }

    /// Moves all tasks that wait or run on the CPU to other CPUs.
    fn evacuate(&mut self, cpu: CpuId) {
        for task in self.ext_tasks_to_drop(cpu) {
            let change = self.change_begin(task, queue::SAVE | queue::MOVE);
            self.change_end(change);
        }
        let woken = std::mem::take(&mut self.cpus[cpu].wake_list);
        for task in woken {
            let Some(flags) = self.tasks[task].wake_queued.take() else { continue };
            let target = self.fallback_cpu(task, cpu);
            self.set_task_cpu(task, target);
            self.enqueue_task(target, task, flags);
            self.wakeup_preempt(target, task, 0);
        }
        let here: Vec<TaskId> = self
            .tasks
            .iter()
            .filter(|t| t.cpu == cpu && t.on_rq && !t.on_cpu && !t.is_idle_task())
            .map(|t| t.id)
            .collect();
        for task in here {
            if self.tasks[task].state == TaskState::Sleeping {
                self.fair_end_delay(task);
                continue;
            }
            let target = self.fallback_cpu(task, cpu);
            self.move_queued(task, target);
        }
        let curr = self.cpus[cpu].curr;
        if !self.tasks[curr].is_idle_task() {
            let target = self.fallback_cpu(curr, cpu);
            self.push_away(cpu, curr, target);
        }
    }

    /// `rq_offline_scx()`: returns the runnable sched_ext tasks of this CPU that do not run and are
    /// not in its local DSQ. The caller enqueues them again, which puts them into the local DSQ,
    /// because the CPU is off line.
    fn ext_tasks_to_drop(&self, cpu: CpuId) -> Vec<TaskId> {
        let local = self.ext.dsqs.local(cpu);
        let mut tasks = self.runnable_newest_first(cpu);
        tasks.retain(|&t| self.tasks[t].ext.dsq != Some(local) && !self.tasks[t].on_cpu);
        tasks
    }
}

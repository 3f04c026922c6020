// SPDX-License-Identifier: GPL-2.0-only
//! The report of a stalled task: the start and the place of the task's wait, the call that put the
//! task there, and the operations that ran on the CPUs that the task may use.
//!
//! Owns: the report's text. Does not: find stalls (see `watchdog.rs`). Differs: the kernel reports
//! only the task's name and the time.

use super::dsq::DsqId;
use super::entity::OpsState;
use super::op::Op;
use super::origin::Origin;
use super::recent_ops::{cpus_text, seconds};
use crate::bpf::abi;
use crate::bpf::flags::slice;
use crate::kernel::Kernel;
use crate::task::{Class, Task};
use scxlab_machine::cpumask::CpuMask;
use scxlab_machine::id::{CpuId, TaskId};
use scxlab_trace::names;

impl Kernel {
    pub(super) fn origin_of_stall(&self, task: TaskId) -> Origin {
        let t = &self.tasks[task];
        let stalled = self.exit_task(task);
        let mut lines = vec![self.stalled_since(task, &stalled.cpus), self.stalled_where(task)];
        lines.extend(self.operations_on(&stalled.cpus));
        let by = t.ext.inserted_by.filter(|_| t.ext.dsq.is_some());
        let frame = match by {
            Some(caller) => self.vm.place_of(caller.site),
            None if self.in_bpf_scheduler(task) => self.first_line(Op::Enqueue),
            None => None,
        };
        let frames = frame.into_iter().collect();
        Origin { lines, frames, task: Some(stalled), ..Origin::default() }
    }

    /// Returns the origin of an exit because the watchdog itself ran too late. The origin lists the
    /// operations that ran lately on the on-line CPUs.
    pub(super) fn origin_of_late_watchdog(&self) -> Origin {
        let cpus: Vec<CpuId> = self.online_cpus().collect();
        Origin { lines: self.operations_on(&cpus), ..Origin::default() }
    }

    pub(super) fn online_cpus(&self) -> impl Iterator<Item = CpuId> + '_ {
        (0..self.cpus.len() as u32).map(CpuId).filter(|cpu| self.cpus.is_online(*cpu))
    }

    fn current(&self, cpu: CpuId) -> &Task {
        &self.tasks[self.cpus[cpu].curr]
    }

    fn operations_on(&self, cpus: &[CpuId]) -> Vec<String> {
        let higher_class_runs = |cpu| self.current(cpu).class > Class::Ext;
        self.ext.recent_ops.lines(cpus.iter().copied(), higher_class_runs)
    }

    fn stalled_since(&self, task: TaskId, usable: &[CpuId]) -> String {
        let t = &self.tasks[task];
        let who = format!("{}[{}] waits", t.name, t.pid);
        let since = t.account.waiting_since.map_or(String::new(), |since| {
            let waited = seconds(self.clock().saturating_sub(since));
            format!(" since {}, for {waited}", seconds(since))
        });
        let cpus = match usable {
            [] => "no on-line CPU".to_owned(),
            _ => cpus_text(&CpuMask::of(self.cpus.len(), usable.iter().copied())),
        };
        format!("{who}{since}; it may run on {cpus}")
    }

    fn stalled_where(&self, task: TaskId) -> String {
        let e = &self.tasks[task].ext;
        if let Some(dsq) = e.dsq {
            let by = match e.inserted_by {
                Some(caller) => self.describe(caller),
                None => "the kernel".to_owned(),
            };
            return format!("on {}, inserted there by {by}", self.queue_text(dsq, task));
        }
        if self.in_bpf_scheduler(task) {
            let place = self.first_line(Op::Enqueue).map(|first| format!(": {}", first.start()));
            return format!(
                "on no DSQ: held by the scheduler since ops.enqueue(){}",
                place.unwrap_or_default()
            );
        }
        match e.inserted_by.filter(|_| e.ddsp.is_set()) {
            Some(caller) => format!(
                "on no DSQ yet: its insertion into {} is deferred; requested by {}",
                names::dsq(e.ddsp.dsq_id),
                self.describe(caller)
            ),
            None => "on no DSQ".to_owned(),
        }
    }

    fn in_bpf_scheduler(&self, task: TaskId) -> bool {
        let e = &self.tasks[task].ext;
        e.dsq.is_none() && matches!(e.ops_state, OpsState::Queued { .. })
    }

    /// Describes the DSQ, the number of tasks before `task`, and for a local DSQ the task that runs
    /// on the DSQ's CPU.
    fn queue_text(&self, dsq: DsqId, task: TaskId) -> String {
        let before = self.ext.dsqs.get(dsq).iter().take_while(|other| *other != task).count();
        let place = match before {
            0 => " at its head".to_owned(),
            1 => " behind 1 task".to_owned(),
            n => format!(" behind {n} tasks"),
        };
        let name = names::dsq(self.ext.dsqs.traced_id(dsq));
        let cpu = self.ext.dsqs.local_cpu(dsq);
        let running = cpu.map_or(String::new(), |cpu| self.running_text(cpu));
        format!("{name}{place}{running}")
    }

    fn running_text(&self, cpu: CpuId) -> String {
        let curr = self.current(cpu);
        if curr.is_idle_task() {
            return ", while that CPU is idle".to_owned();
        }
        let endless = curr.class == Class::Ext
            && self.vm.mem.host_ref::<abi::task_struct>(curr.addr).scx.slice == slice::INF;
        let how = match curr.class {
            Class::Ext if endless => " with an endless slice",
            class if class > Class::Ext => " (of a higher scheduling class)",
            _ => "",
        };
        format!(", while {}[{}]{how} runs there", curr.name, curr.pid)
    }
}

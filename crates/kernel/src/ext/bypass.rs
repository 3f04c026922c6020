// SPDX-License-Identifier: GPL-2.0-only
//! Bypass: the kernel itself schedules tasks, in FIFO order per CPU, while a scheduler is being
//! loaded or unloaded, or after it has failed.
//!
//! Models: kernel `scx_bypass()`, 7.3. Differs: no bypass load balancer.

use super::stats::Ev;
use crate::bpf::flags::{queue, slice};
use crate::kernel::Kernel;
use scxlab_machine::id::{CpuId, TaskId};

impl Kernel {
    /// Enters or leaves bypass. Bypass ends when it has been left as often as it was entered.
    pub(crate) fn ext_bypass(&mut self, on: bool) {
        let at = self.clock();
        let Some(sched) = &mut self.ext.root else { return };
        if on {
            sched.bypass_depth += 1;
            if sched.bypass_depth != 1 {
                return;
            }
            sched.slice_dfl = slice::BYPASS;
            sched.bypass_since = at;
            sched.events.add(Ev::BypassActivate, 1);
        } else {
            sched.bypass_depth -= 1;
            if sched.bypass_depth != 0 {
                return;
            }
            sched.slice_dfl = slice::DFL;
            let lasted = at - sched.bypass_since;
            sched.events.add(Ev::BypassDuration, lasted);
        }
        for cpu in 0..self.cpus.len() {
            self.bypass_cpu(CpuId(cpu as u32), on);
        }
    }

    fn bypass_cpu(&mut self, cpu: CpuId, on: bool) {
        let pcpu = &mut self.ext.cpus[cpu];
        let was = std::mem::replace(&mut pcpu.bypassing, on);
        if was && !on {
            pcpu.idle_renotify = true;
        }
        if !self.ext.enabled {
            return;
        }
        for task in self.runnable_newest_first(cpu) {
            let change = self.change_begin(task, queue::SAVE | queue::MOVE);
            self.change_end(change);
        }
        if self.cpus.is_online(cpu) {
            self.resched(cpu);
        }
    }

    /// Returns the tasks on the CPU's list of runnable tasks, the last arrival first.
    pub(crate) fn runnable_newest_first(&self, cpu: CpuId) -> Vec<TaskId> {
        let mut tasks: Vec<(u64, TaskId)> = self
            .tasks
            .iter()
            .filter(|t| t.cpu == cpu)
            .filter_map(|t| t.ext.runnable_seq.map(|nth| (nth, t.id)))
            .collect();
        tasks.sort_unstable_by(|a, b| b.cmp(a));
        tasks.into_iter().map(|(_, id)| id).collect()
    }
}

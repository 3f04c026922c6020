// SPDX-License-Identifier: GPL-2.0-only
//! The watchdog: ejects the scheduler if a runnable task does not run for longer than the timeout.
//!
//! Models: kernel `scx_watchdog_workfn()`, `check_rq_for_timeouts()`, `scx_tick()`, 7.3. Differs:
//! the work item runs on time, unless its CPU spins in the kernel.

use super::exit::ExitKind;
use crate::kernel::event::Event;
use crate::kernel::{AfterEvent, Kernel};
use scxlab_machine::id::{CpuId, Nanos, TaskId};

impl Kernel {
    /// Starts the watchdog's checks for a scheduler that is being loaded.
    pub(crate) fn watchdog_start(&mut self) {
        self.ext.watchdog_gen = self.ext.watchdog_gen.wrapping_add(1);
        self.ext.recent_ops.start(self.clock());
        self.watchdog_rearm();
    }

    fn watchdog_rearm(&mut self) {
        let Some(sched) = &self.ext.root else { return };
        let interval = sched.watchdog_timeout / 2;
        let at = self.clock();
        self.ext.watchdog_checked = at;
        let generation = self.ext.watchdog_gen;
        self.events.push(at + interval, Event::ExtWatchdog { generation });
    }

    #[inline(never)]
    pub(crate) fn ext_watchdog(&mut self, generation: u32) -> AfterEvent {
        if self.ext.watchdog_gen != generation || self.ext.root.is_none() {
            return AfterEvent::Nothing;
        }
        let cpu = self.cpus.online_or_any(CpuId(0));
        self.on_cpu_last(cpu, |k| {
            if let Some((task, waited)) = k.stalled() {
                k.report_stall(task, waited);
            }
            k.ext.recent_ops.check(k.clock());
            k.watchdog_rearm();
        })
    }

    /// Returns the first stalled task by CPU and arrival, and the jiffies for which it has waited.
    fn stalled(&mut self) -> Option<(TaskId, u64)> {
        let now = self.jiffies();
        let timeout = self.ext.root.as_ref()?.watchdog_timeout;
        let limit = timeout / self.ticks.period_ns;
        let mut found: Option<(CpuId, u64, TaskId, u64)> = None;
        for id in self.tasks.ids() {
            let Some(nth) = self.tasks[id].ext.runnable_seq else { continue };
            let waited = now.saturating_sub(self.scx(id).runnable_at);
            let cpu = self.tasks[id].cpu;
            if waited > limit && found.is_none_or(|f| (cpu, nth) < (f.0, f.1)) {
                found = Some((cpu, nth, id, waited));
            }
        }
        found.map(|f| (f.2, f.3))
    }

    fn report_stall(&mut self, task: TaskId, waited: u64) {
        let ms: Nanos = waited * self.ticks.period_ns / 1_000_000;
        let t = &self.tasks[task];
        let text =
            format!("{}[{}] failed to run for {}.{:03}s", t.name, t.pid, ms / 1000, ms % 1000);
        let origin = self.origin_of_stall(task);
        self.claim_exit(ExitKind::ErrorStall, 0, &text, origin);
    }

    /// Reports a stall if the watchdog itself has not run for longer than the timeout. Every tick
    /// calls this function.
    pub(crate) fn watchdog_tick(&mut self) {
        let Some(sched) = &self.ext.root else { return };
        let timeout = sched.watchdog_timeout;
        if !self.ext.enabled {
            return;
        }
        let late = self.now.saturating_sub(self.ext.watchdog_checked);
        if late > timeout {
            let ms = late / 1_000_000;
            let text = format!("watchdog failed to check in for {}.{:03}s", ms / 1000, ms % 1000);
            let origin = self.origin_of_late_watchdog();
            self.claim_exit(ExitKind::ErrorStall, 0, &text, origin);
        }
    }
}

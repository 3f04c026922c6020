// SPDX-License-Identifier: GPL-2.0-only
//! Kicks: making a CPU pass through the scheduler, and waiting until it has done so.
//!
//! Owns: collected kicks, SCX_KICK_WAIT. Models: kernel `scx_kick_cpu()`, `kick_cpus_irq_workfn()`,
//! `kick_sync_wait_bal_cb()`, 7.3. Differs: a waiting CPU spins, and its task makes no progress.

use crate::bpf::flags::kick;
use crate::kernel::Kernel;
use crate::kernel::event::Event;
use crate::task::Class;
use scxlab_machine::id::{CpuId, Nanos};
use scxlab_trace::event::EventKind;

impl Kernel {
    /// `scx_kick_cpu()`: requests a kick, which is sent when the executing CPU runs its irq_work.
    pub(crate) fn ext_kick(&mut self, cpu: CpuId, flags: u64) {
        let here = self.exec.cpu;
        if self.ext.bypassing(here) {
            return;
        }
        self.charge(self.machine.costs.kfunc.kick_ns);
        if flags & kick::IDLE != 0 {
            if flags & (kick::PREEMPT | kick::WAIT) != 0 {
                self.scx_error("PREEMPT/WAIT cannot be used with SCX_KICK_IDLE");
            }
            if self.can_skip_idle_kick(cpu) {
                return;
            }
        }
        self.trace(EventKind::Kick { target: cpu, flags });
        self.cpus[cpu].kicks += 1;
        let at = self.clock();
        let pcpu = &mut self.ext.cpus[here];
        pcpu.kick_now.push((cpu, flags));
        if !std::mem::replace(&mut pcpu.kick_posted, true) {
            self.push_wakeup(at, Event::ExtKick { cpu: here });
        }
    }

    fn can_skip_idle_kick(&self, cpu: CpuId) -> bool {
        !self.cpus[cpu].is_idle() && !self.ext.cpus[cpu].in_dispatch
    }

    /// `kick_cpus_irq_workfn()` on `here`: carries out the kicks that this CPU has requested.
    pub(crate) fn ext_deliver_kicks(&mut self, here: CpuId) {
        self.end.pending_wakeups -= 1;
        self.ext.cpus[here].kick_posted = false;
        let mut kicks = std::mem::take(&mut self.ext.cpus[here].kick_now);
        merge(&mut kicks);
        let mut wait = false;
        for &(cpu, flags) in &kicks {
            if flags & kick::IDLE == 0 {
                wait |= self.kick_one(here, cpu, flags);
            } else if !self.can_skip_idle_kick(cpu) && self.cpus.is_online(cpu) {
                self.resched(cpu);
            }
        }
        if wait {
            self.resched(here);
        }
    }

    /// `kick_one_cpu()`: kicks `cpu`; returns whether `here` has to wait for it.
    fn kick_one(&mut self, here: CpuId, cpu: CpuId, flags: u64) -> bool {
        let curr = self.cpus[cpu].curr;
        let class = self.tasks[curr].class;
        if !self.cpus.is_online(cpu) || class > Class::Ext {
            return false;
        }
        let mut wait = false;
        if class == Class::Ext {
            if flags & kick::PREEMPT != 0 {
                self.set_slice(curr, 0);
            }
            if flags & kick::WAIT != 0 {
                let seen = self.ext.cpus[cpu].kick_sync;
                self.ext.cpus[here].sync_pending.push((cpu, seen));
                wait = true;
            }
        }
        self.resched(cpu);
        wait
    }

    /// Counts a pass of the CPU through the scheduler, and releases the CPUs that wait for it.
    #[inline(always)]
    pub(crate) fn ext_kick_sync(&mut self, cpu: CpuId) {
        self.ext.cpus[cpu].kick_sync += 1;
        if self.ext.nr_sync_waiters != 0 {
            self.release_waiters(cpu);
        }
    }

    fn release_waiters(&mut self, cpu: CpuId) {
        for waiter in self.cpus.ids() {
            let before = self.cpus[waiter].sync_wait.len();
            self.cpus[waiter].sync_wait.retain(|&(target, _)| target != cpu);
            if before > 0 && self.cpus[waiter].sync_wait.is_empty() {
                self.sync_done(waiter);
            }
        }
    }

    /// `kick_sync_wait_bal_cb()`: makes a CPU wait, after its own pass, for the CPUs that it kicked
    /// with SCX_KICK_WAIT.
    pub(crate) fn ext_wait_for_kicked(&mut self, cpu: CpuId) {
        let pending = std::mem::take(&mut self.ext.cpus[cpu].sync_pending);
        let ext = &self.ext;
        let waiting: Vec<_> = pending
            .into_iter()
            .filter(|&(c, seen)| c != cpu && ext.cpus[c].kick_sync == seen)
            .collect();
        if waiting.is_empty() {
            return;
        }
        if self.cpus[cpu].sync_wait.is_empty() {
            self.ext.nr_sync_waiters += 1;
        }
        self.cpus[cpu].sync_wait = waiting;
        self.ext_kick_sync(cpu);
    }

    fn sync_done(&mut self, cpu: CpuId) {
        self.ext.nr_sync_waiters -= 1;
        let now = self.now;
        let c = &mut self.cpus[cpu];
        let spun = now.saturating_sub(c.progress_from);
        c.time.overhead += spun;
        c.time.lock_wait += spun;
        c.progress_from = c.progress_from.max(now);
        c.done_at = Nanos::MAX;
        self.arm_step_end(cpu);
    }
}

/// Merges all kicks of a target CPU into one kick. SCX_KICK_IDLE remains only if all merged kicks
/// have it.
fn merge(kicks: &mut Vec<(CpuId, u64)>) {
    kicks.sort_by_key(|k| k.0);
    kicks.dedup_by(|next, kept| {
        let same = next.0 == kept.0;
        if same {
            let both_idle = next.1 & kept.1 & kick::IDLE;
            kept.1 = (kept.1 | next.1) & !kick::IDLE | both_idle;
        }
        same
    });
}

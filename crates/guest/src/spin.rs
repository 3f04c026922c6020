// SPDX-License-Identifier: GPL-2.0-only
//! Spinning threads: spin locks of the guest's kernel, pause-loop exits, TLB flushes.
//!
//! Owns: who gets a spin lock next, the halt of a waiter for a paravirtual lock, directed yields.
//! Does not: know the locks (the program does).
//! Models: `virt_spin_lock()`, `pv_wait()`, `kvm_vcpu_on_spin()`, `flush_tlb_multi()`, 7.3, as far
//! as they take time.
//!
//! A vCPU that is off its CPU makes no progress, so its thread does not reach the release of a lock
//! that it holds, and those that wait for the lock burn CPU time. Nothing here causes that.

use scxlab_kernel::behavior::{Sys, TaskStep};
use scxlab_machine::id::Nanos;

use crate::interrupt::Irq;
use crate::{GuestKernel, Mode, SpinLocks};

/// Longest window until a pause-loop exit.
const MAX_WINDOW_NS: Nanos = 1_000_000_000;

impl GuestKernel {
    /// Lets the current thread spin. It waits for a lock or a flush of the kernel, or spins as a
    /// program.
    pub(crate) fn spin(&mut self, host: &mut dyn Sys, v: usize, t: u32) -> TaskStep {
        let now = host.now();
        let thread = self.thread_mut(t);
        let waits_for_lock = thread.lock_depth > 0 && thread.flush_left == 0;
        if waits_for_lock {
            thread.lock_wait_since.get_or_insert(now);
        }
        let costs = &self.machine.costs.guest;
        let (ple, pv_limit) = (self.machine.ple, costs.pv_spin_ns);
        let mut max = Nanos::MAX;
        if waits_for_lock && self.config.pv_spin_locks {
            max = pv_limit.saturating_sub(self.vcpus[v].spun);
            if max == 0 {
                return self.halt_for_lock(host, v);
            }
        }
        if ple {
            if self.vcpus[v].paused >= self.vcpus[v].ple_window {
                self.pause_exit(host, v, t);
            }
            let vcpu = &self.vcpus[v];
            max = max.min(vcpu.ple_window - vcpu.paused);
        }
        self.arm(host, v);
        self.vcpus[v].mode = Mode::Spins;
        if max == Nanos::MAX { TaskStep::Spin } else { TaskStep::SpinFor { max } }
    }

    /// Notes that the current thread does not spin any more.
    pub(crate) fn end_spin(&mut self, host: &dyn Sys, v: usize, t: u32) {
        let vcpu = &mut self.vcpus[v];
        vcpu.paused = 0;
        vcpu.spun = 0;
        if let Some(since) = self.thread_mut(t).lock_wait_since.take() {
            self.stats.lock_wait.record(host.now().saturating_sub(since));
        }
    }

    /// `pv_wait()`: halts the vCPU until its thread gets the lock, or an interrupt comes.
    fn halt_for_lock(&mut self, host: &mut dyn Sys, v: usize) -> TaskStep {
        let deadline = self.deadline(v);
        let vcpu = &mut self.vcpus[v];
        vcpu.mode = Mode::LockHalted;
        vcpu.spun = 0;
        vcpu.paused = 0;
        self.halt(host, Some(deadline))
    }

    /// A lock for which a thread waits is free. If the thread is the first in the queue of a
    /// paravirtual lock, and its vCPU is halted, the vCPU wakes up.
    pub(crate) fn lock_freed(&mut self, host: &mut dyn Sys, t: u32, first: bool) {
        let thread = self.threads.get(t as usize);
        let halted = thread.is_some_and(|t| self.vcpus[t.vcpu].mode == Mode::LockHalted);
        if first || !halted {
            self.stop_thread_spin(host, t);
        }
    }

    /// A lock or a barrier lets a thread go on.
    pub(crate) fn stop_thread_spin(&mut self, host: &mut dyn Sys, t: u32) {
        let Some(thread) = self.threads.get(t as usize) else { return };
        let vcpu = &self.vcpus[thread.vcpu];
        let task = vcpu.task;
        if vcpu.current != Some(t) {
            return;
        }
        match vcpu.mode {
            Mode::Spins => host.stop_spin(task),
            Mode::LockHalted => {
                self.charge_ipi(host);
                host.wake(task, false);
            }
            _ => {}
        }
    }

    /// Returns which of the threads that spin for a lock gets it.
    pub(crate) fn next_spinner(
        &self,
        host: &dyn Sys,
        spinners: &mut dyn Iterator<Item = u32>,
    ) -> Option<usize> {
        if self.config.spin_locks == SpinLocks::Ticket {
            return spinners.next().map(|_| 0);
        }
        let takes = |t: u32| {
            let vcpu = &self.vcpus[self.thread(t).vcpu];
            vcpu.current == Some(t) && vcpu.mode == Mode::Spins && host.is_on_cpu(vcpu.task)
        };
        let mut spinners = spinners;
        (&mut spinners).position(takes)
    }

    /// A pause-loop exit: yields to another vCPU of the guest that waits for a CPU.
    fn pause_exit(&mut self, host: &mut dyn Sys, v: usize, t: u32) {
        let costs = &self.machine.costs.guest;
        host.charge(costs.pause_ns);
        self.stats.exits.pause += 1;
        let vcpu = &mut self.vcpus[v];
        vcpu.paused = 0;
        vcpu.ple_window = costs.ple_grow.of(vcpu.ple_window).min(MAX_WINDOW_NS);
        let to_kernel_mode = self.in_kernel(t);
        let (count, first) = (self.vcpus.len(), self.last_boosted + 1);
        for other in (0..count).map(|i| (first + i) % count).filter(|other| *other != v) {
            if !self.may_be_boosted(host, other, to_kernel_mode) {
                continue;
            }
            self.stats.yields_tried += 1;
            if host.yield_to(self.vcpus[other].task) {
                self.stats.yields_done += 1;
                self.last_boosted = other;
                self.vcpus[v].in_spin_loop = true;
                return;
            }
        }
        self.vcpus[v].eligible = false;
    }

    /// Whether a thread is in the guest's kernel, as far as the guest knows that: it holds or waits
    /// for a spin lock, or waits for TLB flushes.
    fn in_kernel(&self, t: u32) -> bool {
        self.thread(t).lock_depth > 0 || self.thread(t).flush_left > 0
    }

    /// Whether a vCPU is a candidate for a directed yield: it waits for a CPU, runs code of the
    /// kernel or has an interrupt to handle, if the yielding vCPU is in the kernel
    /// (`to_kernel_mode`), and is not itself in a pause-loop exit, except every second time.
    fn may_be_boosted(&mut self, host: &dyn Sys, v: usize, to_kernel_mode: bool) -> bool {
        let vcpu = &self.vcpus[v];
        if vcpu.mode == Mode::Off || !host.waits_for_cpu(vcpu.task) {
            return false;
        }
        let in_user_mode = vcpu.current.is_some_and(|t| !self.in_kernel(t));
        let preempted = matches!(vcpu.mode, Mode::Runs | Mode::Spins);
        if to_kernel_mode && preempted && in_user_mode && vcpu.pending == 0 {
            return false;
        }
        let vcpu = &mut self.vcpus[v];
        if !vcpu.in_spin_loop {
            return true;
        }
        vcpu.eligible = !vcpu.eligible;
        !vcpu.eligible
    }

    /// Flushes the TLBs of all vCPUs that run the thread's process.
    pub(crate) fn flush_tlb(&mut self, host: &mut dyn Sys, v: usize, t: u32) {
        let process = self.thread(t).process;
        host.charge(self.machine.costs.memory.tlb_flush_ns);
        for other in (0..self.vcpus.len()).filter(|other| *other != v) {
            let vcpu = &self.vcpus[other];
            // An idle vCPU flushes when it runs the process again, with its switch.
            if vcpu.current.is_none_or(|t| self.thread(t).process != process) {
                continue;
            }
            if self.config.pv_tlb_flush && !host.is_on_cpu(vcpu.task) {
                self.vcpus[other].flush_on_entry = true;
                continue;
            }
            self.vcpus[other].flushes.push(t);
            self.thread_mut(t).flush_left += 1;
            host.charge(self.machine.costs.irq.ipi_send_ns);
            self.send(host, v, other, Irq::Flush);
        }
        match self.thread(t).flush_left {
            0 => self.stats.flush_wait.record(0),
            _ => self.thread_mut(t).flush_since = Some(host.now()),
        }
    }

    /// Handles other vCPUs' requests to flush this vCPU's TLB.
    pub(crate) fn flush_here(&mut self, host: &mut dyn Sys, v: usize) {
        for t in std::mem::take(&mut self.vcpus[v].flushes) {
            host.charge(self.machine.costs.memory.tlb_ipi_ns);
            let thread = self.thread_mut(t);
            thread.flush_left -= 1;
            if thread.flush_left == 0 {
                if let Some(since) = thread.flush_since.take() {
                    self.stats.flush_wait.record(host.now().saturating_sub(since));
                }
                self.stop_thread_spin(host, t);
            }
        }
    }
}

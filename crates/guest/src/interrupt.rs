// SPDX-License-Identifier: GPL-2.0-only
//! Interrupts between vCPUs, timers, the tick, and idle vCPUs.
//!
//! Owns: the exits that these cost.
//!
//! A vCPU has one deadline at the host, the earliest of its tick, its timers and the end of its
//! thread's slice. It arms the deadline when it goes on with a step. A deadline that still stands
//! costs nothing, and one that is too early is not moved (`HRTIMER_MODE_LAZY_REARM`): it expires
//! in vain.

use scxlab_kernel::behavior::{Sys, TaskStep};
use scxlab_machine::id::Nanos;

use crate::{Class, GuestKernel, Mode, Timer, TimerKey};

/// Interrupts that a vCPU sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Irq {
    Resched,
    /// Threads are in the receiver's wake list.
    WakeList,
    /// The receiver is to balance for all idle vCPUs.
    Balance,
    Flush,
}

impl Irq {
    fn bit(self) -> u8 {
        1 << self as u8
    }
}

impl GuestKernel {
    /// Sends an interrupt from a vCPU to another one, unless such an interrupt is on its way.
    pub(crate) fn send(&mut self, host: &mut dyn Sys, from: usize, to: usize, irq: Irq) {
        debug_assert_ne!(from, to, "a vCPU interrupts itself");
        let vcpu = &mut self.vcpus[to];
        let before = vcpu.pending;
        vcpu.pending |= irq.bit();
        if before == vcpu.pending {
            return;
        }
        let task = vcpu.task;
        match vcpu.mode {
            Mode::Off => {}
            // A polling vCPU sees the flag, without an interrupt.
            Mode::Idle => host.stop_spin(task),
            // The host has been told already.
            _ if before != 0 => {
                self.charge_ipi(host);
                host.charge(self.machine.costs.irq.ipi_send_ns);
            }
            Mode::Halted | Mode::LockHalted => {
                self.charge_ipi(host);
                // The vCPU goes on in the mode in which its time until then is counted.
                host.wake(task, false);
            }
            Mode::Runs | Mode::Spins => {
                self.charge_ipi(host);
                host.kick(task);
            }
        }
    }

    pub(crate) fn charge_ipi(&mut self, host: &mut dyn Sys) {
        host.charge(self.machine.costs.guest.ipi_ns);
        self.stats.exits.ipi += 1;
    }

    /// Adds a timer to a vCPU.
    pub(crate) fn add_timer(&mut self, v: usize, at: Nanos, timer: Timer) -> TimerKey {
        self.timer_seq += 1;
        let key = (at, self.timer_seq);
        self.vcpus[v].timers.insert(key, timer);
        key
    }

    /// Handles the interrupts that are due. `was` is the mode in which the vCPU has been.
    pub(crate) fn interrupts(&mut self, host: &mut dyn Sys, v: usize, was: Mode) {
        let now = host.now();
        let period = self.tick_period;
        let vcpu = &mut self.vcpus[v];
        // The timer that the vCPU has armed may come too early for all that it now waits for.
        let expired = vcpu.armed.take_if(|at| *at <= now).is_some();
        let expired = expired && matches!(was, Mode::Runs | Mode::Spins);
        let flush_on_entry = std::mem::take(&mut vcpu.flush_on_entry);
        let ticks = vcpu.next_tick <= now && vcpu.rq_curr.is_some();
        if vcpu.next_tick <= now {
            vcpu.next_tick += ((now - vcpu.next_tick) / period + 1) * period;
        }
        let timers = vcpu.timers.first_key_value().is_some_and(|(key, _)| key.0 <= now);
        let hrtick = vcpu.hrtick_at.take_if(|at| *at <= now).is_some();
        let pending = std::mem::take(&mut vcpu.pending);
        if flush_on_entry {
            host.charge(self.machine.costs.memory.tlb_flush_ns);
        }
        if !(expired || ticks || timers || pending != 0) {
            return;
        }
        if was != Mode::Idle {
            host.charge(self.machine.costs.guest.inject_ns);
            self.stats.exits.interrupt += 1;
        }
        if pending != 0 {
            self.interrupted(host, v, pending);
        }
        if hrtick && self.curr_class(v) == Class::Fair {
            self.hrtick(host, v);
        }
        if ticks {
            host.charge(self.machine.costs.irq.tick_ns);
            self.sched_tick(host, v);
        }
        self.expire(host, v);
    }

    /// Handles interrupts of other vCPUs.
    fn interrupted(&mut self, host: &mut dyn Sys, v: usize, pending: u8) {
        let has = |irq: Irq| pending & irq.bit() != 0;
        if has(Irq::WakeList) {
            let woken = std::mem::take(&mut self.vcpus[v].wake_list);
            self.activate_wake_list(host, v, woken);
        }
        if has(Irq::Resched) && self.vcpus[v].need_resched {
            host.charge(self.machine.costs.irq.resched_ns);
        }
        if has(Irq::Balance) {
            host.charge(self.machine.costs.irq.resched_ns);
            self.fair_nohz_balance(host, v);
        }
        if has(Irq::Flush) {
            self.flush_here(host, v);
        }
    }

    /// Handles the timers of a vCPU that are due.
    fn expire(&mut self, host: &mut dyn Sys, v: usize) {
        let now = host.now();
        while let Some(entry) = self.vcpus[v].timers.first_entry() {
            let due = entry.key().0;
            if due > now {
                return;
            }
            let timer = entry.remove();
            host.charge(self.machine.costs.irq.timer_ns);
            match timer {
                Timer::Wake(t) => {
                    self.thread_mut(t).timer = None;
                    self.wake_thread_due(host, v, t, false, due);
                }
                Timer::Post(token) => self.posts.push(token),
            }
        }
    }

    fn first_timer(&self, v: usize) -> Option<Nanos> {
        self.vcpus[v].timers.first_key_value().map(|(key, _)| key.0)
    }

    /// Returns the time of a vCPU's next tick or timer, or of the end of its thread's slice.
    pub(crate) fn deadline(&self, v: usize) -> Nanos {
        let timers = self.first_timer(v).into_iter().chain(self.vcpus[v].hrtick_at);
        timers.fold(self.vcpus[v].next_tick, Nanos::min)
    }

    /// Asks the host to cut the step at the vCPU's deadline, unless an earlier request stands.
    pub(crate) fn arm(&mut self, host: &mut dyn Sys, v: usize) {
        let deadline = self.deadline(v);
        let vcpu = &mut self.vcpus[v];
        if vcpu.armed.is_none_or(|at| at > deadline) {
            vcpu.armed = Some(deadline);
            host.charge(self.machine.costs.guest.timer_ns);
            self.stats.exits.timer += 1;
            host.cut_at(vcpu.task, Some(deadline));
        }
    }

    /// Lets a vCPU without threads poll, or halt.
    pub(crate) fn idle(&mut self, host: &mut dyn Sys, v: usize) -> TaskStep {
        let first = self.first_timer(v);
        let vcpu = &mut self.vcpus[v];
        if self.config.halt_poll > 0 && !std::mem::replace(&mut vcpu.polled, true) {
            let until = first.map_or(Nanos::MAX, |at| at.saturating_sub(host.now()));
            vcpu.mode = Mode::Idle;
            return TaskStep::SpinFor { max: self.config.halt_poll.min(until).max(1) };
        }
        vcpu.mode = Mode::Halted;
        self.halt(host, first)
    }

    /// Lets the host put a vCPU to sleep. The host's timer replaces the vCPU's deadline.
    pub(crate) fn halt(&mut self, host: &mut dyn Sys, until: Option<Nanos>) -> TaskStep {
        host.charge(self.machine.costs.guest.halt_ns);
        self.stats.exits.halt += 1;
        until.map_or(TaskStep::Block, TaskStep::SleepUntil)
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! Interrupts between vCPUs, timers, the tick, and idle vCPUs.
//!
//! Owns: the exits that these cost.
//!
//! A vCPU has one deadline at the host, the earliest of its tick and its timers. It arms the
//! deadline when it goes on with a step, so that a deadline that still stands costs nothing.

use scxlab_kernel::behavior::{Sys, TaskStep};
use scxlab_machine::id::Nanos;

use crate::{GuestKernel, Mode, Timer, TimerKey};

/// Interrupts that a vCPU sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Irq {
    Resched,
    Flush,
}

impl GuestKernel {
    /// Sends an interrupt from a vCPU.
    pub(crate) fn send(&mut self, host: &mut dyn Sys, from: usize, to: usize, irq: Irq) {
        let vcpu = &mut self.vcpus[to];
        if from == to && irq == Irq::Resched {
            vcpu.need_resched = true;
            return;
        }
        let pending = vcpu.resched_pending || vcpu.flush_pending;
        match irq {
            Irq::Resched => vcpu.resched_pending = true,
            Irq::Flush => vcpu.flush_pending = true,
        }
        let task = vcpu.task;
        match vcpu.mode {
            Mode::Off => {}
            Mode::Halted | Mode::LockHalted => {
                // The vCPU goes on in the mode in which its time until then is counted.
                if !pending {
                    self.charge_ipi(host);
                    host.wake(task, false);
                }
            }
            // A polling vCPU sees the flag, without an interrupt.
            Mode::Idle => host.stop_spin(task),
            Mode::Runs | Mode::Spins if !pending => {
                self.charge_ipi(host);
                host.kick(task);
            }
            Mode::Runs | Mode::Spins => {}
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
        let costs = &self.machine.costs;
        let vcpu = &mut self.vcpus[v];
        vcpu.armed = vcpu.armed.filter(|at| *at > now);
        if std::mem::take(&mut vcpu.flush_on_entry) {
            host.charge(costs.memory.tlb_flush_ns);
        }
        let ticks = vcpu.next_tick <= now && vcpu.current.is_some();
        if vcpu.next_tick <= now {
            vcpu.next_tick += ((now - vcpu.next_tick) / period + 1) * period;
        }
        let timers = vcpu.timers.first_key_value().is_some_and(|(key, _)| key.0 <= now);
        let resched = std::mem::take(&mut vcpu.resched_pending);
        let flush = std::mem::take(&mut vcpu.flush_pending);
        if !(ticks || timers || resched || flush) {
            return;
        }
        if was != Mode::Idle {
            host.charge(costs.guest.inject_ns);
            self.stats.exits.interrupt += 1;
        }
        if resched {
            host.charge(costs.irq.resched_ns);
            vcpu.need_resched = true;
        }
        if flush {
            self.flush_here(host, v);
        }
        if ticks {
            host.charge(self.machine.costs.irq.tick_ns);
            self.vcpus[v].ticks += 1;
            self.tick_current(host, v);
        }
        self.expire(host, v);
    }

    /// Handles the timers of a vCPU that are due.
    fn expire(&mut self, host: &mut dyn Sys, v: usize) {
        let now = host.now();
        while let Some(entry) = self.vcpus[v].timers.first_entry() {
            if entry.key().0 > now {
                return;
            }
            let timer = entry.remove();
            host.charge(self.machine.costs.irq.timer_ns);
            match timer {
                Timer::Wake(t) => {
                    self.thread_mut(t).timer = None;
                    self.wake_thread(host, v, t);
                }
                Timer::Post(token) => self.posts.push(token),
            }
        }
    }

    fn first_timer(&self, v: usize) -> Option<Nanos> {
        self.vcpus[v].timers.first_key_value().map(|(key, _)| key.0)
    }

    /// Returns the time of a vCPU's next tick or timer.
    pub(crate) fn deadline(&self, v: usize) -> Nanos {
        let tick = self.vcpus[v].next_tick;
        self.first_timer(v).map_or(tick, |at| at.min(tick))
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

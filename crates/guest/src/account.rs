// SPDX-License-Identifier: GPL-2.0-only
//! Times of vCPUs and threads.
//!
//! Owns: the rule by which each span of time goes to exactly one account.
//! Does not: decide anything.
//!
//! The time between two steps of a vCPU goes to what the vCPU did meanwhile, except the time for
//! which its task waited for a CPU of the host, which was stolen. The time within a step goes to
//! the guest's kernel. So a vCPU's times add up to its lifetime.

use scxlab_kernel::behavior::{GuestRun, Sys};
use scxlab_kernel::metrics::TimeHistogram;
use scxlab_machine::id::{Nanos, TaskId};

use crate::{Guest, GuestKernel, Mode, State, Thread, Vcpu};

/// Counts of a guest's exits to the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Exits {
    pub halt: u64,
    /// Interrupts sent to another vCPU.
    pub ipi: u64,
    /// Interrupts received.
    pub interrupt: u64,
    /// Timers armed.
    pub timer: u64,
    pub pause: u64,
}

/// Measurements of a guest.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    pub exits: Exits,
    /// Directed yields that were tried, and those that were done.
    pub yields_tried: u64,
    pub yields_done: u64,
    /// From a thread's wake-up until it runs on a vCPU that is on a CPU.
    pub wakeup_latency: TimeHistogram,
    /// From a thread's wish for a contended spin lock until it has the lock.
    pub lock_wait: TimeHistogram,
    /// From a TLB flush's begin until all vCPUs have answered.
    pub flush_wait: TimeHistogram,
    pub work_units: u64,
    /// The program used cgroups, which have no effect in a guest.
    pub cgroups_ignored: bool,
}

/// Times of a vCPU, ns.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VcpuTimes {
    pub user: Nanos,
    pub spin: Nanos,
    pub kernel: Nanos,
    pub idle: Nanos,
    pub steal: Nanos,
}

/// Times of a thread, ns. They add up to its lifetime.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadTimes {
    /// On a CPU, without the guest's kernel.
    pub run: Nanos,
    /// In the guest's kernel.
    pub kernel: Nanos,
    /// In a run queue of the guest, or halted for a spin lock.
    pub wait: Nanos,
    /// Current on a vCPU that was not on a CPU, or with a timer whose interrupt such a vCPU had
    /// still to take.
    pub steal: Nanos,
    pub sleep: Nanos,
}

/// A vCPU's times so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VcpuReport {
    pub name: String,
    pub task: TaskId,
    pub times: VcpuTimes,
    /// Part of the wait of the vCPU's task that lies in time in which the vCPU ran, ns. The host
    /// handles a long path of kernel code as one event. A task that this path puts to sleep may be
    /// woken by a later event at an earlier time.
    pub overlap: Nanos,
    pub switches: u64,
}

/// A thread's times so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ThreadReport {
    pub name: String,
    pub times: ThreadTimes,
    pub work_units: u64,
    pub exited: bool,
}

/// A guest's times so far.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GuestReport {
    pub vcpus: Vec<VcpuReport>,
    /// Those that have exited first.
    pub threads: Vec<ThreadReport>,
}

/// Times up to which a vCPU's accounts are complete.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct VcpuClock {
    /// Begin of the vCPU's life.
    born: Nanos,
    /// End of the last step's call, or begin of the present one.
    last: Nanos,
    /// Time up to which the current thread's time in the kernel is counted.
    kernel_mark: Nanos,
    /// `Sys::run_delay` at `last`.
    delay: Nanos,
    /// See `VcpuReport::overlap`.
    overlap: Nanos,
}

impl VcpuClock {
    pub fn new(now: Nanos) -> VcpuClock {
        VcpuClock { born: now, last: now, kernel_mark: now, delay: 0, overlap: 0 }
    }
}

/// What a span between two steps adds to the accounts.
struct Span {
    own: Nanos,
    steal: Nanos,
    /// See `VcpuReport::overlap`.
    overlap: Nanos,
}

impl Vcpu {
    /// Returns the present time for a vCPU. The clock of its CPU may be behind the time at which it
    /// left another CPU.
    fn time(&self, now: Nanos) -> Nanos {
        now.max(self.clock.last)
    }

    /// Returns the span since the last step, at a time and at the task's wait until then.
    fn span(&self, now: Nanos, delay: Nanos) -> Span {
        let elapsed = self.time(now) - self.clock.last;
        let waited = delay - self.clock.delay;
        let steal = waited.min(elapsed);
        Span { own: elapsed - steal, steal, overlap: waited - steal }
    }
}

impl Thread {
    /// Returns the time at which the thread's timer was due, if no vCPU has taken the interrupt
    /// yet.
    fn overdue(&self, now: Nanos) -> Option<Nanos> {
        let (_, key) = self.timer.filter(|_| self.state == State::Sleeping)?;
        (key.0 < now).then_some(key.0)
    }
}

impl VcpuTimes {
    fn add(&mut self, mode: Mode, span: &Span) {
        self.steal += span.steal;
        match mode {
            Mode::Runs => self.user += span.own,
            Mode::Spins => self.spin += span.own,
            Mode::Idle | Mode::Halted | Mode::LockHalted | Mode::Off => self.idle += span.own,
        }
    }
}

impl ThreadTimes {
    fn add(&mut self, mode: Mode, span: &Span) {
        self.steal += span.steal;
        match mode {
            Mode::Runs | Mode::Spins => self.run += span.own,
            _ => self.wait += span.own,
        }
    }

    fn add_state(&mut self, state: State, since: Nanos, now: Nanos) {
        match state {
            State::Waiting => self.wait += now.saturating_sub(since),
            State::Sleeping => self.sleep += now.saturating_sub(since),
            State::Running | State::Gone => {}
        }
    }
}

impl GuestKernel {
    /// Counts the time since the vCPU's last step. Returns whether the vCPU was off its CPU.
    pub(crate) fn count_span(&mut self, host: &dyn Sys, v: usize) -> bool {
        let vcpu = &mut self.vcpus[v];
        let now = vcpu.time(host.now());
        let delay = host.run_delay(vcpu.task);
        let span = vcpu.span(now, delay);
        let mode = vcpu.mode;
        vcpu.times.add(mode, &span);
        let overlap = vcpu.clock.overlap + span.overlap;
        vcpu.clock = VcpuClock { last: now, kernel_mark: now, delay, overlap, ..vcpu.clock };
        if mode == Mode::Spins {
            vcpu.spun += span.own;
            vcpu.paused += span.own;
        }
        if let Some(t) = vcpu.current {
            self.thread_mut(t).times.add(mode, &span);
        }
        span.steal > 0
    }

    /// Counts the time of the present step's call so far for the vCPU's thread.
    pub(crate) fn count_kernel(&mut self, host: &dyn Sys, v: usize) {
        let vcpu = &mut self.vcpus[v];
        let now = vcpu.time(host.now());
        let spent = now - std::mem::replace(&mut vcpu.clock.kernel_mark, now);
        if let Some(t) = vcpu.current {
            self.thread_mut(t).times.kernel += spent;
        }
    }

    /// Counts the time of a step's call, at its end.
    pub(crate) fn count_call(&mut self, host: &mut dyn Sys, v: usize) {
        self.count_kernel(host, v);
        let vcpu = &mut self.vcpus[v];
        let now = vcpu.time(host.now());
        vcpu.times.kernel += now - vcpu.clock.last;
        vcpu.clock.last = now;
        let thread = vcpu.current.filter(|_| !matches!(vcpu.mode, Mode::Idle | Mode::Halted));
        let spins = vcpu.mode == Mode::Spins;
        let (guest, vcpu_number) = (self.config.number, v as u32);
        let run = GuestRun { guest, vcpu: vcpu_number, thread, spins };
        if vcpu.traced != run {
            vcpu.traced = run;
            host.guest_run(run);
        }
    }

    /// Puts a thread into a state, and counts the time in its last one.
    pub(crate) fn set_state(&mut self, t: u32, state: State, now: Nanos) {
        let thread = self.thread_mut(t);
        thread.times.add_state(thread.state, thread.since, now);
        thread.state = state;
        thread.since = now;
    }

    pub(crate) fn report_thread(&self, t: u32) -> ThreadReport {
        let thread = self.thread(t);
        let exited = thread.state == State::Gone;
        let (name, times) = (thread.name.clone(), thread.times);
        ThreadReport { name, times, work_units: thread.work_units, exited }
    }
}

impl Guest {
    /// Returns all times up to `now`.
    pub fn report(&self, host: &dyn Sys, now: Nanos) -> GuestReport {
        let mut threads = self.os.gone.clone();
        let mut open: Vec<ThreadReport> = Vec::new();
        let mut slots = vec![None; self.os.threads.len()];
        for (t, thread) in (0..).zip(&self.os.threads) {
            if thread.state != State::Gone {
                let mut report = self.os.report_thread(t);
                report.times.add_state(thread.state, thread.since, now);
                if let Some(due) = thread.overdue(now) {
                    let late = now - due.max(thread.since);
                    report.times.sleep -= late;
                    report.times.steal += late;
                }
                slots[t as usize] = Some(open.len());
                open.push(report);
            }
        }
        let vcpus = (0..).zip(&self.os.vcpus).map(|(v, vcpu): (u32, &Vcpu)| {
            let (mut times, mut overlap) = (vcpu.times, vcpu.clock.overlap);
            if vcpu.mode != Mode::Off {
                let span = vcpu.span(now, host.run_delay(vcpu.task));
                times.add(vcpu.mode, &span);
                overlap += span.overlap;
                if let Some(slot) = vcpu.current.and_then(|t| slots[t as usize]) {
                    open[slot].times.add(vcpu.mode, &span);
                }
            }
            let name = self.os.vcpu_name(v);
            VcpuReport { name, task: vcpu.task, times, overlap, switches: vcpu.switches }
        });
        let vcpus = vcpus.collect();
        threads.extend(open);
        GuestReport { vcpus, threads }
    }

    /// Returns the measurements up to `now`. A wait that has not ended counts with its length so
    /// far, so that a starved thread makes the figures worse.
    pub fn stats_at(&self, now: Nanos) -> Stats {
        let mut stats = self.os.stats.clone();
        for thread in self.os.threads.iter().filter(|thread| thread.state != State::Gone) {
            let open = |since: Option<Nanos>, waits: &mut TimeHistogram| {
                if let Some(since) = since {
                    waits.record(now.saturating_sub(since));
                }
            };
            open(thread.woken_at.or(thread.overdue(now)), &mut stats.wakeup_latency);
            open(thread.lock_wait_since, &mut stats.lock_wait);
            open(thread.flush_since, &mut stats.flush_wait);
        }
        stats
    }

    /// Returns the lifetime of each vCPU so far.
    pub fn lifetimes(&self, now: Nanos) -> impl Iterator<Item = Nanos> {
        let end = move |vcpu: &Vcpu| {
            if vcpu.mode == Mode::Off { vcpu.clock.last } else { vcpu.time(now) }
        };
        self.os.vcpus.iter().map(move |vcpu| end(vcpu) - vcpu.clock.born)
    }
}

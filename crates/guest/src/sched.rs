// SPDX-License-Identifier: GPL-2.0-only
//! The guest's scheduler: a run queue per vCPU, ordered by virtual run time.
//!
//! Owns: picks, wake-ups, preemption, the spread of threads over vCPUs.
//! Differs: Linux picks by deadline among the eligible threads (EEVDF); this scheduler picks the
//! least virtual run time. Deadline threads act as the highest real-time priority.

use std::cmp::Reverse;

use scxlab_kernel::behavior::{Policy, Sys};
use scxlab_kernel::task::NICE_TO_WEIGHT;
use scxlab_machine::cpumask;
use scxlab_machine::id::{CpuId, Nanos};

use crate::interrupt::Irq;
use crate::run::rank;
use crate::{Guest, GuestKernel, QueueKey, State};

/// Time for which a thread runs before others of its rank do (`sched_base_slice`).
const SLICE_NS: Nanos = 3_000_000;
/// Lead in virtual run time by which a woken thread preempts (`wakeup_granularity`).
const WAKEUP_GRANULARITY_NS: u64 = 1_000_000;
/// Slice of SCHED_RR (`RR_TIMESLICE`).
const RR_SLICE_NS: Nanos = 100_000_000;
/// Ticks between two attempts to balance a busy vCPU.
const BALANCE_TICKS: u32 = 8;

/// Returns the load weight of a thread.
pub(crate) fn weight(policy: Policy, nice: i8) -> u64 {
    match policy {
        Policy::Idle => 3,
        _ => NICE_TO_WEIGHT[(i32::from(nice).clamp(-20, 19) + 20) as usize],
    }
}

impl Guest {
    /// Checks that each thread is in one run queue, current on one vCPU, or neither, as its state
    /// says.
    pub fn check_threads(&self) -> Result<(), String> {
        self.os.check_threads()
    }
}

impl GuestKernel {
    fn key(&self, t: u32) -> QueueKey {
        let thread = self.thread(t);
        (Reverse(rank(thread.policy)), thread.vruntime, t)
    }

    pub(crate) fn allowed(&self, t: u32, v: usize) -> bool {
        let mask = self.thread(t).mask.as_ref();
        mask.is_none_or(|mask| cpumask::test(mask, CpuId(v as u32)))
    }

    /// Whether a vCPU has no thread and is not about to get one.
    fn is_free(&self, v: usize) -> bool {
        let vcpu = &self.vcpus[v];
        vcpu.current.is_none() && vcpu.queue.is_empty()
    }

    fn load(&self, v: usize) -> usize {
        let vcpu = &self.vcpus[v];
        vcpu.queue.len() + usize::from(vcpu.current.is_some())
    }

    /// Whether the kernel may take the current thread off the vCPU.
    fn preemptible(&self, t: u32) -> bool {
        let thread = self.thread(t);
        thread.lock_depth == 0 && thread.flush_left == 0
    }

    /// Picks a thread if the vCPU has none, or is to reschedule.
    pub(crate) fn reschedule(&mut self, host: &mut dyn Sys, v: usize) {
        let current = self.vcpus[v].current;
        let stays = |t: u32| !self.vcpus[v].need_resched || !self.preemptible(t);
        if current.is_some_and(stays) {
            return;
        }
        self.vcpus[v].need_resched = false;
        if let Some(t) = current {
            self.leave_vcpu(host, v, State::Waiting);
            match self.allowed(t, v) {
                true => self.enqueue(v, t),
                false => self.place_elsewhere(host, v, t),
            }
        }
        let Some((.., next)) = self.vcpus[v].queue.pop_first() else { return };
        let costs = &self.machine.costs.sched;
        host.charge(costs.pick_ns);
        let (process, footprint) = (self.thread(next).process, self.thread(next).footprint);
        let vcpu = &mut self.vcpus[v];
        if current != Some(next) {
            host.charge(costs.context_switch_ns);
            if std::mem::replace(&mut vcpu.last_process, process) != process {
                host.charge(costs.switch_mm_ns);
            }
            vcpu.switches += 1;
            vcpu.paused = 0;
            vcpu.spun = 0;
            if vcpu.last_thread.replace(next) != Some(next) {
                host.set_footprint(vcpu.task, footprint);
            }
        }
        // The vCPU has no thread until here, so that no thread pays for the switch.
        self.count_kernel(host, v);
        self.set_state(next, State::Running, host.now());
        let vcpu = &mut self.vcpus[v];
        vcpu.current = Some(next);
        vcpu.polled = false;
        self.raise_min_vruntime(v);
        let thread = self.thread_mut(next);
        thread.vcpu = v;
        if current != Some(next) {
            thread.slice_used = 0;
        }
        if let Some(woken) = thread.woken_at.take() {
            self.stats.wakeup_latency.record(host.now().saturating_sub(woken));
        }
    }

    /// Takes the current thread off its vCPU, into another state.
    pub(crate) fn leave_vcpu(&mut self, host: &mut dyn Sys, v: usize, state: State) {
        self.count_kernel(host, v);
        if let Some(t) = self.vcpus[v].current.take() {
            self.set_state(t, state, host.now());
        }
    }

    fn raise_min_vruntime(&mut self, v: usize) {
        let vcpu = &self.vcpus[v];
        let current = vcpu.current.map(|t| self.thread(t).vruntime);
        let first = vcpu.queue.first().map(|key| key.1);
        let least = current.into_iter().chain(first).min();
        let vcpu = &mut self.vcpus[v];
        vcpu.min_vruntime = vcpu.min_vruntime.max(least.unwrap_or(0));
    }

    /// Puts a waiting thread into a vCPU's queue.
    pub(crate) fn enqueue(&mut self, v: usize, t: u32) {
        self.thread_mut(t).vcpu = v;
        let key = self.key(t);
        self.vcpus[v].queue.insert(key);
    }

    /// Puts a thread into the queue of another vCPU than its last, with the same lead or lag.
    fn migrate(&mut self, t: u32, to: usize) {
        let from = self.thread(t).vcpu;
        let (old, new) = (self.vcpus[from].min_vruntime, self.vcpus[to].min_vruntime);
        let thread = self.thread_mut(t);
        thread.vruntime = (thread.vruntime + new).saturating_sub(old);
        self.enqueue(to, t);
    }

    /// Returns the allowed vCPU with the fewest threads, the lowest number first.
    fn emptiest(&self, t: u32) -> usize {
        let allowed = (0..self.vcpus.len()).filter(|v| self.allowed(t, *v));
        allowed.min_by_key(|v| self.load(*v)).unwrap_or(0)
    }

    fn place_elsewhere(&mut self, host: &mut dyn Sys, v: usize, t: u32) {
        let to = self.emptiest(t);
        self.migrate(t, to);
        self.arrived(host, v, to, t);
    }

    /// Tells a vCPU that a thread has arrived in its queue, if that makes a difference.
    fn arrived(&mut self, host: &mut dyn Sys, v: usize, to: usize, t: u32) {
        if self.booting {
            return;
        }
        let preempts = match self.vcpus[to].current {
            None => true,
            Some(current) => {
                let (current, woken) = (self.thread(current), self.thread(t));
                let (old, new) = (rank(current.policy), rank(woken.policy));
                let lead = current.vruntime.saturating_sub(woken.vruntime);
                new > old || new == old && new == 0 && lead > WAKEUP_GRANULARITY_NS
            }
        };
        if preempts {
            self.send(host, v, to, Irq::Resched);
        }
    }

    /// Wakes a thread from the vCPU `v`. Returns false if it was awake.
    pub(crate) fn wake_thread(&mut self, host: &mut dyn Sys, v: usize, t: u32) -> bool {
        match self.threads.get(t as usize).map(|thread| thread.state) {
            Some(State::Sleeping) => {}
            Some(State::Running | State::Waiting) => {
                self.thread_mut(t).wake_pending = true;
                return false;
            }
            Some(State::Gone) | None => return false,
        }
        if let Some((at, key)) = self.thread_mut(t).timer.take() {
            self.vcpus[at].timers.remove(&key);
        }
        let woken_at = host.now();
        let costs = &self.machine.costs.sched;
        let (to, scanned) = self.select(t);
        let scan = scanned * costs.select_scan_cpu_ns;
        host.charge(costs.wakeup_ns + costs.select_ns + scan + costs.enqueue_ns);
        self.set_state(t, State::Waiting, host.now());
        let from = self.thread(t).vcpu;
        let (old, new) = (self.vcpus[from].min_vruntime, self.vcpus[to].min_vruntime);
        let thread = self.thread_mut(t);
        thread.woken_at = Some(woken_at);
        let same_lag = (thread.vruntime + new).saturating_sub(old);
        thread.vruntime = same_lag.max(new.saturating_sub(SLICE_NS / 2));
        self.enqueue(to, t);
        self.arrived(host, v, to, t);
        true
    }

    /// Returns the vCPU for a thread that wakes up, and the number of vCPUs that were looked at.
    fn select(&self, t: u32) -> (usize, u64) {
        let (prev, count) = (self.thread(t).vcpu, self.vcpus.len());
        let mut scanned = 0;
        for v in (prev..count).chain(0..prev).filter(|v| self.allowed(t, *v)) {
            scanned += 1;
            if self.is_free(v) {
                return (v, scanned);
            }
        }
        let fallback = if self.allowed(t, prev) { prev } else { self.emptiest(t) };
        (fallback, scanned)
    }

    /// Puts a new thread on a vCPU.
    pub(crate) fn start_thread(&mut self, host: &mut dyn Sys, v: usize, t: u32) {
        let to = self.emptiest(t);
        self.thread_mut(t).vruntime = self.vcpus[to].min_vruntime;
        self.enqueue(to, t);
        self.arrived(host, v, to, t);
    }

    pub(crate) fn yield_current(&mut self, host: &mut dyn Sys, v: usize, t: u32) {
        host.charge(self.machine.costs.syscall.entry_ns);
        let own = rank(self.thread(t).policy);
        let equals = self.vcpus[v].queue.iter().filter(|key| key.0.0 == own);
        if let Some(last) = equals.map(|key| key.1).max() {
            let thread = self.thread_mut(t);
            thread.vruntime = thread.vruntime.max(last + 1);
        }
        self.vcpus[v].need_resched = true;
    }

    /// The scheduler's part of the tick.
    pub(crate) fn tick_current(&mut self, host: &mut dyn Sys, v: usize) {
        self.raise_min_vruntime(v);
        let Some(t) = self.vcpus[v].current else { return };
        let Some(&(Reverse(first), ..)) = self.vcpus[v].queue.first() else {
            return self.tick_balance(host, v);
        };
        let thread = self.thread(t);
        let slice = match thread.policy {
            Policy::Fifo { .. } | Policy::Deadline { .. } => Nanos::MAX,
            Policy::RoundRobin { .. } => RR_SLICE_NS,
            _ => SLICE_NS,
        };
        let own = rank(thread.policy);
        if first > own || first == own && thread.slice_used >= slice {
            self.vcpus[v].need_resched = true;
        }
        // A waiting thread goes to an idle vCPU: a busy vCPU balances for the idle ones.
        let waiting = self.vcpus[v].queue.last().map(|key| key.2);
        let free = |t: u32| {
            (0..self.vcpus.len()).find(|other| self.is_free(*other) && self.allowed(t, *other))
        };
        if let Some((t, to)) = waiting.and_then(|t| Some((t, free(t)?))) {
            self.charge_balance(host);
            host.charge(self.machine.costs.sched.migrate_ns);
            let key = self.key(t);
            self.vcpus[v].queue.remove(&key);
            self.migrate(t, to);
            self.arrived(host, v, to, t);
            return;
        }
        self.tick_balance(host, v);
    }

    fn tick_balance(&mut self, host: &mut dyn Sys, v: usize) {
        if self.vcpus[v].ticks.is_multiple_of(BALANCE_TICKS) {
            self.pull(host, v, 2);
        }
    }

    fn charge_balance(&self, host: &mut dyn Sys) {
        let costs = &self.machine.costs.sched;
        let scan = self.vcpus.len() as u64 * costs.balance_scan_cpu_ns;
        host.charge(costs.balance_ns + scan);
    }

    /// Pulls a waiting thread from the longest queue if its vCPU has `more` threads more than this
    /// one. Returns whether it has pulled one.
    pub(crate) fn pull(&mut self, host: &mut dyn Sys, v: usize, more: usize) -> bool {
        let own = self.load(v);
        let waits = |t: u32| self.allowed(t, v) && self.preemptible(t);
        let from = (0..self.vcpus.len()).filter(|other| {
            let waiting = !self.vcpus[*other].queue.is_empty();
            *other != v && waiting && self.load(*other) >= (own + more).max(2)
        });
        let busiest = from.max_by_key(|other| (self.load(*other), Reverse(*other)));
        let Some(from) = busiest else { return false };
        self.charge_balance(host);
        let found = self.vcpus[from].queue.iter().rev().find(|key| waits(key.2)).copied();
        let Some(key) = found else { return false };
        host.charge(self.machine.costs.sched.migrate_ns);
        self.vcpus[from].queue.remove(&key);
        self.migrate(key.2, v);
        true
    }

    /// Checks that each thread is where its state says.
    fn check_threads(&self) -> Result<(), String> {
        for (t, thread) in (0..).zip(&self.threads) {
            let queued = |vcpu: &&crate::Vcpu| vcpu.queue.iter().any(|key| key.2 == t);
            let queues = self.vcpus.iter().filter(queued).count();
            let currents = self.vcpus.iter().filter(|vcpu| vcpu.current == Some(t)).count();
            let expected = match thread.state {
                State::Running => (0, 1),
                State::Waiting => (1, 0),
                State::Sleeping | State::Gone => (0, 0),
            };
            if (queues, currents) != expected {
                let (name, state) = (&thread.name, thread.state);
                let found = format!("is in {queues} queues and current on {currents} vCPUs");
                return Err(format!("thread {name} is {state:?}, {found}"));
            }
            if queues == 1 && !self.vcpus[thread.vcpu].queue.contains(&self.key(t)) {
                return Err(format!("thread {} is queued under another key", thread.name));
            }
        }
        Ok(())
    }

    /// Changes what orders a thread in its queue, and reconsiders who runs.
    pub(crate) fn change(
        &mut self,
        host: &mut dyn Sys,
        v: usize,
        t: u32,
        change: impl FnOnce(&mut crate::Thread),
    ) {
        let key = self.key(t);
        let at = self.thread(t).vcpu;
        let queued = self.vcpus[at].queue.remove(&key);
        change(self.thread_mut(t));
        match self.thread(t).state {
            State::Waiting if queued && !self.allowed(t, at) => self.place_elsewhere(host, v, t),
            State::Waiting if queued => {
                self.enqueue(at, t);
                self.arrived(host, v, at, t);
            }
            State::Running => self.send(host, v, at, Irq::Resched),
            _ => {}
        }
    }
}

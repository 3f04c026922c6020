// SPDX-License-Identifier: GPL-2.0-only
//! The guest's scheduler: passes through it, wake-ups, and moves of threads between vCPUs.
//!
//! Owns: the order of classes, the switch, the costs of both. They are those of the host's kernel
//! (`kernel/src/schedule.rs`, `schedule/wake.rs`), so that a guest costs what its workload costs
//! without it, and its exits.
//! Does not: choose within a class (see `default_class.rs`, `rt.rs`).
//! Models: `__schedule()`, `try_to_wake_up()`, `ttwu_queue_cond()`, `wake_up_new_task()`,
//! `sched_change_begin()`, 7.3.
//!
//! `Vcpu::rq_curr` is `rq->curr`: a thread that sleeps or exits stays there until the switch.
//! `Vcpu::current` is the thread that pays for what the vCPU does, and is None during a switch.

use scxlab_fair::{DequeueFlags, EnqueueFlags, WakeFlags};
use scxlab_kernel::behavior::{Policy, Sys};
use scxlab_machine::cpumask::{self, CpuMask};
use scxlab_machine::id::{CpuId, Nanos, TaskId};

use crate::interrupt::Irq;
use crate::rt::rank;
use crate::{Class, Guest, GuestKernel, State};

impl Guest {
    /// Checks that each thread is in one run queue, current on one vCPU, or neither, as its state
    /// says.
    pub fn check_threads(&self) -> Result<(), String> {
        self.os.check_threads()
    }
}

impl GuestKernel {
    pub(crate) fn allowed(&self, t: u32, v: usize) -> bool {
        cpumask::test(&self.thread(t).mask, CpuId(v as u32))
    }

    pub(crate) fn class(&self, t: u32) -> Class {
        if rank(self.thread(t).policy) > 0 { Class::Rt } else { Class::Fair }
    }

    /// Returns the class of what runs on a vCPU.
    pub(crate) fn curr_class(&self, v: usize) -> Class {
        self.vcpus[v].rq_curr.map_or(Class::Idle, |t| self.class(t))
    }

    /// Whether the vCPU is to make a pass through the scheduler. A lazy request counts at the
    /// return to the program only (`lazy`).
    pub(crate) fn must_schedule(&self, v: usize, lazy: bool) -> bool {
        let vcpu = &self.vcpus[v];
        let wanted = vcpu.need_resched || lazy && vcpu.resched_lazy;
        wanted && vcpu.current.is_none_or(|t| self.preemptible(t))
    }

    /// Whether the kernel may take the current thread off the vCPU.
    fn preemptible(&self, t: u32) -> bool {
        let thread = self.thread(t);
        thread.lock_depth == 0 && thread.flush_left == 0
    }

    fn lock_rq(&mut self, host: &mut dyn Sys, of: usize) {
        let (cpu, at) = (host.this_cpu(), host.now());
        let cost = self.vcpus[of].rq_lock.acquire(&self.machine, cpu, at);
        host.charge(cost);
    }

    fn unlock_rq(&mut self, host: &mut dyn Sys, of: usize) {
        self.vcpus[of].rq_lock.release(host.now(), host.event_time());
    }

    /// Makes one pass through the scheduler: picks the next thread and switches to it.
    pub(crate) fn schedule(&mut self, host: &mut dyn Sys, v: usize) {
        host.charge(self.machine.costs.sched.pick_ns);
        self.lock_rq(host, v);
        let vcpu = &mut self.vcpus[v];
        vcpu.need_resched = false;
        vcpu.resched_lazy = false;
        let stopper = vcpu.push.is_some() || vcpu.active_balance;
        if stopper {
            self.run_stopper(host, v);
        }
        let prev = self.vcpus[v].rq_curr;
        let next = match self.rt_pick(host, v) {
            Some(t) => Some(t),
            None => self.fair_pick(host, v),
        };
        if stopper || next != prev {
            if let Some(prev) = prev {
                self.put_prev(host, v, prev);
            }
            self.set_next(host, v, next);
            self.switch(host, v, prev, next);
        } else {
            self.vcpus[v].next_class = self.curr_class(v);
            // The thread was woken before it had left the vCPU.
            if let Some(t) = next.filter(|_| self.vcpus[v].current.is_none()) {
                self.go_on(host, v, t);
            }
        }
        self.unlock_rq(host, v);
    }

    /// Moves threads that the vCPU was asked to give away, the running one included.
    fn run_stopper(&mut self, host: &mut dyn Sys, v: usize) {
        let vcpu = &mut self.vcpus[v];
        let push = vcpu.push.take();
        let balance = std::mem::take(&mut vcpu.active_balance);
        if let Some(prev) = vcpu.rq_curr {
            self.put_prev(host, v, prev);
            self.leave(host, v, Some(prev));
            self.vcpus[v].rq_curr = None;
            self.vcpus[v].next_class = Class::Idle;
            self.after_switch(host, prev);
        }
        if let Some((t, to)) = push {
            let thread = self.thread(t);
            let waits = thread.state == State::Waiting && thread.wake_queued.is_none();
            if waits && thread.vcpu == v && self.allowed(t, to) {
                self.move_queued(host, v, t, to);
            }
        }
        if balance {
            self.fair_active_balance(host, v);
        }
    }

    fn put_prev(&mut self, host: &mut dyn Sys, v: usize, prev: u32) {
        match self.class(prev) {
            Class::Fair => self.fair_put_prev(host, v),
            _ => self.rt_charge(host, v, prev),
        }
        if self.vcpus[v].current.is_some() {
            self.leave_vcpu(host, v, State::Waiting);
        }
    }

    fn set_next(&mut self, host: &mut dyn Sys, v: usize, next: Option<u32>) {
        let Some(t) = next else { return };
        match self.class(t) {
            Class::Fair => self.fair_set_next(host, v, t),
            _ => self.vcpus[v].rt_since = host.now(),
        }
    }

    /// `context_switch()`. The vCPU has no thread meanwhile, so that none pays for the switch.
    fn switch(&mut self, host: &mut dyn Sys, v: usize, prev: Option<u32>, next: Option<u32>) {
        let process = |t: Option<u32>| t.map(|t| self.thread(t).process);
        let costs = &self.machine.costs.sched;
        let mm = if process(prev) == process(next) { 0 } else { costs.switch_mm_ns };
        host.charge(costs.context_switch_ns + mm);
        self.count_kernel(host, v);
        self.leave(host, v, prev);
        let next_class = next.map_or(Class::Idle, |t| self.class(t));
        let vcpu = &mut self.vcpus[v];
        vcpu.rq_curr = next;
        vcpu.next_class = next_class;
        vcpu.switches += 1;
        vcpu.paused = 0;
        vcpu.spun = 0;
        if prev.is_none() {
            self.fair_leave_idle(host, v);
        }
        match next {
            None => self.fair_enter_idle(host, v),
            Some(t) => {
                let (bytes, marks) = (self.thread(t).footprint, self.thread(t).cache);
                if bytes > 0 {
                    host.switch_footprint(self.vcpus[v].task, bytes, marks);
                }
                self.go_on(host, v, t);
            }
        }
        if let Some(prev) = prev {
            self.after_switch(host, prev);
        }
    }

    /// Takes the working set of the thread that leaves from the vCPU's task.
    fn leave(&mut self, host: &mut dyn Sys, v: usize, prev: Option<u32>) {
        let Some(t) = prev.filter(|t| self.thread(*t).footprint > 0) else { return };
        let left = host.switch_footprint(self.vcpus[v].task, 0, Default::default());
        self.thread_mut(t).cache = left;
    }

    /// Makes a thread the one that pays for what the vCPU does.
    fn go_on(&mut self, host: &mut dyn Sys, v: usize, t: u32) {
        self.set_state(t, State::Running, host.now());
        let vcpu = &mut self.vcpus[v];
        vcpu.current = Some(t);
        vcpu.polled = false;
        let thread = self.thread_mut(t);
        thread.vcpu = v;
        if let Some(woken) = thread.woken_at.take() {
            self.stats.wakeup_latency.record(host.now().saturating_sub(woken));
        }
    }

    /// Releases the previous thread if it has exited.
    fn after_switch(&mut self, host: &mut dyn Sys, prev: u32) {
        if self.thread(prev).state == State::Gone {
            self.fair.task_dead(TaskId(prev), host.now());
            self.free.push(prev);
        }
    }

    /// Takes the current thread off its vCPU, into another state.
    pub(crate) fn leave_vcpu(&mut self, host: &mut dyn Sys, v: usize, state: State) {
        self.count_kernel(host, v);
        if let Some(t) = self.vcpus[v].current.take() {
            self.set_state(t, state, host.now());
        }
    }

    /// `resched_curr()`: makes a vCPU schedule as soon as it can.
    pub(crate) fn resched(&mut self, host: &mut dyn Sys, v: usize, of: usize) {
        let vcpu = &mut self.vcpus[of];
        if !std::mem::replace(&mut vcpu.need_resched, true) && of != v {
            self.send(host, v, of, Irq::Resched);
        }
    }

    fn dequeue(&mut self, host: &mut dyn Sys, v: usize, t: u32, flags: DequeueFlags) {
        match self.class(t) {
            Class::Fair => self.fair_dequeue(host, v, t, flags),
            _ => self.rt_dequeue(t),
        }
    }

    /// Puts the current thread to sleep, or ends it.
    pub(crate) fn deschedule(&mut self, host: &mut dyn Sys, v: usize, t: u32, state: State) {
        let exits = state == State::Gone;
        let flags = if exits { DequeueFlags::EXIT } else { DequeueFlags::SLEEP };
        self.dequeue(host, v, t, flags);
        self.leave_vcpu(host, v, state);
        self.vcpus[v].need_resched = true;
    }

    /// Wakes a thread from the vCPU `v`. Returns false if it was awake.
    pub(crate) fn wake_thread(&mut self, host: &mut dyn Sys, v: usize, t: u32, sync: bool) -> bool {
        self.wake_thread_due(host, v, t, sync, Nanos::MAX)
    }

    /// As `wake_thread`, for a wake-up that was due at a time at which the vCPU may have had no
    /// CPU.
    pub(crate) fn wake_thread_due(
        &mut self,
        host: &mut dyn Sys,
        v: usize,
        t: u32,
        sync: bool,
        due: Nanos,
    ) -> bool {
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
        host.charge(self.machine.costs.sched.wakeup_ns);
        let woken_at = host.now();
        let due = due.max(self.thread(t).since).min(woken_at);
        self.set_state(t, State::Sleeping, due);
        let thread = self.thread_mut(t);
        thread.times.steal += woken_at - due;
        (thread.state, thread.since, thread.woken_at) = (State::Waiting, woken_at, Some(due));
        let flags = WakeFlags { sync, ..WakeFlags::default() };
        if self.class(t) == Class::Fair
            && let Some(on) = self.fair.delayed_on(TaskId(t))
        {
            self.activate(host, v, on.idx(), t, EnqueueFlags::WAKEUP, flags);
            return true;
        }
        let prev = self.thread(t).vcpu;
        let to = self.select(host, v, t, WakeFlags { ttwu: true, ..flags });
        self.thread_mut(t).vcpu = to;
        let enqueue = EnqueueFlags { migrated: to != prev, ..EnqueueFlags::WAKEUP };
        // `ttwu_queue_cond()`: an idle vCPU enqueues the thread itself. All share one LLC.
        if to != v && self.vcpus[to].rq_curr.is_none() {
            self.thread_mut(t).wake_queued = Some(enqueue);
            self.vcpus[to].wake_list.push(t);
            if self.vcpus[to].wake_list.len() == 1 {
                self.send(host, v, to, Irq::WakeList);
            }
        } else {
            self.activate(host, v, to, t, enqueue, flags);
        }
        true
    }

    /// Enqueues the threads that others have woken for this vCPU.
    pub(crate) fn activate_wake_list(&mut self, host: &mut dyn Sys, v: usize, woken: Vec<u32>) {
        host.charge(self.machine.costs.irq.resched_ns);
        for t in woken {
            if let Some(flags) = self.thread_mut(t).wake_queued.take() {
                self.activate(host, v, v, t, flags, WakeFlags::default());
                if !self.allowed(t, v) {
                    self.leave_forbidden(host, v, t);
                }
            }
        }
    }

    /// `ttwu_do_activate()`: enqueues a thread, under the run queue's lock.
    fn activate(
        &mut self,
        host: &mut dyn Sys,
        v: usize,
        to: usize,
        t: u32,
        enqueue: EnqueueFlags,
        flags: WakeFlags,
    ) {
        self.lock_rq(host, to);
        let at = host.now();
        host.charge(self.machine.costs.sched.enqueue_ns);
        match self.class(t) {
            Class::Fair => self.fair_enqueue(host, v, to, t, at, enqueue),
            _ => self.rt_enqueue(to, t),
        }
        self.wakeup_preempt(host, v, to, t, flags);
        self.unlock_rq(host, to);
    }

    /// Returns the vCPU for a thread that wakes up, starts or executes a program.
    fn select(&mut self, host: &mut dyn Sys, v: usize, t: u32, flags: WakeFlags) -> usize {
        let prev = self.thread(t).vcpu;
        let chosen = match self.class(t) {
            _ if self.thread(t).nr_allowed <= 1 => self.first_allowed(t),
            Class::Fair => self.fair_select(host, v, t, flags),
            _ => self.rt_select(t, prev),
        };
        let usable = [chosen, prev].into_iter().find(|v| self.allowed(t, *v));
        usable.unwrap_or_else(|| self.first_allowed(t))
    }

    fn first_allowed(&self, t: u32) -> usize {
        cpumask::first(&self.thread(t).mask).map_or(0, CpuId::idx)
    }

    /// `wakeup_preempt()`: decides whether a thread that arrived on `to` interrupts
    /// the running one.
    fn wakeup_preempt(
        &mut self,
        host: &mut dyn Sys,
        v: usize,
        to: usize,
        t: u32,
        flags: WakeFlags,
    ) {
        let (class, next) = (self.class(t), self.vcpus[to].next_class);
        if class > next {
            self.vcpus[to].next_class = class;
            self.resched(host, v, to);
        } else if class == next {
            match class {
                Class::Fair => self.fair_wakeup_preempt(host, v, to, t, flags),
                _ => self.rt_wakeup_preempt(host, v, to, t),
            }
        }
    }

    /// `wake_up_new_task()`: puts a new thread on a vCPU.
    pub(crate) fn start_thread(&mut self, host: &mut dyn Sys, v: usize, t: u32) {
        self.fair_new(t);
        let to = self.select(host, v, t, WakeFlags::FORK);
        self.thread_mut(t).vcpu = to;
        self.activate(host, v, to, t, EnqueueFlags::INITIAL, WakeFlags::FORK);
    }

    /// Moves a thread that waits in a run queue to another vCPU.
    pub(crate) fn move_queued(&mut self, host: &mut dyn Sys, v: usize, t: u32, to: usize) {
        self.dequeue(host, v, t, DequeueFlags::MIGRATE);
        self.thread_mut(t).vcpu = to;
        let flags = EnqueueFlags { migrated: true, ..EnqueueFlags::RESTORE };
        let now = host.now();
        match self.class(t) {
            Class::Fair => self.fair_enqueue(host, v, to, t, now, flags),
            _ => self.rt_enqueue(to, t),
        }
        self.wakeup_preempt(host, v, to, t, WakeFlags::default());
    }

    /// Makes the vCPU give away its running thread.
    fn push_away(&mut self, host: &mut dyn Sys, v: usize, t: u32, to: usize) {
        host.charge(2 * self.machine.costs.sched.context_switch_ns);
        let of = self.thread(t).vcpu;
        self.vcpus[of].push = Some((t, to));
        self.resched(host, v, of);
    }

    /// `sched_exec()`: a thread that executes a program has no cache content to lose.
    pub(crate) fn exec_thread(&mut self, host: &mut dyn Sys, v: usize, t: u32) {
        let to = self.select(host, v, t, WakeFlags { ttwu: false, ..WakeFlags::EXEC });
        if to != v {
            self.push_away(host, v, t, to);
        }
        self.thread_mut(t).cache = Default::default();
    }

    pub(crate) fn yield_current(&mut self, host: &mut dyn Sys, v: usize, t: u32) {
        host.charge(self.machine.costs.syscall.entry_ns);
        match self.class(t) {
            Class::Fair => self.fair_yield(host, v),
            _ => self.rt_requeue(v, t),
        }
        self.vcpus[v].need_resched = true;
    }

    /// The scheduler's part of the tick of a busy vCPU.
    pub(crate) fn sched_tick(&mut self, host: &mut dyn Sys, v: usize) {
        let Some(t) = self.vcpus[v].rq_curr else { return };
        match self.class(t) {
            Class::Fair => self.fair_tick(host, v),
            _ => self.rt_tick(host, v, t),
        }
        self.fair_balance_tick(host, v);
    }

    pub(crate) fn set_thread_nice(&mut self, host: &mut dyn Sys, v: usize, t: u32, nice: i8) {
        self.thread_mut(t).nice = nice.clamp(-20, 19);
        self.fair_reweight(host, v, t);
    }

    pub(crate) fn set_thread_mask(&mut self, host: &mut dyn Sys, v: usize, t: u32, mask: CpuMask) {
        self.end_delay(host, t);
        let thread = self.thread_mut(t);
        thread.nr_allowed = cpumask::weight(&mask);
        thread.mask = mask;
        if !self.allowed(t, self.thread(t).vcpu) {
            self.leave_forbidden(host, v, t);
        }
    }

    /// Moves a thread that may not use its vCPU any more.
    fn leave_forbidden(&mut self, host: &mut dyn Sys, v: usize, t: u32) {
        let to = self.first_allowed(t);
        match self.thread(t).state {
            State::Running => self.push_away(host, v, t, to),
            State::Waiting if self.thread(t).wake_queued.is_none() => {
                self.move_queued(host, v, t, to);
            }
            _ => {}
        }
    }

    /// A thread that sleeps, but is still queued (delayed dequeue), cannot change: its delay ends.
    fn end_delay(&mut self, host: &mut dyn Sys, t: u32) {
        if self.thread(t).state == State::Sleeping && self.class(t) == Class::Fair {
            self.fair.end_delay(TaskId(t), host.now());
        }
    }

    pub(crate) fn set_thread_policy(
        &mut self,
        host: &mut dyn Sys,
        v: usize,
        t: u32,
        policy: Policy,
    ) {
        self.end_delay(host, t);
        let thread = self.thread(t);
        let (at, running) = (thread.vcpu, thread.state == State::Running);
        let queued = running || thread.state == State::Waiting && thread.wake_queued.is_none();
        let old = self.class(t);
        let new = if rank(policy) > 0 { Class::Rt } else { Class::Fair };
        if old == new && new == Class::Fair {
            self.thread_mut(t).policy = policy;
            return self.fair_reweight(host, v, t);
        }
        if queued {
            let flags = DequeueFlags { special: true, ..DequeueFlags::SAVE };
            self.dequeue(host, v, t, flags);
        }
        if old == Class::Fair {
            if running {
                self.fair.put_prev(CpuId(at as u32), host.now());
            }
            self.fair_switched_from(host, t);
        }
        self.thread_mut(t).policy = policy;
        self.fair_reweight(host, v, t);
        if new == Class::Fair {
            self.fair_switched_to(host, t);
        }
        if queued {
            match new {
                Class::Fair => {
                    let now = host.now();
                    self.fair_enqueue(host, v, at, t, now, EnqueueFlags::RESTORE);
                }
                _ => self.rt_enqueue(at, t),
            }
        }
        if running {
            self.set_next(host, at, Some(t));
            self.vcpus[at].next_class = new;
            self.vcpus[at].need_resched = at == v;
            self.resched(host, v, at);
        } else if queued {
            self.wakeup_preempt(host, v, at, t, WakeFlags::default());
        }
    }

    /// Checks that each thread is where its state says.
    fn check_threads(&self) -> Result<(), String> {
        let mut queued = vec![0; self.threads.len()];
        let mut current = vec![0; self.threads.len()];
        for (v, vcpu) in self.vcpus.iter().enumerate() {
            let fair = self.fair.tasks_on(CpuId(v as u32)).into_iter().map(|task| task.0);
            let waits = fair.chain(self.rt.threads(v)).chain(vcpu.wake_list.iter().copied());
            for t in waits {
                queued[t as usize] += 1;
                if self.thread(t).vcpu != v {
                    return Err(format!("thread {} waits on vCPU {v}", self.thread(t).name));
                }
            }
            if let Some(t) = vcpu.current {
                current[t as usize] += 1;
            }
        }
        for (t, thread) in self.threads.iter().enumerate() {
            let (queues, currents) = (queued[t], current[t]);
            let ok = match thread.state {
                State::Running => (queues, currents) == (1, 1),
                State::Waiting => (queues, currents) == (1, 0),
                State::Sleeping => {
                    let delayed = self.fair.delayed_on(TaskId(t as u32)).is_some();
                    (queues, currents) == (u32::from(delayed), 0)
                }
                State::Gone => (queues, currents) == (0, 0),
            };
            if !ok {
                let (name, state) = (&thread.name, thread.state);
                let found = format!("is in {queues} queues and current on {currents} vCPUs");
                return Err(format!("thread {name} is {state:?}, {found}"));
            }
        }
        Ok(())
    }
}

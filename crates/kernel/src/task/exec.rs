// SPDX-License-Identifier: GPL-2.0-only
//! Progress: how far a CPU's task gets with its step (a computation, a sleep or another `TaskStep`
//! of its behaviour), and what happens at the end of the step.
//!
//! Owns: a task's present step, the step's remaining work, the speed of CPUs, and the cache refill
//! time that tasks owe.
//! Does not: choose the task that runs.
//!
//! The kernel brings a task's progress up to date only when an event needs it, because the CPU's
//! speed is constant between the events that change it. If interrupts took time, a step-end event
//! comes too early; its handler finds work left and posts the event again.

use std::any::Any;

use crate::bpf::flags::queue;
use crate::cpu::Cpu;
use crate::kernel::event::{Event, lane};
use crate::kernel::{AfterEvent, Kernel, Stop};
use crate::task::behavior::{Behavior, Sys as _, TaskStep};
use crate::task::{Task, TaskState, TaskTable};
use scxlab_machine::id::{CpuId, Nanos, TaskId};

/// Shift from ns to the unit of work, 1/1024 ns. In this unit, wall time multiplied by a speed in
/// 1/1024 of full speed is exact.
pub(super) const WORK_SHIFT: u32 = 10;

/// Events that are due in less than this many ns go to the event queue's lane `SOON`.
const SOON_NS: Nanos = 20_000;

impl Kernel {
    /// Brings the progress and time accounts of a CPU up to `now`.
    pub(crate) fn settle(&mut self, cpu: CpuId) {
        let Kernel { cpus, tasks, now, .. } = self;
        cpus[cpu].settle(*now, tasks);
    }

    /// Posts an event for the end of the current step, unless the pending step-end event is early
    /// enough.
    pub(crate) fn arm_step_end(&mut self, cpu: CpuId) {
        if let Some((at, lane)) = self.cpus[cpu].step_end_due(&self.tasks) {
            self.post_step_end(cpu, at, lane);
        }
    }

    #[inline(always)]
    pub(crate) fn post_step_end(&mut self, cpu: CpuId, at: Nanos, lane: usize) {
        let Kernel { cpus, events, .. } = self;
        events.push_in(lane, at, cpus[cpu].expect_step_end(at));
    }

    #[inline(always)]
    pub(crate) fn step_end(&mut self, cpu: CpuId, generation: u32) -> AfterEvent {
        let Kernel { cpus, tasks, now, .. } = self;
        let c = &mut cpus[cpu];
        if c.run_gen != generation {
            return AfterEvent::Nothing;
        }
        c.done_at = Nanos::MAX;
        if c.is_idle() {
            return AfterEvent::Nothing;
        }
        if !c.sync_wait.is_empty() {
            return c.spun_until(*now, tasks);
        }
        let Some(wall) = tasks[c.curr].wall_left(c.speed) else { return AfterEvent::Nothing };
        let at = c.progress_from + wall;
        // The step ends later than this event, because interrupts took time. The event is posted
        // again, for which the task's progress need not be settled.
        if at > *now && !self.skip_to(at) {
            self.post_step_end(cpu, at, lane::SOON);
            return AfterEvent::Nothing;
        }
        AfterEvent::NextSteps(cpu)
    }

    /// Advances the time to `at` if an event at `at` would be the next event anyway, so that the
    /// caller can handle that event without queueing it. Returns whether it advanced the time.
    #[inline(always)]
    pub(crate) fn skip_to(&mut self, at: Nanos) -> bool {
        let next = self.would_be_next(at);
        if next {
            self.now = at;
            self.metrics.events += 1;
        }
        next
    }

    /// Starts the next step of the task on `cpu`, and further steps until a step takes time or
    /// gives up the CPU.
    #[inline(always)]
    pub(crate) fn next_steps(&mut self, cpu: CpuId) {
        let task = self.cpus[cpu].curr;
        self.take_rq_clock(cpu);
        if self.memory.is_some() && self.memory_goes_on(cpu, task) {
            return;
        }
        for _ in 0..self.end.limits.max_instant_steps {
            let Some(step) = self.ask_step(task) else { return };
            self.tasks[task].step = Some(step);
            if self.begin_step(cpu, task, step) || self.end.stop.is_some() {
                return;
            }
            self.tasks[task].step = None;
            if self.cpus[cpu].must_schedule() {
                return;
            }
        }
        let name = self.tasks[task].name.clone();
        self.end.stop_with(Stop::Livelock { task: name, max: self.end.limits.max_instant_steps });
    }

    /// Starts a step. Returns true if the step takes time or gives up the CPU, false if it is over
    /// at once.
    #[inline(always)]
    fn begin_step(&mut self, cpu: CpuId, task: TaskId, step: TaskStep) -> bool {
        match step {
            TaskStep::Compute { work } => {
                self.set_left(task, work.saturating_mul(1 << WORK_SHIFT)) || self.others_due()
            }
            TaskStep::ComputeWall { wall } => self.set_left(task, wall),
            TaskStep::Memory { work } => self.memory_begin(cpu, task, work),
            TaskStep::Spin => !std::mem::take(&mut self.tasks[task].spin_ended),
            TaskStep::SpinFor { max } => {
                !std::mem::take(&mut self.tasks[task].spin_ended) && self.set_left(task, max)
            }
            TaskStep::Block => self.block(cpu, task),
            TaskStep::SleepUntil(until) => self.sleep_until(cpu, task, until),
            TaskStep::Yield => {
                self.charge(self.machine.costs.syscall.entry_ns);
                self.yield_curr(cpu);
                self.tasks[task].step = None;
                true
            }
            TaskStep::Exec => {
                self.tasks[task].execed = true;
                crate::bpf::mirror::identity(&mut self.vm.mem, &self.tasks[task]);
                if self.memory.is_some() {
                    self.numa_execed(task);
                }
                self.exec_balance(cpu, task);
                false
            }
            TaskStep::FlushTlb => {
                let cost = self.flush_cost(cpu, self.tasks[task].leader);
                self.charge(cost);
                false
            }
            TaskStep::Exit => {
                self.exit_curr(cpu, task);
                true
            }
        }
    }

    fn set_left(&mut self, task: TaskId, left: u64) -> bool {
        self.tasks[task].step_left = left;
        left > 0
    }

    fn block(&mut self, cpu: CpuId, task: TaskId) -> bool {
        if std::mem::take(&mut self.tasks[task].wake_pending) {
            return false;
        }
        self.deschedule(cpu, task);
        true
    }

    #[inline(always)]
    fn sleep_until(&mut self, cpu: CpuId, task: TaskId, until: Nanos) -> bool {
        let woken = std::mem::take(&mut self.tasks[task].wake_pending);
        if woken || until <= self.clock() {
            return false;
        }
        self.charge(self.machine.costs.irq.hrtimer_arm_ns);
        let t = &mut self.tasks[task];
        t.sleep_gen = t.sleep_gen.wrapping_add(1);
        let generation = t.sleep_gen;
        self.push_timer(until, Event::SleepEnd { task, cpu, generation });
        self.deschedule(cpu, task);
        true
    }

    /// Puts the current task to sleep and dequeues it from its class.
    #[inline(always)]
    fn deschedule(&mut self, cpu: CpuId, task: TaskId) {
        self.charge(self.machine.costs.sched.dequeue_ns);
        self.set_state(task, TaskState::Sleeping);
        self.tasks[task].step = None;
        self.tasks.nr_runnable -= 1;
        self.cpus[cpu].voluntary = true;
        self.dequeue_task(cpu, task, queue::SLEEP | queue::NOCLOCK);
        self.cpus[cpu].need_resched = true;
    }

    #[inline(always)]
    pub(crate) fn sleep_end(&mut self, task: TaskId, cpu: CpuId, generation: u32) -> AfterEvent {
        self.end.pending_wakeups -= 1;
        let stale = self.tasks.get(task).is_none_or(|t| {
            t.sleep_gen != generation || t.state != TaskState::Sleeping || t.wake_queued.is_some()
        });
        if stale {
            return AfterEvent::Nothing;
        }
        self.on_cpu_last(cpu, |k| {
            k.charge(k.machine.costs.irq.timer_ns);
            k.wake_up(task, 0);
        })
    }

    /// Calls `f` with the run's behaviour object, which is taken out of the kernel for the call.
    pub(crate) fn with_behavior<R>(
        &mut self,
        f: impl FnOnce(&mut dyn Behavior, &mut Kernel) -> R,
    ) -> Option<R> {
        let mut behavior = self.behavior.take()?;
        let result = f(&mut *behavior, self);
        self.behavior = Some(behavior);
        Some(result)
    }

    /// Returns the run's behaviour object, if its type is `B`.
    pub fn behavior<B: Behavior>(&self) -> Option<&B> {
        let behavior: &dyn Any = self.behavior.as_deref()?;
        behavior.downcast_ref()
    }

    fn ask_step(&mut self, task: TaskId) -> Option<TaskStep> {
        self.exec.stepping = true;
        let step = self.with_behavior(|b, k| b.step(k, task));
        self.exec.stepping = false;
        step
    }

    #[inline(never)]
    pub(crate) fn posted(&mut self, cpu: CpuId, token: u64) -> AfterEvent {
        self.end.pending_wakeups -= 1;
        self.on_cpu_last(cpu, |k| {
            k.charge(k.machine.costs.irq.timer_ns);
            k.with_behavior(|b, k| b.on_timer(k, token));
        })
    }

    /// Posts an event that may wake a task. While such an event is pending, sleeping tasks are no
    /// deadlock.
    pub(crate) fn push_wakeup(&mut self, at: Nanos, event: Event) {
        self.end.pending_wakeups += 1;
        if at < self.now + SOON_NS {
            self.events.push_in(lane::SOON, at, event);
        } else {
            self.events.push(at, event);
        }
    }

    /// As `push_wakeup`, for the expiry of a timer.
    #[inline(always)]
    pub(crate) fn push_timer(&mut self, at: Nanos, event: Event) {
        self.end.pending_wakeups += 1;
        self.events.push_in(lane::TIMER, at, event);
    }

    /// Ends the current spin of a task, or its next spin if the task does not spin now.
    pub(crate) fn end_spin(&mut self, task: TaskId) {
        let t = &mut self.tasks[task];
        t.spin_ended = true;
        let (cpu, on_cpu) = (t.cpu, t.on_cpu);
        let limited = matches!(t.step, Some(TaskStep::SpinFor { .. }));
        if limited || on_cpu && t.step == Some(TaskStep::Spin) {
            t.spin_ended = false;
            t.step = None;
            t.step_left = 0;
            if !on_cpu {
                return;
            }
            let at = self.clock() + self.hand_over(self.exec.cpu, cpu);
            let event = self.cpus[cpu].expect_step_end(at);
            self.events.push(at, event);
        }
    }

    /// Updates the speed of a CPU, after a sibling became busy or idle, or another task began to
    /// run.
    pub(crate) fn refresh_speed(&mut self, cpu: CpuId) {
        let speed = self.speed_of(cpu);
        if self.cpus[cpu].speed == speed {
            return;
        }
        self.settle(cpu);
        let c = &mut self.cpus[cpu];
        c.speed = speed;
        if c.kernel_until <= self.now {
            c.done_at = Nanos::MAX;
            self.arm_step_end(cpu);
        }
        if self.memory.is_some() {
            self.memory_refresh(cpu);
        }
    }

    /// Returns the present speed of `cpu` in 1/1024 of full speed: the CPU's capacity, reduced
    /// while a sibling is busy.
    fn speed_of(&self, cpu: CpuId) -> u64 {
        let info = self.machine.topology.cpu(cpu);
        let busy = |s: &CpuId| !self.cpus[*s].is_idle();
        let busy_sibling = self.cpus[cpu].siblings.iter().any(busy);
        let full = u64::from(info.capacity);
        if busy_sibling { self.machine.costs.smt.busy_sibling_speed.of(full) } else { full }
    }
}

impl Cpu {
    /// Brings progress and time accounts up to `now`.
    #[inline]
    pub(crate) fn settle(&mut self, now: Nanos, tasks: &mut TaskTable) {
        if now <= self.progress_from {
            return;
        }
        let wall = now - self.progress_from;
        self.progress_from = now;
        if !self.sync_wait.is_empty() {
            self.time.overhead += wall;
            self.time.lock_wait += wall;
        } else if !self.is_idle() {
            self.time.busy += wall;
            tasks[self.curr].advance(wall, self.speed);
        } else if self.online {
            self.time.idle += wall;
        }
    }

    /// Returns the end of the current step and the event lane for it, unless the pending step-end
    /// event is early enough.
    #[inline(always)]
    pub(crate) fn step_end_due(&self, tasks: &TaskTable) -> Option<(Nanos, usize)> {
        // The pending event comes no later than the time from which the task makes progress, so it
        // is early enough even if no work is left.
        let due = self.done_at <= self.progress_from;
        if due || self.is_idle() || !self.sync_wait.is_empty() {
            return None;
        }
        let wall = tasks[self.curr].wall_left(self.speed)?;
        let at = self.progress_from + wall;
        let lane = if wall < SOON_NS { lane::SOON } else { lane::STEP };
        (at < self.done_at).then_some((at, lane))
    }

    /// Handles a step-end event on a CPU that spins until other CPUs reschedule (SCX_KICK_WAIT).
    /// Spinning is no progress, so the step is over only if no work was left before.
    #[cold]
    fn spun_until(&mut self, now: Nanos, tasks: &mut TaskTable) -> AfterEvent {
        self.settle(now, tasks);
        let over = self.progress_from <= now && tasks[self.curr].wall_left(self.speed) == Some(0);
        if over { AfterEvent::NextSteps(self.id) } else { AfterEvent::Nothing }
    }

    /// Returns the event for the end of the present step at `at`. All earlier step-end events
    /// become stale.
    #[inline]
    fn expect_step_end(&mut self, at: Nanos) -> Event {
        self.run_gen = self.run_gen.wrapping_add(1);
        self.done_at = at;
        Event::StepEnd { cpu: self.id, generation: self.run_gen }
    }

    /// Makes all queued step-end events of this CPU stale.
    #[inline]
    pub(crate) fn expect_no_step_end(&mut self) {
        self.run_gen = self.run_gen.wrapping_add(1);
        self.done_at = Nanos::MAX;
    }
}

impl Task {
    /// Advances the step by `wall` ns at `speed`. The task first refills caches, so only the time
    /// that is left after `refill_left` advances the step.
    #[inline]
    fn advance(&mut self, wall: Nanos, speed: u64) {
        let paid = wall.min(self.refill_left);
        self.refill_left -= paid;
        let wall = wall - paid;
        let done = match self.step {
            Some(TaskStep::Compute { .. }) => wall * speed,
            Some(TaskStep::ComputeWall { .. } | TaskStep::SpinFor { .. }) => wall,
            Some(TaskStep::Memory { .. }) => self.accessed_in(wall),
            _ => 0,
        };
        self.step_left = self.step_left.saturating_sub(done);
    }

    /// Returns the wall time until the step is done at `speed`; None: the step does not end by
    /// itself.
    #[inline]
    fn wall_left(&self, speed: u64) -> Option<Nanos> {
        match self.step {
            Some(TaskStep::Spin) if !self.spin_ended => None,
            // At full speed the remaining wall time needs no division by the speed.
            Some(TaskStep::Compute { .. }) if speed == 1 << WORK_SHIFT => {
                Some(self.refill_left + self.step_left.div_ceil(1 << WORK_SHIFT))
            }
            Some(TaskStep::Compute { .. }) => {
                Some(self.refill_left + self.step_left.div_ceil(speed.max(1)))
            }
            Some(TaskStep::Memory { .. }) => Some(self.refill_left + self.access_time()),
            _ => Some(self.refill_left + self.step_left),
        }
    }

    /// Returns how far a memory step gets in `wall` ns.
    // Out of line, as `access_time` is: other steps then cost what they cost without memory steps.
    #[cold]
    fn accessed_in(&self, wall: Nanos) -> u64 {
        wall.saturating_mul(self.mem_speed)
    }

    /// Returns the time that a memory step needs to its next stop.
    #[cold]
    fn access_time(&self) -> Nanos {
        self.step_left.div_ceil(self.mem_speed.max(1))
    }
}

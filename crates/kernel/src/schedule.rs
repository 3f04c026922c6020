// SPDX-License-Identifier: GPL-2.0-only
//! `schedule()`: a CPU puts its task back, picks the next and switches to it.
//!
//! Owns: the order of classes and the switch.
//! Does not: choose within a class.
//! Models: kernel `__schedule()`, `__pick_next_task()`, `resched_curr()`,
//! `sched_change_begin/end()`, 7.3.

mod default_class;
pub mod numa;
pub mod rt;
pub mod server;
pub(crate) mod tick;
mod wake;

use crate::bpf::abi;
use crate::bpf::flags::queue;
use crate::bpf::mirror;
use crate::cgroup::CgroupTable;
use crate::cgroup::co_scheduling::CoschedState;
use crate::cpu::lock::LockId;
use crate::kernel::event::Event;
use crate::kernel::{AfterEvent, Kernel};
use crate::task::{Class, Task, TaskState};
use scxlab_machine::id::{CpuId, Nanos, TaskId};
use scxlab_trace::event::{EventKind, PrevState};

/// State of a task that `change_begin` saves and `change_end` restores.
pub(crate) struct TaskChange {
    task: TaskId,
    queued: bool,
    running: bool,
    class: Class,
    /// Flags with which `change_begin` dequeued the task. The caller may add flags for the enqueue
    /// by `change_end`.
    pub flags: u64,
}

impl Kernel {
    /// Makes one pass through the scheduler: picks the next task and switches to it.
    pub(crate) fn schedule(&mut self, cpu: CpuId) {
        self.charge(self.machine.costs.sched.pick_ns);
        self.lock(LockId::Rq(cpu));
        self.take_rq_clock(cpu);
        let c = &mut self.cpus[cpu];
        c.need_resched = false;
        c.resched_lazy = false;
        let prev = c.curr;
        if c.pushing.is_some() || c.active_balance {
            self.schedule_stopped(cpu);
        } else {
            self.schedule_next(cpu, prev);
        }
        self.cpus[cpu].voluntary = false;
        self.unlock(LockId::Rq(cpu));
        self.rt_push(cpu);
        self.ext_after_schedule(cpu);
    }

    #[inline(always)]
    fn schedule_next(&mut self, cpu: CpuId, prev: TaskId) {
        let next = self.pick_next(cpu, prev);
        if next == prev {
            self.cpus[cpu].next_class = self.tasks[prev].class;
            self.kept(cpu, prev);
        } else {
            self.put_prev(cpu, prev, Some(next));
            self.set_next(cpu, next);
            self.switch(cpu, prev, next);
        }
    }

    /// Runs the stopper, then picks the next task. Always refreshes the CPU's speed, because
    /// `switch` refreshes it only if the CPU becomes busy or idle. After the stopper, `switch` sees
    /// the idle task as the previous task, although another task may have run before the stopper.
    #[cold]
    #[inline(never)]
    fn schedule_stopped(&mut self, cpu: CpuId) {
        self.run_stopper(cpu);
        let prev = self.cpus[cpu].curr;
        let next = self.pick_next(cpu, prev);
        self.set_next(cpu, next);
        self.switch(cpu, prev, next);
        self.refresh_speed_around(cpu);
    }

    /// Runs the stopper for the pending requests. The CPU switches away from the running task,
    /// which the stopper may move to another CPU. The CPU then counts as idle until it picks a
    /// task.
    fn run_stopper(&mut self, cpu: CpuId) {
        let c = &mut self.cpus[cpu];
        let push = c.pushing.take();
        let balance = std::mem::take(&mut c.active_balance);
        let (prev, idle) = (c.curr, c.idle_task);
        if prev == idle {
            self.ext_update_idle(cpu, false, true);
        } else {
            self.put_prev(cpu, prev, None);
            self.leave_cpu(cpu, prev);
            let c = &mut self.cpus[cpu];
            c.curr = idle;
            c.next_class = Class::Idle;
            let prev_state = self.prev_state(prev);
            self.trace(EventKind::Switch { prev: Some(prev), next: None, prev_state });
            self.after_switch(prev);
        }
        if let Some(push) = push {
            let may = self.tasks.get(push.task).is_some_and(|t| {
                (t.cpu, t.on_rq, t.on_cpu) == (cpu, true, false) && t.allowed_on(push.to)
            });
            let moves = may && self.cpus.is_online(push.to);
            if moves {
                self.move_queued(push.task, push.to);
            }
            self.numa_pushed(cpu, push, moves);
        }
        if balance {
            self.fair_active_balance(cpu);
        }
    }

    fn prev_state(&self, prev: TaskId) -> PrevState {
        match self.tasks[prev].state {
            TaskState::Dead => PrevState::Exited,
            TaskState::Sleeping => PrevState::Sleeping,
            _ => PrevState::Runnable,
        }
    }

    /// Picks a task of the highest class that has one, or of a class whose server has its turn.
    /// sched_ext makes the search start over if a
    /// task of a higher class arrived meanwhile.
    fn pick_next(&mut self, cpu: CpuId, prev: TaskId) -> TaskId {
        loop {
            if let Some(task) = self.server_pick(cpu, prev) {
                return task;
            }
            if let Some(task) = self.rt_pick(cpu) {
                return task;
            }
            if let Some(task) = self.fair_pick(cpu) {
                return task;
            }
            match self.ext_pick(cpu, prev) {
                crate::ext::dispatch::PickResult::Task(task) => return task,
                crate::ext::dispatch::PickResult::Nothing => break,
                crate::ext::dispatch::PickResult::Retry => continue,
            }
        }
        self.cpus[cpu].idle_task
    }

    /// Lets the current task go on. An idle CPU that stays idle is reported to sched_ext again.
    fn kept(&mut self, cpu: CpuId, task: TaskId) {
        if self.tasks[task].class == Class::Idle {
            self.ext_update_idle(cpu, true, false);
        }
    }

    #[inline(always)]
    pub(crate) fn put_prev(&mut self, cpu: CpuId, prev: TaskId, next: Option<TaskId>) {
        match self.tasks[prev].class {
            Class::Idle => self.ext_update_idle(cpu, false, true),
            Class::Ext => self.ext_put_prev(cpu, prev, next),
            Class::Fair => self.fair_put_prev(cpu, prev),
            Class::Rt | Class::Deadline => self.rt_put_prev(cpu, prev),
        }
    }

    #[inline(always)]
    pub(crate) fn set_next(&mut self, cpu: CpuId, next: TaskId) {
        // The previous task may already have been charged for the time that the pick took. `next`
        // must not be charged for it again.
        let c = &self.cpus[cpu];
        let t = &mut self.tasks[next];
        t.exec_start = c.rq_clock.max(c.charged_until);
        match t.class {
            Class::Idle => self.ext_update_idle(cpu, true, true),
            Class::Ext => self.ext_set_next(cpu, next),
            Class::Fair => self.fair_set_next(cpu, next),
            Class::Rt | Class::Deadline => self.rt_set_next(cpu, next),
        }
    }

    /// `context_switch()`: charges the costs, and updates the accounts and the new task's cache
    /// debt.
    fn switch(&mut self, cpu: CpuId, prev: TaskId, next: TaskId) {
        let (p, n) = (&self.tasks[prev], &self.tasks[next]);
        let idle = (p.is_idle_task(), n.is_idle_task());
        let cost = &self.machine.costs.sched;
        let mm = if p.tgid == n.tgid { 0 } else { cost.switch_mm_ns };
        self.charge(cost.context_switch_ns + mm);
        if !self.ext.sched_switch.is_empty() {
            self.trace_sched_switch(prev, next);
        }
        self.leave_cpu(cpu, prev);
        if idle.0 {
            self.fair_leave_idle(cpu);
        }
        self.enter_cpu(cpu, next);
        if idle.0 != idle.1 {
            self.refresh_speed_around(cpu);
        }
        let prev_state = self.prev_state(prev);
        let (p, n) = ((!idle.0).then_some(prev), (!idle.1).then_some(next));
        self.trace(EventKind::Switch { prev: p, next: n, prev_state });
        self.metrics.switches += 1;
        self.after_switch(prev);
    }

    #[inline(always)]
    fn leave_cpu(&mut self, cpu: CpuId, prev: TaskId) {
        if self.memory.is_some() {
            self.memory_leave(cpu, prev);
        }
        let at = self.clock();
        let Kernel { cpus, tasks, vm, cgroups, cache_traffic, machine, metrics, .. } = self;
        let nr_cpus = cpus.len() as u32;
        let t = &mut tasks[prev];
        t.cache_marks = cache_traffic.marks(machine.topology.cpu(cpu));
        t.on_cpu = false;
        if t.is_idle_task() {
            metrics.idle_while_waiting.set_idle(cpu, false, at);
            return;
        }
        if cpus[cpu].voluntary {
            t.account.switches_voluntary += 1;
        } else {
            t.account.switches_involuntary += 1;
        }
        let guest = vm.mem.own_mut(t.addr);
        if t.state == TaskState::Runnable {
            t.start_wait(guest, at, cgroups, nr_cpus);
            metrics.idle_while_waiting.begin(t, at);
        } else {
            t.set_cosched_state(CoschedState::Absent, at, cgroups, nr_cpus);
        }
        mirror::off_cpu(guest, &t.account);
    }

    #[inline(always)]
    fn enter_cpu(&mut self, cpu: CpuId, next: TaskId) {
        let at = self.clock();
        let (t, guest) = self.task_and_guest(next);
        t.on_cpu = true;
        t.cpu = cpu;
        guest.on_cpu = 1;
        let (class, addr) = (t.class, t.addr);
        self.mirror_curr(cpu, addr, class == Class::Idle);
        let c = &mut self.cpus[cpu];
        c.curr = next;
        c.next_class = class;
        c.switches += 1;
        c.expect_no_step_end();
        if class == Class::Idle {
            c.idle_since = Some(at);
            self.metrics.idle_while_waiting.set_idle(cpu, true, at);
            self.stop_tick(cpu);
            self.fair_enter_idle(cpu);
        } else {
            self.end_wait(next, at);
            self.set_refill_debt(cpu, next);
            self.start_tick(cpu);
            if self.memory.is_some() {
                self.memory_enter(cpu, next);
            }
        }
    }

    /// Refreshes the speed of a CPU that became busy or idle, and of its siblings.
    fn refresh_speed_around(&mut self, cpu: CpuId) {
        self.refresh_speed(cpu);
        for i in 0..self.cpus[cpu].siblings.len() {
            self.refresh_speed(self.cpus[cpu].siblings[i]);
        }
    }

    /// Ends the task's wait for a CPU at `at`, when it starts to run.
    #[inline(always)]
    fn end_wait(&mut self, task: TaskId, at: Nanos) {
        let Kernel { cpus, tasks, vm, cgroups, metrics, .. } = self;
        let t = &mut tasks[task];
        let woken_at = t.account.woken_at.take();
        let since = t.account.waiting_since.take();
        let wait = since.map_or(0, |since| at.saturating_sub(since));
        t.account.wait_ns += wait;
        t.set_cosched_state(CoschedState::Runs, at, cgroups, cpus.len() as u32);
        mirror::arrival(vm.mem.own_mut(t.addr), at, wait);
        if since.is_none() {
            return;
        }
        metrics.idle_while_waiting.end(t, at);
        metrics.count_wait(t.account.watched, wait, woken_at.map(|woken| at.saturating_sub(woken)));
    }

    /// Counts waits that are still open when the run ends, with the time waited so far. A wait that
    /// begins at the end of the run, or later by the clock of the task's CPU, does not count.
    pub(crate) fn close_waits(&mut self) {
        let now = self.now;
        for id in self.tasks.ids() {
            let account = &mut self.tasks[id].account;
            let since = account.waiting_since.take().filter(|since| *since < now);
            let woken = account.woken_at.take();
            let Some(since) = since else { continue };
            account.wait_ns += now - since;
            let latency = woken.map(|woken| now.saturating_sub(woken));
            self.metrics.count_wait(account.watched, now - since, latency);
        }
    }

    /// Makes a CPU leave its idle state, because an interrupt arrives. Returns the time at which
    /// the CPU can handle the interrupt; None: at once.
    #[inline]
    pub(crate) fn leave_idle_state(&mut self, cpu: CpuId) -> Option<Nanos> {
        let c = &self.cpus[cpu];
        if c.is_idle() && c.online { self.awaken(cpu) } else { None }
    }

    fn awaken(&mut self, cpu: CpuId) -> Option<Nanos> {
        let now = self.now;
        let c = &mut self.cpus[cpu];
        if let Some(since) = c.idle_since.take() {
            let slept = now.saturating_sub(since);
            c.awake_at = now + self.machine.costs.idle_state(slept).exit_latency_ns;
        }
        (now < c.awake_at).then_some(c.awake_at)
    }

    /// `resched_curr()`: makes `cpu` schedule as soon as it can.
    pub(crate) fn resched(&mut self, cpu: CpuId) {
        let from = self.exec.cpu;
        let c = &mut self.cpus[cpu];
        if c.need_resched {
            return;
        }
        c.need_resched = true;
        if cpu == from || c.resched_sent {
            return;
        }
        c.resched_sent = true;
        self.prefetch_interrupted_cpu(cpu);
        self.charge(self.machine.costs.irq.ipi_send_ns);
        let at = self.clock() + self.ipi_latency(from, cpu);
        self.push_wakeup(at, Event::Resched { cpu });
    }

    pub(crate) fn resched_interrupt(&mut self, cpu: CpuId) -> AfterEvent {
        self.end.pending_wakeups -= 1;
        let c = &mut self.cpus[cpu];
        c.resched_sent = false;
        if !c.need_resched {
            return AfterEvent::Nothing;
        }
        self.on_cpu_last(cpu, |k| k.charge(k.machine.costs.irq.resched_ns))
    }

    /// Dequeues a task, and calls `put_prev` if it runs, so that the caller can change the task's
    /// parameters.
    pub(crate) fn change_begin(&mut self, task: TaskId, flags: u64) -> TaskChange {
        let t = &self.tasks[task];
        if t.state == TaskState::Sleeping && t.on_rq {
            // A sleeper that is still queued (delayed dequeue) cannot be changed, so its delay ends
            // first.
            self.fair_end_delay(task);
        }
        let t = &self.tasks[task];
        let (cpu, running, queued, class) = (t.cpu, t.on_cpu, t.on_rq, t.class);
        let flags = flags | queue::NOCLOCK;
        self.take_rq_clock(cpu);
        if queued {
            self.dequeue_task(cpu, task, flags);
        }
        if running {
            self.put_prev(cpu, task, None);
        }
        TaskChange { task, queued, running, class, flags }
    }

    /// Undoes `change_begin`: enqueues the task with its changed parameters, and calls `set_next`
    /// if it runs.
    pub(crate) fn change_end(&mut self, change: TaskChange) {
        let TaskChange { task, queued, running, class, flags } = change;
        let (cpu, new_class) = (self.tasks[task].cpu, self.tasks[task].class);
        if class != new_class {
            self.switching_to(task, class, new_class);
        }
        if queued {
            self.enqueue_task(cpu, task, flags);
        }
        if running {
            self.set_next(cpu, task);
        }
        if class != new_class {
            self.switched(cpu, task, class, new_class, running);
        } else if queued && matches!(class, Class::Rt | Class::Deadline) {
            self.rt_prio_changed(cpu, task);
        }
    }

    fn switched(&mut self, cpu: CpuId, task: TaskId, old: Class, new: Class, running: bool) {
        if running {
            self.cpus[cpu].next_class = new;
            if new < old {
                self.resched(cpu);
            }
        } else if self.tasks[task].on_rq {
            self.wakeup_preempt(cpu, task, 0);
        }
    }
}

impl Task {
    /// Sets the task's state, here and in the `task_struct` that programs see.
    #[inline(always)]
    pub(crate) fn set_state(&mut self, guest: &mut abi::task_struct, state: TaskState) {
        self.state = state;
        mirror::state(guest, state);
    }

    /// Records that the task begins to wait for a CPU at `at`.
    #[inline(always)]
    pub(crate) fn start_wait(
        &mut self,
        guest: &mut abi::task_struct,
        at: Nanos,
        cgroups: &mut CgroupTable,
        nr_cpus: u32,
    ) {
        self.account.waiting_since = Some(at);
        self.set_cosched_state(CoschedState::Waits, at, cgroups, nr_cpus);
        mirror::wait(guest, at);
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! Waking tasks and placing them on CPUs.
//!
//! Owns: `try_to_wake_up`, the wake list, moving a queued task, the fallback CPU.
//! Does not: choose the CPU (the task's class does).
//! Models: kernel `try_to_wake_up()`, `ttwu_queue_cond()`, `select_fallback_rq()`,
//! `wakeup_preempt()`, 7.3.

use crate::bpf::flags::{queue, wake};
use crate::cpu::Push;
use crate::cpu::lock::LockId;
use crate::kernel::event::Event;
use crate::kernel::{AfterEvent, Kernel};
use crate::task::{Class, TaskState};
use scxlab_machine::cpumask;
use scxlab_machine::id::{CpuId, TaskId};
use scxlab_machine::topology::Distance;
use scxlab_trace::event::EventKind;

impl Kernel {
    /// Wakes a sleeping task from the executing CPU. Returns false if the task was not asleep.
    pub(crate) fn wake_up(&mut self, task: TaskId, flags: u64) -> bool {
        let at = self.clock() + self.machine.costs.sched.wakeup_ns;
        let Kernel { cpus, tasks, vm, cgroups, metrics, .. } = self;
        let t = &mut tasks[task];
        match t.state {
            TaskState::Dead | TaskState::New => return false,
            TaskState::Runnable => {
                t.wake_pending = true;
                return false;
            }
            TaskState::Sleeping => {}
        }
        t.sleep_gen = t.sleep_gen.wrapping_add(1);
        t.account.wakeups += 1;
        t.account.woken_at = Some(at);
        let guest = vm.mem.own_mut(t.addr);
        t.set_state(guest, TaskState::Runnable);
        t.start_wait(guest, at, cgroups, cpus.len() as u32);
        metrics.idle_while_waiting.begin(t, at);
        let (class, prev, on_rq) = (t.class, t.cpu, t.on_rq);
        self.exec.clock = at;
        self.tasks.nr_runnable += 1;
        self.metrics.wakeups += 1;
        let waker = self.exec.stepping.then_some(self.cpus[self.exec.cpu].curr);
        if class == Class::Fair && self.fair_is_delayed(task) {
            self.trace(EventKind::Wakeup { task, target: prev, waker });
            self.wake_delayed(task, flags);
            return true;
        }
        if on_rq {
            self.set_on_rq(task, false);
        }
        let (cpu, selected) = self.select_cpu(task, prev, flags | wake::TTWU);
        self.trace(EventKind::Wakeup { task, target: cpu, waker });
        let mut enq =
            queue::WAKEUP | queue::NOCLOCK | if selected { queue::RQ_SELECTED } else { 0 };
        if cpu != prev {
            enq |= queue::MIGRATED;
            self.set_task_cpu(task, cpu);
        }
        if self.queue_on_target(class, cpu) {
            self.send_to_wake_list(task, cpu, enq);
        } else {
            self.activate_woken(cpu, task, enq, flags);
        }
        true
    }

    /// Wakes a task that is still on its queue (delayed dequeue). The task stays on that queue.
    fn wake_delayed(&mut self, task: TaskId, flags: u64) {
        let cpu = self.tasks[task].cpu;
        self.lock(LockId::Rq(cpu));
        self.take_rq_clock(cpu);
        self.fair_requeue_delayed(cpu, task);
        self.wakeup_preempt(cpu, task, flags);
        self.unlock(LockId::Rq(cpu));
    }

    /// `ttwu_do_activate()`: enqueues a woken task on the CPU, under the CPU's run queue lock.
    #[inline(always)]
    fn activate_woken(&mut self, cpu: CpuId, task: TaskId, enq: u64, flags: u64) {
        self.lock(LockId::Rq(cpu));
        self.take_rq_clock(cpu);
        self.charge(self.machine.costs.sched.enqueue_ns);
        self.enqueue_task(cpu, task, enq);
        self.wakeup_preempt(cpu, task, flags);
        self.unlock(LockId::Rq(cpu));
        if self.tasks.get(task).is_some_and(|t| t.class == Class::Ext) {
            self.ext_run_deferred(cpu);
        }
    }

    /// `ttwu_queue_cond()`: whether the target CPU enqueues the task itself.
    fn queue_on_target(&self, class: Class, cpu: CpuId) -> bool {
        let here = self.exec.cpu;
        let allowed = class != Class::Ext || self.ext_allows_queued_wakeup();
        let target = &self.cpus[cpu];
        if !allowed || !target.online || cpu == here {
            return false;
        }
        !self.machine.topology.same_llc(here, cpu) || target.is_idle()
    }

    fn send_to_wake_list(&mut self, task: TaskId, cpu: CpuId, enq: u64) {
        self.tasks[task].wake_queued = Some(enq);
        let c = &mut self.cpus[cpu];
        c.wake_list.push(task);
        if c.wake_list.len() == 1 {
            self.charge(self.machine.costs.irq.ipi_send_ns);
            let at = self.clock() + self.ipi_latency(self.exec.cpu, cpu);
            self.push_wakeup(at, Event::WakeList { cpu });
        }
    }

    #[inline(never)]
    pub(crate) fn wake_list_interrupt(&mut self, cpu: CpuId) -> AfterEvent {
        self.end.pending_wakeups -= 1;
        let tasks = std::mem::take(&mut self.cpus[cpu].wake_list);
        if tasks.is_empty() {
            return AfterEvent::Nothing;
        }
        self.on_cpu_last(cpu, |k| {
            k.charge(k.machine.costs.irq.resched_ns);
            for task in tasks {
                if let Some(enq) = k.tasks.get(task).and_then(|t| t.wake_queued) {
                    k.tasks[task].wake_queued = None;
                    let cpu = k.tasks[task].cpu;
                    k.activate_woken(cpu, task, enq, 0);
                }
            }
        })
    }

    /// Asks the task's class for a CPU. If the task may not use that CPU, or the CPU is off line,
    /// returns a fallback CPU. If the task may use only one CPU, the class is not asked. Also
    /// returns whether the class was asked.
    pub(crate) fn select_cpu(&mut self, task: TaskId, prev: CpuId, flags: u64) -> (CpuId, bool) {
        let t = &self.tasks[task];
        let asked = t.nr_allowed > 1;
        let cpu = if asked {
            match t.class {
                Class::Ext => self.ext_select_cpu(task, prev, flags),
                Class::Fair => self.fair_select_cpu(task, prev, flags),
                _ => self.rt_select_cpu(task, prev),
            }
        } else {
            cpumask::first(&t.cpus).unwrap_or(prev)
        };
        let ok = self.tasks[task].allowed_on(cpu) && self.cpus.is_online(cpu);
        (if ok { cpu } else { self.fallback_cpu(task, prev) }, asked)
    }

    /// `select_fallback_rq()`: an allowed CPU of the same node, else any allowed CPU, else any CPU.
    /// The last case widens the task's affinity, because none of the task's CPUs is on line.
    pub(crate) fn fallback_cpu(&mut self, task: TaskId, prev: CpuId) -> CpuId {
        let machine = self.machine.clone();
        let topology = &machine.topology;
        let t = &self.tasks[task];
        let usable = |c: &CpuId| t.allowed_on(*c) && self.cpus.is_online(*c);
        if usable(&prev) {
            return prev;
        }
        let near = cpumask::iter(&t.cpus).filter(usable).find(|&c| topology.same_node(c, prev));
        if let Some(cpu) = near.or_else(|| cpumask::iter(&t.cpus).find(usable)) {
            return cpu;
        }
        let all = cpumask::CpuMask::all(self.cpus.len());
        self.do_set_cpus_allowed(task, &all);
        self.cpus.online_or_any(prev)
    }

    /// `set_task_cpu()`: accounts a task's migration. The task's class keeps its own accounts.
    pub(crate) fn set_task_cpu(&mut self, task: TaskId, cpu: CpuId) {
        let t = &self.tasks[task];
        let from = t.cpu;
        if from == cpu {
            return;
        }
        if t.class == Class::Fair {
            self.fair_migrate(task, from, cpu);
        }
        self.count_migration(task, from, cpu);
    }

    /// Records the task's move to another CPU in all accounts outside its class.
    pub(crate) fn count_migration(&mut self, task: TaskId, from: CpuId, to: CpuId) {
        let (t, guest) = self.task_and_guest(task);
        t.cpu = to;
        t.account.migrations += 1;
        guest.thread_info.cpu = to.0;
        guest.se.nr_migrations += 1;
        if t.on_rq {
            self.mirror_nr_running(from, false);
            self.mirror_nr_running(to, true);
        }
        let distance = self.machine.topology.distance(from, to);
        self.metrics.count_migration(distance);
        if distance == Distance::Node {
            let node = self.machine.topology.cpu(from).node;
            self.tasks[task].account.leave_node(node);
        }
        self.trace(EventKind::Migrate { task, from, to });
    }

    /// `wakeup_preempt()`: decides whether a task that arrived on `cpu` interrupts the running one.
    pub(crate) fn wakeup_preempt(&mut self, cpu: CpuId, task: TaskId, flags: u64) {
        let (class, next) = (self.tasks[task].class, self.cpus[cpu].next_class);
        if class == next {
            match class {
                Class::Fair => self.fair_wakeup_preempt(cpu, task, flags),
                Class::Rt | Class::Deadline => self.rt_wakeup_preempt(cpu, task),
                Class::Ext | Class::Idle => {}
            }
        } else if class > next {
            if next == Class::Ext {
                self.ext_preempted_by_class(cpu);
            }
            self.cpus[cpu].next_class = class;
            self.resched(cpu);
        }
    }

    /// Enqueues the task in its class.
    pub(crate) fn enqueue_task(&mut self, cpu: CpuId, task: TaskId, flags: u64) {
        self.set_on_rq(task, true);
        match self.tasks[task].class {
            Class::Ext => self.ext_enqueue(cpu, task, flags),
            Class::Fair => self.fair_enqueue(cpu, task, flags),
            _ => self.rt_enqueue(cpu, task, flags),
        }
    }

    /// Dequeues the task from its class. A task of the default class may stay queued although it
    /// sleeps (delayed dequeue).
    pub(crate) fn dequeue_task(&mut self, cpu: CpuId, task: TaskId, flags: u64) {
        let delayed = match self.tasks[task].class {
            Class::Ext => self.ext_dequeue(cpu, task, flags),
            Class::Fair => self.fair_dequeue(cpu, task, flags),
            _ => self.rt_dequeue(cpu, task, flags),
        };
        self.set_on_rq(task, delayed);
    }

    /// Records whether the task is on its CPU's run queue.
    // Not inlined, so that all callers share one copy: see "instructions" in
    // docs/internals/performance.md.
    #[inline(never)]
    pub(crate) fn set_on_rq(&mut self, task: TaskId, on_rq: bool) {
        let (t, guest) = self.task_and_guest(task);
        if t.on_rq != on_rq {
            t.on_rq = on_rq;
            guest.on_rq = u8::from(on_rq);
            let cpu = t.cpu;
            self.mirror_nr_running(cpu, on_rq);
        }
    }

    /// Moves a task that is queued and not running to another CPU's queue.
    pub(crate) fn move_queued(&mut self, task: TaskId, to: CpuId) {
        let from = self.tasks[task].cpu;
        debug_assert!(!self.tasks[task].on_cpu, "a running task is moved by its CPU");
        self.tasks.migrating = Some(task);
        self.take_rq_clock(from);
        self.dequeue_task(from, task, queue::NOCLOCK);
        self.set_task_cpu(task, to);
        self.take_rq_clock(to);
        self.enqueue_task(to, task, queue::MIGRATED);
        self.tasks.migrating = None;
        self.wakeup_preempt(to, task, 0);
    }

    /// `sched_exec()`: lets the task's class look for a better CPU, because a task that executes a
    /// new program has no cache content to lose.
    pub(crate) fn exec_balance(&mut self, cpu: CpuId, task: TaskId) {
        let (target, _) = self.select_cpu(task, cpu, wake::EXEC);
        if target != cpu && self.cpus.is_online(target) {
            self.push_away(cpu, task, target);
        }
        self.tasks[task].cache_marks = Default::default();
    }

    /// Makes the stopper move the running task of `cpu` to `target`.
    pub(crate) fn push_away(&mut self, cpu: CpuId, task: TaskId, target: CpuId) {
        self.push(cpu, Push::new(task, target));
    }

    /// Requests the stopper on `cpu`.
    pub(crate) fn push(&mut self, cpu: CpuId, push: Push) {
        // The CPU switches twice: to the stopper task and back.
        self.charge(2 * self.machine.costs.sched.context_switch_ns);
        let replaced = self.cpus[cpu].pushing.replace(push);
        if let Some(target) = replaced.and_then(|push| push.numa) {
            self.fair.numa_arrived(target);
        }
        self.resched(cpu);
    }
}

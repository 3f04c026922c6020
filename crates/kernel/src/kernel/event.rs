// SPDX-License-Identifier: GPL-2.0-only
//! The events of a run, and the loop that handles them in order of (time, seq).
//!
//! Owns: the assignment of events to handlers.
//! Does not: implement the handlers.

use crate::kernel::{AfterEvent, Exec, Kernel, Stop};
use scxlab_bpf::timer::TimerId;
use scxlab_machine::event::QueuedEvent;
use scxlab_machine::id::{CgroupId, CpuId, Nanos, NodeId, TaskId};
use std::collections::VecDeque;

/// A u64 in two halves, so that an event that contains it takes only 16 bytes. The size of events
/// matters, because the queue moves them often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SplitU64(u32, u32);

impl SplitU64 {
    pub const fn new(value: u64) -> Self {
        SplitU64((value >> 32) as u32, value as u32)
    }

    pub const fn get(self) -> u64 {
        (self.0 as u64) << 32 | self.1 as u64
    }
}

const _: () = assert!(size_of::<Event>() == 16);

/// Events of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Event {
    /// The current task of a CPU may have finished its step.
    StepEnd { cpu: CpuId, generation: u32 },
    /// A reschedule interrupt arrives at a CPU.
    Resched { cpu: CpuId },
    /// The scheduler tick of a CPU is due.
    Tick { cpu: CpuId, generation: u32 },
    /// The timer for the end of the default class's slice fires.
    HrTick { cpu: CpuId },
    /// A sleeping task's timer expires, in interrupt context of the CPU that armed it.
    SleepEnd { task: TaskId, cpu: CpuId, generation: u32 },
    /// The step of a task ends before its time (see `task/cut.rs`). Generation 0: an interrupt that
    /// another CPU sent to `cpu`.
    Cut { task: TaskId, cpu: CpuId, generation: u32 },
    /// The interrupt for the tasks on a CPU's wake list arrives.
    WakeList { cpu: CpuId },
    /// A time that `Sys::post` requested has come.
    Posted { cpu: CpuId, token: SplitU64 },
    /// A BPF timer expires.
    BpfTimer { timer: TimerId, cpu: CpuId, generation: u32 },
    /// irq_work that does the deferred sched_ext work of a CPU.
    ExtDeferred { cpu: CpuId },
    /// irq_work that delivers the kicks that a CPU has collected.
    ExtKick { cpu: CpuId },
    /// The kernel carries out the next step of the loaded scheduler's exit, which was requested
    /// earlier.
    ExtDisable,
    /// SCHED_SOFTIRQ on a kicked idle CPU: the default class balances.
    FairBalance { cpu: CpuId },
    /// The watchdog looks for stalled tasks.
    ExtWatchdog { generation: u32 },
    /// A timer of a group's cpu.max expires: the period timer or the slack timer. `at` is the time
    /// for which the timer was armed; it tells a stale timer from the present one.
    Bandwidth { cgroup: CgroupId, slack: bool, at: SplitU64 },
    /// A throttled SCHED_DEADLINE task gets a new budget.
    DlReplenish { task: TaskId, generation: u32 },
    /// The server of a class may have to begin its turn on a CPU.
    DlServer { cpu: CpuId, ext: bool, generation: u32 },
    /// A task that exists from the start becomes runnable.
    StartTask,
    /// The demand on a node's memory has changed: the tasks that access it get new speeds.
    MemoryPressure { node: NodeId },
    /// The run's duration has passed.
    #[default]
    End,
}

/// Lanes of the event queue. The kernel posts the events of a lane nearly in order of time.
pub(crate) mod lane {
    /// Ends of tasks' steps, posted when the step begins.
    pub const STEP: usize = 0;
    /// Timers that tasks and the workload wait for.
    pub const TIMER: usize = 1;
    /// Events that are due soon: interrupts that CPUs send, ends of short steps, and events that
    /// wait until a CPU has left its idle state.
    pub const SOON: usize = 2;
    // The lanes from here on are used less often. `EAGER_LANES` in `machine/src/event/heads.rs` is
    // the number of the lanes before them.
    pub const TICK: usize = 3;
    /// Ends of the default class's slices.
    pub const SLICE: usize = 4;
}

/// Virtual time between two checks of a run from outside (memory limit, `watch`), ns. It is so long
/// that runs do not wait for cache lines that other threads write.
const WATCH_NS: Nanos = 10_000_000;

impl Kernel {
    /// Runs from the start until something ends the run, and returns the reason.
    pub fn run(&mut self, duration: Option<Nanos>) -> Stop {
        self.run_watched(duration, |_| None)
    }

    /// As `run`. Every 10 ms of virtual time it calls `watch` with the present time; `watch` may
    /// end the run by returning a reason.
    pub fn run_watched(
        &mut self,
        duration: Option<Nanos>,
        watch: impl FnMut(Nanos) -> Option<String>,
    ) -> Stop {
        self.begin(duration);
        self.run_on(watch)
    }

    fn begin(&mut self, duration: Option<Nanos>) {
        if let Some(duration) = duration {
            self.events.push(duration, Event::End);
        }
        self.start();
    }

    /// Runs the first part of a run, up to `until`. The caller goes on with `run_on`.
    pub fn run_until(
        &mut self,
        duration: Option<Nanos>,
        until: Nanos,
        mut watch: impl FnMut(Nanos) -> Option<String>,
    ) {
        self.begin(duration);
        while self.end.stop.is_none() && !self.events.is_empty() && self.now < until {
            let next = self.now.saturating_add(WATCH_NS).min(until);
            self.advance(next);
            // An interval without events has passed all the same.
            self.now = self.now.max(next);
            if let Some(why) = watch(self.now) {
                self.end.stop_with(Stop::Interrupted(why));
            }
        }
    }

    /// Runs the rest of a run, to its end.
    pub fn run_on(&mut self, mut watch: impl FnMut(Nanos) -> Option<String>) -> Stop {
        while self.end.stop.is_none() && !self.events.is_empty() {
            self.advance(self.now.saturating_add(WATCH_NS));
            if let Some(why) = watch(self.now) {
                self.end.stop_with(Stop::Interrupted(why));
            }
        }
        self.close();
        self.end.stop.clone().unwrap_or(Stop::Finished)
    }

    /// Returns a message if the run was refused memory because of its limit.
    pub(crate) fn over_memory(&self) -> Option<String> {
        let mib = self.vm.mem.exceeded()? >> 20;
        Some(format!("the run needed more than its limit of {mib} MiB"))
    }

    /// Starts the behaviour. `run` calls this. A caller that advances the run in steps calls it
    /// once, before the first `advance`.
    pub fn start(&mut self) {
        if self.ext.enabled {
            // A scheduler that was attached before has seen each CPU idle once.
            for cpu in (0..self.cpus.len() as u32).map(CpuId) {
                if self.cpus.is_online(cpu) {
                    self.cpus[cpu].need_resched = true;
                    self.on_cpu(cpu, |_| ());
                }
            }
        }
        self.tasks.starting = Some(VecDeque::new());
        let end = self.on_cpu(CpuId(0), |k| {
            k.with_behavior(|b, k| b.start(k));
            k.clock()
        });
        self.push_wakeup(end, Event::StartTask);
    }

    /// Handles every event up to and including `until`. Returns the reason if the run has ended.
    pub fn advance(&mut self, until: Nanos) -> Option<&Stop> {
        self.end.advance_to(until);
        while self.goes_on() {
            let Some(&QueuedEvent { time, what: event, .. }) = self.events.pop() else { break };
            assert!(time >= self.now, "time ran backwards");
            self.now = time;
            self.metrics.events += 1;
            self.prefetch_next_events();
            let then = self.handle(event);
            self.finish(then);
        }
        self.charge_queues();
        if let Some(why) = self.over_memory() {
            // If the run was refused memory and then ended regularly, the regular end does not
            // count, because the run did not get all the memory it needed.
            self.end.stop.take_if(|stop| matches!(stop, Stop::Finished | Stop::AllExited));
            self.end.stop_with(Stop::OutOfMemory(why));
        }
        self.end.stop.as_ref()
    }

    /// Charges to the run the memory of the queues that the default class has created since the
    /// last call of this function.
    fn charge_queues(&mut self) {
        let bytes = self.fair.bytes_of_queues();
        let new = bytes.saturating_sub(self.end.charged_queue_bytes);
        if new > 0 && self.vm.mem.charge(new).is_ok() {
            self.end.charged_queue_bytes = bytes;
        }
    }

    /// Whether this call of `advance` handles another event. It does not if no event is due by
    /// `until`, if the run has reached its limit on events, or if no task can ever run again.
    #[inline(always)]
    fn goes_on(&mut self) -> bool {
        if self.events.nothing_due_by(self.end.until) || self.metrics.events >= self.end.event_limit
        {
            self.stop_here();
            return false;
        }
        let may_end =
            self.tasks.nr_workload == 0 || self.end.pending_wakeups + self.tasks.nr_runnable == 0;
        !(may_end && self.has_ended())
    }

    /// Ends this call of `advance`. If no event is left up to `until`, the time becomes `until`. If
    /// the limit on events is reached, the run is stopped.
    #[cold]
    #[inline(never)]
    fn stop_here(&mut self) {
        if self.end.stop.is_none() {
            if self.events.nothing_due_by(self.end.until) {
                self.now = self.now.max(self.end.until);
            } else if !self.has_ended() && !self.events.is_empty() {
                self.end.stop_with(Stop::EventLimit { max: self.end.limits.max_events });
            }
        }
    }

    /// Whether an event at `at` would be handled next if it were queued now.
    #[inline]
    pub(crate) fn would_be_next(&self, at: Nanos) -> bool {
        self.events.nothing_due_by(at)
            && self.tasks.nr_workload > 0
            && at <= self.end.until
            && self.metrics.events < self.end.event_limit
    }

    /// Runs `f` now as user space outside of the workload, on the first CPU that is on line.
    pub fn user<R>(&mut self, f: impl FnOnce(&mut Kernel) -> R) -> R {
        let cpu = self.cpus.online_or_any(CpuId(0));
        self.on_cpu(cpu, f)
    }

    /// As `user`, for a process that is bound to `cpu`. If `cpu` is off line, `f` runs on another
    /// CPU.
    pub fn user_on<R>(&mut self, cpu: CpuId, f: impl FnOnce(&mut Kernel) -> R) -> R {
        let cpu = self.cpus.online_or_any(cpu);
        self.on_cpu(cpu, f)
    }

    /// Stops the run if nothing is left to wait for.
    #[cold]
    #[inline(never)]
    fn has_ended(&mut self) -> bool {
        if self.tasks.nr_workload == 0 && self.metrics.forks > 0 {
            self.end.stop_with(Stop::AllExited);
        } else if self.asleep_for_ever() {
            let waiting = self.describe_waiters();
            self.end.stop_with(Stop::Deadlock { waiting });
        } else {
            return false;
        }
        true
    }

    /// Whether no event can wake or run a task: all tasks sleep, and no timer, posted call or
    /// wake-up is pending.
    fn asleep_for_ever(&self) -> bool {
        self.tasks.nr_workload > 0 && self.end.pending_wakeups == 0 && self.tasks.nr_runnable == 0
    }

    fn describe_waiters(&self) -> Vec<String> {
        let ids: Vec<TaskId> = self
            .tasks
            .iter()
            .filter(|t| t.state == crate::task::TaskState::Sleeping && t.id != self.tasks.init)
            .map(|t| t.id)
            .collect();
        let behavior = self.behavior.as_deref();
        ids.iter()
            .map(|&id| {
                let task = &self.tasks[id];
                let what = behavior.and_then(|b| b.waits_for(id));
                format!("{}[{}]: {}", task.name, task.pid, what.as_deref().unwrap_or("asleep"))
            })
            .collect()
    }

    /// Calls the handler of an event. Interrupts from outside bring a CPU out of its idle state; a
    /// CPU is awake for the events that it causes itself.
    #[inline(always)]
    fn handle(&mut self, event: Event) -> AfterEvent {
        match event {
            Event::StepEnd { cpu, generation } => self.step_end(cpu, generation),
            Event::Resched { cpu } => {
                self.interrupt(cpu, || Event::Resched { cpu }, |k, _| k.resched_interrupt(cpu))
            }
            Event::Tick { cpu, generation } => self.tick(cpu, generation),
            Event::HrTick { cpu } => self.hrtick(cpu),
            Event::SleepEnd { task, cpu, generation } => {
                let again = || Event::SleepEnd { task, cpu, generation };
                self.interrupt(cpu, again, |k, cpu| k.sleep_end(task, cpu, generation))
            }
            Event::WakeList { cpu } => {
                self.interrupt(cpu, || Event::WakeList { cpu }, |k, _| k.wake_list_interrupt(cpu))
            }
            Event::Posted { cpu, token } => {
                let again = || Event::Posted { cpu, token };
                self.interrupt(cpu, again, |k, cpu| k.posted(cpu, token.get()))
            }
            Event::BpfTimer { timer, cpu, generation } => {
                let again = || Event::BpfTimer { timer, cpu, generation };
                self.interrupt(cpu, again, |k, cpu| k.bpf_timer(timer, cpu, generation))
            }
            Event::FairBalance { cpu } => {
                self.interrupt(cpu, || Event::FairBalance { cpu }, |k, _| k.fair_balance(cpu))
            }
            Event::Cut { task, cpu, generation } => self.cut_due(task, cpu, generation),
            Event::ExtDeferred { cpu } => self.on_cpu_last(cpu, |k| k.ext_deferred_work(cpu)),
            Event::ExtKick { cpu } => self.on_cpu_last(cpu, |k| k.ext_deliver_kicks(cpu)),
            Event::ExtDisable => self.ext_disable_event(),
            Event::ExtWatchdog { generation } => self.ext_watchdog(generation),
            Event::Bandwidth { cgroup, slack, at } => self.bandwidth_timer(cgroup, slack, at.get()),
            Event::StartTask => self.start_task(),
            Event::DlReplenish { task, generation } => self.dl_replenish(task, generation),
            Event::DlServer { cpu, ext, generation } => self.server_due(cpu, ext, generation),
            Event::MemoryPressure { node } => self.memory_pressure(node),
            Event::End => {
                self.end.stop_with(Stop::Finished);
                AfterEvent::Nothing
            }
        }
    }

    /// Handles an interrupt on `cpu`, or on another CPU if `cpu` is off line. If the CPU is in an
    /// idle state, it starts to leave that state, and the kernel queues the event again for the
    /// time at which the CPU is awake. (`again` makes the event anew, so that the event's fields
    /// stay in the host's registers in the common case.)
    #[inline(always)]
    fn interrupt(
        &mut self,
        cpu: CpuId,
        again: impl FnOnce() -> Event,
        handler: impl FnOnce(&mut Kernel, CpuId) -> AfterEvent,
    ) -> AfterEvent {
        let awake = self.cpus.get(cpu.idx()).is_some_and(|c| c.online && !c.is_idle());
        let cpu = if awake { Ok(cpu) } else { self.awake_cpu(cpu) };
        match cpu {
            Ok(cpu) => handler(self, cpu),
            Err(awake_at) => self.put_off(again(), awake_at),
        }
    }

    /// Returns the CPU that handles an interrupt for `cpu` if that CPU is awake, else the time at
    /// which it will be awake.
    #[inline(never)]
    fn awake_cpu(&mut self, cpu: CpuId) -> Result<CpuId, Nanos> {
        let cpu = self.cpus.online_or_any(cpu);
        self.leave_idle_state(cpu).map_or(Ok(cpu), Err)
    }

    #[inline(never)]
    fn put_off(&mut self, event: Event, until: Nanos) -> AfterEvent {
        self.events.push_in(lane::SOON, until, event);
        AfterEvent::Nothing
    }

    /// Brings all time accounts up to the end of the run. `run` calls this as its last action.
    pub fn close(&mut self) {
        if self.ext_aborting() {
            // The run ends before the event that would complete the loaded scheduler's exit, so
            // complete the exit here.
            let cpu = self.cpus.online_or_any(CpuId(0));
            self.on_cpu(cpu, |k| k.ext_disable());
        }
        let ids: Vec<CpuId> = self.cpus.iter().map(|c| c.id).collect();
        for cpu in ids {
            self.settle(cpu);
            self.exec = Exec {
                cpu,
                clock: self.now,
                insns_from: self.vm.executed,
                insns_ns: 0,
                stepping: false,
            };
            self.charge_curr(cpu);
        }
        self.count_all_accesses();
        self.close_waits();
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! The simulated kernel: all state of one run, and the clock of the code that runs.
//!
//! Owns: construction, the executing CPU's clock, charging of time.
//! Does not: hold policy; each part has its file (`schedule.rs`, `wake.rs`, `exec.rs`, `tick.rs`,
//! `ext/`, `fair/`).
//!
//! Time: an event is handled atomically at `now`. The code that handles it runs on `exec.cpu`. Its
//! clock starts at `now`, or at the end of that CPU's previous kernel path if that is later, and
//! advances with every cost. Effects on other CPUs are stamped with that clock.

use crate::behavior::Behavior;
use crate::boot::KernelVars;
use crate::cache_occupancy::CacheTraffic;
use crate::cgroup::CgroupTable;
use crate::cpu::{Cpu, PerCpu};
use crate::event::Event;
use crate::ext::Ext;
use crate::ext::kfunc::Handler;
use crate::insn_time::InsnTime;
use crate::lock::Lock;
use crate::metrics::Metrics;
use crate::rt::RtQueues;
use crate::streams::Streams;
use crate::task::TaskTable;
use scxlab_bpf::vm::Vm;
use scxlab_fair::Fair;
use scxlab_loader::btf::Btf;
use scxlab_machine::id::{CpuId, Nanos, TaskId};
use scxlab_machine::{EventQueue, Machine, Stream};
use scxlab_trace::Tracer;
use scxlab_trace::event::Kind;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Value of BPF's clocks at virtual time 0, ns. It is not 0, because a real machine has been up for
/// a while when a scheduler is loaded.
pub const BOOT_NS: Nanos = 100_000_000_000;

/// Bounds of one run.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Number of events after which the run is stopped (`Stop::EventLimit`).
    pub max_events: u64,
    /// Upper bound on the zero-time steps that a task takes in a row, and on the scheduling passes
    /// in one kernel path. More count as a livelock.
    pub max_instant_steps: u32,
    /// Bytes that the loaded object and the workload may make the run allocate
    /// (`Stop::OutOfMemory`).
    pub max_memory: u64,
}

impl Limits {
    pub const MAX_MEMORY: u64 = 1 << 30;
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_events: u64::MAX,
            max_instant_steps: 1_000_000,
            max_memory: Limits::MAX_MEMORY,
        }
    }
}

/// Reason for the end of a run, other than an exit of the loaded scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The duration passed, or the behaviour called `Sys::finish`.
    Finished,
    /// Every task has exited.
    AllExited,
    /// Tasks remain, but no event can wake or run any of them. `waiting` says for each task what it
    /// waits for.
    Deadlock {
        waiting: Vec<String>,
    },
    EventLimit {
        max: u64,
    },
    /// A task made `max` steps in a row that took no time.
    Livelock {
        task: String,
        max: u32,
    },
    /// A CPU scheduled `max` times in one kernel path, because each pass requested another.
    ScheduleLoop {
        cpu: CpuId,
        max: u32,
    },
    /// A BPF program needs a kernel feature that is not modelled. The text names it.
    Unmodelled(String),
    /// Guest memory or task slots ran out. The text says which.
    OutOfMemory(String),
    /// The caller stopped the run, for this reason.
    Interrupted(String),
}

/// CPU and clock of the executing code.
#[derive(Clone, Copy, Debug)]
pub struct Exec {
    pub cpu: CpuId,
    pub clock: Nanos,
    /// `insns_from` is `vm.executed` when the executing code began; `insns_ns` is the time that has
    /// been charged for the instructions since then.
    pub insns_from: u64,
    pub insns_ns: Nanos,
}

/// Work that remains after an event's handler.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AfterEvent {
    Nothing,
    /// End the kernel path of the CPU.
    Leave(CpuId),
    /// The CPU's task has finished its step: start the next one.
    NextSteps(CpuId),
}

/// The jiffy of the last query. Most queries fall into the same jiffy, so that this saves a
/// division.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Jiffy {
    began: Nanos,
    count: u64,
}

/// All state of one run.
pub struct Kernel {
    pub vm: Vm,
    pub machine: Arc<Machine>,
    pub limits: Limits,
    pub now: Nanos,
    pub exec: Exec,
    pub events: EventQueue<Event>,
    /// End of the present call of `advance`; later events are left in the queue.
    pub(crate) until: Nanos,
    /// Upper bound on the number of events in one run: the limit, or 0 once the run has been
    /// stopped.
    pub(crate) event_limit: u64,
    pub cpus: PerCpu<Cpu>,
    pub tasks: TaskTable,
    pub cgroups: CgroupTable,
    pub fair: Fair,
    pub rt: RtQueues,
    pub ext: Ext,
    pub cache_traffic: CacheTraffic,
    pub guest_locks: rustc_hash::FxHashMap<u64, Lock>,
    pub streams: Streams,
    pub tracer: Tracer,
    pub metrics: Metrics,
    pub stop: Option<Stop>,
    /// Tasks of the workload that have not exited.
    pub nr_workload: usize,
    /// Tasks that run or wait for a CPU.
    pub nr_runnable: usize,
    /// Queued events that may wake or run a task.
    pub(crate) pending_wakeups: usize,
    /// CPUs that spin for SCX_KICK_WAIT.
    pub(crate) nr_sync_waiters: u32,
    /// The task that is being moved from one run queue to another (`task_on_rq_migrating()`).
    pub(crate) migrating: Option<TaskId>,
    /// The machine is so large that prefetching pays (see `prefetch.rs`).
    pub(crate) prefetch_enabled: bool,
    pub(crate) insn_time: InsnTime,
    pub(crate) tick_ns: Nanos,
    pub(crate) jiffy: Jiffy,
    pub(crate) tick_phase: Box<[Nanos]>,
    pub(crate) vars: KernelVars,
    pub(crate) kfuncs: Box<[Handler]>,
    pub(crate) prandom: Stream,
    /// Generation of each BPF timer, indexed by timer. An expiry with an older generation is
    /// ignored.
    pub(crate) bpf_timers: Vec<u32>,
    pub(crate) btf: Arc<Btf>,
    pub(crate) behavior: Option<Box<dyn Behavior>>,
    /// A loaded object knows the address of a run queue, so that its clocks must be kept up to date
    /// in guest memory. Shared with `KernelTarget`.
    pub(crate) rq_address_known: Arc<AtomicBool>,
    /// The task that stands for init: the parent of orphans, and `current` of callers in user
    /// space.
    pub(crate) init_task: TaskId,
    pub(crate) hotplug_seq: u64,
}

impl Kernel {
    /// Returns the clock of the executing code.
    #[inline(always)]
    pub fn clock(&self) -> Nanos {
        debug_assert_eq!(self.insns_ns(), self.exec.insns_ns, "instructions not charged");
        self.exec.clock
    }

    /// Charges the instructions that BPF programs have executed since the last call. Called
    /// whenever a program calls the kernel and when it ends.
    #[inline(always)]
    pub(crate) fn charge_insns(&mut self) {
        let ns = self.insns_ns();
        self.exec.clock += ns - self.exec.insns_ns;
        self.exec.insns_ns = ns;
    }

    /// Returns the time of the instructions executed since the executing code began.
    #[inline(always)]
    fn insns_ns(&self) -> Nanos {
        self.insn_time.of(self.vm.executed - self.exec.insns_from)
    }

    /// Advances the clock of the executing code by `cost`.
    #[inline]
    pub fn charge(&mut self, cost: Nanos) {
        self.exec.clock += cost;
    }

    /// `ktime_get_ns()` of the executing code.
    pub fn ktime(&self) -> Nanos {
        BOOT_NS + self.clock()
    }

    /// Jiffies at the clock of the executing code, as `p->scx.runnable_at` counts them.
    pub fn jiffies(&mut self) -> u64 {
        let at = self.ktime();
        if at.wrapping_sub(self.jiffy.began) >= self.tick_ns {
            let count = at / self.tick_ns;
            self.jiffy = Jiffy { began: count * self.tick_ns, count };
        }
        self.jiffy.count
    }

    /// Runs `f` as code on `cpu` from `now` on. The time that `f` charges counts as time in the
    /// kernel. Afterwards the CPU reschedules if that was requested.
    #[inline]
    pub(crate) fn on_cpu<R>(&mut self, cpu: CpuId, f: impl FnOnce(&mut Kernel) -> R) -> R {
        self.enter(cpu);
        let result = f(self);
        self.leave(cpu);
        result
    }

    /// As `on_cpu`, for the last action of an event's handler: `finish` ends the kernel path.
    #[inline]
    pub(crate) fn on_cpu_last(&mut self, cpu: CpuId, f: impl FnOnce(&mut Kernel)) -> AfterEvent {
        self.enter(cpu);
        f(self);
        AfterEvent::Leave(cpu)
    }

    /// Begins a kernel path on `cpu`.
    #[inline(always)]
    fn enter(&mut self, cpu: CpuId) {
        let Kernel { cpus, tasks, now, .. } = self;
        let c = &mut cpus[cpu];
        let clock = c.kernel_path_start(*now);
        c.settle(*now, tasks);
        self.exec = Exec { cpu, clock, insns_from: self.vm.executed, insns_ns: 0 };
    }

    /// Ends the kernel path on `cpu`: schedules if requested, then lets its task go on.
    fn leave(&mut self, cpu: CpuId) {
        if let Some((at, lane)) = self.leave_kernel(cpu) {
            self.post_step_end(cpu, at, lane);
        }
    }

    /// Ends an event. Steps of the task that end before the next queued event are taken at once,
    /// without a passage through the queue; the first step of a task that was switched to begins
    /// this way. The order of events is the same as if each step end were queued.
    #[inline(always)]
    pub(crate) fn finish(&mut self, mut then: AfterEvent) {
        loop {
            let cpu = match then {
                AfterEvent::Nothing => return,
                AfterEvent::Leave(cpu) => cpu,
                AfterEvent::NextSteps(cpu) => {
                    self.enter(cpu);
                    self.next_steps(cpu);
                    cpu
                }
            };
            let Some((at, lane)) = self.leave_kernel(cpu) else { return };
            if !self.skip_to(at) {
                return self.post_step_end(cpu, at, lane);
            }
            self.cpus[cpu].expect_no_step_end();
            then = AfterEvent::NextSteps(cpu);
        }
    }

    /// Ends the kernel path on `cpu`. Returns the end of its task's step and the event lane for it;
    /// None if the CPU is idle or a queued event already serves.
    #[inline(always)]
    fn leave_kernel(&mut self, cpu: CpuId) -> Option<(Nanos, usize)> {
        if self.cpus[cpu].must_schedule() {
            self.schedule_until_done(cpu);
        }
        let end = self.clock();
        let Kernel { cpus, tasks, now, .. } = self;
        let c = &mut cpus[cpu];
        c.time.overhead += end - c.kernel_path_start(*now);
        c.kernel_until = end;
        c.progress_from = end;
        if c.is_idle() {
            c.idle_since = Some(end);
            return None;
        }
        c.step_end_due(tasks)
    }

    fn schedule_until_done(&mut self, cpu: CpuId) {
        let max = self.limits.max_instant_steps;
        for _ in 0..max {
            self.schedule(cpu);
            if !self.cpus[cpu].must_schedule() {
                return;
            }
        }
        self.stop_with(Stop::ScheduleLoop { cpu, max });
    }

    /// Always inlined: `kind` is known at each call, so that little code remains.
    #[inline(always)]
    pub(crate) fn trace(&mut self, kind: Kind) {
        let (time, cpu) = (self.exec.clock, self.exec.cpu);
        self.tracer.emit(scxlab_trace::event::Event { time, cpu, kind });
    }

    /// Whether a task is the workload's, not the system's own.
    pub fn is_workload(&self, task: &crate::task::Task) -> bool {
        task.pid != 0 && task.id != self.init_task
    }

    /// Stops the run. The first reason is kept.
    pub(crate) fn stop_with(&mut self, stop: Stop) {
        self.stop.get_or_insert(stop);
        self.event_limit = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ext::idle::fixture::{kernel, load};
    use crate::ext::op::Op;
    use crate::flags::ops;

    #[test]
    fn a_cpu_that_never_leaves_the_scheduler_ends_the_run() {
        let mut k = kernel("2c1t", &[None]);
        k.limits.max_instant_steps = 1000;
        load(&mut k, ops::ENQ_LAST, &[Op::Enqueue, Op::Dispatch], |k, op, _| {
            let cpu = k.exec.cpu;
            k.cpus[cpu].need_resched |= op == Op::Dispatch;
            0
        });
        let stop = k.run(Some(100_000_000));
        assert_eq!(stop, Stop::ScheduleLoop { cpu: CpuId(0), max: 1000 });
    }
}

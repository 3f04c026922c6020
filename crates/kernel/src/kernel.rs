// SPDX-License-Identifier: GPL-2.0-only
//! The simulated kernel: all state of one run, and the clock of the code that runs.
//!
//! Owns: construction, the executing CPU's clock, charging of time.
//! Does not: hold policy; each part has its file (`schedule.rs`, `wake.rs`, `exec.rs`, `tick.rs`, `ext/`, `fair/`).
//!
//! Time: events happen at `now`, atomically. Code that runs in one is on `exec.cpu`, whose clock starts at
//! `now` (or at the end of what that CPU did before) and advances with every cost; what the code causes
//! elsewhere is stamped with that clock.

use crate::behavior::Behavior;
use crate::boot::KernelVars;
use crate::cgroup::CgroupTable;
use crate::cpu::Cpu;
use crate::event::Event;
use crate::ext::Ext;
use crate::ext::kfunc::Handler;
use crate::insn_time::InsnTime;
use crate::lock::Lock;
use crate::metrics::Metrics;
use crate::rt::RtQueues;
use crate::streams::Streams;
use crate::task::TaskTable;
use crate::warmth::CacheTouch;
use scxlab_bpf::vm::Vm;
use scxlab_fair::Fair;
use scxlab_loader::btf::Btf;
use scxlab_machine::id::{CpuId, Nanos, TaskId};
use scxlab_machine::{EventQueue, Machine, Stream};
use scxlab_trace::Tracer;
use scxlab_trace::event::Kind;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// What BPF's clocks show at virtual time 0: the machine has been up for a while, as any real one has.
pub const BOOT_NS: Nanos = 100_000_000_000;

/// Passes through the scheduler that one kernel path may take before it is called a livelock.
const MAX_PASSES: u32 = 1_000_000;

/// Bounds and switches of one run.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Events after which the run is given up (`Stop::EventLimit`).
    pub max_events: u64,
    /// Zero-time steps that a task may take in a row before it is called a livelock.
    pub max_instant_steps: u32,
    /// Bytes that an object and a workload may make the run keep (`Stop::OutOfMemory`).
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

/// Why a run ended, apart from what the scheduler did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The duration passed, or the behaviour called `Sys::finish`.
    Finished,
    /// Every task has exited.
    AllExited,
    /// Nothing will ever happen again though tasks remain: each with what it waits for.
    Deadlock {
        waiting: Vec<String>,
    },
    EventLimit {
        max: u64,
    },
    /// A task made `max` steps in a row that took no time, or a CPU never left the scheduler.
    Livelock {
        task: String,
        max: u32,
    },
    /// A BPF program needs something that is not modelled; its name is in the text.
    Unmodelled(String),
    /// Guest memory or task slots ran out.
    OutOfMemory(String),
    /// From outside, for this reason.
    Interrupted(String),
}

/// The code that runs: on which CPU, and its clock.
#[derive(Clone, Copy, Debug)]
pub struct Exec {
    pub cpu: CpuId,
    pub clock: Nanos,
    /// `vm.executed` when it began, and what the instructions since then have been charged.
    pub insns_from: u64,
    pub insns_ns: Nanos,
}

/// What is left to do when an event has been handled.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Then {
    Nothing,
    /// A kernel path of the CPU ends.
    Leave(CpuId),
    /// The CPU's task is done with its step.
    NextSteps(CpuId),
}

/// The jiffy that was asked for last: mostly it is the same one still, and a division is saved.
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
    /// Events after it are not for the present call of `advance`.
    pub(crate) until: Nanos,
    /// So many events may happen in all: the limit, or none once the run has been stopped.
    pub(crate) allowed: u64,
    pub cpus: Vec<Cpu>,
    pub tasks: TaskTable,
    pub cgroups: CgroupTable,
    pub fair: Fair,
    pub rt: RtQueues,
    pub ext: Ext,
    pub touch: CacheTouch,
    pub guest_locks: rustc_hash::FxHashMap<u64, Lock>,
    pub streams: Streams,
    pub tracer: Tracer,
    pub metrics: Metrics,
    pub stop: Option<Stop>,
    /// Tasks of the workload that have not exited.
    pub nr_workload: usize,
    /// Tasks that are not asleep, waiting or running.
    pub nr_runnable: usize,
    /// Events on their way that may wake or run a task.
    pub(crate) pending_wakeups: usize,
    /// CPUs that spin for SCX_KICK_WAIT.
    pub(crate) nr_sync_waiters: u32,
    /// The task that is between two run queues (`task_on_rq_migrating()`).
    pub(crate) migrating: Option<TaskId>,
    /// The machine is so large that it pays (see `ahead.rs`).
    pub(crate) looks_ahead: bool,
    pub(crate) insn_time: InsnTime,
    pub(crate) tick_ns: Nanos,
    pub(crate) jiffy: Jiffy,
    pub(crate) tick_phase: Box<[Nanos]>,
    pub(crate) vars: KernelVars,
    pub(crate) kfuncs: Box<[Handler]>,
    pub(crate) prandom: Stream,
    /// Generation of each BPF timer: a stale expiry is ignored.
    pub(crate) bpf_timers: Vec<u32>,
    pub(crate) btf: Arc<Btf>,
    pub(crate) behavior: Option<Box<dyn Behavior>>,
    /// A loaded object knows where run queues are: what they say of time must be true. Shared with `KernelTarget`.
    pub(crate) rq_seen: Arc<AtomicBool>,
    /// The task that stands for init: parent of orphans, `current` of user-space callers.
    pub(crate) init_task: TaskId,
    pub(crate) hotplug_seq: u64,
}

impl Kernel {
    /// The present instant of the executing code.
    #[inline(always)]
    pub fn clock(&self) -> Nanos {
        debug_assert_eq!(self.insns_ns(), self.exec.insns_ns, "instructions not charged");
        self.exec.clock
    }

    /// Charges the instructions that BPF programs have executed since it was last called: whenever one calls the kernel, or
    /// has ended.
    #[inline(always)]
    pub(crate) fn charge_insns(&mut self) {
        let ns = self.insns_ns();
        self.exec.clock += ns - self.exec.insns_ns;
        self.exec.insns_ns = ns;
    }

    /// What the instructions take that have been executed since the executing code began.
    #[inline(always)]
    fn insns_ns(&self) -> Nanos {
        self.insn_time.of(self.vm.executed - self.exec.insns_from)
    }

    /// The executing code takes `cost` longer.
    #[inline]
    pub fn charge(&mut self, cost: Nanos) {
        self.exec.clock += cost;
    }

    /// `ktime_get_ns()` of the executing code.
    pub fn ktime(&self) -> Nanos {
        BOOT_NS + self.clock()
    }

    /// Jiffies at that clock, as `p->scx.runnable_at` counts them.
    pub fn jiffies(&mut self) -> u64 {
        let at = self.ktime();
        if at.wrapping_sub(self.jiffy.began) >= self.tick_ns {
            let count = at / self.tick_ns;
            self.jiffy = Jiffy { began: count * self.tick_ns, count };
        }
        self.jiffy.count
    }

    /// Runs `f` as code on `cpu` from `now` on: after it the CPU has been in the kernel for what `f` charged,
    /// and reschedules if that was asked for.
    #[inline]
    pub(crate) fn on_cpu<R>(&mut self, cpu: CpuId, f: impl FnOnce(&mut Kernel) -> R) -> R {
        self.enter(cpu);
        let result = f(self);
        self.leave(cpu);
        result
    }

    /// As `on_cpu`, of an event after which nothing of it is left to do but what `finish` does.
    #[inline]
    pub(crate) fn on_cpu_last(&mut self, cpu: CpuId, f: impl FnOnce(&mut Kernel)) -> Then {
        self.enter(cpu);
        f(self);
        Then::Leave(cpu)
    }

    /// A kernel path on `cpu` begins.
    #[inline(always)]
    fn enter(&mut self, cpu: CpuId) {
        let Kernel { cpus, tasks, now, .. } = self;
        let c = &mut cpus[cpu.idx()];
        let clock = c.kernel_path_start(*now);
        c.settle(*now, tasks);
        self.exec = Exec { cpu, clock, insns_from: self.vm.executed, insns_ns: 0 };
    }

    /// The kernel path on `cpu` ends: schedule if asked to, then let its task go on.
    fn leave(&mut self, cpu: CpuId) {
        if let Some((at, lane)) = self.leave_kernel(cpu) {
            self.post_step_end(cpu, at, lane);
        }
    }

    /// The end of an event. The steps of a task that end before anything else happens on the machine are taken at once: a task
    /// that was switched to begins so. The order is that of events which are queued, without the way through the queue.
    #[inline(always)]
    pub(crate) fn finish(&mut self, mut then: Then) {
        loop {
            let cpu = match then {
                Then::Nothing => return,
                Then::Leave(cpu) => cpu,
                Then::NextSteps(cpu) => {
                    self.enter(cpu);
                    self.next_steps(cpu);
                    cpu
                }
            };
            let Some((at, lane)) = self.leave_kernel(cpu) else { return };
            if !self.skip_to(at) {
                return self.post_step_end(cpu, at, lane);
            }
            self.cpus[cpu.idx()].expect_no_step_end();
            then = Then::NextSteps(cpu);
        }
    }

    /// The kernel path on `cpu` ends. If no event that is queued will do: when its task's step ends and the lane for that.
    #[inline(always)]
    fn leave_kernel(&mut self, cpu: CpuId) -> Option<(Nanos, usize)> {
        if self.cpus[cpu.idx()].must_schedule() {
            self.schedule_until_done(cpu);
        }
        let end = self.clock();
        let Kernel { cpus, tasks, now, .. } = self;
        let c = &mut cpus[cpu.idx()];
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
        for _ in 0..MAX_PASSES {
            self.schedule(cpu);
            if !self.cpus[cpu.idx()].must_schedule() {
                return;
            }
        }
        let task = format!("CPU {cpu} in the scheduler");
        self.stop_with(Stop::Livelock { task, max: MAX_PASSES });
    }

    /// Inlined by force: at every place the kind is known, and little is left to do.
    #[inline(always)]
    pub(crate) fn trace(&mut self, kind: Kind) {
        let (time, cpu) = (self.exec.clock, self.exec.cpu);
        self.tracer.emit(scxlab_trace::event::Event { time, cpu, kind });
    }

    /// Whether a task is the workload's, not the system's own.
    pub fn is_workload(&self, task: &crate::task::Task) -> bool {
        task.pid != 0 && task.id != self.init_task
    }

    /// Stops the run; the first reason counts.
    pub(crate) fn stop_with(&mut self, stop: Stop) {
        self.stop.get_or_insert(stop);
        self.allowed = 0;
    }
}

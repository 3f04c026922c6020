// SPDX-License-Identifier: GPL-2.0-only
//! The simulated kernel: all state of one run, and the clock of the code that runs.
//!
//! Owns: the executing CPU's clock, charging of time.
//! Does not: hold policy (see `schedule.rs`, `ext.rs` and the crate `fair`), or follow the steps of
//! a task (see `task/exec.rs`).
//!
//! Time: an event is handled atomically at `now`. The code that handles it, a kernel path, runs on
//! `exec.cpu`. The clock of this code starts at `now`, or at the end of that CPU's previous kernel
//! path if that is later, and advances with every cost. Effects on other CPUs are stamped with that
//! clock.

pub mod boot;
mod end;
pub mod event;
pub mod streams;

pub use end::{Limits, RunEnd, Stop};

use crate::bpf::Bpf;
use crate::cgroup::CgroupTable;
use crate::cpu::cache_occupancy::CacheTraffic;
use crate::cpu::{Cpu, PerCpu};
use crate::ext::Ext;
use crate::kernel::event::Event;
use crate::kernel::streams::Streams;
use crate::memory::Memory;
use crate::metrics::Metrics;
use crate::schedule::numa::NumaBalancing;
use crate::schedule::rt::RtQueues;
use crate::schedule::server::Servers;
use crate::schedule::tick::Ticks;
use crate::task::TaskTable;
use crate::task::behavior::Behavior;
use scxlab_bpf::vm::Vm;
use scxlab_fair::Fair;
use scxlab_machine::id::{CpuId, Nanos};
use scxlab_machine::{EventQueue, Machine};
use scxlab_trace::Tracer;
use scxlab_trace::event::EventKind;
use std::sync::Arc;

/// Value of BPF's clocks at virtual time 0, ns. It is not 0, because a real machine has been up for
/// a while when a scheduler is loaded.
pub const BOOT_NS: Nanos = 100_000_000_000;

/// CPU and clock of the executing code.
#[derive(Clone, Copy, Debug)]
pub struct Exec {
    pub cpu: CpuId,
    pub clock: Nanos,
    /// `insns_from` is `vm.executed` when the executing code began; `insns_ns` is the time that has
    /// been charged for the instructions since then.
    pub insns_from: u64,
    pub insns_ns: Nanos,
    /// Whether the CPU's task makes system calls. If not, an interrupt or the scheduler runs.
    pub stepping: bool,
}

/// Work that remains for the event loop when an event's handler has returned.
#[derive(Clone, Copy, Debug)]
pub(crate) enum AfterEvent {
    Nothing,
    /// The event loop must end the kernel path of the CPU.
    Leave(CpuId),
    /// The CPU's task has finished its step, so the event loop must start the next step.
    NextSteps(CpuId),
}

/// All state of one run.
pub struct Kernel {
    /// Guest memory and the loaded BPF programs.
    pub vm: Vm,
    /// The parts of the kernel that BPF programs use.
    pub bpf: Bpf,
    pub machine: Arc<Machine>,
    pub cpus: PerCpu<Cpu>,
    pub cache_traffic: CacheTraffic,
    /// Whether the machine is so large that prefetching pays (see `prefetch.rs`).
    pub(crate) prefetch_enabled: bool,
    pub tasks: TaskTable,
    pub cgroups: CgroupTable,
    /// Regions of memory; None until the workload makes the first.
    pub memory: Option<Box<Memory>>,
    /// Takes effect with the first region.
    pub numa_balancing: NumaBalancing,
    pub(crate) behavior: Option<Box<dyn Behavior>>,
    pub fair: Fair,
    pub rt: RtQueues,
    pub(crate) servers: Servers,
    pub ext: Ext,
    pub now: Nanos,
    pub exec: Exec,
    pub events: EventQueue<Event>,
    pub(crate) ticks: Ticks,
    pub end: RunEnd,
    pub streams: Streams,
    pub tracer: Tracer,
    pub metrics: Metrics,
}

impl Kernel {
    /// Returns the clock of the executing code.
    #[inline(always)]
    pub fn clock(&self) -> Nanos {
        debug_assert_eq!(self.insns_ns(), self.exec.insns_ns, "instructions not charged");
        self.exec.clock
    }

    /// Charges the instructions that BPF programs have executed since the last call of this
    /// function. The kernel calls it whenever a program calls a kernel function or ends.
    #[inline(always)]
    pub(crate) fn charge_insns(&mut self) {
        let ns = self.insns_ns();
        self.exec.clock += ns - self.exec.insns_ns;
        self.exec.insns_ns = ns;
    }

    /// Returns the time of the instructions executed since the executing code began.
    #[inline(always)]
    fn insns_ns(&self) -> Nanos {
        self.bpf.insn_time.of(self.vm.executed - self.exec.insns_from)
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
        self.ticks.jiffy_at(at)
    }

    /// Runs `f` as code on `cpu` from `now` on. The time that `f` charges counts as time in the
    /// kernel. Afterwards the CPU reschedules if a reschedule is pending.
    #[inline]
    pub(crate) fn on_cpu<R>(&mut self, cpu: CpuId, f: impl FnOnce(&mut Kernel) -> R) -> R {
        self.enter(cpu);
        let result = f(self);
        self.leave(cpu);
        result
    }

    /// Runs `f` as `on_cpu` does, but does not end the kernel path. `f` is the last action of an
    /// event's handler, and the handler's caller ends the path with `finish`.
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
        self.exec = Exec { cpu, clock, insns_from: self.vm.executed, insns_ns: 0, stepping: false };
    }

    /// Ends the kernel path on `cpu`: reschedules if a reschedule is pending, then lets the CPU's
    /// task go on.
    fn leave(&mut self, cpu: CpuId) {
        if let Some((at, lane)) = self.leave_kernel(cpu) {
            self.post_step_end(cpu, at, lane);
        }
    }

    /// Ends an event. If the task's step ends before the next queued event, this function handles
    /// the end of the step at once, without the queue. A task that is new or has slept usually gets
    /// its next step this way when the CPU switches to it, because no work is left in its previous
    /// step. The order of events is the same as if each step end were queued.
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

    /// Ends the kernel path on `cpu`. Returns the end of the current task's step and the event lane
    /// for it; None if the CPU is idle or the queued step-end event is early enough.
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
        let max = self.end.limits.max_instant_steps;
        for _ in 0..max {
            self.schedule(cpu);
            if !self.cpus[cpu].must_schedule() {
                return;
            }
        }
        self.end.stop_with(Stop::ScheduleLoop { cpu, max });
    }

    /// Traces an event. This function is always inlined: each caller passes a fixed variant of
    /// `kind`, so the compiler can remove the code for all other variants.
    #[inline(always)]
    pub(crate) fn trace(&mut self, kind: EventKind) {
        let (time, cpu) = (self.exec.clock, self.exec.cpu);
        self.tracer.emit(scxlab_trace::event::Event { time, cpu, kind });
    }

    /// Whether a task belongs to the workload. init and the idle tasks belong to the system.
    pub fn is_workload(&self, task: &crate::task::Task) -> bool {
        task.pid != 0 && task.id != self.tasks.init
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bpf::flags::ops;
    use crate::ext::idle::fixture::{kernel, load};
    use crate::ext::op::Op;

    #[test]
    fn a_cpu_that_never_leaves_the_scheduler_ends_the_run() {
        let mut k = kernel("2c1t", &[None]);
        k.end.limits.max_instant_steps = 1000;
        load(&mut k, ops::ENQ_LAST, &[Op::Enqueue, Op::Dispatch], |k, op, _| {
            let cpu = k.exec.cpu;
            k.cpus[cpu].need_resched |= op == Op::Dispatch;
            0
        });
        let stop = k.run(Some(100_000_000));
        assert_eq!(stop, Stop::ScheduleLoop { cpu: CpuId(0), max: 1000 });
    }
}

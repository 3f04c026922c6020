// SPDX-License-Identifier: GPL-2.0-only
//! The tick: periodic interrupts of busy CPUs; yields.
//!
//! Owns: the times of ticks, and the ways to give up a CPU.
//! Models: kernel `sched_tick()`, NO_HZ_IDLE, `yield_to()`, 7.3.
//! Differs: no nohz_full.

use crate::bpf::abi;
use crate::cgroup::CgroupTable;
use crate::cpu::{Cpu, PerCpu};
use crate::ext::op::Op;
use crate::kernel::event::{Event, lane};
use crate::kernel::{AfterEvent, Kernel};
use crate::task::{Class, Task, TaskState};
use scxlab_machine::Stream;
use scxlab_machine::id::{CpuId, Nanos, TaskId};

/// The tick's period, its phase on each CPU, and the jiffies that it counts.
pub(crate) struct Ticks {
    pub period_ns: Nanos,
    /// Offset of each CPU's ticks in the period, drawn from the seed.
    phase: PerCpu<Nanos>,
    /// Start and number of the jiffy of the last query. Most queries fall into the same jiffy, so
    /// that this saves a division.
    jiffy: (Nanos, u64),
}

impl Ticks {
    pub fn new(period_ns: Nanos, nr_cpus: usize, seed: u64) -> Self {
        let mut phases = Stream::new(seed, "tick phase", 0);
        let phase = (0..nr_cpus).map(|_| phases.below(period_ns)).collect();
        Ticks { period_ns, phase, jiffy: (0, 0) }
    }

    /// Returns the time of a CPU's first tick after `at`.
    fn next(&self, cpu: CpuId, at: Nanos) -> Nanos {
        let phase = self.phase[cpu];
        let periods = (at + self.period_ns - phase) / self.period_ns;
        periods * self.period_ns + phase
    }

    /// Returns the jiffy at a time on BPF's clock.
    #[inline]
    pub fn jiffy_at(&mut self, ktime: Nanos) -> u64 {
        let (began, count) = &mut self.jiffy;
        if ktime.wrapping_sub(*began) >= self.period_ns {
            *count = ktime / self.period_ns;
            *began = *count * self.period_ns;
        }
        *count
    }
}

impl Kernel {
    /// Starts the tick of a CPU that became busy, at the CPU's phase of the period.
    pub(crate) fn start_tick(&mut self, cpu: CpuId) {
        if std::mem::replace(&mut self.cpus[cpu].tick_on, true) {
            return;
        }
        let c = &mut self.cpus[cpu];
        c.tick_gen = c.tick_gen.wrapping_add(1);
        let at = self.ticks.next(cpu, self.exec.clock.max(self.now));
        let generation = self.cpus[cpu].tick_gen;
        self.events.push_in(lane::TICK, at, Event::Tick { cpu, generation });
    }

    pub(crate) fn stop_tick(&mut self, cpu: CpuId) {
        self.cpus[cpu].tick_on = false;
    }

    #[inline(never)]
    pub(crate) fn tick(&mut self, cpu: CpuId, generation: u32) -> AfterEvent {
        let c = &self.cpus[cpu];
        if !c.tick_on || c.tick_gen != generation {
            return AfterEvent::Nothing;
        }
        let in_kernel = c.kernel_until > self.now;
        self.events.push_in(
            lane::TICK,
            self.now + self.ticks.period_ns,
            Event::Tick { cpu, generation },
        );
        self.on_cpu_last(cpu, |k| k.tick_work(cpu, in_kernel))
    }

    fn tick_work(&mut self, cpu: CpuId, in_kernel: bool) {
        self.charge(self.machine.costs.irq.tick_ns);
        self.take_rq_clock(cpu);
        let curr = self.cpus[cpu].curr;
        self.mirror_tick(curr, in_kernel);
        match self.tasks[curr].class {
            Class::Ext => self.ext_task_tick(cpu),
            Class::Fair => self.fair_tick(cpu),
            Class::Rt | Class::Deadline => self.rt_tick(cpu),
            Class::Idle => {}
        }
        if self.memory.is_some() {
            self.numa_tick(cpu);
        }
        self.watchdog_tick();
        self.fair_balance_tick(cpu);
    }

    /// `task_tick_scx()`: charges the current task, calls `ops.tick`, and reschedules if the slice
    /// is used up.
    fn ext_task_tick(&mut self, cpu: CpuId) {
        self.ext_update_curr(cpu);
        let curr = self.cpus[cpu].curr;
        if self.ext.bypassing(cpu) {
            self.set_slice(curr, 0);
        } else if self.ext.has_op(Op::Tick) {
            self.op_task(Op::Tick, Some(cpu), curr, &[]);
        }
        if self.scx(curr).slice == 0 {
            self.resched(cpu);
        }
    }

    /// `update_curr_common()`: charges the current task up to now. Returns the time charged.
    pub(crate) fn charge_curr(&mut self, cpu: CpuId) -> Nanos {
        let at = self.clock();
        let Kernel { cpus, tasks, vm, cgroups, .. } = self;
        let c = &mut cpus[cpu];
        let t = &mut tasks[c.curr];
        let seen = vm.mem.own_mut(t.addr);
        let delta = c.charge(t, seen, cgroups, at);
        self.server_update(cpu, delta);
        delta
    }

    /// Carries out `sched_yield(2)` of the CPU's current task.
    pub(crate) fn yield_curr(&mut self, cpu: CpuId) {
        let curr = self.cpus[cpu].curr;
        match self.tasks[curr].class {
            Class::Ext => {
                if self.ext.has_op(Op::Yield) {
                    let addr = self.tasks[curr].addr;
                    self.op_two(Op::Yield, Some(cpu), addr, 0);
                } else {
                    self.set_slice(curr, 0);
                }
            }
            Class::Fair => self.fair_yield(cpu),
            Class::Rt | Class::Deadline => self.rt_yield(cpu),
            Class::Idle => {}
        }
        self.cpus[cpu].need_resched = true;
    }

    /// Gives the turn of the CPU's current task to a task that waits (`yield_to()` with `preempt`).
    /// Returns false if the class of the two refuses, or nobody else waits on their CPUs. The
    /// caller has paid for the call.
    pub(crate) fn yield_curr_to(&mut self, cpu: CpuId, target: TaskId) -> bool {
        let curr = self.cpus[cpu].curr;
        let Some(to) = self.tasks.get(target) else { return false };
        let (class, queue) = (self.tasks[curr].class, to.cpu);
        let waits = to.state == TaskState::Runnable && to.on_rq && !to.on_cpu;
        if curr == target || !waits || to.wake_queued.is_some() || to.class != class {
            return false;
        }
        if self.nr_running(cpu) <= 1 && self.nr_running(queue) <= 1 {
            return false;
        }
        let yields = match class {
            Class::Fair => self.fair_yield_to(cpu, target),
            Class::Ext if self.ext.has_op(Op::Yield) => {
                let (from, to) = (self.tasks[curr].addr, self.tasks[target].addr);
                self.op_two(Op::Yield, Some(cpu), from, to) != 0
            }
            _ => false,
        };
        if yields {
            self.cpus[cpu].need_resched = true;
            if queue != cpu {
                self.resched(queue);
            }
        }
        yields
    }
}

impl Cpu {
    /// Charges the CPU's current task up to `at`, here and in the `task_struct` that programs see.
    /// Returns the time charged.
    #[inline]
    pub(crate) fn charge(
        &mut self,
        curr: &mut Task,
        seen: &mut abi::task_struct,
        cgroups: &mut CgroupTable,
        at: Nanos,
    ) -> Nanos {
        let delta = at.saturating_sub(curr.exec_start);
        if delta == 0 || curr.is_idle_task() {
            return 0;
        }
        curr.exec_start = at;
        curr.account.run_ns += delta;
        self.charged_until = at;
        seen.se.sum_exec_runtime = curr.account.run_ns;
        if let Some(group) = cgroups.get_mut(curr.cgroup) {
            group.run_ns += delta;
        }
        delta
    }
}

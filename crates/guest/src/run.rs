// SPDX-License-Identifier: GPL-2.0-only
//! What a vCPU does when its step ends: the loop up to its next step, boot and power off.
//!
//! Owns: the order of accounts, interrupts, scheduling and the program's steps.

use std::collections::BTreeMap;

use scxlab_kernel::behavior::{GuestRun, Sys, SysError, TaskSpec, TaskStep};
use scxlab_kernel::cpu::lock::Lock;
use scxlab_machine::id::{CgroupId, Nanos, TaskId};

use crate::account::{VcpuClock, VcpuTimes};
use crate::memory::GuestMemory;
use crate::sys::GuestSys;
use crate::{Class, Guest, GuestKernel, Mode, State, Timer, Vcpu};

/// Maximum number of the program's steps within one step of a vCPU. Then a nanosecond passes.
const MAX_INSTANT_STEPS: u32 = 10_000;

/// What follows a step of the program.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Then {
    GoOn,
    Run(TaskStep),
    Spin,
}

impl Guest {
    /// Makes the vCPU tasks in these cgroups, one per vCPU. Called within `Behavior::start` of the
    /// host. The first vCPU starts the program when it first runs.
    pub fn boot(&mut self, host: &mut dyn Sys, cgroups: Vec<CgroupId>) -> Result<(), SysError> {
        self.os.boot_vcpus(host, &cgroups)
    }

    /// Returns the next step of a vCPU.
    pub fn step(&mut self, host: &mut dyn Sys, vcpu: u32) -> TaskStep {
        let v = vcpu as usize;
        self.os.enter(host, v);
        if v == 0 && !std::mem::replace(&mut self.os.started, true) {
            self.program.start(&mut GuestSys { os: &mut self.os, host, v });
        }
        let step = self.next_step(host, v);
        self.os.count_call(host, v);
        step
    }

    fn next_step(&mut self, host: &mut dyn Sys, v: usize) -> TaskStep {
        for _ in 0..MAX_INSTANT_STEPS {
            if self.os.must_schedule(v, false) {
                self.os.schedule(host, v);
                continue;
            }
            if !self.os.posts.is_empty() {
                for token in std::mem::take(&mut self.os.posts) {
                    self.program.on_timer(&mut GuestSys { os: &mut self.os, host, v }, token);
                }
                continue;
            }
            if self.os.off {
                return self.os.exit_vcpu(v);
            }
            let Some(t) = self.os.vcpus[v].current else {
                if self.os.must_schedule(v, true) {
                    self.os.schedule(host, v);
                    continue;
                }
                return self.os.idle(host, v);
            };
            let then = if self.os.thread(t).flush_left > 0 {
                Then::Spin
            } else if let Some(left) = self.os.thread_mut(t).left.take() {
                Then::Run(left)
            } else {
                let step =
                    self.program.step(&mut GuestSys { os: &mut self.os, host, v }, TaskId(t));
                self.os.begin(host, v, t, step)
            };
            if then == Then::GoOn || self.os.must_schedule(v, false) && then == Then::Spin {
                continue;
            }
            // The return to the program.
            let preempted = self.os.must_schedule(v, true);
            match then {
                Then::Run(step) if preempted => self.os.thread_mut(t).left = Some(step),
                Then::Run(step) => return self.os.run(host, v, step),
                Then::Spin if !preempted => return self.os.spin(host, v, t),
                _ => {}
            }
            self.os.schedule(host, v);
        }
        // The host goes on to the next event before the rest. A thread that has gone to sleep must
        // have left the vCPU by then, because another vCPU may wake it.
        while self.os.must_schedule(v, false) {
            self.os.schedule(host, v);
        }
        match self.os.vcpus[v].current {
            Some(_) => self.os.run(host, v, TaskStep::Compute { work: 1 }),
            None => self.os.idle(host, v),
        }
    }

    /// Returns what a vCPU's guest waits for, for the report of a deadlock.
    pub fn waits_for(&self) -> Option<String> {
        let asleep = |t: &u32| self.os.thread(*t).state == State::Sleeping;
        let what = |t: u32| {
            let what = self.program.waits_for(TaskId(t))?;
            Some(format!("{}: {what}", self.os.thread(t).name))
        };
        let threads = 0..self.os.threads.len() as u32;
        let all: Vec<String> = threads.filter(asleep).filter_map(what).take(3).collect();
        Some(format!("guest {}: {}", self.os.config.name, all.join(", ")))
    }
}

impl GuestKernel {
    fn boot_vcpus(&mut self, host: &mut dyn Sys, cgroups: &[CgroupId]) -> Result<(), SysError> {
        let memory = self.config.memory.clone();
        self.memory = memory.map(|spec| GuestMemory::new(host, spec)).transpose()?;
        let count = self.config.cpus.len();
        let key = TaskId(self.random_key(0));
        let seed = host.random("guest.sched", key);
        self.fair = crate::default_class::new_class(count, self.tick_period, seed);
        for (v, &cgroup) in cgroups.iter().enumerate() {
            let name = self.vcpu_name(v as u32);
            let spec = TaskSpec {
                nice: self.config.nice,
                affinity: self.config.cpus[v].clone(),
                cgroup,
                thread_group_of: self.vcpus.first().map(|vcpu| vcpu.task),
                ..TaskSpec::normal(&name)
            };
            let task = host.fork(None, spec)?;
            if let Some(memory) = &self.memory {
                host.region_map(task, memory.region);
            }
            let now = host.now();
            let (guest, vcpu) = (self.config.number, v as u32);
            self.vcpus.push(Vcpu {
                task,
                mode: Mode::Idle,
                current: None,
                rq_curr: None,
                next_class: Class::Idle,
                rq_lock: Lock::default(),
                wake_list: Vec::new(),
                push: None,
                active_balance: false,
                hrtick_at: None,
                rt_since: 0,
                step: TaskStep::Exit,
                pending: 0,
                need_resched: false,
                resched_lazy: false,
                timers: BTreeMap::new(),
                next_tick: self.tick_period * v as u64 / count as u64,
                armed: None,
                polled: false,
                flushes: Vec::new(),
                flush_on_entry: false,
                paused: 0,
                spun: 0,
                ple_window: self.machine.costs.guest.ple_window_ns,
                in_spin_loop: false,
                eligible: false,
                clock: VcpuClock::new(now),
                times: VcpuTimes::default(),
                switches: 0,
                traced: GuestRun { guest, vcpu, thread: None, spins: false },
            });
        }
        let name = self.config.name.clone();
        host.guest_name(self.config.number, None, &name);
        Ok(())
    }

    pub(crate) fn vcpu_name(&self, v: u32) -> String {
        format!("{}-vcpu{v}", self.config.name)
    }

    /// Begins the call of a vCPU's step.
    fn enter(&mut self, host: &mut dyn Sys, v: usize) {
        let preempted = self.count_span(host, v);
        let vcpu = &mut self.vcpus[v];
        let rest = host.cut_rest(vcpu.task);
        let was = std::mem::replace(&mut vcpu.mode, Mode::Runs);
        if std::mem::take(&mut vcpu.in_spin_loop) {
            vcpu.eligible = false;
        }
        // The vCPU was scheduled in again.
        if preempted || matches!(was, Mode::Halted | Mode::LockHalted) {
            vcpu.ple_window = self.machine.costs.guest.ple_window_ns;
        }
        if was == Mode::Runs && rest > 0 {
            let step = with_rest(vcpu.step, rest);
            if let Some(t) = vcpu.current {
                self.thread_mut(t).left = step;
            }
        }
        if !self.off {
            self.interrupts(host, v, was);
        }
    }

    /// Lets the host run a step of the current thread.
    fn run(&mut self, host: &mut dyn Sys, v: usize, step: TaskStep) -> TaskStep {
        self.arm(host, v);
        let vcpu = &self.vcpus[v];
        if matches!(step, TaskStep::Memory { .. })
            && let Some(access) = vcpu.current.and_then(|t| self.thread(t).access)
        {
            host.set_access(vcpu.task, access);
        }
        let vcpu = &mut self.vcpus[v];
        vcpu.mode = Mode::Runs;
        vcpu.step = step;
        step
    }

    /// Begins a step of the program.
    fn begin(&mut self, host: &mut dyn Sys, v: usize, t: u32, step: TaskStep) -> Then {
        if step != TaskStep::Spin {
            self.end_spin(host, v, t);
        }
        match step {
            // A step without work is a return to the program, too.
            TaskStep::Compute { .. } | TaskStep::ComputeWall { .. } | TaskStep::Memory { .. } => {
                return Then::Run(step);
            }
            TaskStep::Spin | TaskStep::SpinFor { .. } => return Then::Spin,
            TaskStep::Block => self.sleep(host, v, t, None),
            TaskStep::SleepUntil(at) => self.sleep(host, v, t, Some(at)),
            TaskStep::Yield => self.yield_current(host, v, t),
            TaskStep::Exec => self.exec_thread(host, v, t),
            TaskStep::FlushTlb => self.flush_tlb(host, v, t),
            TaskStep::Exit => self.exit_thread(host, v, t),
        }
        Then::GoOn
    }

    fn sleep(&mut self, host: &mut dyn Sys, v: usize, t: u32, until: Option<Nanos>) {
        let woken = std::mem::take(&mut self.thread_mut(t).wake_pending);
        if woken || until.is_some_and(|at| at <= host.now()) {
            return;
        }
        let costs = &self.machine.costs;
        if until.is_some() {
            host.charge(costs.irq.hrtimer_arm_ns);
        }
        host.charge(costs.sched.dequeue_ns);
        if let Some(at) = until {
            let key = self.add_timer(v, at, Timer::Wake(t));
            self.thread_mut(t).timer = Some((v, key));
        }
        self.deschedule(host, v, t, State::Sleeping);
    }

    fn exit_thread(&mut self, host: &mut dyn Sys, v: usize, t: u32) {
        self.deschedule(host, v, t, State::Gone);
        let report = self.report_thread(t);
        self.gone.push(report);
        self.live -= 1;
        if self.live == 0 {
            self.power_off(host, v);
        }
    }

    /// Turns the guest off: each vCPU exits at its next step.
    pub(crate) fn power_off(&mut self, host: &mut dyn Sys, v: usize) {
        self.off = true;
        for (_, vcpu) in self.vcpus.iter().enumerate().filter(|(other, _)| *other != v) {
            match vcpu.mode {
                Mode::Halted | Mode::LockHalted => {
                    host.wake(vcpu.task, false);
                }
                Mode::Idle | Mode::Runs | Mode::Spins => host.kick(vcpu.task),
                Mode::Off => {}
            }
        }
    }

    fn exit_vcpu(&mut self, v: usize) -> TaskStep {
        self.vcpus[v].mode = Mode::Off;
        TaskStep::Exit
    }
}

/// Returns a step with this work that is left.
fn with_rest(step: TaskStep, rest: Nanos) -> Option<TaskStep> {
    match step {
        TaskStep::Compute { .. } => Some(TaskStep::Compute { work: rest }),
        TaskStep::ComputeWall { .. } => Some(TaskStep::ComputeWall { wall: rest }),
        TaskStep::Memory { .. } => Some(TaskStep::Memory { work: rest }),
        _ => None,
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! The simulated executor: runs compiled programs as the `Behavior` of a simulation.
//!
//! Owns: every thread's position in its program (`run`), and the shared objects (`sync`, `pipe`,
//! `spin`).
//! Does not: schedule, or advance time. The executor answers `step` and acts through `Sys`.
//!
//! `Thread::wait` is the protocol between a blocked thread and its waker. The waker completes the
//! operation (hands over the lock, moves the bytes), sets `wait` to `None`, and only then wakes the
//! thread. A wake-up that finds `wait` still set was meant for an earlier sleep, and the thread
//! goes back to sleep. Only a poll, and an op that takes a
//! barging mutex, are executed again after their wait.

use std::collections::BTreeMap;

use scxlab_kernel::behavior::{Behavior, Policy, Sys, SysError, TaskStep};
use scxlab_machine::cpumask::CpuMask;
use scxlab_machine::id::{CgroupId, CpuId, Nanos, TaskId};
use scxlab_machine::prefetch::prefetch;

use crate::compile::{self, Compiled, NodeInfo};
use crate::error::{SourcePlace, WorkloadError};
use crate::program::{CpuList, PolicyDef, Program};
use crate::timers::TimerTotals;

mod costs;
mod guests;
mod ops;
mod pipe;
mod region;
mod run;
mod spawn;
mod spin;
mod stats;
mod sync;
mod thread;
mod waits;

pub use costs::SyscallCosts;
pub use guests::{WithGuests, behavior, executor, executor_in, guests, region_pages};
pub use region::RegionPages;
pub use stats::{LoopObserver, LoopRecord, LoopTotals};

use pipe::Pipe;
use region::Regions;
use spin::{SpinBarrier, SpinLock};
use sync::{Barrier, Cond, Mutex, Sem};
use thread::{NO_THREAD, Thread, TimerState, Wait};

/// Token of the timer that ends the run.
const FINISH: u64 = u64::MAX;

/// Random variations that depend on the seed. With 0, the default, a field has no effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Perturb {
    /// Maximum start offset in ns. Each thread that exists at the start begins at a random time
    /// from 0 to this maximum, and its timers and its `delay` shift by the same time. Random
    /// stream: `workload.start_offset`.
    pub start_offset_max: Nanos,
    /// Each `compute` is longer or shorter by up to this many thousandths (at most 999). The
    /// variation is uniformly distributed. Random stream: `workload.compute_noise`.
    pub compute_noise_permille: u32,
}

impl Perturb {
    /// Returns the same with start offsets of at most a hundredth of a run's length, so that a
    /// short run does not consist of them.
    pub fn within(self, length: Nanos) -> Perturb {
        Perturb { start_offset_max: self.start_offset_max.min(length / 100), ..self }
    }

    /// Returns an upper bound on the number of wake-ups of `tasks` tasks that end start offsets.
    pub fn begins(&self, tasks: usize) -> u64 {
        if self.start_offset_max == 0 { 0 } else { tasks as u64 }
    }
}

/// Settings of an executor besides the program.
#[derive(Clone, Debug, Default)]
pub struct ExecConfig {
    pub nr_cpus: u32,
    pub costs: SyscallCosts,
    pub perturb: Perturb,
    /// Overrides the program's own duration.
    pub duration: Option<Nanos>,
    /// The machine's nodes. A program without regions and `mems` does not need them.
    pub nodes: Vec<NodeInfo>,
    /// The run goes on without threads of the program, because there are other tasks.
    pub endless: bool,
}

/// A system call of the program that the kernel refused. The thread continued as if it had not made
/// the call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at} ns, {who}: {what}: {error}")]
pub struct RefusedCall {
    pub at: Nanos,
    pub who: String,
    pub what: &'static str,
    pub error: SysError,
}

/// Maximum number of refused calls that are kept; further refused calls are only counted.
const MAX_REFUSED_CALLS: usize = 100;

/// The continuation after an instruction: the next instruction, or a step for the kernel.
enum Flow {
    Next,
    Yield(TaskStep),
}

/// Runs one program. One object serves all threads of the program.
pub struct Executor {
    compiled: Compiled,
    unit: String,
    duration: Option<Nanos>,
    endless: bool,
    /// Whether each thread template has phases, whose passes are measured.
    phased: Vec<bool>,
    cumulative_slack: bool,
    rtapp_names: bool,
    costs: SyscallCosts,
    perturb: Perturb,
    program: Program,

    threads: Vec<Thread>,
    free: Vec<u32>,
    /// Index into `threads`, by task slot; `NO_THREAD` for tasks that are not threads of the
    /// program.
    by_task: Vec<u32>,
    live: u32,
    /// Number of threads made so far, in total and by thread template. Thread names contain these
    /// numbers.
    made: u32,
    made_of: Vec<u32>,
    serial: u64,
    /// Process numbers by process name.
    processes: BTreeMap<String, u32>,
    /// The thread that last joined each process, by process number.
    last_of_process: Vec<u32>,

    mutexes: Vec<Mutex>,
    conds: Vec<Cond>,
    barriers: Vec<Barrier>,
    sems: Vec<Sem>,
    pipes: Vec<Pipe>,
    spin_locks: Vec<SpinLock>,
    /// Indexed by set of lines (`atomic`): the machine's CPU that wrote it last.
    line_writers: Vec<Option<CpuId>>,
    spin_barriers: Vec<SpinBarrier>,
    timers: Vec<TimerState>,
    regions: Regions,

    masks: Vec<CpuMask>,
    all_cpus: CpuMask,
    touch_costs: Vec<Nanos>,
    cgroup_ids: Vec<CgroupId>,
    faults: Vec<RefusedCall>,
    nr_faults: u64,
    /// The first refusal of a thread with which the program starts.
    missing: Option<RefusedCall>,
    totals: Vec<LoopTotals>,
    timer_totals: TimerTotals,
    /// Number of the threads that existed at the start and have exited, and the sum of the times at
    /// which they did.
    completed: (u64, u128),
    observer: Option<Box<dyn LoopObserver + Send>>,
}

impl Executor {
    /// Compiles the program for a machine of `config.nr_cpus` CPUs.
    pub fn new(program: &Program, config: ExecConfig) -> Result<Self, WorkloadError> {
        let compiled = compile::compile(program)?;
        if !config.endless && program.threads.iter().all(|t| t.instances == 0) {
            return Err(WorkloadError::NoThreads { at: program.whole() });
        }
        compile::check_nodes(program, &config.nodes)?;
        let nr_cpus = config.nr_cpus;
        for (part, thread, list) in compile::cpu_lists(program) {
            known_cpus(|| program.place(part), thread, list, nr_cpus)?;
        }
        let templates = compiled.templates.len();
        let touch_costs = compiled.tables.touches.iter().map(|t| config.costs.touch(t)).collect();
        Ok(Executor {
            masks: compiled.tables.affinities.iter().map(|l| cpu_mask(l, nr_cpus)).collect(),
            all_cpus: CpuMask::all(nr_cpus as usize),
            touch_costs,
            phased: (0..templates).map(|t| compiled.has_phases(t)).collect(),
            unit: program.unit.clone(),
            duration: config.duration.or(program.duration.map(|d| d.0)),
            endless: config.endless,
            cumulative_slack: program.cumulative_slack,
            rtapp_names: program.from_rtapp,
            costs: config.costs,
            perturb: config.perturb,
            program: program.clone(),
            compiled,
            threads: Vec::new(),
            free: Vec::new(),
            by_task: Vec::new(),
            live: 0,
            made: 0,
            made_of: vec![0; templates],
            serial: 0,
            processes: BTreeMap::new(),
            last_of_process: Vec::new(),
            mutexes: Vec::new(),
            conds: Vec::new(),
            barriers: Vec::new(),
            sems: Vec::new(),
            pipes: Vec::new(),
            spin_locks: Vec::new(),
            line_writers: Vec::new(),
            spin_barriers: Vec::new(),
            timers: Vec::new(),
            regions: Regions::default(),
            cgroup_ids: Vec::new(),
            faults: Vec::new(),
            nr_faults: 0,
            missing: None,
            totals: vec![LoopTotals::default(); templates],
            timer_totals: TimerTotals::default(),
            completed: (0, 0),
            observer: None,
        })
    }

    /// Calls `observer` at the end of every pass of a phase.
    pub fn observe(&mut self, observer: Box<dyn LoopObserver + Send>) {
        self.observer = Some(observer);
    }

    /// Returns the first hundred system calls that the kernel refused, and the number of all of
    /// them.
    pub fn faults(&self) -> (&[RefusedCall], u64) {
        (&self.faults, self.nr_faults)
    }

    /// Returns the first refusal of a thread with which the program starts.
    pub fn missing(&self) -> Option<&RefusedCall> {
        self.missing.as_ref()
    }

    /// Returns for each thread template its name and the totals over the passes of its phases.
    pub fn loop_totals(&self) -> impl Iterator<Item = (&str, &LoopTotals)> {
        self.compiled.templates.iter().map(|t| t.name.as_str()).zip(&self.totals)
    }

    /// Returns the number of threads that existed at the start and the sum of the times at which
    /// they exited; None if one of them has not exited.
    pub fn completed(&self) -> Option<(u64, u128)> {
        let threads: u64 = self.compiled.templates.iter().map(|t| u64::from(t.instances)).sum();
        (self.completed.0 == threads).then_some(self.completed)
    }

    /// Returns the cgroup at a path; None for the root, and for paths that the program does not
    /// name.
    fn cgroup_id(&self, path: &str) -> Option<CgroupId> {
        let index = self.compiled.cgroups.iter().position(|def| def.path == path)?;
        self.cgroup_ids.get(index).copied()
    }

    /// Returns the time at which the run ends by itself, if it does.
    pub fn duration(&self) -> Option<Nanos> {
        self.duration
    }

    fn fault(&mut self, at: Nanos, who: String, what: &'static str, error: SysError) {
        self.nr_faults += 1;
        if self.faults.len() < MAX_REFUSED_CALLS {
            self.faults.push(RefusedCall { at, who, what, error });
        }
    }

    /// Records the refusal of a thread's system call.
    fn checked(&mut self, sys: &dyn Sys, t: usize, what: &'static str, got: Result<(), SysError>) {
        if let Err(error) = got {
            let who = self.threads[t].name.clone();
            self.fault(sys.now(), who, what, error);
        }
    }

    fn thread_of(&self, task: TaskId) -> Option<usize> {
        let t = *self.by_task.get(task.idx())?;
        (t != NO_THREAD).then_some(t as usize)
    }

    /// Marks a waiter's operation as done and wakes the waiter.
    fn release(&mut self, sys: &mut dyn Sys, waiter: u32, sync: bool) {
        let thread = &mut self.threads[waiter as usize];
        thread.wait = Wait::None;
        sys.wake(thread.task, sync);
    }
}

impl Behavior for Executor {
    fn start(&mut self, sys: &mut dyn Sys) {
        if let Some(duration) = self.duration {
            sys.post(duration, CpuId(0), FINISH);
        }
        self.make_cgroups(sys);
        self.make_objects();
        for template in 0..self.compiled.templates.len() {
            for instance in 0..self.compiled.templates[template].instances {
                self.spawn(sys, None, template, instance);
            }
        }
        if self.live == 0 && !self.endless {
            sys.finish();
        }
    }

    fn step(&mut self, sys: &mut dyn Sys, task: TaskId) -> TaskStep {
        let now = sys.now();
        self.step_at(sys, task, now)
    }

    fn on_timer(&mut self, sys: &mut dyn Sys, token: u64) {
        if token == FINISH {
            sys.finish();
        }
    }

    fn prefetch_task(&self, task: TaskId) {
        if let Some(t) = self.thread_of(task) {
            prefetch(&self.threads[t]);
        }
    }

    fn unit(&self) -> &str {
        &self.unit
    }

    fn waits_for(&self, task: TaskId) -> Option<String> {
        let thread = &self.threads[self.thread_of(task)?];
        self.describe_wait(thread.wait)
    }
}

fn known_cpus(
    at: impl Fn() -> SourcePlace,
    thread: &str,
    list: &CpuList,
    nr_cpus: u32,
) -> Result<(), WorkloadError> {
    match list.max() {
        cpu if cpu >= nr_cpus => {
            Err(WorkloadError::NoSuchCpu { at: at(), thread: thread.to_owned(), cpu, nr_cpus })
        }
        _ => Ok(()),
    }
}

fn cpu_mask(list: &CpuList, nr_cpus: u32) -> CpuMask {
    CpuMask::of(nr_cpus as usize, list.iter().map(CpuId))
}

/// Returns a policy in the form of the simulated kernel.
pub fn kernel_policy(policy: PolicyDef) -> Policy {
    match policy {
        PolicyDef::Normal => Policy::Normal,
        PolicyDef::Batch => Policy::Batch,
        PolicyDef::Idle => Policy::Idle,
        PolicyDef::Ext => Policy::Ext,
        PolicyDef::Fifo(prio) => Policy::Fifo { prio },
        PolicyDef::Rr(prio) => Policy::RoundRobin { prio },
        PolicyDef::Deadline { runtime, deadline, period } => {
            Policy::Deadline { runtime: runtime.0, deadline: deadline.0, period: period.0 }
        }
    }
}

#[cfg(test)]
pub(crate) mod mock;
#[cfg(test)]
mod tests;

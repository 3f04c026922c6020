// SPDX-License-Identifier: GPL-2.0-only
//! The simulated executor: runs compiled programs as the `Behavior` of a simulation.
//!
//! Owns: every thread's place in its program, and the shared objects (`sync`, `pipe`, `spin`).
//! Does not: schedule, or pass time; it answers `step` and acts through `Sys`.
//!
//! A blocked thread and its waker agree through `Thread::wait`: the waker completes the operation (hands
//! the lock over, moves the bytes), sets `wait` to `None`, and only then wakes. A wake-up that finds `wait`
//! still set was meant for an earlier sleep; the thread goes back to sleep. No operation is ever retried.

use std::collections::BTreeMap;

use scxlab_kernel::behavior::{Behavior, CgroupSpec, Policy, Step, Sys, SysError};
use scxlab_machine::cpumask::CpuMask;
use scxlab_machine::id::{CgroupId, CpuId, Nanos, TaskId};
use scxlab_machine::prefetch::prefetch;

use crate::compile::insn::{Insn, Kind, TimerRef};
use crate::compile::{self, Compiled};
use crate::error::WorkloadError;
use crate::program::{CpuList, PolicyDef, Program};

mod costs;
mod pipe;
mod spawn;
mod spin;
mod stats;
mod sync;
mod thread;

pub use costs::SyscallCosts;
pub use stats::{LoopObserver, LoopRecord, LoopTotals};

use pipe::Pipe;
use spin::{SpinBarrier, SpinLock};
use stats::Pending;
use sync::{Barrier, Cond, Mutex, Sem};
use thread::{NO_THREAD, Thread, TimerState, Wait};

/// The token of the timer that ends the run.
const FINISH: u64 = u64::MAX;

/// What a seed changes. Zero, the default, is exact.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Perturb {
    /// Each thread that exists at the start begins at a random time from 0 to this; its timers and its
    /// `delay` shift with it. Stream `workload.start_offset`.
    pub start_offset_max: Nanos,
    /// Each `compute` is longer or shorter by up to this many thousandths, evenly spread (at most 999).
    /// Stream `workload.compute_noise`.
    pub compute_noise_permille: u32,
}

/// What an executor needs to know besides the program.
#[derive(Clone, Debug, Default)]
pub struct ExecConfig {
    pub nr_cpus: u32,
    pub costs: SyscallCosts,
    pub perturb: Perturb,
    /// Takes the place of the program's own duration.
    pub duration: Option<Nanos>,
}

/// A system call of the program that the kernel refused; the thread went on as if it had not asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{at} ns, {who}: {what}: {error}")]
pub struct Fault {
    pub at: Nanos,
    pub who: String,
    pub what: &'static str,
    pub error: SysError,
}

/// At most this many faults are kept; the rest are counted.
const MAX_FAULTS: usize = 100;

/// What a thread does after an instruction.
enum Flow {
    Next,
    Yield(Step),
}

/// Runs one program. One object for all of its threads.
pub struct Executor {
    compiled: Compiled,
    unit: String,
    duration: Option<Nanos>,
    cumulative_slack: bool,
    rtapp_names: bool,
    costs: SyscallCosts,
    perturb: Perturb,
    program: Program,

    threads: Vec<Thread>,
    free: Vec<u32>,
    /// Thread of a task slot, `NO_THREAD` if it is not ours.
    by_task: Vec<u32>,
    live: u32,
    /// Threads made so far, and of each template: the numbers in their names.
    made: u32,
    made_of: Vec<u32>,
    serial: u64,
    /// Process name to its number.
    processes: BTreeMap<String, u32>,
    /// The thread that joined each process last, by number.
    last_of_process: Vec<u32>,

    mutexes: Vec<Mutex>,
    conds: Vec<Cond>,
    barriers: Vec<Barrier>,
    sems: Vec<Sem>,
    pipes: Vec<Pipe>,
    spin_locks: Vec<SpinLock>,
    spin_barriers: Vec<SpinBarrier>,
    timers: Vec<TimerState>,

    masks: Vec<CpuMask>,
    all_cpus: CpuMask,
    touch_costs: Vec<Nanos>,
    cgroup_ids: Vec<CgroupId>,
    faults: Vec<Fault>,
    nr_faults: u64,
    totals: Vec<LoopTotals>,
    observer: Option<Box<dyn LoopObserver + Send>>,
}

impl Executor {
    /// Compiles the program for a machine of `config.nr_cpus` CPUs.
    pub fn new(program: &Program, config: ExecConfig) -> Result<Self, WorkloadError> {
        let compiled = compile::compile(program)?;
        if program.threads.iter().all(|t| t.instances == 0) {
            return Err(WorkloadError::NoThreads { program: program.name.clone() });
        }
        let nr_cpus = config.nr_cpus;
        for thread in &program.threads {
            thread.cpus.iter().try_for_each(|list| known_cpus(&thread.name, list, nr_cpus))?;
        }
        for list in &compiled.affinities {
            known_cpus(&program.name, list, nr_cpus)?;
        }
        let templates = compiled.templates.len();
        let touch_costs = compiled.touches.iter().map(|t| config.costs.touch(t)).collect();
        Ok(Executor {
            masks: compiled.affinities.iter().map(|l| cpu_mask(l, nr_cpus)).collect(),
            all_cpus: CpuMask::all(nr_cpus as usize),
            touch_costs,
            unit: program.unit.clone(),
            duration: config.duration.or(program.duration.map(|d| d.0)),
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
            spin_barriers: Vec::new(),
            timers: Vec::new(),
            cgroup_ids: Vec::new(),
            faults: Vec::new(),
            nr_faults: 0,
            totals: vec![LoopTotals::default(); templates],
            observer: None,
        })
    }

    /// Calls `observer` at the end of every pass of a phase.
    pub fn observe(&mut self, observer: Box<dyn LoopObserver + Send>) {
        self.observer = Some(observer);
    }

    /// System calls that the kernel refused: the first hundred, and how many there were.
    pub fn faults(&self) -> (&[Fault], u64) {
        (&self.faults, self.nr_faults)
    }

    /// What the passes of each template's phases add up to, by template name.
    pub fn loop_totals(&self) -> impl Iterator<Item = (&str, &LoopTotals)> {
        self.compiled.templates.iter().map(|t| t.name.as_str()).zip(&self.totals)
    }

    /// When the run ends by itself, if it does.
    pub fn duration(&self) -> Option<Nanos> {
        self.duration
    }

    fn fault(&mut self, at: Nanos, who: String, what: &'static str, error: SysError) {
        self.nr_faults += 1;
        if self.faults.len() < MAX_FAULTS {
            self.faults.push(Fault { at, who, what, error });
        }
    }

    /// Records a refused call of a thread.
    fn checked(&mut self, sys: &dyn Sys, t: usize, what: &'static str, got: Result<(), SysError>) {
        if let Err(error) = got {
            let who = self.threads[t].name.clone();
            self.fault(sys.now(), who, what, error);
        }
    }

    /// Makes the program's cgroups, parents first.
    fn make_cgroups(&mut self, sys: &mut dyn Sys) {
        let mut ids: BTreeMap<String, CgroupId> = BTreeMap::new();
        for def in self.compiled.cgroups.clone() {
            let (parent, name) = def.path.rsplit_once('/').unwrap_or(("", &def.path));
            let parent = ids.get(parent).copied().unwrap_or(CgroupId(0));
            let spec = CgroupSpec {
                weight: def.weight,
                quota: def.quota.map(|q| q.0),
                period: def.period.0,
                burst: def.burst.0,
                idle: def.idle,
            };
            let id = sys.mkdir(parent, name, spec).unwrap_or_else(|error| {
                self.fault(sys.now(), def.path.clone(), "mkdir", error);
                parent
            });
            if let Some(cpus) = &def.cpus {
                let cpus = cpus.iter().filter(|&c| c < sys.nr_cpus()).map(CpuId);
                let cpus = CpuMask::of(sys.nr_cpus() as usize, cpus);
                if let Err(error) = sys.set_cpuset(id, Some(&cpus)) {
                    self.fault(sys.now(), def.path.clone(), "cpuset.cpus", error);
                }
            }
            for (name, value) in &def.xattrs {
                if let Err(error) = sys.set_xattr(id, name, value.as_bytes()) {
                    self.fault(sys.now(), def.path.clone(), "setxattr", error);
                }
            }
            ids.insert(def.path.clone(), id);
            self.cgroup_ids.push(id);
        }
    }

    fn thread_of(&self, task: TaskId) -> Option<usize> {
        let t = *self.by_task.get(task.idx())?;
        (t != NO_THREAD).then_some(t as usize)
    }

    /// Marks a waiter's operation as done and wakes it.
    fn release(&mut self, sys: &mut dyn Sys, waiter: u32, sync: bool) {
        let thread = &mut self.threads[waiter as usize];
        thread.wait = Wait::None;
        sys.wake(thread.task, sync);
    }

    /// Runs a thread until it has a step for the kernel.
    fn run(&mut self, sys: &mut dyn Sys, t: usize) -> Step {
        let mut turned = false;
        loop {
            let pc = &mut self.threads[t].pc;
            let insn = self.compiled.code[*pc as usize];
            *pc += 1;
            let flow = match insn {
                Insn::Jump(_) | Insn::LoopNext { .. } => self.turn(sys, t, insn, &mut turned),
                insn => self.exec(sys, t, insn),
            };
            if let Flow::Yield(step) = flow {
                return step;
            }
        }
    }

    /// The end of a loop's body. A second turn without a step between, or one in which no time has passed,
    /// costs a little CPU: so a loop of ops that take no time cannot hang the simulation.
    fn turn(&mut self, sys: &mut dyn Sys, t: usize, insn: Insn, turned: &mut bool) -> Flow {
        let thread = &mut self.threads[t];
        match insn {
            Insn::LoopNext { slot, start } => {
                let left = &mut thread.loops[slot as usize];
                *left -= 1;
                if *left == 0 {
                    return Flow::Next;
                }
                thread.pc = start;
            }
            Insn::Jump(start) => thread.pc = start,
            _ => return Flow::Next,
        }
        let now = sys.now();
        let idle_turn = thread.last_turn == Some(now);
        thread.last_turn = Some(now);
        if idle_turn {
            return Flow::Yield(Step::Compute { work: self.costs.empty_loop.max(1) });
        }
        if std::mem::replace(turned, true) {
            return Flow::Yield(Step::Compute { work: 1 });
        }
        Flow::Next
    }

    fn exec(&mut self, sys: &mut dyn Sys, t: usize, insn: Insn) -> Flow {
        match insn {
            Insn::Compute(work) => self.compute(sys, t, work),
            Insn::ComputeWall(0) => Flow::Next,
            Insn::ComputeWall(wall) => {
                self.note_run(sys.now(), t, wall);
                Flow::Yield(Step::ComputeWall { wall })
            }
            Insn::Touch(index) => {
                let work = self.touch_costs[index as usize];
                if work == 0 { Flow::Next } else { Flow::Yield(Step::Compute { work }) }
            }
            Insn::Sleep(length) => {
                sys.charge(self.costs.timer);
                self.sleep_until(sys.now().saturating_add(length), t)
            }
            Insn::Delay(length) => {
                let zero = &mut self.threads[t].zero;
                *zero = zero.saturating_add(length);
                let at = *zero;
                self.sleep_until(at, t)
            }
            Insn::Timer { timer, period, absolute } => self.timer(sys, t, timer, period, absolute),
            Insn::Lock(m) => self.lock(sys, t, m),
            Insn::Unlock(m) => self.unlock(sys, t, m),
            Insn::Wait { cond, mutex } => self.wait(sys, t, cond, mutex),
            Insn::Signal(c) => self.signal(sys, t, c, 1),
            Insn::Broadcast(c) => self.signal(sys, t, c, usize::MAX),
            Insn::Barrier(b) => self.barrier(sys, t, b),
            Insn::SemPost(s) => self.sem_post(sys, t, s),
            Insn::SemWait(s) => self.sem_wait(sys, t, s),
            Insn::Write { pipe, bytes } => self.write(sys, t, pipe, bytes),
            Insn::Read { pipe, bytes } => self.read(sys, t, pipe, bytes),
            Insn::SpinLock(s) => self.spin_lock(sys, t, s),
            Insn::SpinUnlock(s) => self.spin_unlock(sys, t, s),
            Insn::SpinBarrier(s) => self.spin_barrier(sys, t, s),
            Insn::LoopInit { slot, end, times } => {
                let thread = &mut self.threads[t];
                match times {
                    0 => thread.pc = end,
                    _ => thread.loops[slot as usize] = times,
                }
                Flow::Next
            }
            Insn::PhaseBegin => self.phase_begin(sys, t),
            Insn::PhaseEnd => self.phase_end(sys, t),
            Insn::Count(units) => {
                sys.count_work(self.threads[t].task, units);
                Flow::Next
            }
            insn => self.exec_rare(sys, t, insn),
        }
    }

    /// Instructions that no inner loop is made of.
    fn exec_rare(&mut self, sys: &mut dyn Sys, t: usize, insn: Insn) -> Flow {
        let task = self.threads[t].task;
        match insn {
            Insn::Io { bytes, null } => {
                sys.charge(self.costs.io_submit);
                let length = self.costs.io_time(bytes);
                if length > 0 && !null {
                    return self.sleep_until(sys.now().saturating_add(length), t);
                }
            }
            Insn::Fork(template) => {
                sys.charge(self.costs.fork);
                self.fork(sys, t, template as usize);
            }
            Insn::Join if self.threads[t].children > 0 => {
                self.threads[t].wait = Wait::Join;
                return Flow::Yield(Step::Block);
            }
            Insn::Exec => {
                sys.charge(self.costs.exec);
                return Flow::Yield(Step::Exec);
            }
            Insn::Yield => {
                sys.charge(self.costs.yield_call);
                return Flow::Yield(Step::Yield);
            }
            Insn::Exit => return self.exit(sys, t),
            Insn::SetAffinity(index) => {
                sys.charge(self.costs.sched_set);
                let got = sys.set_affinity(task, &self.masks[index as usize]);
                self.checked(sys, t, "sched_setaffinity", got);
            }
            Insn::ClearAffinity => {
                sys.charge(self.costs.sched_set);
                let got = sys.set_affinity(task, &self.all_cpus);
                self.checked(sys, t, "sched_setaffinity", got);
            }
            Insn::SetNice(nice) => {
                sys.charge(self.costs.sched_set);
                let got = sys.set_nice(task, nice);
                self.checked(sys, t, "setpriority", got);
            }
            Insn::SetPolicy(index) => {
                sys.charge(self.costs.sched_set);
                let policy = kernel_policy(self.compiled.policies[index as usize]);
                let got = sys.set_policy(task, policy);
                self.checked(sys, t, "sched_setscheduler", got);
            }
            Insn::MoveCgroup(index) => {
                sys.charge(self.costs.cgroup_move);
                // One that is not in the table is the root.
                let id = self.cgroup_ids.get(index as usize).copied().unwrap_or(CgroupId(0));
                self.threads[t].cgroup = id;
                let got = sys.move_to_cgroup(task, id);
                self.checked(sys, t, "cgroup.procs", got);
            }
            Insn::SetXattr(index) => {
                sys.charge(self.costs.set_xattr);
                let xattr = &self.compiled.xattrs[index as usize];
                let id = xattr.cgroup.and_then(|c| self.cgroup_ids.get(c as usize).copied());
                let id = id.unwrap_or(CgroupId(0));
                let got = sys.set_xattr(id, &xattr.name, xattr.value.as_bytes());
                self.checked(sys, t, "setxattr", got);
            }
            _ => {}
        }
        Flow::Next
    }

    fn compute(&mut self, sys: &mut dyn Sys, t: usize, work: Nanos) -> Flow {
        if work == 0 {
            return Flow::Next;
        }
        let mut real = work;
        let noise = self.perturb.compute_noise_permille.min(999);
        if noise > 0 {
            let draw = sys.random("workload.compute_noise", self.threads[t].task);
            let permille = 1000 - u64::from(noise) + draw % (2 * u64::from(noise) + 1);
            let scaled = u128::from(work) * u128::from(permille) / 1000;
            real = u64::try_from(scaled).unwrap_or(u64::MAX).max(1);
        }
        self.note_run(sys.now(), t, work);
        Flow::Yield(Step::Compute { work: real })
    }

    fn sleep_until(&mut self, at: Nanos, t: usize) -> Flow {
        self.threads[t].wait = Wait::Until(at);
        Flow::Yield(Step::SleepUntil(at))
    }

    /// rt-app's timer. Time zero of the first period is the thread's start plus its delay.
    fn timer(
        &mut self,
        sys: &mut dyn Sys,
        t: usize,
        timer: TimerRef,
        period: Nanos,
        absolute: bool,
    ) -> Flow {
        sys.charge(self.costs.timer);
        let now = sys.now();
        let thread = &mut self.threads[t];
        thread.phase.c_period = thread.phase.c_period.saturating_add(period);
        let state = match timer {
            TimerRef::Own(slot) => &mut thread.timers[slot as usize],
            TimerRef::Shared(res) => &mut self.timers[res.index(&thread.binding)],
        };
        let next = state.next.unwrap_or(thread.zero).saturating_add(period);
        state.next = Some(next);
        let late = now >= next;
        if late && !absolute {
            state.next = Some(now);
        }
        thread.phase.slack(next, now, self.cumulative_slack);
        if late {
            thread.phase.missed += 1;
            thread.phase.wu_lat = 0;
            return Flow::Next;
        }
        thread.pending = Pending::TimerWake { due: next };
        self.sleep_until(next, t)
    }

    fn exit(&mut self, sys: &mut dyn Sys, t: usize) -> Flow {
        sys.charge(self.costs.exit);
        let thread = &mut self.threads[t];
        let (task, parent) = (thread.task, thread.parent);
        thread.serial = 0;
        self.by_task[task.idx()] = NO_THREAD;
        self.free.push(u32::try_from(t).unwrap_or(NO_THREAD));
        if let Some((parent, serial)) = parent {
            let above = &mut self.threads[parent as usize];
            if above.serial == serial {
                above.children -= 1;
                if above.children == 0 && above.wait == Wait::Join {
                    self.release(sys, parent, false);
                }
            }
        }
        self.live -= 1;
        if self.live == 0 {
            // Through a timer, so that this last thread gets to leave the CPU first.
            sys.post(sys.now(), sys.this_cpu(), FINISH);
        }
        Flow::Yield(Step::Exit)
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
        if self.live == 0 {
            sys.finish();
        }
    }

    fn step(&mut self, sys: &mut dyn Sys, task: TaskId) -> Step {
        let Some(t) = self.thread_of(task) else {
            return Step::Exit;
        };
        let thread = &mut self.threads[t];
        match thread.wait {
            Wait::None => {}
            Wait::Until(at) if sys.now() >= at => thread.wait = Wait::None,
            Wait::Until(at) => return Step::SleepUntil(at),
            Wait::SpinLock(_) | Wait::SpinBarrier(_) => return Step::Spin,
            _ => return Step::Block,
        }
        if thread.pending != Pending::None {
            thread.settle(sys.now());
        }
        self.run(sys, t)
    }

    fn on_timer(&mut self, sys: &mut dyn Sys, token: u64) {
        if token == FINISH {
            sys.finish();
        }
    }

    fn soon(&self, task: TaskId) {
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

impl Executor {
    /// What a wait is for, and who could end it.
    fn describe_wait(&self, wait: Wait) -> Option<String> {
        let name = |kind: Kind, i: u32| &self.compiled.objects.names(kind)[i as usize];
        let who = |t: u32| self.threads[t as usize].name.as_str();
        Some(match wait {
            Wait::None | Wait::Until(_) => return None,
            Wait::Mutex(m) => {
                let owner = self.mutexes[m as usize].owner;
                let held = owner.map_or("nobody".to_owned(), |t| who(t).to_owned());
                format!("mutex \"{}\", held by {held}", name(Kind::Mutex, m))
            }
            Wait::Cond(c) => format!("a signal of condition \"{}\"", name(Kind::Cond, c)),
            Wait::Barrier(b) => {
                let barrier = &self.barriers[b as usize];
                let (here, all) = (barrier.waiters.len(), barrier.parties);
                format!("barrier \"{}\", {here} of {all} there", name(Kind::Barrier, b))
            }
            Wait::Sem(s) => format!("a post of semaphore \"{}\"", name(Kind::Sem, s)),
            Wait::PipeRead(p) => format!("bytes in pipe \"{}\"", name(Kind::Pipe, p)),
            Wait::PipeWrite(p) => format!("room in pipe \"{}\"", name(Kind::Pipe, p)),
            Wait::SpinLock(s) => {
                let owner = self.spin_locks[s as usize].owner;
                let held = owner.map_or("nobody".to_owned(), |t| who(t).to_owned());
                format!("spin lock \"{}\", held by {held}", name(Kind::SpinLock, s))
            }
            Wait::SpinBarrier(s) => format!("spin barrier \"{}\"", name(Kind::SpinBarrier, s)),
            Wait::Join => "its children to exit".to_owned(),
        })
    }
}

fn known_cpus(thread: &str, list: &CpuList, nr_cpus: u32) -> Result<(), WorkloadError> {
    match list.max() {
        cpu if cpu >= nr_cpus => {
            Err(WorkloadError::NoSuchCpu { thread: thread.to_owned(), cpu, nr_cpus })
        }
        _ => Ok(()),
    }
}

fn cpu_mask(list: &CpuList, nr_cpus: u32) -> CpuMask {
    CpuMask::of(nr_cpus as usize, list.iter().map(CpuId))
}

/// The policy as the simulated kernel has it.
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

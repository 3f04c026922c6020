// SPDX-License-Identifier: GPL-2.0-only
//! Guests: small kernels that run a program on virtual CPUs (vCPUs), which are tasks of the host.
//!
//! Owns: a guest's threads, run queues, timers, interrupts, locks and exits.
//! Does not: know a workload (its threads ask a `Behavior`) or the host's scheduler.
//! Start at: `run.rs` (what a vCPU does when its step ends), `sys.rs` (the program's system calls).
//!
//! A guest stands between two interfaces. To its program it is the kernel: it implements `Sys`. To
//! the host it is a part of the behaviour of its vCPU tasks: it answers each with the next step.
//! Code of the guest's kernel runs only within `Guest::step` of the vCPU that executes it, and that
//! vCPU pays for it. All else that happens to a vCPU (an interrupt, a timer, a lock that becomes
//! free) sets state of the guest and ends the vCPU's step, or wakes the vCPU. Each call of `step`
//! decides anew from the guest's state, so that a call too many does no harm.
//!
//! ```text
//!   run         the loop from one step of a vCPU to the next, boot and power off
//!   sched       passes through the scheduler, wake-ups, moves of threads
//!   default_class, rt   the two classes: the crate `fair`, and real time
//!   interrupt   interrupts between vCPUs, timers, the tick, idle vCPUs
//!   spin        spin locks, pause-loop exits, TLB flushes
//!   memory      the guest's memory as a region of the host
//!   sys         system calls of the program
//!   account     times of vCPUs and threads
//! ```

#![cfg_attr(not(test), deny(clippy::float_arithmetic, clippy::iter_over_hash_type))]

mod account;
mod default_class;
mod interrupt;
mod memory;
mod rt;
mod run;
mod sched;
mod spin;
mod sys;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use scxlab_fair::{EnqueueFlags, Fair};
use scxlab_kernel::behavior::{
    AccessId, Behavior, CacheMarks, GuestRun, Policy, RegionId, RegionSpec, TaskStep,
};
use scxlab_kernel::cpu::lock::Lock;
use scxlab_machine::Machine;
use scxlab_machine::cpumask::CpuMask;
use scxlab_machine::id::{Nanos, TaskId};

use memory::GuestMemory;
use rt::RtQueues;

pub use account::{Exits, GuestReport, Stats, ThreadReport, ThreadTimes, VcpuReport, VcpuTimes};

/// The spin locks of a guest's kernel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum SpinLocks {
    /// Waiters get the lock in the order in which they came.
    Ticket,
    /// A waiter whose vCPU runs goes before one whose vCPU does not. Without paravirtual locks,
    /// Linux spins with test-and-set under a hypervisor; with them, the lock has a queue, and
    /// whoever is about to wait may take a free lock before it.
    #[default]
    Queued,
}

/// Properties of a guest.
#[derive(Clone, Debug)]
pub struct GuestConfig {
    pub name: String,
    /// Number of the guest in its run.
    pub number: u32,
    /// CPUs on which each vCPU may run, by vCPU; None: all.
    pub cpus: Vec<Option<CpuMask>>,
    pub nice: i8,
    /// The guest's memory as a region of the host. None: the program has no regions.
    pub memory: Option<RegionSpec>,
    pub spin_locks: SpinLocks,
    /// Whether a waiter for a spin lock halts its vCPU after a while.
    pub pv_spin_locks: bool,
    /// Whether a TLB flush leaves out vCPUs that are not on a CPU.
    pub pv_tlb_flush: bool,
    /// Time for which an idle vCPU polls before it halts.
    pub halt_poll: Nanos,
}

/// A guest and the program that runs in it.
pub struct Guest {
    program: Box<dyn Behavior>,
    os: GuestKernel,
}

/// The state of a guest's kernel.
pub(crate) struct GuestKernel {
    config: GuestConfig,
    machine: Arc<Machine>,
    tick_period: Nanos,
    vcpus: Vec<Vcpu>,
    fair: Fair,
    rt: RtQueues,
    memory: Option<GuestMemory>,
    threads: Vec<Thread>,
    /// Slots of `threads` that are free.
    free: Vec<u32>,
    /// Number of threads that have not exited.
    live: u32,
    /// The first vCPU has started the program.
    started: bool,
    off: bool,
    /// Number of the last timer.
    timer_seq: u64,
    /// Tokens of timers of the program that have expired.
    posts: Vec<u64>,
    /// vCPU that got the last directed yield.
    last_boosted: usize,
    stats: Stats,
    /// Reports of threads that have exited.
    gone: Vec<ThreadReport>,
}

/// What a vCPU has done since its last step began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Idle, polling for work.
    Idle,
    Halted,
    /// Halted, because its thread waits for a paravirtual spin lock.
    LockHalted,
    /// Runs its thread, or code of the guest's kernel.
    Runs,
    /// Its thread spins.
    Spins,
    Off,
}

/// Scheduling class of what runs on a vCPU, the lowest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Class {
    Idle,
    Fair,
    Rt,
}

/// A virtual CPU.
pub(crate) struct Vcpu {
    task: TaskId,
    mode: Mode,
    /// The thread that pays for what the vCPU does.
    current: Option<u32>,
    /// `rq->curr`: the thread to which the scheduler last switched.
    rq_curr: Option<u32>,
    /// `rq->next_class`: the class of `rq_curr`, or a higher one whose thread will preempt it.
    next_class: Class,
    rq_lock: Lock,
    /// Woken threads that the vCPU is to enqueue itself (`rq->wake_list`).
    wake_list: Vec<u32>,
    /// A running thread that the vCPU is to give away, and the vCPU that gets it.
    push: Option<(u32, usize)>,
    /// A balance has asked the vCPU to push a thread to another one.
    active_balance: bool,
    /// Expiry of the timer that ends the default class's slice (HRTICK).
    hrtick_at: Option<Nanos>,
    /// Time up to which the running real-time thread is charged.
    rt_since: Nanos,
    /// The step that the host runs in mode `Runs`.
    step: TaskStep,
    /// Interrupts that are pending, a bit for each `Irq`.
    pending: u8,
    /// The vCPU is to schedule as soon as its thread may be preempted.
    need_resched: bool,
    /// `TIF_NEED_RESCHED_LAZY`: the vCPU is to schedule at its next return to the program.
    resched_lazy: bool,
    timers: BTreeMap<TimerKey, Timer>,
    next_tick: Nanos,
    /// The time at which the host is to cut the step.
    armed: Option<Nanos>,
    /// The vCPU has polled since its last thread.
    polled: bool,
    /// Threads that wait until this vCPU has flushed its TLB.
    flushes: Vec<u32>,
    flush_on_entry: bool,
    /// Time since the last pause-loop exit, or since the spin's begin, in which the vCPU span.
    paused: Nanos,
    /// Time since the spin's begin in which the vCPU span.
    spun: Nanos,
    ple_window: Nanos,
    /// The vCPU left its CPU within a pause-loop exit, because it yielded
    /// (`spin_loop.in_spin_loop`).
    in_spin_loop: bool,
    /// Whether the next directed yield may choose the vCPU although it is in a pause-loop exit
    /// (`spin_loop.dy_eligible`).
    eligible: bool,
    clock: account::VcpuClock,
    times: VcpuTimes,
    switches: u64,
    traced: GuestRun,
}

/// Time and number of a timer.
type TimerKey = (Nanos, u64);

#[derive(Clone, Copy, Debug)]
pub(crate) enum Timer {
    /// Wakes a thread.
    Wake(u32),
    /// Calls the program with this token.
    Post(u64),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    Running,
    Waiting,
    Sleeping,
    Gone,
}

/// A thread of the program.
pub(crate) struct Thread {
    name: String,
    state: State,
    vcpu: usize,
    policy: Policy,
    nice: i8,
    /// EEVDF slice request, ns; 0: the default.
    slice_request: Nanos,
    /// vCPUs on which it may run, and their number.
    mask: CpuMask,
    nr_allowed: u32,
    /// The thread is in a wake list, and will be enqueued with these flags.
    wake_queued: Option<EnqueueFlags>,
    /// Its place in a queue of real-time threads.
    rt_key: Option<rt::Key>,
    /// Time that it has used of its slice of SCHED_RR.
    rr_used: Nanos,
    /// The caches in which it left its working set.
    cache: CacheMarks,
    /// Number of its process: the thread that made it.
    process: u32,
    /// The rest of a step that was cut.
    left: Option<TaskStep>,
    /// A wake-up came while the thread was awake.
    wake_pending: bool,
    timer: Option<(usize, TimerKey)>,
    /// Number of spin locks that it holds or waits for.
    lock_depth: u32,
    /// Begin of its wait for a spin lock.
    lock_wait_since: Option<Nanos>,
    /// Number of vCPUs whose TLB flush it waits for.
    flush_left: u32,
    /// Begin of its wait for TLB flushes.
    flush_since: Option<Nanos>,
    woken_at: Option<Nanos>,
    footprint: u64,
    /// The access of its memory steps, as the host knows it.
    access: Option<AccessId>,
    /// Begin of the present state, if the thread waits or sleeps.
    since: Nanos,
    times: ThreadTimes,
    work_units: u64,
}

impl Guest {
    /// Makes a guest that runs `program`. Its number of vCPUs is the length of `config.cpus`.
    pub fn new(config: GuestConfig, machine: Arc<Machine>, program: Box<dyn Behavior>) -> Guest {
        let tick_period = machine.costs.tick_period_ns();
        let vcpus = config.cpus.len();
        let os = GuestKernel {
            config,
            machine,
            tick_period,
            fair: default_class::new_class(vcpus, tick_period, 0),
            rt: RtQueues::new(vcpus),
            vcpus: Vec::new(),
            memory: None,
            threads: Vec::new(),
            free: Vec::new(),
            live: 0,
            started: false,
            off: false,
            timer_seq: 0,
            posts: Vec::new(),
            last_boosted: 0,
            stats: Stats::default(),
            gone: Vec::new(),
        };
        Guest { program, os }
    }

    pub fn program(&self) -> &dyn Behavior {
        &*self.program
    }

    pub fn config(&self) -> &GuestConfig {
        &self.os.config
    }

    pub fn stats(&self) -> &Stats {
        &self.os.stats
    }

    /// Returns the region of the host that is the guest's memory.
    pub fn memory(&self) -> Option<RegionId> {
        self.os.memory.as_ref().map(|memory| memory.region)
    }

    /// Returns the tasks of the vCPUs, by vCPU.
    pub fn vcpu_tasks(&self) -> impl Iterator<Item = TaskId> {
        self.os.vcpus.iter().map(|vcpu| vcpu.task)
    }
}

impl GuestKernel {
    fn thread(&self, t: u32) -> &Thread {
        &self.threads[t as usize]
    }

    fn thread_mut(&mut self, t: u32) -> &mut Thread {
        &mut self.threads[t as usize]
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! The run state of a CPU: its current task, the end of its kernel path (the kernel code that
//! handles an event on this CPU), and its pending requests.
//!
//! Owns: the per-CPU record `Cpu`, and the type of tables with one value per CPU.
//! Does not: act on this record (see `schedule.rs`, `exec.rs`, `tick.rs`).

pub(crate) mod cache_occupancy;
mod hotplug;
pub mod lock;
pub(crate) mod prefetch;

use crate::cpu::lock::Lock;
use crate::task::Class;
use scxlab_machine::id::{CpuId, Nanos, TaskId};
use smallvec::SmallVec;
use std::ops::{Deref, DerefMut, Index, IndexMut};

/// One value per CPU, indexed by `CpuId`.
#[derive(Clone, Debug)]
pub struct PerCpu<T>(Vec<T>);

impl<T> Default for PerCpu<T> {
    fn default() -> Self {
        PerCpu(Vec::new())
    }
}

impl<T> PerCpu<T> {
    /// Appends the value of the CPU whose number follows the last CPU's.
    pub(crate) fn push(&mut self, value: T) {
        self.0.push(value);
    }

    pub fn ids(&self) -> impl Iterator<Item = CpuId> + use<T> {
        (0..self.0.len() as u32).map(CpuId)
    }
}

impl PerCpu<Cpu> {
    /// Returns whether a CPU is on line; false for a number that no CPU has.
    #[inline]
    pub fn is_online(&self, cpu: CpuId) -> bool {
        self.get(cpu.idx()).is_some_and(|c| c.online)
    }

    /// Returns `cpu` if it is on line, else the first CPU that is on line.
    #[inline]
    pub(crate) fn online_or_any(&self, cpu: CpuId) -> CpuId {
        if self.is_online(cpu) { cpu } else { self.any_online(cpu) }
    }

    #[cold]
    fn any_online(&self, or: CpuId) -> CpuId {
        self.iter().find(|c| c.online).map_or(or, |c| c.id)
    }
}

impl<T> FromIterator<T> for PerCpu<T> {
    fn from_iter<I: IntoIterator<Item = T>>(values: I) -> Self {
        PerCpu(values.into_iter().collect())
    }
}

impl<T> Deref for PerCpu<T> {
    type Target = [T];
    #[inline(always)]
    fn deref(&self) -> &[T] {
        &self.0
    }
}

impl<T> DerefMut for PerCpu<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

impl<'a, T> IntoIterator for &'a PerCpu<T> {
    type Item = &'a T;
    type IntoIter = std::slice::Iter<'a, T>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<'a, T> IntoIterator for &'a mut PerCpu<T> {
    type Item = &'a mut T;
    type IntoIter = std::slice::IterMut<'a, T>;
    fn into_iter(self) -> Self::IntoIter {
        self.0.iter_mut()
    }
}

impl<T> Index<CpuId> for PerCpu<T> {
    type Output = T;
    #[inline(always)]
    fn index(&self, cpu: CpuId) -> &T {
        &self.0[cpu.idx()]
    }
}

impl<T> IndexMut<CpuId> for PerCpu<T> {
    #[inline(always)]
    fn index_mut(&mut self, cpu: CpuId) -> &mut T {
        &mut self.0[cpu.idx()]
    }
}

/// Breakdown of a CPU's time, ns. `busy`, `idle` and `overhead` add up to the time the CPU was on
/// line.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuTime {
    /// Time in which tasks executed steps of their behaviour, cache refills included.
    pub busy: Nanos,
    pub idle: Nanos,
    /// Time in the kernel: switches, scheduling, interrupts, system calls.
    pub overhead: Nanos,
    /// Time spinning for locks of the kernel or of BPF; a part of `overhead`.
    pub lock_wait: Nanos,
}

/// One CPU. The fields that a task switch needs come first and fill three cache lines of the host,
/// so that a switch on a machine with a thousand CPUs touches few lines.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Cpu {
    pub id: CpuId,
    pub curr: TaskId,
    /// Idle task of this CPU; `curr` when nothing else runs.
    pub idle_task: TaskId,
    /// Generation of the event for the end of the current task's step. An event with an older
    /// generation is ignored.
    pub run_gen: u32,
    /// `rq->next_class`: the class of `curr`, or a higher class whose task will preempt `curr` at
    /// the next schedule.
    pub next_class: Class,
    pub online: bool,
    pub need_resched: bool,
    /// `TIF_NEED_RESCHED_LAZY`: the CPU must schedule at its next return to user mode.
    pub resched_lazy: bool,
    /// The current task gave up the CPU of its own accord (for the count of voluntary switches).
    pub voluntary: bool,
    /// A reschedule interrupt is on its way to this CPU.
    pub resched_sent: bool,
    /// A balance of the default class has asked the stopper to push a task of this CPU to another
    /// CPU.
    pub active_balance: bool,
    pub tick_on: bool,
    pub tick_gen: u32,
    /// Task that the stopper will move when the task is off the CPU, and the target CPU.
    pub(crate) pushing: Option<Push>,
    /// Time at which the kernel path that runs on this CPU ends, or the last one ended. A kernel
    /// path is the kernel code that handles an event on the CPU.
    pub kernel_until: Nanos,
    /// Time from which `curr` makes progress; later than now while the CPU is in the kernel.
    pub progress_from: Nanos,
    /// Speed of `curr` in 1/1024 of full speed.
    pub speed: u64,
    /// Time of the pending event for the end of the current task's step; `Nanos::MAX`: none is
    /// pending.
    pub done_at: Nanos,
    /// `rq->clock`: the time at which the present scheduling path read the clock.
    pub rq_clock: Nanos,
    pub rq_lock: Lock,
    /// Time up to which the CPU's tasks have been charged.
    pub charged_until: Nanos,
    pub switches: u64,
    pub time: CpuTime,
    /// CPUs for whose next pass through the scheduler this CPU spins (SCX_KICK_WAIT). The second
    /// part of an entry is that CPU's count of passes (`kick_sync`) when this CPU sent the kick.
    pub sync_wait: Vec<(CpuId, u64)>,
    pub kicks: u64,
    /// Woken tasks that this CPU is to enqueue itself (`rq->wake_list`).
    pub wake_list: Vec<TaskId>,
    /// Start of the present idle state. None: the CPU is awake, or it is leaving its idle state and
    /// will be awake at `awake_at`.
    pub idle_since: Option<Nanos>,
    pub awake_at: Nanos,
    /// Expiry of the timer that ends the default class's slice (HRTICK).
    pub hrtick_at: Option<Nanos>,
    /// The other CPUs of this CPU's core.
    pub siblings: SmallVec<[CpuId; 4]>,
}

/// Bytes at the start of a `Cpu` that every task switch needs.
pub(crate) const HOT_CPU_BYTES: usize = std::mem::offset_of!(Cpu, wake_list);

/// A request to the stopper of a CPU: to move a task that was running to another CPU.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Push {
    pub task: TaskId,
    pub to: CpuId,
    /// Task that runs on `to` and comes to this CPU in exchange.
    pub then: Option<TaskId>,
    /// CPU to which NUMA balancing moves a task by this push.
    pub numa: Option<CpuId>,
    /// The second push of a swap.
    pub swapped: bool,
}

impl Push {
    pub fn new(task: TaskId, to: CpuId) -> Push {
        Push { task, to, then: None, numa: None, swapped: false }
    }
}

impl Cpu {
    pub fn new(id: CpuId, idle_task: TaskId, siblings: SmallVec<[CpuId; 4]>) -> Self {
        Cpu {
            id,
            siblings,
            online: true,
            idle_task,
            curr: idle_task,
            next_class: Class::Idle,
            need_resched: false,
            resched_lazy: false,
            voluntary: false,
            sync_wait: Vec::new(),
            pushing: None,
            active_balance: false,
            resched_sent: false,
            kernel_until: 0,
            progress_from: 0,
            speed: 1024,
            run_gen: 0,
            done_at: Nanos::MAX,
            hrtick_at: None,
            idle_since: Some(0),
            awake_at: 0,
            tick_on: false,
            tick_gen: 0,
            rq_clock: 0,
            rq_lock: Lock::default(),
            wake_list: Vec::new(),
            time: CpuTime::default(),
            charged_until: 0,
            kicks: 0,
            switches: 0,
        }
    }

    /// Time at which this CPU begins to handle an event that is due at `now`: `now`, or the end of
    /// the CPU's previous kernel path if that is later.
    pub fn kernel_path_start(&self, now: Nanos) -> Nanos {
        self.kernel_until.max(now)
    }

    /// Returns the times of this CPU up to `now`. A kernel path that began earlier may end later,
    /// and `time` has its whole length.
    pub fn time_until(&self, now: Nanos) -> CpuTime {
        let later = self.progress_from.saturating_sub(now);
        let overhead = self.time.overhead.saturating_sub(later);
        CpuTime { overhead, lock_wait: self.time.lock_wait.min(overhead), ..self.time }
    }

    /// Whether the CPU calls the scheduler on its way back to user mode.
    pub fn must_schedule(&self) -> bool {
        self.need_resched | self.resched_lazy
    }

    pub fn is_idle(&self) -> bool {
        self.curr == self.idle_task
    }
}

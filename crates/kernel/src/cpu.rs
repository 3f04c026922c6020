// SPDX-License-Identifier: GPL-2.0-only
//! A CPU's run state: what it runs, until when it is in the kernel, and what is pending for it.
//!
//! Owns: the per-CPU record. Does not: act on it (see `schedule.rs`, `exec.rs`, `tick.rs`).

use crate::lock::Lock;
use crate::task::Class;
use scxlab_machine::id::{CpuId, Nanos, TaskId};
use smallvec::SmallVec;

/// Where a CPU's time went, ns. The four parts add up to the time the CPU was on line.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuTime {
    /// Tasks' own steps, cache refills included.
    pub busy: Nanos,
    pub idle: Nanos,
    /// In the kernel: switches, scheduling, interrupts, system calls.
    pub overhead: Nanos,
    /// Spinning for locks of the kernel or of BPF, a part of `overhead`.
    pub lock_wait: Nanos,
}

/// One CPU. What a switch needs lies in its first three lines of the host's caches, in this order: with a thousand of them it
/// touches no more than it must.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Cpu {
    pub id: CpuId,
    pub curr: TaskId,
    /// The idle task of this CPU; `curr` when nothing else runs.
    pub idle_task: TaskId,
    /// Tells stale step-end events from the present one.
    pub run_gen: u32,
    /// `rq->next_class`: the class of `curr`, or a higher one that will preempt it at the next schedule.
    pub next_class: Class,
    pub online: bool,
    pub need_resched: bool,
    /// `TIF_NEED_RESCHED_LAZY`: schedule at the next return to user mode.
    pub resched_lazy: bool,
    /// The current task gave up the CPU of its own accord.
    pub voluntary: bool,
    /// A reschedule interrupt is on its way.
    pub resched_sent: bool,
    /// The default class wants a task of this CPU pushed to one that asked for it.
    pub active_balance: bool,
    pub tick_on: bool,
    pub tick_gen: u32,
    /// The stopper is to move this task, once off the CPU, to that one.
    pub pushing: Option<(TaskId, CpuId)>,
    /// End of the kernel path that runs or ran last here.
    pub kernel_until: Nanos,
    /// From when `curr` makes progress; later than now while the CPU is in the kernel.
    pub progress_from: Nanos,
    /// Speed of `curr` in 1/1024 of full speed.
    pub speed: u64,
    /// Time of the pending step-end event; `Nanos::MAX`: there is none.
    pub done_at: Nanos,
    /// Of `rq->clock`: the time the present scheduling path took its clock.
    pub rq_clock: Nanos,
    pub rq_lock: Lock,
    /// Up to when its tasks have been charged.
    pub charged_until: Nanos,
    pub switches: u64,
    pub time: CpuTime,
    /// CPUs whose pass through the scheduler this one spins for (SCX_KICK_WAIT), with the count seen.
    pub sync_wait: Vec<(CpuId, u64)>,
    pub kicks: u64,
    /// Woken tasks that this CPU is to enqueue itself (`rq->wake_list`).
    pub wake_list: Vec<TaskId>,
    /// Since when it has been in an idle state; None: awake, or waking until `awake_at`.
    pub idle_since: Option<Nanos>,
    pub awake_at: Nanos,
    /// When the timer fires that ends the default class's slice (HRTICK).
    pub hrtick_at: Option<Nanos>,
    /// The other CPUs of its core.
    pub siblings: SmallVec<[CpuId; 4]>,
    /// Up to when `time` has been accounted.
    pub accounted: Nanos,
}

/// Of a `Cpu`, from its start: what every switch needs.
pub(crate) const HOT_CPU_BYTES: usize = std::mem::offset_of!(Cpu, wake_list);

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
            accounted: 0,
            charged_until: 0,
            kicks: 0,
            switches: 0,
        }
    }

    /// When the kernel path begins, or has begun, that an event of `now` takes: after the one before.
    pub fn kernel_path_start(&self, now: Nanos) -> Nanos {
        self.kernel_until.max(now)
    }

    /// On the way back to user mode: whether the scheduler comes first.
    pub fn must_schedule(&self) -> bool {
        self.need_resched | self.resched_lazy
    }

    pub fn is_idle(&self) -> bool {
        self.curr == self.idle_task
    }
}

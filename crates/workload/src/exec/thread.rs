// SPDX-License-Identifier: GPL-2.0-only
//! One thread's state.
//!
//! Owns: where it is in its program, and what it waits for.

use scxlab_machine::id::{CgroupId, Nanos, TaskId};

use super::stats::{Pending, Phase};

/// No index of a thread.
pub(super) const NO_THREAD: u32 = u32::MAX;

/// No instant that a run reaches.
pub(super) const NEVER: Nanos = Nanos::MAX;

/// What a thread waits for. Set by the thread when it blocks; cleared by whoever completes the operation,
/// except `Until`, which the thread clears itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    None,
    Until(Nanos),
    Mutex(u32),
    Cond(u32),
    Barrier(u32),
    Sem(u32),
    PipeRead(u32),
    PipeWrite(u32),
    SpinLock(u32),
    SpinBarrier(u32),
    Join,
}

/// When a timer's running period ends; None before its first use.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TimerState {
    pub next: Option<Nanos>,
}

/// What every step looks at comes first, in as few lines of the host's caches as it can: there may be thousands.
#[repr(C, align(64))]
pub(super) struct Thread {
    pub task: TaskId,
    pub pc: u32,
    pub wait: Wait,
    pub pending: Pending,
    /// When it last went round a loop, or `NEVER`.
    pub last_turn: Nanos,
    /// Its program has phases. Without them nobody reads what its passes take.
    pub phased: bool,
    pub phase: Phase,
    pub template: u32,
    /// Children that have not exited.
    pub children: u32,
    /// Passes left, by nesting depth.
    pub loops: Box<[u64]>,
    pub timers: Box<[TimerState]>,
    /// Objects that this instance means, by the template's slots.
    pub binding: Box<[u32]>,
    /// Where its timers' first periods begin: its start offset and delay.
    pub zero: Nanos,
    /// Unique in the run; 0 once it has exited.
    pub serial: u64,
    pub name: String,
    pub cgroup: CgroupId,
    pub process: Option<u32>,
    /// Thread and its serial.
    pub parent: Option<(u32, u64)>,
}

// SPDX-License-Identifier: GPL-2.0-only
//! The state of one thread.
//!
//! Owns: the thread's position in the program, and the object that the thread waits for.

use std::collections::VecDeque;

use scxlab_kernel::behavior::AccessId;
use scxlab_machine::id::{CgroupId, Nanos, TaskId};

use super::stats::{Pending, Phase};
use crate::compile::insn::WaitObject;

/// An invalid thread index.
pub(super) const NO_THREAD: u32 = u32::MAX;

/// A time that no run reaches.
pub(super) const NEVER: Nanos = Nanos::MAX;

/// Object or time that a thread waits for. The thread sets it when it blocks. The thread that
/// completes the operation clears it; the waiting thread itself clears `Until`, the wait for a
/// time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wait {
    None,
    Until(Nanos),
    /// Asleep until another thread acts on the object of this kind and index.
    On(WaitObject, u32),
    /// Spinning until another thread acts on the object of this kind and index.
    Spin(WaitObject, u32),
}

/// The end of a timer's current period; None before its first use.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct TimerState {
    pub next: Option<Nanos>,
}

/// State of one thread. The fields that every step reads come first, in as few cache lines of the
/// host as possible, because there may be thousands of threads.
#[repr(C, align(64))]
pub(super) struct Thread {
    pub task: TaskId,
    pub pc: u32,
    pub wait: Wait,
    pub pending: Pending,
    /// Time of the thread's last pass through a loop's end, or `NEVER`.
    pub last_pass_at: Nanos,
    /// Whether the thread has paid for the call that it makes next (`Executor::comes_first`).
    pub paid: bool,
    /// Whether the thread's template has phases. If not, nothing reads the measurements.
    pub phased: bool,
    pub phase: Phase,
    pub template: u32,
    /// Threads that the thread's last call has released and not woken yet.
    pub wakes: VecDeque<u32>,
    /// Number of children that have not exited.
    pub children: u32,
    /// Number of passes left in each loop, indexed by nesting depth.
    pub loops: Box<[u64]>,
    pub timers: Box<[TimerState]>,
    /// Indices of the objects that belong to this instance, in the order of `Template::slots`.
    pub binding: Box<[u32]>,
    /// The thread's accesses to regions, in the order of `Template::accesses`; None for an access
    /// whose region the kernel refused.
    pub accesses: Box<[Option<AccessId>]>,
    /// Start of the first periods of the thread's timers: its start offset, or the time of its
    /// fork, plus its delay.
    pub time_zero: Nanos,
    /// Serial number, unique in the run; 0 once the thread has exited.
    pub serial: u64,
    pub name: String,
    pub cgroup: CgroupId,
    pub process: Option<u32>,
    /// Index of the parent and the parent's serial number.
    pub parent: Option<(u32, u64)>,
}

// SPDX-License-Identifier: GPL-2.0-only
//! The flat form of a program: what the executors run.
//!
//! Owns: the instruction set. An instruction is `Copy` and small; names have become indices, nesting has
//! become jumps. Nothing is allocated to execute one.

use scxlab_machine::id::Nanos;

use crate::program::PolicyDef;

/// The kinds of shared objects, each with a name space and an index space of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Mutex,
    Cond,
    Barrier,
    Sem,
    Pipe,
    SpinLock,
    SpinBarrier,
    Timer,
}

/// How many kinds there are.
pub const NR_KINDS: usize = 8;

/// A shared object of the kind that the instruction implies: an index, or a slot of the thread's binding
/// when the object differs between instances.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Res(u32);

const BOUND: u32 = 1 << 31;

impl Res {
    pub(super) fn direct(index: u32) -> Self {
        Res(index)
    }

    pub(super) fn bound(slot: u32) -> Self {
        Res(slot | BOUND)
    }

    /// The object's index for a thread with this binding.
    #[inline]
    pub fn index(self, binding: &[u32]) -> usize {
        let index = match self.0 & BOUND {
            0 => self.0,
            _ => binding[(self.0 & !BOUND) as usize],
        };
        index as usize
    }
}

/// Where a timer's state lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerRef {
    Shared(Res),
    /// Slot of the thread's own timers.
    Own(u16),
}

/// Past every table of cgroups.
pub const ROOT_CGROUP: u32 = u32::MAX;

/// One instruction. Its kind is a byte of its own: one look at it tells where to go. Fields lie in the order in which they
/// are written here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Insn {
    Compute(Nanos),
    ComputeWall(Nanos),
    Sleep(Nanos),
    /// Sleep until this long after the thread's time zero.
    Delay(Nanos),
    Timer {
        absolute: bool,
        timer: TimerRef,
        period: Nanos,
    },
    Lock(Res),
    Unlock(Res),
    Wait {
        cond: Res,
        mutex: Res,
    },
    Signal(Res),
    Broadcast(Res),
    Barrier(Res),
    SemPost(Res),
    SemWait(Res),
    Write {
        pipe: Res,
        bytes: u64,
    },
    Read {
        pipe: Res,
        bytes: u64,
    },
    SpinLock(Res),
    SpinUnlock(Res),
    SpinBarrier(Res),
    /// Index into `Compiled::touches`.
    Touch(u32),
    Io {
        bytes: u64,
        null: bool,
    },
    /// Index into `Compiled::templates`.
    Fork(u32),
    Join,
    Exec,
    Yield,
    Exit,
    /// Index into `Compiled::affinities`.
    SetAffinity(u32),
    ClearAffinity,
    SetNice(i8),
    /// Index into `Compiled::policies`.
    SetPolicy(u32),
    /// Index into `Compiled::cgroups`; `ROOT_CGROUP` is "/".
    MoveCgroup(u32),
    /// Index into `Compiled::xattrs`.
    SetXattr(u32),
    Count(u64),
    /// Sets a loop counter, or jumps past a loop of no passes.
    LoopInit {
        slot: u16,
        end: u32,
        times: u64,
    },
    /// One pass is over: back to `start`, or on when it was the last.
    LoopNext {
        slot: u16,
        start: u32,
    },
    /// The end of an endless loop.
    Jump(u32),
    PhaseBegin,
    PhaseEnd,
}

/// A policy as the `SetPolicy` instruction finds it.
pub type PolicyTable = Vec<PolicyDef>;

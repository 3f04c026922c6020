// SPDX-License-Identifier: GPL-2.0-only
//! The flat form of a program, which the executors run.
//!
//! Owns: the instruction set. An instruction is `Copy` and small: indices replace names, and jumps
//! replace nesting. Executing one allocates nothing.

use scxlab_machine::id::Nanos;

use crate::program::PolicyDef;

/// Kinds of shared objects. Each kind has its own names and indices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectKind {
    Mutex,
    Cond,
    Barrier,
    Sem,
    Pipe,
    SpinLock,
    SpinBarrier,
    Timer,
}

/// Number of kinds.
pub const NR_KINDS: usize = 8;

/// A reference to a shared object of the kind that the instruction implies: an index, or a slot of
/// the thread's binding if the object differs between instances (bit 31 set).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectRef(u32);

const BOUND: u32 = 1 << 31;

impl ObjectRef {
    pub(super) fn direct(index: u32) -> Self {
        ObjectRef(index)
    }

    pub(super) fn bound(slot: u32) -> Self {
        ObjectRef(slot | BOUND)
    }

    /// Returns the object's index for a thread with this binding.
    #[inline]
    pub fn index(self, binding: &[u32]) -> usize {
        let index = match self.0 & BOUND {
            0 => self.0,
            _ => binding[(self.0 & !BOUND) as usize],
        };
        index as usize
    }
}

/// Location of a timer's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TimerRef {
    Shared(ObjectRef),
    /// Index into the thread's own timers.
    Own(u16),
}

/// Index of the root cgroup; it lies past the end of every cgroup table.
pub const ROOT_CGROUP: u32 = u32::MAX;

/// One instruction. `repr(u8)` gives the kind a byte of its own, so that one load decides the
/// branch. Fields lie in memory in the order written here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Insn {
    Compute(Nanos),
    ComputeWall(Nanos),
    Sleep(Nanos),
    /// Sleeps until this long after the thread's time zero, and moves time zero there.
    Delay(Nanos),
    Timer {
        absolute: bool,
        timer: TimerRef,
        period: Nanos,
    },
    Lock(ObjectRef),
    Unlock(ObjectRef),
    Wait {
        cond: ObjectRef,
        mutex: ObjectRef,
    },
    Signal(ObjectRef),
    Broadcast(ObjectRef),
    Barrier(ObjectRef),
    SemPost(ObjectRef),
    SemWait(ObjectRef),
    Write {
        pipe: ObjectRef,
        bytes: u64,
    },
    Read {
        pipe: ObjectRef,
        bytes: u64,
    },
    SpinLock(ObjectRef),
    SpinUnlock(ObjectRef),
    SpinBarrier(ObjectRef),
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
    /// Sets a loop counter, or jumps past a loop of 0 passes.
    LoopInit {
        slot: u16,
        end: u32,
        times: u64,
    },
    /// Ends a pass: jumps to `start`, or continues after the last pass.
    LoopNext {
        slot: u16,
        start: u32,
    },
    /// Ends a pass of an endless loop: jumps to the loop's start.
    Jump(u32),
    PhaseBegin,
    PhaseEnd,
}

/// Policies, indexed by `Insn::SetPolicy`.
pub type PolicyTable = Vec<PolicyDef>;

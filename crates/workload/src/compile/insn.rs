// SPDX-License-Identifier: GPL-2.0-only
//! The flat form of a program, which the executors run.
//!
//! Owns: the instruction set, the instructions that each op becomes, and the objects that an
//! instruction may wait for. An instruction is `Copy` and small: indices replace names, and jumps
//! replace nesting. Executing an instruction allocates nothing.

use scxlab_machine::id::Nanos;

use super::{Lowering, Objects};
use crate::error::WorkloadError;
use crate::program::work::{BufferArg, MemoryUse};
use crate::program::{CpuList, Op, PolicyDef, Touch};

/// Size of a cache line, bytes.
const LINE: u64 = 64;

/// Kinds of shared objects. Each kind has its own names and indices.
/// A system call whose time is a step of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LongCall {
    Fork,
    Exec,
    Exit,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectKind {
    Mutex,
    Cond,
    Barrier,
    Sem,
    Pipe,
    SpinLock,
    SpinBarrier,
    Lines,
    Timer,
    Region,
}

/// Number of kinds of shared objects.
pub const NR_KINDS: usize = 10;

/// A reference to a shared object of the kind that the instruction implies. It is the object's
/// index; or, with bit 31 set, the number of a slot (`Template::slots`), whose object differs
/// between instances.
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

    /// Returns the object's index. `binding` holds the indices of the objects in the thread's
    /// slots.
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
    /// Moves the thread's time zero, at which its timers' first periods begin, later by this
    /// length, and sleeps until then.
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
    TakeOrExit(ObjectRef),
    Write {
        pipe: ObjectRef,
        bytes: u64,
    },
    Read {
        pipe: ObjectRef,
        bytes: u64,
    },
    /// Index into `Tables::polls`.
    Poll(u32),
    SpinLock(ObjectRef),
    SpinUnlock(ObjectRef),
    SpinBarrier(ObjectRef),
    Atomic {
        lines: ObjectRef,
        count: u32,
    },
    /// Index into `Tables::touches`.
    Touch(u32),
    /// A `touch` of a region. Index into `Tables::accesses`.
    TouchIn(u32),
    /// A `compute` with a region. Index into `Tables::accesses`.
    ComputeIn(u32),
    Unmap,
    Io {
        bytes: u64,
        null: bool,
    },
    /// The time of a long system call. An instruction of its own, so that what other CPUs do
    /// meanwhile comes before the call's effect.
    Takes(LongCall),
    /// Index into `Compiled::templates`.
    Fork(u32),
    Join,
    Exec,
    Yield,
    Exit,
    /// Index into `Tables::affinities`.
    SetAffinity(u32),
    ClearAffinity,
    /// Index into `Tables::affinities`.
    CpuOffline(u32),
    /// Index into `Tables::affinities`.
    CpuOnline(u32),
    SetNice(i8),
    /// Index into `Tables::policies`.
    SetPolicy(u32),
    /// Index into `Compiled::cgroups`; `ROOT_CGROUP` is "/".
    MoveCgroup(u32),
    /// Index into `Tables::xattrs`.
    SetXattr(u32),
    Count(u64),
    /// Sets a loop counter, or jumps past a loop of 0 passes.
    LoopInit {
        slot: u16,
        end: u32,
        times: u64,
    },
    /// Ends a pass: jumps to `start`, or after the last pass continues with the next instruction.
    LoopNext {
        slot: u16,
        start: u32,
    },
    /// Ends a pass of an endless loop: jumps to the loop's start.
    Jump(u32),
    PhaseBegin,
    PhaseEnd,
}

/// Arguments of instructions that are too large for the instruction itself.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    pub touches: Vec<Touch>,
    pub accesses: Vec<RegionAccess>,
    pub affinities: Vec<CpuList>,
    pub policies: Vec<PolicyDef>,
    pub xattrs: Vec<Xattr>,
    pub polls: Vec<Poll>,
}

/// Arguments of `Insn::TouchIn` and `Insn::ComputeIn`.
#[derive(Clone, Debug)]
pub struct RegionAccess {
    pub region: ObjectRef,
    /// First byte of the region that is accessed.
    pub offset: u64,
    /// The accesses; of a `compute`: their kind and order, and as size the bytes that it accesses.
    pub touch: Touch,
    /// Work of a `compute`, and the percentage of it that is memory time. None for a `touch`.
    pub work: Option<(Nanos, u64)>,
}

/// Arguments of `Insn::Poll`.
#[derive(Clone, Debug)]
pub struct Poll {
    pub pipes: Vec<ObjectRef>,
    pub bytes: u64,
    pub timeout: Option<Nanos>,
    pub again: bool,
}

/// An extended attribute that `Insn::SetXattr` sets on a cgroup's directory.
#[derive(Clone, Debug)]
pub struct Xattr {
    /// Index into `Compiled::cgroups`; None: the root.
    pub cgroup: Option<u32>,
    pub name: String,
    pub value: String,
}

impl Insn {
    /// Returns the pipes whose bytes the instruction moves, with the number of bytes.
    pub fn transfers(self, tables: &Tables) -> Vec<(ObjectRef, u64)> {
        match self {
            Insn::Read { pipe, bytes } | Insn::Write { pipe, bytes } => vec![(pipe, bytes)],
            Insn::Poll(index) => {
                let poll = &tables.polls[index as usize];
                let pipes = poll.pipes.iter().filter(|_| poll.bytes > 0);
                pipes.map(|&pipe| (pipe, poll.bytes)).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// Object that a thread waits for until another thread acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum WaitObject {
    Nothing,
    Mutex,
    Cond,
    Barrier,
    Sem,
    PipeRead,
    PipeWrite,
    /// The first of the pipes that the thread polls.
    PipePoll,
    SpinLock,
    SpinBarrier,
    Join,
}

/// What `WaitObject::text` says about an object besides its name. The simulated and the native
/// executor fill in the fields that apply to the kind of object; the others keep their defaults.
#[derive(Default)]
pub struct WaitState {
    /// Name of the thread that holds the lock; None if nobody holds it.
    pub holder: Option<String>,
    /// Number of threads at the barrier, and the barrier's number of parties.
    pub arrived: (u32, u32),
}

impl WaitObject {
    /// All kinds of objects, each at the index of its discriminant.
    pub const ALL: [WaitObject; 11] = [
        WaitObject::Nothing,
        WaitObject::Mutex,
        WaitObject::Cond,
        WaitObject::Barrier,
        WaitObject::Sem,
        WaitObject::PipeRead,
        WaitObject::PipeWrite,
        WaitObject::PipePoll,
        WaitObject::SpinLock,
        WaitObject::SpinBarrier,
        WaitObject::Join,
    ];

    /// Describes a wait for the object of this kind with the index `index`, and who could end the
    /// wait.
    pub fn text(self, objects: &Objects, index: usize, state: WaitState) -> String {
        let name = |kind: ObjectKind| objects.names(kind).get(index).map_or("?", String::as_str);
        let held = state.holder.as_deref().unwrap_or("nobody");
        let (here, all) = state.arrived;
        match self {
            WaitObject::Nothing => "nothing".to_owned(),
            WaitObject::Mutex => format!("mutex \"{}\", held by {held}", name(ObjectKind::Mutex)),
            WaitObject::Cond => format!("a signal of condition \"{}\"", name(ObjectKind::Cond)),
            WaitObject::Barrier => {
                format!("barrier \"{}\", {here} of {all} have arrived", name(ObjectKind::Barrier))
            }
            WaitObject::Sem => format!("a post of semaphore \"{}\"", name(ObjectKind::Sem)),
            WaitObject::PipeRead => format!("bytes in pipe \"{}\"", name(ObjectKind::Pipe)),
            WaitObject::PipeWrite => format!("room in pipe \"{}\"", name(ObjectKind::Pipe)),
            WaitObject::PipePoll => {
                format!("bytes in pipe \"{}\" or another that it polls", name(ObjectKind::Pipe))
            }
            WaitObject::SpinLock => {
                format!("spin lock \"{}\", held by {held}", name(ObjectKind::SpinLock))
            }
            WaitObject::SpinBarrier => {
                format!("spin barrier \"{}\"", name(ObjectKind::SpinBarrier))
            }
            WaitObject::Join => "its children to exit".to_owned(),
        }
    }
}

impl Lowering<'_> {
    /// Appends the instructions of an op other than a loop or a phase.
    pub(super) fn simple(&mut self, thread: usize, op: &Op) -> Result<(), WorkloadError> {
        let insn = match op {
            Op::Compute(arg) => match &arg.memory {
                None => Insn::Compute(arg.work.0),
                Some(memory) => self.compute_in(arg.work.0, memory),
            },
            Op::ComputeWall(d) => Insn::ComputeWall(d.0),
            Op::Sleep(d) => Insn::Sleep(d.0),
            Op::Timer { name, period, unique, .. } => self.timer(thread, name, period.0, *unique),
            Op::Lock(n) => Insn::Lock(self.object(ObjectKind::Mutex, n)),
            Op::Unlock(n) => Insn::Unlock(self.object(ObjectKind::Mutex, n)),
            Op::Wait { cond, mutex } => self.wait(cond, mutex),
            Op::Signal(n) => Insn::Signal(self.object(ObjectKind::Cond, n)),
            Op::Broadcast(n) => Insn::Broadcast(self.object(ObjectKind::Cond, n)),
            Op::Barrier(n) => Insn::Barrier(self.object(ObjectKind::Barrier, n)),
            Op::SemPost(n) => Insn::SemPost(self.object(ObjectKind::Sem, n)),
            Op::SemWait(n) => Insn::SemWait(self.object(ObjectKind::Sem, n)),
            Op::TakeOrExit(n) => Insn::TakeOrExit(self.object(ObjectKind::Sem, n)),
            Op::Write { pipe, bytes } => {
                Insn::Write { pipe: self.object(ObjectKind::Pipe, pipe), bytes: *bytes }
            }
            Op::Read { pipe, bytes } => {
                Insn::Read { pipe: self.object(ObjectKind::Pipe, pipe), bytes: *bytes }
            }
            Op::Poll { pipes, bytes, timeout, again } => {
                let pipes = pipes.iter().map(|pipe| self.object(ObjectKind::Pipe, pipe)).collect();
                let timeout = timeout.map(|span| span.0);
                let poll = Poll { pipes, bytes: *bytes, timeout, again: *again };
                Insn::Poll(push(&mut self.out.tables.polls, poll))
            }
            Op::SpinLock(n) => Insn::SpinLock(self.object(ObjectKind::SpinLock, n)),
            Op::SpinUnlock(n) => Insn::SpinUnlock(self.object(ObjectKind::SpinLock, n)),
            Op::SpinBarrier(n) => Insn::SpinBarrier(self.object(ObjectKind::SpinBarrier, n)),
            Op::Atomic { lines, count } => {
                Insn::Atomic { lines: self.object(ObjectKind::Lines, lines), count: *count }
            }
            Op::Touch(arg) => self.touch(arg),
            Op::Unmap => Insn::Unmap,
            Op::Io { bytes, null } => Insn::Io { bytes: *bytes, null: *null },
            Op::Fork(name) => {
                self.emit(Insn::Takes(LongCall::Fork))?;
                Insn::Fork(self.template(name))
            }
            Op::Join => Insn::Join,
            Op::Exec => {
                self.emit(Insn::Exec)?;
                Insn::Takes(LongCall::Exec)
            }
            Op::Yield => Insn::Yield,
            Op::Exit => {
                self.emit(Insn::Takes(LongCall::Exit))?;
                Insn::Exit
            }
            Op::SetAffinity(cpus) => {
                Insn::SetAffinity(push(&mut self.out.tables.affinities, cpus.clone()))
            }
            Op::ClearAffinity => Insn::ClearAffinity,
            Op::CpuOffline(cpus) => {
                Insn::CpuOffline(push(&mut self.out.tables.affinities, cpus.clone()))
            }
            Op::CpuOnline(cpus) => {
                Insn::CpuOnline(push(&mut self.out.tables.affinities, cpus.clone()))
            }
            Op::SetNice(nice) => Insn::SetNice(*nice),
            Op::SetPolicy(policy) => Insn::SetPolicy(push(&mut self.out.tables.policies, *policy)),
            // `check::cgroups` has put every cgroup that an op names into the table of cgroups,
            // except the root. A path that is not in the table is therefore the root.
            Op::MoveCgroup(path) => Insn::MoveCgroup(self.cgroup(path).unwrap_or(ROOT_CGROUP)),
            Op::SetXattr { cgroup, name, value } => {
                let (cgroup, name, value) = (self.cgroup(cgroup), name.clone(), value.clone());
                Insn::SetXattr(push(&mut self.out.tables.xattrs, Xattr { cgroup, name, value }))
            }
            Op::Suspend(name) => return self.suspend(name),
            Op::Resume(name) => return self.resume(name),
            Op::Count(units) => Insn::Count(*units),
            Op::Loop { .. } | Op::Phase { .. } => return Ok(()),
        };
        self.emit(insn)
    }

    fn compute_in(&mut self, work: Nanos, memory: &MemoryUse) -> Insn {
        let MemoryUse { ref region, percent, kind, pattern, offset, size } = *memory;
        let whole = self.region_size(region).saturating_sub(offset);
        let size = size.map_or(whole, |size| size.0);
        let touch = Touch { kind, size, count: 0, stride: LINE, pattern };
        let region = self.object(ObjectKind::Region, region);
        let access = RegionAccess { region, offset, touch, work: Some((work, percent)) };
        Insn::ComputeIn(push(&mut self.out.tables.accesses, access))
    }

    fn touch(&mut self, arg: &BufferArg) -> Insn {
        let Some(name) = &arg.region else {
            return Insn::Touch(push(&mut self.out.tables.touches, arg.touch(0)));
        };
        let touch = arg.touch(self.region_size(name).saturating_sub(arg.offset));
        let region = self.object(ObjectKind::Region, name);
        let access = RegionAccess { region, offset: arg.offset, touch, work: None };
        Insn::TouchIn(push(&mut self.out.tables.accesses, access))
    }

    /// Returns the size of the region that an op names. `compile::region` has refused unknown
    /// names.
    fn region_size(&self, name: &str) -> u64 {
        super::region::declaration(self.program, name).map_or(0, |def| def.size.0)
    }

    fn wait(&mut self, cond: &str, mutex: &str) -> Insn {
        let cond = self.object(ObjectKind::Cond, cond);
        Insn::Wait { cond, mutex: self.object(ObjectKind::Mutex, mutex) }
    }

    fn suspend(&mut self, name: &str) -> Result<(), WorkloadError> {
        let mutex = self.object(ObjectKind::Mutex, name);
        let cond = self.object(ObjectKind::Cond, name);
        self.emit(Insn::Lock(mutex))?;
        self.emit(Insn::Wait { cond, mutex })?;
        self.emit(Insn::Unlock(mutex))
    }

    fn resume(&mut self, name: &str) -> Result<(), WorkloadError> {
        let mutex = self.object(ObjectKind::Mutex, name);
        let cond = self.object(ObjectKind::Cond, name);
        self.emit(Insn::Lock(mutex))?;
        self.emit(Insn::Broadcast(cond))?;
        self.emit(Insn::Unlock(mutex))
    }

    fn timer(&mut self, thread: usize, name: &str, period: u64, unique: bool) -> Insn {
        let absolute = self.absolute.contains(&(unique.then_some(thread), name.to_owned()));
        let timer = if unique {
            let known = self.own_timers.iter().position(|n| n == name);
            let slot = known.unwrap_or_else(|| {
                self.own_timers.push(name.to_owned());
                self.own_timers.len() - 1
            });
            TimerRef::Own(u16::try_from(slot).unwrap_or(u16::MAX))
        } else {
            TimerRef::Shared(self.object(ObjectKind::Timer, name))
        };
        Insn::Timer { timer, period, absolute }
    }
}

/// Appends an item and returns its index.
fn push<T>(table: &mut Vec<T>, item: T) -> u32 {
    table.push(item);
    u32::try_from(table.len() - 1).unwrap_or(u32::MAX)
}

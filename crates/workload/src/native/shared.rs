// SPDX-License-Identifier: GPL-2.0-only
//! The memory that every process of a run shares: the threads' records and the objects they meet at.
//!
//! Owns: its layout. All of it is atomics whose zero is the initial state; references between records are
//! indices plus one (0: none), so that a process may map it at any address. Words that one thread alone writes
//! are used with relaxed order; what one thread hands to another goes through a futex word or a guard.

use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64};

use super::error::What;
use super::pipe::Pipe;
use super::plan::Tables;
use super::sync::{Barrier, Cond, Guard, Mutex, Sem, SpinBarrier, SpinLock};
use super::sys::{self, Errno};
use crate::compile::insn::Kind;

/// At most this many refused calls are kept; the rest are counted.
pub const MAX_FAULTS: usize = 100;

#[repr(C, align(64))]
pub struct Header {
    /// 1: every thread is to end.
    pub stop: AtomicU32,
    /// Futex: 1 when the threads may begin.
    pub go: AtomicU32,
    /// CLOCK_MONOTONIC of the start.
    pub started: AtomicU64,
    /// Futex: threads that wait for `go`, or have failed before it.
    pub ready: AtomicU32,
    /// Slot, plus one, of a thread that could not be set up.
    pub failed: AtomicU32,
    /// Protects the allocation of slots and the numbers of threads made.
    pub making: Guard,
    pub made: AtomicU32,
    /// Slots in use so far, and where the search for one to use again begins.
    pub nr_slots: AtomicU32,
    pub cursor: AtomicU32,
    /// The process that makes and collects all others.
    pub director: AtomicI32,
    pub nr_faults: AtomicU32,
    pub null_fd: AtomicI32,
    /// `cgroup.procs` of the program's root; -1 without cgroups.
    pub base_fd: AtomicI32,
    pub iterations: AtomicU64,
    pub iterations_ns: AtomicU64,
    /// Tasks, units and counts of threads whose slots were used again.
    pub unlisted: [AtomicU64; 6],
}

/// States of a slot. FREE -> NEW (its maker) -> ALIVE (itself) -> OVER (itself) [-> NEW, when slots run out].
pub const FREE: u32 = 0;
pub const NEW: u32 = 1;
pub const ALIVE: u32 = 2;
pub const OVER: u32 = 3;

/// How a thread ended.
pub const EXITED: u32 = 1;
pub const STOPPED: u32 = 2;

/// One thread. Written by itself unless a line says otherwise.
#[repr(C, align(64))]
pub struct Slot {
    pub state: AtomicU32,
    pub end: AtomicU32,
    pub who: Ident,
    /// By its maker.
    pub comm: [AtomicU64; 2],
    pub process: AtomicU32,
    /// Slot of the parent plus one, and its serial. By its maker.
    pub parent: AtomicU32,
    pub parent_serial: AtomicU64,
    /// Unique in the run. By its maker.
    pub serial: AtomicU64,
    /// Children that have not exited; a futex. By the thread and its children.
    pub children: AtomicU32,
    pub tid: AtomicI32,
    pub tgid: AtomicI32,

    /// Futex: 1 when what it waits for has been given to it. By whoever gives.
    pub wake: AtomicU32,
    /// The next in the queue that it is in, plus one. By the holder of the queue's guard.
    pub next: AtomicU32,
    /// The mutex to take again after a wait.
    pub retake: AtomicU32,
    /// What it waits for: a `Waits` and an index. And how many times it has waited.
    pub waits: AtomicU32,
    pub waits_index: AtomicU32,
    pub nr_waits: AtomicU64,

    /// Where it goes on after `execve`.
    pub pc: AtomicU32,
    /// Where its timers' first periods begin, from the start of the run.
    pub zero: AtomicU64,
    /// Draws that it has made from its stream of noise.
    pub draws: AtomicU64,
    pub nice: AtomicI32,
    /// Index into the program's cgroups plus one.
    pub cgroup: AtomicU32,
    pub phase: PhaseState,

    pub units: AtomicU64,
    pub totals: Totals,
    pub began: AtomicU64,
    pub ended: AtomicU64,
    /// What the kernel had counted before the start (by the director), and at the end.
    pub before: Counts,
    pub after: Counts,
}

/// From what a thread's name is made.
#[repr(C)]
pub struct Ident {
    pub template: AtomicU32,
    pub instance: AtomicU32,
    pub made: AtomicU32,
    pub made_of: AtomicU32,
    pub forked: AtomicU32,
}

/// The pass at hand, as `exec::stats::Phase`.
#[repr(C)]
pub struct PhaseState {
    pub idx: AtomicU64,
    pub run: AtomicU64,
    pub slack: AtomicI64,
    pub has_timer: AtomicU32,
    pub missed: AtomicU32,
    pub wu_lat: AtomicU64,
    pub woken: AtomicU32,
}

#[repr(C)]
pub struct Totals {
    pub loops: AtomicU64,
    pub run: AtomicU64,
    pub missed: AtomicU64,
    pub woken: AtomicU64,
    pub wu_lat_sum: AtomicU64,
    pub wu_lat_max: AtomicU64,
    pub timed: AtomicU64,
    pub slack_sum: AtomicI64,
    pub slack_min: AtomicI64,
}

/// What the kernel counts for a thread. Wait and migrations are one more than counted; 0: not known.
#[repr(C)]
pub struct Counts {
    pub run: AtomicU64,
    pub wait: AtomicU64,
    pub voluntary: AtomicU64,
    pub involuntary: AtomicU64,
    pub migrations: AtomicU64,
}

/// A refused call.
#[repr(C)]
pub struct Fault {
    pub filled: AtomicU32,
    pub at: AtomicU64,
    pub who: Ident,
    pub what: AtomicU32,
    pub pc: AtomicU32,
    pub errno: AtomicI32,
}

/// A process that has a name.
#[repr(C)]
pub struct Process {
    /// Held while a thread or a process is made from within: nobody else is then inside the C library's
    /// allocator on its behalf.
    pub making: Guard,
    /// Living threads. Under `Header::making`.
    pub alive: AtomicU32,
}

/// What a thread can sleep on until another thread acts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Waits {
    Nothing,
    Mutex,
    Cond,
    Barrier,
    Sem,
    PipeRead,
    PipeWrite,
    Join,
}

impl Waits {
    pub const ALL: [Waits; 8] = [
        Waits::Nothing,
        Waits::Mutex,
        Waits::Cond,
        Waits::Barrier,
        Waits::Sem,
        Waits::PipeRead,
        Waits::PipeWrite,
        Waits::Join,
    ];
}

/// The mapped memory. It stays mapped as long as the process lives.
pub struct Shared {
    pub fd: i32,
    head: &'static [Header],
    pub slots: &'static [Slot],
    /// Passes left, by slot and depth.
    pub loops: &'static [AtomicU64],
    /// When own timers' periods end, plus one, by slot and timer.
    pub own_timers: &'static [AtomicU64],
    pub made_of: &'static [AtomicU32],
    pub processes: &'static [Process],
    /// Open `cgroup.threads` files: the root's, then by index of the cgroup.
    pub cgroup_fds: &'static [AtomicI32],
    pub faults: &'static [Fault],
    pub mutexes: &'static [Mutex],
    pub conds: &'static [Cond],
    pub barriers: &'static [Barrier],
    pub sems: &'static [Sem],
    pub pipes: &'static [Pipe],
    pub spin_locks: &'static [SpinLock],
    pub spin_barriers: &'static [SpinBarrier],
    pub timers: &'static [Timer],
}

/// A timer that threads share.
#[repr(C)]
pub struct Timer {
    pub guard: Guard,
    /// When the running period ends, plus one.
    pub next: AtomicU64,
}

/// Hands out places in the memory, or only adds them up when there is no memory yet.
struct Carver {
    base: Option<*mut u8>,
    used: usize,
}

impl Carver {
    /// # Safety
    /// `T` consists of atomics, for which zeroed memory is valid; the memory at `base` is zeroed or was used for
    /// the same sequence of calls, is as long as a Carver without memory found, and stays mapped for ever.
    unsafe fn take<T>(&mut self, count: usize) -> &'static [T] {
        let align = align_of::<T>().max(64);
        let at = self.used.next_multiple_of(align);
        self.used = at.saturating_add(size_of::<T>().saturating_mul(count));
        match self.base {
            None => &[],
            // SAFETY: as the caller promises; the mapping is page-aligned, so `at` is aligned for T.
            Some(base) => unsafe { std::slice::from_raw_parts(base.add(at).cast::<T>(), count) },
        }
    }
}

impl Shared {
    /// A new memory for these tables: zeroes.
    pub fn create(tables: &Tables) -> Result<Self, Errno> {
        let bytes = Self::bytes(tables);
        // SAFETY: the name is a C string. The descriptor is inherited by all processes of the run.
        let fd = unsafe { libc::memfd_create(c"scxlab-native".as_ptr(), 0) };
        sys::checked(fd.into())?;
        let length = libc::off_t::try_from(bytes).map_err(|_| libc::ENOMEM)?;
        // SAFETY: `fd` is ours.
        sys::checked(unsafe { libc::ftruncate(fd, length) }.into())?;
        Self::map(tables, fd)
    }

    /// Maps the memory of a run whose tables are these.
    pub fn map(tables: &Tables, fd: i32) -> Result<Self, Errno> {
        let base = sys::map_shared(fd, Self::bytes(tables))?;
        Ok(Self::layout(tables, fd, &mut Carver { base: Some(base), used: 0 }))
    }

    fn bytes(tables: &Tables) -> usize {
        let mut carver = Carver { base: None, used: 0 };
        Self::layout(tables, -1, &mut carver);
        carver.used
    }

    fn layout(t: &Tables, fd: i32, c: &mut Carver) -> Self {
        let slots = t.nr_slots as usize;
        let count = |kind: Kind| t.compiled.objects.names(kind).len();
        // SAFETY: every T below is made of atomics; `map` maps `bytes` bytes of a file that begins as zeroes
        // and is used with the same tables everywhere, and nothing unmaps it.
        unsafe {
            Shared {
                fd,
                head: c.take(1),
                slots: c.take(slots),
                loops: c.take(slots.saturating_mul(t.max_loops as usize)),
                own_timers: c.take(slots.saturating_mul(t.max_timers as usize)),
                made_of: c.take(t.compiled.templates.len()),
                processes: c.take(t.nr_processes as usize),
                cgroup_fds: c.take(t.compiled.cgroups.len() + 1),
                faults: c.take(MAX_FAULTS),
                mutexes: c.take(count(Kind::Mutex)),
                conds: c.take(count(Kind::Cond)),
                barriers: c.take(count(Kind::Barrier)),
                sems: c.take(count(Kind::Sem)),
                pipes: c.take(count(Kind::Pipe)),
                spin_locks: c.take(count(Kind::SpinLock)),
                spin_barriers: c.take(count(Kind::SpinBarrier)),
                timers: c.take(count(Kind::Timer)),
            }
        }
    }

    /// Exists once there is memory.
    pub fn head(&self) -> &'static Header {
        &self.head[0]
    }

    /// Records a call that the kernel refused. `pc` is that of the op; u32::MAX: an attribute.
    pub fn fault(&self, slot: &Slot, at: u64, what: What, pc: u32, errno: Errno) {
        use std::sync::atomic::Ordering::{Relaxed, Release};
        let number = self.head().nr_faults.fetch_add(1, Relaxed) as usize;
        let Some(fault) = self.faults.get(number) else { return };
        fault.at.store(at, Relaxed);
        fault.who.copy(&slot.who);
        fault.what.store(what as u32, Relaxed);
        fault.pc.store(pc, Relaxed);
        fault.errno.store(errno, Relaxed);
        fault.filled.store(1, Release);
    }
}

impl Slot {
    /// Back to what it was before its thread, for the next one.
    pub fn clear(&self) {
        use std::sync::atomic::Ordering::Relaxed;
        // SAFETY: a slot is nothing but atomics that are whole words or halves of one; its bytes are zeroed one
        // atomic word at a time, while nobody uses it (its thread is over, and its maker holds the guard).
        let words = unsafe {
            std::slice::from_raw_parts(
                std::ptr::from_ref(self).cast::<AtomicU32>(),
                size_of::<Slot>() / size_of::<AtomicU32>(),
            )
        };
        words.iter().for_each(|word| word.store(0, Relaxed));
    }
}

impl Ident {
    pub fn copy(&self, from: &Ident) {
        use std::sync::atomic::Ordering::Relaxed;
        self.template.store(from.template.load(Relaxed), Relaxed);
        self.instance.store(from.instance.load(Relaxed), Relaxed);
        self.made.store(from.made.load(Relaxed), Relaxed);
        self.made_of.store(from.made_of.load(Relaxed), Relaxed);
        self.forked.store(from.forked.load(Relaxed), Relaxed);
    }

    pub fn name(&self, tables: &Tables) -> String {
        use std::sync::atomic::Ordering::Relaxed;
        let get = |word: &AtomicU32| word.load(Relaxed);
        tables.thread_name(
            get(&self.template),
            get(&self.instance),
            get(&self.made),
            get(&self.made_of),
            get(&self.forked) == 1,
        )
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! The memory that all processes of a run share: the threads' records and the objects on which they
//! synchronise.
//!
//! Owns: the layout of this memory, which consists of atomics whose initial state is zero.
//! References between records are indices plus one (0: none), so that a process may map the memory
//! at any address. A word that only one thread writes is accessed with relaxed ordering; data
//! handed from one thread to another goes through a futex word or a guard.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicI32, AtomicI64, AtomicU32, AtomicU64};

use super::access::Cursor;
use super::error::RefusedCallKind;
use super::pipe::Pipe;
use super::plan::Tables;
use super::region;
use super::sync::{Barrier, Cond, Guard, Lines, Mutex, Sem, SpinBarrier, SpinLock};
use super::sys::{self, Errno};
use crate::compile::insn::ObjectKind;
use crate::timers::TimerTotals;

/// Maximum number of refused calls that are recorded; further refused calls are only counted.
pub const MAX_FAULTS: usize = 100;

#[repr(C, align(64))]
pub struct Header {
    /// Set to 1 when every thread must end.
    pub stop: AtomicU32,
    /// Futex word: set to 1 when the threads may begin.
    pub go: AtomicU32,
    /// Time of the start on CLOCK_MONOTONIC.
    pub started: AtomicU64,
    /// Futex word: number of threads that wait for `go`, or that failed before they could wait.
    pub ready: AtomicU32,
    /// Slot, plus one, of a thread that could not be set up.
    pub failed: AtomicU32,
    /// Protects the allocation of slots and the counts of threads made.
    pub making: Guard,
    pub made: AtomicU32,
    /// Number of slots in use so far, and the slot at which the search for a reusable slot begins.
    pub nr_slots: AtomicU32,
    pub cursor: AtomicU32,
    /// Pid of the process that makes and collects all others.
    pub director: AtomicI32,
    pub nr_faults: AtomicU32,
    pub null_fd: AtomicI32,
    /// Descriptor of `cgroup.procs` of the program's root; -1 without cgroups.
    pub base_fd: AtomicI32,
    pub iterations: AtomicU64,
    pub iterations_ns: AtomicU64,
    /// Time of one access to local memory in random order, and of one in sequence, in ps.
    pub random_ps: AtomicU64,
    pub sequential_ps: AtomicU64,
    /// Held while a region is mapped and its pages are placed.
    pub mapping: Guard,
    /// Number of regions whose counts were overwritten, because records ran out.
    pub uncounted: AtomicU64,
    /// Sums over the threads whose slots were reused, in the order of the fields of `Unlisted`.
    pub unlisted: [AtomicU64; 6],
}

/// States of a slot, which is the record of one thread: FREE -> NEW (set by the maker of the
/// thread) -> ALIVE (by the thread) -> OVER (by the thread) [-> NEW, when slots run out].
pub const FREE: u32 = 0;
pub const NEW: u32 = 1;
pub const ALIVE: u32 = 2;
pub const OVER: u32 = 3;

/// Values of `Slot::end`.
pub const EXITED: u32 = 1;
pub const STOPPED: u32 = 2;

/// Record of one thread. Only the thread itself writes it, unless a field says otherwise.
#[repr(C, align(64))]
pub struct Slot {
    pub state: AtomicU32,
    pub end: AtomicU32,
    pub who: Ident,
    /// The thread's name, in the form of `plan::comm`. Written by the maker.
    pub comm: [AtomicU64; 2],
    pub process: AtomicU32,
    /// Slot of the parent plus one, and the parent's serial number. Written by the maker.
    pub parent: AtomicU32,
    pub parent_serial: AtomicU64,
    /// Serial number, unique in the run. Written by the maker.
    pub serial: AtomicU64,
    /// Futex word: number of children that have not exited. Written by the thread and its children.
    pub children: AtomicU32,
    pub tid: AtomicI32,
    pub tgid: AtomicI32,

    /// Futex word: set to 1 by the thread that grants what this thread waits for.
    pub wake: AtomicU32,
    /// Next slot, plus one, in the queue that holds this slot. Written under the queue's guard.
    pub next: AtomicU32,
    /// Index of the mutex to take again after a wait on a condition.
    pub retake: AtomicU32,
    /// Object that the thread waits for (a `WaitObject` and an index), and the number of waits so
    /// far.
    pub waits: AtomicU32,
    pub waits_index: AtomicU32,
    pub nr_waits: AtomicU64,

    /// Index of the instruction at which the thread continues after `execve`.
    pub pc: AtomicU32,
    /// Start of the first periods of the thread's timers, relative to the start of the run.
    pub zero: AtomicU64,
    /// Number of draws from the thread's random stream of noise.
    pub draws: AtomicU64,
    pub nice: AtomicI32,
    /// Index into the program's cgroups, plus one; 0 is the root.
    pub cgroup: AtomicU32,
    pub phase: PhaseState,

    pub units: AtomicU64,
    pub totals: Totals,
    pub began: AtomicU64,
    pub ended: AtomicU64,
    /// The kernel's counts for the thread: before the start (written by the director) and at the
    /// end.
    pub before: Counts,
    pub after: Counts,
}

/// The numbers from which `Tables::thread_name` makes a thread's name.
#[repr(C)]
pub struct Ident {
    pub template: AtomicU32,
    pub instance: AtomicU32,
    pub made: AtomicU32,
    pub made_of: AtomicU32,
    pub forked: AtomicU32,
}

/// State of the current pass of a phase, like `exec::stats::Phase`.
#[repr(C)]
pub struct PhaseState {
    pub idx: AtomicU64,
    pub run: AtomicU64,
}

#[repr(C)]
pub struct Totals {
    pub loops: AtomicU64,
    pub run: AtomicU64,
    timers: TimerSums,
}

/// `TimerTotals`, written by the thread alone.
#[repr(C)]
struct TimerSums {
    missed: AtomicU64,
    latencies: AtomicU64,
    latency_sum: AtomicU64,
    latency_max: AtomicU64,
    slacks: AtomicU64,
    slack_sum: AtomicI64,
    slack_min: AtomicI64,
}

impl Totals {
    pub fn timers(&self) -> TimerTotals {
        let t = &self.timers;
        let slacks = t.slacks.load(Relaxed);
        TimerTotals {
            missed: t.missed.load(Relaxed),
            latencies: t.latencies.load(Relaxed),
            latency_sum: t.latency_sum.load(Relaxed),
            latency_max: t.latency_max.load(Relaxed),
            slacks,
            slack_sum: t.slack_sum.load(Relaxed),
            slack_min: (slacks > 0).then(|| t.slack_min.load(Relaxed)),
        }
    }

    /// Changes the totals about timers.
    pub fn change_timers(&self, change: impl FnOnce(&mut TimerTotals)) {
        let mut totals = self.timers();
        change(&mut totals);
        let t = &self.timers;
        t.missed.store(totals.missed, Relaxed);
        t.latencies.store(totals.latencies, Relaxed);
        t.latency_sum.store(totals.latency_sum, Relaxed);
        t.latency_max.store(totals.latency_max, Relaxed);
        t.slack_sum.store(totals.slack_sum, Relaxed);
        t.slack_min.store(totals.slack_min.unwrap_or(0), Relaxed);
        t.slacks.store(totals.slacks, Relaxed);
    }
}

/// The kernel's counts for a thread. `wait` and `migrations` are stored plus one; 0 means unknown.
#[derive(Default)]
#[repr(C)]
pub struct Counts {
    pub run: AtomicU64,
    pub wait: AtomicU64,
    pub voluntary: AtomicU64,
    pub involuntary: AtomicU64,
    pub migrations: AtomicU64,
}

/// Record of a refused call.
#[repr(C)]
pub struct RefusedCallRecord {
    pub filled: AtomicU32,
    pub at: AtomicU64,
    pub who: Ident,
    pub what: AtomicU32,
    pub pc: AtomicU32,
    pub errno: AtomicI32,
}

/// Record of a named process.
#[repr(C)]
pub struct Process {
    /// Held while one of the process's threads makes a thread or a process, so that no sibling is
    /// inside the C library's allocator when the process is cloned.
    pub making: Guard,
    /// Number of living threads. Protected by `Header::making`.
    pub alive: AtomicU32,
}

/// The mapped memory. It stays mapped for the life of the process.
pub struct Shared {
    pub fd: i32,
    head: &'static [Header],
    pub slots: &'static [Slot],
    /// Number of passes left in each loop, indexed by slot and loop depth.
    pub loops: &'static [AtomicU64],
    /// End of the current period of each timer that belongs to one thread, plus one; indexed by
    /// slot and timer.
    pub own_timers: &'static [AtomicU64],
    /// Address of the region of each access of a thread, indexed by slot and access.
    pub region_at: &'static [AtomicU64],
    /// Where each access of a thread is, with the same index.
    pub cursors: &'static [Cursor],
    pub made_of: &'static [AtomicU32],
    pub processes: &'static [Process],
    /// Descriptors of `cgroup.threads` files: first the root's, then one per cgroup.
    pub cgroup_fds: &'static [AtomicI32],
    pub faults: &'static [RefusedCallRecord],
    pub regions: &'static [region::Record],
    /// Memory files of the regions that all processes share, by the index of the region's object;
    /// -1 for other regions.
    pub region_fds: &'static [AtomicI32],
    pub mutexes: &'static [Mutex],
    pub conds: &'static [Cond],
    pub barriers: &'static [Barrier],
    pub sems: &'static [Sem],
    pub pipes: &'static [Pipe],
    pub spin_locks: &'static [SpinLock],
    pub spin_barriers: &'static [SpinBarrier],
    pub lines: &'static [Lines],
    pub timers: &'static [Timer],
}

/// A timer that several threads share.
#[repr(C)]
pub struct Timer {
    pub guard: Guard,
    /// End of the current period, plus one; 0 if the timer was never used.
    pub next: AtomicU64,
}

/// Allocates ranges of the memory in sequence, or only adds up their sizes when there is no memory
/// yet.
struct Carver {
    base: Option<*mut u8>,
    used: usize,
}

impl Carver {
    /// # Safety
    /// `T` consists of atomics, for which zeroed memory is valid. The memory at `base` is zeroed or
    /// was used for the same sequence of calls, and stays mapped for ever. Its length is the value
    /// of `used` that the same sequence of calls gives when `base` is None.
    unsafe fn take<T>(&mut self, count: usize) -> &'static [T] {
        let align = align_of::<T>().max(64);
        let at = self.used.next_multiple_of(align);
        self.used = at.saturating_add(size_of::<T>().saturating_mul(count));
        match self.base {
            None => &[],
            // SAFETY: the caller promises it; the mapping is page-aligned, so `at` is aligned for
            // T.
            Some(base) => unsafe { std::slice::from_raw_parts(base.add(at).cast::<T>(), count) },
        }
    }
}

impl Shared {
    /// Creates the memory for these tables, all zeroes.
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

    /// Maps the memory file `fd`, which `create` made for the same tables.
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
        let count = |kind: ObjectKind| t.compiled.objects.names(kind).len();
        // SAFETY: every T below is made of atomics. `map` maps `bytes` bytes of a file that begins
        // as zeroes and is used with the same tables everywhere; nothing unmaps it.
        unsafe {
            Shared {
                fd,
                head: c.take(1),
                slots: c.take(slots),
                loops: c.take(slots.saturating_mul(t.max_loops as usize)),
                own_timers: c.take(slots.saturating_mul(t.max_timers as usize)),
                region_at: c.take(slots.saturating_mul(t.max_accesses as usize)),
                cursors: c.take(slots.saturating_mul(t.max_accesses as usize)),
                made_of: c.take(t.compiled.templates.len()),
                processes: c.take(t.nr_processes as usize),
                cgroup_fds: c.take(t.compiled.cgroups.len() + 1),
                faults: c.take(MAX_FAULTS),
                regions: c.take(t.nr_region_records),
                region_fds: c.take(t.regions.len()),
                mutexes: c.take(count(ObjectKind::Mutex)),
                conds: c.take(count(ObjectKind::Cond)),
                barriers: c.take(count(ObjectKind::Barrier)),
                sems: c.take(count(ObjectKind::Sem)),
                pipes: c.take(count(ObjectKind::Pipe)),
                spin_locks: c.take(count(ObjectKind::SpinLock)),
                spin_barriers: c.take(count(ObjectKind::SpinBarrier)),
                lines: c.take(count(ObjectKind::Lines)),
                timers: c.take(count(ObjectKind::Timer)),
            }
        }
    }

    /// Returns the header. Must not be called on the result of a `layout` without memory.
    pub fn head(&self) -> &'static Header {
        &self.head[0]
    }

    /// Records a call that the kernel refused. `pc` is the index of the op's instruction; u32::MAX
    /// stands for an attribute of the template.
    pub fn fault(&self, slot: &Slot, at: u64, what: RefusedCallKind, pc: u32, errno: Errno) {
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
    /// Resets the slot to zero, for the next thread.
    pub fn clear(&self) {
        use std::sync::atomic::Ordering::Relaxed;
        // SAFETY: a slot consists of atomics that are whole words or halves of one. Its bytes are
        // zeroed one atomic word at a time while nobody uses it: its thread is over, and the caller
        // holds `Header::making`.
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

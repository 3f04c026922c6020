// SPDX-License-Identifier: GPL-2.0-only
//! State that machine code shares with the rest of the virtual machine, so that it can do the work
//! of kernel functions itself.
//!
//! Owns: the number of calls that machine code has accounted for, the values of the host that it
//! needs, and a cache of what belongs to a task, cgroup or dispatch queue.
//! Does not: generate code (see `helper.rs`), or decide what a kernel function does. The machine
//! code calls out whenever this state does not suffice.

use std::alloc::{self, Layout};
use std::mem::offset_of;
use std::ptr::NonNull;

use crate::kfunc::KfuncId;
use crate::vm::Storage;

/// Kernel functions of the host that machine code may carry out itself, and what the code contains
/// of the machine. They are the same for all runs of one version of the host on machines with the
/// same number of CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InPlaceFuncs {
    pub nr_cpus: u32,
    /// Bytes of a mask that the kernel functions read: a multiple of 8, at most a page.
    pub mask_bytes: u32,
    /// Distance in bytes between the copies of a per-CPU variable.
    pub percpu_stride: u64,
    /// Whether `bpf_per_cpu_ptr` and `bpf_this_cpu_ptr` add a multiple of `percpu_stride` to the
    /// address.
    pub per_cpu_ptr: bool,
    /// `bpf_cpumask_test_cpu`: returns a bit of a readable mask of `mask_bytes` bytes; 0 for a CPU
    /// that does not exist, at the price of a mere call.
    pub test_cpu: Option<KfuncId>,
    /// `scx_bpf_task_cpu`, and the offset of the CPU (32 bits) in the structure of a task.
    pub task_cpu: Option<(KfuncId, u32)>,
    /// `scx_bpf_now`: the clock `Host::rq_clock` plus `InPlaceValues::rq_clock_base_ns`.
    pub now: Option<KfuncId>,
    /// `scx_bpf_dsq_peek` and `scx_bpf_dsq_nr_queued`, at the price of a mere call: what the host
    /// has noted of a queue.
    pub dsq_first: Option<KfuncId>,
    pub dsq_len: Option<KfuncId>,
}

/// Values of the simulated machine for `InPlaceFuncs`, which code reads, because a sweep may vary
/// them from run to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct InPlaceValues {
    /// Time of a call of a kernel function, and of one that looks at a word of a mask.
    pub call_ns: u64,
    pub test_cpu_ns: u64,
    /// Value of `scx_bpf_now` when the clock of a run queue is 0, ns.
    pub rq_clock_base_ns: u64,
}

/// Number of entries of the cache; a power of two.
const ENTRIES: usize = 1 << 12;
/// Shift of the addresses of owners and maps for the choice of an entry: slots of tasks and the
/// objects that stand for maps are an odd multiple of 64 bytes apart. Keys may be small numbers, so
/// that the number itself counts as well.
pub const OWNER_SHIFT: u32 = 6;

/// An entry of the cache: `value` belongs to the owner (the address of a task or cgroup, a key, or
/// the id of a dispatch queue) under this tag. Zero: an empty entry.
#[derive(Clone, Copy, Default)]
#[repr(C, align(32))]
struct Entry {
    owner: u64,
    tag: u64,
    value: u64,
}

#[repr(C)]
pub struct Shared {
    /// Clock of the host that runs the code (`Host::clock_mut`), which advances by the time of the
    /// kernel functions that the code carries out. Set on each entry into code.
    pub(super) clock: *mut u64,
    /// Number of kernel functions that machine code carried out.
    kfunc_calls: u64,
    values: InPlaceValues,
    entries: [Entry; ENTRIES],
}

/// The shared state of one virtual machine. Contexts of machine code hold its address.
pub struct InPlace {
    at: NonNull<Shared>,
}

// SAFETY: the value owns the state. Contexts of the same virtual machine use it only while code
// runs, and the machine is sent as a whole.
unsafe impl Send for InPlace {}

impl InPlace {
    pub fn new(values: InPlaceValues) -> InPlace {
        let layout = Layout::new::<Shared>();
        // SAFETY: the layout is not empty, and zero bytes are a valid `Shared`.
        let zeroed = unsafe { alloc::alloc_zeroed(layout) }.cast::<Shared>();
        let Some(at) = NonNull::new(zeroed) else { alloc::handle_alloc_error(layout) };
        let mut in_place = InPlace { at };
        in_place.shared().values = values;
        in_place
    }

    pub fn as_ptr(&self) -> *mut Shared {
        self.at.as_ptr()
    }

    #[inline(always)]
    fn shared(&mut self) -> &mut Shared {
        // SAFETY: the state lives as long as this value, and machine code, which also changes it,
        // does not run while a function of this type does.
        unsafe { self.at.as_mut() }
    }

    pub fn kfunc_calls(&self) -> u64 {
        // SAFETY: as in `shared`.
        unsafe { self.at.as_ref() }.kfunc_calls
    }

    /// Records the value of an owner in a storage map.
    #[inline]
    pub fn note_storage(&mut self, kind: Storage, map: u64, owner: u64, value: u64) {
        self.note(owner, tag(kind, map), value);
    }

    /// Forgets the value of an owner in a storage map.
    pub fn forget_storage(&mut self, kind: Storage, map: u64, owner: u64) {
        self.forget(owner, tag(kind, map));
    }

    /// Records the value of a key in a hash map.
    #[inline]
    pub fn note_element(&mut self, map: u64, key: u64, value: u64) {
        self.note(key, tag_of_hash(map), value);
    }

    /// Forgets the value of a key in a hash map.
    pub fn forget_element(&mut self, map: u64, key: u64) {
        self.forget(key, tag_of_hash(map));
    }

    /// Records that a task lies at an address.
    #[inline]
    pub fn note_task(&mut self, addr: u64) {
        self.note(addr, TASK, addr);
    }

    /// Forgets the task at an address, because it is gone.
    pub fn forget_task(&mut self, addr: u64) {
        self.forget(addr, TASK);
    }

    /// Records the address of the first task of a dispatch queue; 0 for an empty queue.
    #[inline]
    pub fn note_dsq_first(&mut self, dsq: u64, task: u64) {
        self.note(dsq, DSQ_FIRST, task);
    }

    /// Records the number of tasks in a dispatch queue.
    #[inline]
    pub fn note_dsq_len(&mut self, dsq: u64, len: u64) {
        self.note(dsq, DSQ_LEN, len);
    }

    /// Forgets what was recorded of a dispatch queue, because the queue changes.
    #[inline]
    pub fn forget_dsq(&mut self, dsq: u64) {
        self.forget(dsq, DSQ_FIRST);
        self.forget(dsq, DSQ_LEN);
    }

    fn note(&mut self, owner: u64, tag: u64, value: u64) {
        self.shared().entries[entry(owner, tag)] = Entry { owner, tag, value };
    }

    #[inline]
    fn forget(&mut self, owner: u64, tag: u64) {
        let entry = &mut self.shared().entries[entry(owner, tag)];
        if (entry.owner, entry.tag) == (owner, tag) {
            *entry = Entry::default();
        }
    }
}

impl Drop for InPlace {
    fn drop(&mut self) {
        // SAFETY: `new` allocated the state with this layout, and no code runs any more.
        unsafe { alloc::dealloc(self.at.as_ptr().cast(), Layout::new::<Shared>()) };
    }
}

/// Tag of an address at which a task lies. The tag of a map's values is the address that programs
/// hold for the map, a multiple of `MAP_ALIGN`, with a number below that tells what is looked up.
pub const TASK: u64 = 1;
pub const MAP_ALIGN: u64 = 64;
/// Tags of the first task and of the length of a dispatch queue. They differ in the part that
/// counts for the choice of an entry, because a program may ask for both.
pub const DSQ_FIRST: u64 = MAP_ALIGN | TASK;
pub const DSQ_LEN: u64 = (2 * MAP_ALIGN) | TASK;
const ELEMENT: u64 = 2;
const OF_TASK: u64 = 3;
const OF_CGROUP: u64 = 4;

/// Returns the tag of the values of a storage map. For an address that is no map, but a multiple of
/// `MAP_ALIGN`, it is one that no entry has.
pub fn tag(kind: Storage, map: u64) -> u64 {
    map | match kind {
        Storage::Task => OF_TASK,
        Storage::Cgroup => OF_CGROUP,
    }
}

/// Returns the tag of a hash map's elements.
pub fn tag_of_hash(map: u64) -> u64 {
    map | ELEMENT
}

/// Returns the number that a tag contributes to the choice of an entry.
pub fn salt(tag: u64) -> u64 {
    (tag >> OWNER_SHIFT).wrapping_mul(0x2b5) & ENTRY_MASK
}

pub const ENTRY_MASK: u64 = ENTRIES as u64 - 1;
pub const ENTRY_BYTES_LOG2: u32 = size_of::<Entry>().trailing_zeros();

fn entry(owner: u64, tag: u64) -> usize {
    ((owner ^ owner >> OWNER_SHIFT ^ salt(tag)) & ENTRY_MASK) as usize
}

/// Field offsets for the code generator.
pub mod at {
    use super::*;
    pub const CLOCK: i32 = offset_of!(Shared, clock) as i32;
    pub const KFUNC_CALLS: i32 = offset_of!(Shared, kfunc_calls) as i32;
    const VALUES: i32 = offset_of!(Shared, values) as i32;
    pub const CALL_NS: i32 = VALUES + offset_of!(InPlaceValues, call_ns) as i32;
    pub const RQ_CLOCK_BASE_NS: i32 = VALUES + offset_of!(InPlaceValues, rq_clock_base_ns) as i32;
    pub const TEST_CPU_NS: i32 = VALUES + offset_of!(InPlaceValues, test_cpu_ns) as i32;
    const ENTRIES: i32 = offset_of!(Shared, entries) as i32;
    pub const OWNER: i32 = ENTRIES + offset_of!(Entry, owner) as i32;
    pub const TAG: i32 = ENTRIES + offset_of!(Entry, tag) as i32;
    pub const VALUE: i32 = ENTRIES + offset_of!(Entry, value) as i32;
}

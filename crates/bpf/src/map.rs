// SPDX-License-Identifier: GPL-2.0-only
//! Maps: data that programs and user space share, by map type.
//!
//! Owns: definitions, creation with the kernel's checks, dispatch by type. Each type has its file
//! in `map/`.
//! Does not: know the syscall ABI or names in ELF files (see `link` of scxlab-loader).
//! Models: kernel/bpf/*map*.c, hashtab.c, queue_stack_maps.c, ringbuf.c, arena.c,
//! bpf_local_storage.c, v7.3.
//! Differs: nothing is concurrent; hash maps iterate in order of insertion, and an update
//! overwrites the value in place.

use std::collections::BTreeMap;

use crate::errno::*;
use crate::vm::{InstanceId, KptrKind, Storage};

pub(crate) mod arena;
pub(crate) mod array;
mod create;
pub(crate) mod hash;
mod ops;
pub(crate) mod queue;
pub(crate) mod ringbuf;
pub(crate) mod storage;
mod table;
#[cfg(test)]
mod tests;
mod user;
mod value;

pub use create::{MapError, is_modelled};
pub(crate) use ops::{Cpus, in_place_key};
pub use table::MapTable;
pub(crate) use value::{MapCtx, Source};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MapId(pub u32);

impl MapId {
    pub fn idx(self) -> usize {
        self.0 as usize
    }
}

/// Values of `enum bpf_map_type` that are modelled.
pub mod map_type {
    pub const HASH: u32 = 1;
    pub const ARRAY: u32 = 2;
    pub const PROG_ARRAY: u32 = 3;
    pub const PERF_EVENT_ARRAY: u32 = 4;
    pub const PERCPU_HASH: u32 = 5;
    pub const PERCPU_ARRAY: u32 = 6;
    pub const LRU_HASH: u32 = 9;
    pub const LRU_PERCPU_HASH: u32 = 10;
    pub const ARRAY_OF_MAPS: u32 = 12;
    pub const HASH_OF_MAPS: u32 = 13;
    pub const QUEUE: u32 = 22;
    pub const STACK: u32 = 23;
    pub const RINGBUF: u32 = 27;
    pub const TASK_STORAGE: u32 = 29;
    pub const USER_RINGBUF: u32 = 31;
    pub const CGRP_STORAGE: u32 = 32;
    pub const ARENA: u32 = 33;
}

/// Flags of map creation (`BPF_F_*`).
pub mod map_flag {
    pub const NO_PREALLOC: u32 = 1 << 0;
    pub const NO_COMMON_LRU: u32 = 1 << 1;
    pub const NUMA_NODE: u32 = 1 << 2;
    pub const RDONLY: u32 = 1 << 3;
    pub const WRONLY: u32 = 1 << 4;
    pub const ZERO_SEED: u32 = 1 << 6;
    pub const RDONLY_PROG: u32 = 1 << 7;
    pub const WRONLY_PROG: u32 = 1 << 8;
    pub const MMAPABLE: u32 = 1 << 10;
    pub const PRESERVE_ELEMS: u32 = 1 << 11;
    pub const INNER_MAP: u32 = 1 << 12;
    pub const SEGV_ON_FAULT: u32 = 1 << 17;
    pub const NO_USER_CONV: u32 = 1 << 18;
    pub const RB_OVERWRITE: u32 = 1 << 19;
}

/// Flags of an element update (`BPF_ANY` and so on).
pub mod update_flag {
    pub const ANY: u64 = 0;
    pub const NOEXIST: u64 = 1;
    pub const EXIST: u64 = 2;
    pub const LOCK: u64 = 4;
}

/// Definition of a map: `struct bpf_map_create_attr`, plus the BTF information about its values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MapDef {
    pub name: String,
    pub map_type: u32,
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
    pub map_flags: u32,
    pub map_extra: u64,
    pub numa_node: Option<u32>,
    /// Template for the inner maps of a map of maps.
    pub inner: Option<Box<MapDef>>,
    /// Fields of the value that the kernel manages. Sorted by offset once the map exists.
    pub special: Vec<SpecialField>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecialField {
    pub offset: u32,
    pub kind: SpecialKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpecialKind {
    SpinLock,
    ResSpinLock,
    Timer,
    /// `__kptr`: a referenced kernel pointer.
    Kptr(KptrKind),
    /// `__kptr_untrusted`, `__uptr`: a pointer without a reference.
    Untrusted,
    /// `struct bpf_rb_root` whose nodes lie at byte offset `node_offset` in objects of type
    /// `local_type`.
    RbRoot {
        local_type: u32,
        node_offset: u32,
    },
    ListHead {
        local_type: u32,
        node_offset: u32,
    },
    RbNode,
    ListNode,
    Refcount,
    /// `struct bpf_wq`, `struct bpf_task_work`: copies of the value skip the field, and the
    /// simulator never runs its callback.
    Opaque {
        size: u32,
    },
}

impl SpecialKind {
    /// Returns the size of the field in bytes. Copies of a value skip these bytes.
    pub fn size(self) -> u32 {
        match self {
            SpecialKind::SpinLock | SpecialKind::ResSpinLock | SpecialKind::Refcount => 4,
            SpecialKind::Kptr(_) | SpecialKind::Untrusted => 8,
            SpecialKind::Timer => 16,
            SpecialKind::RbRoot { .. } | SpecialKind::ListHead { .. } => 16,
            SpecialKind::RbNode => 32,
            SpecialKind::ListNode => 24,
            SpecialKind::Opaque { size } => size,
        }
    }
}

/// A type of the object file that `bpf_obj_new` can allocate.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LocalType {
    pub name: String,
    pub size: u32,
    pub special: Vec<SpecialField>,
}

/// Types that `bpf_obj_new` can allocate, by BTF id in the object file.
pub type LocalTypes = BTreeMap<u32, LocalType>;

/// A timer or reference that a map operation dropped. `vm::release_dropped` tells the host of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dropped {
    Kptr { instance: InstanceId, kind: KptrKind, ptr: u64 },
    Timer(crate::timer::TimerId),
}

/// A map. Callers access its contents through the `map_*` operations of `Vm`.
pub struct Map {
    pub id: MapId,
    pub instance: InstanceId,
    /// Address that programs hold as a pointer to the map.
    pub addr: u64,
    pub def: MapDef,
    /// Whether user space may no longer write the map (`BPF_MAP_FREEZE`).
    pub frozen: bool,
    pub(crate) kind: MapKind,
    /// Value size in bytes, rounded up to a multiple of 8.
    pub(crate) stride: u32,
    /// Whether the value has a field whose contents the map must release when the value goes away.
    pub(crate) has_special: bool,
}

pub(crate) enum MapKind {
    Array(array::Array),
    Hash(hash::Hash),
    Queue(queue::Queue),
    Ringbuf(ringbuf::Ringbuf),
    UserRingbuf(ringbuf::UserRingbuf),
    Storage(Storage, storage::LocalStorage),
    Arena(arena::Arena),
    /// PERF_EVENT_ARRAY without events.
    PerfEvents,
    /// PROG_ARRAY: targets of tail calls.
    Progs(BTreeMap<u32, crate::vm::FuncId>),
}

/// The key of a value: the address of the key in guest memory, or the index of an array's element.
pub(crate) enum KeyAt {
    Addr(u64),
    Index(u32),
}

impl Map {
    /// Returns the key that belongs to a value's address.
    pub(crate) fn key_at(&self, value: u64) -> KeyAt {
        match &self.kind {
            MapKind::Array(array) => KeyAt::Index(array.index_of(value)),
            MapKind::Hash(hash) => KeyAt::Addr(hash.key_addr(value)),
            _ => KeyAt::Index(0),
        }
    }

    pub(crate) fn storage_kind(&self) -> Option<Storage> {
        match self.kind {
            MapKind::Storage(kind, _) => Some(kind),
            _ => None,
        }
    }
}

/// Result of a map operation; the error is a positive errno.
pub type MapResult<T> = Result<T, i64>;

/// Errno of operations that `map->ops` lacks for the map's type.
pub(crate) const NOT_SUPPORTED: i64 = EOPNOTSUPP;

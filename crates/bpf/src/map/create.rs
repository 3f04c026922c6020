// SPDX-License-Identifier: GPL-2.0-only
//! Creation and destruction of maps, with the checks of each type's `map_alloc_check`.
//!
//! Owns: the conditions for valid definitions. Does not: hold elements.
//! Models: `map_create()` and the `*_alloc_check()` functions of kernel/bpf, v7.3.
//! Differs: no accounting against a memory cgroup.

use super::array::Array;
use super::hash::Hash;
use super::queue::Queue;
use super::ringbuf::{Ringbuf, UserRingbuf};
use super::storage::LocalStorage;
use super::{Map, MapDef, MapId, MapKind, SpecialKind, arena, map_flag, map_type};
use crate::errno::*;
use crate::mem::{OutOfMemory, PAGE};
use crate::vm::{InstanceId, Storage, Vm};

/// Error for a map that the kernel would refuse to create.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("map \"{map}\": {why} (errno {errno})")]
pub struct MapError {
    pub map: String,
    pub errno: i64,
    pub why: String,
    /// Whether only this crate refuses the map, because it does not model it.
    pub unmodelled: bool,
}

/// Whether this crate models maps of a type.
pub fn is_modelled(map_type: u32) -> bool {
    check_of(map_type).is_some()
}

/// Largest per-CPU value in bytes. The kernel's PCPU_MIN_UNIT_SIZE.
const PERCPU_VALUE_MAX: u32 = 32 << 10;
const KEY_MAX: u32 = 512;
/// Largest storage value in bytes. The kernel's BPF_LOCAL_STORAGE_MAX_VALUE_SIZE on x86-64, which
/// leaves room for the header of an element.
const STORAGE_VALUE_MAX: u32 = 65_407;

impl Vm {
    /// Creates a map for an instance. Arrays read as zero; other maps are empty.
    pub fn create_map(&mut self, instance: InstanceId, def: &MapDef) -> Result<MapId, MapError> {
        let unmodelled = !is_modelled(def.map_type)
            || def.map_type == map_type::RINGBUF && def.map_flags & map_flag::RB_OVERWRITE != 0;
        let refuse =
            |errno, why: String| MapError { map: def.name.clone(), errno, why, unmodelled };
        check(def).map_err(|(errno, why)| refuse(errno, why.to_owned()))?;
        let Some((id, addr)) = self.maps.next() else {
            return Err(refuse(ENOMEM, "too many maps".to_owned()));
        };
        let no_memory = |err: OutOfMemory| refuse(ENOMEM, err.to_string());
        let kind = self.make_kind(def).map_err(no_memory)?;
        let arena_base = if let MapKind::Arena(arena) = &kind { Some(arena.window) } else { None };
        let Some(owner) = self.instance_mut(instance) else {
            return Err(refuse(EINVAL, format!("no instance {}", instance.0)));
        };
        owner.maps.push(id);
        if let Some(base) = arena_base {
            owner.arena_base = base;
        }
        let head = self.mem.host_slice_mut::<u32>(addr, 6);
        head.copy_from_slice(&[
            def.map_type,
            def.key_size,
            def.value_size,
            def.max_entries,
            def.map_flags,
            id.0,
        ]);
        Ok(self.maps.push(Map {
            id,
            instance,
            addr,
            stride: def.value_size.next_multiple_of(8),
            has_special: def.special.iter().any(|f| needs_release(f.kind)),
            frozen: false,
            def: sorted(def),
            kind,
        }))
    }

    fn make_kind(&mut self, def: &MapDef) -> Result<MapKind, OutOfMemory> {
        use map_type::*;
        let cpus = self.nr_cpus;
        Ok(match def.map_type {
            ARRAY | ARRAY_OF_MAPS => MapKind::Array(Array::new(&mut self.mem, def, 1)?),
            PERCPU_ARRAY => MapKind::Array(Array::new(&mut self.mem, def, cpus)?),
            HASH | LRU_HASH | HASH_OF_MAPS => MapKind::Hash(Hash::new(def, 1)),
            PERCPU_HASH | LRU_PERCPU_HASH => MapKind::Hash(Hash::new(def, cpus)),
            QUEUE | STACK => MapKind::Queue(Queue::new(def)),
            RINGBUF => MapKind::Ringbuf(Ringbuf::new(&mut self.mem, def)?),
            USER_RINGBUF => MapKind::UserRingbuf(UserRingbuf::new(&mut self.mem, def)?),
            TASK_STORAGE => MapKind::Storage(Storage::Task, LocalStorage::default()),
            CGRP_STORAGE => MapKind::Storage(Storage::Cgroup, LocalStorage::default()),
            ARENA => MapKind::Arena(arena::Arena::new(&mut self.mem, def)?),
            PERF_EVENT_ARRAY => MapKind::PerfEvents,
            PROG_ARRAY => MapKind::Progs(Default::default()),
            other => unreachable!("map type {other} passed check()"),
        })
    }

    /// Frees a map with all its elements. References that they held are released at the next
    /// `vm::release_dropped`.
    pub(crate) fn destroy_map(&mut self, id: MapId) {
        self.clear_map(id);
        let Some(map) = self.maps.remove(id) else {
            return;
        };
        match map.kind {
            MapKind::Array(array) => array.free(&mut self.mem),
            MapKind::Ringbuf(ring) => ring.free(&mut self.mem),
            MapKind::UserRingbuf(ring) => ring.free(&mut self.mem),
            MapKind::Arena(arena) => self.mem.free_arena(arena.window),
            MapKind::Hash(_) | MapKind::Queue(_) | MapKind::Storage(..) => {}
            MapKind::PerfEvents | MapKind::Progs(_) => {}
        }
    }
}

/// Sorts the managed fields by offset, because copies visit them in that order.
fn sorted(def: &MapDef) -> MapDef {
    let mut def = def.clone();
    def.special.sort_by_key(|field| field.offset);
    def
}

/// Returns whether a field of this kind holds something that must be released when the value goes
/// away.
fn needs_release(kind: SpecialKind) -> bool {
    matches!(
        kind,
        SpecialKind::Timer
            | SpecialKind::Kptr(_)
            | SpecialKind::RbRoot { .. }
            | SpecialKind::ListHead { .. }
    )
}

type Check = Result<(), (i64, &'static str)>;

fn check(def: &MapDef) -> Check {
    let of_type = check_of(def.map_type).ok_or((EOPNOTSUPP, "map type is not modelled"))?;
    check_special(def)?;
    of_type(def)
}

/// Returns the check of maps of a type; None if this crate does not model the type.
fn check_of(map_type: u32) -> Option<fn(&MapDef) -> Check> {
    use map_type::*;
    Some(match map_type {
        ARRAY | PERCPU_ARRAY | ARRAY_OF_MAPS | PERF_EVENT_ARRAY | PROG_ARRAY => check_array,
        HASH | PERCPU_HASH | LRU_HASH | LRU_PERCPU_HASH | HASH_OF_MAPS => check_hash,
        QUEUE | STACK => check_queue,
        RINGBUF | USER_RINGBUF => check_ring,
        TASK_STORAGE | CGRP_STORAGE => check_storage,
        ARENA => arena::check,
        _ => return None,
    })
}

/// Checks that every managed field lies inside the value, aligned to 4 or 8 bytes.
fn check_special(def: &MapDef) -> Check {
    for field in &def.special {
        let size = field.kind.size();
        let end = field.offset.checked_add(size);
        if !field.offset.is_multiple_of(size.clamp(4, 8))
            || end.is_none_or(|end| end > def.value_size)
        {
            return Err((EINVAL, "a kernel-managed field is misaligned or outside the value"));
        }
    }
    Ok(())
}

fn check_array(def: &MapDef) -> Check {
    if def.max_entries == 0 || def.key_size != 4 || def.value_size == 0 {
        return Err((EINVAL, "an array needs entries, a 4-byte key and a value"));
    }
    if def.value_size > i32::MAX as u32 {
        return Err((E2BIG, "value too large"));
    }
    match def.map_type {
        map_type::PERCPU_ARRAY if def.value_size > PERCPU_VALUE_MAX => {
            Err((E2BIG, "per-CPU value over 32 KiB"))
        }
        map_type::PERCPU_ARRAY if def.map_flags & map_flag::MMAPABLE != 0 => {
            Err((EINVAL, "a per-CPU array does not allow BPF_F_MMAPABLE"))
        }
        map_type::ARRAY_OF_MAPS if def.inner.is_none() => {
            Err((EINVAL, "a map of maps needs an inner map"))
        }
        map_type::ARRAY_OF_MAPS | map_type::PERF_EVENT_ARRAY | map_type::PROG_ARRAY
            if def.value_size != 4 =>
        {
            Err((EINVAL, "values must be 4 bytes"))
        }
        _ => Ok(()),
    }
}

fn check_hash(def: &MapDef) -> Check {
    if def.max_entries == 0 || def.key_size == 0 || def.value_size == 0 {
        return Err((EINVAL, "a hash needs entries, a key and a value"));
    }
    if def.key_size > KEY_MAX {
        return Err((E2BIG, "key over 512 bytes"));
    }
    if def.max_entries > 1 << 31 {
        return Err((E2BIG, "too many entries"));
    }
    let percpu = matches!(def.map_type, map_type::PERCPU_HASH | map_type::LRU_PERCPU_HASH);
    if percpu && def.value_size > PERCPU_VALUE_MAX {
        return Err((E2BIG, "per-CPU value over 32 KiB"));
    }
    if def.value_size > i32::MAX as u32 >> 4 {
        return Err((E2BIG, "value too large"));
    }
    let lru = matches!(def.map_type, map_type::LRU_HASH | map_type::LRU_PERCPU_HASH);
    if lru && def.map_flags & map_flag::NO_PREALLOC != 0 {
        return Err((
            EOPNOTSUPP,
            "an LRU hash is always preallocated and does not allow BPF_F_NO_PREALLOC",
        ));
    }
    if !lru && def.map_flags & map_flag::NO_COMMON_LRU != 0 {
        return Err((EINVAL, "BPF_F_NO_COMMON_LRU is only valid for an LRU hash"));
    }
    if def.map_type == map_type::HASH_OF_MAPS && (def.inner.is_none() || def.value_size != 4) {
        return Err((EINVAL, "a map of maps needs an inner map and 4-byte values"));
    }
    Ok(())
}

fn check_queue(def: &MapDef) -> Check {
    if def.max_entries == 0 || def.key_size != 0 || def.value_size == 0 {
        return Err((EINVAL, "a queue needs entries, a value and no key"));
    }
    if def.value_size > 4 << 20 {
        return Err((E2BIG, "value too large"));
    }
    Ok(())
}

fn check_ring(def: &MapDef) -> Check {
    let overwrite = def.map_flags & map_flag::RB_OVERWRITE != 0;
    if overwrite {
        return Err((EOPNOTSUPP, "ring buffers with BPF_F_RB_OVERWRITE are not modelled"));
    }
    let pages = u64::from(def.max_entries);
    if def.key_size != 0
        || def.value_size != 0
        || !pages.is_power_of_two()
        || !pages.is_multiple_of(PAGE)
    {
        return Err((
            EINVAL,
            "a ring buffer has no key or value, and a power-of-two number of whole pages",
        ));
    }
    Ok(())
}

fn check_storage(def: &MapDef) -> Check {
    if def.map_flags & map_flag::NO_PREALLOC == 0 || def.max_entries != 0 {
        return Err((EINVAL, "local storage needs BPF_F_NO_PREALLOC and no max_entries"));
    }
    if def.key_size != 4 || def.value_size == 0 {
        return Err((EINVAL, "local storage needs a 4-byte key and a value"));
    }
    if def.value_size > STORAGE_VALUE_MAX {
        return Err((E2BIG, "value too large"));
    }
    Ok(())
}

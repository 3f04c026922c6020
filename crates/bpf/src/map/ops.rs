// SPDX-License-Identifier: GPL-2.0-only
//! Element operations of maps, by type: the kernel's `map->ops`.
//!
//! Owns: errnos of lookup, update and delete.
//! Does not: read guest keys (see `helper/map.rs`) or serve user space (see `user.rs`); both call
//! the operations here.

use super::hash::Insertion;
use super::value::{MapCtx, Source};
use super::{
    Map, MapId, MapKind, MapResult, MapTable, NOT_SUPPORTED, SpecialKind, map_type, update_flag,
};
use crate::errno::*;
use crate::mem::Memory;
use crate::vm::Vm;

/// Copies of a per-CPU value that an update writes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cpus {
    /// One CPU's copy: a program updates the value, or user space names the CPU.
    One(u32),
    /// All copies, from a buffer with one value of `stride` bytes per CPU.
    Each,
}

impl Vm {
    /// Borrows the table of maps and, separately, the other parts of the machine that map
    /// operations need.
    pub(crate) fn split_maps(&mut self) -> (&mut MapTable, MapCtx<'_>) {
        let ctx = MapCtx {
            mem: &mut self.mem,
            timers: &mut self.timers,
            objects: &mut self.objects,
            dropped: &mut self.dropped,
            in_place: &mut self.in_place,
            nr_cpus: self.nr_cpus,
        };
        (&mut self.maps, ctx)
    }

    /// Removes all elements and releases what their values hold.
    pub(crate) fn clear_map(&mut self, id: MapId) {
        let (maps, mut ctx) = self.split_maps();
        if let Some(map) = maps.get_mut(id) {
            map.clear(&mut ctx);
        }
    }
}

impl Map {
    pub(crate) fn is_percpu(&self) -> bool {
        use map_type::*;
        matches!(self.def.map_type, PERCPU_ARRAY | PERCPU_HASH | LRU_PERCPU_HASH)
    }

    /// Returns the size of the keys of a hash map whose elements machine code finds in its cache: a
    /// hash whose lookups change nothing, with one value for all CPUs and keys of 4 or 8 bytes.
    #[inline]
    pub(crate) fn short_key(&self) -> Option<u32> {
        let size = self.def.key_size;
        (self.def.map_type == map_type::HASH && matches!(size, 4 | 8)).then_some(size)
    }

    pub(crate) fn holds_maps(&self) -> bool {
        matches!(self.def.map_type, map_type::ARRAY_OF_MAPS | map_type::HASH_OF_MAPS)
    }

    /// Returns the address of the value as `cpu` sees it, or 0. For a map of maps, returns the
    /// address of the inner map, or 0.
    #[inline]
    pub(crate) fn lookup(&mut self, mem: &Memory, key: &[u8], cpu: u32) -> u64 {
        let stride = u64::from(self.stride);
        let value = match &mut self.kind {
            MapKind::Array(array) => key_index(key).and_then(|index| array.element(index, cpu)),
            MapKind::Hash(hash) => hash.lookup(mem, key),
            _ => None,
        };
        let Some(value) = value else { return 0 };
        if self.holds_maps() {
            *mem.host_ref::<u64>(value)
        } else if self.is_percpu() && matches!(self.kind, MapKind::Hash(_)) {
            value + stride * u64::from(cpu)
        } else {
            value
        }
    }

    pub(crate) fn update(
        &mut self,
        ctx: &mut MapCtx<'_>,
        key: &[u8],
        source: Source<'_>,
        flags: u64,
        cpus: Cpus,
    ) -> MapResult<()> {
        if flags & !update_flag::LOCK > update_flag::EXIST {
            return Err(EINVAL);
        }
        if flags & update_flag::LOCK != 0 && !self.has_spin_lock() {
            return Err(EINVAL);
        }
        let in_place = flags & update_flag::LOCK != 0;
        match &self.kind {
            MapKind::Array(_) => self.update_array(ctx, key, source, flags, cpus),
            MapKind::Hash(_) => {
                self.update_hash(ctx, key, source, flags & !update_flag::LOCK, cpus, in_place)
            }
            MapKind::Arena(_) => Err(NOT_SUPPORTED),
            MapKind::Ringbuf(_) | MapKind::UserRingbuf(_) => Err(ENOTSUPP),
            MapKind::Queue(_) | MapKind::Storage(..) | MapKind::PerfEvents | MapKind::Progs(_) => {
                Err(EINVAL)
            }
        }
    }

    fn update_array(
        &mut self,
        ctx: &mut MapCtx<'_>,
        key: &[u8],
        source: Source<'_>,
        flags: u64,
        cpus: Cpus,
    ) -> MapResult<()> {
        let MapKind::Array(array) = &self.kind else {
            return Err(EINVAL);
        };
        let index = key_index(key).ok_or(EINVAL)?;
        if index >= array.entries {
            return Err(E2BIG);
        }
        if flags & update_flag::NOEXIST != 0 {
            return Err(EEXIST);
        }
        for (cpu, part) in self.parts(source, cpus, ctx.nr_cpus) {
            let Some(at) = array.element(index, cpu) else {
                return Err(EINVAL);
            };
            ctx.overwrite(&self.def, at, part);
        }
        Ok(())
    }

    fn update_hash(
        &mut self,
        ctx: &mut MapCtx<'_>,
        key: &[u8],
        source: Source<'_>,
        flags: u64,
        cpus: Cpus,
        in_place: bool,
    ) -> MapResult<()> {
        let MapKind::Hash(hash) = &mut self.kind else {
            return Err(EINVAL);
        };
        let found = hash.lookup(ctx.mem, key);
        let value = match found {
            Some(_) if flags == update_flag::NOEXIST => return Err(EEXIST),
            None if flags == update_flag::EXIST => return Err(ENOENT),
            Some(value) => value,
            None => self.insert_hash(ctx, key)?,
        };
        let stride = u64::from(self.stride);
        for (cpu, part) in self.parts(source, cpus, ctx.nr_cpus) {
            let at = value + if self.is_percpu() { stride * u64::from(cpu) } else { 0 };
            if in_place || found.is_none() {
                ctx.fill(&self.def, at, part);
            } else {
                ctx.replace(self.instance, &self.def, at, part);
            }
        }
        Ok(())
    }

    /// Inserts a zeroed element for a new key. A full LRU map evicts its least recently used
    /// element first.
    fn insert_hash(&mut self, ctx: &mut MapCtx<'_>, key: &[u8]) -> MapResult<u64> {
        let MapKind::Hash(hash) = &mut self.kind else {
            return Err(EINVAL);
        };
        if hash.must_evict() {
            let victim = hash.remove_first().expect("a full map has a first element");
            self.drop_element(ctx, victim);
        }
        let MapKind::Hash(hash) = &mut self.kind else {
            return Err(EINVAL);
        };
        match hash.insert(ctx.mem, key).map_err(|_| ENOMEM)? {
            Insertion::Made(value) => Ok(value),
            Insertion::Full => Err(E2BIG),
        }
    }

    /// Returns the CPUs whose copies of the value an update writes, each with the copy's contents.
    fn parts<'a>(
        &self,
        source: Source<'a>,
        cpus: Cpus,
        nr_cpus: u32,
    ) -> impl Iterator<Item = (u32, Source<'a>)> + use<'a> {
        let stride = self.stride as usize;
        let (first, count) = match cpus {
            Cpus::One(cpu) => (if self.is_percpu() { cpu } else { 0 }, 1),
            Cpus::Each => (0, if self.is_percpu() { nr_cpus } else { 1 }),
        };
        (0..count).map(move |at| {
            let part = match source {
                Source::Bytes(bytes) if count > 1 => Source::Bytes(&bytes[at as usize * stride..]),
                other => other,
            };
            (first + at, part)
        })
    }

    pub(crate) fn delete(&mut self, ctx: &mut MapCtx<'_>, key: &[u8]) -> MapResult<()> {
        match &mut self.kind {
            MapKind::Hash(hash) => {
                let value = hash.remove(ctx.mem, key).ok_or(ENOENT)?;
                self.drop_element(ctx, value);
                Ok(())
            }
            MapKind::Arena(_) => Err(NOT_SUPPORTED),
            MapKind::Ringbuf(_) | MapKind::UserRingbuf(_) => Err(ENOTSUPP),
            _ => Err(EINVAL),
        }
    }

    /// Releases what a hash element holds, and frees its memory. The caller has removed the element
    /// from the index.
    fn drop_element(&mut self, ctx: &mut MapCtx<'_>, value: u64) {
        if self.has_special {
            let copies = if self.is_percpu() { ctx.nr_cpus } else { 1 };
            for copy in 0..copies {
                let at = value + u64::from(self.stride) * u64::from(copy);
                ctx.release(self.instance, &self.def.special, at);
            }
        }
        if let MapKind::Hash(hash) = &self.kind {
            let key = ctx.mem.host_slice::<u8>(hash.key_addr(value), self.def.key_size as usize);
            if self.short_key().is_some() {
                ctx.in_place.forget_element(self.addr, in_place_key(key));
            }
            hash.free_element(ctx.mem, value);
        }
    }

    fn clear(&mut self, ctx: &mut MapCtx<'_>) {
        match &mut self.kind {
            MapKind::Array(_) => self.clear_array(ctx),
            MapKind::Hash(_) => loop {
                let MapKind::Hash(hash) = &mut self.kind else {
                    return;
                };
                let Some(value) = hash.remove_first() else {
                    return;
                };
                self.drop_element(ctx, value);
            },
            MapKind::Queue(queue) => queue.clear(),
            MapKind::Storage(_, storage) => {
                for owner in storage.owners() {
                    self.storage_delete(ctx, owner).expect("owner has a value");
                }
            }
            MapKind::Ringbuf(_) | MapKind::UserRingbuf(_) | MapKind::Arena(_) => {}
            MapKind::PerfEvents | MapKind::Progs(_) => {}
        }
    }

    fn clear_array(&mut self, ctx: &mut MapCtx<'_>) {
        let MapKind::Array(array) = &self.kind else {
            return;
        };
        if !self.has_special {
            return;
        }
        let copies = if self.is_percpu() { ctx.nr_cpus } else { 1 };
        for (index, cpu) in
            (0..array.entries).flat_map(|index| (0..copies).map(move |cpu| (index, cpu)))
        {
            let at = array.element(index, cpu).expect("element of the array");
            ctx.release(self.instance, &self.def.special, at);
        }
    }

    /// Returns the address of the value that belongs to an owner (a task or cgroup). With `create`,
    /// allocates and zeroes a missing value, and fills it from `init`.
    pub(crate) fn storage_get(
        &mut self,
        ctx: &mut MapCtx<'_>,
        owner: u64,
        create: bool,
        init: Source<'_>,
    ) -> MapResult<u64> {
        let size = u64::from(self.stride);
        let MapKind::Storage(_, storage) = &mut self.kind else {
            return Err(EINVAL);
        };
        if let Some(value) = storage.get(owner) {
            return Ok(value);
        }
        if !create {
            return Err(ENOENT);
        }
        let value = ctx.mem.alloc(size, 8).map_err(|_| ENOMEM)?;
        storage.insert(owner, value);
        ctx.fill(&self.def, value, init);
        Ok(value)
    }

    pub(crate) fn storage_delete(&mut self, ctx: &mut MapCtx<'_>, owner: u64) -> MapResult<()> {
        let size = u64::from(self.stride);
        let MapKind::Storage(kind, storage) = &mut self.kind else {
            return Err(EINVAL);
        };
        let value = storage.remove(owner).ok_or(ENOENT)?;
        ctx.in_place.forget_storage(*kind, self.addr, owner);
        if self.has_special {
            ctx.release(self.instance, &self.def.special, value);
        }
        ctx.mem.free(value, size);
        Ok(())
    }

    fn has_spin_lock(&self) -> bool {
        self.def.special.iter().any(|field| field.kind == SpecialKind::SpinLock)
    }
}

/// Returns a key of at most 8 bytes as the number that machine code reads.
#[inline]
pub(crate) fn in_place_key(key: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes[..key.len()].copy_from_slice(key);
    u64::from_le_bytes(bytes)
}

/// Returns the index that an array's key stands for; None if the key does not have 4 bytes.
#[inline]
fn key_index(key: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(key.try_into().ok()?))
}

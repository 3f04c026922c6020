// SPDX-License-Identifier: GPL-2.0-only
//! User-space view of maps: `bpf(2)`, mmap, ring buffer and arena access by a scheduler's
//! user-space part.
//!
//! Owns: buffer sizes and errnos of the syscall's map commands. Does not: model file descriptors.
//!
//! After an operation that may drop a reference or a timer, the caller calls `vm::release_dropped`.
//! The next invocation of a program makes the same call.

use super::ops::Cpus;
use super::value::Source;
use super::{Map, MapId, MapKind, MapResult, map_type};
use crate::errno::*;
use crate::mem::{PAGE, Perm};
use crate::vm::{FuncId, Vm};

impl Vm {
    pub fn map(&self, id: MapId) -> Option<&Map> {
        self.maps.get(id)
    }

    /// Returns the number of bytes that user space exchanges per value. Per-CPU maps exchange one
    /// copy per CPU, each padded to 8 bytes.
    pub fn map_value_len(&self, id: MapId) -> MapResult<usize> {
        let map = self.maps.get(id).ok_or(EBADF)?;
        Ok(if map.is_percpu() {
            map.stride as usize * self.nr_cpus as usize
        } else {
            map.def.value_size as usize
        })
    }

    /// Returns address and length of the memory that mmap gives: an array's values or an arena's
    /// pages.
    pub fn map_area(&self, id: MapId) -> MapResult<(u64, u64)> {
        match &self.maps.get(id).ok_or(EBADF)?.kind {
            MapKind::Array(array) => Ok((array.base, array.len())),
            MapKind::Arena(arena) => Ok((arena.start, arena.pages * PAGE)),
            _ => Err(EINVAL),
        }
    }

    /// Returns a map that user space may change; EPERM if it is frozen.
    fn changeable_map(&mut self, id: MapId) -> MapResult<&mut Map> {
        let map = self.maps.get_mut(id).ok_or(EBADF)?;
        if map.frozen { Err(EPERM) } else { Ok(map) }
    }

    /// Models BPF_MAP_FREEZE: refuses later updates from user space.
    pub fn freeze_map(&mut self, id: MapId) -> MapResult<()> {
        self.maps.get_mut(id).ok_or(EBADF)?.frozen = true;
        Ok(())
    }

    pub fn map_lookup(&self, id: MapId, key: &[u8]) -> MapResult<Vec<u8>> {
        let map = self.maps.get(id).ok_or(EBADF)?;
        if let MapKind::Queue(queue) = &map.kind {
            let mut out = vec![0; map.def.value_size as usize];
            return queue.peek(&mut out).map(|()| out);
        }
        let value = self.value_addr(map, key)?;
        let read = |at: u64| self.mem.host_slice::<u8>(at, map.def.value_size as usize);
        if map.holds_maps() {
            let inner = *self.mem.host_ref::<u64>(value);
            let inner = self.maps.iter().find(|map| map.addr == inner).ok_or(ENOENT)?;
            return Ok(inner.id.0.to_ne_bytes().to_vec());
        }
        if !map.is_percpu() {
            return Ok(read(value).to_vec());
        }
        let mut out = Vec::new();
        for cpu in 0..self.nr_cpus {
            out.extend_from_slice(read(self.copy_addr(map, key, value, cpu)?));
            out.resize(out.len().next_multiple_of(8), 0);
        }
        Ok(out)
    }

    /// Returns one CPU's copy of a per-CPU value.
    pub fn map_lookup_cpu(&self, id: MapId, key: &[u8], cpu: u32) -> MapResult<Vec<u8>> {
        let map = self.maps.get(id).filter(|map| map.is_percpu()).ok_or(EINVAL)?;
        if cpu >= self.nr_cpus {
            return Err(ERANGE);
        }
        let value = self.value_addr(map, key)?;
        let at = self.copy_addr(map, key, value, cpu)?;
        Ok(self.mem.host_slice::<u8>(at, map.def.value_size as usize).to_vec())
    }

    pub fn map_update(&mut self, id: MapId, key: &[u8], value: &[u8], flags: u64) -> MapResult<()> {
        self.changeable_map(id)?;
        let len = self.map_value_len(id)?;
        let (maps, mut ctx) = self.split_maps();
        let map = maps.get_mut(id).ok_or(EBADF)?;
        if let MapKind::Queue(queue) = &mut map.kind {
            if value.len() != len {
                return Err(EINVAL);
            }
            queue.grow(ctx.mem)?;
            return queue.push(value, flags);
        }
        if key.len() != map.def.key_size as usize || value.len() != len || map.holds_maps() {
            return Err(EINVAL);
        }
        map.update(&mut ctx, key, Source::Bytes(value), flags, Cpus::Each)
    }

    /// Writes one CPU's copy of a per-CPU value.
    pub fn map_update_cpu(
        &mut self,
        id: MapId,
        key: &[u8],
        value: &[u8],
        cpu: u32,
    ) -> MapResult<()> {
        self.changeable_map(id)?;
        let (maps, mut ctx) = self.split_maps();
        let map = maps.get_mut(id).filter(|map| map.is_percpu()).ok_or(EINVAL)?;
        let sizes_fit =
            key.len() == map.def.key_size as usize && value.len() == map.def.value_size as usize;
        if !sizes_fit {
            return Err(EINVAL);
        }
        if cpu >= ctx.nr_cpus {
            return Err(ERANGE);
        }
        map.update(&mut ctx, key, Source::Bytes(value), 0, Cpus::One(cpu))
    }

    pub fn map_delete(&mut self, id: MapId, key: &[u8]) -> MapResult<()> {
        self.changeable_map(id)?;
        let (maps, mut ctx) = self.split_maps();
        let map = maps.get_mut(id).ok_or(EBADF)?;
        if key.len() != map.def.key_size as usize {
            return Err(EINVAL);
        }
        map.delete(&mut ctx, key)
    }

    /// Returns the key after `key`; the first key if `key` is None or absent; ENOENT after the last
    /// key.
    pub fn map_next_key(&self, id: MapId, key: Option<&[u8]>) -> MapResult<Vec<u8>> {
        let map = self.maps.get(id).ok_or(EBADF)?;
        match &map.kind {
            MapKind::Array(array) => {
                let at = key.and_then(|key| key.try_into().ok()).map(u32::from_ne_bytes);
                let next = at.filter(|&at| at < array.entries).map_or(0, |at| at + 1);
                if next >= array.entries { Err(ENOENT) } else { Ok(next.to_ne_bytes().to_vec()) }
            }
            MapKind::Hash(hash) => {
                let key = key.filter(|key| key.len() == map.def.key_size as usize);
                hash.next_key(&self.mem, key).ok_or(ENOENT)
            }
            MapKind::Arena(_) => Err(EOPNOTSUPP),
            MapKind::Ringbuf(_) | MapKind::UserRingbuf(_) | MapKind::Storage(..) => Err(ENOTSUPP),
            MapKind::Queue(_) | MapKind::PerfEvents | MapKind::Progs(_) => Err(EINVAL),
        }
    }

    /// Returns all keys of a map, in the map's order.
    pub fn map_keys(&self, id: MapId) -> MapResult<Vec<Vec<u8>>> {
        let mut keys: Vec<Vec<u8>> = Vec::new();
        loop {
            match self.map_next_key(id, keys.last().map(Vec::as_slice)) {
                Ok(key) => keys.push(key),
                Err(ENOENT) => return Ok(keys),
                Err(errno) => return Err(errno),
            }
        }
    }

    /// Models BPF_MAP_LOOKUP_AND_DELETE_ELEM for a queue or stack.
    pub fn map_pop(&mut self, id: MapId) -> MapResult<Vec<u8>> {
        let map = self.changeable_map(id)?;
        let MapKind::Queue(queue) = &mut map.kind else {
            return Err(EINVAL);
        };
        let mut out = vec![0; map.def.value_size as usize];
        queue.pop(&mut out).map(|()| out)
    }

    /// Returns the number of elements of a hash, queue or storage map, or the size of an array.
    pub fn map_len(&self, id: MapId) -> MapResult<u64> {
        Ok(match &self.maps.get(id).ok_or(EBADF)?.kind {
            MapKind::Array(array) => array.entries.into(),
            MapKind::Hash(hash) => hash.len().into(),
            MapKind::Queue(queue) => queue.len().into(),
            MapKind::Storage(_, storage) => storage.len() as u64,
            _ => return Err(EINVAL),
        })
    }

    /// Puts a map into a map of maps. The inner map's type and sizes must match the template of the
    /// outer map.
    pub fn map_set_inner(&mut self, outer: MapId, key: &[u8], inner: MapId) -> MapResult<()> {
        self.changeable_map(outer)?;
        let template = self.maps.get(outer).and_then(|map| map.def.inner.clone()).ok_or(EINVAL)?;
        let target = self.maps.get(inner).ok_or(EBADF)?;
        let same = target.def.map_type == template.map_type
            && target.def.key_size == template.key_size
            && target.def.value_size == template.value_size;
        let resizable = template.map_type != map_type::ARRAY
            || template.map_flags & super::map_flag::INNER_MAP != 0
            || template.max_entries == target.def.max_entries;
        if !same || !resizable {
            return Err(EINVAL);
        }
        let addr = target.addr;
        self.set_slot(outer, key, addr)
    }

    fn set_slot(&mut self, outer: MapId, key: &[u8], addr: u64) -> MapResult<()> {
        let (maps, ctx) = self.split_maps();
        let map = maps.get_mut(outer).ok_or(EBADF)?;
        let slot = match &mut map.kind {
            MapKind::Array(array) => {
                let index = u32::from_ne_bytes(key.try_into().map_err(|_| EINVAL)?);
                array.element(index, 0).ok_or(E2BIG)?
            }
            MapKind::Hash(hash) if key.len() == map.def.key_size as usize => {
                match hash.lookup(ctx.mem, key) {
                    Some(slot) => slot,
                    None => match hash.insert(ctx.mem, key).map_err(|_| ENOMEM)? {
                        super::hash::Insertion::Made(slot) => slot,
                        super::hash::Insertion::Full => return Err(E2BIG),
                    },
                }
            }
            _ => return Err(EINVAL),
        };
        *ctx.mem.host_mut::<u64>(slot) = addr;
        Ok(())
    }

    /// Puts a function into a PROG_ARRAY, as the target of tail calls with this index.
    pub fn prog_array_set(&mut self, id: MapId, index: u32, func: FuncId) -> MapResult<()> {
        let map = self.changeable_map(id)?;
        let MapKind::Progs(progs) = &mut map.kind else {
            return Err(EINVAL);
        };
        if index >= map.def.max_entries {
            return Err(E2BIG);
        }
        progs.insert(index, func);
        Ok(())
    }

    /// Consumes the next committed record of a RINGBUF.
    pub fn ringbuf_consume(&mut self, id: MapId) -> MapResult<Option<Vec<u8>>> {
        let map = self.maps.get_mut(id).ok_or(EBADF)?;
        let MapKind::Ringbuf(ring) = &mut map.kind else {
            return Err(EINVAL);
        };
        Ok(ring.consume(&self.mem))
    }

    /// Appends a record to a USER_RINGBUF.
    pub fn user_ringbuf_produce(&mut self, id: MapId, record: &[u8]) -> MapResult<()> {
        let map = self.maps.get_mut(id).ok_or(EBADF)?;
        let MapKind::UserRingbuf(ring) = &mut map.kind else {
            return Err(EINVAL);
        };
        ring.produce(&mut self.mem, record)
    }

    /// Returns the address of a task's or cgroup's value in a storage map, given the owner's
    /// address.
    pub fn storage_lookup(&self, id: MapId, owner: u64) -> MapResult<u64> {
        match &self.maps.get(id).ok_or(EBADF)?.kind {
            MapKind::Storage(_, storage) => storage.get(owner).ok_or(ENOENT),
            _ => Err(EINVAL),
        }
    }

    /// Sets the value of an owner. The caller has checked that the owner is alive.
    pub fn storage_update(&mut self, id: MapId, owner: u64, value: &[u8]) -> MapResult<()> {
        self.changeable_map(id)?;
        let (maps, mut ctx) = self.split_maps();
        let map = maps.get_mut(id).ok_or(EBADF)?;
        if value.len() != map.def.value_size as usize {
            return Err(EINVAL);
        }
        let at = map.storage_get(&mut ctx, owner, true, Source::Zero)?;
        ctx.fill(&map.def, at, Source::Bytes(value));
        Ok(())
    }

    pub fn storage_delete(&mut self, id: MapId, owner: u64) -> MapResult<()> {
        self.changeable_map(id)?;
        let (maps, mut ctx) = self.split_maps();
        maps.get_mut(id).ok_or(EBADF)?.storage_delete(&mut ctx, owner)
    }

    /// Allocates pages of an arena at an address, or anywhere for 0. Returns the address of the
    /// first page.
    pub fn arena_alloc(&mut self, id: MapId, addr: u64, pages: u32) -> MapResult<u64> {
        let map = self.maps.get_mut(id).ok_or(EBADF)?;
        let MapKind::Arena(arena) = &mut map.kind else {
            return Err(EINVAL);
        };
        arena.alloc(&mut self.mem, addr, pages).ok_or(ENOMEM)
    }

    /// Models an access of user space to arena memory: allocates missing pages, as a page fault
    /// does.
    pub fn arena_touch(&mut self, id: MapId, addr: u64, len: u64) -> MapResult<()> {
        let map = self.maps.get_mut(id).ok_or(EBADF)?;
        let MapKind::Arena(arena) = &mut map.kind else {
            return Err(EINVAL);
        };
        arena.fault_in(&mut self.mem, addr, len)
    }

    /// Writes to readable guest memory as user space or the loader may, even where programs may not
    /// write.
    pub fn poke(&mut self, addr: u64, bytes: &[u8]) -> MapResult<()> {
        let readable = self.mem.allows(addr, bytes.len() as u64, crate::fault::Access::Load);
        if !readable || self.mem.perm(addr) == Perm::None {
            return Err(EFAULT);
        }
        self.mem.host_slice_mut::<u8>(addr, bytes.len()).copy_from_slice(bytes);
        Ok(())
    }

    fn value_addr(&self, map: &Map, key: &[u8]) -> MapResult<u64> {
        if key.len() != map.def.key_size as usize {
            return Err(EINVAL);
        }
        match &map.kind {
            MapKind::Array(array) => {
                let index = u32::from_ne_bytes(key.try_into().map_err(|_| EINVAL)?);
                array.element(index, 0).ok_or(ENOENT)
            }
            MapKind::Hash(hash) => hash.peek(&self.mem, key).ok_or(ENOENT),
            MapKind::Arena(_) => Err(EINVAL),
            MapKind::PerfEvents => Err(EOPNOTSUPP),
            _ => Err(ENOTSUPP),
        }
    }

    /// Returns the address of one CPU's copy of a value, given the address of CPU 0's copy.
    fn copy_addr(&self, map: &Map, key: &[u8], value: u64, cpu: u32) -> MapResult<u64> {
        match &map.kind {
            MapKind::Array(array) => {
                let index = u32::from_ne_bytes(key.try_into().map_err(|_| EINVAL)?);
                array.element(index, cpu).ok_or(ENOENT)
            }
            _ => Ok(value + u64::from(map.stride) * u64::from(cpu)),
        }
    }
}

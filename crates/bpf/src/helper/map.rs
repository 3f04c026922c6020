// SPDX-License-Identifier: GPL-2.0-only
//! Map helpers: keys and values are guest pointers.
//!
//! Owns: reading keys, refusing maps of the wrong type. Does not: hold elements (see `crate::map`).

use super::HelperResult;
use super::status;
use crate::errno::*;
use crate::fault::Fault;
use crate::map::{Cpus, Map, MapCtx, MapKind, Source, in_place_key, map_type};
use crate::mem::Memory;
use crate::vm::{Host, Storage, Vm};

/// Longest key in bytes that is copied without an allocation.
const SHORT_KEY: usize = 64;

#[inline]
pub fn lookup<H: Host>(h: &mut H, map: u64, key: u64) -> HelperResult {
    let cpu = h.cpu();
    lookup_on(h.vm(), map, key, cpu)
}

pub fn lookup_percpu<H: Host>(h: &mut H, map: u64, key: u64, cpu: u64) -> HelperResult {
    let vm = h.vm();
    let cpu = cpu as u32;
    if cpu >= vm.nr_cpus {
        return Ok(0);
    }
    lookup_on(vm, map, key, cpu)
}

#[inline]
fn lookup_on(vm: &mut Vm, map: u64, key: u64, cpu: u32) -> HelperResult {
    let Some(found) = vm.maps.by_addr(map) else {
        return Err(no_map("bpf_map_lookup_elem", map));
    };
    let key = vm.mem.bytes(key, found.def.key_size.into())?;
    let value = found.lookup(&vm.mem, key, cpu);
    if value != 0 && found.short_key().is_some() {
        vm.in_place.note_element(map, in_place_key(key), value);
    }
    Ok(value)
}

/// Adds the cost of copying one value of a map to the instruction count.
#[inline]
fn work_on_value(vm: &mut Vm, map: u64) -> Result<(), Fault> {
    let size = vm.maps.by_addr(map).map_or(0, |found| found.def.value_size);
    vm.work(size.into())
}

pub fn update<H: Host>(h: &mut H, map: u64, key: u64, value: u64, flags: u64) -> HelperResult {
    let cpu = h.cpu();
    work_on_value(h.vm(), map)?;
    let (found, mut ctx) = find(h.vm(), "bpf_map_update_elem", map)?;
    if let MapKind::Queue(_) = found.kind {
        return Ok(neg(EINVAL));
    }
    if found.holds_maps() {
        return Err(Fault::bad_argument(
            "bpf_map_update_elem",
            "programs may not change a map of maps",
        ));
    }
    ctx.mem.bytes(value, found.def.value_size.into())?;
    let (mut short, mut long) = ([0; SHORT_KEY], Vec::new());
    let key = copy_key(ctx.mem, key, found, &mut short, &mut long)?;
    Ok(status(found.update(&mut ctx, key, Source::Guest(value), flags, Cpus::One(cpu))))
}

pub fn delete<H: Host>(h: &mut H, map: u64, key: u64) -> HelperResult {
    let (found, mut ctx) = find(h.vm(), "bpf_map_delete_elem", map)?;
    let (mut short, mut long) = ([0; SHORT_KEY], Vec::new());
    let key = copy_key(ctx.mem, key, found, &mut short, &mut long)?;
    Ok(status(found.delete(&mut ctx, key)))
}

pub fn push<H: Host>(h: &mut H, map: u64, value: u64, flags: u64) -> HelperResult {
    work_on_value(h.vm(), map)?;
    let (found, ctx) = find(h.vm(), "bpf_map_push_elem", map)?;
    let MapKind::Queue(queue) = &mut found.kind else {
        return Err(wrong("bpf_map_push_elem", "queue"));
    };
    if let Err(errno) = queue.grow(ctx.mem) {
        return Ok(neg(errno));
    }
    let value = ctx.mem.bytes(value, found.def.value_size.into())?;
    Ok(status(queue.push(value, flags)))
}

pub fn pop<H: Host>(h: &mut H, map: u64, value: u64) -> HelperResult {
    work_on_value(h.vm(), map)?;
    let (found, ctx) = find(h.vm(), "bpf_map_pop_elem", map)?;
    let MapKind::Queue(queue) = &mut found.kind else {
        return Err(wrong("bpf_map_pop_elem", "queue"));
    };
    let value = ctx.mem.bytes_mut(value, found.def.value_size.into())?;
    Ok(status(queue.pop(value)))
}

pub fn peek<H: Host>(h: &mut H, map: u64, value: u64) -> HelperResult {
    work_on_value(h.vm(), map)?;
    let (found, ctx) = find(h.vm(), "bpf_map_peek_elem", map)?;
    let MapKind::Queue(queue) = &found.kind else {
        return Err(wrong("bpf_map_peek_elem", "queue"));
    };
    let value = ctx.mem.bytes_mut(value, found.def.value_size.into())?;
    Ok(status(queue.peek(value)))
}

/// Models `bpf_task_storage_get` and `bpf_cgrp_storage_get`. Flag 1 creates a missing value.
pub fn storage_get<H: Host>(
    h: &mut H,
    id: u32,
    [map, owner, init, flags]: [u64; 4],
) -> HelperResult {
    let (call, kind) = match id {
        156 => ("bpf_task_storage_get", Storage::Task),
        _ => ("bpf_cgrp_storage_get", Storage::Cgroup),
    };
    let vm = h.vm();
    let Some(found) = vm.maps.by_addr(map) else {
        return Err(no_map(call, map));
    };
    match &found.kind {
        MapKind::Storage(of, storage) if *of == kind => {
            if flags & !1 != 0 || owner == 0 {
                return Ok(0);
            }
            if let Some(value) = storage.get(owner) {
                vm.in_place.note_storage(kind, map, owner, value);
                return Ok(value);
            }
        }
        _ => return Err(wrong(call, "local storage map")),
    }
    if flags & 1 == 0 || !h.owner_alive(kind, owner) {
        return Ok(0);
    }
    let (found, mut ctx) = find(h.vm(), call, map)?;
    let source = if init == 0 { Source::Zero } else { Source::Guest(init) };
    if init != 0 {
        ctx.mem.bytes(init, found.def.value_size.into())?;
    }
    Ok(found.storage_get(&mut ctx, owner, true, source).unwrap_or(0))
}

pub fn storage_delete<H: Host>(h: &mut H, id: u32, [map, owner]: [u64; 2]) -> HelperResult {
    let (call, kind) = match id {
        157 => ("bpf_task_storage_delete", Storage::Task),
        _ => ("bpf_cgrp_storage_delete", Storage::Cgroup),
    };
    let (found, mut ctx) = find(h.vm(), call, map)?;
    if found.storage_kind() != Some(kind) {
        return Err(wrong(call, "local storage map"));
    }
    if owner == 0 {
        return Ok(neg(EINVAL));
    }
    Ok(status(found.storage_delete(&mut ctx, owner)))
}

/// Models `bpf_perf_event_read` and `bpf_perf_event_read_value` on an array that holds no events:
/// every valid index gives -ENOENT.
pub fn perf_event_read<H: Host>(
    h: &mut H,
    id: u32,
    [map, flags, buf, size]: [u64; 4],
) -> HelperResult {
    const INDEX: u64 = 0xffff_ffff;
    const VALUE_SIZE: u64 = 24;
    let cpu = u64::from(h.cpu());
    let (found, ctx) = find(h.vm(), "bpf_perf_event_read", map)?;
    if !matches!(found.kind, MapKind::PerfEvents) {
        return Err(wrong("bpf_perf_event_read", "perf event array"));
    }
    let index = if flags & INDEX == INDEX { cpu } else { flags & INDEX };
    let errno = if (id == 55 && size != VALUE_SIZE) || flags & !INDEX != 0 {
        EINVAL
    } else if index >= u64::from(found.def.max_entries) {
        E2BIG
    } else {
        ENOENT
    };
    if id == 55 {
        ctx.mem.bytes_mut(buf, size)?.fill(0);
    }
    Ok(neg(errno))
}

/// Returns the map that a guest pointer stands for, and the other parts of the machine that map
/// operations need.
pub(super) fn find<'v>(
    vm: &'v mut Vm,
    call: &'static str,
    map: u64,
) -> Result<(&'v mut Map, MapCtx<'v>), Fault> {
    let (maps, ctx) = vm.split_maps();
    match maps.by_addr(map) {
        Some(found) => Ok((found, ctx)),
        None => Err(no_map(call, map)),
    }
}

/// Copies the key of a map operation out of guest memory, because the operation may overwrite that
/// memory.
fn copy_key<'k>(
    mem: &Memory,
    key: u64,
    map: &Map,
    short: &'k mut [u8; SHORT_KEY],
    long: &'k mut Vec<u8>,
) -> Result<&'k [u8], Fault> {
    let bytes = mem.bytes(key, map.def.key_size.into())?;
    match short.get_mut(..bytes.len()) {
        Some(to) => {
            to.copy_from_slice(bytes);
            Ok(to)
        }
        None => {
            long.extend_from_slice(bytes);
            Ok(long)
        }
    }
}

#[cold]
pub(super) fn no_map(call: &'static str, addr: u64) -> Fault {
    Fault::bad_argument(call, format!("{addr:#x} is not a map"))
}

#[cold]
pub(super) fn wrong(call: &'static str, what: &str) -> Fault {
    Fault::bad_argument(call, format!("the map is not a {what}"))
}

/// Returns whether `bpf_for_each_map_elem` can walk a map's elements.
pub(super) fn can_walk(map: &Map) -> bool {
    use map_type::*;
    matches!(
        map.def.map_type,
        ARRAY | PERCPU_ARRAY | HASH | PERCPU_HASH | LRU_HASH | LRU_PERCPU_HASH
    )
}

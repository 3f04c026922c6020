// SPDX-License-Identifier: GPL-2.0-only
//! Placing: maps and data sections get their addresses.
//!
//! Owns: creating an object's maps, and one array map per data section, as libbpf does; the initial
//! contents of all these maps.
//! Does not: reserve or protect memory itself (the maps do).

use super::error::LinkErrorKind;
use super::externs::ExternBinding;
use super::globals::Globals;
use crate::btf::special::{BtfSpecialField, BtfSpecialKind, KptrTag};
use crate::btf::{Btf, BtfKind, TypeId};
use crate::object::{MapSpec, Object, SectionKind, map_type_name};
use scxlab_bpf::errno::EINVAL;
use scxlab_bpf::map::{self, MapDef, MapError, MapId, is_modelled, map_flag, map_type};
use scxlab_bpf::mem::PAGE;
use scxlab_bpf::vm::{InstanceId, KptrKind, Vm};

/// A data section in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlacedSection {
    pub addr: u64,
    pub size: u64,
    /// The map that holds the section; for arena variables, the arena map.
    pub map: MapId,
}

pub fn create_maps(
    vm: &mut Vm,
    instance: InstanceId,
    object: &Object,
    max_entries: &[Option<u32>],
    target: &Btf,
) -> Result<Vec<MapId>, LinkErrorKind> {
    let mut ids = Vec::with_capacity(object.maps.len());
    for (spec, entries) in object.maps.iter().zip(max_entries) {
        let mut def = definition(spec, target, vm.nr_cpus);
        if let Some(entries) = entries {
            def.max_entries = capacity(spec.map_type, *entries, vm.nr_cpus);
        }
        ids.push(vm.create_map(instance, &def).map_err(|error| with_type(error, spec))?);
    }
    for (spec, outer) in object.maps.iter().zip(&ids) {
        for (slot, inner) in &spec.init_slots {
            vm.map_set_inner(*outer, &slot.to_le_bytes(), ids[*inner]).map_err(|errno| {
                let why = format!("slot {slot} cannot hold `{}`", object.maps[*inner].name);
                MapError { map: spec.name.clone(), errno, why, unmodelled: false }
            })?;
        }
    }
    Ok(ids)
}

/// Names the type of a map whose type is not modelled.
fn with_type(error: MapError, spec: &MapSpec) -> MapError {
    if is_modelled(spec.map_type) {
        return error;
    }
    let why = format!("maps of the type {} are not modelled", map_type_name(spec.map_type));
    MapError { why, ..error }
}

/// Translates a map's definition. The target's types decide the kind of its kptrs.
pub fn definition(spec: &MapSpec, target: &Btf, nr_cpus: u32) -> MapDef {
    MapDef {
        name: spec.name.clone(),
        map_type: spec.map_type,
        key_size: spec.key_size,
        value_size: spec.value_size,
        max_entries: capacity(spec.map_type, spec.max_entries, nr_cpus),
        map_flags: spec.map_flags,
        map_extra: spec.map_extra,
        numa_node: (spec.map_flags & map_flag::NUMA_NODE != 0).then_some(spec.numa_node),
        inner: spec.inner.as_ref().map(|inner| Box::new(definition(inner, target, nr_cpus))),
        special: special_fields(&spec.special, target),
    }
}

/// Returns the capacity that libbpf gives a map. libbpf rounds a ring buffer up to a power of two
/// of pages, and gives a perf event array without a capacity one entry per CPU.
fn capacity(map_type: u32, entries: u32, nr_cpus: u32) -> u32 {
    match map_type {
        map_type::RINGBUF | map_type::USER_RINGBUF if entries > 0 => {
            let pages = u64::from(entries).div_ceil(PAGE).next_power_of_two();
            u32::try_from(pages * PAGE).unwrap_or(entries)
        }
        map_type::PERF_EVENT_ARRAY if entries == 0 => nr_cpus,
        _ => entries,
    }
}

/// Translates special fields into the form that the maps use.
pub fn special_fields(fields: &[BtfSpecialField], target: &Btf) -> Vec<map::SpecialField> {
    fields
        .iter()
        .map(|f| map::SpecialField { offset: f.offset, kind: special_kind(f, target) })
        .collect()
}

fn special_kind(field: &BtfSpecialField, target: &Btf) -> map::SpecialKind {
    use map::SpecialKind as To;
    match &field.kind {
        BtfSpecialKind::Timer => To::Timer,
        BtfSpecialKind::SpinLock => To::SpinLock,
        BtfSpecialKind::ResSpinLock => To::ResSpinLock,
        BtfSpecialKind::WorkQueue | BtfSpecialKind::TaskWork => To::Opaque { size: field.size },
        BtfSpecialKind::Refcount => To::Refcount,
        BtfSpecialKind::RbNode => To::RbNode,
        BtfSpecialKind::ListNode => To::ListNode,
        BtfSpecialKind::RbRoot(c) => To::RbRoot { local_type: c.ty_id.0, node_offset: c.node_off },
        BtfSpecialKind::ListHead(c) => {
            To::ListHead { local_type: c.ty_id.0, node_offset: c.node_off }
        }
        BtfSpecialKind::Kptr { tag: KptrTag::Untrusted | KptrTag::User, .. } => To::Untrusted,
        BtfSpecialKind::Kptr { pointee, pointee_id, .. } => {
            To::Kptr(kptr_kind(pointee, *pointee_id, target))
        }
    }
}

/// Kind of a kptr. If the target's types contain the pointee struct, the kernel owns such objects.
/// Otherwise the program allocates them.
fn kptr_kind(pointee: &str, local: TypeId, target: &Btf) -> KptrKind {
    match target.find(pointee, BtfKind::Struct) {
        Some(id) => KptrKind::Kernel(id.0),
        None => KptrKind::Local(local.0),
    }
}

pub fn create_sections(
    vm: &mut Vm,
    instance: InstanceId,
    object: &Object,
    globals: &Globals,
    maps: &[MapId],
    target: &Btf,
) -> Result<Vec<PlacedSection>, LinkErrorKind> {
    let mut placed = Vec::with_capacity(object.sections.len());
    for (index, section) in object.sections.iter().enumerate() {
        let size = globals.content(index).size;
        let place = if section.kind == SectionKind::Arena {
            place_in_arena(vm, object, maps, size)?
        } else {
            let special = match section.datasec {
                Some(datasec) => special_fields(&object.btf.special_globals(datasec)?, target),
                None => Vec::new(),
            };
            let frozen = section.kind == SectionKind::Rodata;
            place_as_map(vm, instance, &section.name, size, frozen, special)?
        };
        fill(vm, place, &section.bytes, globals, index);
        placed.push(place);
    }
    Ok(placed)
}

/// Places the configuration values that externs refer to; returns their address, or 0 if there are
/// none.
pub fn create_kconfig(
    vm: &mut Vm,
    instance: InstanceId,
    externs: &[ExternBinding],
) -> Result<u64, LinkErrorKind> {
    let values = || {
        externs.iter().filter_map(|e| match e {
            ExternBinding::Kconfig { offset, bytes } => Some((*offset, bytes)),
            _ => None,
        })
    };
    let size = values().map(|(offset, bytes)| offset + bytes.len() as u64).max().unwrap_or(0);
    if size == 0 {
        return Ok(0);
    }
    let place = place_as_map(vm, instance, ".kconfig", size, true, Vec::new())?;
    for (offset, bytes) in values() {
        write(vm, place.addr + offset, bytes);
    }
    Ok(place.addr)
}

fn place_as_map(
    vm: &mut Vm,
    instance: InstanceId,
    name: &str,
    size: u64,
    read_only: bool,
    special: Vec<map::SpecialField>,
) -> Result<PlacedSection, LinkErrorKind> {
    let refuse = |why: &str| MapError {
        map: name.to_owned(),
        errno: EINVAL,
        why: why.to_owned(),
        unmodelled: false,
    };
    let def = MapDef {
        name: name.to_owned(),
        map_type: map_type::ARRAY,
        key_size: 4,
        value_size: u32::try_from(size).map_err(|_| refuse("the section is over 4 GiB"))?,
        max_entries: 1,
        map_flags: map_flag::MMAPABLE | if read_only { map_flag::RDONLY_PROG } else { 0 },
        special,
        ..MapDef::default()
    };
    let map = vm.create_map(instance, &def)?;
    let (addr, _) = vm.map_area(map).map_err(|_| refuse("the section has no address"))?;
    if read_only {
        vm.freeze_map(map).map_err(|_| refuse("the section cannot be frozen"))?;
    }
    Ok(PlacedSection { addr, size, map })
}

/// Places arena variables in the last pages of the arena.
fn place_in_arena(
    vm: &mut Vm,
    object: &Object,
    maps: &[MapId],
    size: u64,
) -> Result<PlacedSection, LinkErrorKind> {
    let arena = object.maps.iter().position(|m| m.map_type == map_type::ARENA);
    let map = arena
        .map(|index| maps[index])
        .ok_or_else(|| LinkErrorKind::Arena("no arena".to_owned()))?;
    let pages = size.div_ceil(PAGE);
    let area = vm.map_area(map).map_err(|_| LinkErrorKind::Arena("no arena".to_owned()))?;
    let (start, total) = (area.0, area.1 / PAGE);
    let first = total.checked_sub(pages).ok_or_else(|| {
        LinkErrorKind::Arena(format!(
            "an arena of {total} pages cannot hold {size} bytes of variables"
        ))
    })?;
    let addr = start + first * PAGE;
    vm.arena_touch(map, addr, size).map_err(|errno| {
        LinkErrorKind::Arena(format!("its variables cannot be placed (errno {errno})"))
    })?;
    Ok(PlacedSection { addr, size, map })
}

fn fill(vm: &mut Vm, place: PlacedSection, base: &[u8], globals: &Globals, index: usize) {
    let n = (base.len() as u64).min(place.size) as usize;
    write(vm, place.addr, &base[..n]);
    for (offset, bytes) in globals.content(index).written() {
        write(vm, place.addr + offset, bytes);
    }
}

/// Writes into the guest's memory as the simulator, without regard to the permissions of programs.
fn write(vm: &mut Vm, addr: u64, bytes: &[u8]) {
    vm.mem.host_slice_mut::<u8>(addr, bytes.len()).copy_from_slice(bytes);
}

// SPDX-License-Identifier: GPL-2.0-only
//! Map definitions: structs in section `.maps` whose member types encode the attributes.
//!
//! Owns: reading the definitions, inner maps and initial slots included.
//! Does not: create maps. The reader accepts and ignores pinning, because no map outlives a
//! simulation.
//! Models: libbpf `parse_btf_map_def()`, v7.3, in its strict form.

use super::elf::Elf;
use super::error::ObjectErrorKind;
use super::sections::{DataSection, SectionKind};
use crate::btf::special::BtfSpecialField;
use crate::btf::{Btf, BtfKind, Member, TypeId};

/// Definition of a map in the object. A frontend may change `max_entries` before load.
#[derive(Clone, Debug)]
pub struct MapSpec {
    pub name: String,
    pub map_type: u32,
    pub key_size: u32,
    pub value_size: u32,
    pub max_entries: u32,
    pub map_flags: u32,
    pub map_extra: u64,
    pub numa_node: u32,
    pub key_ty: Option<TypeId>,
    pub value_ty: Option<TypeId>,
    /// Template of the maps that a map of maps holds.
    pub inner: Option<Box<MapSpec>>,
    /// Slots of a map of maps that are filled at load: (slot, index of the inner map among the
    /// object's maps).
    pub init_slots: Vec<(u32, usize)>,
    /// Special fields of a value, such as timers, locks and kernel pointers.
    pub special: Vec<BtfSpecialField>,
    /// Byte offset of the definition in `.maps`; `size` is its length there.
    offset: u64,
    size: u64,
    /// Offset of the `values` member in the definition.
    values_off: Option<u64>,
}

pub const TYPE_PROG_ARRAY: u32 = 3;
pub const TYPE_ARRAY_OF_MAPS: u32 = 12;
pub const TYPE_HASH_OF_MAPS: u32 = 13;
pub const TYPE_ARENA: u32 = 33;

const SECTION: &str = ".maps";
const MAX_MAPS: usize = 1024;
const MAX_INIT_SLOTS: u64 = 1 << 20;

pub fn collect(elf: &Elf<'_>, btf: &Btf) -> Result<Vec<MapSpec>, ObjectErrorKind> {
    let Some(section) = elf.section_by_name(SECTION) else {
        return Ok(Vec::new());
    };
    let Some(datasec) = super::datasec(btf, SECTION) else {
        return Err(ObjectErrorKind::map("?", "section .maps has no entry in the type table"));
    };
    let vars: Vec<_> = btf.section_vars(datasec).collect();
    if vars.len() > MAX_MAPS {
        return Err(ObjectErrorKind::TooMany {
            section: SECTION.to_owned(),
            things: "maps",
            max: MAX_MAPS,
        });
    }
    let mut maps = Vec::with_capacity(vars.len());
    for var in vars {
        let name = btf.name(var.ty);
        let end = u64::from(var.offset) + u64::from(var.size);
        if name.is_empty() || btf.kind(var.ty) != BtfKind::Var {
            return Err(ObjectErrorKind::map(
                "?",
                format!("the entry at offset {} of .maps is not a variable", var.offset),
            ));
        }
        if end > elf.sections[section].size {
            return Err(ObjectErrorKind::map(name, "its definition lies past the end of .maps"));
        }
        if btf.linkage(var.ty) != Some(1) {
            return Err(ObjectErrorKind::map(
                name,
                "maps must be global variables, neither static nor extern",
            ));
        }
        let ty = btf.ty(var.ty)?.target().unwrap_or_default();
        let mut map = parse_def(btf, name, ty, false)?;
        map.offset = u64::from(var.offset);
        map.size = u64::from(var.size);
        maps.push(map);
    }
    collect_init_slots(elf, section, &mut maps)?;
    Ok(maps)
}

/// Checks that the object has at most one arena, and that it has one if it has arena variables.
pub fn check_arena(maps: &[MapSpec], sections: &[DataSection]) -> Result<(), ObjectErrorKind> {
    let mut arenas = maps.iter().filter(|m| m.map_type == TYPE_ARENA);
    let first = arenas.next();
    if let (Some(first), Some(second)) = (first, arenas.next()) {
        return Err(ObjectErrorKind::TwoArenas {
            first: first.name.clone(),
            second: second.name.clone(),
        });
    }
    match sections.iter().find(|s| s.kind == SectionKind::Arena) {
        Some(section) if first.is_none() => {
            Err(ObjectErrorKind::NoArena { section: section.name.clone() })
        }
        _ => Ok(()),
    }
}

impl MapSpec {
    pub fn contains(&self, offset: u64) -> bool {
        offset >= self.offset && offset < self.offset + self.size
    }

    pub fn starts_at(&self, offset: u64) -> bool {
        self.offset == offset
    }

    pub fn is_map_of_maps(&self) -> bool {
        matches!(self.map_type, TYPE_ARRAY_OF_MAPS | TYPE_HASH_OF_MAPS)
    }
}

fn parse_def(
    btf: &Btf,
    name: &str,
    ty: TypeId,
    is_inner: bool,
) -> Result<MapSpec, ObjectErrorKind> {
    let def = btf.resolve(ty)?;
    if btf.kind(def) != BtfKind::Struct {
        return Err(ObjectErrorKind::map(name, "its definition is not a struct"));
    }
    let mut map = MapSpec {
        name: name.to_owned(),
        map_type: 0,
        key_size: 0,
        value_size: 0,
        max_entries: 0,
        map_flags: 0,
        map_extra: 0,
        numa_node: 0,
        key_ty: None,
        value_ty: None,
        inner: None,
        init_slots: Vec::new(),
        special: Vec::new(),
        offset: 0,
        size: 0,
        values_off: None,
    };
    let last = btf.members(def).len().saturating_sub(1);
    for (index, member) in btf.members(def).enumerate() {
        if member.name == "values" && index != last {
            return Err(ObjectErrorKind::map(name, "member `values` must be the last one"));
        }
        parse_member(btf, &mut map, &member, is_inner)?;
    }
    if map.map_type == 0 {
        return Err(ObjectErrorKind::map(name, "its definition has no `type`"));
    }
    if let Some(value) = map.value_ty {
        map.special = btf.special_fields(value)?;
    }
    Ok(map)
}

fn parse_member(
    btf: &Btf,
    map: &mut MapSpec,
    member: &Member<'_>,
    is_inner: bool,
) -> Result<(), ObjectErrorKind> {
    match member.name {
        "type" => map.map_type = int_attr(btf, map, member)?,
        "max_entries" => map.max_entries = int_attr(btf, map, member)?,
        "map_flags" => map.map_flags = int_attr(btf, map, member)?,
        "numa_node" => map.numa_node = int_attr(btf, map, member)?,
        "map_extra" => map.map_extra = long_attr(btf, map, member)?,
        "key_size" => {
            let size = int_attr(btf, map, member)?;
            map.key_size = agree(map, "key", map.key_size, size)?;
        }
        "value_size" => {
            let size = int_attr(btf, map, member)?;
            map.value_size = agree(map, "value", map.value_size, size)?;
        }
        "key" => {
            let (ty, size) = type_attr(btf, map, member)?;
            map.key_size = agree(map, "key", map.key_size, size)?;
            map.key_ty = Some(ty);
        }
        "value" => {
            let (ty, size) = type_attr(btf, map, member)?;
            map.value_size = agree(map, "value", map.value_size, size)?;
            map.value_ty = Some(ty);
        }
        "values" => parse_values(btf, map, member, is_inner)?,
        "pinning" if is_inner => {
            return Err(ObjectErrorKind::map(&map.name, "inner maps cannot be pinned"));
        }
        "pinning" => {
            let how = int_attr(btf, map, member)?;
            if how > 1 {
                return Err(ObjectErrorKind::map(&map.name, format!("unknown pinning {how}")));
            }
        }
        other => {
            return Err(ObjectErrorKind::map(&map.name, format!("unknown attribute `{other}`")));
        }
    }
    Ok(())
}

/// Parses the member `values`: the type of the entries of a map of maps or of a program array.
fn parse_values(
    btf: &Btf,
    map: &mut MapSpec,
    member: &Member<'_>,
    is_inner: bool,
) -> Result<(), ObjectErrorKind> {
    if is_inner {
        return Err(ObjectErrorKind::map(&map.name, "maps of maps of maps are not supported"));
    }
    if !map.is_map_of_maps() && map.map_type != TYPE_PROG_ARRAY {
        return Err(ObjectErrorKind::map(
            &map.name,
            "`values` belongs to maps of maps and program arrays",
        ));
    }
    map.value_size = agree(map, "value", map.value_size, 4)?;
    map.values_off = Some(u64::from(member.bit_off) / 8);
    let array = btf.array(member.ty).filter(|a| a.len == 0).ok_or_else(|| {
        ObjectErrorKind::map(&map.name, "`values` is not an array without a length")
    })?;
    let ptr = btf.resolve(array.elem)?;
    let pointee = match (btf.kind(ptr), btf.ty(ptr)?.target()) {
        (BtfKind::Ptr, Some(target)) => btf.resolve(target)?,
        _ => return Err(ObjectErrorKind::map(&map.name, "`values` is not an array of pointers")),
    };
    match btf.kind(pointee) {
        BtfKind::FuncProto if map.map_type == TYPE_PROG_ARRAY => {}
        BtfKind::Struct if map.is_map_of_maps() => {
            let name = format!("{}.inner", map.name);
            map.inner = Some(Box::new(parse_def(btf, &name, pointee, true)?));
        }
        kind => {
            return Err(ObjectErrorKind::map(
                &map.name,
                format!("`values` holds unexpected {kind:?}"),
            ));
        }
    }
    Ok(())
}

/// Reads an attribute `__uint(name, N)`, which is a pointer to an array of N ints.
fn int_attr(btf: &Btf, map: &MapSpec, member: &Member<'_>) -> Result<u32, ObjectErrorKind> {
    let ptr = btf.resolve(member.ty)?;
    let target = match btf.kind(ptr) {
        BtfKind::Ptr => btf.ty(ptr)?.target(),
        _ => None,
    };
    target.and_then(|t| btf.array(t)).map(|a| a.len).ok_or_else(|| {
        ObjectErrorKind::map(&map.name, format!("attribute `{}` is not an integer", member.name))
    })
}

/// Reads an attribute `__ulong(name, N)`, which is an enum with the single value N.
fn long_attr(btf: &Btf, map: &MapSpec, member: &Member<'_>) -> Result<u64, ObjectErrorKind> {
    let ty = btf.resolve(member.ty)?;
    match btf.enumerators(ty).next() {
        Some(only) => Ok(only.value),
        None => int_attr(btf, map, member).map(u64::from),
    }
}

/// Reads an attribute `__type(name, T)`, which is a pointer to T.
fn type_attr(
    btf: &Btf,
    map: &MapSpec,
    member: &Member<'_>,
) -> Result<(TypeId, u32), ObjectErrorKind> {
    let ty = match (btf.kind(member.ty), btf.ty(member.ty)?.target()) {
        (BtfKind::Ptr, Some(target)) => target,
        _ => {
            let what = format!("attribute `{}` is not a pointer to a type", member.name);
            return Err(ObjectErrorKind::map(&map.name, what));
        }
    };
    Ok((ty, btf.size_of(ty)? as u32))
}

fn agree(map: &MapSpec, what: &str, before: u32, now: u32) -> Result<u32, ObjectErrorKind> {
    if before != 0 && before != now {
        let text = format!("conflicting {what} sizes {before} and {now}");
        return Err(ObjectErrorKind::map(&map.name, text));
    }
    Ok(now)
}

/// Collects the initial slots of maps of maps. A relocation in `.maps` names the map of a slot.
fn collect_init_slots(
    elf: &Elf<'_>,
    section: usize,
    maps: &mut [MapSpec],
) -> Result<(), ObjectErrorKind> {
    for reloc in elf.relocs(section) {
        let owner = maps.iter().position(|m| m.contains(reloc.offset));
        let symbol = elf.symbol(reloc.symbol);
        let (Some(owner), Some(symbol)) = (owner, symbol) else {
            return Err(ObjectErrorKind::map(
                "?",
                format!("relocation at offset {} lies in no map definition", reloc.offset),
            ));
        };
        let map = &maps[owner];
        if map.map_type == TYPE_PROG_ARRAY {
            return Err(ObjectErrorKind::map(
                &map.name,
                "initial programs of an array are not supported",
            ));
        }
        let start = match map.values_off {
            Some(off) if map.is_map_of_maps() => map.offset + off,
            _ => {
                return Err(ObjectErrorKind::map(
                    &map.name,
                    "only a map of maps can have initial values",
                ));
            }
        };
        let slot = reloc.offset.checked_sub(start).filter(|d| d % 8 == 0).map(|d| d / 8);
        let slot = slot.filter(|s| *s < MAX_INIT_SLOTS);
        let target =
            maps.iter().position(|m| symbol.section == Some(section) && m.starts_at(symbol.value));
        let (Some(slot), Some(target)) = (slot, target) else {
            let what = format!("initial value `{}` is not a map", symbol.name);
            return Err(ObjectErrorKind::map(&map.name, what));
        };
        maps[owner].init_slots.push((slot as u32, target));
    }
    Ok(())
}

/// The kernel's name of a map type, in lower case.
pub fn map_type_name(map_type: u32) -> &'static str {
    const NAMES: [&str; 35] = [
        "unspec",
        "hash",
        "array",
        "prog_array",
        "perf_event_array",
        "percpu_hash",
        "percpu_array",
        "stack_trace",
        "cgroup_array",
        "lru_hash",
        "lru_percpu_hash",
        "lpm_trie",
        "array_of_maps",
        "hash_of_maps",
        "devmap",
        "sockmap",
        "cpumap",
        "xskmap",
        "sockhash",
        "cgroup_storage",
        "reuseport_sockarray",
        "percpu_cgroup_storage",
        "queue",
        "stack",
        "sk_storage",
        "devmap_hash",
        "struct_ops",
        "ringbuf",
        "inode_storage",
        "task_storage",
        "bloom_filter",
        "user_ringbuf",
        "cgrp_storage",
        "arena",
        "insn_array",
    ];
    NAMES.get(map_type as usize).copied().unwrap_or("unknown")
}

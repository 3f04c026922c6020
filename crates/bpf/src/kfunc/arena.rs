// SPDX-License-Identifier: GPL-2.0-only
//! Allocation of arena pages by programs.

use crate::errno::*;
use crate::fault::Fault;
use crate::map::MapKind;
use crate::map::arena::Arena;
use crate::mem::Memory;
use crate::vm::Vm;

/// Models `bpf_arena_alloc_pages(map, addr, count, node, flags)`. Returns the first page's address,
/// or 0.
pub fn alloc(vm: &mut Vm, [map, addr, count, _node, flags]: [u64; 5]) -> Result<u64, Fault> {
    if flags != 0 || arena(vm, map).is_none_or(|(arena, _)| u64::from(count as u32) > arena.pages) {
        return Ok(0);
    }
    vm.work_on_pages(u64::from(count as u32))?;
    let Some((arena, mem)) = arena(vm, map) else {
        return Ok(0);
    };
    Ok(arena.alloc(mem, addr, count as u32).unwrap_or(0))
}

pub fn free(vm: &mut Vm, map: u64, addr: u64, count: u32) -> Result<u64, Fault> {
    let pages = arena(vm, map).map_or(0, |(arena, _)| arena.pages);
    vm.work_on_pages(u64::from(count).min(pages))?;
    if let Some((arena, mem)) = arena(vm, map).filter(|_| addr != 0) {
        arena.free(mem, addr, count);
    }
    Ok(0)
}

/// Models `bpf_arena_reserve_pages`: excludes a range from allocation.
pub fn reserve(vm: &mut Vm, map: u64, addr: u64, count: u32) -> Result<u64, Fault> {
    match arena(vm, map) {
        Some((arena, _)) => Ok(arena.reserve(addr, count).map_or_else(neg, |()| 0)),
        None => Ok(neg(EINVAL)),
    }
}

fn arena(vm: &mut Vm, map: u64) -> Option<(&mut Arena, &mut Memory)> {
    let (maps, ctx) = vm.split_maps();
    match &mut maps.by_addr(map)?.kind {
        MapKind::Arena(arena) => Some((arena, ctx.mem)),
        _ => None,
    }
}

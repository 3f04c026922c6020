// SPDX-License-Identifier: GPL-2.0-only
//! Helpers that call back into the program: `bpf_loop` and `bpf_for_each_map_elem`.

use super::HelperResult;
use super::map::{can_walk, no_map, wrong};
use crate::errno::*;
use crate::map::{Map, MapKind};
use crate::vm::{CallSite, Host, Vm, callback};

/// The kernel's BPF_MAX_LOOPS.
pub const MAX_LOOPS: u32 = 8 << 20;

pub fn bpf_loop<H: Host>(
    h: &mut H,
    site: CallSite,
    [count, func, ctx, flags]: [u64; 4],
) -> HelperResult {
    let count = count as u32;
    if flags != 0 {
        return Ok(neg(EINVAL));
    }
    if count > MAX_LOOPS {
        return Ok(neg(E2BIG));
    }
    for at in 0..count {
        if callback(h, site, func, [at.into(), ctx, 0, 0, 0])? != 0 {
            return Ok(u64::from(at) + 1);
        }
    }
    Ok(count.into())
}

/// Calls `func(map, key, value, ctx)` for each element until `func` returns non-zero. Returns the
/// number of calls. The walk does not visit elements of a hash that `func` has deleted or added.
pub fn for_each_map_elem<H: Host>(
    h: &mut H,
    site: CallSite,
    [map, func, ctx, flags]: [u64; 4],
) -> HelperResult {
    if flags != 0 {
        return Ok(neg(EINVAL));
    }
    let cpu = h.cpu();
    let vm = h.vm();
    let scratch = vm.callback_scratch(site.depth);
    let found = vm.maps.by_addr(map).ok_or_else(|| no_map("bpf_for_each_map_elem", map))?;
    if !can_walk(found) {
        return Err(wrong("bpf_for_each_map_elem", "array or hash"));
    }
    let id = found.id;
    // An array's elements have fixed addresses. The elements of a hash may come and go during the
    // walk, so the walk collects their addresses first.
    let array = if let MapKind::Array(array) = &found.kind { Some(*array) } else { None };
    let noted: Vec<u64> = match &found.kind {
        MapKind::Hash(hash) => hash.values().collect(),
        _ => Vec::new(),
    };
    vm.work(8 * noted.len() as u64)?;
    let of_array =
        array.into_iter().flat_map(|a| (0..a.entries).filter_map(move |at| a.element(at, 0)));
    let mut calls = 0;
    for value in of_array.chain(noted) {
        let vm = h.vm();
        let Some(copy) = vm.maps.get(id).and_then(|map| current_copy(vm, map, value, cpu)) else {
            continue;
        };
        let (map, key) = vm.callback_key(id, value, scratch);
        calls += 1;
        if callback(h, site, func, [map, key, copy, ctx, 0])? != 0 {
            break;
        }
    }
    Ok(calls)
}

/// Returns the address of `cpu`'s copy of a value, if the element still exists.
fn current_copy(vm: &Vm, map: &Map, value: u64, cpu: u32) -> Option<u64> {
    match &map.kind {
        MapKind::Array(array) => array.element(array.index_of(value), cpu),
        MapKind::Hash(hash) => {
            let key = vm.mem.host_slice::<u8>(hash.key_addr(value), map.def.key_size as usize);
            let alive = hash.peek(&vm.mem, key) == Some(value);
            let copy = if map.is_percpu() { u64::from(map.stride) * u64::from(cpu) } else { 0 };
            alive.then_some(value + copy)
        }
        _ => None,
    }
}

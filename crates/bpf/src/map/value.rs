// SPDX-License-Identifier: GPL-2.0-only
//! Values with fields that the kernel manages: copying around these fields, and releasing what they
//! hold.
//!
//! Owns: the equivalents of `copy_map_value()` and `bpf_obj_free_fields()` of v7.3. Does not: find
//! values.

use super::{Dropped, MapDef, SpecialField, SpecialKind};
use crate::jit::InPlace;
use crate::kfunc::Objects;
use crate::mem::Memory;
use crate::timer::Timers;
use crate::vm::{InstanceId, KptrKind};

/// Everything that a map operation may access besides the map.
pub(crate) struct MapCtx<'v> {
    pub mem: &'v mut Memory,
    pub timers: &'v mut Timers,
    pub objects: &'v mut Objects,
    pub dropped: &'v mut Vec<Dropped>,
    pub in_place: &'v mut InPlace,
    pub nr_cpus: u32,
}

/// Contents of a new value.
#[derive(Clone, Copy)]
pub(crate) enum Source<'a> {
    /// Guest memory that has been checked to be readable over the whole value.
    Guest(u64),
    Bytes(&'a [u8]),
    Zero,
}

impl MapCtx<'_> {
    /// Releases what a value holds and gives the value new contents. Managed fields other than
    /// locks become zero.
    pub fn replace(&mut self, owner: InstanceId, def: &MapDef, at: u64, source: Source<'_>) {
        self.release(owner, &def.special, at);
        self.fill(def, at, source);
    }

    /// Gives new contents to a value that stays, such as an element of an array. Cancels its timers
    /// and keeps its references.
    pub fn overwrite(&mut self, def: &MapDef, at: u64, source: Source<'_>) {
        self.fill(def, at, source);
        for field in def.special.iter().filter(|field| field.kind == SpecialKind::Timer) {
            let addr = at + u64::from(field.offset);
            self.release_timer(addr);
            self.mem.host_slice_mut::<u8>(addr, field.kind.size() as usize).fill(0);
        }
    }

    /// Copies a value except for its managed fields.
    pub fn fill(&mut self, def: &MapDef, at: u64, source: Source<'_>) {
        let mut start = 0;
        for field in &def.special {
            self.fill_part(at, start, field.offset.max(start), source);
            start = start.max(field.offset + field.kind.size());
        }
        self.fill_part(at, start, def.value_size, source);
    }

    fn fill_part(&mut self, at: u64, start: u32, end: u32, source: Source<'_>) {
        let len = (end - start) as usize;
        let to = at + u64::from(start);
        match source {
            Source::Guest(from) => {
                let from = from + u64::from(start);
                self.mem.host_copy(to, from, len);
            }
            Source::Bytes(bytes) => {
                let part = &bytes[start as usize..end as usize];
                self.mem.host_slice_mut::<u8>(to, len).copy_from_slice(part);
            }
            Source::Zero => self.mem.host_slice_mut::<u8>(to, len).fill(0),
        }
    }

    /// Releases what the managed fields of a value (or object) at `at` hold, and zeroes the fields
    /// other than locks.
    pub fn release(&mut self, owner: InstanceId, special: &[SpecialField], at: u64) {
        for field in special {
            let addr = at + u64::from(field.offset);
            match field.kind {
                SpecialKind::Timer => self.release_timer(addr),
                SpecialKind::Kptr(kind) => self.release_kptr(owner, kind, addr),
                SpecialKind::RbRoot { local_type, node_offset } => {
                    let nodes = self.objects.clear_tree(addr);
                    self.release_nodes(owner, local_type, node_offset, nodes);
                }
                SpecialKind::ListHead { local_type, node_offset } => {
                    let nodes = self.objects.clear_list(addr);
                    self.release_nodes(owner, local_type, node_offset, nodes);
                }
                // A lock word keeps its state, so it is not zeroed. Untrusted pointers, nodes,
                // reference counts and opaque fields hold no reference, so they are only zeroed.
                SpecialKind::SpinLock | SpecialKind::ResSpinLock => continue,
                SpecialKind::Untrusted | SpecialKind::RbNode | SpecialKind::ListNode => {}
                SpecialKind::Refcount | SpecialKind::Opaque { .. } => {}
            }
            self.mem.host_slice_mut::<u8>(addr, field.kind.size() as usize).fill(0);
        }
    }

    fn release_timer(&mut self, addr: u64) {
        // The first word of a timer is its id plus one. Programs may have overwritten the word, so
        // it counts only if the timer with that id has this address.
        let word = *self.mem.host_ref::<u64>(addr);
        let Some(id) = crate::timer::id_of_word(word) else {
            return;
        };
        if self.timers.get(id).is_some_and(|timer| timer.addr == addr) {
            self.timers.remove(id);
            self.dropped.push(Dropped::Timer(id));
        }
    }

    fn release_kptr(&mut self, instance: InstanceId, kind: KptrKind, addr: u64) {
        let ptr = *self.mem.host_ref::<u64>(addr);
        if ptr != 0 {
            self.dropped.push(Dropped::Kptr { instance, kind, ptr });
        }
    }

    fn release_nodes(
        &mut self,
        instance: InstanceId,
        local_type: u32,
        offset: u32,
        nodes: Vec<u64>,
    ) {
        let kind = KptrKind::Local(local_type);
        for node in nodes {
            self.dropped.push(Dropped::Kptr {
                instance,
                kind,
                ptr: node.wrapping_sub(offset.into()),
            });
        }
    }
}

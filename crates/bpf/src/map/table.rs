// SPDX-License-Identifier: GPL-2.0-only
//! Table of all maps of a simulation, and the addresses that programs hold for them.
//!
//! Owns: map ids and the readable 64-byte objects that stand for `struct bpf_map`. Does not: know
//! map contents.

use super::{Map, MapId, MapKind};
use crate::mem::{Memory, OutOfMemory, Perm};

/// Bytes of the object that stands for a map's `struct bpf_map` in guest memory.
const OBJECT: u64 = 64;
pub(super) const MAX_MAPS: usize = 1 << 16;

pub struct MapTable {
    maps: Vec<Option<Map>>,
    area: u64,
    /// Local storage maps, which `vm::storage_owner_gone` searches when an owner dies.
    storage: Vec<MapId>,
    /// Ring buffers, among which `ring_of` looks for the ring of a record.
    rings: Vec<MapId>,
}

impl MapTable {
    pub(crate) fn new(mem: &mut Memory) -> Result<MapTable, OutOfMemory> {
        let area = mem.alloc_region(OBJECT * MAX_MAPS as u64, Perm::Read)?;
        Ok(MapTable { maps: Vec::new(), area, storage: Vec::new(), rings: Vec::new() })
    }

    pub fn get(&self, id: MapId) -> Option<&Map> {
        self.maps.get(id.idx())?.as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: MapId) -> Option<&mut Map> {
        self.maps.get_mut(id.idx())?.as_mut()
    }

    /// Returns the map that a program's pointer stands for.
    #[inline]
    pub(crate) fn by_addr(&mut self, addr: u64) -> Option<&mut Map> {
        let off = addr.wrapping_sub(self.area);
        if !off.is_multiple_of(OBJECT) {
            return None;
        }
        self.maps.get_mut(usize::try_from(off / OBJECT).ok()?)?.as_mut()
    }

    /// Returns the array that an address lies in, and the offset in bytes from the array's
    /// beginning.
    pub fn array_at(&self, addr: u64) -> Option<(&Map, u64)> {
        self.iter().find_map(|map| match &map.kind {
            MapKind::Array(array) => {
                let at = addr.wrapping_sub(array.base);
                (at < array.len()).then_some((map, at))
            }
            _ => None,
        })
    }

    pub fn iter(&self) -> impl Iterator<Item = &Map> {
        self.maps.iter().flatten()
    }

    /// Returns the id of the next map and the address of the object that stands for it, or None if
    /// the table is full.
    pub(super) fn next(&self) -> Option<(MapId, u64)> {
        let at = self.maps.len();
        (at < MAX_MAPS).then(|| (MapId(at as u32), self.area + at as u64 * OBJECT))
    }

    pub(super) fn push(&mut self, map: Map) -> MapId {
        let id = map.id;
        assert_eq!(id.idx(), self.maps.len(), "map id out of order");
        match map.kind {
            MapKind::Storage(..) => self.storage.push(id),
            MapKind::Ringbuf(_) => self.rings.push(id),
            _ => {}
        }
        self.maps.push(Some(map));
        id
    }

    pub(super) fn remove(&mut self, id: MapId) -> Option<Map> {
        self.storage.retain(|&storage| storage != id);
        self.rings.retain(|&ring| ring != id);
        self.maps.get_mut(id.idx())?.take()
    }

    /// Returns the ring buffer that a reserved, uncommitted record belongs to.
    pub(crate) fn ring_of(
        &mut self,
        mem: &Memory,
        sample: u64,
    ) -> Option<&mut super::ringbuf::Ringbuf> {
        self.rings
            .iter()
            .find_map(|&id| match &self.maps.get(id.idx())?.as_ref()?.kind {
                MapKind::Ringbuf(ring) if ring.owns(mem, sample) => Some(id),
                _ => None,
            })
            .and_then(|id| match &mut self.maps[id.idx()].as_mut()?.kind {
                MapKind::Ringbuf(ring) => Some(ring),
                _ => None,
            })
    }

    /// Returns the ids of the local storage maps, in order of creation.
    pub(crate) fn storage_ids(&self) -> Vec<MapId> {
        self.storage.clone()
    }
}

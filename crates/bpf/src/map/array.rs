// SPDX-License-Identifier: GPL-2.0-only
//! ARRAY, PERCPU_ARRAY and ARRAY_OF_MAPS: values at fixed addresses.
//!
//! Owns: the location of element `i` of CPU `c`.
//! Does not: copy values.
//! Models: kernel/bpf/arraymap.c, v7.3.

use super::{MapDef, map_flag, map_type};
use crate::mem::{Memory, OutOfMemory, Perm};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Array {
    /// Address of element 0 of CPU 0.
    pub base: u64,
    /// Bytes from one CPU's elements to the next CPU's; 0 if there is only one copy.
    pub cpu_stride: u64,
    pub cpus: u32,
    pub entries: u32,
    /// Bytes from one element to the next.
    pub stride: u64,
    len: u64,
}

impl Array {
    /// Allocates the elements: 8 bytes each (an address) for maps of maps, otherwise the value size
    /// rounded up to 8. The last element ends at the end of a page, unless the map is mmapable, so
    /// a program that runs beyond it faults.
    pub fn new(mem: &mut Memory, def: &MapDef, cpus: u32) -> Result<Array, OutOfMemory> {
        let value = if def.map_type == map_type::ARRAY_OF_MAPS { 8 } else { def.value_size };
        let stride = u64::from(value).next_multiple_of(8);
        let unit = if cpus > 1 { 64 } else { 8 };
        let one_cpu = (stride * u64::from(def.max_entries)).next_multiple_of(unit);
        let len = one_cpu.checked_mul(u64::from(cpus)).filter(|&len| len < mem.size());
        let len = len.ok_or(OutOfMemory::Exhausted { size: one_cpu, limit: mem.size() })?;
        let perm =
            if def.map_flags & map_flag::RDONLY_PROG != 0 { Perm::Read } else { Perm::ReadWrite };
        // An mmapable array starts at a page boundary, so its last element need not end at one.
        let base = if def.map_flags & map_flag::MMAPABLE != 0 {
            mem.alloc_region(len, perm)?
        } else {
            mem.alloc_region_end_aligned(len, perm)?
        };
        let cpu_stride = if cpus > 1 { one_cpu } else { 0 };
        Ok(Array { base, cpu_stride, cpus, entries: def.max_entries, stride, len })
    }

    /// Returns the address of an element as `cpu` sees it; None if there is no such element or CPU.
    #[inline]
    pub fn element(&self, index: u32, cpu: u32) -> Option<u64> {
        if index >= self.entries || cpu >= self.cpus.max(1) && self.cpu_stride != 0 {
            return None;
        }
        Some(self.base + u64::from(cpu) * self.cpu_stride + u64::from(index) * self.stride)
    }

    /// Returns the address of the last element of the last CPU.
    pub fn last(&self) -> u64 {
        let cpus = u64::from(self.cpus.max(1) - 1) * self.cpu_stride;
        self.base + cpus + u64::from(self.entries.max(1) - 1) * self.stride
    }

    /// Returns the index of the element that contains an address. In a per-CPU array the address
    /// must lie in CPU 0's copy of the element.
    pub fn index_of(&self, value: u64) -> u32 {
        (value.wrapping_sub(self.base) / self.stride) as u32
    }

    /// Returns the size in bytes of all elements of all CPUs.
    pub fn len(&self) -> u64 {
        self.len
    }

    pub fn free(self, mem: &mut Memory) {
        mem.free_region(self.base, self.len);
    }
}

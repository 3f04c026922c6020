// SPDX-License-Identifier: GPL-2.0-only
//! `bpf_cpumask` objects: the CPU sets that programs own, counted references to guest memory.
//!
//! Owns: which are alive, and their reference counts. Does not: read or write the sets (see
//! `kfunc/cpumask.rs`).
//! Models: kernel `bpf_cpumask_create()` and `bpf_cpumask_release()`, 7.3.

use crate::abi;
use rustc_hash::FxHashSet;
use scxlab_bpf::mem::{Memory, OutOfMemory};
use std::collections::VecDeque;

/// Freed objects that wait before their memory is used again, so that a reader in an RCU section
/// still sees the set that it meant. The kernel waits for a grace period.
const REUSE_DELAY: usize = 64;

pub(crate) const OBJECT_BYTES: u64 = size_of::<abi::bpf_cpumask>() as u64;

/// The objects of a run, by guest address.
#[derive(Debug, Default)]
pub(crate) struct CpumaskObjects {
    live: FxHashSet<u64>,
    resting: VecDeque<u64>,
}

impl CpumaskObjects {
    /// An empty set with one reference.
    pub fn create(&mut self, mem: &mut Memory) -> Result<u64, OutOfMemory> {
        let addr = mem.alloc_kernel(OBJECT_BYTES, 8)?;
        *usage(mem, addr) = 1;
        self.live.insert(addr);
        Ok(addr)
    }

    /// Whether somebody has a reference to an object at `addr`.
    pub fn is_live(&self, addr: u64) -> bool {
        self.live.contains(&addr)
    }

    /// One more reference to a live object. The count saturates, as the kernel's does.
    pub fn acquire(&self, mem: &mut Memory, addr: u64) {
        let count = usage(mem, addr);
        *count = count.saturating_add(1);
    }

    /// One reference less to a live object.
    pub fn release(&mut self, mem: &mut Memory, addr: u64) {
        let count = usage(mem, addr);
        *count -= 1;
        if *count > 0 {
            return;
        }
        self.live.remove(&addr);
        self.resting.push_back(addr);
        if self.resting.len() > REUSE_DELAY
            && let Some(rested) = self.resting.pop_front()
        {
            mem.free(rested, OBJECT_BYTES);
        }
    }

    /// Objects that are alive.
    #[cfg(test)]
    pub fn nr_live(&self) -> usize {
        self.live.len()
    }
}

fn usage(mem: &mut Memory, addr: u64) -> &mut i32 {
    &mut mem.host_mut::<abi::bpf_cpumask>(addr).usage.refs.counter
}

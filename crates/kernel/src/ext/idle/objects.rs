// SPDX-License-Identifier: GPL-2.0-only
//! `bpf_cpumask` objects: reference-counted CPU sets in guest memory that programs own.
//!
//! Owns: the set of live objects, and their reference counts. Does not: read or write the CPU sets
//! (see `kfunc/cpumask.rs`).
//! Models: kernel `bpf_cpumask_create()` and `bpf_cpumask_release()`, 7.3.

use crate::bpf::abi;
use rustc_hash::FxHashSet;
use scxlab_bpf::mem::{Memory, OutOfMemory};
use std::collections::VecDeque;

/// Number of freed objects whose memory is not yet reused, so that a reader in an RCU read-side
/// section still sees its set. The real kernel waits for a grace period instead.
const REUSE_DELAY: usize = 64;

pub(crate) const OBJECT_BYTES: u64 = size_of::<abi::bpf_cpumask>() as u64;

/// The objects of a run, identified by guest address.
#[derive(Debug, Default)]
pub(crate) struct CpumaskObjects {
    live: FxHashSet<u64>,
    freed: VecDeque<u64>,
}

impl CpumaskObjects {
    /// Makes an empty set with one reference.
    pub fn create(&mut self, mem: &mut Memory) -> Result<u64, OutOfMemory> {
        let addr = mem.alloc_kernel(OBJECT_BYTES, 8)?;
        *usage(mem, addr) = 1;
        self.live.insert(addr);
        Ok(addr)
    }

    /// Returns whether there is an object with references at `addr`.
    pub fn is_live(&self, addr: u64) -> bool {
        self.live.contains(&addr)
    }

    /// Adds a reference to a live object. The count saturates, as the kernel's does.
    pub fn acquire(&self, mem: &mut Memory, addr: u64) {
        let count = usage(mem, addr);
        *count = count.saturating_add(1);
    }

    /// Drops a reference to a live object. The last drop frees the object.
    pub fn release(&mut self, mem: &mut Memory, addr: u64) {
        let count = usage(mem, addr);
        *count -= 1;
        if *count > 0 {
            return;
        }
        self.live.remove(&addr);
        self.freed.push_back(addr);
        if self.freed.len() > REUSE_DELAY
            && let Some(reusable) = self.freed.pop_front()
        {
            mem.free(reusable, OBJECT_BYTES);
        }
    }

    /// Returns the number of `bpf_cpumask` objects that still have a reference.
    #[cfg(test)]
    pub fn nr_live(&self) -> usize {
        self.live.len()
    }
}

fn usage(mem: &mut Memory, addr: u64) -> &mut i32 {
    &mut mem.host_mut::<abi::bpf_cpumask>(addr).usage.refs.counter
}

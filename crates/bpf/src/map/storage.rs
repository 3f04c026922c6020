// SPDX-License-Identifier: GPL-2.0-only
//! TASK_STORAGE and CGRP_STORAGE: one value per owner, freed with the owner.
//!
//! Owns: the address of each owner's value. Does not: know owners; the `Host` says which are
//! alive and which are gone.
//! Models: kernel/bpf/bpf_local_storage.c, v7.3. Differs: no accounting against the owner, no
//! per-owner cache.

use rustc_hash::FxHashMap;

/// Addresses of values by the address of their owner. Nothing depends on the order of the hash map,
/// because `owners` sorts.
#[derive(Default)]
pub struct LocalStorage {
    values: FxHashMap<u64, u64>,
}

impl LocalStorage {
    #[inline]
    pub fn get(&self, owner: u64) -> Option<u64> {
        self.values.get(&owner).copied()
    }

    pub fn insert(&mut self, owner: u64, value: u64) {
        self.values.insert(owner, value);
    }

    pub fn remove(&mut self, owner: u64) -> Option<u64> {
        self.values.remove(&owner)
    }

    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// Returns all owners, sorted by address.
    pub fn owners(&self) -> Vec<u64> {
        // tidy: allow(hash map): the next line sorts the keys.
        let mut owners: Vec<u64> = self.values.keys().copied().collect();
        owners.sort_unstable();
        owners
    }
}

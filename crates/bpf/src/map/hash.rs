// SPDX-License-Identifier: GPL-2.0-only
//! HASH, LRU_HASH, their per-CPU forms and HASH_OF_MAPS: a map from keys to elements in guest
//! memory.
//!
//! Owns: the index, the order of elements, eviction. Does not: copy values or release what they
//! hold.
//! Models: kernel/bpf/hashtab.c, v7.3.
//! Differs: elements are allocated on demand and iterate in order of insertion (the kernel's order
//! depends on its buckets and its boot-time seed); the LRU is exact and common to all CPUs, where
//! the kernel's is approximate and batched per CPU.
//!
//! An element in guest memory consists of its key, padded to 8 bytes, then its value, of which a
//! per-CPU map has one copy for each CPU.
//! Keys are hashed by their bytes, so padding inside a key counts, as in the kernel.

use super::{MapDef, map_type};
use crate::mem::{Memory, OutOfMemory};

const NIL: u32 = u32::MAX;
/// Bytes charged per element for its share of the index, including the spare room of a table that
/// has just doubled.
const INDEX_BYTES: u64 = 64;

pub struct Hash {
    key_size: u32,
    /// Offset of the value in an element, in bytes.
    value_off: u64,
    elem_size: u64,
    max_entries: u32,
    lru: bool,
    len: u32,
    /// Heads of the chains of entries, one chain per bucket. Their number is a power of two.
    buckets: Vec<u32>,
    entries: Vec<HashEntry>,
    /// Head of the list of unused entries, linked by `next`.
    free: u32,
    /// Oldest (or least recently used) and newest entry.
    first: u32,
    last: u32,
}

#[derive(Clone, Copy)]
struct HashEntry {
    addr: u64,
    hash: u32,
    /// Next entry in the bucket's chain.
    next: u32,
    /// Neighbours in order of insertion, or in order of use in an LRU map.
    before: u32,
    after: u32,
}

/// Result of `insert`.
pub enum Insertion {
    /// A new element, zeroed except for its key. The address is that of the element's value.
    Made(u64),
    /// The map is full.
    Full,
}

impl Hash {
    pub fn new(def: &MapDef, cpus: u32) -> Hash {
        let value = if def.map_type == map_type::HASH_OF_MAPS { 8 } else { def.value_size };
        let value_off = u64::from(def.key_size).next_multiple_of(8);
        Hash {
            key_size: def.key_size,
            value_off,
            elem_size: value_off + u64::from(value.next_multiple_of(8)) * u64::from(cpus),
            max_entries: def.max_entries,
            lru: matches!(def.map_type, map_type::LRU_HASH | map_type::LRU_PERCPU_HASH),
            len: 0,
            buckets: vec![NIL; 16],
            entries: Vec::new(),
            free: NIL,
            first: NIL,
            last: NIL,
        }
    }

    pub fn len(&self) -> u32 {
        self.len
    }

    /// Returns whether the next insertion must evict an element first.
    pub fn must_evict(&self) -> bool {
        self.lru && self.len >= self.max_entries
    }

    /// Returns the address of the key's value (CPU 0's copy), if the map has the key. In an LRU
    /// map, the lookup counts as a use.
    #[inline]
    pub fn lookup(&mut self, mem: &Memory, key: &[u8]) -> Option<u64> {
        let at = self.find(mem, key)?;
        if self.lru {
            self.touch(at);
        }
        Some(self.entries[at as usize].addr + self.value_off)
    }

    /// Does what `lookup` does, without counting as a use. Lookups of user space use this function.
    pub fn peek(&self, mem: &Memory, key: &[u8]) -> Option<u64> {
        let at = self.find(mem, key)?;
        Some(self.entries[at as usize].addr + self.value_off)
    }

    #[inline]
    fn find(&self, mem: &Memory, key: &[u8]) -> Option<u32> {
        let hash = hash_key(key);
        let mut at = self.buckets[hash as usize & (self.buckets.len() - 1)];
        while at != NIL {
            let entry = &self.entries[at as usize];
            if entry.hash == hash && same_key(self.key_of(mem, entry), key) {
                return Some(at);
            }
            at = entry.next;
        }
        None
    }

    #[inline]
    fn key_of<'m>(&self, mem: &'m Memory, entry: &HashEntry) -> &'m [u8] {
        mem.host_slice(entry.addr, self.key_size as usize)
    }

    /// Inserts an element for a key that is not present.
    pub fn insert(&mut self, mem: &mut Memory, key: &[u8]) -> Result<Insertion, OutOfMemory> {
        if self.len >= self.max_entries {
            return Ok(Insertion::Full);
        }
        mem.charge(INDEX_BYTES)?;
        let addr = mem.alloc(self.elem_size, 8).inspect_err(|_| mem.give_back(INDEX_BYTES))?;
        mem.host_slice_mut::<u8>(addr, key.len()).copy_from_slice(key);
        if self.len as usize >= self.buckets.len() {
            self.grow();
        }
        let at = self.take_entry(HashEntry {
            addr,
            hash: hash_key(key),
            next: NIL,
            before: NIL,
            after: NIL,
        });
        self.chain(at);
        self.append(at);
        self.len += 1;
        Ok(Insertion::Made(addr + self.value_off))
    }

    /// Removes the key's element from the index. The caller releases the value and then calls
    /// `free_element`.
    pub fn remove(&mut self, mem: &Memory, key: &[u8]) -> Option<u64> {
        let at = self.find(mem, key)?;
        Some(self.unlink(at))
    }

    /// Removes the oldest element, for eviction or clearing.
    pub fn remove_first(&mut self) -> Option<u64> {
        (self.first != NIL).then(|| self.unlink(self.first))
    }

    /// Frees the memory of a removed element, given its value's address.
    pub fn free_element(&self, mem: &mut Memory, value: u64) {
        mem.free(value - self.value_off, self.elem_size);
        mem.give_back(INDEX_BYTES);
    }

    /// Returns the address of the key that belongs to a value.
    pub fn key_addr(&self, value: u64) -> u64 {
        value - self.value_off
    }

    /// Returns the addresses of all values, in the order of iteration.
    pub fn values(&self) -> impl Iterator<Item = u64> + '_ {
        let mut at = self.first;
        std::iter::from_fn(move || {
            let entry = self.entries.get(at as usize)?;
            at = entry.after;
            Some(entry.addr + self.value_off)
        })
    }

    /// Returns the key after `key` in iteration order; the first key if `key` is None or absent.
    pub fn next_key(&self, mem: &Memory, key: Option<&[u8]>) -> Option<Vec<u8>> {
        let found = key.and_then(|key| self.find(mem, key));
        let at = found.map_or(self.first, |at| self.entries[at as usize].after);
        let entry = self.entries.get(at as usize)?;
        Some(self.key_of(mem, entry).to_vec())
    }

    fn unlink(&mut self, at: u32) -> u64 {
        let entry = self.entries[at as usize];
        self.unchain(at, entry);
        self.cut(at);
        self.entries[at as usize].next = self.free;
        self.free = at;
        self.len -= 1;
        entry.addr + self.value_off
    }

    fn unchain(&mut self, at: u32, entry: HashEntry) {
        let bucket = entry.hash as usize & (self.buckets.len() - 1);
        if self.buckets[bucket] == at {
            self.buckets[bucket] = entry.next;
            return;
        }
        let mut walk = self.buckets[bucket];
        while self.entries[walk as usize].next != at {
            walk = self.entries[walk as usize].next;
        }
        self.entries[walk as usize].next = entry.next;
    }

    fn take_entry(&mut self, entry: HashEntry) -> u32 {
        if self.free == NIL {
            self.entries.push(entry);
            return self.entries.len() as u32 - 1;
        }
        let at = self.free;
        self.free = self.entries[at as usize].next;
        self.entries[at as usize] = entry;
        at
    }

    fn chain(&mut self, at: u32) {
        let mask = self.buckets.len() - 1;
        let entry = &mut self.entries[at as usize];
        let bucket = &mut self.buckets[entry.hash as usize & mask];
        entry.next = *bucket;
        *bucket = at;
    }

    fn grow(&mut self) {
        let size = self.buckets.len() * 2;
        self.buckets.clear();
        self.buckets.resize(size, NIL);
        let mut at = self.first;
        while at != NIL {
            self.chain(at);
            at = self.entries[at as usize].after;
        }
    }

    /// Makes an entry the most recently used one: moves it to the end of the order of use.
    fn touch(&mut self, at: u32) {
        if self.last != at {
            self.cut(at);
            self.append(at);
        }
    }

    fn append(&mut self, at: u32) {
        let before = self.last;
        let entry = &mut self.entries[at as usize];
        (entry.before, entry.after) = (before, NIL);
        match self.entries.get_mut(before as usize) {
            Some(last) => last.after = at,
            None => self.first = at,
        }
        self.last = at;
    }

    fn cut(&mut self, at: u32) {
        let HashEntry { before, after, .. } = self.entries[at as usize];
        match self.entries.get_mut(before as usize) {
            Some(entry) => entry.after = after,
            None => self.first = after,
        }
        match self.entries.get_mut(after as usize) {
            Some(entry) => entry.before = before,
            None => self.last = before,
        }
    }
}

/// Compares keys of equal length, word by word. This function does not use `memcmp`, which reads
/// ahead with masked vector loads: they take hundreds of nanoseconds if the next page was never
/// touched, as behind a key at the end of a stack.
#[inline]
fn same_key(a: &[u8], b: &[u8]) -> bool {
    let (mut x, mut y) = (a.chunks_exact(8), b.chunks_exact(8));
    let words = (&mut x).zip(&mut y).all(|(x, y)| word(x) == word(y));
    words && word(x.remainder()) == word(y.remainder())
}

/// Reads up to 8 bytes as a little-endian number.
#[inline]
fn word(bytes: &[u8]) -> u64 {
    match bytes.len() {
        8 => u64::from_le_bytes(bytes.try_into().expect("8 bytes")),
        4 => u32::from_le_bytes(bytes.try_into().expect("4 bytes")).into(),
        _ => bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)),
    }
}

/// Computes FxHash over 8-byte words and returns its upper half, which depends on every bit of the
/// key.
#[inline]
fn hash_key(key: &[u8]) -> u32 {
    const K: u64 = 0x517c_c1b7_2722_0a95;
    let mut words = key.chunks_exact(8);
    let mut hash = 0u64;
    for bytes in &mut words {
        hash = (hash.rotate_left(5) ^ word(bytes)).wrapping_mul(K);
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        hash = (hash.rotate_left(5) ^ word(rest)).wrapping_mul(K);
    }
    (hash >> 32) as u32
}

// SPDX-License-Identifier: GPL-2.0-only
//! RINGBUF (program to user space) and USER_RINGBUF (user space to program): records in order of
//! reservation.
//!
//! Owns: positions, headers, the busy and discard bits. Does not: wake consumers; they poll.
//! Models: kernel/bpf/ringbuf.c, v7.3.
//! Differs: the kernel maps the data twice in a row so that a record may wrap around. Here the
//! second half is separate memory, which works because the simulator finds a record only by its
//! start.

use super::{MapDef, MapResult};
use crate::errno::*;
use crate::mem::{Memory, OutOfMemory, Perm};

/// Header bit of a record that is reserved and not yet committed.
const BUSY: u32 = 1 << 31;
/// Header bit of a record that was committed as discarded. The consumer skips such a record.
const DISCARD: u32 = 1 << 30;
/// Bytes of a record's header.
const HEADER: u64 = 8;
/// Largest record in bytes that a header can describe. The kernel's RINGBUF_MAX_RECORD_SZ.
const RECORD_MAX: u64 = (u32::MAX / 4) as u64;
/// Largest sample in bytes that fits a dynptr.
const DYNPTR_MAX: u32 = (1 << 24) - 1;

pub struct Ringbuf {
    data: u64,
    size: u64,
    consumer: u64,
    producer: u64,
    /// Position up to which every record is committed.
    pending: u64,
}

impl Ringbuf {
    pub fn new(mem: &mut Memory, def: &MapDef) -> Result<Ringbuf, OutOfMemory> {
        let size = u64::from(def.max_entries);
        let data = mem.alloc_region(size * 2, Perm::ReadWrite)?;
        Ok(Ringbuf { data, size, consumer: 0, producer: 0, pending: 0 })
    }

    pub fn free(self, mem: &mut Memory) {
        mem.free_region(self.data, self.size * 2);
    }

    /// Reserves a record. Returns the address of its data, or 0.
    pub fn reserve(&mut self, mem: &mut Memory, size: u64) -> u64 {
        if size > RECORD_MAX {
            return 0;
        }
        let len = record_len(size as u32);
        if len > self.size {
            return 0;
        }
        self.advance_pending(mem);
        let end = self.producer + len;
        if end - self.consumer > self.size - 1 || end - self.pending > self.size - 1 {
            return 0;
        }
        let at = self.at(self.producer);
        *mem.host_mut::<u32>(at) = size as u32 | BUSY;
        // The kernel stores a page offset here, to find the ring from a record. The simulator
        // stores a check word, by which `owns` recognises records.
        *mem.host_mut::<u32>(at + 4) = check_word(at);
        self.producer = end;
        at + HEADER
    }

    /// Returns whether `sample` is a record of this ring that is reserved and not committed.
    pub fn owns(&self, mem: &Memory, sample: u64) -> bool {
        let at = sample.wrapping_sub(HEADER);
        let inside = at.wrapping_sub(self.data) < self.size * 2;
        inside
            && at.is_multiple_of(8)
            && *mem.host_ref::<u32>(at) & BUSY != 0
            && *mem.host_ref::<u32>(at + 4) == check_word(at)
    }

    /// Ends a reservation that `owns` has confirmed.
    pub fn commit(&mut self, mem: &mut Memory, sample: u64, discard: bool) {
        let header = mem.host_mut::<u32>(sample - HEADER);
        *header = (*header & !BUSY) | if discard { DISCARD } else { 0 };
    }

    /// Consumes the next committed record, for user space.
    pub fn consume(&mut self, mem: &Memory) -> Option<Vec<u8>> {
        while self.consumer < self.producer {
            let at = self.at(self.consumer);
            let header = *mem.host_ref::<u32>(at);
            if header & BUSY != 0 {
                return None;
            }
            let size = header & !DISCARD;
            self.consumer += record_len(size).min(self.producer - self.consumer);
            if header & DISCARD == 0 {
                let len = u64::from(size).min(self.size) as usize;
                return Some(mem.host_slice::<u8>(at + HEADER, len).to_vec());
            }
        }
        None
    }

    pub fn query(&self, what: u64) -> u64 {
        match what {
            0 => self.producer - self.consumer,
            1 => self.size,
            2 => self.consumer,
            3 => self.producer,
            _ => 0,
        }
    }

    fn advance_pending(&mut self, mem: &Memory) {
        while self.pending < self.producer {
            let header = *mem.host_ref::<u32>(self.at(self.pending));
            if header & BUSY != 0 {
                break;
            }
            // A program may have overwritten the length in the record's header. `min` cuts the
            // length, so that `pending` never passes `producer`, the end of the last record.
            self.pending += record_len(header & !DISCARD).min(self.producer - self.pending);
        }
    }

    fn at(&self, pos: u64) -> u64 {
        self.data + (pos & (self.size - 1))
    }
}

pub struct UserRingbuf {
    data: u64,
    size: u64,
    consumer: u64,
    producer: u64,
    /// Whether a drain is running. A second drain gets -EBUSY.
    pub busy: bool,
}

impl UserRingbuf {
    pub fn new(mem: &mut Memory, def: &MapDef) -> Result<UserRingbuf, OutOfMemory> {
        let size = u64::from(def.max_entries);
        let data = mem.alloc_region(size * 2, Perm::Read)?;
        Ok(UserRingbuf { data, size, consumer: 0, producer: 0, busy: false })
    }

    pub fn free(self, mem: &mut Memory) {
        mem.free_region(self.data, self.size * 2);
    }

    /// Appends a record, for user space. Returns ENOSPC if the record does not fit now, and E2BIG
    /// if it can never fit.
    pub fn produce(&mut self, mem: &mut Memory, record: &[u8]) -> MapResult<()> {
        let size =
            u32::try_from(record.len()).ok().filter(|&size| size <= DYNPTR_MAX).ok_or(E2BIG)?;
        let len = record_len(size);
        if len > self.size {
            return Err(E2BIG);
        }
        if self.producer + len - self.consumer > self.size {
            return Err(ENOSPC);
        }
        let at = self.at(self.producer);
        *mem.host_mut::<u32>(at) = size;
        mem.host_slice_mut::<u8>(at + HEADER, record.len()).copy_from_slice(record);
        self.producer += len;
        Ok(())
    }

    /// Returns address and size of the oldest record, which stays until `release`.
    pub fn peek(&self, mem: &Memory) -> Option<(u64, u32)> {
        (self.consumer < self.producer).then(|| {
            let at = self.at(self.consumer);
            (at + HEADER, *mem.host_ref::<u32>(at))
        })
    }

    pub fn release(&mut self, size: u32) {
        self.consumer += record_len(size);
    }

    pub fn query(&self, what: u64) -> u64 {
        match what {
            0 => self.producer - self.consumer,
            1 => self.size,
            2 => self.consumer,
            3 => self.producer,
            _ => 0,
        }
    }

    fn at(&self, pos: u64) -> u64 {
        self.data + (pos & (self.size - 1))
    }
}

/// Returns the length of a record in bytes with its header, rounded up to a multiple of 8.
fn record_len(size: u32) -> u64 {
    (u64::from(size) + HEADER).next_multiple_of(8)
}

fn check_word(at: u64) -> u32 {
    (at >> 3) as u32 ^ 0x5249_4e47
}

// SPDX-License-Identifier: GPL-2.0-only
//! Dynptrs: an address with a length, in 16 bytes of the program's stack.
//!
//! Owns: their layout and bounds. Models: `struct bpf_dynptr_kern`, v7.3, for local memory and ring
//! buffer records.

use super::status;
use crate::errno::*;
use crate::fault::{Fault, MemFault};
use crate::mem::Memory;
use crate::vm::Host;

/// Contents of a `struct bpf_dynptr`. A null dynptr has `data` 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dynptr {
    pub(crate) data: u64,
    pub(crate) offset: u32,
    pub(crate) size: u32,
    pub(crate) ringbuf: bool,
    pub(crate) rdonly: bool,
}

pub(crate) const MAX_SIZE: u32 = (1 << 24) - 1;
const RDONLY: u32 = 1 << 31;
const TYPE_SHIFT: u32 = 28;
const TYPE_LOCAL: u32 = 1;
const TYPE_RINGBUF: u32 = 2;

impl Dynptr {
    pub fn load(mem: &Memory, at: u64) -> Result<Dynptr, MemFault> {
        let data: u64 = mem.read(at)?;
        let [word, offset]: [u32; 2] = mem.read(at.wrapping_add(8))?;
        Ok(Dynptr {
            data,
            offset,
            size: word & MAX_SIZE,
            ringbuf: word >> TYPE_SHIFT & 7 == TYPE_RINGBUF,
            rdonly: word & RDONLY != 0,
        })
    }

    pub fn store(self, mem: &mut Memory, at: u64) -> Result<(), MemFault> {
        let kind = if self.ringbuf { TYPE_RINGBUF } else { TYPE_LOCAL };
        let flags = if self.rdonly { RDONLY } else { 0 };
        let word = if self.data == 0 { 0 } else { self.size | kind << TYPE_SHIFT | flags };
        mem.write(at, self.data)?;
        mem.write(at.wrapping_add(8), [word, self.offset])
    }

    /// Returns address and length of the whole range; None if the dynptr is null or read-only.
    pub fn writable(self) -> Option<(u64, u64)> {
        let at = self.data.wrapping_add(u64::from(self.offset));
        (self.data != 0 && !self.rdonly).then_some((at, u64::from(self.size)))
    }

    /// Returns the address of `len` bytes at `offset`; E2BIG if not all of these bytes lie in the
    /// dynptr's range.
    pub fn slice(self, offset: u64, len: u64) -> Result<u64, i64> {
        let size = u64::from(self.size);
        if len > size || offset > size - len {
            return Err(E2BIG);
        }
        Ok(self.data.wrapping_add(u64::from(self.offset)).wrapping_add(offset))
    }
}

/// Dispatches `bpf_dynptr_from_mem`, `_read`, `_write` and `_data`: helpers 197, 201, 202, 203.
pub fn call<H: Host>(h: &mut H, id: u32, [a, b, c, d, e]: [u64; 5]) -> Result<u64, Fault> {
    let mem = &mut h.vm().mem;
    match id {
        197 => from_mem(mem, a, b as u32, c, d),
        201 | 202 => {
            let ([ptr, offset, buf, len], write) =
                if id == 201 { ([c, d, a, b], false) } else { ([a, b, c, d], true) };
            let ptr = Dynptr::load(mem, ptr)?;
            h.vm().work(len.min(u64::from(MAX_SIZE)))?;
            copy(&mut h.vm().mem, ptr, offset, buf, len, e, write)
        }
        _ => {
            let ptr = Dynptr::load(mem, a)?;
            let usable = ptr.data != 0 && !ptr.rdonly;
            Ok(if usable { ptr.slice(b, c).unwrap_or(0) } else { 0 })
        }
    }
}

fn from_mem(mem: &mut Memory, data: u64, size: u32, flags: u64, out: u64) -> Result<u64, Fault> {
    let errno = if size > MAX_SIZE {
        E2BIG
    } else if flags != 0 {
        EINVAL
    } else {
        0
    };
    let ptr =
        if errno == 0 { Dynptr { data, size, ..Dynptr::default() } } else { Dynptr::default() };
    ptr.store(mem, out)?;
    Ok(neg(errno))
}

fn copy(
    mem: &mut Memory,
    ptr: Dynptr,
    offset: u64,
    buf: u64,
    len: u64,
    flags: u64,
    write: bool,
) -> Result<u64, Fault> {
    if ptr.data == 0 || flags != 0 || (write && ptr.rdonly) {
        return Ok(neg(EINVAL));
    }
    match ptr.slice(offset, len) {
        Ok(at) => {
            let (to, from) = if write { (at, buf) } else { (buf, at) };
            mem.copy(to, from, len)?;
            Ok(0)
        }
        Err(errno) => Ok(status(Err(errno))),
    }
}

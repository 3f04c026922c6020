// SPDX-License-Identifier: GPL-2.0-only
//! `bpf_iter_num_*`: an iterator over a range of integers, stored in 8 bytes: the current number
//! and the end.

use crate::errno::*;
use crate::fault::Fault;
use crate::mem::Memory;

/// Largest length of a range. The kernel's BPF_MAX_LOOPS.
pub const MAX_LOOPS: u32 = 8 << 20;

pub fn new(mem: &mut Memory, at: u64, start: i32, end: i32) -> Result<u64, Fault> {
    let errno = if start > end {
        EINVAL
    } else if end.wrapping_sub(start) as u32 > MAX_LOOPS {
        E2BIG
    } else {
        0
    };
    mem.write(at, if errno == 0 { [start.wrapping_sub(1), end] } else { [0, 0] })?;
    Ok(neg(errno))
}

/// Advances the iterator. Returns the address of the current number (the iterator's first word), or
/// 0 at the end.
pub fn next(mem: &mut Memory, at: u64) -> Result<u64, Fault> {
    let [current, end] = mem.read::<[i32; 2]>(at)?;
    let next = current.wrapping_add(1);
    if next >= end {
        mem.write(at, [0i32, 0])?;
        return Ok(0);
    }
    mem.write(at, next)?;
    Ok(at)
}

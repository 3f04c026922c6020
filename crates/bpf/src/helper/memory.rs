// SPDX-License-Identifier: GPL-2.0-only
//! Helpers that read and compare memory, and swap a kernel pointer.

use super::HelperResult;
use crate::errno::*;
use crate::fault::Access;
use crate::vm::Host;

/// A string comparison adds its cost to the instruction count after each stretch of this many
/// bytes.
const STRIDE: u64 = 4096;

/// Models `bpf_probe_read*`. If the source is not readable, the helper zeroes the destination and
/// returns -EFAULT.
pub fn probe_read<H: Host>(h: &mut H, dst: u64, size: u64, src: u64) -> HelperResult {
    let size = u64::from(size as u32);
    h.vm().mem.bytes_mut(dst, size)?;
    h.vm().work(size)?;
    let mem = &mut h.vm().mem;
    if mem.allows(src, size, Access::Load) {
        mem.copy(dst, src, size)?;
        return Ok(0);
    }
    mem.bytes_mut(dst, size)?.fill(0);
    Ok(neg(EFAULT))
}

/// Models `bpf_probe_read*_str`. The helper truncates a string that is too long, always writes a
/// NUL, and returns the length including the NUL.
pub fn probe_read_str<H: Host>(h: &mut H, dst: u64, size: u64, src: u64) -> HelperResult {
    let mem = &mut h.vm().mem;
    let size = u64::from(size as u32);
    mem.bytes_mut(dst, size)?;
    if size == 0 {
        return Ok(0);
    }
    let len = mem.c_str(src, size - 1).map(<[u8]>::len);
    h.vm().work(len.as_ref().map_or(size, |len| *len as u64))?;
    let mem = &mut h.vm().mem;
    match len {
        Ok(len) => {
            mem.copy(dst, src, len as u64)?;
            mem.write(dst + len as u64, 0u8)?;
            Ok(len as u64 + 1)
        }
        Err(_) => {
            mem.bytes_mut(dst, size)?.fill(0);
            Ok(neg(EFAULT))
        }
    }
}

/// Models `bpf_strncmp`: the first string need not end with a NUL, the second must.
pub fn strncmp<H: Host>(h: &mut H, left: u64, size: u64, right: u64) -> HelperResult {
    for at in 0..u64::from(size as u32) {
        if at != 0 && at.is_multiple_of(STRIDE) {
            h.vm().work(STRIDE)?;
        }
        let mem = &h.vm().mem;
        let a: u8 = mem.read(left.wrapping_add(at))?;
        let b: u8 = mem.read(right.wrapping_add(at))?;
        if a != b {
            return Ok(if a < b { neg(1) } else { 1 });
        }
        if a == 0 {
            break;
        }
    }
    Ok(0)
}

/// Models `bpf_kptr_xchg`: stores a reference in a value's field and returns the reference that the
/// field held before.
pub fn kptr_xchg<H: Host>(h: &mut H, field: u64, ptr: u64) -> HelperResult {
    let mem = &mut h.vm().mem;
    let old = mem.read::<u64>(field)?;
    mem.write(field, ptr)?;
    Ok(old)
}

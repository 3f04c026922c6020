// SPDX-License-Identifier: GPL-2.0-only
//! Kernel functions on dynptrs to local memory.

use super::Builtin;
use crate::errno::*;
use crate::fault::Fault;
use crate::helper::Dynptr;
use crate::mem::Memory;

pub fn call(
    mem: &mut Memory,
    name: &'static str,
    builtin: Builtin,
    [at, b, c, d, _]: [u64; 5],
) -> Result<u64, Fault> {
    let ptr = Dynptr::load(mem, at)?;
    let null = ptr.data == 0;
    Ok(match builtin {
        Builtin::DynptrIsNull => null.into(),
        Builtin::DynptrIsRdonly => (!null && ptr.rdonly).into(),
        Builtin::DynptrSize if null => neg(EINVAL),
        Builtin::DynptrSize => ptr.size.into(),
        Builtin::DynptrAdjust => adjust(mem, at, ptr, b, c)?,
        Builtin::DynptrClone => {
            ptr.store(mem, b)?;
            if null { neg(EINVAL) } else { 0 }
        }
        Builtin::DynptrSlice | Builtin::DynptrSliceRdwr => {
            let writes = builtin == Builtin::DynptrSliceRdwr;
            let usable = !null && (!writes || !ptr.rdonly);
            if usable { ptr.slice(b, d).unwrap_or(0) } else { 0 }
        }
        _ => return Err(Fault::unmodelled(format!("kfunc {name}"))),
    })
}

/// Models `bpf_dynptr_adjust`: narrows a dynptr to its bytes `start..end`.
fn adjust(mem: &mut Memory, at: u64, ptr: Dynptr, start: u64, end: u64) -> Result<u64, Fault> {
    if ptr.data == 0 || start > end {
        return Ok(neg(EINVAL));
    }
    let size = u64::from(ptr.size);
    if start > size || end > size {
        return Ok(neg(ERANGE));
    }
    let offset = ptr.offset.wrapping_add(start as u32);
    Dynptr { offset, size: (end - start) as u32, ..ptr }.store(mem, at)?;
    Ok(0)
}

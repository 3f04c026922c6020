// SPDX-License-Identifier: GPL-2.0-only
//! Access to linear memory: checked by permission for programs, by range for the simulator's own
//! structures.
//!
//! Owns: the fast path of a guest load and store. Does not: allocate.

use bytemuck::{AnyBitPattern, NoUninit, Pod};

use super::{ASK, GUEST_BASE, LOAD, Memory, PAGE, PAGE_SHIFT, STORE, TAIL, WORD};
use crate::fault::{Access, MemFault};

/// A raw view of a memory, which the interpreter keeps in registers while it runs a function. The
/// memory never moves, and the interpreter also holds a borrow of the memory's owner, the `Host`.
#[derive(Clone, Copy)]
pub(crate) struct Window {
    base: *mut u8,
    perms: *const u8,
    /// Size of the memory less 8 bytes, so that one comparison keeps an 8-byte access inside. The
    /// limit excludes no usable byte, because the last page is a guard.
    limit: u64,
}

impl Window {
    /// Loads a `T` (at most 8 bytes). Returns None if the slow path must perform the load.
    #[inline(always)]
    pub fn load<T: Copy>(&self, addr: u64) -> Option<T> {
        let off = self.offset_if::<T>(addr, LOAD)?;
        // SAFETY: `offset_if` has checked that all bytes lie inside the mapping.
        Some(unsafe { self.base.add(off as usize).cast::<T>().read_unaligned() })
    }

    /// Stores a `T` (at most 8 bytes). Returns false if the slow path must perform the store.
    #[inline(always)]
    pub fn store<T: Copy>(&self, addr: u64, value: T) -> bool {
        let Some(off) = self.offset_if::<T>(addr, STORE) else {
            return false;
        };
        // SAFETY: `offset_if` has checked that all bytes lie inside the mapping.
        unsafe { self.base.add(off as usize).cast::<T>().write_unaligned(value) };
        true
    }

    /// Returns the offset of an access that lies on one page whose permission allows it.
    #[inline(always)]
    fn offset_if<T>(&self, addr: u64, need: u8) -> Option<u64> {
        let off = addr.wrapping_sub(GUEST_BASE);
        if off >= self.limit || (off & (PAGE - 1)) > PAGE - size_of::<T>() as u64 {
            return None;
        }
        // SAFETY: off is below the size of the memory, and the table has a byte for each page.
        let perm = unsafe { *self.perms.add((off >> PAGE_SHIFT) as usize) };
        (perm & need != 0).then_some(off)
    }
}

impl Memory {
    pub(crate) fn window(&self) -> Window {
        Window { base: self.base, perms: self.perms, limit: self.size - 8 }
    }

    /// Returns the addresses of the memory and of its page permissions, for machine code. Neither
    /// ever moves.
    pub(crate) fn raw(&self) -> (*mut u8, *const u8) {
        (self.base, self.perms)
    }

    /// Reads a value as a program may: at any alignment, if every page is readable.
    pub fn read<T: AnyBitPattern>(&self, addr: u64) -> Result<T, MemFault> {
        let ptr = self.check(addr, size_of::<T>() as u64, Access::Load)?;
        // SAFETY: the range was checked, and any bits are a T.
        Ok(unsafe { ptr.cast::<T>().read_unaligned() })
    }

    /// Writes a value as a program may: if every page is writable. Pages of kernel structures are
    /// not writable.
    pub fn write<T: NoUninit>(&mut self, addr: u64, value: T) -> Result<(), MemFault> {
        let ptr = self.check(addr, size_of::<T>() as u64, Access::Store)?;
        // SAFETY: the range was checked; writing initialised bytes is sound for any memory.
        unsafe { ptr.cast::<T>().write_unaligned(value) };
        Ok(())
    }

    pub fn bytes(&self, addr: u64, len: u64) -> Result<&[u8], MemFault> {
        let ptr = self.check(addr, len, Access::Load)?;
        // SAFETY: the range was checked; the borrow of self keeps writers away.
        Ok(unsafe { std::slice::from_raw_parts(ptr, len as usize) })
    }

    pub fn bytes_mut(&mut self, addr: u64, len: u64) -> Result<&mut [u8], MemFault> {
        let ptr = self.check(addr, len, Access::Store)?;
        // SAFETY: the range was checked; the exclusive borrow of self keeps everybody else away.
        Ok(unsafe { std::slice::from_raw_parts_mut(ptr, len as usize) })
    }

    /// Returns whether a program may make this access.
    #[inline]
    pub fn allows(&self, addr: u64, len: u64, access: Access) -> bool {
        self.check(addr, len, access).is_ok()
    }

    /// Returns whether a range lies on pages of kernel structures, where a program may store only
    /// if the host agrees.
    pub(crate) fn is_kernel(&self, addr: u64, len: u64) -> bool {
        let off = addr.wrapping_sub(GUEST_BASE);
        self.in_range(off, len)
            && (off >> PAGE_SHIFT..(off + len).div_ceil(PAGE))
                .all(|page| self.perm_byte(page) & (ASK | STORE) == ASK)
    }

    /// Copies within guest memory, checked like a load and a store. The ranges may overlap.
    pub fn copy(&mut self, dst: u64, src: u64, len: u64) -> Result<(), MemFault> {
        let from = self.check(src, len, Access::Load)?;
        let to = self.check(dst, len, Access::Store)?;
        // SAFETY: both ranges were checked; `copy` allows overlap.
        unsafe { std::ptr::copy(from, to, len as usize) };
        Ok(())
    }

    /// Returns the bytes of a C string without its NUL, or its first `max` bytes if they contain no
    /// NUL.
    pub fn c_str(&self, addr: u64, max: u64) -> Result<&[u8], MemFault> {
        let mut len = 0;
        while len < max {
            let at = addr.wrapping_add(len);
            let chunk = (PAGE - (at & (PAGE - 1))).min(max - len);
            let bytes = self.bytes(at, chunk)?;
            if let Some(nul) = bytes.iter().position(|&b| b == 0) {
                return self.bytes(addr, len + nul as u64);
            }
            len += chunk;
        }
        self.bytes(addr, len)
    }

    #[inline]
    fn check(&self, addr: u64, len: u64, access: Access) -> Result<*mut u8, MemFault> {
        let off = addr.wrapping_sub(GUEST_BASE);
        let need = if access == Access::Load { LOAD } else { STORE };
        let on_one_page = len <= PAGE && off % PAGE <= PAGE - len;
        if on_one_page && off < self.size && self.perm_byte(off >> PAGE_SHIFT) & need != 0 {
            // SAFETY: the whole access lies on this page, which is inside the mapping.
            return Ok(unsafe { self.base.add(off as usize) });
        }
        self.check_pages(addr, len, access)
    }

    #[cold]
    #[inline(never)]
    fn check_pages(&self, addr: u64, len: u64, access: Access) -> Result<*mut u8, MemFault> {
        let off = addr.wrapping_sub(GUEST_BASE);
        let need = if access == Access::Load { LOAD } else { STORE };
        let mut ok = self.in_range(off, len);
        if ok {
            let pages = off >> PAGE_SHIFT..(off + len).div_ceil(PAGE);
            ok = pages.into_iter().all(|page| self.perm_byte(page) & need != 0);
        }
        if !ok {
            return Err(self.fault(addr, u32::try_from(len).unwrap_or(u32::MAX), access));
        }
        // SAFETY: off + len is inside the mapping.
        Ok(unsafe { self.base.add(off as usize) })
    }
}

/// Panics, because the simulator itself used a wrong address or length.
#[cold]
#[inline(never)]
fn bad_host_access(addr: u64, len: u64) -> ! {
    panic!("host access of {len} bytes at {addr:#x}: not aligned, or outside the memory")
}

/// Access to the simulator's own structures. Permissions do not apply. The functions assert range
/// and alignment, which are invariants of the simulator.
impl Memory {
    pub fn host_ref<T: Pod>(&self, addr: u64) -> &T {
        // SAFETY: `host_ptr` asserts range and alignment; T accepts any bits; the borrow of self
        // keeps writers away.
        unsafe { &*self.host_ptr::<T>(addr, 1) }
    }

    pub fn host_mut<T: Pod>(&mut self, addr: u64) -> &mut T {
        // SAFETY: as in `host_ref`, and the exclusive borrow of self makes the reference unique.
        unsafe { &mut *self.host_ptr::<T>(addr, 1) }
    }

    /// Does what `host_mut` does, for a structure at an address that the simulator keeps and that
    /// no program supplied. The function masks the address instead of checking it, which takes half
    /// as long. A context switch makes about forty such accesses. Debug assertions, on in all
    /// tests, check that the mask changes nothing.
    #[inline(always)]
    pub fn own_mut<T: Pod>(&mut self, addr: u64) -> &mut T {
        // SAFETY: `own_ptr` leads to an aligned T inside the mapping; the rest is as in `host_mut`.
        unsafe { &mut *self.own_ptr::<T>(addr) }
    }

    /// Does what `own_mut` does, for reading or prefetching.
    #[inline(always)]
    pub fn own_ref<T: Pod>(&self, addr: u64) -> &T {
        // SAFETY: as in `own_mut`, and the borrow of self keeps writers away.
        unsafe { &*self.own_ptr::<T>(addr) }
    }

    pub fn host_slice<T: Pod>(&self, addr: u64, n: usize) -> &[T] {
        // SAFETY: as in `host_ref`, for n consecutive values.
        unsafe { std::slice::from_raw_parts(self.host_ptr::<T>(addr, n), n) }
    }

    pub fn host_slice_mut<T: Pod>(&mut self, addr: u64, n: usize) -> &mut [T] {
        // SAFETY: as in `host_mut`, for n consecutive values.
        unsafe { std::slice::from_raw_parts_mut(self.host_ptr::<T>(addr, n), n) }
    }

    /// Copies between the simulator's own structures. The ranges may overlap.
    pub fn host_copy(&mut self, dst: u64, src: u64, len: usize) {
        let from = self.host_ptr::<u8>(src, len);
        let to = self.host_ptr::<u8>(dst, len);
        // SAFETY: both ranges were asserted to lie inside the mapping; `copy` allows overlap.
        unsafe { std::ptr::copy(from, to, len) };
    }

    /// Returns `n` 64-bit words, such as those of a cpumask.
    #[inline(always)]
    pub fn words(&self, addr: u64, n: usize) -> &[u64] {
        self.host_slice(addr, n)
    }

    #[inline(always)]
    pub fn words_mut(&mut self, addr: u64, n: usize) -> &mut [u64] {
        self.host_slice_mut(addr, n)
    }

    /// Sets each of `n` words from `dst` on to `op` of the words at the same place from `from[0]`
    /// and `from[1]` on, in ascending order. The ranges may overlap.
    #[inline(always)]
    pub fn combine_words(
        &mut self,
        dst: u64,
        from: [u64; 2],
        n: usize,
        op: impl Fn(u64, u64) -> u64,
    ) {
        let to = self.host_ptr::<u64>(dst, n);
        let [x, y] = from.map(|addr| self.host_ptr::<u64>(addr, n).cast_const());
        for at in 0..n {
            // SAFETY: the ranges were asserted to lie inside the mapping, aligned; no reference
            // into the memory exists.
            unsafe { to.add(at).write(op(x.add(at).read(), y.add(at).read())) };
        }
    }

    #[inline(always)]
    fn own_ptr<T>(&self, addr: u64) -> *mut T {
        const { assert!(size_of::<T>() as u64 <= TAIL && align_of::<T>() as u64 <= WORD) };
        debug_assert!(!self.host_ptr::<T>(addr, 1).is_null() && addr.is_multiple_of(WORD));
        let off = addr & self.mask;
        // SAFETY: the size is a power of two, so the masked offset is inside and a multiple of
        // WORD; `TAIL` more bytes are mapped beyond the end.
        unsafe { self.base.add(off as usize).cast::<T>() }
    }

    #[inline(always)]
    fn host_ptr<T>(&self, addr: u64, n: usize) -> *mut T {
        let off = addr.wrapping_sub(GUEST_BASE);
        let len = n.checked_mul(size_of::<T>()).map_or(u64::MAX, |len| len as u64);
        let inside = off.checked_add(len).is_some_and(|end| end <= self.size);
        if !inside || !off.is_multiple_of(align_of::<T>() as u64) {
            bad_host_access(addr, len);
        }
        // SAFETY: off + len is inside the mapping, which is page-aligned like GUEST_BASE.
        unsafe { self.base.add(off as usize).cast::<T>() }
    }
}

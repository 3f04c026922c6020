// SPDX-License-Identifier: GPL-2.0-only
//! The errno values that helpers, kfuncs and map operations return to a BPF program.
//!
//! Owns: the numbers, which x86-64 takes from the kernel's generic list. Does not: decide which
//! operation returns which errno.

/// A negative errno as the 64-bit register value of a helper that returns `long` or `int`.
pub const fn neg(errno: i64) -> u64 {
    errno.wrapping_neg() as u64
}

pub const EPERM: i64 = 1;
pub const ENOENT: i64 = 2;
pub const E2BIG: i64 = 7;
pub const EAGAIN: i64 = 11;
pub const ENOMEM: i64 = 12;
pub const EACCES: i64 = 13;
pub const EFAULT: i64 = 14;
pub const EBUSY: i64 = 16;
pub const EEXIST: i64 = 17;
pub const ENODEV: i64 = 19;
pub const EINVAL: i64 = 22;
pub const ENOSPC: i64 = 28;
pub const ERANGE: i64 = 34;
pub const EDEADLK: i64 = 35;
pub const ENODATA: i64 = 61;
pub const EOPNOTSUPP: i64 = 95;
pub const ETIMEDOUT: i64 = 110;
pub const EBADF: i64 = 9;
pub const ESRCH: i64 = 3;
/// Errno that user space's errno.h lacks. The kernel returns it for operations that a map's type
/// does not support.
pub const ENOTSUPP: i64 = 524;

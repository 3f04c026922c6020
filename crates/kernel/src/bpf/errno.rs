// SPDX-License-Identifier: GPL-2.0-only
//! Error numbers that kfuncs return (asm-generic/errno*.h).

pub const EPERM: i32 = 1;
pub const ENOENT: i32 = 2;
pub const ENOMEM: i32 = 12;
pub const EEXIST: i32 = 17;
pub const ENODEV: i32 = 19;
pub const EINVAL: i32 = 22;
pub const ERANGE: i32 = 34;
pub const ENODATA: i32 = 61;

// SPDX-License-Identifier: GPL-2.0-only
//! The kernel's types: those that the simulator writes to guest memory, and those against which
//! objects are relocated.
//!
//! Owns: the two forms of `abi/*.h` that `build.rs` generates: Rust structs and BTF. A pointer
//! field is a guest address (u64) and a flag field is a number. Every struct is `Pod`, so the
//! simulator may access it in place in guest memory.
//! Does not: hold behaviour; a kernel function is only a name here, and its code is elsewhere in
//! the crate.
//! Models: the declarations of `abi/kernel.h`.

#[allow(
    missing_docs,
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    unreachable_pub,
    clippy::all,
    reason = "generated from C, names are the kernel's"
)]
mod bindings {
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

pub use bindings::*;

/// BTF of the simulated kernel: types, enumerators, kernel functions and per-CPU variables.
pub const KERNEL_BTF: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/kernel.btf"));

#[cfg(test)]
mod tests;

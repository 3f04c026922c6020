// SPDX-License-Identifier: GPL-2.0-only
//! BPF object files: parsed, inspected, configured, relocated against a kernel's types, and linked
//! into functions and maps that `scxlab_bpf::vm` runs.
//!
//! Owns: ELF, BTF, CO-RE, struct_ops tables, global variables, externs, the checks before a program
//! runs.
//! Does not: run programs, know what a kernel function does.
//! Start at: `object.rs` (parsing), `link.rs` (loading), `inspect.rs` (listing).

#![cfg_attr(not(test), deny(clippy::float_arithmetic, clippy::iter_over_hash_type))]

pub mod btf;
pub mod core_relo;
pub mod inspect;
pub mod link;
pub mod object;
pub mod verify;

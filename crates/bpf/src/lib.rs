// SPDX-License-Identifier: GPL-2.0-only
//! The machine that runs BPF programs: an interpreter and a compiler to machine code, which behave
//! alike, over one linear memory per simulation.
//!
//! Owns: instructions, memory, maps, helpers without kernel knowledge, the interpreter, machine
//! code.
//! Does not: read object files (`scxlab-loader` does), know scheduling. The behaviour of kernel
//! functions comes from an implementation of `vm::Host`, the simulated kernel, which comments call
//! the host.
//! Start at: `vm.rs` (running), `jit.rs` (machine code), `mem.rs` (addresses).

#![cfg_attr(not(test), deny(clippy::float_arithmetic, clippy::iter_over_hash_type))]

pub mod errno;
pub mod fault;
pub mod fmt;
pub mod helper;
pub mod insn;
pub mod jit;
pub mod kfunc;
pub mod map;
pub mod mem;
pub mod timer;
pub mod vm;

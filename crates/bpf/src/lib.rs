// SPDX-License-Identifier: GPL-2.0-only
//! BPF objects and the machine that runs them: ELF, BTF and CO-RE become an image; the image runs on one of
//! two engines that agree, over one linear memory per simulation.
//!
//! Owns: object parsing, relocation, linking, memory, maps, helpers without kernel knowledge, execution.
//! Does not: know what scheduling is. What a kernel function does arrives through `vm::Host`.
//! Start at: `vm.rs` (running), `jit.rs` (machine code), `object.rs` (parsing), `mem.rs` (addresses).

pub mod btf;
pub mod core_relo;
pub mod errno;
pub mod fault;
pub mod fmt;
pub mod helper;
pub mod insn;
pub mod inspect;
pub mod jit;
pub mod kfunc;
pub mod link;
pub mod map;
pub mod mem;
pub mod object;
pub mod timer;
pub mod verify;
pub mod vm;

// SPDX-License-Identifier: GPL-2.0-only
//! Instructions: the raw 8-byte slots of an object, and the decoded form that the interpreter runs.
//!
//! Owns: both formats, the addresses that stand for functions, the text assembler and disassembler.
//! Does not: resolve relocations (see `link` of scxlab-loader); execute (see `vm/interp.rs`).
//! Models: the BPF ISA, versions 1 to 4 (kernel Documentation/bpf/standardization, v7.3).
//! Differs: no legacy packet access and no indirect `gotox`. The decoder refuses an object that
//! uses them, with an error that names them.

use crate::vm::FuncId;

pub mod asm;
mod decode;
mod disasm;
mod op;
pub mod random;
#[cfg(test)]
mod tests;
pub(crate) mod uses;

pub(crate) use decode::access_size;
pub use decode::{DecodeError, DecodeErrorKind, decode};
pub use disasm::disasm;
pub use op::Op;

/// One 8-byte instruction slot, as in an ELF section.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, bytemuck::Pod, bytemuck::Zeroable)]
pub struct RawInsn {
    pub code: u8,
    /// Destination register in the low nibble, source register in the high nibble.
    pub regs: u8,
    pub off: i16,
    pub imm: i32,
}

impl RawInsn {
    pub fn new(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> RawInsn {
        RawInsn { code, regs: (src << 4) | (dst & 0xf), off, imm }
    }

    pub fn dst(self) -> u8 {
        self.regs & 0xf
    }

    pub fn src(self) -> u8 {
        self.regs >> 4
    }
}

/// Values of `src` in a raw call instruction after linking.
pub mod call {
    /// `imm` is a helper id.
    pub const HELPER: u8 = 0;
    /// `imm` is the distance in slots from the next slot to the function's first slot.
    pub const FUNC: u8 = 1;
    /// `imm` is a `KfuncId`, as an i32 bit pattern.
    pub const KFUNC: u8 = 2;
}

/// A decoded instruction. `off` is a byte offset for memory operations and an absolute index into
/// the image's code for jumps. `imm` is a sign-extended immediate, a 64-bit constant, or the called
/// helper, kfunc or function. In a kfunc call, `dst` is the number of argument registers, counted
/// from r5 down, that the kfunc is known not to take; the kfunc receives 0 in place of them.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Insn {
    pub op: Op,
    pub dst: u8,
    pub src: u8,
    pub off: i32,
    pub imm: i64,
}

/// First of the addresses that stand for functions of a program (callbacks). No memory is mapped at
/// these addresses.
pub const FUNC_BASE: u64 = 0xffff_ffff_c000_0000;

/// Returns the address that a program holds as a pointer to one of its functions.
pub fn func_addr(func: FuncId) -> u64 {
    FUNC_BASE + (u64::from(func.0) << 4)
}

/// Inverse of `func_addr`. The caller checks that the image has the function.
pub fn func_of_addr(addr: u64) -> Option<FuncId> {
    let off = addr.checked_sub(FUNC_BASE)?;
    (off & 0xf == 0 && off < 1 << 28).then_some(FuncId((off >> 4) as u32))
}

// SPDX-License-Identifier: GPL-2.0-only
//! Writing a relocation's value into its instruction.
//!
//! Owns: the set of instructions that can take a value, and changing the size of a load or store to
//! the size of the target's field.
//! Models: libbpf `bpf_core_patch_insn()`, v7.3. Differs: an instruction that must not be executed
//! is reported as `Poisoned` instead of being replaced by a call of a helper that does not exist.

use super::RelocResult;
use crate::object::code;
use scxlab_bpf::insn::RawInsn;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Patched {
    Done,
    /// The target lacks the field or enumerator: executing the instruction is a fault.
    Poisoned,
    /// The target's field has another size, and an access of that size would give a wrong value.
    WrongSize,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatchError {
    #[error("instruction of code {code:#04x} cannot take a CO-RE relocation")]
    Instruction { code: u8 },
    #[error("the instruction holds {found}, but the relocation was made for {expected}")]
    Unexpected { found: i64, expected: u64 },
    #[error("offset {value} does not fit the instruction")]
    Range { value: u64 },
    #[error("the instruction accesses {found} bytes, but the field had {expected}")]
    Size { found: u32, expected: u32 },
}

/// Patches `insns[at]`, which may be an `ld_imm64` of two slots.
pub fn patch(insns: &mut [RawInsn], at: usize, r: &RelocResult) -> Result<Patched, PatchError> {
    let Some(insn) = insns.get_mut(at) else {
        return Err(PatchError::Instruction { code: 0 });
    };
    match code::class(insn) {
        code::CLASS_ALU | code::CLASS_ALU64 => patch_immediate(insn, r),
        code::CLASS_LDX | code::CLASS_ST | code::CLASS_STX => patch_access(insn, r),
        code::CLASS_LD => patch_wide(insns, at, r),
        _ => Err(PatchError::Instruction { code: insn.code }),
    }
}

fn patch_immediate(insn: &mut RawInsn, r: &RelocResult) -> Result<Patched, PatchError> {
    const SOURCE_REG: u8 = 0x08;
    if insn.code & SOURCE_REG != 0 {
        return Err(PatchError::Instruction { code: insn.code });
    }
    if r.poison {
        return Ok(Patched::Poisoned);
    }
    // The comparison sign-extends the immediate, as an execution of the instruction does.
    if r.validate && i64::from(insn.imm) as u64 != r.original {
        let found = i64::from(insn.imm);
        return Err(PatchError::Unexpected { found, expected: r.original });
    }
    insn.imm = r.value as i32;
    Ok(Patched::Done)
}

fn patch_access(insn: &mut RawInsn, r: &RelocResult) -> Result<Patched, PatchError> {
    if r.poison {
        return Ok(Patched::Poisoned);
    }
    if r.validate && i64::from(insn.off) as u64 != r.original {
        let found = i64::from(insn.off);
        return Err(PatchError::Unexpected { found, expected: r.original });
    }
    let off = i16::try_from(r.value).map_err(|_| PatchError::Range { value: r.value })?;
    if r.bad_size_change {
        return Ok(Patched::WrongSize);
    }
    if r.size != r.original_size {
        insn.code = resize(insn.code, r)?;
    }
    insn.off = off;
    Ok(Patched::Done)
}

/// Returns the opcode of the access `code` with the size of the target's field.
fn resize(code: u8, r: &RelocResult) -> Result<u8, PatchError> {
    const SIZE_MASK: u8 = 0x18;
    let found = match code & SIZE_MASK {
        0x00 => 4,
        0x08 => 2,
        0x10 => 1,
        _ => 8,
    };
    if found != r.original_size {
        return Err(PatchError::Size { found, expected: r.original_size });
    }
    let size = match r.size {
        4 => 0x00,
        2 => 0x08,
        1 => 0x10,
        8 => 0x18,
        other => {
            return Err(PatchError::Size { found, expected: other });
        }
    };
    Ok(code & !SIZE_MASK | size)
}

fn patch_wide(insns: &mut [RawInsn], at: usize, r: &RelocResult) -> Result<Patched, PatchError> {
    let code = insns[at].code;
    let Some([low, high]) = insns.get_mut(at..at + 2) else {
        return Err(PatchError::Instruction { code });
    };
    let plain = low.code == code::LD_IMM64 && low.src() == 0 && low.off == 0;
    if !plain || high.code != 0 || high.regs != 0 || high.off != 0 {
        return Err(PatchError::Instruction { code });
    }
    if r.poison {
        return Ok(Patched::Poisoned);
    }
    let found = u64::from(low.imm as u32) | u64::from(high.imm as u32) << 32;
    if r.validate && found != r.original {
        return Err(PatchError::Unexpected { found: found as i64, expected: r.original });
    }
    low.imm = r.value as i32;
    high.imm = (r.value >> 32) as i32;
    Ok(Patched::Done)
}

// SPDX-License-Identifier: GPL-2.0-only
//! Decoding of linked 8-byte slots, with the checks that let the interpreter trust the result.
//!
//! Owns: the validity of instructions, jump targets, writes to r10 and direct stack offsets.
//! Does not: verify data flow.
//!
//! In decoded code, every jump leads to an instruction of its own function, execution cannot run
//! past the end of a function, no instruction writes r10, and every direct call leads to the start
//! of a function of the image.

use super::{Insn, Op, RawInsn, call};
use crate::vm::Func;

/// An instruction that no kernel would accept, or that this crate does not support, with its
/// location.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("function \"{func}\", instruction {insn} (code {code:#04x}): {kind}")]
pub struct DecodeError {
    pub func: String,
    /// Slot number within the function.
    pub insn: u32,
    pub code: u8,
    pub kind: DecodeErrorKind,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeErrorKind {
    #[error("unknown instruction")]
    Unknown,
    #[error("reserved field is not zero")]
    Reserved,
    #[error("not supported: {0}")]
    Unsupported(&'static str),
    #[error("no register r{0}")]
    Register(u8),
    #[error("r10 is read-only")]
    WriteFramePointer,
    #[error("stack access at r10{0:+} is outside the frame of 512 bytes")]
    StackOffset(i32),
    #[error("jump to slot {0}, which is not an instruction of this function")]
    JumpTarget(i64),
    #[error("call to slot {0}, where no function begins")]
    CallTarget(i64),
    #[error("64-bit constant without its second slot")]
    HalfConstant,
    #[error("execution can run past the end of the function")]
    FallsOff,
    #[error("the function lies outside the code or overlaps another function")]
    Bounds,
}

use DecodeErrorKind::*;

/// Decodes the code of an image. `probe` marks the slots of loads through kernel pointers, which
/// read 0 where no memory is mapped. `probe` may be shorter than the code. Slots outside all
/// functions become `Pad`, which no program executes.
pub fn decode(raw: &[RawInsn], funcs: &[Func], probe: &[bool]) -> Result<Vec<Insn>, DecodeError> {
    let mut code = vec![PAD; raw.len()];
    let starts = check_bounds(raw, funcs)?;
    for func in funcs {
        let decoder =
            Decoder { raw, start: func.start, end: func.start + func.len, starts: &starts };
        decoder.function(&mut code, probe).map_err(|(at, kind)| DecodeError {
            func: func.name.clone(),
            insn: at - func.start,
            code: raw[at as usize].code,
            kind,
        })?;
    }
    Ok(code)
}

const PAD: Insn = Insn { op: Op::Pad, dst: 0, src: 0, off: 0, imm: 0 };

/// Checks that functions lie inside the code and do not overlap. Returns their first slots, sorted.
fn check_bounds(raw: &[RawInsn], funcs: &[Func]) -> Result<Vec<u32>, DecodeError> {
    let mut order: Vec<&Func> = funcs.iter().collect();
    order.sort_by_key(|func| func.start);
    let mut end = 0;
    for func in &order {
        let stop = u64::from(func.start) + u64::from(func.len);
        if func.len == 0 || u64::from(func.start) < end || stop > raw.len() as u64 {
            let error = DecodeError { func: func.name.clone(), insn: 0, code: 0, kind: Bounds };
            return Err(error);
        }
        end = stop;
    }
    Ok(order.iter().map(|func| func.start).collect())
}

type DecodeResult<T> = Result<T, DecodeErrorKind>;

struct Decoder<'a> {
    raw: &'a [RawInsn],
    start: u32,
    end: u32,
    starts: &'a [u32],
}

impl Decoder<'_> {
    fn function(&self, code: &mut [Insn], probe: &[bool]) -> Result<(), (u32, DecodeErrorKind)> {
        let mut at = self.start;
        let mut last = at;
        while at < self.end {
            let insn = self.insn(at).map_err(|kind| (at, kind))?;
            code[at as usize] =
                if probe.get(at as usize) == Some(&true) { probed(insn) } else { insn };
            last = at;
            at += if insn.op == Op::LdImm64 { 2 } else { 1 };
        }
        let ends = matches!(code[last as usize].op, Op::Exit | Op::Ja);
        if at != self.end || !ends {
            return Err((last, FallsOff));
        }
        self.check_jumps(code)
    }

    /// Refuses jumps into the second slot of a 64-bit constant. Decoding has already checked that
    /// jumps stay in the function.
    fn check_jumps(&self, code: &[Insn]) -> Result<(), (u32, DecodeErrorKind)> {
        for at in self.start..self.end {
            let insn = code[at as usize];
            if is_jump(insn.op) && code[insn.off as usize].op == Op::Pad {
                return Err((at, JumpTarget(i64::from(insn.off) - i64::from(self.start))));
            }
        }
        Ok(())
    }

    fn insn(&self, at: u32) -> DecodeResult<Insn> {
        let raw = self.raw[at as usize];
        for reg in [raw.dst(), raw.src()] {
            if reg > 10 {
                return Err(Register(reg));
            }
        }
        let insn = match raw.code & 7 {
            0x0 => self.load_constant(at, raw)?,
            0x1 => memory_load(raw)?,
            0x2 => store_constant(raw)?,
            0x3 => store_register(raw)?,
            0x4 => alu(raw, false)?,
            0x7 => alu(raw, true)?,
            0x5 => self.jump(at, raw, false)?,
            _ => self.jump(at, raw, true)?,
        };
        check_frame_pointer(insn)?;
        Ok(insn)
    }

    fn load_constant(&self, at: u32, raw: RawInsn) -> DecodeResult<Insn> {
        if raw.code != 0x18 {
            let legacy = matches!(raw.code >> 5, 1 | 2);
            return Err(if legacy { Unsupported("legacy packet access") } else { Unknown });
        }
        let high =
            self.raw.get(at as usize + 1).filter(|_| at + 1 < self.end).ok_or(HalfConstant)?;
        if high.code != 0 || high.regs != 0 || high.off != 0 {
            return Err(HalfConstant);
        }
        // The linker has put the final value of the 64-bit constant into the two slots of the
        // instruction. A source register, which would ask for a relocation, is therefore an error.
        if raw.src() != 0 || raw.off != 0 {
            return Err(Reserved);
        }
        let imm = u64::from(raw.imm as u32) | u64::from(high.imm as u32) << 32;
        Ok(Insn { op: Op::LdImm64, dst: raw.dst(), src: 0, off: 0, imm: imm as i64 })
    }

    fn jump(&self, at: u32, raw: RawInsn, narrow: bool) -> DecodeResult<Insn> {
        let register = raw.code & 8 != 0;
        let kind = raw.code >> 4;
        match (kind, register, narrow) {
            (0x0, false, false) => {
                zero(raw.dst() | raw.src(), 0, raw.imm)?;
                self.goto(Op::Ja, at, raw.off.into())
            }
            (0x0, false, true) => {
                zero(raw.dst() | raw.src(), raw.off, 0)?;
                self.goto(Op::Ja, at, raw.imm.into())
            }
            (0x0, true, _) => Err(Unsupported("indirect goto")),
            (0x8, _, false) => self.call(at, raw, register),
            (0x9, false, false) => {
                zero(raw.regs, raw.off, raw.imm)?;
                Ok(Insn { op: Op::Exit, ..PAD })
            }
            (0xe, false, false) => {
                zero(raw.regs, 0, raw.imm)?;
                self.goto(Op::MayGoto, at, raw.off.into())
            }
            _ => self.branch(at, raw, narrow),
        }
    }

    fn branch(&self, at: u32, raw: RawInsn, narrow: bool) -> DecodeResult<Insn> {
        let (constant, register) = branch_ops(raw.code >> 4, narrow).ok_or(Unknown)?;
        let op = operand(raw, constant, register)?;
        let target = self.target(at, raw.off.into())?;
        Ok(Insn { op, dst: raw.dst(), src: raw.src(), off: target, imm: raw.imm.into() })
    }

    fn goto(&self, op: Op, at: u32, distance: i64) -> DecodeResult<Insn> {
        Ok(Insn { op, off: self.target(at, distance)?, ..PAD })
    }

    /// Returns the absolute index of a jump target inside this function.
    fn target(&self, at: u32, distance: i64) -> DecodeResult<i32> {
        let target = i64::from(at) + 1 + distance;
        let inside = target >= i64::from(self.start) && target < i64::from(self.end);
        let target32 = i32::try_from(target).ok().filter(|_| inside);
        target32.ok_or(JumpTarget(target - i64::from(self.start)))
    }

    fn call(&self, at: u32, raw: RawInsn, register: bool) -> DecodeResult<Insn> {
        if register {
            zero(raw.src(), raw.off, raw.imm)?;
            return Ok(Insn { op: Op::CallReg, dst: raw.dst(), ..PAD });
        }
        if raw.dst() != 0 || raw.off != 0 {
            return Err(Reserved);
        }
        match raw.src() {
            call::HELPER if raw.imm == 12 => Ok(Insn { op: Op::TailCall, imm: 12, ..PAD }),
            call::HELPER => Ok(Insn { op: Op::CallHelper, imm: raw.imm.into(), ..PAD }),
            call::KFUNC => Ok(Insn { op: Op::CallKfunc, imm: (raw.imm as u32).into(), ..PAD }),
            call::FUNC => {
                let target = i64::from(at) + 1 + i64::from(raw.imm);
                let start =
                    u32::try_from(target).ok().filter(|at| self.starts.binary_search(at).is_ok());
                let start =
                    start.and_then(|at| i32::try_from(at).ok()).ok_or(CallTarget(target))?;
                Ok(Insn { op: Op::CallFunc, off: start, imm: start.into(), ..PAD })
            }
            _ => Err(Reserved),
        }
    }
}

/// Refuses non-zero values in fields that an instruction does not use.
fn zero(regs: u8, off: i16, imm: i32) -> DecodeResult<()> {
    if regs == 0 && off == 0 && imm == 0 { Ok(()) } else { Err(Reserved) }
}

/// Returns the operation `register` or `constant`, as the source bit (BPF_X) of a raw instruction
/// selects. The field of the operand that is not selected must be zero.
fn operand(raw: RawInsn, constant: Op, register: Op) -> DecodeResult<Op> {
    if raw.code & 8 != 0 {
        zero(0, 0, raw.imm)?;
        Ok(register)
    } else {
        zero(raw.src(), 0, 0)?;
        Ok(constant)
    }
}

fn plain(raw: RawInsn, op: Op) -> DecodeResult<Insn> {
    Ok(Insn { op, dst: raw.dst(), src: raw.src(), off: raw.off.into(), imm: raw.imm.into() })
}

fn alu(raw: RawInsn, wide: bool) -> DecodeResult<Insn> {
    use Op::*;
    let register = raw.code & 8 != 0;
    let op = match (raw.code >> 4, raw.off) {
        (0x8, 0) => {
            zero(raw.src(), 0, raw.imm)?;
            if register {
                return Err(Reserved);
            }
            if wide { Neg64 } else { Neg32 }
        }
        (0xd, 0) => byte_order(raw, wide)?,
        (0xb, off) if register && off != 0 => move_extended(raw, wide)?,
        (kind @ (0x3 | 0x9), 1) => {
            let (constant, register) = signed_ops(kind, wide);
            operand(raw, constant, register)?
        }
        (kind, 0) => {
            let (constant, register) = alu_ops(kind, wide).ok_or(Unknown)?;
            operand(raw, constant, register)?
        }
        _ => return Err(Reserved),
    };
    Ok(Insn { off: 0, ..plain(raw, op)? })
}

fn byte_order(raw: RawInsn, wide: bool) -> DecodeResult<Op> {
    use Op::*;
    zero(raw.src(), 0, 0)?;
    let big = raw.code & 8 != 0;
    Ok(match (wide, big, raw.imm) {
        (true, false, 16) => Bswap16,
        (true, false, 32) => Bswap32,
        (true, false, 64) => Bswap64,
        (false, false, 16) => Le16,
        (false, false, 32) => Le32,
        (false, false, 64) => Le64,
        (false, true, 16) => Be16,
        (false, true, 32) => Be32,
        (false, true, 64) => Be64,
        _ => return Err(Reserved),
    })
}

/// Decodes moves with a non-zero offset: sign extension, and casts between address spaces.
fn move_extended(raw: RawInsn, wide: bool) -> DecodeResult<Op> {
    use Op::*;
    match (wide, raw.off, raw.imm) {
        // The immediate is `destination << 16 | source`. Address space 1 is the arena's, 0 the
        // kernel's.
        (true, 1, 1) => Ok(CastKern),
        (true, 1, 0x1_0000) => Ok(CastUser),
        // The decoder refuses any other pair of address spaces, as the kernel's verifier does. Such
        // casts occur: for some C code, clang 19 generates casts from address space 0 to 0.
        (true, 1, _) => Err(Unsupported(
            "an address space cast other than between 0 and 1 (the kernel refuses it too)",
        )),
        (true, 8, 0) => Ok(MovSx8To64),
        (true, 16, 0) => Ok(MovSx16To64),
        (true, 32, 0) => Ok(MovSx32To64),
        (false, 8, 0) => Ok(MovSx8To32),
        (false, 16, 0) => Ok(MovSx16To32),
        _ => Err(Reserved),
    }
}

fn memory_load(raw: RawInsn) -> DecodeResult<Insn> {
    use Op::*;
    zero(0, 0, raw.imm)?;
    let op = match raw.code {
        0x71 => LdxB,
        0x69 => LdxH,
        0x61 => LdxW,
        0x79 => LdxDw,
        0x91 => LdxBs,
        0x89 => LdxHs,
        0x81 => LdxWs,
        _ => return Err(Unknown),
    };
    plain(raw, op)
}

fn store_constant(raw: RawInsn) -> DecodeResult<Insn> {
    use Op::*;
    zero(raw.src(), 0, 0)?;
    let op = match raw.code {
        0x72 => StB,
        0x6a => StH,
        0x62 => StW,
        0x7a => StDw,
        _ => return Err(Unknown),
    };
    plain(raw, op)
}

fn store_register(raw: RawInsn) -> DecodeResult<Insn> {
    use Op::*;
    let op = match raw.code {
        0x73 => StxB,
        0x6b => StxH,
        0x63 => StxW,
        0x7b => StxDw,
        0xd3 | 0xcb | 0xc3 | 0xdb => return atomic(raw),
        _ => return Err(Unknown),
    };
    zero(0, 0, raw.imm)?;
    plain(raw, op)
}

fn atomic(raw: RawInsn) -> DecodeResult<Insn> {
    use Op::*;
    let op = match (raw.code, raw.imm) {
        (0xc3, 0x00) => AtomicAddW,
        (0xdb, 0x00) => AtomicAddDw,
        (0xc3, 0x40) => AtomicOrW,
        (0xdb, 0x40) => AtomicOrDw,
        (0xc3, 0x50) => AtomicAndW,
        (0xdb, 0x50) => AtomicAndDw,
        (0xc3, 0xa0) => AtomicXorW,
        (0xdb, 0xa0) => AtomicXorDw,
        (0xc3, 0x01) => AtomicFetchAddW,
        (0xdb, 0x01) => AtomicFetchAddDw,
        (0xc3, 0x41) => AtomicFetchOrW,
        (0xdb, 0x41) => AtomicFetchOrDw,
        (0xc3, 0x51) => AtomicFetchAndW,
        (0xdb, 0x51) => AtomicFetchAndDw,
        (0xc3, 0xa1) => AtomicFetchXorW,
        (0xdb, 0xa1) => AtomicFetchXorDw,
        (0xc3, 0xe1) => AtomicXchgW,
        (0xdb, 0xe1) => AtomicXchgDw,
        (0xc3, 0xf1) => AtomicCmpxchgW,
        (0xdb, 0xf1) => AtomicCmpxchgDw,
        (0xd3, 0x100) => LoadAcqB,
        (0xcb, 0x100) => LoadAcqH,
        (0xc3, 0x100) => LoadAcqW,
        (0xdb, 0x100) => LoadAcqDw,
        (0xd3, 0x110) => StoreRelB,
        (0xcb, 0x110) => StoreRelH,
        (0xc3, 0x110) => StoreRelW,
        (0xdb, 0x110) => StoreRelDw,
        _ => return Err(Unknown),
    };
    plain(raw, op)
}

/// Checks that an instruction does not write r10, and that a direct access through r10 lies in the
/// frame.
fn check_frame_pointer(insn: Insn) -> DecodeResult<()> {
    if written(insn) == Some(10) {
        return Err(WriteFramePointer);
    }
    let Some((base, size)) = accessed(insn) else {
        return Ok(());
    };
    let inside = insn.off >= -512 && insn.off <= -size;
    if base == 10 && !inside { Err(StackOffset(insn.off)) } else { Ok(()) }
}

/// Returns the operand register that an instruction writes. A call or a compare-and-exchange writes
/// fixed registers, which this function leaves out.
fn written(insn: Insn) -> Option<u8> {
    let op = insn.op as u8;
    let fetches = (Op::AtomicFetchAddW as u8..=Op::AtomicXchgDw as u8).contains(&op);
    let loads = (Op::LdxB as u8..=Op::LdxProbeWs as u8).contains(&op);
    let loads = loads || (Op::LoadAcqB as u8..=Op::LoadAcqDw as u8).contains(&op);
    if fetches {
        Some(insn.src)
    } else if loads || op <= Op::LdImm64 as u8 {
        Some(insn.dst)
    } else {
        None
    }
}

/// Returns base register and size in bytes of a memory access.
fn accessed(insn: Insn) -> Option<(u8, i32)> {
    let op = insn.op as u8;
    let size = access_size(insn.op)?;
    let loads = (Op::LdxB as u8..=Op::LdxProbeWs as u8).contains(&op);
    let loads = loads || (Op::LoadAcqB as u8..=Op::LoadAcqDw as u8).contains(&op);
    Some((if loads { insn.src } else { insn.dst }, size))
}

/// Returns the number of bytes that a memory instruction moves.
pub(crate) fn access_size(op: Op) -> Option<i32> {
    use Op::*;
    Some(match op {
        LdxB | LdxBs | LdxProbeB | LdxProbeBs | StxB | StB | LoadAcqB | StoreRelB => 1,
        LdxH | LdxHs | LdxProbeH | LdxProbeHs | StxH | StH | LoadAcqH | StoreRelH => 2,
        LdxW | LdxWs | LdxProbeW | LdxProbeWs | StxW | StW | LoadAcqW | StoreRelW => 4,
        LdxDw | LdxProbeDw | StxDw | StDw | LoadAcqDw | StoreRelDw => 8,
        AtomicAddW | AtomicOrW | AtomicAndW | AtomicXorW | AtomicFetchAddW | AtomicFetchOrW => 4,
        AtomicFetchAndW | AtomicFetchXorW | AtomicXchgW | AtomicCmpxchgW => 4,
        AtomicAddDw | AtomicOrDw | AtomicAndDw | AtomicXorDw | AtomicFetchAddDw => 8,
        AtomicFetchOrDw | AtomicFetchAndDw | AtomicFetchXorDw | AtomicXchgDw | AtomicCmpxchgDw => 8,
        _ => return None,
    })
}

pub(super) fn is_jump(op: Op) -> bool {
    (Op::Ja as u8..=Op::Jset32X as u8).contains(&(op as u8))
}

/// Turns a load into the form that reads 0 where no memory is mapped.
fn probed(insn: Insn) -> Insn {
    use Op::*;
    let op = match insn.op {
        LdxB => LdxProbeB,
        LdxH => LdxProbeH,
        LdxW => LdxProbeW,
        LdxDw => LdxProbeDw,
        LdxBs => LdxProbeBs,
        LdxHs => LdxProbeHs,
        LdxWs => LdxProbeWs,
        other => other,
    };
    Insn { op, ..insn }
}

fn signed_ops(kind: u8, wide: bool) -> (Op, Op) {
    use Op::*;
    match (kind, wide) {
        (0x3, true) => (SDiv64K, SDiv64X),
        (0x3, false) => (SDiv32K, SDiv32X),
        (_, true) => (SMod64K, SMod64X),
        (_, false) => (SMod32K, SMod32X),
    }
}

fn alu_ops(kind: u8, wide: bool) -> Option<(Op, Op)> {
    use Op::*;
    Some(match (kind, wide) {
        (0x0, true) => (Add64K, Add64X),
        (0x0, false) => (Add32K, Add32X),
        (0x1, true) => (Sub64K, Sub64X),
        (0x1, false) => (Sub32K, Sub32X),
        (0x2, true) => (Mul64K, Mul64X),
        (0x2, false) => (Mul32K, Mul32X),
        (0x3, true) => (Div64K, Div64X),
        (0x3, false) => (Div32K, Div32X),
        (0x4, true) => (Or64K, Or64X),
        (0x4, false) => (Or32K, Or32X),
        (0x5, true) => (And64K, And64X),
        (0x5, false) => (And32K, And32X),
        (0x6, true) => (Lsh64K, Lsh64X),
        (0x6, false) => (Lsh32K, Lsh32X),
        (0x7, true) => (Rsh64K, Rsh64X),
        (0x7, false) => (Rsh32K, Rsh32X),
        (0x9, true) => (Mod64K, Mod64X),
        (0x9, false) => (Mod32K, Mod32X),
        (0xa, true) => (Xor64K, Xor64X),
        (0xa, false) => (Xor32K, Xor32X),
        (0xb, true) => (Mov64K, Mov64X),
        (0xb, false) => (Mov32K, Mov32X),
        (0xc, true) => (Arsh64K, Arsh64X),
        (0xc, false) => (Arsh32K, Arsh32X),
        _ => return None,
    })
}

fn branch_ops(kind: u8, narrow: bool) -> Option<(Op, Op)> {
    use Op::*;
    Some(match (kind, narrow) {
        (0x1, false) => (Jeq64K, Jeq64X),
        (0x1, true) => (Jeq32K, Jeq32X),
        (0x2, false) => (Jgt64K, Jgt64X),
        (0x2, true) => (Jgt32K, Jgt32X),
        (0x3, false) => (Jge64K, Jge64X),
        (0x3, true) => (Jge32K, Jge32X),
        (0x4, false) => (Jset64K, Jset64X),
        (0x4, true) => (Jset32K, Jset32X),
        (0x5, false) => (Jne64K, Jne64X),
        (0x5, true) => (Jne32K, Jne32X),
        (0x6, false) => (Jsgt64K, Jsgt64X),
        (0x6, true) => (Jsgt32K, Jsgt32X),
        (0x7, false) => (Jsge64K, Jsge64X),
        (0x7, true) => (Jsge32K, Jsge32X),
        (0xa, false) => (Jlt64K, Jlt64X),
        (0xa, true) => (Jlt32K, Jlt32X),
        (0xb, false) => (Jle64K, Jle64X),
        (0xb, true) => (Jle32K, Jle32X),
        (0xc, false) => (Jslt64K, Jslt64X),
        (0xc, true) => (Jslt32K, Jslt32X),
        (0xd, false) => (Jsle64K, Jsle64X),
        (0xd, true) => (Jsle32K, Jsle32X),
        _ => return None,
    })
}

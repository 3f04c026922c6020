// SPDX-License-Identifier: GPL-2.0-only
//! Arithmetic and conditions in Cranelift's intermediate code.
//!
//! Owns: arithmetic and conditions that behave like the interpreter's. Does not: touch memory or
//! control flow.

use cranelift_codegen::ir::condcodes::IntCC;
use cranelift_codegen::ir::{BlockArg, InstBuilder, Type, Value, types};

use super::ctx::at;
use super::translate::{I32, I64, Translator, flags};
use crate::insn::uses::has_constant;
use crate::insn::{Insn, Op};

/// A two-operand operation and its width.
pub struct Binary {
    pub kind: BinaryOp,
    pub ty: Type,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum BinaryOp {
    Add,
    Sub,
    Mul,
    Div,
    Or,
    And,
    Lsh,
    Rsh,
    Mod,
    Xor,
    Mov,
    Arsh,
    SDiv,
    SMod,
}

impl Translator<'_, '_> {
    pub fn alu(&mut self, insn: &Insn) {
        use Op::*;
        let value = match insn.op {
            LdImm64 => self.iconst(insn.imm as u64),
            Neg64 => {
                let value = self.reg(insn.dst);
                self.b.ins().ineg(value)
            }
            Neg32 => {
                let value = self.narrow(insn.dst, I32);
                let value = self.b.ins().ineg(value);
                self.b.ins().uextend(I64, value)
            }
            MovSx8To64 => self.sign_extended(insn.src, types::I8, I64),
            MovSx16To64 => self.sign_extended(insn.src, types::I16, I64),
            MovSx32To64 => self.sign_extended(insn.src, types::I32, I64),
            MovSx8To32 => self.sign_extended(insn.src, types::I8, I32),
            MovSx16To32 => self.sign_extended(insn.src, types::I16, I32),
            Le16 => self.bytes(insn.dst, types::I16, false),
            Le32 => self.bytes(insn.dst, types::I32, false),
            Le64 => return,
            Be16 | Bswap16 => self.bytes(insn.dst, types::I16, true),
            Be32 | Bswap32 => self.bytes(insn.dst, types::I32, true),
            Be64 | Bswap64 => {
                let value = self.reg(insn.dst);
                self.b.ins().bswap(value)
            }
            CastKern | CastUser => self.cast(insn.src),
            op => {
                let binary = binary(op);
                self.binary(insn, binary)
            }
        };
        self.set_reg(insn.dst, value);
    }

    fn binary(&mut self, insn: &Insn, Binary { kind, ty }: Binary) -> Value {
        let y = if has_constant(insn.op) {
            let imm = if ty == I32 { i64::from(insn.imm as u32) } else { insn.imm };
            self.b.ins().iconst(ty, imm)
        } else {
            self.narrow(insn.src, ty)
        };
        let value = if kind == BinaryOp::Mov {
            y
        } else {
            let x = self.narrow(insn.dst, ty);
            let by_constant = has_constant(insn.op) && insn.imm != 0;
            match kind {
                // A constant divisor needs no check for 0. The compiler turns such a division into
                // a multiplication.
                BinaryOp::Div | BinaryOp::Mod if by_constant => self.quotient(kind, x, y),
                kind => self.apply(kind, x, y, ty),
            }
        };
        if ty == I32 { self.b.ins().uextend(I64, value) } else { value }
    }

    fn apply(&mut self, kind: BinaryOp, x: Value, y: Value, ty: Type) -> Value {
        match kind {
            BinaryOp::Add => self.b.ins().iadd(x, y),
            BinaryOp::Sub => self.b.ins().isub(x, y),
            BinaryOp::Mul => self.b.ins().imul(x, y),
            BinaryOp::Or => self.b.ins().bor(x, y),
            BinaryOp::And => self.b.ins().band(x, y),
            BinaryOp::Xor => self.b.ins().bxor(x, y),
            // Cranelift takes shift amounts modulo the width, as BPF does, so no mask is needed.
            BinaryOp::Lsh => self.b.ins().ishl(x, y),
            BinaryOp::Rsh => self.b.ins().ushr(x, y),
            BinaryOp::Arsh => self.b.ins().sshr(x, y),
            BinaryOp::Mov => y,
            BinaryOp::Div | BinaryOp::Mod => self.divide(kind, x, y, ty),
            BinaryOp::SDiv | BinaryOp::SMod => self.divide_signed(kind, x, y, ty),
        }
    }

    /// Divides as BPF does: if the divisor is zero, the quotient is 0 and the remainder is the
    /// dividend. The machine then divides by 1 instead of 0.
    fn divide(&mut self, kind: BinaryOp, x: Value, y: Value, ty: Type) -> Value {
        let zero = self.b.ins().iconst(ty, 0);
        let one = self.b.ins().iconst(ty, 1);
        let by_zero = self.b.ins().icmp(IntCC::Equal, y, zero);
        let safe = self.b.ins().select(by_zero, one, y);
        let result =
            if ty == I64 { self.divide_wide(kind, x, safe) } else { self.quotient(kind, x, safe) };
        let otherwise = if kind == BinaryOp::Div { zero } else { x };
        self.b.ins().select(by_zero, otherwise, result)
    }

    fn quotient(&mut self, kind: BinaryOp, x: Value, y: Value) -> Value {
        if kind == BinaryOp::Div { self.b.ins().udiv(x, y) } else { self.b.ins().urem(x, y) }
    }

    /// Divides 64-bit numbers. If both numbers fit 32 bits, as most do, the code makes a 32-bit
    /// division, which takes half the time or less. C compilers do the same.
    fn divide_wide(&mut self, kind: BinaryOp, x: Value, y: Value) -> Value {
        let (short, long, done) = (self.block(false), self.block(false), self.block(false));
        let result = self.b.append_block_param(done, I64);
        let both = self.b.ins().bor(x, y);
        let upper = self.b.ins().ushr_imm_u(both, 32);
        self.b.ins().brif(upper, long, &[], short, &[]);
        self.enter(short);
        let (x32, y32) = (self.b.ins().ireduce(I32, x), self.b.ins().ireduce(I32, y));
        let value = self.quotient(kind, x32, y32);
        let value = self.b.ins().uextend(I64, value);
        self.b.ins().jump(done, &[BlockArg::Value(value)]);
        self.enter(long);
        let value = self.quotient(kind, x, y);
        self.b.ins().jump(done, &[BlockArg::Value(value)]);
        self.enter(done);
        result
    }

    /// Divides signed numbers. A division by -1 becomes a negation, with remainder 0, because the
    /// one overflow of a signed division must wrap.
    fn divide_signed(&mut self, kind: BinaryOp, x: Value, y: Value, ty: Type) -> Value {
        let zero = self.b.ins().iconst(ty, 0);
        let one = self.b.ins().iconst(ty, 1);
        let minus_one = self.b.ins().iconst(ty, if ty == I32 { 0xffff_ffff } else { -1 });
        let by_zero = self.b.ins().icmp(IntCC::Equal, y, zero);
        let negated = self.b.ins().icmp(IntCC::Equal, y, minus_one);
        let either = self.b.ins().bor(by_zero, negated);
        let safe = self.b.ins().select(either, one, y);
        if kind == BinaryOp::SDiv {
            let quotient = self.b.ins().sdiv(x, safe);
            let negative = self.b.ins().ineg(x);
            let result = self.b.ins().select(negated, negative, quotient);
            self.b.ins().select(by_zero, zero, result)
        } else {
            let remainder = self.b.ins().srem(x, safe);
            self.b.ins().select(by_zero, x, remainder)
        }
    }

    /// Returns the low bits of a register, as many as `ty` has.
    pub fn narrow(&mut self, reg: u8, ty: Type) -> Value {
        let value = self.reg(reg);
        if ty == I64 { value } else { self.b.ins().ireduce(ty, value) }
    }

    fn sign_extended(&mut self, reg: u8, from: Type, to: Type) -> Value {
        let value = self.narrow(reg, from);
        let value = self.b.ins().sextend(to, value);
        if to == I64 { value } else { self.b.ins().uextend(I64, value) }
    }

    fn bytes(&mut self, reg: u8, ty: Type, swap: bool) -> Value {
        let value = self.narrow(reg, ty);
        let value = if swap { self.b.ins().bswap(value) } else { value };
        self.b.ins().uextend(I64, value)
    }

    /// Casts a pointer: NULL stays NULL, any other value becomes an address in the arena's window.
    fn cast(&mut self, reg: u8) -> Value {
        let low = self.bytes(reg, I32, false);
        let arena = self.b.ins().load(I64, flags().with_readonly(), self.ctx, at::ARENA_BASE);
        let inside = self.b.ins().bor(arena, low);
        let null = self.b.ins().icmp_imm_s(IntCC::Equal, low, 0);
        self.b.ins().select(null, low, inside)
    }

    /// Returns an integer that is non-zero if a conditional jump is taken.
    pub fn condition(&mut self, insn: &Insn) -> Value {
        let (test, ty) = condition(insn.op);
        let x = self.narrow(insn.dst, ty);
        let y = if has_constant(insn.op) {
            let imm = if ty == I32 { i64::from(insn.imm as u32) } else { insn.imm };
            self.b.ins().iconst(ty, imm)
        } else {
            self.narrow(insn.src, ty)
        };
        match test {
            Some(cc) => self.b.ins().icmp(cc, x, y),
            None => self.b.ins().band(x, y),
        }
    }
}

pub fn binary(op: Op) -> Binary {
    use BinaryOp::*;
    use Op::*;
    let (kind, ty) = match op {
        Add64K | Add64X => (Add, I64),
        Sub64K | Sub64X => (Sub, I64),
        Mul64K | Mul64X => (Mul, I64),
        Div64K | Div64X => (Div, I64),
        Or64K | Or64X => (Or, I64),
        And64K | And64X => (And, I64),
        Lsh64K | Lsh64X => (Lsh, I64),
        Rsh64K | Rsh64X => (Rsh, I64),
        Mod64K | Mod64X => (Mod, I64),
        Xor64K | Xor64X => (Xor, I64),
        Mov64K | Mov64X => (Mov, I64),
        Arsh64K | Arsh64X => (Arsh, I64),
        SDiv64K | SDiv64X => (SDiv, I64),
        SMod64K | SMod64X => (SMod, I64),
        Add32K | Add32X => (Add, I32),
        Sub32K | Sub32X => (Sub, I32),
        Mul32K | Mul32X => (Mul, I32),
        Div32K | Div32X => (Div, I32),
        Or32K | Or32X => (Or, I32),
        And32K | And32X => (And, I32),
        Lsh32K | Lsh32X => (Lsh, I32),
        Rsh32K | Rsh32X => (Rsh, I32),
        Mod32K | Mod32X => (Mod, I32),
        Xor32K | Xor32X => (Xor, I32),
        Mov32K | Mov32X => (Mov, I32),
        Arsh32K | Arsh32X => (Arsh, I32),
        SDiv32K | SDiv32X => (SDiv, I32),
        SMod32K | SMod32X => (SMod, I32),
        other => unreachable!("{other:?} is no operation of two operands"),
    };
    Binary { kind, ty }
}

/// Returns the comparison that a conditional jump makes (None for a test of bits), and the width of
/// the compared values.
pub fn condition(op: Op) -> (Option<IntCC>, Type) {
    use IntCC::*;
    use Op::*;
    let test = match op {
        Jeq64K | Jeq64X | Jeq32K | Jeq32X => Some(Equal),
        Jne64K | Jne64X | Jne32K | Jne32X => Some(NotEqual),
        Jgt64K | Jgt64X | Jgt32K | Jgt32X => Some(UnsignedGreaterThan),
        Jge64K | Jge64X | Jge32K | Jge32X => Some(UnsignedGreaterThanOrEqual),
        Jlt64K | Jlt64X | Jlt32K | Jlt32X => Some(UnsignedLessThan),
        Jle64K | Jle64X | Jle32K | Jle32X => Some(UnsignedLessThanOrEqual),
        Jsgt64K | Jsgt64X | Jsgt32K | Jsgt32X => Some(SignedGreaterThan),
        Jsge64K | Jsge64X | Jsge32K | Jsge32X => Some(SignedGreaterThanOrEqual),
        Jslt64K | Jslt64X | Jslt32K | Jslt32X => Some(SignedLessThan),
        Jsle64K | Jsle64X | Jsle32K | Jsle32X => Some(SignedLessThanOrEqual),
        _ => None,
    };
    let wide = (op as u8) < Jeq32K as u8;
    (test, if wide { I64 } else { I32 })
}

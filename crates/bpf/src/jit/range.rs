// SPDX-License-Identifier: GPL-2.0-only
//! What is known of a value: the range of numbers that it lies in, or how far from the frame pointer it points.
//!
//! Owns: what arithmetic, loads and comparisons with constants do to that. Does not: follow a function (see `facts.rs`).
//! It is what the kernel's verifier keeps of a value, less its single bits: an index that was masked or compared before it is
//! used needs no check at run time. Wherever nothing better is said, a value may be anything.

#[cfg(test)]
mod tests;

use super::alu::{Binary, Kind, binary, condition};
use super::translate::I32;
use crate::insn::uses::{has_constant, is_load};
use crate::insn::{Insn, Op, access_size};
use crate::vm::interp::signed;
use cranelift_codegen::ir::condcodes::{CondCode, IntCC};

/// The value of a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// Not below the first number and not above the second, without a sign.
    Number(u64, u64),
    /// r10 and so much, from one number to another.
    Frame(i32, i32),
    /// Probably an address in the frame: made from r10 and what is not known. It may be anything.
    Near,
    /// What a lookup has returned: nothing, or the address of an element.
    Found(Found),
}

/// The result of a call of a lookup, the last one of that call: 0, or not below the first element and not above the last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The call's slot: wherever it stands, it is the same value.
    pub call: u32,
    pub first: u64,
    pub last: u64,
}

impl Default for Known {
    fn default() -> Known {
        Known::NOTHING
    }
}

impl Known {
    pub const NOTHING: Known = Known::Number(0, u64::MAX);
    const WORD: Known = Known::Number(0, u32::MAX as u64);

    pub fn constant(value: u64) -> Known {
        Known::Number(value, value)
    }

    /// Of a value that is one or the other.
    pub fn join(self, other: Known) -> Known {
        match (self, other) {
            (Known::Number(a, b), Known::Number(c, d)) => Known::Number(a.min(c), b.max(d)),
            (Known::Frame(a, b), Known::Frame(c, d)) => Known::Frame(a.min(c), b.max(d)),
            (Known::Frame(..) | Known::Near, Known::Frame(..) | Known::Near) => Known::Near,
            (Known::Found(one), Known::Found(other)) if one == other => self,
            _ => Known::NOTHING,
        }
    }

    /// Of a value that has grown from what it was: as far as one of the `ends`, which are in order.
    pub fn grown(self, was: Known, ends: &[u64]) -> Known {
        let (Known::Number(low, high), Known::Number(old_low, old_high)) = (self, was) else {
            return self;
        };
        let end = ends.iter().copied().find(|end| *end >= high).unwrap_or(u64::MAX);
        Known::Number(if low < old_low { 0 } else { low }, if high > old_high { end } else { high })
    }

    /// Of a value that does not stop growing.
    pub fn given_up(self) -> Known {
        match self {
            Known::Number(..) => Known::NOTHING,
            Known::Frame(..) | Known::Near => Known::Near,
            Known::Found(_) => Known::NOTHING,
        }
    }

    /// As a number: an address in the frame may be any.
    fn bounds(self) -> (u64, u64) {
        match self {
            Known::Number(low, high) => (low, high),
            Known::Frame(..) | Known::Near => (0, u64::MAX),
            Known::Found(found) => (0, found.last),
        }
    }

    /// Its lower half.
    fn low_half(self) -> Known {
        match self {
            Known::Number(_, high) if high <= u64::from(u32::MAX) => self,
            _ => Known::WORD,
        }
    }
}

/// What an instruction that writes `dst` and is no call leaves there.
pub fn result(insn: &Insn, dst: Known, src: Known) -> Known {
    use Op::*;
    match insn.op {
        LdImm64 => Known::constant(insn.imm as u64),
        op if is_load(op) => loaded(op),
        op if (op as u8) < Neg64 as u8 => {
            let Binary { kind, ty } = binary(op);
            let constant = has_constant(op).then_some(insn.imm as u64);
            if ty == I32 {
                let word = |value| Known::constant(u64::from(value as u32));
                let operand = constant.map_or(src.low_half(), word);
                arithmetic(kind, dst.low_half(), operand, 32).low_half()
            } else {
                arithmetic(kind, dst, constant.map_or(src, Known::constant), 64)
            }
        }
        Neg32 | MovSx8To32 | MovSx16To32 => Known::WORD,
        _ => Known::NOTHING,
    }
}

fn loaded(op: Op) -> Known {
    match access_size(op) {
        Some(size @ 1..8) if !signed(op) => Known::Number(0, u64::MAX >> (64 - 8 * size)),
        _ => Known::NOTHING,
    }
}

/// Exact, or wider. Of 32 bits, both values fit them, and a result that does not says nothing.
fn arithmetic(kind: Kind, x: Known, y: Known, bits: u32) -> Known {
    let ((a, b), (c, d)) = (x.bounds(), y.bounds());
    let amount = |amount: u64| amount as u32 & (bits - 1);
    let found = match kind {
        Kind::Mov => return y,
        Kind::Add | Kind::Sub => return sum(kind, x, y),
        Kind::Mul => b.checked_mul(d).map(|high| (a.wrapping_mul(c), high)),
        Kind::And => Some((if (a, c) == (b, d) { a & c } else { 0 }, b.min(d))),
        Kind::Or => Some((a.max(c), filled(b | d))),
        Kind::Xor => Some((0, filled(b | d))),
        Kind::Lsh if c == d && b.leading_zeros() >= amount(c) => {
            Some((a << amount(c), b << amount(c)))
        }
        Kind::Rsh if c == d => Some((a >> amount(c), b >> amount(c))),
        Kind::Rsh => Some((0, b)),
        // By zero it is zero.
        Kind::Div => Some((if c == 0 { 0 } else { a / d }, b / c.max(1))),
        Kind::Mod => Some((0, if c == 0 { b } else { b.min(d - 1) })),
        Kind::Lsh | Kind::Arsh | Kind::SDiv | Kind::SMod => None,
    };
    found.map_or(Known::NOTHING, |(low, high)| Known::Number(low, high))
}

/// All bits below the highest that is set, and that one.
fn filled(value: u64) -> u64 {
    u64::MAX.checked_shr(value.leading_zeros()).unwrap_or(0)
}

/// A sum or difference. A range that wraps as a whole stays one: constants with a sign are large numbers.
fn sum(kind: Kind, x: Known, y: Known) -> Known {
    let minus = kind == Kind::Sub;
    match (x, y) {
        (Known::Number(a, b), Known::Number(c, d)) => {
            let [a, b, c, d] = [a, b, c, d].map(i128::from);
            let (low, high) = if minus { (a - d, b - c) } else { (a + c, b + d) };
            if low >> 64 != high >> 64 {
                return Known::NOTHING;
            }
            Known::Number(low as u64, high as u64)
        }
        (Known::Frame(from, to), y @ Known::Number(..)) => moved(from, to, y, minus),
        (x @ Known::Number(..), Known::Frame(from, to)) if !minus => moved(from, to, x, false),
        (Known::Near, Known::Number(..)) => Known::Near,
        (Known::Number(..), Known::Near) if !minus => Known::Near,
        _ => Known::NOTHING,
    }
}

fn moved(from: i32, to: i32, by: Known, minus: bool) -> Known {
    let (low, high) = by.bounds();
    // With a sign.
    let (low, high) = (low as i64, high as i64);
    if low > high {
        return Known::Near;
    }
    let (from, to) = if minus {
        (i64::from(from).checked_sub(high), i64::from(to).checked_sub(low))
    } else {
        (i64::from(from).checked_add(low), i64::from(to).checked_add(high))
    };
    let narrow = |at: Option<i64>| at.and_then(|at| i32::try_from(at).ok());
    match (narrow(from), narrow(to)) {
        (Some(from), Some(to)) => Known::Frame(from, to),
        _ => Known::Near,
    }
}

/// What a value is after a comparison with a constant that was or was not true; None if it cannot be so.
pub fn compared(insn: &Insn, value: Known, taken: bool) -> Option<Known> {
    let (Some(test), ty) = condition(insn.op) else { return Some(value) };
    let Known::Number(low, high) = value else { return Some(value) };
    // The upper half of a longer number is not looked at.
    if !has_constant(insn.op) || ty == I32 && high > u64::from(u32::MAX) {
        return Some(value);
    }
    let with = if ty == I32 { u64::from(insn.imm as u32) } else { insn.imm as u64 };
    let test = if taken { test } else { test.complement() };
    let (from, to) = match test {
        IntCC::Equal => (with, with),
        IntCC::NotEqual if low == with => (with.checked_add(1)?, u64::MAX),
        IntCC::NotEqual if high == with => (0, with.checked_sub(1)?),
        IntCC::UnsignedLessThan => (0, with.checked_sub(1)?),
        IntCC::UnsignedLessThanOrEqual => (0, with),
        IntCC::UnsignedGreaterThan => (with.checked_add(1)?, u64::MAX),
        IntCC::UnsignedGreaterThanOrEqual => (with, u64::MAX),
        _ => (0, u64::MAX),
    };
    let (low, high) = (low.max(from), high.min(to));
    (low <= high).then_some(Known::Number(low, high))
}

// SPDX-License-Identifier: GPL-2.0-only
//! Known range of a value: the numbers that it lies between, or its distance from the frame
//! pointer.
//!
//! Owns: the effect of arithmetic, loads and comparisons with constants on ranges.
//! Does not: follow a function (see `facts.rs`).
//!
//! The kernel's verifier tracks the same ranges, and single bits besides. An index that the program
//! masks or compares before its use needs no check at run time. A value of which nothing is known
//! may be any number.

#[cfg(test)]
mod tests;

use super::alu::{Binary, BinaryOp, binary, condition};
use super::translate::I32;
use crate::insn::uses::{has_constant, is_load};
use crate::insn::{Insn, Op, access_size};
use crate::vm::interp::signed;
use cranelift_codegen::ir::condcodes::{CondCode, IntCC};

/// What is known of a register's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Known {
    /// An unsigned number, not below the first and not above the second.
    Number(u64, u64),
    /// r10 plus an offset in bytes, not below the first number and not above the second.
    Frame(i32, i32),
    /// Probably an address in the frame: computed from r10 and an unknown value. It may be
    /// anything.
    LikelyFrame,
    /// Result of a lookup: 0, or the address of an element.
    Found(LookupResult),
}

/// Result of the latest execution of a lookup call: 0, or an address not below `first` and not
/// above `last`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LookupResult {
    /// Slot of the call. Registers with the same `LookupResult` hold the same value.
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

    /// Returns the only number that the value may be, if there is one.
    pub fn value(self) -> Option<u64> {
        match self {
            Known::Number(low, high) if low == high => Some(low),
            _ => None,
        }
    }

    /// Returns what is known of a value that lies in one of two ranges.
    pub fn join(self, other: Known) -> Known {
        match (self, other) {
            (Known::Number(a, b), Known::Number(c, d)) => Known::Number(a.min(c), b.max(d)),
            (Known::Frame(a, b), Known::Frame(c, d)) => Known::Frame(a.min(c), b.max(d)),
            (Known::Frame(..) | Known::LikelyFrame, Known::Frame(..) | Known::LikelyFrame) => {
                Known::LikelyFrame
            }
            (Known::Found(one), Known::Found(other)) if one == other => self,
            _ => Known::NOTHING,
        }
    }

    /// Widens a range that has grown since `was`, so that the analysis terminates: an upper end
    /// that has grown moves to the next of the sorted `stops`, a lower end to 0.
    pub fn widened(self, was: Known, stops: &[u64]) -> Known {
        let (Known::Number(low, high), Known::Number(old_low, old_high)) = (self, was) else {
            return self;
        };
        let end = stops.iter().copied().find(|end| *end >= high).unwrap_or(u64::MAX);
        Known::Number(if low < old_low { 0 } else { low }, if high > old_high { end } else { high })
    }

    /// Returns what remains known of a value whose range does not stop growing.
    pub fn unbounded(self) -> Known {
        match self {
            Known::Number(..) => Known::NOTHING,
            Known::Frame(..) | Known::LikelyFrame => Known::LikelyFrame,
            Known::Found(_) => Known::NOTHING,
        }
    }

    /// Returns the least and the greatest number that the value may be. A frame address may be any
    /// number.
    fn bounds(self) -> (u64, u64) {
        match self {
            Known::Number(low, high) => (low, high),
            Known::Frame(..) | Known::LikelyFrame => (0, u64::MAX),
            Known::Found(found) => (0, found.last),
        }
    }

    /// Returns the range of the value's lower 32 bits.
    fn low_half(self) -> Known {
        match self {
            Known::Number(_, high) if high <= u64::from(u32::MAX) => self,
            _ => Known::WORD,
        }
    }
}

/// Returns the range of `dst` after an instruction that writes it and is not a call.
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

/// Returns the exact range of a result or a wider one. If `bits` is 32, both operands fit 32 bits,
/// and the caller replaces a range that does not fit 32 bits by the range of all 32-bit values.
fn arithmetic(kind: BinaryOp, x: Known, y: Known, bits: u32) -> Known {
    let ((a, b), (c, d)) = (x.bounds(), y.bounds());
    let amount = |amount: u64| amount as u32 & (bits - 1);
    let found = match kind {
        BinaryOp::Mov => return y,
        BinaryOp::Add | BinaryOp::Sub => return sum(kind, x, y),
        BinaryOp::Mul => b.checked_mul(d).map(|high| (a.wrapping_mul(c), high)),
        BinaryOp::And => Some((if (a, c) == (b, d) { a & c } else { 0 }, b.min(d))),
        BinaryOp::Or => Some((a.max(c), filled(b | d))),
        BinaryOp::Xor => Some((0, filled(b | d))),
        BinaryOp::Lsh if c == d && b.leading_zeros() >= amount(c) => {
            Some((a << amount(c), b << amount(c)))
        }
        BinaryOp::Rsh if c == d => Some((a >> amount(c), b >> amount(c))),
        BinaryOp::Rsh => Some((0, b)),
        // Division by zero gives zero, so a quotient may be 0 if the divisor may be.
        BinaryOp::Div => Some((if c == 0 { 0 } else { a / d }, b / c.max(1))),
        BinaryOp::Mod => Some((0, if c == 0 { b } else { b.min(d - 1) })),
        BinaryOp::Lsh | BinaryOp::Arsh | BinaryOp::SDiv | BinaryOp::SMod => None,
    };
    found.map_or(Known::NOTHING, |(low, high)| Known::Number(low, high))
}

/// Returns a mask of the highest set bit and all bits below it.
fn filled(value: u64) -> u64 {
    u64::MAX.checked_shr(value.leading_zeros()).unwrap_or(0)
}

/// Returns the range of a sum or difference. If both ends of a range wrap, the function keeps the
/// wrapped range, because negative constants are large unsigned numbers.
fn sum(kind: BinaryOp, x: Known, y: Known) -> Known {
    let minus = kind == BinaryOp::Sub;
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
        (Known::LikelyFrame, Known::Number(..)) => Known::LikelyFrame,
        (Known::Number(..), Known::LikelyFrame) if !minus => Known::LikelyFrame,
        _ => Known::NOTHING,
    }
}

fn moved(from: i32, to: i32, by: Known, minus: bool) -> Known {
    let (low, high) = by.bounds();
    // The number that is added or subtracted is a distance in bytes, which may be negative.
    let (low, high) = (low as i64, high as i64);
    if low > high {
        return Known::LikelyFrame;
    }
    let (from, to) = if minus {
        (i64::from(from).checked_sub(high), i64::from(to).checked_sub(low))
    } else {
        (i64::from(from).checked_add(low), i64::from(to).checked_add(high))
    };
    let narrow = |at: Option<i64>| at.and_then(|at| i32::try_from(at).ok());
    match (narrow(from), narrow(to)) {
        (Some(from), Some(to)) => Known::Frame(from, to),
        _ => Known::LikelyFrame,
    }
}

/// Returns the range of a value after a jump that compares the value with a constant. `taken` tells
/// whether the program takes the jump. Returns None if that outcome is impossible.
pub fn compared(insn: &Insn, value: Known, taken: bool) -> Option<Known> {
    let (Some(test), ty) = condition(insn.op) else { return Some(value) };
    let Known::Number(low, high) = value else { return Some(value) };
    // A 32-bit comparison says nothing about the upper half of a longer number, so the range stays.
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

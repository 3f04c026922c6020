// SPDX-License-Identifier: GPL-2.0-only
//! Tests of arithmetic against results that the tests compute in 128 bits and then truncate.

use proptest::prelude::*;

use super::*;

/// Computes `a op b` in `bits` bits, as the ISA document defines it.
fn expected(op: &str, a: u64, b: u64, bits: u32) -> u64 {
    let mask = (1u128 << bits) - 1;
    let (ua, ub) = (u128::from(a) & mask, u128::from(b) & mask);
    let signed = |value: u128| {
        if value >> (bits - 1) & 1 == 1 { value as i128 - (1i128 << bits) } else { value as i128 }
    };
    let (sa, sb) = (signed(ua), signed(ub));
    let shift = ub % u128::from(bits);
    let value = match op {
        "+" => ua + ub,
        "-" => ua + (1 << bits) - ub,
        "*" => ua.wrapping_mul(ub),
        "/" if ub == 0 => 0,
        "/" => ua / ub,
        "%" if ub == 0 => ua,
        "%" => ua % ub,
        "s/" if sb == 0 => 0,
        "s/" => (sa / sb) as u128,
        "s%" if sb == 0 => ua,
        "s%" => (sa % sb) as u128,
        "|" => ua | ub,
        "&" => ua & ub,
        "^" => ua ^ ub,
        "<<" => ua << shift,
        ">>" => ua >> shift,
        "s>>" => (sa >> shift) as u128,
        _ => ub,
    };
    (value & mask) as u64
}

const OPS: [&str; 14] = ["+", "-", "*", "/", "%", "s/", "s%", "|", "&", "^", "<<", ">>", "s>>", ""];

fn number() -> impl Strategy<Value = u64> {
    let edges = [
        0,
        1,
        2,
        31,
        32,
        63,
        64,
        0x7fff_ffff,
        0x8000_0000,
        0xffff_ffff,
        1 << 63,
        u64::MAX,
        u64::MAX >> 1,
    ];
    prop_oneof![any::<u64>(), prop::sample::select(edges.to_vec())]
}

proptest! {
    #[test]
    fn arithmetic_with_registers(a in number(), b in number()) {
        for op in OPS {
            let wide = format!("r1 {op}= r2\nr0 = r1\nexit");
            prop_assert_eq!(exec(&wide, &[a, b]).expect("runs"), expected(op, a, b, 64), "{}", wide);
            let narrow = format!("w1 {op}= w2\nr0 = r1\nexit");
            prop_assert_eq!(exec(&narrow, &[a, b]).expect("runs"), expected(op, a, b, 32), "{}", narrow);
        }
    }

    #[test]
    fn arithmetic_with_constants(a in number(), b in any::<i32>()) {
        for op in OPS {
            let wide = format!("r1 {op}= {b}\nr0 = r1\nexit");
            prop_assert_eq!(exec(&wide, &[a]).expect("runs"), expected(op, a, b as i64 as u64, 64), "{}", wide);
            let narrow = format!("w1 {op}= {b}\nr0 = r1\nexit");
            prop_assert_eq!(exec(&narrow, &[a]).expect("runs"), expected(op, a, b as u32 as u64, 32), "{}", narrow);
        }
    }

    #[test]
    fn moves_and_byte_order(a in number()) {
        let bytes = a.to_le_bytes();
        let fold = |n: usize, big: bool| (0..n).fold(0, |sum, at| {
            let from = if big { n - 1 - at } else { at };
            sum | u64::from(bytes[from]) << (8 * at)
        });
        let signed = |n: u32| {
            let value = u128::from(a) & ((1 << n) - 1);
            let value = if value >> (n - 1) == 1 { value as i128 - (1 << n) } else { value as i128 };
            value as u64
        };
        let cases = [
            ("r1 = -r1", expected("-", 0, a, 64)),
            ("w1 = -w1", expected("-", 0, a, 32)),
            ("r1 = (s8)r1", signed(8)),
            ("r1 = (s16)r1", signed(16)),
            ("r1 = (s32)r1", signed(32)),
            ("w1 = (s8)w1", signed(8) & 0xffff_ffff),
            ("w1 = (s16)w1", signed(16) & 0xffff_ffff),
            ("r1 = le16 r1", fold(2, false)),
            ("r1 = le32 r1", fold(4, false)),
            ("r1 = le64 r1", a),
            ("r1 = be16 r1", fold(2, true)),
            ("r1 = be32 r1", fold(4, true)),
            ("r1 = be64 r1", fold(8, true)),
            ("r1 = bswap16 r1", fold(2, true)),
            ("r1 = bswap32 r1", fold(4, true)),
            ("r1 = bswap64 r1", fold(8, true)),
        ];
        for (insn, value) in cases {
            let text = format!("{insn}\nr0 = r1\nexit");
            prop_assert_eq!(exec(&text, &[a]).expect("runs"), value, "{}", insn);
        }
    }

    #[test]
    fn conditional_jumps(a in number(), b in number(), c in any::<i32>()) {
        for (right, value) in [("2".to_owned(), b), (c.to_string(), c as i64 as u64)] {
            let register = right == "2";
            for (op, wide, narrow) in [
                ("==", a == value, a as u32 == value as u32),
                ("!=", a != value, a as u32 != value as u32),
                (">", a > value, a as u32 > value as u32),
                (">=", a >= value, a as u32 >= value as u32),
                ("<", a < value, (a as u32) < value as u32),
                ("<=", a <= value, a as u32 <= value as u32),
                ("s>", a as i64 > value as i64, a as i32 > value as i32),
                ("s>=", a as i64 >= value as i64, a as i32 >= value as i32),
                ("s<", (a as i64) < value as i64, (a as i32) < value as i32),
                ("s<=", a as i64 <= value as i64, a as i32 <= value as i32),
                ("&", a & value != 0, a as u32 & value as u32 != 0),
            ] {
                for (width, taken) in [("r", wide), ("w", narrow)] {
                    let right = if register { format!("{width}2") } else { right.clone() };
                    let text = format!("r0 = 1\nif {width}1 {op} {right} goto yes\nr0 = 0\nyes:\nexit");
                    let got = exec(&text, &[a, b]).expect("runs");
                    prop_assert_eq!(got, u64::from(taken), "{} with {:#x} and {:#x}", text, a, value);
                }
            }
        }
    }
}

#[test]
fn division_has_no_bad_cases() {
    let min = i64::MIN as u64;
    for (text, a, b, value) in [
        ("r1 /= r2", 7, 0, 0),
        ("r1 %= r2", 7, 0, 7),
        ("w1 %= w2", 0xffff_ffff_0000_0007, 0, 7),
        ("r1 s/= r2", min, u64::MAX, min),
        ("r1 s%= r2", min, u64::MAX, 0),
        ("w1 s/= w2", 0x8000_0000, 0xffff_ffff, 0x8000_0000),
        ("w1 s%= w2", 0x8000_0000, 0xffff_ffff, 0),
        ("r1 s/= r2", (-7i64) as u64, 2, (-3i64) as u64),
        ("r1 s%= r2", (-7i64) as u64, 2, (-1i64) as u64),
    ] {
        assert_eq!(exec(&format!("{text}\nr0 = r1\nexit"), &[a, b]), Ok(value), "{text}");
    }
}

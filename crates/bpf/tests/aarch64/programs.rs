// SPDX-License-Identifier: GPL-2.0-only
//! The programs: each operation with edge values of arithmetic, accesses to memory of each kind,
//! calls, and random programs.
//!
//! Owns: coverage of every operation (main.rs checks it).
//! Does not: run them.

use scxlab_bpf::insn::RawInsn;
use scxlab_bpf::insn::asm::assemble;
use scxlab_bpf::insn::random::{self, Program};
use scxlab_bpf::vm::Func;

use crate::oracle::Arg::{self, Value};
use crate::oracle::{Environment, Oracle};

pub fn all(oracle: &mut Oracle) {
    for class in [7, 4] {
        arithmetic(oracle, class);
    }
    unary(oracle);
    for class in [5, 6] {
        jumps(oracle, class);
    }
    memory(oracle);
    atomics(oracle);
    texts(oracle);
    random(oracle);
}

const EDGES: [u64; 14] = [
    0,
    1,
    2,
    31,
    33,
    64,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    0x1234_5678_9abc_def0,
    i64::MAX as u64,
    i64::MIN as u64,
    u64::MAX,
];
const CONSTANTS: [i32; 10] = [0, 1, -1, 7, 31, 32, 63, -4096, i32::MAX, i32::MIN];
const NONE: Arg = Value(0);
const REGISTERS_ONLY: Environment =
    Environment { frames_only: true, kernel_stores: false, arena: false, not_compiled: 0 };

const MOV64_X: u8 = 0xbf;
const MOV64_K: u8 = 0xb7;
const EXIT: u8 = 0x95;

fn insn(code: u8, dst: u8, src: u8, off: i16, imm: i32) -> RawInsn {
    RawInsn::new(code, dst, src, off, imm)
}

fn exit() -> RawInsn {
    insn(EXIT, 0, 0, 0, 0)
}

/// A program of one function.
fn program(raw: &[RawInsn]) -> Program {
    let func = Func {
        name: "main".into(),
        section: ".text".into(),
        start: 0,
        len: raw.len() as u32,
        program: None,
    };
    Program { raw: raw.to_vec(), funcs: vec![func], probe: vec![false; raw.len()] }
}

/// Returns one run for each edge value of arithmetic, which is the argument r1.
fn ones() -> Vec<[Arg; 5]> {
    EDGES.iter().map(|a| [Value(*a), NONE, NONE, NONE, NONE]).collect()
}

/// Returns one run for each pair of edge values of arithmetic, which are the arguments r1 and r2.
fn pairs() -> Vec<[Arg; 5]> {
    let pair = |a: &u64| EDGES.map(|b| [Value(*a), Value(b), NONE, NONE, NONE]);
    EDGES.iter().flat_map(pair).collect()
}

fn arithmetic(oracle: &mut Oracle, class: u8) {
    let shifts = [6, 7, 0xc];
    let kinds = [0u8, 1, 2, 3, 4, 5, 6, 7, 9, 0xa, 0xb, 0xc].map(|kind| (kind, 0));
    for (kind, off) in kinds.into_iter().chain([(3, 1), (9, 1)]) {
        let code = kind << 4 | class;
        let name = format!("arithmetic {code:#x}, off {off}");
        let set = insn(MOV64_X, 0, 1, 0, 0);
        let by_reg = [set, insn(code | 8, 0, 2, off, 0), exit()];
        oracle.case(&name, program(&by_reg), REGISTERS_ONLY, &pairs());
        for imm in CONSTANTS {
            let width = if class == 7 { 64 } else { 32 };
            // The kernel's verifier refuses a shift by a constant outside 0 to `width` - 1, so no
            // case has one.
            if shifts.contains(&kind) && !(0..width).contains(&imm) {
                continue;
            }
            let by_constant = [set, insn(code, 0, 0, off, imm), exit()];
            let name = format!("{name}, {imm}");
            oracle.case(&name, program(&by_constant), REGISTERS_ONLY, &ones());
        }
    }
}

fn unary(oracle: &mut Oracle) {
    let signs = [(0xbf, 8), (0xbf, 16), (0xbf, 32), (0xbc, 8), (0xbc, 16)];
    let moves = signs.map(|(code, off)| insn(code, 0, 1, off, 0));
    let casts = [1, 0x1_0000].map(|imm| insn(0xbf, 0, 1, 1, imm));
    let negations = [0x87, 0x84].map(|code| insn(code, 0, 0, 0, 0));
    let orders = [0xd4u8, 0xdc, 0xd7]
        .into_iter()
        .flat_map(|code| [16, 32, 64].map(|bits| insn(code, 0, 0, 0, bits)));
    let all = moves.into_iter().chain(casts).chain(negations).chain(orders);
    let env = Environment { arena: true, ..REGISTERS_ONLY };
    for op in all {
        let name = format!("unary {:#x}, off {}, {}", op.code, op.off, op.imm);
        let raw = [insn(MOV64_X, 0, 1, 0, 0), op, exit()];
        oracle.case(&name, program(&raw), env, &ones());
    }
}

fn jumps(oracle: &mut Oracle, class: u8) {
    for kind in [1u8, 2, 3, 4, 5, 6, 7, 0xa, 0xb, 0xc, 0xd] {
        let code = kind << 4 | class;
        let name = format!("jump {code:#x}");
        let raw = |jump| {
            let no = insn(MOV64_K, 0, 0, 0, 1);
            program(&[jump, no, exit(), insn(MOV64_K, 0, 0, 0, 2), exit()])
        };
        oracle.case(&name, raw(insn(code | 8, 1, 2, 2, 0)), REGISTERS_ONLY, &pairs());
        for imm in CONSTANTS {
            let name = format!("{name}, {imm}");
            oracle.case(&name, raw(insn(code, 1, 0, 2, imm)), REGISTERS_ONLY, &ones());
        }
    }
}

const SIZES: [(u8, i16); 4] = [(0x10, 1), (0x08, 2), (0x00, 4), (0x18, 8)];
const R10: u8 = 10;

/// Base register and offset of accesses in the frame and in two pages (at r1): aligned, unaligned,
/// across the border of the pages, and past their end.
const PLACES: [(u8, i16); 8] =
    [(R10, -8), (R10, -512), (R10, -13), (1, 0), (1, 8), (1, 3), (1, 4095), (1, 8185)];

fn memory(oracle: &mut Oracle) {
    let runs: Vec<[Arg; 5]> =
        EDGES.iter().map(|value| [Arg::Pages, Value(*value), NONE, NONE, NONE]).collect();
    for (code, size) in SIZES {
        let mut loads = vec![(0x60 | code | 1, 0, false), (0x60 | code | 1, 0, true)];
        if size < 8 {
            loads.extend([(0x80 | code | 1, 0, false), (0x80 | code | 1, 0, true)]);
        }
        let acquire = (0xc0 | code | 3, 0x100, false);
        loads.push(acquire);
        let stores = [(0x63 | code, 0), (0x62 | code, -2), (0xc3 | code, 0x110)];
        for (base, off) in PLACES {
            for (load, kind, probe) in &loads {
                for (store, imm) in stores {
                    let src = if store & 7 == 2 { 0 } else { 2 };
                    let mut made = program(&[
                        insn(store, base, src, off, imm),
                        insn(*load, 0, base, off, *kind),
                        exit(),
                    ]);
                    made.probe[1] = *probe;
                    let name = format!("memory {store:#x} {load:#x} at r{base} + {off}");
                    oracle.case(&name, made, Environment::default(), &runs);
                }
            }
        }
    }
}

fn atomics(oracle: &mut Oracle) {
    let some = [EDGES[1], EDGES[7], EDGES[10], EDGES[13]];
    let runs: Vec<[Arg; 5]> = some
        .iter()
        .flat_map(|a| some.map(|b| [Arg::Pages, Value(*a), Value(b), Value(EDGES[10]), NONE]))
        .collect();
    for (code, size) in [(0x00, 4), (0x18, 8)] {
        for kind in [0x00, 0x40, 0x50, 0xa0, 0x01, 0x41, 0x51, 0xa1, 0xe1, 0xf1] {
            for (base, off) in PLACES {
                // r4 is stored to the memory first; then r2 is the operand, and r3 the value to
                // compare with.
                let raw = [
                    insn(0x60 | 0x18 | 3, base, 4, off & !7, 0),
                    insn(MOV64_X, 0, 3, 0, 0),
                    insn(0xc3 | code, base, 2, off, kind),
                    insn(0x0f, 0, 2, 0, 0),
                    exit(),
                ];
                let name = format!("atomic {kind:#x} of {size} at r{base} + {off}");
                oracle.case(&name, program(&raw), Environment::default(), &runs);
            }
        }
    }
}

/// Names and texts of programs with calls, with loops, or that reach a limit or fault.
const TEXTS: [(&str, &str); 12] = [
    (
        "five arguments",
        "func main:\nr5 = r1\nr4 = r2\nr3 = 3\nr2 = 5\nr1 = 7\nr6 = 11\ncall f\nr0 += r6\nexit\n\
         func f:\nr0 = r1\nr0 *= r2\nr0 *= r3\nr0 -= r4\nr0 ^= r5\nexit",
    ),
    (
        "frames of their own",
        "func main:\n*(u64 *)(r10 - 8) = r1\nr2 = r10\nr2 += -8\ncall f\nr1 = *(u64 *)(r10 - 8)\nr0 += r1\nexit\n\
         func f:\n*(u64 *)(r10 - 8) = 77\nr0 = *(u64 *)(r2 + 0)\n*(u64 *)(r2 + 0) = 5\nexit",
    ),
    ("too deep", "func main:\nr1 += 1\ncall main\nexit"),
    ("too deep by address", "func main:\nr6 = r1\nr1 = main ll\ncallx r1\nexit"),
    (
        "seven deep",
        "func main:\nr6 = 6\nr1 = r6\ncall f\nexit\nfunc f:\nr6 = r1\nif r1 == 0 goto end\nr1 -= 1\ncall f\nr0 += r6\nexit\nend:\nr0 = 1\nexit",
    ),
    (
        "by address",
        "func main:\nr3 = f ll\nr1 = 9\ncallx r3\nexit\nfunc f:\nr0 = r1\nr0 <<= 3\nexit",
    ),
    ("no function", "func main:\nr0 = 5\nr6 = r1\ncallx r6\nr0 = r6\nexit"),
    ("endless", "func main:\nr0 = 0\nloop:\nr0 += 1\ngoto loop"),
    ("endless by calls", "func main:\nloop:\ncall f\ngoto loop\nfunc f:\nr0 = 1\nexit"),
    ("a budget", "func main:\nr0 = 0\nloop:\nmay_goto out\nr0 += 1\ngoto loop\nout:\nexit"),
    (
        "sums",
        "func main:\nr0 = 0\nr2 = 900\nloop:\nr0 += r2\nr1 ^= r0\nr2 -= 1\nif r2 != 0 goto loop\nr0 += r1\nexit",
    ),
    (
        "a fault below",
        "func main:\nr6 = 1\nr7 = r1\ncall f\nr0 += r7\nexit\nfunc f:\nr8 = 3\nr0 = *(u64 *)(r1 + 16)\nr0 += r8\nexit",
    ),
];

fn texts(oracle: &mut Oracle) {
    for (name, text) in TEXTS {
        for not_compiled in [0, 1, 2, 3] {
            let made = assemble(text).unwrap_or_else(|error| panic!("{name}: {error}"));
            let made = Program { raw: made.raw, funcs: made.funcs, probe: made.probe };
            let env = Environment { not_compiled, ..REGISTERS_ONLY };
            oracle.case(&format!("{name}, {not_compiled}"), made, env, &ones());
        }
    }
}

fn random(oracle: &mut Oracle) {
    for seed in 0..400u64 {
        let bytes: Vec<u8> = (0..300).map(|at| scrambled(seed << 32 | at) as u8).collect();
        let env = Environment {
            kernel_stores: seed & 1 != 0,
            arena: seed & 2 != 0,
            frames_only: false,
            not_compiled: if seed % 5 == 0 { seed >> 2 & 0xf } else { 0 },
        };
        let runs = [Arg::Arena, Arg::ArenaLow]
            .map(|arena| [Arg::Pages, Arg::Task, arena, Value(seed), Value(7)]);
        let name = format!("random program {seed}");
        oracle.case(&name, random::program(&bytes), env, &runs);
    }
}

/// Hash of a number (the finaliser of splitmix64).
fn scrambled(number: u64) -> u64 {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ mixed >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb) >> 32
}

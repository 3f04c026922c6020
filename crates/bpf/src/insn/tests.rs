// SPDX-License-Identifier: GPL-2.0-only
use proptest::prelude::*;

use super::asm::assemble;
use super::*;
use crate::vm::{Func, Image};

/// One instruction of every form, as the disassembler writes it.
const EVERY_FORM: &str = "\
r1 += 0x5
r1 -= -0x1
w2 *= 0x3
r3 /= r4
w3 s/= w4
r3 s%= 0x7
w5 %= w6
r1 |= r2
w1 &= 0xff
r1 ^= -0x1
r1 <<= 0x3
w1 >>= w2
r1 s>>= 0x20
r9 = r10
w1 = w2
r1 = -0x1
w1 = 0x10
r1 = -r1
w1 = -w1
r1 = (s8)r2
r1 = (s16)r2
r1 = (s32)r2
w1 = (s8)w2
w1 = (s16)w2
r1 = le16 r1
r1 = le32 r1
r1 = le64 r1
r1 = be16 r1
r1 = be32 r1
r1 = be64 r1
r1 = bswap16 r1
r1 = bswap32 r1
r1 = bswap64 r1
r1 = addr_space_cast(r2, 0x0, 0x1)
r1 = addr_space_cast(r2, 0x1, 0x0)
r1 = 0x123456789abcdef0 ll
w1 = *(u8 *)(r2 + 0x1)
w1 = *(u16 *)(r2 - 0x2)
w1 = *(u32 *)(r2 + 0x0)
r1 = *(u64 *)(r10 - 0x8)
r1 = *(s8 *)(r2 + 0x1)
r1 = *(s16 *)(r2 + 0x2)
r1 = *(s32 *)(r2 + 0x4)
*(u8 *)(r1 + 0x0) = w2
*(u64 *)(r10 - 0x200) = r2
*(u16 *)(r1 + 0x2) = 0x7
*(u32 *)(r1 + 0x4) = -0x7
lock *(u64 *)(r1 + 0x0) += r2
lock *(u32 *)(r1 + 0x0) |= w2
lock *(u64 *)(r1 + 0x0) &= r2
lock *(u32 *)(r1 + 0x0) ^= w2
r2 = atomic_fetch_add((u64 *)(r1 + 0x8), r2)
w2 = atomic_fetch_or((u32 *)(r1 + 0x8), w2)
r2 = atomic_fetch_and((u64 *)(r1 + 0x8), r2)
w2 = atomic_fetch_xor((u32 *)(r1 + 0x8), w2)
r2 = xchg_64(r1 + 0x0, r2)
w2 = xchg32_32(r1 + 0x0, w2)
r0 = cmpxchg_64(r1 + 0x0, r0, r2)
w0 = cmpxchg32_32(r1 - 0x4, w0, w2)
w1 = load_acquire((u8 *)(r2 + 0x0))
w1 = load_acquire((u16 *)(r2 + 0x0))
w1 = load_acquire((u32 *)(r2 + 0x0))
r1 = load_acquire((u64 *)(r2 + 0x0))
store_release((u8 *)(r1 + 0x0), w2)
store_release((u64 *)(r1 + 0x0), r2)
if r1 == 0x0 goto +0x1
if w1 != -0x1 goto +0x0
if r1 > r2 goto +0x0
if w1 >= w2 goto +0x0
if r1 < 0x5 goto +0x0
if r1 <= 0x5 goto +0x0
if r1 & 0x5 goto +0x0
if w1 s> 0x5 goto +0x0
if r1 s>= r2 goto +0x0
if r1 s< -0x5 goto -0x3
if w1 s<= w2 goto +0x0
may_goto +0x0
goto +0x0
callx r1
exit";

#[test]
fn text_to_slots_to_text() {
    let assembled = assemble(EVERY_FORM).expect("assembles");
    let image = assembled.image("every form").expect("decodes");
    let shown: Vec<String> = image
        .code
        .iter()
        .enumerate()
        .filter(|(_, insn)| insn.op != Op::Pad)
        .map(|(pc, insn)| disasm(insn, pc as u32, &image))
        .collect();
    let expected: Vec<&str> = EVERY_FORM.lines().collect();
    assert_eq!(shown, expected);
}

#[test]
fn calls_are_named() {
    let text =
        "func main:\ncall 1\ncall 12\ncall leaf\ncall $7\nr1 = leaf ll\nexit\nfunc leaf:\nexit";
    let mut image = assemble(text).expect("assembles").image("calls").expect("decodes");
    image.kfunc_names.insert(KfuncId(7), "scx_bpf_kick_cpu".to_owned());
    let shown: Vec<String> = (0..5).map(|pc| disasm(&image.code[pc], pc as u32, &image)).collect();
    let leaf = format!("r1 = {:#x} ll", func_addr(FuncId(1)));
    let calls = [
        "call bpf_map_lookup_elem#1",
        "call bpf_tail_call#12",
        "call leaf",
        "call scx_bpf_kick_cpu",
    ];
    assert_eq!(shown[..4], calls);
    assert_eq!(shown[4], leaf);
}

use crate::kfunc::KfuncId;

fn refused(text: &str) -> DecodeErrorKind {
    let assembled = assemble(text).expect("assembles");
    assembled.image("bad").expect_err("must be refused").kind
}

#[test]
fn bad_programs_are_refused() {
    use DecodeErrorKind::*;
    let cases = [
        ("r10 = 1\nexit", WriteFramePointer),
        ("r10 += 1\nexit", WriteFramePointer),
        ("r10 = *(u64 *)(r1 + 0)\nexit", WriteFramePointer),
        ("r10 = atomic_fetch_add((u64 *)(r1 + 0), r10)\nexit", WriteFramePointer),
        ("r10 = load_acquire((u64 *)(r1 + 0))\nexit", WriteFramePointer),
        ("*(u64 *)(r10 - 4) = r1\nexit", StackOffset(-4)),
        ("*(u8 *)(r10 - 513) = 1\nexit", StackOffset(-513)),
        ("r1 = *(u8 *)(r10 + 0)\nexit", StackOffset(0)),
        ("lock *(u64 *)(r10 + 8) += r1\nexit", StackOffset(8)),
        ("r0 = 1", FallsOff),
        ("if r0 == 0 goto -1", FallsOff),
        ("goto +1\nexit", JumpTarget(2)),
        ("goto -2\nexit", JumpTarget(-1)),
        ("if r0 == 0 goto +1\nr1 = 1 ll\nexit", JumpTarget(2)),
        ("func a:\ngoto +0\nfunc b:\nexit", JumpTarget(1)),
    ];
    for (text, kind) in cases {
        assert_eq!(refused(text), kind, "{text}");
    }
}

#[test]
fn bad_slots_are_refused() {
    use DecodeErrorKind::*;
    let exit = RawInsn::new(0x95, 0, 0, 0, 0);
    let cases = [
        (RawInsn::new(0xe7, 0, 0, 0, 0), Unknown),
        (RawInsn::new(0x8f, 0, 0, 0, 0), Reserved),
        (RawInsn::new(0x87, 0, 1, 0, 0), Reserved),
        (RawInsn::new(0x07, 11, 0, 0, 0), Register(11)),
        (RawInsn::new(0x0f, 0, 12, 0, 0), Register(12)),
        (RawInsn::new(0x07, 0, 3, 0, 0), Reserved),
        (RawInsn::new(0x0f, 0, 3, 0, 9), Reserved),
        (RawInsn::new(0x37, 0, 0, 2, 1), Reserved),
        (RawInsn::new(0xbf, 0, 1, 7, 0), Reserved),
        (RawInsn::new(0xbc, 0, 1, 32, 0), Reserved),
        (
            RawInsn::new(0xbf, 0, 1, 1, 5),
            Unsupported(
                "an address space cast other than between 0 and 1 (the kernel refuses it too)",
            ),
        ),
        (RawInsn::new(0xd7, 0, 0, 0, 8), Reserved),
        (RawInsn::new(0x20, 0, 0, 0, 0), Unsupported("legacy packet access")),
        (RawInsn::new(0x0d, 1, 0, 0, 0), Unsupported("indirect goto")),
        (RawInsn::new(0x99, 0, 1, 0, 0), Unknown),
        (RawInsn::new(0xdb, 1, 2, 0, 0x10), Unknown),
        (RawInsn::new(0xd3, 1, 2, 0, 0), Unknown),
        (RawInsn::new(0x85, 0, 3, 0, 0), Reserved),
        (RawInsn::new(0x85, 0, call::FUNC, 0, 5), CallTarget(6)),
        (RawInsn::new(0x85, 0, call::FUNC, 0, 0), CallTarget(1)),
        (RawInsn::new(0x18, 0, 1, 0, 0), HalfConstant),
    ];
    let func = Func { name: "f".into(), len: 2, ..Func::default() };
    for (raw, kind) in cases {
        let got = decode(&[raw, exit], std::slice::from_ref(&func), &[]).expect_err("refused");
        assert_eq!(got.kind, kind, "{raw:?}");
        assert_eq!((got.func.as_str(), got.insn), ("f", 0));
    }
}

#[test]
fn functions_must_lie_apart_inside_the_code() {
    let code = [RawInsn::new(0x95, 0, 0, 0, 0); 4];
    let func = |start, len| Func { name: format!("{start}"), start, len, ..Func::default() };
    for funcs in
        [vec![func(0, 5)], vec![func(0, 0)], vec![func(0, 3), func(2, 1)], vec![func(u32::MAX, 2)]]
    {
        assert_eq!(decode(&code, &funcs, &[]).expect_err("bounds").kind, DecodeErrorKind::Bounds);
    }
    let code = decode(&code, &[func(2, 1)], &[]).expect("one function in the middle");
    assert_eq!(
        code.iter().map(|insn| insn.op).collect::<Vec<_>>(),
        [Op::Pad, Op::Pad, Op::Exit, Op::Pad]
    );
}

#[test]
fn assembler_names_the_line() {
    for (text, line) in [
        ("exit\nnonsense", 2),
        ("goto nowhere\nexit", 1),
        ("a:\nexit\na:\nexit", 3),
        ("r1 = *(u7 *)(r2 + 0)", 1),
    ] {
        assert_eq!(assemble(text).expect_err(text).line, line);
    }
}

#[test]
fn function_addresses_round_trip() {
    for id in [0, 1, 77, 1 << 20] {
        assert_eq!(func_of_addr(func_addr(FuncId(id))), Some(FuncId(id)));
    }
    assert_eq!(func_of_addr(func_addr(FuncId(1)) + 8), None);
    assert_eq!(func_of_addr(0), None);
}

proptest! {
    /// Decoding any slots gives a result or an error, and every decoded instruction can be
    /// disassembled.
    #[test]
    fn any_slots_decode_or_are_refused(slots in prop::collection::vec(any::<[u8; 8]>(), 1..12)) {
        let raw: Vec<RawInsn> = slots.iter().map(|bytes| bytemuck::pod_read_unaligned(bytes)).collect();
        let func = Func { len: raw.len() as u32, ..Func::default() };
        if let Ok(code) = decode(&raw, &[func], &[]) {
            let image = Image::default();
            for (pc, insn) in code.iter().enumerate() {
                prop_assert!(!disasm(insn, pc as u32, &image).is_empty());
            }
        }
    }
}

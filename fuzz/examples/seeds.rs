// SPDX-License-Identifier: GPL-2.0-only
//! Writes the seeds of the `interpreter` target, two files for each program below, into the given
//! folder.
//!
//! A 64-bit constant 0xN4d4d, where N is one hexadecimal digit, stands for the address of map N, or
//! of the first (N = 0xe) or second (N = 0xf) function. `with_addresses` in `src/program.rs`
//! replaces such constants.

use scxlab_bpf::insn::asm::assemble;

const PROGRAMS: &[(&str, &str)] = &[
    (
        "arithmetic",
        "r0 = 7\nr1 = 3\nr0 *= r1\nr0 /= 0\nr0 %= 0\nr0 <<= 70\nw0 s>>= 3\nr0 = -r0\nexit",
    ),
    ("stack", "*(u64 *)(r10 - 8) = 5\nr1 = *(u32 *)(r10 - 6)\nr0 = *(u64 *)(r1 + 0)\nexit"),
    ("endless", "r0 = 0\nloop:\nr0 += 1\ngoto loop\nexit"),
    ("may_goto", "r0 = 0\nloop:\nr0 += 1\nmay_goto +1\ngoto loop\nexit"),
    (
        "atomic",
        "r1 = r10\nr1 += -8\n*(u64 *)(r1 + 0) = 1\nr2 = 2\nlock *(u64 *)(r1 + 0) += r2\nr0 = *(u64 *)(r1 + 0)\nexit",
    ),
    (
        "lookup",
        "r6 = r1\n*(u32 *)(r10 - 4) = 1\nr2 = r10\nr2 += -4\ncall 1\nif r0 == 0 goto out\n*(u64 *)(r0 + 0) = 9\nout:\nexit",
    ),
    (
        "update",
        "r1 = 0x14d4d ll\n*(u32 *)(r10 - 4) = 3\n*(u64 *)(r10 - 16) = 8\nr2 = r10\nr2 += -4\nr3 = r10\nr3 += -16\nr4 = 0\ncall 2\nexit",
    ),
    (
        "timer",
        "r1 = 0x24d4d ll\nr6 = r1\n*(u32 *)(r10 - 4) = 0\nr2 = r10\nr2 += -4\ncall 1\nif r0 == 0 goto out\nr7 = r0\n\
         r1 = r7\nr2 = r6\nr3 = 1\ncall 169\nr1 = r7\nr2 = 0xf4d4d ll\ncall 170\nr1 = r7\nr2 = 1000\nr3 = 0\ncall 171\nout:\nexit",
    ),
    (
        "lock",
        "r1 = 0x24d4d ll\n*(u32 *)(r10 - 4) = 0\nr2 = r10\nr2 += -4\ncall 1\nif r0 == 0 goto out\nr6 = r0\nr6 += 16\n\
         r1 = r6\ncall 93\nr1 = r6\ncall 94\nout:\nr0 = 0\nexit",
    ),
    (
        "ring",
        "r1 = 0x34d4d ll\nr2 = 16\nr3 = 0\ncall 131\nif r0 == 0 goto out\n*(u64 *)(r0 + 0) = 1\nr1 = r0\nr2 = 0\ncall 132\nout:\nr0 = 0\nexit",
    ),
    (
        "storage",
        "r1 = 0x44d4d ll\nr2 = r4\nr3 = 0\nr4 = 1\ncall 156\nif r0 == 0 goto out\n*(u64 *)(r0 + 8) = 3\nout:\nexit",
    ),
    (
        "queue",
        "r1 = 0x64d4d ll\n*(u64 *)(r10 - 8) = 8\nr2 = r10\nr2 += -8\nr3 = 0\ncall 87\nr1 = 0x64d4d ll\nr2 = r10\nr2 += -16\ncall 88\nexit",
    ),
    ("kernel_store", "*(u64 *)(r4 + 0) = 1\nr0 = *(u64 *)(r4 + 0)\nexit"),
    ("null", "r1 = 0\nprobe r0 = *(u64 *)(r1 + 8)\nr0 = *(u64 *)(r1 + 8)\nexit"),
    (
        "loop_callback",
        "func main:\nr1 = 5\nr2 = 0xf4d4d ll\nr3 = 0\nr4 = 0\ncall 181\nexit\nfunc body:\nr0 = 0\nexit",
    ),
    ("recursion", "func main:\ncall body\nexit\nfunc body:\ncall body\nexit"),
    ("printk", "*(u64 *)(r10 - 8) = 0x6425\nr1 = r10\nr1 += -8\nr2 = 8\nr3 = 42\ncall 6\nexit"),
    ("kfunc", "r1 = 1\ncall $3\nexit"),
];

fn main() {
    let Some(folder) = std::env::args().nth(1) else {
        panic!("usage: seeds FOLDER");
    };
    for (name, text) in PROGRAMS {
        let made = assemble(text).unwrap_or_else(|error| panic!("{name}: {error}"));
        let split = made.funcs.get(1).map_or(0, |func| func.start as u8);
        // Write each program once as it is, and once with the flag `REPAIR`, so that more of its
        // mutations decode.
        for (flags, ending) in [(0, "raw"), (1, "bent")] {
            let mut bytes = vec![flags, split];
            for insn in &made.raw {
                bytes.extend([insn.code, insn.regs]);
                bytes.extend(insn.off.to_le_bytes());
                bytes.extend(insn.imm.to_le_bytes());
            }
            let path = std::path::Path::new(&folder).join(format!("{name}.{ending}"));
            std::fs::write(&path, bytes)
                .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
    }
}

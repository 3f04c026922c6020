// SPDX-License-Identifier: GPL-2.0-only
//! Machine code for aarch64, run in QEMU's user-mode emulator: result, instruction count, memory,
//! calls and faults must equal the interpreter's.
//!
//! Owns: the file of cases, building and running the harness that reads it.
//! Does not: choose programs (`programs.rs`), compute the expected results (`oracle.rs`, with the
//! interpreter), run code (`harness.c`, freestanding, so that no library for aarch64 is needed).
//!
//! The file consists of little-endian 64-bit words; bytes are padded to whole words. `n, n things`
//! and `n, n x (parts of a thing)` stand for a count, then that many things. Lengths are in bytes:
//!
//! ```text
//!   file: n, n offsets of fields of the context; number of pages of guest memory; address at which
//!     the pages lie; length of the access thunk; length of all code; access thunk; n, n cases; 0
//!   case: length of the name, name; r10 of the first frame; r10 of the deepest frame; address of
//!     the arena, or 0; budget of `may_goto`; CPU; instruction limit; whether programs may write
//!     kernel structures; n, n x (helper, its result); n, n x (instruction, whether it is a load
//!     that reads 0 where no memory is mapped); n, n page addresses, n x (permission, 0 for a zero
//!     page | 1, contents); n, n x function (first slot, whether compiled, length, code); n, n runs
//!   run: instruction count before; r1 to r5; n, n x kfunc call (id, r1 to r5); end; instruction
//!     count after; stores to arena holes; n, n x changed page (its index in the case, contents)
//!   end: 0, r0 | 1 (instruction limit), fault | 2 (call depth), fault | 3 (memory), address,
//!     length, whether a store, fault | 4 (call of a bad address), address, fault
//!   fault: n, n slots, innermost first; bit mask of the known registers, their values
//! ```

mod oracle;
mod programs;

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use scxlab_bpf::insn::Op;
use scxlab_bpf::jit::layout;

use oracle::{NR_PAGES, Oracle};

/// Address of the guest memory's pages in the emulated process. Nothing else is mapped there.
const PAGES_AT: u64 = 0x10_0000_0000;

#[derive(Default)]
struct Words(Vec<u8>);

impl Words {
    fn word(&mut self, word: u64) {
        self.0.extend(word.to_le_bytes());
    }

    fn words(&mut self, words: impl IntoIterator<Item = u64>) {
        words.into_iter().for_each(|word| self.word(word));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
        self.0.resize(self.0.len().next_multiple_of(8), 0);
    }
}

#[test]
fn code_for_aarch64_does_what_the_interpreter_does() {
    let oracle = oracle();
    let all = 0..=Op::Exit as u8;
    // No case has `Pad`, which is never executed, or `TailCall`, because a program with it is never
    // compiled.
    let left_out = [Op::Pad as u8, Op::TailCall as u8];
    let missing: Vec<u8> =
        all.filter(|op| !oracle.ops.contains(op) && !left_out.contains(op)).collect();
    assert!(missing.is_empty(), "no case has these operations: {missing:?}");
    let ends: Vec<u64> = oracle.ends.iter().copied().collect();
    assert_eq!(ends, [0, 1, 2, 3, 4], "ways to end");
    let harness = harness();
    let cases = scratch("cases");
    fs::write(&cases, file(&oracle)).expect("the file of cases");
    let output = Command::new("qemu-aarch64").arg(&harness).arg(&cases).output();
    let output = output.expect("qemu-aarch64 (package qemu-user; `make setup` installs it)");
    let said = String::from_utf8_lossy(&output.stdout);
    // On failure the harness and the file of cases stay for debugging.
    assert!(output.status.success(), "{} {}: {said}", harness.display(), cases.display());
    fs::remove_file(&cases).expect("the file of cases");
    fs::remove_file(&harness).expect("the harness");
}

fn oracle() -> Oracle {
    let mut oracle = Oracle::default();
    programs::all(&mut oracle);
    oracle
}

fn file(oracle: &Oracle) -> Vec<u8> {
    let mut file = Words::default();
    let layout = layout();
    file.word(layout.len() as u64);
    file.words(layout.into_iter().map(|offset| offset as u64));
    file.words([NR_PAGES, PAGES_AT]);
    file.words([oracle.thunk.len() as u64, oracle.code_bytes]);
    file.bytes(&oracle.thunk);
    file.word(oracle.nr_cases);
    file.bytes(&oracle.cases.0);
    file.word(0);
    file.0
}

/// Path of a temporary file of this process.
fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
    folder.join(format!("aarch64-{name}-{}", std::process::id()))
}

/// Compiles the harness, which runs the cases.
fn harness() -> PathBuf {
    let clang = env::var("BPF_CLANG").unwrap_or_else(|_| "clang-19".to_owned());
    let out = scratch("harness");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/aarch64/harness.c");
    let output = Command::new(&clang)
        .args(["--target=aarch64-linux-gnu", "-O2", "-Wall", "-Wextra", "-Werror"])
        .args(["-ffreestanding", "-fno-builtin", "-fno-stack-protector"])
        .args(["-nostdlib", "-static", "-fuse-ld=lld", "-o"])
        .args([&out, &source])
        .output();
    let output = output.unwrap_or_else(|error| panic!("{clang}: {error}"));
    assert!(output.status.success(), "{clang}: {}", String::from_utf8_lossy(&output.stderr));
    out
}

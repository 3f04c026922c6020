// SPDX-License-Identifier: GPL-2.0-only
//! Interpreter and JIT compiler: a valid program, generated from any bytes, behaves the same on
//! both engines, and as machine code that was kept.
//!
//! Promises: result or report, counts, calls with their arguments, memory and frames are equal, in
//! two calls in a row.
//!
//! Form of an input: a byte that varies the program's environment, then the bytes from which
//! `insn::random` generates the program.

use scxlab_bpf::insn::random::{self, ProgramEntry};
use scxlab_bpf::vm::Engine;
use scxlab_bpf::vm::bare::trial;

pub fn check(data: &[u8]) {
    let [flags, rest @ ..] = data else {
        return;
    };
    let entry = if flags & 8 == 0 { ProgramEntry::Registers } else { ProgramEntry::Array };
    let program = random::program_for(rest, entry);
    let interp = trial::run(&program, entry, Engine::Interp, *flags);
    assert!(interp.is_some(), "the generator makes programs that decode");
    assert_eq!(&interp, &trial::run(&program, entry, Engine::Jit, *flags), "the engines differ");
    assert_eq!(interp, trial::run_kept(&program, entry, *flags), "kept code differs");
}

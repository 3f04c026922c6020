// SPDX-License-Identifier: GPL-2.0-only
//! A valid program, interpreted and as machine code; all observable results must agree.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scxlab_fuzz::engines::check(data));

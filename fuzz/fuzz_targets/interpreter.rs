// SPDX-License-Identifier: GPL-2.0-only
//! A program: decoded, interpreted twice, and run as machine code; all runs must agree and do no
//! harm.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scxlab_fuzz::program::check(data));

// SPDX-License-Identifier: GPL-2.0-only
//! A program: decoded and run twice; both runs must agree and do no harm.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scxlab_fuzz::program::check(data));

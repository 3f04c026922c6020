// SPDX-License-Identifier: GPL-2.0-only
//! A trace file: refused, or imported.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scxlab_fuzz::traces::check(data));

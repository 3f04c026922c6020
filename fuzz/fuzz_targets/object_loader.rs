// SPDX-License-Identifier: GPL-2.0-only
//! An object file: parsed, inspected, linked against the simulated kernel's types and loaded.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scxlab_fuzz::object::check(data));

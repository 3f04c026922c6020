// SPDX-License-Identifier: GPL-2.0-only
//! A machine: its file, or a spec.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scxlab_fuzz::texts::machine(data));

// SPDX-License-Identifier: GPL-2.0-only
//! A machine file or a machine spec: refused, or read as a machine.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scxlab_fuzz::texts::machine(data));

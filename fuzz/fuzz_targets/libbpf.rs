// SPDX-License-Identifier: GPL-2.0-only
//! An ELF file: our loader and libbpf must read the same from it.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scxlab_fuzz::libbpf::check(data));

// SPDX-License-Identifier: GPL-2.0-only
//! A workload file in TOML or JSON, or a generator's argument: if accepted, executed for a while.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scxlab_fuzz::texts::workload(data));

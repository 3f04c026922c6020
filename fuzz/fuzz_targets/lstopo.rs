// SPDX-License-Identifier: GPL-2.0-only
//! The XML of lstopo.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scxlab_fuzz::texts::lstopo(data));

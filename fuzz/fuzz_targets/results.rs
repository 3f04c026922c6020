// SPDX-License-Identifier: GPL-2.0-only
//! Results of runs, as the guest of a virtual machine sends them: read, and compared with each
//! other.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scxlab_fuzz::texts::results(data));

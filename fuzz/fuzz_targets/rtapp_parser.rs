// SPDX-License-Identifier: GPL-2.0-only
//! A workload file: read as rt-app's JSON and, if accepted, executed for a while.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scxlab_fuzz::rtapp::check(data));

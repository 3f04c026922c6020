// SPDX-License-Identifier: GPL-2.0-only
//! A random scheduler on a random machine under a random workload, on both engines (interpreter and
//! JIT compiler).
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scxlab_fuzz::schedulers::check(data));

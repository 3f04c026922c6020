// SPDX-License-Identifier: GPL-2.0-only
//! A scheduler with knobs, and a recipe: applied to an object of ours.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scxlab_fuzz::texts::recipe(data));

// SPDX-License-Identifier: GPL-2.0-only
//! A scheduler argument with knobs, and a recipe: applied to a shipped object.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| scxlab_fuzz::texts::recipe(data));

// SPDX-License-Identifier: GPL-2.0-only
//! Random schedulers: see `scxlab_testkit::whim`, which says what is promised.

use scxlab_testkit::whim::{self, INPUT, STEPS};

/// Runs are short, so that many are tried, but for an input with more bytes than it needs.
const SHORT: u64 = 6;

pub fn check(data: &[u8]) {
    whim::check(data, if data.len() > INPUT { STEPS } else { SHORT });
}

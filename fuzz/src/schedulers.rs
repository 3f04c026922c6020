// SPDX-License-Identifier: GPL-2.0-only
//! Random schedulers: see `scxlab_testkit::whim`, which defines the checks.

use scxlab_testkit::whim::{self, INPUT, STEPS};

/// Steps of a run. Runs are short, so that many are tried; an input with more bytes than are used
/// runs for `STEPS`.
const SHORT: u64 = 6;

pub fn check(data: &[u8]) {
    whim::check(data, if data.len() > INPUT { STEPS } else { SHORT });
}

// SPDX-License-Identifier: GPL-2.0-only
//! Random schedulers: see `scxlab_testkit::whim`, which defines the checks.

use scxlab_testkit::whim::{self, INPUT, STEPS};

/// Length of a run, in steps of virtual time as `whim` defines them. It is small, so that the
/// fuzzer can try many inputs. An input longer than `INPUT` bytes runs for `STEPS` steps instead.
const SHORT: u64 = 6;

pub fn check(data: &[u8]) {
    whim::check(data, if data.len() > INPUT { STEPS } else { SHORT });
}

// SPDX-License-Identifier: GPL-2.0-only
//! Random schedulers: see `scxlab_testkit::whim`, which says what is promised.

pub fn check(data: &[u8]) {
    scxlab_testkit::whim::check(data);
}

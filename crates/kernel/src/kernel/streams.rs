// SPDX-License-Identifier: GPL-2.0-only
//! Named random streams of a run, created on first use.

use scxlab_machine::Stream;
use std::collections::BTreeMap;

/// Streams by (name, index). Each stream has its own state, so that a draw from one stream never
/// shifts another.
pub struct Streams {
    seed: u64,
    open: BTreeMap<(&'static str, u64), Stream>,
}

impl Streams {
    pub fn new(seed: u64) -> Self {
        Streams { seed, open: BTreeMap::new() }
    }

    pub fn next(&mut self, name: &'static str, index: u64) -> u64 {
        let seed = self.seed;
        self.open.entry((name, index)).or_insert_with(|| Stream::new(seed, name, index)).next_u64()
    }
}

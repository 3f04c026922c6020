// SPDX-License-Identifier: GPL-2.0-only
//! Named random streams of a run, created on first use.

use scxlab_machine::Stream;
use std::collections::BTreeMap;

/// Streams by name and index. Each stream has its own state, so that a draw from one stream never
/// shifts another.
pub struct Streams {
    seed: u64,
    /// Few names, in the order of their first use; programs with noise draw at each computation.
    open: Vec<(&'static str, BTreeMap<u64, Stream>)>,
}

impl Streams {
    pub fn new(seed: u64) -> Self {
        Streams { seed, open: Vec::new() }
    }

    pub fn next(&mut self, name: &'static str, index: u64) -> u64 {
        let seed = self.seed;
        // Most names are the same constant, for which no byte need be compared.
        let same = |(open, _): &(&'static str, _)| std::ptr::eq(*open, name) || *open == name;
        let at = self.open.iter().position(same).unwrap_or_else(|| {
            self.open.push((name, BTreeMap::new()));
            self.open.len() - 1
        });
        let streams = &mut self.open[at].1;
        streams.entry(index).or_insert_with(|| Stream::new(seed, name, index)).next_u64()
    }
}

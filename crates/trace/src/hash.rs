// SPDX-License-Identifier: GPL-2.0-only
//! The hash of a trace. A run hashes some forty words per context switch, so the mixing step is
//! short: one XOR, one rotation and one multiplication per word.
//!
//! Owns: the mixing step; a trace must have the same hash in all later versions.
//! Does not: resist an attacker. `scxlab_machine` has another hash, `StableHash`, which mixes each
//! word before adding it.

use scxlab_machine::hash::splitmix_finalize;

/// An odd constant of xxHash64 (Yann Collet), used because its quality as a multiplier is known.
const MULTIPLIER: u64 = 0x9e37_79b1_85eb_ca87;

/// A running hash over 64-bit words.
///
/// For a fixed word, a step is a bijection of the state; for a fixed state, it is a bijection of
/// the word. Two runs that differ in exactly one word therefore never have equal hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceHash(u64);

/// The hash of an empty trace.
impl Default for TraceHash {
    fn default() -> Self {
        TraceHash(!MULTIPLIER)
    }
}

impl TraceHash {
    /// Folds one word into the hash.
    #[inline(always)]
    pub fn add(&mut self, word: u64) {
        self.0 = (self.0 ^ word).rotate_left(29).wrapping_mul(MULTIPLIER);
    }

    /// Returns the hash of all words so far. A final step spreads every bit of the state over all
    /// bits of the result.
    pub const fn finish(self) -> u64 {
        splitmix_finalize(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn of(words: &[u64]) -> u64 {
        let mut hash = TraceHash::default();
        words.iter().for_each(|&word| hash.add(word));
        hash.finish()
    }

    proptest! {
        #[test]
        fn one_changed_word_changes_the_hash(
            words in prop::collection::vec(any::<u64>(), 1..40), at in any::<prop::sample::Index>(), flip in 1u64..,
        ) {
            let mut changed = words.clone();
            changed[at.index(words.len())] ^= flip;
            prop_assert_ne!(of(&words), of(&changed));
        }

        /// Swapping two neighbouring words must change the hash, unless they are equal. The words
        /// are small numbers, because small numbers are the typical content of traces.
        #[test]
        fn two_words_that_change_places_change_the_hash(mut words in prop::collection::vec(0u64..8, 2..40), at in any::<prop::sample::Index>()) {
            let at = at.index(words.len() - 1);
            let before = of(&words);
            words.swap(at, at + 1);
            prop_assert_eq!(before == of(&words), words[at] == words[at + 1]);
        }
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! Writes inputs of the target `schedulers` into a folder: those of the first 12 seeds of
//! `testkit/tests/whim.rs`, and those that once found a bug.

use scxlab_testkit::whim::input;

fn main() {
    let folder = std::env::args().nth(1).expect("a folder");
    // The last four seeds once found a bug. Their inputs have one byte more than the others, which
    // makes the target run them for the full number of steps, as the property test does.
    for (seed, more) in (0..12).map(|s| (s, 0)).chain([750, 929, 1015, 1091].map(|s| (s, 1))) {
        let path = format!("{folder}/seed{seed}");
        let bytes = [input(seed), vec![0; more]].concat();
        std::fs::write(&path, bytes).unwrap_or_else(|e| panic!("{path}: {e}"));
    }
}

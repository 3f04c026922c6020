// SPDX-License-Identifier: GPL-2.0-only
//! Compares what our loader and libbpf read from object files: `cargo run --example agree --
//! FILE...`

use scxlab_fuzz::libbpf::{ours, theirs};

fn main() {
    let mut differ = 0;
    for path in std::env::args().skip(1) {
        let data = std::fs::read(&path).unwrap_or_else(|e| panic!("{path}: {e}"));
        let (ours, theirs) = (ours(&data), theirs(&data));
        if ours.as_ref().ok() != theirs.as_ref() {
            differ += 1;
            println!("{path}: ours {ours:#?}\nlibbpf's {theirs:#?}");
        }
    }
    assert_eq!(differ, 0, "objects differ");
}

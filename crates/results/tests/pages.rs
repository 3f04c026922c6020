// SPDX-License-Identifier: GPL-2.0-only
//! The pages name every column, every entry of the standing matrix, and the shipped gate.

use std::path::Path;

use scxlab_results::{folder, matrix};

fn page(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

#[test]
fn every_column_is_described() {
    let text = page("docs/reference/results-folder.md");
    for (file, columns) in folder::columns() {
        let (_, section) = text.split_once(&format!("## {file}\n")).unwrap();
        let section = section.split("\n## ").next().unwrap();
        for column in columns {
            assert!(section.contains(&format!("`{column}`")), "{file} {column}");
        }
    }
}

#[test]
fn the_matrix_is_listed() {
    let text = page("docs/guide/results.md");
    for matrix::Entry { workload, machine, about, .. } in matrix::ENTRIES {
        let row = format!("| `{workload}` | `{machine}` | {about} |\n");
        assert!(text.contains(&row), "{row}");
    }
}

#[test]
fn the_shipped_gate_is_shown() {
    let gate = page("crates/results/src/gate.toml");
    let (_, gate) = gate.split_once('\n').unwrap();
    assert!(page("docs/reference/check.md").contains(gate));
}

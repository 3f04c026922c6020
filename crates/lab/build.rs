// SPDX-License-Identifier: GPL-2.0-only
//! Hashes the sources of everything that decides a simulated run, so that runs that were kept by
//! another version of the simulator can be told apart. Schedulers, machines and workloads are not
//! part of it, because the key of a run has them.

use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};

/// Crates of the simulation, and this crate's part of it.
const SOURCES: &[&str] = &[
    "../machine/src",
    "../bpf/src",
    "../loader/src",
    "../trace/src",
    "../fair/src",
    "../kernel/src",
    "../kernel/abi",
    "../guest/src",
    "../workload/src",
    "src/sim.rs",
    "src/sim",
    "src/counters.rs",
    "src/fairness.rs",
    "src/metric.rs",
    "src/metric",
    "src/prepare.rs",
    "src/run.rs",
    "src/recipe",
];

fn main() {
    let mut files = Vec::new();
    for source in SOURCES {
        println!("cargo::rerun-if-changed={source}");
        collect(Path::new(source), &mut files);
    }
    files.sort();
    let mut hash = DefaultHasher::new();
    for file in &files {
        // Real threads have no part in a simulation.
        if !file.starts_with("../workload/src/native") {
            hash.write(file.to_string_lossy().as_bytes());
            hash.write(&fs::read(file).unwrap_or_else(|e| panic!("{}: {e}", file.display())));
        }
    }
    println!("cargo::rustc-env=SCXLAB_SIMULATOR={:016x}", hash.finish());
}

fn collect(path: &Path, files: &mut Vec<PathBuf>) {
    if path.is_file() {
        return files.push(path.to_owned());
    }
    let entries = fs::read_dir(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    for entry in entries {
        collect(&entry.expect("a readable folder").path(), files);
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! Machine code that an earlier command kept.

use std::fs;
use std::path::Path;

use serde_json::Value;

use super::scxlab;

const RUN: [&str; 10] = [
    "run",
    "-s",
    "vtime",
    "-w",
    "hackbench,groups=2,loops=1000",
    "-m",
    "4c",
    "--format",
    "json",
    "-n1",
];

fn hash(cache: &Path, more: &[&str]) -> Value {
    let out = scxlab(&RUN).args(more).env("XDG_CACHE_HOME", cache).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let results: Value = serde_json::from_slice(&out.stdout).unwrap();
    results["runs"][0]["trace_hash"].clone()
}

/// Kept code, code that is compiled, and the interpreter give the same trace; damaged files and
/// files of others are not used.
#[test]
fn kept_code_changes_no_result() {
    let cache = tempfile::tempdir().unwrap();
    let folder = cache.path().join("scxlab/code");
    let files = || fs::read_dir(&folder).map_or(0, |entries| entries.count());
    let interpreted = hash(cache.path(), &["--no-cache", "--engine", "interp"]);
    assert_eq!(files(), 0);
    assert_eq!(hash(cache.path(), &[]), interpreted);
    assert_eq!(files(), 1);
    let file = fs::read_dir(&folder).unwrap().next().unwrap().unwrap().path();
    let kept = fs::read(&file).unwrap();
    assert_eq!(hash(cache.path(), &[]), interpreted);
    assert!(fs::read(&file).unwrap().len() >= kept.len(), "no function was lost");
    fs::write(&file, &kept[..kept.len() / 2]).unwrap();
    assert_eq!(hash(cache.path(), &[]), interpreted);
    assert!(fs::read(&file).unwrap().len() > kept.len() / 2, "the damaged file was replaced");
}

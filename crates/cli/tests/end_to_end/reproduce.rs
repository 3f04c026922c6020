// SPDX-License-Identifier: GPL-2.0-only
//! `scxlab reproduce`: its output, its cache, and its messages.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use serde_json::Value;

use super::scxlab;

/// A table that is quick to simulate.
const QUICK: [&str; 6] = ["reproduce", "pelt-2012", "--table", "sysbench_cpu", "-n", "1"];

fn reproduce(cache: &Path, args: &[&str]) -> Output {
    let out = scxlab(args).env("XDG_CACHE_HOME", cache).output().unwrap();
    assert_eq!(out.status.code(), Some(0), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    out
}

fn quick(cache: &Path, more: &[&str]) -> Output {
    reproduce(cache, &[&QUICK[..], more].concat())
}

/// Returns the files of the cache.
fn entries(cache: &Path) -> Vec<PathBuf> {
    let folders = fs::read_dir(cache.join("scxlab/cells")).unwrap().map(|f| f.unwrap().path());
    let files = folders.flat_map(|folder| fs::read_dir(folder).unwrap());
    let mut files: Vec<PathBuf> = files.map(|file| file.unwrap().path()).collect();
    files.sort();
    files
}

#[test]
fn the_json_has_scores_and_cells() {
    let cache = tempfile::tempdir().unwrap();
    let out = quick(cache.path(), &["--format", "json", "--jobs", "1"]);
    let all: Value = serde_json::from_slice(&out.stdout).unwrap();
    let [table, total] = &all["scores"].as_array().unwrap()[..] else { panic!("{all}") };
    assert_eq!((&table["thread"], &table["table"]), (&"pelt-2012".into(), &"sysbench_cpu".into()));
    assert_eq!((&total["table"], &total["figures"]), (&"all".into(), &12.into()));
    for key in ["cells", "sign_agreement", "rank_correlation", "median_size_error"] {
        assert!(table.get(key).is_some(), "{key}");
    }
    let cells = all["cells"].as_array().unwrap();
    assert_eq!(cells.len(), 12);
    assert!(
        cells.iter().all(|cell| cell["published"].is_number() && cell["predicted"].is_number())
    );
    // The same with another number of threads, and without a cache.
    let again =
        reproduce(cache.path(), &[&QUICK[..], &["--format", "json", "--no-cache"]].concat());
    assert_eq!(String::from_utf8(out.stdout), String::from_utf8(again.stdout));
}

/// A second call makes no run. Damaged entries, and those of another version of the simulator, are
/// made anew, and the command says so.
#[test]
fn runs_are_kept_and_checked() {
    let cache = tempfile::tempdir().unwrap();
    let first = quick(cache.path(), &[]);
    assert!(first.stderr.is_empty(), "{}", String::from_utf8_lossy(&first.stderr));
    let kept = entries(cache.path());
    let times = |files: &[PathBuf]| -> Vec<_> {
        files.iter().map(|file| fs::metadata(file).unwrap().modified().unwrap()).collect()
    };
    assert_eq!(kept.len(), 2, "two setups: window and pelt");
    let written = times(&kept);
    assert_eq!(quick(cache.path(), &[]).stdout, first.stdout);
    assert_eq!(times(&kept), written);

    let whole = fs::read_to_string(&kept[0]).unwrap();
    fs::write(&kept[0], &whole[..whole.len() / 2]).unwrap();
    let changed = fs::read_to_string(&kept[1]).unwrap().replace("throughput", "throughtup");
    fs::write(&kept[1], changed).unwrap();
    let out = quick(cache.path(), &[]);
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!(said, "2 kept runs are damaged; they are made anew\n");
    assert_eq!(out.stdout, first.stdout);
    assert_eq!(fs::read_to_string(&kept[0]).unwrap(), whole);

    let mut entry: Value = serde_json::from_str(&whole).unwrap();
    entry["simulator"] = "an older one".into();
    fs::write(&kept[0], entry.to_string()).unwrap();
    let out = quick(cache.path(), &[]);
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!(
        said,
        "1 kept runs come from another version of the simulator; they are made anew\n"
    );
    assert_eq!(out.stdout, first.stdout);
}

#[test]
fn a_folder_gets_json_and_markdown() {
    let folder = tempfile::tempdir().unwrap();
    let into = folder.path().join("out");
    let out = quick(folder.path(), &["-o", into.to_str().unwrap(), "--format", "markdown"]);
    assert_eq!(fs::read(into.join("reproduce.md")).unwrap(), out.stdout);
    let json: Value =
        serde_json::from_slice(&fs::read(into.join("reproduce.json")).unwrap()).unwrap();
    assert_eq!(json["cells"].as_array().unwrap().len(), 12);
}

#[test]
fn names_that_do_not_exist_are_usage_errors() {
    let cases: [(&[&str], &str); 4] = [
        (&["reproduce", "o1-2003"], "unknown thread \"o1-2003\"; available: o1-2002, gang-2011"),
        (
            &["reproduce", "o1-2002", "--table", "chatt"],
            "unknown table \"chatt\"; available: mkbench",
        ),
        (
            &["reproduce", "o1-2002", "--ablation", "x"],
            "unknown ablation \"x\"; available: lock, apart, together, scan",
        ),
        (&["reproduce", "o1-2002", "-m", "x9"], "no machine \"x9\""),
    ];
    for (args, expected) in cases {
        let out = scxlab(args).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr);
        assert_eq!(out.status.code(), Some(2), "{args:?}: {said}");
        assert!(said.contains(expected), "{said}");
    }
}

const EXPERIMENTS: &str = include_str!("../../../../docs/reference/experiments.md");

/// Writes the files of the page on experiments: a block of TOML begins with the name of its file.
fn own_files(folder: &Path) {
    for block in EXPERIMENTS.split("```toml\n").skip(1) {
        let (file, _) = block.split_once("```").unwrap();
        let name = file.lines().next().unwrap().strip_prefix("# ").unwrap();
        fs::write(folder.join(name), file).unwrap();
    }
}

/// Runs `reproduce` on the experiment of a folder, after a change of one of its files.
fn own(folder: &Path, file: &str, from: &str, to: &str) -> Output {
    own_files(folder);
    let text = fs::read_to_string(folder.join(file)).unwrap();
    assert!(text.contains(from), "{from}");
    fs::write(folder.join(file), text.replace(from, to)).unwrap();
    let experiment = folder.join("mine.toml");
    let args = ["reproduce", experiment.to_str().unwrap(), "-n", "1", "--no-cache"];
    scxlab(&args).args(["--format", "json"]).output().unwrap()
}

/// The experiment of the page predicts its figures, and may name files beside it.
#[test]
fn a_users_experiment_is_predicted() {
    let folder = tempfile::tempdir().unwrap();
    let machine = include_str!("../../../../machines/small.toml");
    fs::write(folder.path().join("m.toml"), machine).unwrap();
    for (from, to) in [("doc = ", "doc = "), ("\"1n2c1t\"", "\"m.toml\"")] {
        let out = own(folder.path(), "mine.toml", from, to);
        assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
        let all: Value = serde_json::from_slice(&out.stdout).unwrap();
        let cells = all["cells"].as_array().unwrap();
        assert_eq!(cells.len(), 4);
        for cell in cells {
            assert_eq!((&cell["thread"], &cell["table"]), (&"desktop".into(), &"hogs".into()));
            let predicted = cell["predicted"].as_f64().unwrap();
            assert!((1500.0..4500.0).contains(&predicted), "{cell}");
        }
    }
}

/// Without figures of its own, an experiment has those of the shipped thread of its name.
#[test]
fn an_experiment_without_figures_is_about_a_shipped_thread() {
    let folder = tempfile::tempdir().unwrap();
    let text = include_str!("../../../../experiments/pelt-2012.toml");
    let path = folder.path().join("other.toml");
    fs::write(&path, text).unwrap();
    let table = ["--table", "sysbench_cpu", "-n", "1", "--no-cache", "--format", "json"];
    let run = |thread: &str| {
        let out = scxlab(&["reproduce", thread]).args(table).output().unwrap();
        assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
        out.stdout
    };
    assert_eq!(run(path.to_str().unwrap()), run("pelt-2012"));
}

/// Each mistake in a user's files is told with the file and the line.
#[test]
fn mistakes_in_a_users_experiment_have_a_place() {
    let folder = tempfile::tempdir().unwrap();
    for (file, from, to, line, why) in [
        ("mine.toml", "published = ", "publisher = ", 2, "no thread \"desktop\" is shipped"),
        ("mine.toml", "\"rows.toml\"", "\"none.toml\"", 3, "none.toml: no such file"),
        ("mine.toml", "doc = ", "dog = ", 4, "unknown field `dog`"),
        ("mine.toml", "\"{column}\"", "\"nobody\"", 22, "nobody"),
        ("mine.toml", "\"1n2c1t\"", "\"none.toml\"", 22, "none.toml: no such file"),
        ("rows.toml", "keys = ", "kees = ", 6, "missing field `keys`"),
    ] {
        let out = own(folder.path(), file, from, to);
        let said = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(3), "{said}");
        assert!(said.contains(&format!("{file}:{line}: ")) && said.contains(why), "{to}: {said}");
    }
    let out = scxlab(&["reproduce", "./absent.toml"]).output().unwrap();
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(3), "{said}");
    assert!(said.starts_with("error: ./absent.toml: "), "{said}");
}

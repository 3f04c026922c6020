// SPDX-License-Identifier: GPL-2.0-only
//! Tests of rt-app's own files, of the cases under `cases/rtapp`, and of hostile text.

use std::fs;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::*;
use crate::exec::mock::{Mock, MockEnd};
use crate::exec::{ExecConfig, Executor};
use crate::program::dump::dump;

/// Directory of the files of the Debian package `rt-app`, which `make setup` installs.
const PACKAGE: &str = "/usr/share/doc/rt-app";

fn json_files(folder: &Path, into: &mut Vec<PathBuf>) {
    let entries = fs::read_dir(folder).unwrap_or_else(|e| {
        panic!("{}: {e}: install the Debian package rt-app (make setup does)", folder.display())
    });
    let mut paths: Vec<_> = entries.map(|e| e.unwrap().path()).collect();
    paths.sort();
    for path in paths {
        if path.is_dir() {
            json_files(&path, into);
        } else if path.extension().is_some_and(|e| e == "json") {
            into.push(path);
        }
    }
}

fn shipped() -> Vec<(String, String)> {
    let mut paths = Vec::new();
    json_files(Path::new(PACKAGE), &mut paths);
    let read = |p: PathBuf| (p.display().to_string(), fs::read_to_string(&p).unwrap());
    paths.into_iter().map(read).collect()
}

#[test]
fn every_shipped_file_is_accepted() {
    let files = shipped();
    assert!(files.len() >= 20, "only {} files in {PACKAGE}", files.len());
    for (name, text) in &files {
        let program = crate::load(name, text).unwrap_or_else(|e| panic!("{e}"));
        let part = name.contains("merge/global") || name.contains("merge/resources");
        assert_eq!(program.threads.is_empty(), part, "{name}");
    }
}

#[test]
fn every_shipped_file_runs() {
    for (name, text) in shipped() {
        let program = parse(&name, &text).unwrap();
        if program.threads.is_empty() {
            continue;
        }
        let config =
            ExecConfig { nr_cpus: 4, duration: Some(1_000_000_000), ..ExecConfig::default() };
        let mut executor = Executor::new(&program, config).unwrap();
        let mut mock = Mock::new(4, 1);
        let end = mock.run(&mut executor, 1_000_000);
        assert_eq!(end, MockEnd::Finished, "{name}");
        let ran: u64 = mock.tasks.iter().map(|t| t.run_ns).sum();
        // In the second that is simulated, the tasks of every file must compute, with two
        // exceptions: those of `merge/thread` wait for a resource that another part of the merged
        // workload has, and those of `dvfs` wait for a timer of 1.2 s.
        let idle = name.contains("merge/thread") || name.contains("dvfs");
        assert!(ran > 0 || idle, "{name} did nothing");
        assert_eq!(executor.faults().1, 0, "{name}");
    }
}

#[test]
fn the_parts_of_a_merged_workload_make_a_whole() {
    let all = shipped();
    let parts: Vec<(&str, &str)> = all
        .iter()
        .filter(|(name, _)| name.contains("/merge/"))
        .map(|(name, text)| (name.as_str(), text.as_str()))
        .collect();
    let program = parse_parts(&parts).unwrap();
    assert_eq!(program.threads.len(), 4);
    assert_eq!(program.duration, Some(TimeSpan(5_000_000_000)));
    assert!(!dump(&program).contains("not declared"), "{}", dump(&program));
}

/// Checks a case file: a claim, `--- input`, and `--- expected` with the dump or the error.
fn check_case(path: &Path) -> Result<(), String> {
    let text = fs::read_to_string(path).unwrap();
    let (head, rest) = text.split_once("--- input\n").ok_or("no --- input")?;
    let (input, expected) = rest.split_once("--- expected\n").unwrap_or((rest, ""));
    let got = match parse("case.json", input) {
        Ok(program) => dump(&program),
        Err(error) => format!("error: {error}\n"),
    };
    if got == expected {
        return Ok(());
    }
    if std::env::var_os("BLESS").is_some() {
        fs::write(path, format!("{head}--- input\n{input}--- expected\n{got}")).unwrap();
        return Ok(());
    }
    let name = path.file_name().unwrap_or_default().display();
    Err(format!(
        "{name}:\n--- expected\n{expected}--- got\n{got}BLESS=1 cargo test -p scxlab-workload cases"
    ))
}

#[test]
fn cases_are_as_expected() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cases/rtapp");
    let mut cases: Vec<_> = fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).collect();
    cases.sort();
    cases.retain(|p| p.extension().is_some_and(|e| e == "case"));
    assert!(cases.len() >= 30, "{} cases in {}", cases.len(), folder.display());
    let failures: Vec<_> = cases.iter().filter_map(|c| check_case(c).err()).collect();
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn prefixes_are_tried_so_that_none_hides_another() {
    use event::{PREFIXES, RtappEvent, of_key};
    for (prefix, event) in PREFIXES {
        assert_eq!(of_key(prefix), Some(event));
        assert_eq!(of_key(&format!("{prefix}7b")), Some(event));
    }
    assert_eq!(of_key("runtime0"), Some(RtappEvent::Runtime));
    assert_eq!(of_key("memory"), Some(RtappEvent::Mem));
    assert_eq!(of_key("ru"), None);
}

/// A small valid file that covers most of the grammar.
const SEED: &str = r#"{ "tasks": { "a": { "instance": 2, "loop": 3, "delay": 10, "cpus": [0, "2-3"],
    "phases": { "p": { "loop": 2, "run": 5, "lock": "m", "wait": { "ref": "c", "mutex": "m" },
    "unlock": "m", "barrier": "b" }, "q": { "policy": "SCHED_FIFO", "priority": 5, "sleep": 1,
    "timer": { "ref": "unique", "period": 7, "mode": "absolute" }, "fork": "z" } } },
    "z": { "instance": 0, "memrun": { "type": "chase", "size": 64 }, "suspend", "yield": "" },
    "old": { "exec": 5, "period": 10, "lock_order": ["r"], "resources": { "r": { "duration": 2,
    "access": ["s"] } } } }, "resources": { "r": { "type": "mutex" } },
    "global": { "duration": 1, "ftrace": "main,task", "log_size": "auto" } }"#;

/// Pieces that a mutation may insert.
const PIECES: [&str; 22] = [
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\",
    "\\u",
    "/*",
    "//",
    "-1",
    "99999999999999999999",
    "1e9",
    "null",
    "true",
    "\"loop\"",
    "\"run\"",
    "\"phases\"",
    "\"{i\"",
    "é",
    "\0",
];

#[test]
fn the_seed_of_the_mutations_is_valid() {
    let program = parse("seed", SEED).unwrap();
    assert_eq!(program.threads.len(), 3);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..Default::default() })]

    #[test]
    fn no_text_makes_the_parser_panic(
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0usize..PIECES.len(), 0usize..40), 1..6)
    ) {
        let mut text = SEED.to_owned();
        for (at, piece, cut) in edits {
            let mut start = at.index(text.len() + 1);
            while !text.is_char_boundary(start) {
                start -= 1;
            }
            let mut end = (start + cut).min(text.len());
            while !text.is_char_boundary(end) {
                end += 1;
            }
            text.replace_range(start..end, PIECES[piece]);
        }
        // Any accepted program must run without a panic, too.
        if let Ok(program) = crate::load("mutated.json", &text) {
            dump(&program);
            let config = ExecConfig { nr_cpus: 4, duration: Some(1_000_000), ..Default::default() };
            if let Ok(mut executor) = Executor::new(&program, config) {
                Mock::new(4, 1).run(&mut executor, 2_000);
            }
        }
    }

    #[test]
    fn no_bytes_make_the_parser_panic(text in "\\PC{0,200}") {
        let _ = crate::load("x.json", &text);
        let _ = crate::load("x.toml", &text);
    }
}

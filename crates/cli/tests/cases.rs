// SPDX-License-Identifier: GPL-2.0-only
//! Runs `cases/cli`: each case has a command line, its input files, its output and its exit code.
//!
//! ```text
//! What the case shows.
//! --- file NAME        any number; the command runs in a folder that has them
//! --- env              NAME=VALUE, separated by spaces
//! --- args             one line; {root} is the project's folder
//! --- exit             the exit code
//! --- stdout, --- stderr   the output; the output of an absent section is not compared
//! ```
//!
//! `BLESS=1` rewrites the existing sections.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    path.canonicalize().unwrap()
}

/// Head line and text of a section.
type Section = (String, String);

fn sections(text: &str) -> Vec<Section> {
    let mut all: Vec<Section> = vec![(String::new(), String::new())];
    for line in text.split_inclusive('\n') {
        match line.strip_prefix("--- ") {
            Some(head) => all.push((head.trim().to_owned(), String::new())),
            None => all.last_mut().unwrap().1.push_str(line),
        }
    }
    all
}

fn actual(case: &Path, sections: &[Section]) -> Vec<Section> {
    let folder = tempfile::tempdir().unwrap();
    let root = root().display().to_string();
    let (mut args, mut env) = (Vec::new(), Vec::new());
    for (head, text) in sections {
        if let Some(name) = head.strip_prefix("file ") {
            fs::write(folder.path().join(name), text).unwrap();
        } else if head == "env" {
            env = text.split_whitespace().filter_map(|word| word.split_once('=')).collect();
        } else if head == "args" {
            args = text.split_whitespace().map(|a| a.replace("{root}", &root)).collect();
        }
    }
    assert!(!args.is_empty(), "{}: no args", case.display());
    let out = Command::new(env!("CARGO_BIN_EXE_scxlab"))
        .args(&args)
        .current_dir(folder.path())
        .env_remove("RUST_BACKTRACE")
        .env_remove("COLUMNS")
        .env_remove("NO_COLOR")
        .env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"))
        .env_remove("CLICOLOR_FORCE")
        .envs(env)
        .output()
        .unwrap();
    let shown = |bytes: &[u8]| String::from_utf8_lossy(bytes).replace(&root, "{root}");
    let section = |(head, text): &Section| {
        let new = match head.as_str() {
            "exit" => format!("{}\n", out.status.code().map_or("killed".into(), |c| c.to_string())),
            "stdout" => shown(&out.stdout),
            "stderr" => shown(&out.stderr),
            _ => text.clone(),
        };
        (head.clone(), new)
    };
    sections.iter().map(section).collect()
}

fn join(sections: &[Section]) -> String {
    let one = |(head, text): &Section| {
        if head.is_empty() { text.clone() } else { format!("--- {head}\n{text}") }
    };
    sections.iter().map(one).collect()
}

#[test]
fn cases_are_as_expected() {
    let folder = root().join("cases/cli");
    let mut cases: Vec<PathBuf> =
        fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).collect();
    cases.sort();
    cases.retain(|p| p.extension().is_some_and(|e| e == "case"));
    assert!(cases.len() >= 25, "{} cases", cases.len());
    let mut failures = Vec::new();
    for case in &cases {
        let text = fs::read_to_string(case).unwrap();
        let expected = sections(&text);
        assert!(expected.iter().any(|(head, _)| head == "exit"), "{}: no exit", case.display());
        let found = actual(case, &expected);
        if found == expected {
            continue;
        }
        if std::env::var_os("BLESS").is_some() {
            fs::write(case, join(&found)).unwrap();
            continue;
        }
        let name = case.file_name().unwrap().to_string_lossy();
        failures.push(format!(
            "--- {name} expected\n{}--- {name} found\n{}",
            join(&expected),
            join(&found)
        ));
    }
    let hint = "BLESS=1 cargo test -p scxlab-cli --test cases rewrites them";
    assert!(failures.is_empty(), "{}\n{hint}", failures.join("\n"));
}

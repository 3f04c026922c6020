// SPDX-License-Identifier: GPL-2.0-only
//! Tests that the timelines in documents equal the command's output. A timeline stands in a fenced
//! block `console`, below the command `$ scxlab run ... --timeline ...` in the block's first line.
//! `BLESS=1` rewrites the timelines.

use std::fs;
use std::path::{Path, PathBuf};

use crate::scxlab;

const OPEN: &str = "```console\n";
const CLOSE: &str = "```\n";
const PROMPT: &str = "$ scxlab ";

/// Returns the document with its timelines redrawn, and their number.
fn drawn(document: &str) -> (String, usize) {
    let mut new = String::new();
    let mut rest = document;
    let mut count = 0;
    while let Some(at) = rest.find(OPEN) {
        let (before, block) = rest.split_at(at + OPEN.len());
        new.push_str(before);
        let end = block.find(CLOSE).expect("a block has an end");
        let (block, after) = block.split_at(end);
        let command = block.lines().next().and_then(|line| line.strip_prefix(PROMPT));
        match command.filter(|c| c.contains("--timeline")) {
            None => new.push_str(block),
            Some(command) => {
                count += 1;
                let args: Vec<&str> = command.split_whitespace().collect();
                new.push_str(&format!("{PROMPT}{command}\n{}", timelines(&printed(&args))));
            }
        }
        rest = after;
    }
    new.push_str(rest);
    (new, count)
}

/// Returns the output of a command that runs in the project's folder.
fn printed(args: &[&str]) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let out = scxlab(args).current_dir(root).output().unwrap();
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// Returns the output from the first timeline to the end.
fn timelines(printed: &str) -> &str {
    let lines = printed.match_indices('\n').map(|(at, _)| at + 1);
    let is_head = |at: &usize| {
        let line = printed[*at..].lines().next().unwrap_or_default();
        line.contains(", seed ") && !line.contains("   ") && !line.contains(": ")
    };
    let first = lines.into_iter().find(is_head);
    &printed[first.unwrap_or_else(|| panic!("no timeline: {printed}"))..]
}

#[test]
fn documents_show_what_the_command_draws() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/schedulers");
    let mut files: Vec<PathBuf> =
        fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let mut stale = Vec::new();
    for file in files.iter().filter(|f| f.extension().is_some_and(|e| e == "md")) {
        let document = fs::read_to_string(file).unwrap();
        let (new, count) = drawn(&document);
        assert!(count > 0, "{} has no timeline", file.display());
        if new == document {
            continue;
        }
        if std::env::var_os("BLESS").is_some() {
            fs::write(file, new).unwrap();
        } else {
            stale.push(file.file_name().unwrap().to_owned());
        }
    }
    let hint = "BLESS=1 cargo test -p scxlab-cli --test end_to_end draws them anew";
    assert!(stale.is_empty(), "{stale:?}: {hint}");
}

// SPDX-License-Identifier: GPL-2.0-only
//! Figures in the prose of schedulers' pages: each must be listed in `cases/claims/elsewhere.txt`
//! with its source, or must move into a claim.
//!
//! A number before `%`, `us`, `times` or a rate (`rounds/s`) counts as a measured figure. Times in
//! ms are ignored, because on these pages they are slices, ticks and bounds. Code, tables and
//! claims are not prose.

use std::fs;
use std::ops::Range;

use crate::{files, root};

#[test]
fn figures_in_prose_have_a_source() {
    let root = root();
    let list = fs::read_to_string(root.join("cases/claims/elsewhere.txt")).unwrap();
    let mut sources: Vec<Source<'_>> = list.lines().filter_map(Source::read).collect();
    let mut pages = files(&root.join("docs/schedulers"), ".md");
    pages.extend(files(&root.join("bpf/sched"), ".md"));
    pages.push(root.join("docs/reference/scheduler-cost.md"));
    let mut faults = Vec::new();
    for file in pages {
        let page = file.strip_prefix(&root).unwrap().display().to_string();
        let text = prose(&fs::read_to_string(&file).unwrap());
        let mut covered: Vec<Range<usize>> = Vec::new();
        for source in sources.iter_mut().filter(|s| s.page == page) {
            let found = text.match_indices(source.words).map(|(at, words)| at..at + words.len());
            let before = covered.len();
            covered.extend(found);
            source.is_used = covered.len() > before;
        }
        for figure in figures(&text) {
            let inside = |r: &Range<usize>| r.start <= figure.start && figure.end <= r.end;
            if !covered.iter().any(inside) {
                faults.push(format!("{page}: \"{}\" is in no claim", &text[figure]));
            }
        }
    }
    let unused = sources.iter().filter(|s| !s.is_used);
    faults.extend(unused.map(|s| format!("elsewhere.txt: {} does not say {:?}", s.page, s.words)));
    let hint = "write a claim (CONTRIBUTING.md), or name the source in cases/claims/elsewhere.txt";
    assert!(faults.is_empty(), "{}\n{hint}", faults.join("\n"));
}

/// A line of `elsewhere.txt`: `page | words that contain the figure | source of the figure`.
struct Source<'a> {
    page: &'a str,
    words: &'a str,
    is_used: bool,
}

impl Source<'_> {
    fn read(line: &str) -> Option<Source<'_>> {
        let mut parts = line.split(" | ");
        let (page, words) = (parts.next()?, parts.next()?);
        parts.next().filter(|why| !why.is_empty()).map(|_| Source { page, words, is_used: false })
    }
}

/// Returns the document's words with single spaces, without code, tables, headings and claims.
fn prose(document: &str) -> String {
    let mut words: Vec<&str> = Vec::new();
    let (mut in_code, mut in_claim) = (false, false);
    for line in document.lines() {
        in_claim |= line.starts_with("<!-- claim ");
        if line.starts_with("```") {
            in_code = !in_code;
        }
        let skipped = ["```", "    ", "|", "#", "<!--"].iter().any(|start| line.starts_with(start));
        if !in_code && !in_claim && !skipped {
            words.extend(line.split_whitespace());
        }
        in_claim &= !line.starts_with("<!-- end of claim");
    }
    let text = words.join(" ");
    text.split('`').step_by(2).collect::<Vec<_>>().join("`")
}

/// Returns the places of numbers that stand before a unit of measured figures.
fn figures(prose: &str) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let mut at = 0;
    let mut last: Option<Range<usize>> = None;
    for word in prose.split(' ') {
        let place = at..at + word.len();
        at = place.end + 1;
        let bare = word.trim_matches(|c: char| "([*,.;:)]".contains(c));
        if let Some(number) = last.take().filter(|_| is_unit(bare)) {
            found.push(number.start..place.end);
        }
        if bare.starts_with(|c: char| c.is_ascii_digit()) {
            if bare.ends_with('%') {
                found.push(place);
            } else {
                last = Some(place);
            }
        }
    }
    found
}

fn is_unit(word: &str) -> bool {
    let rate = word.strip_suffix("/s").is_some_and(|unit| unit.chars().all(char::is_alphabetic));
    ["%", "us", "times"].contains(&word) || rate
}

#[test]
fn what_looks_measured_is_found() {
    let page = "# 5 %\n| 5 % |\n    5 %\n```\n5 %\n```\n<!-- claim x -->\n5 %\n<!-- end of claim -->\n\
                It falls by 34 % (`7 %`), to\n2,771 moves/s or 3.5 times; 30 ms are a slice, 12%.\n";
    let text = prose(page);
    let found: Vec<&str> = figures(&text).into_iter().map(|range| &text[range]).collect();
    assert_eq!(found, ["34 %", "2,771 moves/s", "3.5 times;", "12%."]);
}

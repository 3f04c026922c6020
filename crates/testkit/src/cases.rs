// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the rules of shipped schedulers, written as case files. A case has a small workload,
//! and the expected values of the scheduler's state at given instants.
//!
//! Owns: reading `cases/sched/NAME/*.toml`, running the cases, comparing. `BLESS=1` rewrites the
//! expected values; the reader of the diff has to judge whether a new value is right.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use scxlab_workload::program::TimeSpan;
use serde::Deserialize;

use crate::checks;
use crate::sim::{attach_shipped, kernel};
use crate::state::{global, task_field};

/// One case. Each line of `look` has an instant, then `task NAME` or `global`, then the fields to
/// read. A divisor may follow a field: `left_ns/1000000` is in whole ms. The division hides the
/// small changes of a value that depends on the cost of an instruction.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RuleCase {
    /// The rule that the case tests, in a sentence.
    #[expect(dead_code, reason = "for the reader of the file")]
    claim: String,
    machine: String,
    #[serde(default)]
    knobs: std::collections::BTreeMap<String, String>,
    workload: String,
    look: Vec<String>,
    expected: String,
}

/// Runs all cases of a scheduler; panics with the differences, and a hint how to accept them as the
/// expected values.
pub fn check_folder(scheduler: &str) {
    let root = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../cases/sched"));
    let folder = root.join(scheduler);
    let entries =
        std::fs::read_dir(&folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|e| e.expect("an entry").path()).collect();
    files.sort();
    assert!(!files.is_empty(), "{} has no cases", folder.display());
    let failures: Vec<String> =
        files.iter().filter_map(|file| check_file(scheduler, file)).collect();
    let hint = "BLESS=1 and the same command accept what came out";
    assert!(failures.is_empty(), "{}\n{hint}", failures.join("\n"));
}

fn check_file(scheduler: &str, file: &Path) -> Option<String> {
    let name = file.file_name().expect("a file").to_string_lossy().into_owned();
    let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{name}: {e}"));
    let case: RuleCase = toml::from_str(&text).unwrap_or_else(|e| panic!("{name}: {e}"));
    let got = run(scheduler, &case);
    if got == case.expected {
        return None;
    }
    if std::env::var_os("BLESS").is_some() {
        let head = text.split("expected = '''").next().expect("a part");
        let text = format!("{head}expected = '''\n{got}'''\n");
        std::fs::write(file, text).unwrap_or_else(|e| panic!("{name}: {e}"));
        return None;
    }
    Some(format!("{name}\nexpected:\n{}got:\n{got}", case.expected))
}

fn run(scheduler: &str, case: &RuleCase) -> String {
    let mut k = kernel(&case.machine, &case.workload, 1);
    let knobs: Vec<(&str, &str)> =
        case.knobs.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
    let loaded = attach_shipped(&mut k, scheduler, &knobs);
    k.start();
    let mut got = String::new();
    for line in &case.look {
        let mut words = line.split_whitespace();
        let mut next = || words.next().unwrap_or_else(|| panic!("{line:?} is too short"));
        let (at, kind) = (next(), next());
        k.advance(at.parse::<TimeSpan>().unwrap_or_else(|e| panic!("{line:?}: {e}")).0);
        let (shown, who) = match kind {
            "task" => {
                let name = next();
                (format!("{at} {name}"), Some(name))
            }
            "global" => (at.to_owned(), None),
            _ => panic!("{line:?}: task or global"),
        };
        got.push_str(&shown);
        for path in words {
            let (name, unit) = path.split_once('/').unwrap_or((path, "1"));
            let value = match who {
                Some(task) => task_field(&k, &loaded, task, name),
                None => global(&k, &loaded, name),
            };
            let value = value / unit.parse::<i64>().unwrap_or_else(|e| panic!("{path}: {e}"));
            write!(got, " {path}={value}").expect("a String takes any text");
        }
        got.push('\n');
    }
    checks::after(&k);
    assert!(k.ext.exits.is_empty(), "{:?}", k.ext.exits);
    got
}

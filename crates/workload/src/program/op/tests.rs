// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the declarations of ops; docs/reference/workload.md is written from these declarations.

use std::fs;
use std::path::Path;

use super::{OPS, OpDecl};
use crate::program::{from_json, from_toml};

const HEAD: &str = "<!-- SPDX-License-Identifier: GPL-2.0-only -->
<!-- Generated from crates/workload/src/program/op.rs: BLESS=1 cargo test -p scxlab-workload --lib reference -->
# The ops of a workload

A thread's `ops` are executed in order; [writing a workload](../guide/write-a-workload.md) has the rest of the file. An
op without arguments is a string, any other op a table with one key. Shared objects are created by naming them, and a
name may depend on the thread's instance: `{i}`, with `+ - * / %` applied from left to right.

A key, value or name that does not fit is refused before the run, with its place in the file. A system call that the
kernel refuses during the run is reported with the run; the thread goes on with its next op.
";

/// Returns an op as written in a file, with example values.
fn form(op: &OpDecl) -> String {
    let pairs: Vec<_> = op.args.iter().map(|a| format!("{} = {}", a.name, a.example)).collect();
    match (op.bare, op.args) {
        (true, [arg]) => format!("{{ {} = {} }}", op.name, arg.example),
        (_, []) => format!("\"{}\"", op.name),
        _ => format!("{{ {} = {{ {} }} }}", op.name, pairs.join(", ")),
    }
}

fn joined(lines: &[&str]) -> String {
    lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}

fn section(op: &OpDecl) -> String {
    let mut text = format!("\n## {}\n\n    {}\n\n{}\n", op.name, form(op), joined(op.meaning));
    if !op.args.is_empty() {
        text += "\n";
    }
    for arg in op.args {
        let meaning = joined(arg.meaning);
        let meaning = if meaning.is_empty() { meaning } else { format!(". {meaning}") };
        text += &format!("- `{}`: {}{meaning}\n", arg.name, arg.domain);
    }
    for (title, body) in [("Native", op.native), ("Refused", op.refused)] {
        if !body.is_empty() {
            text += &format!("\n{title}: {body}\n");
        }
    }
    text
}

#[test]
fn the_reference_of_the_ops_is_fresh() {
    let page = HEAD.to_owned() + &OPS.iter().map(section).collect::<String>();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/workload.md");
    if std::env::var_os("BLESS").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        found == page,
        "docs/reference/workload.md is stale: BLESS=1 cargo test -p scxlab-workload --lib reference"
    );
}

#[test]
fn the_form_of_every_op_can_be_parsed_and_meets_its_own_ranges() {
    for decl in OPS {
        let text = format!("[[thread]]\nname = 't'\nops = [{}]", form(decl));
        let program = from_toml("form.toml", &text).unwrap_or_else(|e| panic!("{text}: {e}"));
        let op = &program.threads[0].ops[0];
        assert_eq!(op.name(), decl.name);
        assert_eq!(op.check_args(), Ok(()), "{text}");
        assert_eq!(op.text().split(' ').next(), Some(decl.name));
    }
}

#[test]
fn an_unknown_op_is_refused_with_a_list_of_all() {
    let all: Vec<_> = OPS.iter().map(|op| op.name).collect();
    let expected = format!("unknown op \"computed\"; there are {}", all.join(", "));
    let toml = from_toml("a.toml", "[[thread]]\nname = 't'\nops = [{ computed = '1ms' }]");
    let json =
        from_json("a.json", r#"{ "thread": [{ "name": "t", "ops": [{ "computed": "1ms" }] }] }"#);
    for (got, place) in [(toml, "a.toml:3:10"), (json, "a.json:1:48")] {
        assert_eq!(got.unwrap_err().to_string(), format!("{place}: {expected}"));
    }
}

/// Ops of a wrong form are told with the right one.
#[test]
fn the_form_of_an_op_is_told() {
    for (ops, expected) in [
        ("{ loop = 3 }", "must be loop = { times = 3, ops = [...] }"),
        ("{ loop = [] }", "must be loop = { times = 3, ops = [...] }"),
        ("{ phase = 3 }", "must be phase = { name = \"a\", times = 3, ops = [...] }"),
        ("{ compute = '1ms', sleep = '1ms' }", "an op is a table with one key"),
    ] {
        let text = format!("[[thread]]\nname = 'a'\nops = [{ops}]\n");
        let error = from_toml("a.toml", &text).unwrap_err().to_string();
        assert!(error.starts_with("a.toml:3:") && error.contains(expected), "{error}");
    }
}

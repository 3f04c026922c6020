// SPDX-License-Identifier: GPL-2.0-only
//! Tests that `docs/reference/flags.md` is up to date, and that the flags are consistent.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use clap::{Arg, Command, CommandFactory};

use super::*;

/// Returns the reference page in Markdown.
fn flags_page() -> String {
    let mut command = Cli::command();
    command.build();
    let mut text = String::from(
        "<!-- SPDX-License-Identifier: GPL-2.0-only -->\n<!-- Generated from crates/cli/src/args.rs; \
         BLESS=1 cargo test -p scxlab-cli rewrites it. -->\n# Flags\n",
    );
    section(&mut text, &command, "scxlab");
    for sub in command.get_subcommands().filter(|c| c.get_name() != "help") {
        section(&mut text, sub, &format!("scxlab {}", sub.get_name()));
    }
    text.trim_end().to_owned() + "\n"
}

fn section(text: &mut String, command: &Command, name: &str) {
    let about = command.get_long_about().or(command.get_about()).map(ToString::to_string);
    let _ = writeln!(text, "\n## {name}\n\n{}\n", about.unwrap_or_default());
    let usage = command.clone().bin_name(name.to_owned()).render_usage().to_string();
    let _ = writeln!(text, "    {}\n", usage.trim_start_matches("Usage: ").replace('\n', "\n    "));
    for arg in command.get_arguments().filter(|a| !a.is_hide_set()) {
        argument(text, arg);
    }
    if let Some(after) = command.get_after_long_help().or(command.get_after_help()) {
        let _ = writeln!(text, "\n    {}", after.to_string().replace('\n', "\n    "));
    }
}

fn argument(text: &mut String, arg: &Arg) {
    let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let _ = write!(text, "- `{arg}`");
    if let (Some(short), Some(_)) = (arg.get_short(), arg.get_long()) {
        let _ = write!(text, " (`-{short}`)");
    }
    let paragraphs = help.split("\n\n").map(|part| part.replace('\n', " "));
    let joined = paragraphs.reduce(|before, part| match before.ends_with(['.', ':', '?']) {
        true => format!("{before} {part}"),
        false => format!("{before}. {part}"),
    });
    let _ = write!(text, ": {}", joined.unwrap_or_default());
    let values: Vec<_> =
        arg.get_possible_values().iter().map(|v| format!("`{}`", v.get_name())).collect();
    if !values.is_empty() && arg.get_action().takes_values() {
        let _ = write!(text, ". One of {}", values.join(", "));
    }
    let defaults: Vec<_> =
        arg.get_default_values().iter().map(|v| format!("`{}`", v.display())).collect();
    if !defaults.is_empty() && arg.get_action().takes_values() {
        let _ = write!(text, ". Default: {}", defaults.join(" "));
    }
    text.push('\n');
}

#[test]
fn the_flags_page_is_fresh() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/flags.md");
    let page = flags_page();
    if std::env::var_os("BLESS").is_some() {
        fs::write(&path, &page).unwrap();
    }
    let found = fs::read_to_string(&path).unwrap_or_default();
    assert!(found == page, "docs/reference/flags.md is stale: BLESS=1 cargo test -p scxlab-cli");
}

#[test]
fn the_declaration_is_consistent() {
    Cli::command().debug_assert();
}

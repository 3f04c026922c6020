// SPDX-License-Identifier: GPL-2.0-only
//! Outcome of the runs: which runs count and why others do not, ejections, starvation, omissions.
//!
//! Owns: the first rows of the table, the marks, and the remarks below it. Does not: decide whether
//! a run counts (see `run.rs`).

use std::collections::BTreeSet;
use std::fmt::Write;

use super::document::{Cell, Mark};
use super::format::{ABSENT, Scale};
use crate::results::Manifest;
use crate::run::{NeverRan, Run};
use crate::story::Story;
use scxlab_machine::plural;

/// Mark behind the name of a scheduler of which some part did not run.
const MARK: &str = "*";

/// Returns the heading of a column: the name of a scheduler or target, followed by `*` if some part
/// of the scheduler did not run.
pub fn name(name: &str, group: &[Run]) -> String {
    let mark = if group.iter().any(|run| !run.left_out.is_empty()) { MARK } else { "" };
    format!("{name}{mark}")
}

/// Returns the mark behind the name of a machine on which some runs do not count.
pub fn mark(groups: &[&[Run]]) -> &'static str {
    if groups.iter().all(|group| group.iter().all(|run| run.counts)) { "" } else { " !" }
}

/// Returns the rows above the metrics. The exit kind is always shown. The time of the ejection, the
/// number of runs that count and the number of starved tasks are shown only if they apply.
pub fn lines(groups: &[&[Run]]) -> Vec<Vec<Cell>> {
    let any = |is: fn(&Run) -> bool| groups.iter().any(|group| group.iter().any(is));
    let mut all = vec![line("exit", groups, exit, Run::was_ejected)];
    if any(|run| run.exit.at_ns.is_some()) {
        all.push(line("ejected after", groups, ejected_after, Run::was_ejected));
    }
    if any(|run| !run.counts) {
        all.push(line("runs that count", groups, counting, |run| !run.counts));
    }
    if any(|run| !run.never_ran.is_empty()) {
        let all_runs = groups.iter().copied().flatten();
        let label = format!("tasks that {}", NeverRan::words(all_runs.flat_map(|r| &r.never_ran)));
        all.push(line(&label, groups, starved, |run| !run.never_ran.is_empty()));
    }
    all
}

/// Returns a row with a cell for each group. The cells of groups with a failed run are marked.
fn line(
    label: &str,
    groups: &[&[Run]],
    cell: fn(&[Run]) -> String,
    failed: fn(&Run) -> bool,
) -> Vec<Cell> {
    let mut line = vec![Cell::plain(label)];
    for (at, group) in groups.iter().enumerate() {
        let mark = if group.iter().any(failed) { Mark::Failure } else { Mark::Plain };
        line.push(Cell::new(cell(group), mark));
        if at > 0 {
            line.push(Cell::default());
        }
    }
    line
}

fn exit(group: &[Run]) -> String {
    let gone: Vec<&Run> = group.iter().filter(|run| run.was_ejected()).collect();
    match gone.first() {
        None => crate::run::Exit::NONE.to_owned(),
        Some(run) if group.len() == 1 => run.exit.kind.clone(),
        Some(run) => format!("{} ({} of {})", run.exit.kind, gone.len(), group.len()),
    }
}

fn ejected_after(group: &[Run]) -> String {
    let times = || group.iter().filter_map(|run| run.exit.at_ns);
    span(times().min(), times().max())
}

fn counting(group: &[Run]) -> String {
    let (count, of) = (group.iter().filter(|run| run.counts).count(), group.len());
    let mut text = format!("{count} of {of}");
    let ejected = group.iter().filter(|run| run.was_ejected()).count();
    let others = of - count - ejected;
    let mut why = Vec::new();
    if ejected > 0 {
        why.push(format!("{ejected} ejected"));
    }
    if others > 0 {
        why.push(format!("{others} stopped early"));
    }
    if !why.is_empty() {
        let _ = write!(text, "; {}", why.join(", "));
    }
    text
}

fn starved(group: &[Run]) -> String {
    let with = group.iter().filter(|run| !run.never_ran.is_empty()).count();
    let worst = group.iter().max_by_key(|run| run.never_ran.len());
    let Some(worst) = worst.filter(|_| with > 0) else {
        return ABSENT.into();
    };
    let count = worst.never_ran.len();
    let text = format!("{count} of {}", worst.tasks.len());
    match group.iter().all(|run| run.never_ran.len() == count) {
        true => text,
        false => format!("up to {text}, in {with} of {}", plural(group.len(), "run")),
    }
}

/// Formats a range of times, such as `3.00 s` or `3.00 s to 4.12 s`.
fn span(min: Option<u64>, max: Option<u64>) -> String {
    match (min, max) {
        (Some(min), Some(max)) if min == max => duration(max),
        (Some(min), Some(max)) => format!("{} to {}", duration(min), duration(max)),
        _ => ABSENT.into(),
    }
}

pub fn duration(ns: u64) -> String {
    Scale::time(ns as f64).with_unit(ns as f64)
}

/// Lists omissions, exits with their messages, starvation, runs that ended early, and notes.
pub fn remarks(names: &[&str], groups: &[&[Run]], manifest: &Manifest) -> String {
    let mut seen = BTreeSet::new();
    let mut text = String::new();
    let mut add = |line: String| {
        if seen.insert(line.clone()) {
            let _ = writeln!(text, "{line}");
        }
    };
    for (name, group) in names.iter().zip(groups) {
        for run in group.iter().filter(|run| !run.left_out.is_empty()) {
            add(format!("{MARK} {name}: not run: {}", run.left_out.join("; ")));
        }
        let mut told = BTreeSet::new();
        for run in *group {
            let is_told =
                run.was_ejected() && told.len() < STORIES && told.insert(&run.exit.origin);
            let story = if is_told { story(run, manifest) } else { Vec::new() };
            failures(name, run, &story).into_iter().for_each(&mut add);
        }
        for run in *group {
            run.notes.iter().for_each(|note| add(format!("note: {note}")));
        }
    }
    if text.is_empty() { text } else { format!("\n{text}") }
}

/// Maximum number of exits with different origins that are told in full for one scheduler; the
/// results file has all of them.
const STORIES: usize = 3;

/// Returns the origin of an ejection, what happened before it, and the command that makes the run
/// again.
fn story(run: &Run, manifest: &Manifest) -> Vec<String> {
    let mut lines = origin_and_story(run);
    lines.push(format!("again: {}", manifest.command(run)));
    lines
}

/// Returns the origin of an ejection, and what happened before it.
pub fn origin_and_story(run: &Run) -> Vec<String> {
    run.exit.origin.iter().cloned().chain(run.exit.story.iter().flat_map(Story::lines)).collect()
}

/// Returns a line for each failure of one run: ejection, tasks that starved, early stop. `story`
/// follows the ejection.
fn failures(name: &str, run: &Run, story: &[String]) -> Vec<String> {
    let Run { seed, exit, stop, .. } = run;
    let mut lines = Vec::new();
    if run.was_ejected() {
        let message = if exit.message.is_empty() { "no message" } else { &exit.message };
        let at = exit.at_ns.map_or_else(String::new, |at| format!(" after {}", duration(at)));
        let story: String = story.iter().map(|line| format!("\n  {line}")).collect();
        lines.push(format!(
            "{name}, seed {seed}: exit {}{at}, code {}: {message}{story}",
            exit.kind, exit.code
        ));
    }
    if !run.never_ran.is_empty() {
        let (count, of) = (run.never_ran.len(), run.tasks.len());
        lines.push(format!(
            "{name}, seed {seed}: {count} of {} {}: {}",
            plural(of, "task"),
            NeverRan::words(&run.never_ran),
            tasks(&run.never_ran)
        ));
    }
    if !stop.is_regular() {
        lines.push(format!(
            "{name}, seed {seed}: stopped early: {}: {}",
            stop.kind.name(),
            stop.message
        ));
    }
    lines
}

/// Tells how long a starved task waited, and how long it ran if it did.
fn waited(task: &NeverRan) -> String {
    let ran = match task.run_ns {
        0 => String::new(),
        run_ns => format!("ran {} and ", duration(run_ns)),
    };
    format!("{ran}waited {}", duration(task.wait_ns))
}

/// Names up to five tasks that starved, those with the longest wait first, and the number of
/// further ones.
fn tasks(starved: &[NeverRan]) -> String {
    const SHOWN: usize = 5;
    let mut sorted: Vec<&NeverRan> = starved.iter().collect();
    sorted.sort_by_key(|task| std::cmp::Reverse(task.wait_ns));
    let shown = sorted.iter().take(SHOWN);
    let shown: Vec<String> = shown.map(|t| format!("{} {}", t.name, waited(t))).collect();
    let more = sorted.len().saturating_sub(SHOWN);
    let rest = if more > 0 { format!(" and {more} more") } else { String::new() };
    format!("{}{rest}", shown.join(", "))
}

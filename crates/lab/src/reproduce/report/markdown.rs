// SPDX-License-Identifier: GPL-2.0-only
//! The report of a reproduction as Markdown, which is `docs/published.md`.

use std::collections::BTreeMap;
use std::fmt::Write;

use super::{CellReport, SCORE_HEADINGS, ThreadReport, Verdict, columns, percent, score_columns};

/// The page's beginning.
const HEAD: &str = "\
<!-- SPDX-License-Identifier: GPL-2.0-only -->
<!-- Generated: scxlab reproduce --format markdown > docs/published.md -->
# Published tables, predicted

After this page you know how well scxlab predicts what its schedulers did on the machines of their
time. `scxlab reproduce o1-2002` makes the runs of one thread and prints its part of this page.

Each figure that a thread printed stands beside the simulation's. The files in `experiments/` say
which machine, workload and scheduler a figure is. Parameters were fitted to figures of baselines
only, by the procedure of `--fit`, which starts from the defaults and takes the value with the least
error from a grid; `--blind` leaves them at their defaults.

- A *change* compares a figure with its baseline: positive is better. A predicted change in
  parentheses cannot be told from noise.
- *agrees*: the sign is right, and the size, as the logarithm of the ratio between the figure and
  its baseline, is between half and twice the published one: +60 % agrees with +27 %. *size*: only
  the sign is right. *SIGN*: the sign is wrong, or the predicted change is below 1 %.
- *Sign agreement* is over the published changes that exceed their noise, or 5 % where none is
  printed. A cell whose scheduler was ejected disagrees.
- *Twin agreement* tells how far a thread agrees with itself: the share of these changes whose twin,
  the row that the thread measured in other circumstances (`[[twin]]` in the experiments: another
  machine, pinned guests, merged pages), has the same published sign, by the same rule. In
  parentheses, the share of the same changes whose prediction has the sign.
- *Rank correlation* is Spearman's, over the
  figures of a table. *Size error* is the median factor, less 1, by which a predicted change misses.
- Intervals are 95 % intervals; those of scores come from resampling the cells.

";

/// Returns the report as Markdown.
pub fn markdown(threads: &[ThreadReport]) -> String {
    let mut text = String::from(HEAD);
    text.push_str("## Scores\n\n");
    let head = ["thread", "table"].into_iter().chain(SCORE_HEADINGS);
    row(&mut text, head.map(str::to_owned));
    row(
        &mut text,
        (0..2 + SCORE_HEADINGS.len()).map(|at| if at < 2 { "---" } else { "---:" }.to_owned()),
    );
    for score in threads.iter().flat_map(|thread| &thread.scores) {
        let names = [score.thread.clone(), score.table.clone()].into_iter();
        row(&mut text, names.chain(score_columns(score)));
    }
    for thread in threads {
        one(&mut text, thread);
    }
    text
}

fn one(text: &mut String, thread: &ThreadReport) {
    let _ = write!(
        text,
        "\n## {}\n\n*{}*, {}. {}\n",
        thread.thread, thread.title, thread.date, thread.doc
    );
    if !thread.fitted.is_empty() {
        text.push_str("\nFitted to baseline figures:\n\n");
        for fitted in &thread.fitted {
            let _ = writeln!(
                text,
                "- `{}` = {} (with `--blind` {}{}): {}",
                fitted.name,
                fitted.value,
                fitted.default,
                fitted.from.as_ref().map_or(String::new(), |from| format!("; factor of {from}")),
                fitted.why
            );
        }
    }
    disagreements(text, thread);
    for (id, (title, unit)) in &thread.tables {
        let cells: Vec<&CellReport> = thread.cells.iter().filter(|c| c.table == *id).collect();
        if !cells.is_empty() {
            let _ = write!(text, "\n### {id}\n\n{title}, in {unit}.\n\n");
            table(text, &cells);
            not_predicted(text, &cells);
        }
    }
}

fn disagreements(text: &mut String, thread: &ThreadReport) {
    let by_cause = thread.worst_by_cause();
    if by_cause.is_empty() {
        return;
    }
    text.push_str("\nWhat disagrees, the worst first:\n\n");
    for (cause, cells) in by_cause {
        let name = |cell: &&CellReport| {
            let keys: Vec<&str> = cell.keys.values().map(String::as_str).collect();
            let change = |change: Option<f64>| change.map_or("-".to_owned(), percent);
            format!(
                "{} {} {} ({}, predicted {})",
                cell.table,
                keys.join(" "),
                cell.column,
                change(cell.published_change),
                change(cell.predicted_change)
            )
        };
        let names: Vec<String> = cells.iter().take(4).map(name).collect();
        let more = match cells.len() {
            n if n > 4 => format!(" and {} more", n - 4),
            _ => String::new(),
        };
        let _ = writeln!(text, "- {cause} {}{more}.", names.join("; "));
    }
}

fn table(text: &mut String, cells: &[&CellReport]) {
    let Some(first) = cells.first() else { return };
    let keys = first.keys.keys().cloned();
    let rest = ["figure", "published", "predicted", "change", "predicted change", ""];
    row(text, keys.chain(rest.map(str::to_owned)));
    let left = first.keys.len() + 1;
    row(
        text,
        (0..left + 5)
            .map(|at| if (left..left + 4).contains(&at) { "---:" } else { "---" }.to_owned()),
    );
    let mut sorted = cells.to_vec();
    sorted.sort_by_key(|cell| cell.row);
    for cell in sorted.iter().filter(|cell| cell.verdict != Verdict::NotPredicted) {
        let names = cell.keys.values().cloned().chain([cell.column.clone()]);
        row(text, names.chain(columns(cell)));
    }
}

/// Lists the figures that are not predicted, by reason.
fn not_predicted(text: &mut String, cells: &[&CellReport]) {
    let mut by_reason: BTreeMap<&str, usize> = BTreeMap::new();
    for cell in cells.iter().filter(|cell| cell.verdict == Verdict::NotPredicted) {
        *by_reason.entry(cell.why.as_deref().unwrap_or_default()).or_default() += 1;
    }
    for (reason, count) in by_reason {
        let figures = if count == 1 { "figure is" } else { "figures are" };
        let _ = write!(text, "\n{count} {figures} not predicted: {reason}\n");
    }
}

fn row(text: &mut String, cells: impl IntoIterator<Item = String>) {
    for cell in cells {
        let _ = write!(text, "| {} ", cell.replace('|', "\\|"));
    }
    text.push_str("|\n");
}

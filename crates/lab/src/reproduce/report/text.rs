// SPDX-License-Identifier: GPL-2.0-only
//! The report of a reproduction for a terminal.

use std::fmt::Write;

use super::{CellReport, SCORE_HEADINGS, ThreadReport, Verdict, columns, percent, score_columns};
use crate::report::document::{Align, Cell, Document, Mark, Table};
use scxlab_machine::plural;

/// Number of the worst cells that are listed.
const WORST: usize = 12;

/// Returns the report for a screen.
pub fn document(threads: &[ThreadReport]) -> Document {
    let mut document = Document::default();
    for thread in threads {
        document.push_text(format!("{} ({}): {}\n", thread.thread, thread.date, thread.title));
        let machine = thread.machine.as_ref().map(|machine| format!("on {machine}, "));
        document.push_text(format!(
            "{}{} a setup\n",
            machine.unwrap_or_default(),
            plural(thread.runs, "run")
        ));
        for (id, (title, unit)) in &thread.tables {
            let cells: Vec<&CellReport> = thread.cells.iter().filter(|c| c.table == *id).collect();
            if let Some(table) = table(cells) {
                document.push_text(format!("\n{id}: {title} [{unit}]\n"));
                document.push(table);
            }
        }
        document.push_text("\n");
        document.push_text(worst(thread));
    }
    if threads.iter().any(|thread| !thread.scores.is_empty()) {
        document.push_text("Scores, with 95 % intervals:\n");
        document.push(scores(threads));
    }
    document
}

/// Returns the table of cells; None if there are none.
fn table(mut cells: Vec<&CellReport>) -> Option<Table> {
    let keys = cells.first()?.keys.keys();
    let named = ["figure", "published", "predicted", "change", "predicted change", ""];
    let head: Vec<Cell> = keys.map(String::as_str).chain(named).map(Cell::head).collect();
    let figure = head.len() - named.len();
    // A narrow screen shows the figures, the changes and the verdicts one below the other.
    let mut table = Table::new(head, figure + 1, 2);
    table.aligns[..=figure].fill(Align::Left);
    if let Some(verdict) = table.aligns.last_mut() {
        *verdict = Align::Left;
    }
    cells.sort_by_key(|cell| cell.row);
    table.rows.extend(cells.into_iter().map(row));
    Some(table)
}

fn row(cell: &CellReport) -> Vec<Cell> {
    let [published, predicted, change, predicted_change, mut verdict] = columns(cell);
    if cell.verdict == Verdict::Failed {
        verdict = format!("{verdict}: {}", cell.why.as_deref().unwrap_or_default());
    }
    let mark = match cell.verdict {
        Verdict::Agrees | Verdict::Quiet => Mark::Better,
        Verdict::Size | Verdict::Sign | Verdict::Loud => Mark::Worse,
        Verdict::Failed => Mark::Failure,
        Verdict::NotPredicted => Mark::Noise,
        Verdict::NoEffect | Verdict::Unpublished => Mark::Plain,
    };
    let names = cell.keys.values().chain([&cell.column]);
    let figures = [published, predicted, change, predicted_change];
    let mut row: Vec<Cell> = names.chain(&figures).map(Cell::plain).collect();
    row.push(Cell::new(verdict, mark));
    row
}

/// Lists the worst cells below the explanation that they have in common.
fn worst(thread: &ThreadReport) -> String {
    let by_cause = thread.worst_by_cause();
    if by_cause.is_empty() {
        return String::new();
    }
    let mut text = "Worst cells:\n".to_owned();
    let mut left = WORST;
    for (cause, cells) in &by_cause {
        let listed = &cells[..cells.len().min(left)];
        if listed.is_empty() {
            break;
        }
        left -= listed.len();
        let _ = writeln!(text, "  {cause}");
        for cell in listed {
            let keys: Vec<String> = cell.keys.iter().map(|(k, v)| format!("{k}={v}")).collect();
            let change = |change: Option<f64>| change.map_or("-".to_owned(), percent);
            let _ = writeln!(
                text,
                "    {} {} {}: published {}, predicted {}",
                cell.table,
                keys.join(" "),
                cell.column,
                change(cell.published_change),
                change(cell.predicted_change),
            );
        }
    }
    let all: usize = by_cause.iter().map(|(_, cells)| cells.len()).sum();
    if all > WORST {
        let _ = writeln!(text, "  and {} more (--format json has all)", all - WORST);
    }
    text.push('\n');
    text
}

fn scores(threads: &[ThreadReport]) -> Table {
    let head = ["thread", "table"].into_iter().chain(SCORE_HEADINGS);
    let mut table = Table::new(head.map(Cell::head).collect(), 2, 1);
    table.aligns[1] = Align::Left;
    for score in threads.iter().flat_map(|thread| &thread.scores) {
        let named = [score.thread.clone(), score.table.clone()];
        table.rows.push(named.into_iter().chain(score_columns(score)).map(Cell::plain).collect());
    }
    table
}

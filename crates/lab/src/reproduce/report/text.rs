// SPDX-License-Identifier: GPL-2.0-only
//! The report of a reproduction for a terminal.

use std::fmt::Write;

use super::{CellReport, SCORE_HEADINGS, ThreadReport, Verdict, columns, percent, score_columns};
use crate::report::format::{Align, grid};

/// Number of the worst cells that are listed.
const WORST: usize = 12;

/// Returns the report as text.
pub fn text(threads: &[ThreadReport]) -> String {
    let mut text = String::new();
    for thread in threads {
        let _ = writeln!(text, "{} ({}): {}", thread.thread, thread.date, thread.title);
        if let Some(machine) = &thread.machine {
            let _ = writeln!(text, "on {machine}, {} runs a setup", thread.runs);
        } else {
            let _ = writeln!(text, "{} runs a setup", thread.runs);
        }
        for (id, (title, unit)) in &thread.tables {
            let cells: Vec<&CellReport> = thread.cells.iter().filter(|c| c.table == *id).collect();
            if !cells.is_empty() {
                let _ = writeln!(text, "\n{id}: {title} [{unit}]");
                text.push_str(&table(&cells));
            }
        }
        text.push('\n');
        worst(&mut text, thread);
    }
    if threads.iter().any(|thread| !thread.scores.is_empty()) {
        text.push_str(&scores(threads));
    }
    text
}

fn table(cells: &[&CellReport]) -> String {
    let Some(first) = cells.first() else { return String::new() };
    let mut head: Vec<String> = first.keys.keys().cloned().collect();
    let keys = head.len();
    head.extend(
        ["figure", "published", "predicted", "change", "predicted change", ""].map(str::to_owned),
    );
    let mut sorted = cells.to_vec();
    sorted.sort_by_key(|cell| cell.row);
    let line = |cell: &&CellReport| {
        let mut line: Vec<String> = cell.keys.values().cloned().collect();
        line.push(cell.column.clone());
        let [published, predicted, change, predicted_change, mut verdict] = columns(cell);
        if cell.verdict == Verdict::Failed {
            verdict = format!("{verdict}: {}", cell.why.as_deref().unwrap_or_default());
        }
        line.extend([published, predicted, change, predicted_change, verdict]);
        line
    };
    let lines: Vec<Vec<String>> = std::iter::once(head).chain(sorted.iter().map(line)).collect();
    let mut aligns = vec![Align::Left; keys + 1];
    aligns.extend([Align::Right, Align::Right, Align::Right, Align::Right, Align::Left]);
    grid(&lines, &aligns)
}

fn worst(text: &mut String, thread: &ThreadReport) {
    let worst = thread.worst();
    if worst.is_empty() {
        return;
    }
    let _ = writeln!(text, "Worst cells:");
    for cell in worst.iter().take(WORST) {
        let keys: Vec<String> = cell.keys.iter().map(|(k, v)| format!("{k}={v}")).collect();
        let change = |change: Option<f64>| change.map_or("-".to_owned(), percent);
        let _ = writeln!(
            text,
            "  {} {} {}: published {}, predicted {}. {}",
            cell.table,
            keys.join(" "),
            cell.column,
            change(cell.published_change),
            change(cell.predicted_change),
            cell.cause.as_deref().or(cell.why.as_deref()).unwrap_or("The cause is not known."),
        );
    }
    if worst.len() > WORST {
        let _ = writeln!(text, "  and {} more (--format json has all)", worst.len() - WORST);
    }
    text.push('\n');
}

fn scores(threads: &[ThreadReport]) -> String {
    let mut lines = vec![vec!["thread".to_owned(), "table".to_owned()]];
    lines[0].extend(SCORE_HEADINGS.map(str::to_owned));
    for score in threads.iter().flat_map(|thread| &thread.scores) {
        let mut line = vec![score.thread.clone(), score.table.clone()];
        line.extend(score_columns(score));
        lines.push(line);
    }
    let mut aligns = vec![Align::Left; 2];
    aligns.extend([Align::Right; 7]);
    format!("Scores, with 95 % intervals:\n{}", grid(&lines, &aligns))
}

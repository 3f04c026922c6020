// SPDX-License-Identifier: GPL-2.0-only
//! One cell: its run, and what is kept of it.
//!
//! Owns: the columns of a file of the store (`docs/reference/sweep-store.md`). Does not: know the
//! names that a sweep has for the cell's inputs; the key stands for them.

use indexmap::IndexMap;
use scxlab_lab::sim::{SimError, simulate};
use scxlab_results::parquet::{self, Column, Table, Values};
use scxlab_trace::Tracer;

use crate::SweepError;
use crate::file::is_of_one_cpu;
use crate::plan::{Cell, CellKey, Plan, SetupKey};

/// The result of a cell.
#[derive(Clone, Debug, PartialEq)]
pub struct CellResult {
    pub key: CellKey,
    pub outcome: Outcome,
    /// Values of metrics by name, without those of single CPUs.
    pub metrics: IndexMap<String, f64>,
}

/// How a cell ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Whether the figures describe the scheduler over the whole workload (`Run::counts`).
    pub counts: bool,
    /// Kind and message of the scheduler's exit; `none` if it stayed.
    pub exit: String,
    pub exit_message: String,
    /// Kind and message of the run's end; `not_run` if the simulator refused the cell, with the
    /// reason.
    pub stop: String,
    pub stop_message: String,
    /// Number of tasks that starved (`Run::never_ran`).
    pub never_ran: u64,
    pub virtual_ns: u64,
    /// Rolling hash of all events, in hexadecimal.
    pub trace_hash: String,
}

/// `Outcome::stop` of a cell that has no run: the simulator does not model what its scheduler
/// needs, or its inputs do not fit each other.
pub const NOT_RUN: &str = "not_run";

impl Outcome {
    fn not_run(why: String) -> Outcome {
        Outcome {
            counts: false,
            exit: String::new(),
            exit_message: String::new(),
            stop: NOT_RUN.to_owned(),
            stop_message: why,
            never_ran: 0,
            virtual_ns: 0,
            trace_hash: String::new(),
        }
    }
}

/// Runs a cell. `interrupt` ends the run; then there is no result.
pub fn run(
    plan: &Plan,
    cell: Cell,
    interrupt: &dyn Fn() -> Option<String>,
) -> Result<CellResult, SweepError> {
    let key = plan.key(cell);
    let none = IndexMap::new();
    match simulate(&plan.spec(cell), Tracer::default(), &|_| interrupt()) {
        Ok((run, _)) if run.stop.was_interrupted() => {
            Err(SweepError::Interrupted { why: run.stop.message })
        }
        Ok((run, _)) => {
            let outcome = Outcome {
                counts: run.counts,
                exit: run.exit.kind,
                exit_message: run.exit.message,
                stop: run.stop.kind.name().to_owned(),
                stop_message: run.stop.message,
                never_ran: run.never_ran.len() as u64,
                virtual_ns: run.virtual_ns,
                trace_hash: run.trace_hash,
            };
            let metrics = run.metrics.into_iter().filter(|(name, _)| !is_of_one_cpu(name));
            let metrics = metrics.map(|(name, metric)| (name, metric.value)).collect();
            Ok(CellResult { key, outcome, metrics })
        }
        // Another attempt, or another host, may have the memory.
        Err(error @ SimError::Memory(_)) => {
            Err(SweepError::Host { cell: plan.describe(cell), why: error.to_string() })
        }
        Err(error) => {
            Ok(CellResult { key, outcome: Outcome::not_run(error.to_string()), metrics: none })
        }
    }
}

/// Columns of a cell's outcome, in the store and in the table of results.
pub const OUTCOME_COLUMNS: [&str; 8] = [
    "counts",
    "exit",
    "exit_message",
    "stop",
    "stop_message",
    "never_ran",
    "virtual_ns",
    "trace_hash",
];

/// Columns of a cell's key in the store.
pub const SETUP: &str = "setup";
pub const SEED: &str = "seed";

/// Prefix of the columns of metrics in the store.
pub const METRIC: &str = "metric.";

/// Returns the outcomes as columns.
pub fn outcome_columns<'a>(all: impl Iterator<Item = &'a Outcome> + Clone) -> Vec<Column> {
    let text = |of: fn(&Outcome) -> &String| {
        Values::Text(all.clone().map(|outcome| Some(of(outcome).clone())).collect())
    };
    let int = |of: fn(&Outcome) -> u64| {
        Values::Int(all.clone().map(|outcome| Some(of(outcome) as i64)).collect())
    };
    let values = [
        Values::Bool(all.clone().map(|outcome| Some(outcome.counts)).collect()),
        text(|o| &o.exit),
        text(|o| &o.exit_message),
        text(|o| &o.stop),
        text(|o| &o.stop_message),
        int(|o| o.never_ran),
        int(|o| o.virtual_ns),
        text(|o| &o.trace_hash),
    ];
    let named = OUTCOME_COLUMNS.into_iter().zip(values);
    named.map(|(name, values)| Column { name: name.to_owned(), values }).collect()
}

/// Returns the results of cells as a file of the store.
pub fn file(cells: &[CellResult]) -> Vec<u8> {
    parquet::write(&table(cells))
}

fn table(cells: &[CellResult]) -> Table {
    let setups = cells.iter().map(|cell| Some(cell.key.setup.to_string()));
    let seeds = cells.iter().map(|cell| Some(cell.key.seed as i64));
    let mut columns = vec![
        Column { name: SETUP.to_owned(), values: Values::Text(setups.collect()) },
        Column { name: SEED.to_owned(), values: Values::Int(seeds.collect()) },
    ];
    columns.extend(outcome_columns(cells.iter().map(|cell| &cell.outcome)));
    let mut names: Vec<&String> = cells.iter().flat_map(|cell| cell.metrics.keys()).collect();
    names.sort();
    names.dedup();
    for name in names {
        let values = cells.iter().map(|cell| cell.metrics.get(name).copied());
        let values = Values::Float(values.collect());
        columns.push(Column { name: format!("{METRIC}{name}"), values });
    }
    Table { columns, notes: Vec::new() }
}

/// Reads the keys of a table of the store; None if it has no such columns, or a key is wrong.
pub fn keys(table: &Table) -> Option<Vec<CellKey>> {
    let (Values::Text(setups), Values::Int(seeds)) = (table.column(SETUP)?, table.column(SEED)?)
    else {
        return None;
    };
    let key = |(setup, seed): (&Option<String>, &Option<i64>)| {
        let (high, low) = setup.as_ref()?.split_at_checked(16)?;
        let half = |text| u64::from_str_radix(text, 16).ok();
        Some(CellKey { setup: SetupKey([half(high)?, half(low)?]), seed: (*seed)? as u64 })
    };
    setups.iter().zip(seeds).map(key).collect()
}

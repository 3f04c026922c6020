// SPDX-License-Identifier: GPL-2.0-only
//! The table of results: a row for each finished cell of a sweep, in the order of its plan.
//!
//! Owns: the columns (`docs/reference/sweep-store.md`), the summary. The table depends only on the
//! sweep and on which of its cells are finished: not on who ran them, nor on other cells of the
//! store.

use std::fmt;

use indexmap::IndexMap;
use scxlab_lab::metric;
use scxlab_lab::run::{Exit, StopKind};
use scxlab_machine::plural;
use scxlab_results::parquet::{Column, Table, Values};

use crate::SweepError;
use crate::cell::{METRIC, NOT_RUN, OUTCOME_COLUMNS, SEED};
use crate::file::{Sweep, Variant, knob_column, parameter_column, setting_names};
use crate::plan::{CellKey, Plan, Setup};
use crate::store::Store;
use crate::value::{self, Value};

/// The results of a sweep.
#[derive(Clone, Debug)]
pub struct ResultsTable {
    pub table: Table,
    /// Numbers of cells in the sweep, and of finished ones.
    pub cells: usize,
    pub finished: usize,
}

/// Reads the results of a sweep's finished cells.
pub fn results(plan: &Plan, store: &Store) -> Result<ResultsTable, SweepError> {
    let (places, found) = find(plan, store)?;
    let finished: Vec<usize> = (0..plan.cells.len()).filter(|at| places[*at].is_some()).collect();
    let rows: Vec<Option<usize>> = finished.iter().map(|at| places[*at]).collect();
    let mut columns = axis_columns(plan, &finished);
    for name in OUTCOME_COLUMNS {
        if let Some(values) = found.column(name) {
            columns.push(Column { name: name.to_owned(), values: values.gather(&rows) });
        }
    }
    let mut metrics: Vec<Column> = Vec::new();
    for column in &found.columns {
        let Some(name) = column.name.strip_prefix(METRIC) else { continue };
        let values = column.values.gather(&rows);
        if has_value(&values) {
            metrics.push(Column { name: name.to_owned(), values });
        }
    }
    metrics.sort_by(|a, b| a.name.cmp(&b.name));
    columns.extend(metrics);
    let table = Table { columns, notes: Vec::new() };
    Ok(ResultsTable { table, cells: plan.cells.len(), finished: finished.len() })
}

/// Finds the row of each cell of the plan, and the wanted columns of these rows.
fn find(plan: &Plan, store: &Store) -> Result<(Vec<Option<usize>>, Table), SweepError> {
    let mut index: Vec<(CellKey, usize)> =
        plan.cells.iter().enumerate().map(|(at, cell)| (plan.key(*cell), at)).collect();
    index.sort_unstable();
    let mut places: Vec<Option<usize>> = vec![None; plan.cells.len()];
    let (mut tables, mut found) = (Vec::new(), 0);
    let is_wanted = |name: &str| match name.strip_prefix(METRIC) {
        Some(metric) => is_selected(&plan.sweep, metric),
        None => OUTCOME_COLUMNS.contains(&name),
    };
    store.each(&is_wanted, &mut |keys, table| {
        let mut rows = Vec::new();
        for (row, key) in keys.into_iter().enumerate() {
            let first = index.partition_point(|(known, _)| *known < key);
            let same = index[first..].iter().take_while(|(known, _)| *known == key);
            let mut is_new = false;
            for (_, at) in same.filter(|(_, at)| places[*at].is_none()).collect::<Vec<_>>() {
                places[*at] = Some(found + rows.len());
                is_new = true;
            }
            if is_new {
                rows.push(Some(row));
            }
        }
        found += rows.len();
        let columns = table
            .columns
            .into_iter()
            .map(|Column { name, values }| Column { name, values: values.gather(&rows) });
        tables.push(Table { columns: columns.collect(), notes: Vec::new() });
    })?;
    Ok((places, store.concat(tables)?))
}

fn is_selected(sweep: &Sweep, name: &str) -> bool {
    let mut rows = metric::all().flat_map(|metric| metric.rows);
    sweep.metrics.takes_row(name, rows.any(|row| row.name == name && row.is_deciding))
}

fn has_value(values: &Values) -> bool {
    match values {
        Values::Float(values) => values.iter().any(Option::is_some),
        _ => false,
    }
}

/// Returns the columns of the axes, and the unit of work.
fn axis_columns(plan: &Plan, cells: &[usize]) -> Vec<Column> {
    let setup = |at: &usize| plan.setup(plan.cells[*at]);
    let places = |of: fn(&Setup) -> usize| -> Vec<Option<usize>> {
        cells.iter().map(|at| Some(of(setup(at)))).collect()
    };
    let (schedulers, workloads) = (places(|setup| setup.scheduler), places(|s| s.workload));
    let sweep = &plan.sweep;
    let mut columns = Vec::new();
    let mut put = |name: String, values: Values| columns.push(Column { name, values });
    put("scheduler".to_owned(), names(&sweep.schedulers).gather(&schedulers));
    for name in setting_names(&sweep.schedulers) {
        put(knob_column(&name), setting(&sweep.schedulers, &name).gather(&schedulers));
    }
    put("workload".to_owned(), names(&sweep.workloads).gather(&workloads));
    for name in setting_names(&sweep.workloads) {
        put(parameter_column(&name), setting(&sweep.workloads, &name).gather(&workloads));
    }
    let machines = Values::Text(sweep.machines.iter().cloned().map(Some).collect());
    put("machine".to_owned(), machines.gather(&places(|setup| setup.machine)));
    let seeds = cells.iter().map(|at| Some(plan.cells[*at].seed as i64));
    put(SEED.to_owned(), Values::Int(seeds.collect()));
    let units = cells.iter().map(|at| Some(plan.unit(setup(at)).to_owned()));
    put("work_unit".to_owned(), Values::Text(units.collect()));
    columns
}

fn names(variants: &[Variant]) -> Values {
    Values::Text(variants.iter().map(|variant| Some(variant.name.clone())).collect())
}

fn setting(variants: &[Variant], name: &str) -> Values {
    let values: Vec<Option<&Value>> = variants.iter().map(|v| v.setting(name)).collect();
    value::column(&values)
}

/// Counts of a sweep's cells.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub cells: usize,
    pub finished: usize,
    /// Number of cells that the simulator refused.
    pub refused: usize,
    /// Number of cells with tasks that were runnable and never ran.
    pub starved: usize,
    /// Cells that do not count, by the kind of their end.
    pub failures: IndexMap<String, Failures>,
}

/// Cells that failed in the same way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failures {
    pub cells: usize,
    /// Axes of the first of them, and its message.
    pub first: String,
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Summary { cells, finished, starved, failures, .. } = self;
        writeln!(f, "{finished} of {} finished", plural(cells, "cell"))?;
        for (kind, Failures { cells, first }) in failures {
            writeln!(f, "  {cells} {kind}; the first: {first}")?;
        }
        if *starved > 0 {
            writeln!(f, "  {starved} left tasks without CPU time")?;
        }
        Ok(())
    }
}

impl ResultsTable {
    pub fn summary(&self) -> Summary {
        let mut summary =
            Summary { cells: self.cells, finished: self.finished, ..Summary::default() };
        if let Some(Values::Int(never_ran)) = self.table.column("never_ran") {
            summary.starved = never_ran.iter().filter(|tasks| **tasks > Some(0)).count();
        }
        for row in 0..self.finished {
            let (exit, stop) = (self.text("exit", row), self.text("stop", row));
            let kind = StopKind::ALL.iter().find(|kind| kind.name() == stop);
            let (kind, message) = if stop == NOT_RUN {
                summary.refused += 1;
                ("could not be run".to_owned(), self.text("stop_message", row))
            } else if exit != Exit::NONE {
                (format!("ejected ({exit})"), self.text("exit_message", row))
            } else if !kind.is_some_and(|kind| kind.is_regular()) {
                (format!("ended early ({stop})"), self.text("stop_message", row))
            } else {
                continue;
            };
            let first = || format!("{}: {message}", self.describe(row));
            let new = || Failures { cells: 0, first: first() };
            summary.failures.entry(kind).or_insert_with(new).cells += 1;
        }
        summary
    }

    fn text(&self, column: &str, row: usize) -> &str {
        match self.table.column(column) {
            Some(Values::Text(values)) => values[row].as_deref().unwrap_or_default(),
            _ => "",
        }
    }

    /// Names the cell of a row by its axes.
    fn describe(&self, row: usize) -> String {
        let axes = self.table.columns.iter().take_while(|column| column.name != "work_unit");
        let one = |column: &Column| {
            let value = match &column.values {
                Values::Text(all) => all[row].clone(),
                Values::Int(all) => all[row].map(|n| n.to_string()),
                Values::Float(all) => all[row].map(|x| x.to_string()),
                Values::Bool(all) => all[row].map(|is| is.to_string()),
            };
            Some(format!("{}={}", column.name, value?))
        };
        axes.filter_map(one).collect::<Vec<_>>().join(" ")
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! The fit of an experiment's parameters to figures of baselines.
//!
//! Owns: the procedure. Does not: write files, or read a treated figure.
//!
//! All parameters begin at their defaults, whatever their values in the file are; a parameter whose
//! factor another thread gives keeps its value. A sweep goes through the parameters in the order of
//! the file, and gives each the value of its grid with the least error; of equal errors the first
//! value's. Sweeps follow each other until one changes nothing. A parameter's error is the mean
//! square of ln(predicted / published) over the figures that it is fitted to. A value whose runs
//! fail cannot be chosen.

use super::ReproduceError;
use super::experiment::{Experiment, Fitted};
use super::figure::{Outcome, predict};
use super::job::Runs;
use super::plan::{Plan, Wanted};
use crate::input::InputFiles;
use crate::session::SessionError;

/// Largest number of sweeps. A fit that reaches it says so.
const SWEEPS_MAX: usize = 8;

/// The outcome of a fit.
#[derive(Clone, Debug, PartialEq)]
pub struct Fit {
    pub thread: String,
    pub parameters: Vec<FittedParameter>,
    /// Whether the last sweep changed nothing.
    pub settled: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub struct FittedParameter {
    pub name: String,
    /// Value in the experiment's file.
    pub in_file: String,
    pub fitted: String,
    /// Number of figures that the parameter is fitted to.
    pub figures: usize,
    /// Each value of the grid with its error beside the other parameters' values of the last sweep;
    /// None if runs fail.
    pub grid: Vec<(String, Option<f64>)>,
}

/// Reason why a fit could not be made.
#[derive(Debug, thiserror::Error)]
pub enum FitError {
    #[error(transparent)]
    Reproduce(#[from] ReproduceError),
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// Fits the parameters of an experiment, whose rules may name `files`. `execute` makes the runs of
/// a plan.
pub fn fit(
    experiment: &Experiment,
    files: &dyn InputFiles,
    execute: &mut dyn FnMut(&Plan) -> Result<Runs, SessionError>,
) -> Result<Fit, FitError> {
    let mut at = experiment.clone().unfitted();
    let own = experiment.fitted.iter().filter(|(_, f)| f.from.is_none());
    let mut parameters: Vec<FittedParameter> = own
        .map(|(name, f)| FittedParameter {
            name: name.clone(),
            in_file: f.value.clone(),
            fitted: f.default.clone(),
            figures: 0,
            grid: Vec::new(),
        })
        .collect();
    let mut settled = parameters.is_empty();
    for _ in 0..SWEEPS_MAX {
        if settled {
            break;
        }
        settled = true;
        for parameter in &mut parameters {
            let before = parameter.fitted.clone();
            minimise(&mut at, parameter, files, execute)?;
            settled &= parameter.fitted == before;
        }
    }
    Ok(Fit { thread: experiment.published.thread.clone(), parameters, settled })
}

/// Gives a parameter the value of its grid with the least error.
fn minimise(
    at: &mut Experiment,
    parameter: &mut FittedParameter,
    files: &dyn InputFiles,
    execute: &mut dyn FnMut(&Plan) -> Result<Runs, SessionError>,
) -> Result<(), FitError> {
    let Fitted { grid, cells, .. } = at.fitted[&parameter.name].clone();
    let wanted = Wanted { cells, ..Wanted::default() };
    parameter.grid.clear();
    for value in grid {
        at.fitted[&parameter.name].value.clone_from(&value);
        let plan = Plan::with_files(at.clone(), &wanted, files)?;
        let runs = execute(&plan)?;
        parameter.figures = plan.cells.len();
        parameter.grid.push((value, mean_square(&plan, &runs)));
    }
    let errors = parameter.grid.iter().filter_map(|(value, error)| Some((value, (*error)?)));
    if let Some((value, _)) = errors.min_by(|a, b| a.1.total_cmp(&b.1)) {
        parameter.fitted.clone_from(value);
    }
    at.fitted[&parameter.name].value.clone_from(&parameter.fitted);
    Ok(())
}

/// Returns the error of a plan's figures; None if one of them has no prediction.
fn mean_square(plan: &Plan, runs: &Runs) -> Option<f64> {
    let square = |cell| match predict(plan, cell, runs) {
        Outcome::Predicted(prediction) => {
            let ratio = (prediction.value / cell.published?).ln();
            ratio.is_finite().then_some(ratio * ratio)
        }
        _ => None,
    };
    let squares: Option<Vec<f64>> = plan.cells.iter().map(square).collect();
    squares.map(|squares| squares.iter().sum::<f64>() / squares.len().max(1) as f64)
}

/// Returns a fit as text: for each parameter the errors over its grid, and whether the file has the
/// fitted value.
pub fn text(fit: &Fit) -> String {
    let percent = |error: Option<f64>| {
        error.map_or("failed".to_owned(), |e| format!("{:.1} %", (e.sqrt().exp() - 1.0) * 100.0))
    };
    let parameter = |of: &FittedParameter| {
        let in_file = match of.in_file == of.fitted {
            true => "as in the file".to_owned(),
            false => format!("the file has {}", of.in_file),
        };
        let errors = of.grid.iter().map(|(value, error)| format!("{value}: {}", percent(*error)));
        let errors = errors.collect::<Vec<_>>().join(", ");
        let FittedParameter { name, fitted, figures, .. } = of;
        format!(
            "  {name} = {fitted} ({in_file}); error over {figures} figures by value:\n    {errors}\n"
        )
    };
    let settled = if fit.settled { "" } else { " (not settled)" };
    let parameters: String = fit.parameters.iter().map(parameter).collect();
    format!("{}{settled}\n{parameters}", fit.thread)
}

// SPDX-License-Identifier: GPL-2.0-only
//! `scxlab sweep`: runs every cell of a sweep that its folder lacks.

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use scxlab_lab::input;
use scxlab_machine::plural;
use scxlab_sweep::file::Sweep;
use scxlab_sweep::plan::Plan;
use scxlab_sweep::run;
use scxlab_sweep::store::{Abi, Store};
use scxlab_sweep::table;

use crate::args::SweepArgs;
use crate::exit::CliError;
use crate::output;
use crate::progress::{Shown, with_bar};
use crate::run::interrupt;

pub fn sweep(args: &SweepArgs) -> Result<()> {
    if let Some(address) = &args.dask {
        return Err(on_dask(args, address).into());
    }
    let inputs = args.cache.inputs();
    let text = input::read_text(&args.file, &inputs)?;
    let plan = Plan::new(Sweep::parse(&args.file, &text)?, &inputs)?;
    let store = Store::open(&folder(args))?;
    let missing = run::missing(&plan, &store)?;
    let before = plan.cells.len() - missing.len();
    let progress = run::Progress::new(plan.cells.len(), before);
    let interrupt = interrupt(args.deadline);
    let ran =
        with_bar(&progress, || run::run(&plan, &store, &missing, args.jobs, &progress, &interrupt));
    let results = match (table::results(&plan, &store), ran) {
        (Ok(results), Ok(())) => results,
        // An interrupted sweep has a table of the cells that are finished.
        (Ok(results), Err(error)) => {
            store.publish(&results.table)?;
            return Err(error.into());
        }
        (Err(error), ran) => return Err(ran.err().unwrap_or(error).into()),
    };
    store.publish(&results.table)?;
    let summary = results.summary();
    output::print(&format!(
        "{summary}  {before} were there, {} were run\nresults: {}\n",
        missing.len(),
        store.results_path().display()
    ))?;
    match summary.refused {
        0 => Ok(()),
        cells => Err(CliError::NotRun { cells, of: summary.cells }.into()),
    }
}

/// Lets Python's module take over this process. Returns only if that fails.
fn on_dask(args: &SweepArgs, address: &str) -> CliError {
    let python = std::env::var_os("SCXLAB_PYTHON").unwrap_or_else(|| "python3".into());
    let failed = |why: String| CliError::NoPython { python: python.clone(), why };
    let asked = Command::new(&python).args(["-c", "import scxlab; print(scxlab.abi())"]).output();
    let (found, this) = match asked {
        Ok(out) if out.status.success() => {
            (String::from_utf8_lossy(&out.stdout).trim().to_owned(), Abi::this().to_string())
        }
        Ok(out) => {
            let said = String::from_utf8_lossy(&out.stderr).into_owned();
            return failed(said.lines().last().unwrap_or_default().to_owned());
        }
        Err(error) => return failed(error.to_string()),
    };
    if found != this {
        return failed(format!("its scxlab is {found}, and this is {this}"));
    }
    let mut command = Command::new(&python);
    command.args(["-m", "scxlab", "sweep", &args.file, "--dask", address]);
    command.arg("-o").arg(folder(args));
    failed(command.exec().to_string())
}

/// Returns the folder of `-o`, or the file's name with another ending.
fn folder(args: &SweepArgs) -> PathBuf {
    args.output.clone().unwrap_or_else(|| Path::new(&args.file).with_extension("sweep"))
}

impl Shown for run::Progress {
    fn has_end(&self) -> bool {
        true
    }

    fn permille(&self) -> u64 {
        (self.done() * 1000).checked_div(self.cells()).unwrap_or(0) as u64
    }

    fn message(&self, _: Duration) -> String {
        let failed = match self.failed() {
            0 => String::new(),
            failed => format!(", {failed} do not count"),
        };
        format!("{} of {}{failed}", self.done(), plural(self.cells(), "cell"))
    }
}

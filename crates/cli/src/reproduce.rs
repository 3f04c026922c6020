// SPDX-License-Identifier: GPL-2.0-only
//! `scxlab reproduce`: predicts the published tables of list threads.

mod cache;

use anyhow::Result;
use scxlab_lab::input::{self, Beside, InputFiles, NoFiles};
use scxlab_lab::reproduce::experiment::Experiment;
use scxlab_lab::reproduce::fit::{self, FitError};
use scxlab_lab::reproduce::job::{Jobs, NoStore, RunStore};
use scxlab_lab::reproduce::plan::{Plan, Wanted};
use scxlab_lab::reproduce::report::{ThreadReport, document, json, markdown, report};
use scxlab_lab::reproduce::{ReproduceError, ThreadFiles, experiments, threads};
use scxlab_lab::session::Progress;
use scxlab_results::inputs::Inputs;

use crate::args::{ReproduceArgs, ReproduceFormat};
use crate::output;
use crate::progress::with_bar;
use crate::run::interrupt;
use cache::RunCache;

pub fn reproduce(args: &ReproduceArgs) -> Result<()> {
    if args.fit {
        return fit(args);
    }
    let plans = plans(args)?;
    let cache = (!args.no_cache).then(RunCache::open).flatten();
    let store: &dyn RunStore = match &cache {
        Some(cache) => cache,
        None => &NoStore,
    };
    let mut reports: Vec<ThreadReport> = Vec::new();
    let jobs = plans.iter().map(|plan| Jobs::new(plan, store, args.runs, args.seed));
    let jobs: Vec<Jobs<'_>> = jobs.collect();
    if let Some(cache) = &cache {
        cache.say_unusable();
    }
    let progress = Progress::of(jobs.iter().flat_map(Jobs::lengths).collect());
    let interrupt = interrupt(args.deadline);
    let all = with_bar(&progress, || {
        let mut first = 0;
        let each = jobs.into_iter().map(|jobs| {
            let missing = jobs.missing();
            let runs = jobs.execute(args.jobs, &progress, first, &interrupt);
            first += missing;
            runs
        });
        each.collect::<Result<Vec<_>, _>>()
    })?;
    for (plan, runs) in plans.iter().zip(&all) {
        reports.push(report(plan, runs, args.runs));
    }
    if let Some(folder) = &args.output {
        output::make_folder(folder)?;
        output::write_file(&folder.join("reproduce.json"), json(&reports).as_bytes())?;
        output::write_file(&folder.join("reproduce.md"), markdown(&reports).as_bytes())?;
    }
    match args.format {
        ReproduceFormat::Table => output::print_report(&document(&reports)),
        ReproduceFormat::Json => output::print(&json(&reports)),
        ReproduceFormat::Markdown => output::print(&markdown(&reports)),
    }
}

/// Fits the parameters of all wanted threads, and prints the errors.
fn fit(args: &ReproduceArgs) -> Result<()> {
    let cache = (!args.no_cache).then(RunCache::open).flatten();
    let store: &dyn RunStore = match &cache {
        Some(cache) => cache,
        None => &NoStore,
    };
    let interrupt = interrupt(args.deadline);
    let inputs = Inputs::default();
    for WantedExperiment { experiment, files } in wanted(args, &inputs)? {
        let fit = fit::fit(&experiment, &*files, &mut |plan| {
            let jobs = Jobs::new(plan, store, args.runs, args.seed);
            let progress = Progress::of(jobs.lengths());
            jobs.execute(args.jobs, &progress, 0, &interrupt)
        });
        let fit = fit.map_err(|error| match error {
            FitError::Reproduce(error) => anyhow::Error::new(error),
            FitError::Session(error) => anyhow::Error::new(error),
        })?;
        output::print(&fit::text(&fit))?;
    }
    Ok(())
}

/// An experiment, and the files that its rules may name.
struct WantedExperiment<'a> {
    experiment: Experiment,
    files: Box<dyn InputFiles + 'a>,
}

/// Reads the wanted experiments: that of the user's file, that of the named thread, or all shipped
/// ones.
fn wanted<'a>(args: &'a ReproduceArgs, inputs: &'a Inputs) -> Result<Vec<WantedExperiment<'a>>> {
    let shipped = |files: &ThreadFiles| {
        let experiment = Experiment::parse(files.name, files.published, files.experiment)?;
        Ok(WantedExperiment { experiment, files: Box::new(NoFiles) })
    };
    let Some(name) = &args.thread else { return experiments().iter().map(shipped).collect() };
    if name.contains('/') || name.ends_with(".toml") {
        let experiment = Experiment::read(name, inputs)?;
        let files = Box::new(Beside::new(name, inputs));
        return Ok(vec![WantedExperiment { experiment, files }]);
    }
    let found = experiments().iter().find(|files| files.name == name);
    Ok(vec![shipped(found.ok_or_else(|| ReproduceError::Unknown {
        kind: "thread",
        name: name.clone(),
        available: format!("{}, and files", threads().collect::<Vec<_>>().join(", ")),
    })?)?])
}

/// Plans all wanted threads, before anything runs.
fn plans(args: &ReproduceArgs) -> Result<Vec<Plan>> {
    let inputs = Inputs::default();
    let machine = args.machine.as_ref().map(|name| input::machine(name, &inputs));
    let machine = machine.transpose()?;
    let tables = Wanted { tables: args.table.clone(), cells: Vec::new(), machine };
    let plan = |WantedExperiment { mut experiment, files }: WantedExperiment<'_>| {
        if args.blind {
            experiment = experiment.blind();
        }
        if let Some(name) = &args.ablation {
            experiment = experiment.ablated(name)?;
        }
        Ok(Plan::with_files(experiment, &tables, &*files)?)
    };
    wanted(args, &inputs)?.into_iter().map(plan).collect()
}

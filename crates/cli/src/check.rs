// SPDX-License-Identifier: GPL-2.0-only
//! `scxlab check`: whether a change of a scheduler made something worse, by two folders of results
//! or by runs of its own.

use std::sync::Arc;

use anyhow::Result;
use scxlab_bpf::vm::Engine;
use scxlab_lab::input::{self, SchedulerInput, Workload};
use scxlab_lab::prepare::Prepared;
use scxlab_lab::results::{Manifest, Request, Results};
use scxlab_lab::run::Run;
use scxlab_lab::session::{CAP, PERTURB, Progress, Session};
use scxlab_results::check::{self, Cell, Outcome, Report};
use scxlab_results::folder::Folder;
use scxlab_results::gate::Gate;
use scxlab_results::inputs::Inputs;
use scxlab_results::{ci, matrix};
use scxlab_trace::Tracer;

use crate::args::{CheckArgs, CheckFormat, RunCount};
use crate::exit::CliError;
use crate::output;
use crate::progress::with_bar;
use crate::run::{interrupt, version};

/// Numbers of runs after which `-n auto` looks whether all is decided.
const LOOKS: [u32; 5] = [4, 8, 16, 32, 64];

pub fn check(args: &CheckArgs) -> Result<()> {
    if args.folders.is_empty() && args.scheduler.len() != 2 {
        return Err(CliError::TwoSchedulers { given: args.scheduler.len() }.into());
    }
    let gate = gate(args)?;
    let report = match &args.folders[..] {
        [base, new] => check::compare(&Folder::read(base)?, &Folder::read(new)?, &gate, 1)?,
        _ => of_runs(args, &gate)?,
    };
    if let Some(path) = &args.junit {
        output::write_file(path, ci::junit(&report).as_bytes())?;
    }
    if args.github {
        output::print(&ci::github(&report))?;
    }
    let document = check::document(&report, args.all);
    match args.format {
        CheckFormat::Table => output::print_report(&document)?,
        CheckFormat::Markdown => output::print(&document.markdown())?,
    }
    match report.outcome() {
        Outcome::Passed => Ok(()),
        Outcome::Regressed => Err(CliError::Regressed { summary: summary(&report) }.into()),
        Outcome::Undecided => Err(CliError::Undecided { summary: summary(&report) }.into()),
    }
}

fn summary(report: &Report) -> String {
    let regressed = report.count(check::Verdict::Regressed);
    let undecided = report.count(check::Verdict::Undecided);
    let (lost, of) = (report.lost.len(), report.findings.len());
    format!(
        "{regressed} of {of} metrics regressed, {undecided} are undecided, {lost} runs or metrics are lost"
    )
}

fn gate(args: &CheckArgs) -> Result<Gate> {
    let mut gate = match &args.gate {
        None => Gate::default(),
        Some(path) => {
            let text = input::read_text(&path.to_string_lossy(), &Inputs::default())?;
            Gate::parse(&text, &path.display().to_string())?
        }
    };
    if let Some(permille) = args.precision {
        gate.precision = f64::from(permille) / 1000.0;
    }
    Ok(gate)
}

/// The runs of both schedulers in one cell so far.
struct CellRuns {
    workload: String,
    machine: String,
    session: Session,
    manifest: Manifest,
    base: Vec<Run>,
    new: Vec<Run>,
}

/// Makes runs of both schedulers until all is decided.
fn of_runs(args: &CheckArgs, gate: &Gate) -> Result<Report> {
    let mut cells = cells(args)?;
    let _folder = args.output.as_deref().map(output::lock_folder).transpose()?;
    let looks = match args.runs {
        RunCount::Auto => LOOKS.to_vec(),
        RunCount::Fixed(runs) => vec![runs],
    };
    let interrupt = interrupt(args.deadline);
    let report = check::until_decided(gate, &looks, |is_open, runs| {
        for cell in &mut cells {
            let name = Cell {
                workload: cell.workload.clone(),
                machine: cell.machine.clone(),
                target: "sim".to_owned(),
            };
            if is_open(&name) {
                cell.extend(args.seed, runs, &interrupt)?;
            }
        }
        let folder = |of: fn(&CellRuns) -> &Vec<Run>, scheduler: usize| {
            let all: Vec<Results> = cells.iter().map(|cell| cell.results(of, scheduler)).collect();
            all
        };
        let (base, new) = (folder(|cell| &cell.base, 0), folder(|cell| &cell.new, 1));
        if let Some(output) = &args.output {
            for (name, results) in [("base", &base), ("new", &new)] {
                let folder = output.join(name);
                output::make_folder(&folder)?;
                output::write_folder(&folder, &version(), results, false)?;
            }
        }
        Ok::<_, anyhow::Error>((Folder::of(&base, &version()), Folder::of(&new, &version())))
    })?;
    Ok(report)
}

/// Returns the cells to run: each workload on each machine that the command names, or the standing
/// matrix where it names none.
fn cells(args: &CheckArgs) -> Result<Vec<CellRuns>> {
    let inputs = args.cache.inputs();
    matrix::FILES.iter().for_each(|(path, text)| inputs.add(path, text.as_bytes()));
    let schedulers = args.scheduler.iter().map(|text| SchedulerInput::resolve(text, &inputs));
    let schedulers = schedulers.collect::<Result<Vec<_>, _>>()?;
    let mut pairs: Vec<(String, String)> = Vec::new();
    let mut add = |workload: &str, machine: &str| {
        let pair = (workload.to_owned(), machine.to_owned());
        if !pairs.contains(&pair) {
            pairs.push(pair);
        }
    };
    match (args.workload.is_empty(), args.machine.is_empty()) {
        (true, true) => matrix::ENTRIES.iter().for_each(|e| add(e.workload, e.machine)),
        (false, true) => {
            for workload in &args.workload {
                matrix::ENTRIES.iter().for_each(|e| add(workload, e.machine));
            }
        }
        (true, false) => {
            for machine in &args.machine {
                let cpus = input::machine(machine, &inputs)?.topology.nr_cpus();
                let fitting = matrix::ENTRIES.iter().filter(|entry| entry.cpus_min <= cpus);
                fitting.for_each(|entry| add(entry.workload, machine));
            }
        }
        (false, false) => {
            for workload in &args.workload {
                args.machine.iter().for_each(|machine| add(workload, machine));
            }
        }
    }
    pairs
        .into_iter()
        .map(|(workload, machine)| cell(args, &inputs, &schedulers, workload, machine))
        .collect()
}

fn cell(
    args: &CheckArgs,
    inputs: &Inputs,
    schedulers: &[SchedulerInput],
    workload: String,
    machine: String,
) -> Result<CellRuns> {
    let model = Arc::new(input::machine(&machine, inputs)?);
    let prepared = schedulers.iter().map(|input| Prepared::simulated(input, &model));
    let session = Session {
        schedulers: prepared.collect::<Result<_, _>>()?,
        workload: Workload::resolve(&workload, inputs)?,
        machine: model,
        runs: 1,
        seed: args.seed,
        duration: args.duration.map(|d| d.0),
        cap: Some(CAP),
        perturb: PERTURB,
        engine: Engine::Jit,
        max_memory: args.memory_limit,
        numa_balancing: None,
        attach_after: None,
        threads: args.jobs,
    };
    session.check()?;
    session.program()?;
    let request = Request {
        version: version(),
        workload: workload.clone(),
        machine: machine.clone(),
        targets: vec!["sim".to_owned()],
        tolerance_percent: 0,
    };
    let manifest = Manifest::of(&session, request);
    Ok(CellRuns { workload, machine, session, manifest, base: Vec::new(), new: Vec::new() })
}

impl CellRuns {
    /// Makes runs until each scheduler has `runs` of them.
    fn extend(
        &mut self,
        first_seed: u64,
        runs: u32,
        interrupt: &(dyn Fn() -> Option<String> + Sync),
    ) -> Result<()> {
        let done = self.base.len() as u32;
        self.session.runs = runs.saturating_sub(done);
        self.session.seed = first_seed.saturating_add(u64::from(done));
        if self.session.runs == 0 {
            return Ok(());
        }
        let progress = Progress::new(&self.session);
        let trace = |_| Ok(Tracer::default());
        let mut all = with_bar(&progress, || self.session.execute(&trace, &progress, interrupt))?;
        if let Some(error) = crate::run::interrupted(&all) {
            return Err(error.into());
        }
        self.new.extend(all.split_off(self.session.runs as usize));
        self.base.extend(all);
        Ok(())
    }

    /// Returns the results of one of the two schedulers.
    fn results(&self, of: fn(&CellRuns) -> &Vec<Run>, scheduler: usize) -> Results {
        let runs = of(self).clone();
        let mut manifest = self.manifest.clone();
        manifest.schedulers = vec![manifest.schedulers[scheduler].clone()];
        manifest.runs = runs.len() as u32;
        Results { manifest, runs, comparisons: Vec::new(), agreements: Vec::new() }
    }
}

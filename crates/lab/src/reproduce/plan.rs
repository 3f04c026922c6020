// SPDX-License-Identifier: GPL-2.0-only
//! The plan of a reproduction: every cell of the wanted tables, and the setups whose runs they
//! need.
//!
//! Owns: the check of every rule before anything runs.

use std::collections::BTreeMap;
use std::sync::Arc;

use scxlab_bpf::vm::Engine;
use scxlab_machine::Machine;
use scxlab_workload::Program;
use scxlab_workload::program::TimeSpan;

use super::ReproduceError;
use super::experiment::{
    Experiment, Figure, Kind, MachineText, Resolved, SetupText, When, matches,
};
use super::figure::published_effect;
use super::published::Table;
use super::template::{Vars, fill};
use crate::input::{self, InputFiles, NoFiles, SchedulerInput, Workload};
use crate::prepare::Prepared;
use crate::scheduler::DEFAULT_CLASS;
use crate::session::PERTURB;
use crate::sim::{MAX_MEMORY, NumaBalancing, SimSpec};

/// Maximum virtual time of a run without a duration, in ns. A run that is cut there does not count.
pub const CAP_NS: u64 = 600_000_000_000;

/// Column of the default class, which `Wanted::machine` adds.
pub const DEFAULT_CLASS_COLUMN: &str = "eevdf";

/// Choice of what to reproduce.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// Tables by id; empty: all.
    pub tables: Vec<String>,
    /// Figures that match one of these by their row's keys, `table` and `column`; empty: all.
    pub cells: Vec<When>,
    /// A machine for all setups instead of those of the experiment. The default class is then a
    /// further column.
    pub machine: Option<Machine>,
}

impl Wanted {
    fn has(&self, table: &Table, row: usize, column: &str) -> bool {
        let vars = table.vars_of(row, column);
        self.cells.is_empty() || self.cells.iter().any(|when| matches(when, &vars))
    }
}

/// The cells of a thread and the setups that they need.
pub struct Plan {
    pub experiment: Experiment,
    pub cells: Vec<Cell>,
    pub setups: Vec<Setup>,
    /// Name of the machine that replaces those of the experiment.
    pub machine: Option<String>,
}

/// One figure of a published table.
pub struct Cell {
    /// Index into the thread's tables.
    pub table: usize,
    pub row: usize,
    pub column: String,
    /// The published figure; None for a column that no thread printed.
    pub published: Option<f64>,
    pub content: Content,
}

pub enum Content {
    Figure(Box<PlannedFigure>),
    NotPredicted(String),
}

/// A figure with its setup and its baseline.
pub struct PlannedFigure {
    pub figure: Figure,
    /// Index into the plan's setups.
    pub setup: usize,
    pub baseline: Option<PlannedBaseline>,
    /// Published noise of the figure and its baseline, relative to them.
    pub noise: Option<f64>,
    /// The published effect of the figure's twin.
    pub twin: Option<f64>,
}

pub struct PlannedBaseline {
    pub figure: Figure,
    pub setup: usize,
    /// The published figure of the baseline, if its table prints it.
    pub published: Option<f64>,
}

/// What to simulate, resolved.
pub struct Setup {
    pub text: SetupText,
    pub machine: Arc<Machine>,
    pub program: Program,
    pub scheduler: Prepared,
    pub duration: Option<u64>,
    pub numa_balancing: NumaBalancing,
    pub attach_after: Option<u64>,
    /// All that decides a run of the setup, except the seed and the simulator (`SimSpec::key`).
    pub key: String,
}

impl Plan {
    /// Plans the cells of a thread whose rules name shipped things only. Resolves every machine,
    /// workload, scheduler and knob.
    pub fn new(experiment: Experiment, wanted: &Wanted) -> Result<Plan, ReproduceError> {
        Plan::with_files(experiment, wanted, &NoFiles)
    }

    /// As `new`, for rules that may name files: objects, workloads and machines.
    pub fn with_files(
        experiment: Experiment,
        wanted: &Wanted,
        files: &dyn InputFiles,
    ) -> Result<Plan, ReproduceError> {
        for id in &wanted.tables {
            if experiment.published.table(id).is_none() {
                let all = experiment.published.tables.iter().map(|t| t.id.as_str());
                return Err(ReproduceError::Unknown {
                    kind: "table",
                    name: id.clone(),
                    available: all.collect::<Vec<_>>().join(", "),
                });
            }
        }
        let mut planner = Planner { wanted, files, setups: Vec::new(), known: BTreeMap::new() };
        let mut cells = Vec::new();
        let tables = experiment.published.tables.iter().enumerate();
        for (at, table) in tables {
            if !wanted.tables.is_empty() && !wanted.tables.contains(&table.id) {
                continue;
            }
            for (row, column, published) in table.figures() {
                if !wanted.has(table, row, column) {
                    continue;
                }
                let content = match experiment.resolve(table, row, column)? {
                    Resolved::NotPredicted(why) => Content::NotPredicted(why),
                    Resolved::Figure(figure) => {
                        planner.figure(&experiment, table, row, column, *figure)?
                    }
                };
                let column = column.to_owned();
                cells.push(Cell { table: at, row, column, published: Some(published), content });
            }
            if wanted.machine.is_some() {
                planner.default_class(&experiment, at, &mut cells)?;
            }
        }
        let machine = wanted.machine.as_ref().map(|machine| machine.name.clone());
        Ok(Plan { experiment, cells, setups: planner.setups, machine })
    }

    pub fn table(&self, cell: &Cell) -> &Table {
        &self.experiment.published.tables[cell.table]
    }
}

struct Planner<'a> {
    wanted: &'a Wanted,
    files: &'a dyn InputFiles,
    setups: Vec<Setup>,
    /// Setups and prepared schedulers by text, so that each is resolved once.
    known: BTreeMap<String, usize>,
}

impl Planner<'_> {
    fn figure(
        &mut self,
        experiment: &Experiment,
        table: &Table,
        row: usize,
        column: &str,
        figure: Figure,
    ) -> Result<Content, ReproduceError> {
        let base = match base(experiment, table, row, &figure)? {
            Resolution::NotPredicted(why) => return Ok(Content::NotPredicted(why)),
            Resolution::Found(base) => base,
        };
        let noise = relative_noise(experiment, table, &figure, row)?;
        let base_noise = base.as_ref().and_then(|base| base.noise);
        let baseline = match base {
            None => None,
            Some(Base { figure, published, .. }) => {
                let setup = self.setup(experiment, &figure)?;
                Some(PlannedBaseline { figure: *figure, setup, published })
            }
        };
        let setup = self.setup(experiment, &figure)?;
        Ok(Content::Figure(Box::new(PlannedFigure {
            twin: twin_effect(experiment, table, row, column)?,
            figure,
            setup,
            baseline,
            noise: noise.map(|noise| noise + base_noise.unwrap_or_default()),
        })))
    }

    /// Adds a cell for the default class beside each baseline of the table `at`.
    fn default_class(
        &mut self,
        experiment: &Experiment,
        at: usize,
        cells: &mut Vec<Cell>,
    ) -> Result<(), ReproduceError> {
        let mut seen = Vec::new();
        let mut more = Vec::new();
        for cell in cells.iter().filter(|cell| cell.table == at) {
            let Content::Figure(planned) = &cell.content else { continue };
            let Some(baseline) = &planned.baseline else { continue };
            let measure = (&baseline.figure.metric, &baseline.figure.per, planned.figure.kind);
            if seen.contains(&(cell.row, baseline.setup, format!("{measure:?}"))) {
                continue;
            }
            seen.push((cell.row, baseline.setup, format!("{measure:?}")));
            let mut figure = baseline.figure.clone();
            figure.setup.scheduler = DEFAULT_CLASS.to_owned();
            figure.kind = match planned.figure.kind {
                Kind::Value | Kind::Stddev | Kind::Min | Kind::Max => Kind::Value,
                improvement => improvement,
            };
            more.push((cell.row, figure, baseline.figure.clone(), baseline.setup));
        }
        for (row, figure, base, base_setup) in more {
            let setup = self.setup(experiment, &figure)?;
            let baseline = PlannedBaseline { figure: base, setup: base_setup, published: None };
            let planned =
                PlannedFigure { figure, setup, baseline: Some(baseline), noise: None, twin: None };
            cells.push(Cell {
                table: at,
                row,
                column: DEFAULT_CLASS_COLUMN.to_owned(),
                published: None,
                content: Content::Figure(Box::new(planned)),
            });
        }
        Ok(())
    }

    fn setup(&mut self, experiment: &Experiment, figure: &Figure) -> Result<usize, ReproduceError> {
        let text = &figure.setup;
        let name = format!("{text:?}");
        if let Some(known) = self.known.get(&name) {
            return Ok(*known);
        }
        let fault = |what: String| experiment.fault(figure.line, what);
        let machine = match &self.wanted.machine {
            Some(machine) => machine.clone(),
            None => machine(&text.machine, self.files).map_err(&fault)?,
        };
        let machine = self.share(machine);
        let program = workload(experiment, figure, self.files).map_err(&fault)?;
        let scheduler = self.scheduler(&text.scheduler, &machine).map_err(&fault)?;
        let time = |text: &Option<String>| {
            let parse = |text: &String| text.parse::<TimeSpan>().map(|time| time.0);
            text.as_ref().map(parse).transpose().map_err(|e| fault(e.to_string()))
        };
        let numa_balancing = match text.numa_balancing.as_deref() {
            None => NumaBalancing::default(),
            Some(name) => NumaBalancing::named(name).ok_or_else(|| {
                let names = NumaBalancing::ALL.map(NumaBalancing::name).join(", ");
                fault(format!("numa_balancing is \"{name}\", must be one of {names}"))
            })?,
        };
        let mut setup = Setup {
            text: text.clone(),
            duration: time(&text.duration)?,
            attach_after: time(&text.attach_after)?,
            machine,
            program,
            scheduler,
            numa_balancing,
            key: String::new(),
        };
        setup.key = setup.spec(0).key();
        self.known.insert(name, self.setups.len());
        self.setups.push(setup);
        Ok(self.setups.len() - 1)
    }

    /// Returns the machine, shared with the setups that have an equal one.
    fn share(&self, machine: Machine) -> Arc<Machine> {
        let equal = self.setups.iter().rev().find(|setup| *setup.machine == machine);
        equal.map_or_else(|| Arc::new(machine), |setup| setup.machine.clone())
    }

    fn scheduler(&self, text: &str, machine: &Arc<Machine>) -> Result<Prepared, String> {
        let same = |s: &&Setup| s.text.scheduler == text && Arc::ptr_eq(&s.machine, machine);
        if let Some(setup) = self.setups.iter().rev().find(same) {
            return Ok(setup.scheduler.clone());
        }
        let input = SchedulerInput::resolve(text, self.files).map_err(|e| e.to_string())?;
        Prepared::simulated(&input, machine).map_err(|e| e.to_string())
    }
}

impl Setup {
    /// Returns the run of the setup with a seed.
    pub fn spec(&self, seed: u64) -> SimSpec<'_> {
        SimSpec {
            machine: &self.machine,
            workload: &self.program,
            scheduler: &self.scheduler,
            seed,
            duration: self.duration,
            cap: Some(CAP_NS),
            perturb: PERTURB,
            engine: Engine::Jit,
            max_memory: MAX_MEMORY,
            numa_balancing: self.numa_balancing,
            attach_after: self.attach_after,
        }
    }

    /// Virtual time of a run, if it is known.
    pub fn length(&self) -> Option<u64> {
        self.duration.or(self.program.duration.map(|d| d.0))
    }
}

/// What a figure is compared with.
struct Base {
    figure: Box<Figure>,
    /// The published figure, if its table prints it.
    published: Option<f64>,
    /// Its published noise, relative to it.
    noise: Option<f64>,
}

enum Resolution {
    /// The baseline; None if the figure has none.
    Found(Option<Base>),
    /// The baseline is not predicted, for this reason.
    NotPredicted(String),
}

fn base(
    experiment: &Experiment,
    table: &Table,
    row: usize,
    figure: &Figure,
) -> Result<Resolution, ReproduceError> {
    let Some(pairs) = figure.baseline.as_ref().filter(|_| figure.is_treated()) else {
        return Ok(Resolution::Found(None));
    };
    let mut vars = table.keys_of(row);
    if let Some(column) = figure.vars.get("column") {
        vars.insert("column".into(), column.clone());
    }
    vars.extend(pairs.clone());
    let figure = match experiment.resolve_vars(&table.id, vars.clone(), pairs)? {
        Resolved::NotPredicted(why) => return Ok(Resolution::NotPredicted(why)),
        Resolved::Figure(figure) => figure,
    };
    let column = vars.get("column").map_or("", String::as_str);
    let of_row = table.find(&vars);
    let noise = of_row.map(|row| relative_noise(experiment, table, &figure, row)).transpose()?;
    let published = of_row.and_then(|row| table.rows[row].figure(column));
    Ok(Resolution::Found(Some(Base { figure, published, noise: noise.flatten() })))
}

/// Returns the published effect of a figure's twin; None without a twin that has one.
fn twin_effect(
    experiment: &Experiment,
    table: &Table,
    row: usize,
    column: &str,
) -> Result<Option<f64>, ReproduceError> {
    let Some((table, row)) = experiment.twin(table, row, column)? else { return Ok(None) };
    let Some(published) = table.rows[row].figure(column) else { return Ok(None) };
    let Resolved::Figure(figure) = experiment.resolve(table, row, column)? else { return Ok(None) };
    Ok(match base(experiment, table, row, &figure)? {
        Resolution::Found(Some(base)) => published_effect(&figure, base.published, published),
        _ => None,
    })
}

/// Resolves a machine, and replaces the keys of its file that the experiment sets.
fn machine(text: &MachineText, files: &dyn InputFiles) -> Result<Machine, String> {
    if text.set.is_empty() {
        return input::machine(&text.name, files).map_err(|e| e.to_string());
    }
    let presets = scxlab_machine::presets();
    let Some((name, file)) = presets.iter().find(|(name, _)| *name == text.name) else {
        return Err(format!("\"{}\" is no preset, so its keys cannot be set", text.name));
    };
    let mut merged: toml::Table = toml::from_str(file).map_err(|e| e.to_string())?;
    merge(&mut merged, &text.set);
    let merged = toml::to_string(&merged).map_err(|e| e.to_string())?;
    Machine::from_toml(name, &merged).map_err(|e| e.to_string())
}

fn merge(into: &mut toml::Table, from: &toml::Table) {
    for (key, value) in from {
        match (into.get_mut(key), value) {
            (Some(toml::Value::Table(old)), toml::Value::Table(new)) => merge(old, new),
            _ => {
                into.insert(key.clone(), value.clone());
            }
        }
    }
}

fn workload(
    experiment: &Experiment,
    figure: &Figure,
    files: &dyn InputFiles,
) -> Result<Program, String> {
    let text = &figure.setup.workload;
    let (name, vars) = text.split_once(',').unwrap_or((text, ""));
    if let Some(file) = experiment.workloads.get(name) {
        let mut file = file.clone();
        for pair in vars.split(',').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').ok_or("a [workload] takes key=value")?;
            file = file.replace(&format!("<{key}>"), value);
        }
        return scxlab_workload::load(name, &file).map_err(|e| e.to_string());
    }
    match Workload::resolve(text, files).map_err(|e| e.to_string())? {
        Workload::Program(program) => Ok(*program),
        Workload::Command(_) => Err(format!(
            "workload \"{text}\" is a command; it must be a generator, a file or a [workload] of the \
             experiment"
        )),
    }
}

/// Returns the published noise of a figure relative to it: the quotient of the two columns that
/// `noise` names as `NOISE/FIGURE`.
fn relative_noise(
    experiment: &Experiment,
    table: &Table,
    figure: &Figure,
    row: usize,
) -> Result<Option<f64>, ReproduceError> {
    let Some(text) = &figure.noise else { return Ok(None) };
    let filled = fill(text, &figure.vars).unwrap_or_else(|_| text.clone());
    let Some((noise, of)) = filled.split_once('/') else {
        let what = format!("noise \"{text}\" must have the form COLUMN/COLUMN");
        return Err(experiment.fault(figure.line, what));
    };
    let column = |name: &str| table.rows[row].figure(name.trim());
    Ok(column(noise).zip(column(of)).map(|(noise, of)| (noise / of).abs()))
}

/// The variables that name a cell, for messages and reports.
pub fn name_of(plan: &Plan, cell: &Cell) -> Vars {
    let mut vars = plan.table(cell).keys_of(cell.row);
    vars.insert("column".into(), cell.column.clone());
    vars
}

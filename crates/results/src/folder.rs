// SPDX-License-Identifier: GPL-2.0-only
//! A results folder: what was asked, every metric of every run, every task of every run.
//!
//! ```text
//! manifest.json   version, hashes of the other files, the resolved request of each machine
//! runs.parquet    a row for each run and metric
//! tasks.parquet   a row for each run and task
//! ```
//!
//! Owns: the columns of the Parquet files (`docs/reference/results-folder.md`), the order of
//! writing, the reading of folders of earlier versions.
//! `manifest.json` is removed first and written last, and names the hashes of the others. A folder
//! whose writer was stopped has no manifest, or one that does not fit, and is refused.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use indexmap::IndexMap;
use scxlab_lab::metric::{self, Better};
use scxlab_lab::report::csv;
use scxlab_lab::results::{Manifest, Results, Version};
use scxlab_lab::run::{
    Exit, MetricValue, NeverRan, Run, StopKind, StopReason, TaskResult, is_starved, keeps_quotas,
};
use scxlab_machine::hash::hash_bytes;
use serde::{Deserialize, Serialize};

use crate::atomic;
use crate::parquet::{self, Column, ParquetError, Table, Values};

pub const MANIFEST: &str = "manifest.json";
pub const RUNS: &str = "runs.parquet";
pub const TASKS: &str = "tasks.parquet";

/// Version of the folder's format. A reader of this version reads all earlier ones.
pub const FORMAT: u32 = 1;

/// A results folder, read.
#[derive(Clone, Debug)]
pub struct Folder {
    pub path: PathBuf,
    /// The scxlab that wrote the folder.
    pub scxlab: Version,
    /// The resolved request of each machine and workload, in the order of the command.
    pub manifests: Vec<Manifest>,
    /// All runs, in the order in which they were asked for.
    pub runs: Vec<StoredRun>,
}

/// One run of a folder.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredRun {
    /// Workload, machine and scheduler as given with `-w`, `-m` and `-s`.
    pub workload: String,
    pub machine: String,
    pub target: String,
    pub scheduler: String,
    pub seed: u64,
    /// See `Run::counts`.
    pub counts: bool,
    /// Kind and message of the scheduler's exit; `none` if it stayed.
    pub exit: String,
    pub exit_message: String,
    /// Kind of the run's end.
    pub stop: String,
    /// Number of tasks that starved (`Run::never_ran`).
    pub never_ran: u64,
    pub virtual_ns: u64,
    pub trace_hash: String,
    pub metrics: IndexMap<String, MetricValue>,
    pub tasks: Vec<StoredTask>,
}

/// One task of a run.
#[derive(Clone, Debug, PartialEq)]
pub struct StoredTask {
    pub name: String,
    pub cgroup: String,
    pub nice: i8,
    pub run_ns: u64,
    pub wait_ns: Option<u64>,
    pub switches: u64,
    pub migrations: Option<u64>,
}

/// Reason why a folder cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    #[error("{}: {error}", path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("{}: no results here (no {MANIFEST} and no results.json); give a folder that `scxlab run -o` wrote", path.display())]
    NoResults { path: PathBuf },
    #[error("{}: {why}", path.display())]
    Damaged { path: PathBuf, why: String },
    #[error("{}: format {found}, which a newer scxlab wrote; this one reads formats up to {FORMAT}", path.display())]
    Newer { path: PathBuf, found: u32 },
    #[error("{}: {why}: {}", path.display(), ParquetText(error))]
    Parquet { path: PathBuf, why: &'static str, error: ParquetError },
    #[error("{}: the column \"{column}\" is missing, or has another type", path.display())]
    Column { path: PathBuf, column: &'static str },
    #[error("{}: it belongs to another command than {MANIFEST}: the folder was being written, or a file was replaced", path.display())]
    Torn { path: PathBuf },
}

/// Shows a `ParquetError` in a message.
struct ParquetText<'a>(&'a ParquetError);

impl std::fmt::Display for ParquetText<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.fmt(f)
    }
}

/// The contents of `manifest.json`.
#[derive(Serialize, Deserialize)]
struct Stored {
    format: u32,
    scxlab: Version,
    /// Hash of each of the other files, in hexadecimal, by name.
    files: BTreeMap<String, String>,
    requests: Vec<Manifest>,
}

/// Writes the results of all machines and workloads of a command into a folder, which must exist.
/// `with_csv` adds the two tables as text.
pub fn write(
    folder: &Path,
    scxlab: &Version,
    all: &[Results],
    with_csv: bool,
) -> Result<(), (PathBuf, io::Error)> {
    let manifest = folder.join(MANIFEST);
    fs::remove_file(&manifest).or_else(missing).map_err(|error| (manifest.clone(), error))?;
    let mut files = BTreeMap::new();
    for (name, table) in [(RUNS, runs_table(all)), (TASKS, tasks_table(all))] {
        let bytes = parquet::write(&table);
        let path = folder.join(name);
        let csv = path.with_extension("csv");
        match with_csv {
            true => atomic::write_file(&csv, csv_of(&table).as_bytes()),
            // Those of an earlier command would not fit the other files.
            false => fs::remove_file(&csv).or_else(missing),
        }
        .map_err(|error| (csv, error))?;
        atomic::write_file(&path, &bytes).map_err(|error| (path, error))?;
        files.insert(name.to_owned(), hash(&bytes));
    }
    let requests = all.iter().map(|results| results.manifest.clone()).collect();
    let stored = Stored { format: FORMAT, scxlab: scxlab.clone(), files, requests };
    let mut text = serde_json::to_string_pretty(&stored).expect("plain data");
    text.push('\n');
    atomic::write_file(&manifest, text.as_bytes()).map_err(|error| (manifest, error))
}

/// Accepts that a file does not exist.
fn missing(error: io::Error) -> io::Result<()> {
    if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
}

/// Returns a table as comma-separated values, with a line of names; what is absent is empty.
fn csv_of(table: &Table) -> String {
    let mut text = csv::line(table.columns.iter().map(|column| &column.name));
    for row in 0..table.rows() {
        let cell = |column: &Column| match &column.values {
            Values::Text(all) => all[row].clone(),
            Values::Int(all) => all[row].map(|n| n.to_string()),
            Values::Float(all) => all[row].map(|x| x.to_string()),
            Values::Bool(all) => all[row].map(|is| is.to_string()),
        };
        text.push_str(&csv::line(table.columns.iter().map(|c| cell(c).unwrap_or_default())));
    }
    text
}

fn hash(bytes: &[u8]) -> String {
    format!("{:016x}", hash_bytes(bytes))
}

/// Rows of a table that is being built: a value for each column.
struct Rows<const N: usize> {
    columns: [Column; N],
}

enum Item<'a> {
    Text(Option<&'a str>),
    Int(Option<u64>),
    Float(Option<f64>),
    Bool(bool),
}

impl<const N: usize> Rows<N> {
    fn new(columns: [(&str, Values); N]) -> Self {
        Rows { columns: columns.map(|(name, values)| Column { name: name.to_owned(), values }) }
    }

    fn push(&mut self, items: [Item<'_>; N]) {
        for (column, item) in self.columns.iter_mut().zip(items) {
            match (&mut column.values, item) {
                (Values::Text(all), Item::Text(text)) => all.push(text.map(str::to_owned)),
                // Numbers that exceed 63 bits keep their bits.
                (Values::Int(all), Item::Int(n)) => all.push(n.map(|n| n as i64)),
                (Values::Float(all), Item::Float(x)) => all.push(x),
                (Values::Bool(all), Item::Bool(is)) => all.push(Some(is)),
                _ => unreachable!("an item of another type than its column {}", column.name),
            }
        }
    }

    fn table(self) -> Table {
        let notes = vec![("scxlab.format".to_owned(), FORMAT.to_string())];
        Table { columns: self.columns.into(), notes }
    }
}

const TEXT: Values = Values::Text(Vec::new());
const INT: Values = Values::Int(Vec::new());
const FLOAT: Values = Values::Float(Vec::new());
const BOOL: Values = Values::Bool(Vec::new());

/// Returns the rows of `runs.parquet`. A run without metrics has one row, without a metric.
pub fn runs_table(all: &[Results]) -> Table {
    let mut rows = Rows::new([
        ("workload", TEXT),
        ("workload_hash", TEXT),
        ("machine", TEXT),
        ("machine_fingerprint", TEXT),
        ("target", TEXT),
        ("scheduler", TEXT),
        ("object_hash", TEXT),
        ("seed", INT),
        ("counts", BOOL),
        ("exit", TEXT),
        ("exit_message", TEXT),
        ("stop", TEXT),
        ("never_ran", INT),
        ("virtual_ns", INT),
        ("trace_hash", TEXT),
        ("metric", TEXT),
        ("unit", TEXT),
        ("better", TEXT),
        ("value", FLOAT),
    ]);
    for results in all {
        let (workload, machine) = (&results.manifest.workload, &results.manifest.machine);
        let mut schedulers = results.manifest.schedulers.iter();
        for run in &results.runs {
            let scheduler = schedulers.clone().find(|s| s.scheduler == run.scheduler);
            let scheduler = scheduler.or_else(|| schedulers.next());
            let object = scheduler.and_then(|s| s.object.as_ref()).map(|o| o.hash.as_str());
            let none = (run.metrics.is_empty()).then_some((None, None));
            let metrics = run.metrics.iter().map(|(name, value)| (Some(name), Some(value)));
            for (name, value) in metrics.chain(none) {
                rows.push([
                    Item::Text(Some(&workload.workload)),
                    Item::Text(Some(&workload.hash)),
                    Item::Text(Some(&machine.machine)),
                    Item::Text(Some(&machine.fingerprint)),
                    Item::Text(Some(&run.target)),
                    Item::Text(Some(&run.scheduler)),
                    Item::Text(object),
                    Item::Int(Some(run.seed)),
                    Item::Bool(run.counts),
                    Item::Text(Some(&run.exit.kind)),
                    Item::Text(Some(&run.exit.message)),
                    Item::Text(Some(run.stop.kind.name())),
                    Item::Int(Some(run.never_ran.len() as u64)),
                    Item::Int(Some(run.virtual_ns)),
                    Item::Text(Some(&run.trace_hash)),
                    Item::Text(name.map(String::as_str)),
                    Item::Text(value.map(|value| &*value.unit)),
                    Item::Text(name.and_then(|name| better(name))),
                    Item::Float(value.map(|value| value.value)),
                ]);
            }
        }
    }
    rows.table()
}

/// Returns the names of the columns of each Parquet file.
pub fn columns() -> Vec<(&'static str, Vec<String>)> {
    let names = |table: Table| table.columns.into_iter().map(|column| column.name).collect();
    vec![(RUNS, names(runs_table(&[]))), (TASKS, names(tasks_table(&[])))]
}

fn better(name: &str) -> Option<&'static str> {
    match metric::find(name)?.better {
        Better::Less => Some("less"),
        Better::More => Some("more"),
        Better::Open => None,
    }
}

/// Returns the rows of `tasks.parquet`.
pub fn tasks_table(all: &[Results]) -> Table {
    let mut rows = Rows::new([
        ("workload", TEXT),
        ("machine", TEXT),
        ("target", TEXT),
        ("scheduler", TEXT),
        ("seed", INT),
        ("task", TEXT),
        ("cgroup", TEXT),
        ("nice", INT),
        ("run_ns", INT),
        ("wait_ns", INT),
        ("switches", INT),
        ("migrations", INT),
    ]);
    for results in all {
        for run in &results.runs {
            for task in &run.tasks {
                rows.push([
                    Item::Text(Some(&results.manifest.workload.workload)),
                    Item::Text(Some(&results.manifest.machine.machine)),
                    Item::Text(Some(&run.target)),
                    Item::Text(Some(&run.scheduler)),
                    Item::Int(Some(run.seed)),
                    Item::Text(Some(&task.name)),
                    Item::Text(Some(&task.cgroup)),
                    Item::Int(Some(i64::from(task.nice) as u64)),
                    Item::Int(Some(task.run_ns)),
                    Item::Int(task.wait_ns),
                    Item::Int(Some(task.switches)),
                    Item::Int(task.migrations),
                ]);
            }
        }
    }
    rows.table()
}

impl Folder {
    /// Reads a folder of this or an earlier version.
    pub fn read(path: &Path) -> Result<Folder, FolderError> {
        let manifest = path.join(MANIFEST);
        if manifest.exists() {
            return Folder::read_stored(path, &manifest);
        }
        let mut folder = Folder {
            path: path.to_owned(),
            scxlab: Version { version: "unknown".to_owned(), commit: None },
            manifests: Vec::new(),
            runs: Vec::new(),
        };
        for file in earlier(path)? {
            folder.add_earlier(&file)?;
        }
        let name = |m: &Manifest| (m.workload.workload.clone(), m.machine.machine.clone());
        let names: BTreeSet<_> = folder.manifests.iter().map(name).collect();
        if names.len() < folder.manifests.len() {
            let why = "the results of several commands are below it; give one of the folders";
            return Err(FolderError::Damaged { path: path.to_owned(), why: why.to_owned() });
        }
        if folder.manifests.is_empty() {
            return Err(FolderError::NoResults { path: path.to_owned() });
        }
        Ok(folder)
    }

    /// Returns what the results of a command that is still in this process would be when read.
    pub fn of(all: &[Results], scxlab: &Version) -> Folder {
        let mut folder = Folder {
            path: PathBuf::new(),
            scxlab: scxlab.clone(),
            manifests: Vec::new(),
            runs: Vec::new(),
        };
        for results in all {
            folder.add(results.manifest.clone(), results.runs.clone());
        }
        folder
    }

    /// Returns the runs of a request, in the form that a page reads. What the tables do not hold is
    /// empty.
    pub fn runs_of(&self, manifest: &Manifest) -> Vec<Run> {
        let (workload, machine) = (&manifest.workload.workload, &manifest.machine.machine);
        let is_of = |run: &&StoredRun| run.workload == *workload && run.machine == *machine;
        self.runs.iter().filter(is_of).map(StoredRun::to_run).collect()
    }

    fn add(&mut self, manifest: Manifest, runs: Vec<Run>) {
        let (workload, machine) = (&manifest.workload.workload, &manifest.machine.machine);
        self.runs.extend(runs.into_iter().map(|run| StoredRun::of(workload, machine, run)));
        self.manifests.push(manifest);
    }

    fn read_stored(path: &Path, manifest: &Path) -> Result<Folder, FolderError> {
        let text = read(manifest)?;
        let damaged = |why: String| FolderError::Damaged { path: manifest.to_owned(), why };
        #[derive(Deserialize)]
        struct Head {
            format: u32,
        }
        let head: Head = serde_json::from_slice(&text).map_err(|e| damaged(e.to_string()))?;
        if head.format > FORMAT {
            return Err(FolderError::Newer { path: manifest.to_owned(), found: head.format });
        }
        let stored: Stored = serde_json::from_slice(&text).map_err(|e| damaged(e.to_string()))?;
        let table = |name: &str| {
            let path = path.join(name);
            let bytes = read(&path)?;
            let table = parquet::read(&bytes).map_err(|error| FolderError::Parquet {
                path: path.clone(),
                why: "no table can be read from it",
                error,
            })?;
            if stored.files.get(name) != Some(&hash(&bytes)) {
                return Err(FolderError::Torn { path });
            }
            Ok((path, table))
        };
        let (runs_path, runs) = table(RUNS)?;
        let (tasks_path, tasks) = table(TASKS)?;
        let mut runs = read_runs(&Columns { path: &runs_path, table: &runs })?;
        read_tasks(&Columns { path: &tasks_path, table: &tasks }, &mut runs)?;
        Ok(Folder {
            path: path.to_owned(),
            scxlab: stored.scxlab,
            manifests: stored.requests,
            runs: runs.into_values().collect(),
        })
    }

    /// Adds the results of a file `results.json`, the only one that earlier versions wrote.
    fn add_earlier(&mut self, file: &Path) -> Result<(), FolderError> {
        #[derive(Deserialize)]
        struct Earlier {
            manifest: Manifest,
            runs: Vec<Run>,
        }
        let earlier: Earlier = serde_json::from_slice(&read(file)?).map_err(|error| {
            let why = format!("results of an earlier scxlab that cannot be read: {error}");
            FolderError::Damaged { path: file.to_owned(), why }
        })?;
        self.scxlab = earlier.manifest.scxlab.clone();
        self.add(earlier.manifest, earlier.runs);
        Ok(())
    }
}

fn read(path: &Path) -> Result<Vec<u8>, FolderError> {
    fs::read(path).map_err(|error| FolderError::Read { path: path.to_owned(), error })
}

/// Returns the results files of earlier versions: the folder's own, or that of each machine in the
/// folders below it, by name.
fn earlier(path: &Path) -> Result<Vec<PathBuf>, FolderError> {
    let failed = |error| FolderError::Read { path: path.to_owned(), error };
    let own = path.join("results.json");
    if own.exists() {
        return Ok(vec![own]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path).map_err(failed)? {
        let file = entry.map_err(failed)?.path().join("results.json");
        if file.exists() {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

impl StoredRun {
    fn of(workload: &str, machine: &str, run: Run) -> StoredRun {
        let task = |task: TaskResult| StoredTask {
            name: task.name,
            cgroup: task.cgroup,
            nice: task.nice,
            run_ns: task.run_ns,
            wait_ns: task.wait_ns,
            switches: task.switches,
            migrations: task.migrations,
        };
        StoredRun {
            workload: workload.to_owned(),
            machine: machine.to_owned(),
            target: run.target.into_owned(),
            scheduler: run.scheduler,
            seed: run.seed,
            counts: run.counts,
            exit: run.exit.kind,
            exit_message: run.exit.message,
            stop: run.stop.kind.name().to_owned(),
            never_ran: run.never_ran.len() as u64,
            virtual_ns: run.virtual_ns,
            trace_hash: run.trace_hash,
            metrics: run.metrics,
            tasks: run.tasks.into_iter().map(task).collect(),
        }
    }

    fn to_run(&self) -> Run {
        let task = |task: &StoredTask| TaskResult {
            name: task.name.clone(),
            nice: task.nice,
            cgroup: task.cgroup.clone(),
            run_ns: task.run_ns,
            wait_ns: task.wait_ns,
            switches: task.switches,
            migrations: task.migrations,
            node_ns: Vec::new(),
            counters: IndexMap::new(),
        };
        let kind = StopKind::ALL.iter().find(|kind| kind.name() == self.stop);
        Run {
            exit: Exit {
                kind: self.exit.clone(),
                message: self.exit_message.clone(),
                ..Exit::none()
            },
            stop: StopReason {
                // A later version may have further kinds, and none of them is a regular end.
                kind: kind.copied().unwrap_or(StopKind::Interrupted),
                message: if kind.is_some() { String::new() } else { self.stop.clone() },
            },
            target: self.target.clone().into(),
            counts: self.counts,
            never_ran: self.never_ran(),
            trace_hash: self.trace_hash.clone(),
            virtual_ns: self.virtual_ns,
            metrics: self.metrics.clone(),
            tasks: self.tasks.iter().map(task).collect(),
            ..Run::not_begun(&self.scheduler, self.seed, "")
        }
    }

    /// Returns the tasks that starved. The table of runs has their number, which an earlier version
    /// may have counted by another rule: those that starved by the present rule come first, then
    /// those that never ran and waited longest.
    fn never_ran(&self) -> Vec<NeverRan> {
        let is_starved = |task: &StoredTask| {
            let wait_ns = task.wait_ns.unwrap_or_default();
            is_starved(task.run_ns, wait_ns, task.switches, self.virtual_ns)
        };
        let mut tasks: Vec<&StoredTask> = self.tasks.iter().collect();
        tasks.sort_by_key(|t| (!is_starved(t), t.run_ns > 0, Reverse(t.wait_ns)));
        let never_ran = |task: &StoredTask| NeverRan {
            name: task.name.clone(),
            run_ns: task.run_ns,
            wait_ns: task.wait_ns.unwrap_or_default(),
        };
        tasks.into_iter().take(self.never_ran as usize).map(never_ran).collect()
    }

    /// Tells whether the scheduler stayed, no task starved, and the run ended regularly.
    pub fn succeeded(&self) -> bool {
        self.counts && self.never_ran == 0
    }

    /// Tells whether no cgroup had noticeably more CPU time than its `cpu.max` allows.
    pub fn keeps_quotas(&self) -> bool {
        keeps_quotas(&self.metrics)
    }

    /// Returns the value of a metric; None if the run does not count or lacks it.
    pub fn value(&self, metric: &str) -> Option<f64> {
        self.metrics.get(metric).filter(|_| self.counts).map(|metric| metric.value)
    }
}

/// A Parquet file with the name for its messages.
struct Columns<'a> {
    path: &'a Path,
    table: &'a Table,
}

/// Defines the methods of `Columns` that return the values of a column of one type.
macro_rules! columns_of_type {
    ($($method:ident = $variant:ident($value:ty);)+) => {
        impl<'a> Columns<'a> {
            $(
                fn $method(&self, column: &'static str) -> Result<&'a [Option<$value>], FolderError> {
                    match self.table.column(column) {
                        Some(Values::$variant(values)) => Ok(values),
                        _ => Err(FolderError::Column { path: self.path.to_owned(), column }),
                    }
                }
            )+
        }
    };
}

columns_of_type! {
    text = Text(String);
    int = Int(i64);
    float = Float(f64);
    bool = Bool(bool);
}

/// Workload, machine, target, scheduler and seed, which name a run.
type Name = (String, String, String, String, u64);

fn names(columns: &Columns<'_>) -> Result<Vec<Name>, FolderError> {
    let (workload, machine) = (columns.text("workload")?, columns.text("machine")?);
    let (target, scheduler) = (columns.text("target")?, columns.text("scheduler")?);
    let seed = columns.int("seed")?;
    let text = |values: &[Option<String>], at: usize| values[at].clone().unwrap_or_default();
    let name = |at: usize| {
        let seed = seed[at].unwrap_or_default() as u64;
        (text(workload, at), text(machine, at), text(target, at), text(scheduler, at), seed)
    };
    Ok((0..columns.table.rows()).map(name).collect())
}

fn read_runs(columns: &Columns<'_>) -> Result<IndexMap<Name, StoredRun>, FolderError> {
    let (counts, exit) = (columns.bool("counts")?, columns.text("exit")?);
    let (message, stop) = (columns.text("exit_message")?, columns.text("stop")?);
    let (never_ran, virtual_ns) = (columns.int("never_ran")?, columns.int("virtual_ns")?);
    let trace_hash = columns.text("trace_hash")?;
    let (metric, unit, value) =
        (columns.text("metric")?, columns.text("unit")?, columns.float("value")?);
    let mut runs: IndexMap<Name, StoredRun> = IndexMap::new();
    for (at, name) in names(columns)?.into_iter().enumerate() {
        let run = runs.entry(name).or_insert_with_key(|name| StoredRun {
            workload: name.0.clone(),
            machine: name.1.clone(),
            target: name.2.clone(),
            scheduler: name.3.clone(),
            seed: name.4,
            counts: counts[at].unwrap_or(false),
            exit: exit[at].clone().unwrap_or_default(),
            exit_message: message[at].clone().unwrap_or_default(),
            stop: stop[at].clone().unwrap_or_default(),
            never_ran: never_ran[at].unwrap_or_default() as u64,
            virtual_ns: virtual_ns[at].unwrap_or_default() as u64,
            trace_hash: trace_hash[at].clone().unwrap_or_default(),
            metrics: IndexMap::new(),
            tasks: Vec::new(),
        });
        if let (Some(metric), Some(value)) = (&metric[at], value[at]) {
            let unit = unit[at].clone().unwrap_or_default().into();
            run.metrics.insert(metric.clone(), MetricValue { value, unit });
        }
    }
    Ok(runs)
}

fn read_tasks(
    columns: &Columns<'_>,
    runs: &mut IndexMap<Name, StoredRun>,
) -> Result<(), FolderError> {
    let (task, cgroup) = (columns.text("task")?, columns.text("cgroup")?);
    let (nice, run_ns, wait_ns) =
        (columns.int("nice")?, columns.int("run_ns")?, columns.int("wait_ns")?);
    let (switches, migrations) = (columns.int("switches")?, columns.int("migrations")?);
    for (at, name) in names(columns)?.into_iter().enumerate() {
        let Some(run) = runs.get_mut(&name) else {
            let why = format!("it has a task of a run that {RUNS} lacks");
            return Err(FolderError::Damaged { path: columns.path.to_owned(), why });
        };
        run.tasks.push(StoredTask {
            name: task[at].clone().unwrap_or_default(),
            cgroup: cgroup[at].clone().unwrap_or_default(),
            nice: nice[at].and_then(|nice| i8::try_from(nice).ok()).unwrap_or_default(),
            run_ns: run_ns[at].unwrap_or_default() as u64,
            wait_ns: wait_ns[at].map(|n| n as u64),
            switches: switches[at].unwrap_or_default() as u64,
            migrations: migrations[at].map(|n| n as u64),
        });
    }
    Ok(())
}

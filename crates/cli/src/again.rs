// SPDX-License-Identifier: GPL-2.0-only
//! `scxlab run --again`: stores a command with its results, runs it again, and compares the new
//! results with the old ones.
//!
//! Owns: the subfolder `request` of a results folder, which holds the command and each file that
//! the command read.
//!
//! ```text
//! DIR/request/command.json   the command's words, the files' names, the sysfs of this machine
//! DIR/request/0-app.json     one of the files, as the command read it
//! ```

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use anyhow::Result;
use clap::Parser;
use scxlab_lab::input::{InputError, InputFiles};
use scxlab_lab::metric::WEIGHT_ERROR;
use scxlab_lab::results::{Results, Version};
use scxlab_results::inputs::{self, Inputs};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::args::{Cli, Command, RunArgs};
use crate::exit::CliError;
use crate::output;
use crate::run::machine_folders;

const FOLDER: &str = "request";
const COMMAND: &str = "command.json";

#[derive(Serialize, Deserialize)]
struct Request {
    scxlab: Version,
    /// Words of the command line after the program's name.
    command: Vec<String>,
    files: Vec<StoredFile>,
    sysfs: BTreeMap<String, String>,
}

#[derive(Serialize, Deserialize)]
struct StoredFile {
    /// Path as the command named it.
    path: String,
    /// Name of the file's copy in `request`.
    kept: String,
}

/// Writes everything that is needed to run the command again.
pub fn keep(folder: &Path, args: &RunArgs, inputs: &Inputs, scxlab: Version) -> Result<()> {
    let folder = folder.join(FOLDER);
    output::make_folder(&folder)?;
    let mut files = Vec::new();
    for (number, path) in inputs.paths().into_iter().enumerate() {
        let name = Path::new(&path).file_name().unwrap_or_default().to_string_lossy().into_owned();
        let kept = format!("{number}-{}", output::safe_name(&name));
        let bytes = inputs.open(&path);
        let bytes = bytes.map_err(|error| InputError::Read { path: path.clone().into(), error })?;
        output::copy_to_file(&folder.join(&kept), bytes)?;
        files.push(StoredFile { path, kept });
    }
    let request = Request { scxlab, command: command(args)?, files, sysfs: inputs.sysfs() };
    let mut text = serde_json::to_string_pretty(&request).expect("plain data");
    text.push('\n');
    output::write_file(&folder.join(COMMAND), text.as_bytes())
}

/// Returns this process's command or, for `--again`, the original command.
fn command(args: &RunArgs) -> Result<Vec<String>> {
    if let Some(folder) = &args.again {
        return Ok(Request::read(folder)?.command);
    }
    let words = std::env::args_os().skip(1).map(OsString::into_string);
    let not_text = |word: OsString| CliError::NotText { word };
    Ok(words.collect::<Result<_, _>>().map_err(not_text)?)
}

impl Request {
    fn read(folder: &Path) -> Result<Request> {
        let path = folder.join(FOLDER).join(COMMAND);
        let text = inputs::read(&path);
        let text = text.map_err(|e| nothing_kept(folder, e.to_string()))?;
        let read = serde_json::from_slice(&text);
        Ok(read.map_err(|e| nothing_kept(folder, format!("{}: {e}", path.display())))?)
    }
}

fn nothing_kept(folder: &Path, why: String) -> CliError {
    CliError::NothingKept { folder: folder.to_owned(), why }
}

/// The contents of a results folder's `request`.
pub struct StoredRequest {
    folder: PathBuf,
    request: Request,
    inputs: Inputs,
}

impl StoredRequest {
    pub fn read(folder: &Path) -> Result<StoredRequest> {
        let request = Request::read(folder)?;
        let mut files = BTreeMap::new();
        for StoredFile { path, kept } in &request.files {
            // Use only the last component of the stored name, so that the path cannot leave the
            // folder.
            let name = Path::new(kept).file_name().unwrap_or_default();
            files.insert(path.clone(), folder.join(FOLDER).join(name));
        }
        let inputs = Inputs::kept(files, request.sysfs.clone());
        Ok(StoredRequest { folder: folder.to_owned(), request, inputs })
    }

    pub fn inputs(&self) -> &Inputs {
        &self.inputs
    }

    /// Returns the stored command's arguments; options for the output and the execution come from
    /// `given`, the options beside `--again`.
    pub fn args(&self, given: &RunArgs) -> Result<RunArgs> {
        Ok(RunArgs {
            again: given.again.clone(),
            trace: given.trace.clone(),
            trace_buffer: given.trace_buffer,
            timeline: given.timeline,
            report: given.report.clone(),
            output: given.output.clone(),
            format: given.format,
            metrics: given.metrics.clone(),
            csv: given.csv,
            jobs: given.jobs,
            engine: given.engine,
            fail_on_exit: given.fail_on_exit,
            ..self.first()?
        })
    }

    /// Returns the stored command's arguments.
    fn first(&self) -> Result<RunArgs> {
        let words = self.request.command.iter().map(String::as_str);
        let cli = Cli::try_parse_from(std::iter::once("scxlab").chain(words))
            .map_err(|e| nothing_kept(&self.folder, format!("its command: {e}")))?;
        match cli.command {
            Command::Run(first) => Ok(first),
            _ => Err(nothing_kept(&self.folder, "its command is not `run`".to_owned()).into()),
        }
    }

    /// Fails unless every simulated run equals the stored one.
    pub fn compare(&self, all: &[Results]) -> Result<()> {
        let mut before = Vec::new();
        for folder in machine_folders(&self.first()?, &self.folder) {
            let path = folder.join("results.json");
            let text = inputs::read(&path)?;
            let read: Value = serde_json::from_slice(&text)
                .map_err(|e| nothing_kept(&self.folder, format!("{}: {e}", path.display())))?;
            before.extend(simulated(&read));
        }
        // Convert the new results to JSON text and back, like the stored ones, because reading a
        // number may change its last bit.
        let read = |text: String| serde_json::from_str(&text).expect("our own JSON");
        let mut now: Vec<Value> = all.iter().flat_map(|r| simulated(&read(r.to_json()))).collect();
        now.iter_mut().zip(&before).for_each(|(now, before)| leave_out_later(now, before));
        // First pair new and stored runs by their position in the list, and only then leave out
        // pairs with an interrupted run. In the other order, the runs after an interrupted one
        // would be compared with the wrong stored runs.
        let pairs: Vec<_> = (0..before.len().max(now.len()))
            .map(|at| (before.get(at), now.get(at)))
            .filter(|(before, now)| ![before, now].into_iter().flatten().any(|run| is_cut(run)))
            .collect();
        let of = pairs.len();
        let different: Vec<_> = pairs.into_iter().filter(|(before, now)| before != now).collect();
        if let Some((before, now)) = different.first() {
            let what = difference(*before, *now);
            let Version { version, commit } = &self.request.scxlab;
            let commit = commit.as_deref().map_or(String::new(), |c| format!(" ({c})"));
            let first = format!("{what}; the results are of scxlab {version}{commit}");
            return Err(CliError::NotTheSame { runs: different.len(), of, first }.into());
        }
        output::say(&match of {
            0 => "again: runs on a real kernel are not reproducible, and there was no simulated run to compare".into(),
            1 => "again: the simulated run is the same, bit for bit".to_owned(),
            runs => format!("again: all {runs} simulated runs are the same, bit for bit"),
        });
        Ok(())
    }
}

/// Removes from a new run what earlier versions of scxlab did not have, if the stored run lacks it:
/// a metric, and the story of an ejection.
fn leave_out_later(now: &mut Value, before: &Value) {
    for (part, name) in [("metrics", WEIGHT_ERROR.name), ("exit", "story")] {
        if before[part].get(name).is_none()
            && let Some(all) = now.get_mut(part).and_then(Value::as_object_mut)
        {
            all.shift_remove(name);
        }
    }
}

fn is_cut(run: &Value) -> bool {
    run["stop"]["kind"] == "interrupted"
}

/// Returns the simulated runs without their wall time, which depends on the host. A field that an
/// earlier scxlab wrote under another name gets its present name.
fn simulated(results: &Value) -> Vec<Value> {
    let runs = results["runs"].as_array().map_or(&[][..], Vec::as_slice);
    let mut all: Vec<Value> = runs.iter().filter(|run| run["target"] == "sim").cloned().collect();
    all.iter_mut().filter_map(Value::as_object_mut).for_each(|run| {
        run.remove("wall_ns");
        let cgroups = run.get_mut("cgroups").and_then(Value::as_array_mut).into_iter().flatten();
        for cgroup in cgroups.filter_map(Value::as_object_mut) {
            if let Some(value) = cgroup.remove("together_permille") {
                cgroup.insert("coscheduled_permille".to_owned(), value);
            }
        }
    });
    all
}

/// Names the run, and describes the first field that differs between its stored and its new result.
fn difference(before: Option<&Value>, now: Option<&Value>) -> String {
    let (Some(before), Some(now)) = (before, now) else {
        return "the number of simulated runs differs".to_owned();
    };
    let fields = [before, now].into_iter().filter_map(Value::as_object).flatten();
    let mut names = fields.map(|(name, _)| name.as_str());
    let other = names.find(|name| before[*name] != now[*name]).unwrap_or_default();
    let short = |value: &Value| value.to_string().chars().take(60).collect::<String>();
    format!(
        "{} with seed {}: {other} was {} and is {}",
        before["scheduler"].as_str().unwrap_or_default(),
        before["seed"],
        short(&before[other]),
        short(&now[other])
    )
}

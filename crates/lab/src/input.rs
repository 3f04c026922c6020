// SPDX-License-Identifier: GPL-2.0-only
//! The arguments of a run as every target (`sim`, `vm`, `host`) takes them: a machine, a workload
//! and schedulers, with the contents of all files that they name.
//!
//! Owns: the meaning of `-m`, `-w` and `-s`: shipped, generated, or a file. Does not: open files
//! (the caller passes an `InputFiles`), or prepare a scheduler for a kernel (see `prepare`).

mod beside;

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

pub use beside::Beside;
use bytes::Bytes;
use scxlab_bpf::jit::CodeStore;
use scxlab_machine::{Machine, MachineError, SysfsReader};
use scxlab_workload::{
    Program, WorkloadArg, WorkloadError, check_file_parameters, parse_workload_arg,
};
use serde::{Deserialize, Serialize};

use crate::recipe;
use crate::recorded::{self, Likeness, Parameters, Recorded, RecordedError};
use crate::scheduler::{DEFAULT_CLASS, SchedulerArg, SchedulerArgError};

/// The files that arguments may name, and the sysfs of the host.
pub trait InputFiles: SysfsReader {
    /// Tells whether `path` is a file.
    fn is_file(&self, path: &str) -> bool;
    fn read(&self, path: &str) -> io::Result<Bytes>;
    /// Opens a file that may be too large for memory. It may be opened several times.
    fn open(&self, path: &str) -> io::Result<Box<dyn io::Read + '_>> {
        Ok(Box::new(io::Cursor::new(InputFiles::read(self, path)?)))
    }
    /// Returns the place where machine code of schedulers outlives this process.
    fn code_store(&self) -> Option<Arc<dyn CodeStore>> {
        None
    }
}

/// An `InputFiles` without files, for arguments that name shipped things only.
#[derive(Clone, Copy, Debug)]
pub struct NoFiles;

impl SysfsReader for NoFiles {
    fn read(&self, _: &str) -> io::Result<String> {
        Err(io::ErrorKind::NotFound.into())
    }
}

impl InputFiles for NoFiles {
    fn is_file(&self, _: &str) -> bool {
        false
    }

    fn read(&self, _: &str) -> io::Result<Bytes> {
        Err(io::ErrorKind::NotFound.into())
    }
}

/// Files in memory by their paths.
#[derive(Clone, Debug, Default)]
pub struct MemoryFiles(pub BTreeMap<String, Vec<u8>>);

impl SysfsReader for MemoryFiles {
    fn read(&self, _: &str) -> io::Result<String> {
        Err(io::ErrorKind::NotFound.into())
    }
}

impl InputFiles for MemoryFiles {
    fn is_file(&self, path: &str) -> bool {
        self.0.contains_key(path)
    }

    fn read(&self, path: &str) -> io::Result<Bytes> {
        self.0
            .get(path)
            .map(|bytes| bytes.clone().into())
            .ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// Reason why an argument cannot be resolved.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    #[error("{}: {error}", .path.display())]
    Read { path: PathBuf, error: io::Error },
    #[error("{}: not a text file (UTF-8)", .path.display())]
    NotText { path: PathBuf },
    #[error("{}: neither a machine file (TOML), lstopo's XML nor a trace file", .path.display())]
    NoMachine { path: PathBuf },
    #[error("unknown {kind} \"{name}\"; available: {available}")]
    Unknown { kind: &'static str, name: String, available: String },
    #[error(transparent)]
    Machine(#[from] MachineError),
    #[error(transparent)]
    Workload(#[from] WorkloadError),
    #[error(transparent)]
    Scheduler(#[from] SchedulerArgError),
    #[error(transparent)]
    Recorded(#[from] RecordedError),
}

impl InputError {
    /// Returns the reason without the path of a file that cannot be read.
    fn reason(&self) -> String {
        match self {
            InputError::Read { error, .. } => error.to_string(),
            InputError::NotText { .. } => "not a text file (UTF-8)".to_owned(),
            other => other.to_string(),
        }
    }
}

/// Reads a file of text.
pub fn read_text(path: &str, files: &dyn InputFiles) -> Result<String, InputError> {
    String::from_utf8(read(path, files)?.into())
        .map_err(|_| InputError::NotText { path: path.into() })
}

fn read(path: &str, files: &dyn InputFiles) -> Result<Bytes, InputError> {
    InputFiles::read(files, path).map_err(|error| InputError::Read { path: path.into(), error })
}

/// Resolves `-m`. An argument that contains a slash, ends in `.xml` or `.toml`, or is the name of a
/// file names a file, `host` means this machine, a trace file stands for the machine in it, and any
/// other argument is a preset or a spec such as `2n4c2t`.
pub fn machine(arg: &str, files: &dyn InputFiles) -> Result<Machine, InputError> {
    let lower = arg.to_ascii_lowercase();
    let machine = if arg == "host" {
        Machine::from_sysfs(files)
    } else if let Some(machine) = machine_of_recording(arg, files)? {
        return Ok(machine);
    } else if lower.ends_with(".toml") {
        Machine::from_toml(arg, &read_text(arg, files)?)
    } else if lower.ends_with(".xml") {
        Machine::from_lstopo(arg, &read_text(arg, files)?)
    } else if arg.contains('/') || files.is_file(arg) {
        match read_text(arg, files) {
            Ok(text) if text.trim_start().starts_with('<') => Machine::from_lstopo(arg, &text),
            Ok(text) if !text.trim().is_empty() => Machine::from_toml(arg, &text),
            Ok(_) | Err(InputError::NotText { .. }) => {
                return Err(InputError::NoMachine { path: arg.into() });
            }
            Err(error) => return Err(error),
        }
    } else {
        Machine::resolve(arg)
    };
    Ok(machine?)
}

/// Splits a `-w` argument that may be a recording into its path and its parameters. A file with the
/// extension of a workload or a machine is no recording.
fn recording_arg<'a>(arg: &'a str, files: &dyn InputFiles) -> Option<(&'a str, &'a str)> {
    let begin = recorded::PARAMETERS.iter().filter_map(|(key, ..)| arg.find(&format!(",{key}=")));
    // The first comma, if no parameter is known: the unknown one is then named.
    let begins = [begin.min(), None, arg.find(',')];
    let split = begins.map(|begin| arg.split_at(begin.unwrap_or(arg.len())));
    let is_recording = |(path, _): &(&str, &str)| {
        let extension = path.rsplit_once('.').map(|(_, ext)| ext.to_ascii_lowercase());
        let other = matches!(extension.as_deref(), Some("toml" | "json" | "xml"));
        !other && files.is_file(path)
    };
    split.into_iter().find(is_recording)
}

/// Reads the recording that a `-w` argument names; None if it names something else.
pub fn recording(arg: &str, files: &dyn InputFiles) -> Result<Option<Recorded>, InputError> {
    let Some((path, keys)) = recording_arg(arg, files) else { return Ok(None) };
    let parameters = Parameters::parse(path, keys)?;
    let other = || parse_workload_arg(arg).is_ok();
    match recorded::read(path, &|| files.open(path), &parameters) {
        Err(RecordedError::Read { error, .. }) => {
            Err(InputError::Read { path: path.into(), error })
        }
        Err(error) if error.is_no_trace() && other() => Ok(None),
        recorded => Ok(Some(recorded?)),
    }
}

fn machine_of_recording(arg: &str, files: &dyn InputFiles) -> Result<Option<Machine>, InputError> {
    let Some((path, "")) = recording_arg(arg, files) else { return Ok(None) };
    match recorded::machine(path, &|| files.open(path)) {
        Err(RecordedError::Read { error, .. }) => {
            Err(InputError::Read { path: path.into(), error })
        }
        Err(error) if error.is_no_trace() => Ok(None),
        machine => Ok(Some(machine?)),
    }
}

/// Checks the parameters behind the name of a workload file, which is no recording.
fn check_parameters(file: &str, text: &str) -> Result<(), InputError> {
    let keys = text.split(',').map(|pair| pair.split_once('=').map_or(pair, |(key, _)| key).trim());
    let of_recordings = |key: &str| recorded::PARAMETERS.iter().find(|(known, ..)| *known == key);
    if let Some((key, ..)) = keys.into_iter().find_map(of_recordings) {
        return Err(RecordedError::NoRecording { file: file.to_owned(), key }.into());
    }
    Ok(check_file_parameters(file, text)?)
}

/// A workload.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workload {
    Program(Box<Program>),
    /// An external command, for targets with a real kernel. A successful exit counts as one unit of
    /// work.
    Command(Vec<String>),
}

impl Workload {
    /// Resolves `-w`: a generator, a workload file, a recording, or a command.
    pub fn resolve(arg: &str, files: &dyn InputFiles) -> Result<Workload, InputError> {
        if let Some(recorded) = recording(arg, files)? {
            return Ok(Workload::Program(Box::new(recorded.replay.program)));
        }
        let parsed = match parse_workload_arg(arg) {
            // A name with a point is that of a file.
            Err(error @ WorkloadError::UnknownGenerator { .. }) => {
                let (name, rest) = arg.split_once(',').unwrap_or((arg, ""));
                if name.contains('.') {
                    read(name, files)?;
                    check_parameters(name, rest)?;
                }
                return Err(error.into());
            }
            parsed => parsed?,
        };
        Ok(match parsed {
            WorkloadArg::Program(program) => Workload::Program(program),
            WorkloadArg::File { path, guests } => {
                if let Some((file, rest)) = path.split_once(',')
                    && files.is_file(file)
                    && !files.is_file(&path)
                {
                    check_parameters(file, rest)?;
                }
                let text = read_text(&path, files)?;
                let read = |path: &str| read_text(path, files).map_err(|e| e.reason());
                let program = scxlab_workload::load_with(&path, &text, &read)?;
                Workload::Program(Box::new(match guests {
                    Some(guests) => program.into_guests(*guests)?,
                    None => program,
                }))
            }
            WorkloadArg::Command(words) => Workload::Command(words),
        })
    }

    /// Resolves `-w`. Also returns how like its recording the workload is, if it is a recording;
    /// the error says why that is not known.
    pub fn compared(
        arg: &str,
        files: &dyn InputFiles,
    ) -> Result<(Workload, Option<Result<Likeness, String>>), InputError> {
        match recording(arg, files)? {
            Some(recorded) => {
                let likeness = recorded.likeness();
                Ok((Workload::Program(Box::new(recorded.replay.program)), Some(likeness)))
            }
            None => Ok((Workload::resolve(arg, files)?, None)),
        }
    }

    pub fn name(&self) -> &str {
        match self {
            Workload::Program(program) => &program.name,
            Workload::Command(words) => words.first().map_or("", String::as_str),
        }
    }

    /// Returns the name of the workload's unit of work.
    pub fn unit(&self) -> &str {
        match self {
            Workload::Program(program) => &program.unit,
            Workload::Command(_) => "run",
        }
    }

    /// Returns the duration that the workload itself asks for, in ns.
    pub fn duration(&self) -> Option<u64> {
        match self {
            Workload::Program(program) => program.duration.map(|d| d.0),
            Workload::Command(_) => None,
        }
    }
}

/// A scheduler as given with `-s`, with the contents of its files. Each target prepares the
/// scheduler for the target's kernel.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SchedulerInput {
    pub arg: SchedulerArg,
    /// The object of the scheduler; None if the scheduler is the default class.
    pub object: Option<ObjectInput>,
}

/// An object file and the choice of its recipe.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ObjectInput {
    /// Name of the file or of the shipped scheduler, for messages.
    pub name: String,
    /// The file's contents. A virtual machine receives them as a file beside the JSON.
    #[serde(skip)]
    pub bytes: Bytes,
    pub recipe: RecipeInput,
    /// Where the object's machine code outlives this process.
    #[serde(skip)]
    pub code_store: Option<Arc<dyn CodeStore>>,
}

/// The recipe to use.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RecipeInput {
    /// The shipped recipe for schedulers with the object's ops name (`sched_ext_ops.name`). If no
    /// shipped recipe is for that name, no recipe is used.
    Auto,
    None,
    Text {
        name: String,
        text: String,
    },
}

impl SchedulerInput {
    /// Resolves `-s`.
    ///
    /// ```
    /// use scxlab_lab::input::{NoFiles, SchedulerInput};
    /// let vtime = SchedulerInput::resolve("vtime,slice_ns=3000000", &NoFiles).unwrap();
    /// assert_eq!(vtime.object.unwrap().name, "vtime");
    /// assert!(SchedulerInput::resolve("eevdf", &NoFiles).unwrap().object.is_none());
    /// assert!(SchedulerInput::resolve("vtim", &NoFiles).is_err());
    /// ```
    pub fn resolve(text: &str, files: &dyn InputFiles) -> Result<SchedulerInput, InputError> {
        let arg = SchedulerArg::parse(text)?;
        if arg.is_default_class() {
            return Ok(SchedulerInput { arg, object: None });
        }
        let (name, bytes) = object(&arg.name, files)?;
        let recipe = match arg.recipe.as_deref() {
            None => RecipeInput::Auto,
            Some("none") => RecipeInput::None,
            Some(name) => {
                RecipeInput::Text { name: name.to_owned(), text: recipe_text(name, files)? }
            }
        };
        let object = ObjectInput { name, bytes, recipe, code_store: files.code_store() };
        Ok(SchedulerInput { arg, object: Some(object) })
    }

    /// Returns the input for an object that the caller has in memory. `text` is the `-s` argument
    /// with the object's name and knobs.
    pub fn of_object(
        text: &str,
        bytes: &[u8],
        recipe: RecipeInput,
    ) -> Result<SchedulerInput, SchedulerArgError> {
        let arg = SchedulerArg::parse(text)?;
        let (name, bytes) = (arg.name.clone(), Bytes::copy_from_slice(bytes));
        let object = ObjectInput { name, bytes, recipe, code_store: None };
        Ok(SchedulerInput { arg, object: Some(object) })
    }
}

/// Returns the name and the bytes of an object: the shipped scheduler that is called `name`, or
/// else the file at the path `name`.
pub fn object(name: &str, files: &dyn InputFiles) -> Result<(String, Bytes), InputError> {
    if let Some(shipped) = scxlab_sched::find(name) {
        return Ok((shipped.name.to_owned(), Bytes::from_static(shipped.object)));
    }
    let is_path = name.contains('/') || name.ends_with(".o");
    if !is_path && !files.is_file(name) {
        let mut names = vec![DEFAULT_CLASS];
        names.extend(scxlab_sched::shipped().iter().map(|s| s.name));
        return Err(InputError::Unknown {
            kind: "scheduler",
            name: name.into(),
            available: format!("{} and object files (a path)", names.join(", ")),
        });
    }
    Ok((name.to_owned(), read(name, files)?))
}

fn recipe_text(name: &str, files: &dyn InputFiles) -> Result<String, InputError> {
    if let Some((_, text)) = recipe::find(name) {
        return Ok(text.to_owned());
    }
    if !name.contains('/') && !name.ends_with(".toml") {
        let names: Vec<&str> = recipe::shipped().iter().map(|(n, _)| *n).collect();
        return Err(InputError::Unknown {
            kind: "recipe",
            name: name.into(),
            available: format!("{}, none and files (a path)", names.join(", ")),
        });
    }
    read_text(name, files)
}

#[cfg(test)]
mod tests;

// SPDX-License-Identifier: GPL-2.0-only
//! Conversion of arguments to a machine, a workload and schedulers. All input files are read and
//! remembered here.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;

use anyhow::Result;
use scxlab_lab::prepare::{Prepared, RecipeChoice, Source};
use scxlab_lab::recipe;
use scxlab_lab::scheduler::{DEFAULT_CLASS, SchedulerArg};
use scxlab_lab::sim::kernel_types;
use scxlab_loader::btf::Btf;
use scxlab_machine::{Machine, SysfsReader};
use scxlab_workload::{Program, WorkloadArg, parse_workload_arg};

use crate::exit::CliError;

/// Source of an object.
pub enum ObjectSource {
    Shipped(Source<'static>),
    File(Vec<u8>),
}

/// Maximum size of an input file in bytes. It exceeds any object or workload, and ends the reading
/// of endless devices.
const MAX_BYTES: u64 = 256 << 20;

/// The input files of a command: files of this host, each remembered with its contents, or the
/// files stored with an earlier command.
#[derive(Default)]
pub struct Inputs {
    files: RefCell<BTreeMap<String, Vec<u8>>>,
    /// Contents of sysfs files of this machine, by path.
    sysfs: RefCell<BTreeMap<String, String>>,
    /// Whether only stored files exist.
    is_closed: bool,
}

impl SysfsReader for Inputs {
    fn read(&self, path: &str) -> io::Result<String> {
        if self.is_closed {
            let kept = self.sysfs.borrow().get(path).cloned();
            return kept.ok_or_else(|| io::ErrorKind::NotFound.into());
        }
        let text = scxlab_vm::guest::Sys.read(path)?;
        self.sysfs.borrow_mut().insert(path.to_owned(), text.clone());
        Ok(text)
    }
}

impl Inputs {
    /// Returns inputs that consist of stored files, by the paths that the command named.
    pub fn kept(files: BTreeMap<String, Vec<u8>>, sysfs: BTreeMap<String, String>) -> Inputs {
        Inputs { files: files.into(), sysfs: sysfs.into(), is_closed: true }
    }

    /// Returns all files that were read, by the paths that the command named.
    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        self.files.borrow().clone()
    }

    pub fn sysfs(&self) -> BTreeMap<String, String> {
        self.sysfs.borrow().clone()
    }

    fn is_file(&self, name: &str) -> bool {
        self.files.borrow().contains_key(name) || (!self.is_closed && Path::new(name).is_file())
    }

    /// Reads a file that a result depends on.
    fn read(&self, path: &str) -> Result<Vec<u8>> {
        if let Some(bytes) = self.files.borrow().get(path) {
            return Ok(bytes.clone());
        }
        if self.is_closed {
            let error = io::Error::new(io::ErrorKind::NotFound, "it was not kept with the results");
            return Err(CliError::Read { path: path.into(), error }.into());
        }
        let bytes = read(path)?;
        self.files.borrow_mut().insert(path.to_owned(), bytes.clone());
        Ok(bytes)
    }

    /// Resolves `-m`: a file (by its ending or a slash), `host`, or else a preset or a spec.
    pub fn machine(&self, arg: &str) -> Result<Arc<Machine>> {
        let lower = arg.to_ascii_lowercase();
        let machine = if arg == "host" {
            Machine::from_sysfs(self)?
        } else if lower.ends_with(".xml") {
            Machine::from_lstopo(arg, &self.read_text(arg)?)?
        } else if lower.ends_with(".toml") {
            Machine::from_toml(arg, &self.read_text(arg)?)?
        } else if arg.contains('/') {
            let text = self.read_text(arg)?;
            if text.trim_start().starts_with('<') {
                Machine::from_lstopo(arg, &text)?
            } else {
                Machine::from_toml(arg, &text)?
            }
        } else {
            Machine::resolve(arg)?
        };
        Ok(Arc::new(machine))
    }

    /// Resolves `-w`: returns a program or, for a command, a program with only a name, and the
    /// command.
    pub fn workload(&self, arg: &str) -> Result<(Program, Option<Vec<String>>)> {
        match parse_workload_arg(arg)? {
            WorkloadArg::Program(program) => Ok((*program, None)),
            WorkloadArg::File(path) => {
                Ok((scxlab_workload::load(&path, &self.read_text(&path)?)?, None))
            }
            WorkloadArg::Command(words) => {
                let name = words.first().cloned().unwrap_or_default();
                Ok((Program { name, unit: "run".into(), ..Program::default() }, Some(words)))
            }
        }
    }

    /// Prepares all `-s` arguments for the simulated kernel.
    pub fn schedulers(&self, args: &[String], machine: &Arc<Machine>) -> Result<Vec<Prepared>> {
        let kernel = kernel_types();
        args.iter().map(|text| self.prepare(text, machine, &kernel)).collect()
    }

    /// Prepares one `-s` argument for a kernel with the given types.
    pub fn prepare(&self, text: &str, machine: &Arc<Machine>, kernel: &Btf) -> Result<Prepared> {
        let arg = SchedulerArg::parse(text)?;
        if arg.is_default_class() {
            return Ok(Prepared::default_class(text));
        }
        let (bytes, recipe_text);
        let source = match self.object_source(&arg.name)? {
            ObjectSource::Shipped(source) => source,
            ObjectSource::File(read) => {
                bytes = read;
                Source { name: &arg.name, bytes: &bytes }
            }
        };
        let choice = match arg.recipe.as_deref() {
            None => RecipeChoice::Auto,
            Some("none") => RecipeChoice::None,
            Some(name) => {
                recipe_text = self.recipe_text(name)?;
                RecipeChoice::Text(name, &recipe_text)
            }
        };
        Ok(Prepared::object(&arg, source, choice, machine, kernel)?)
    }

    /// Returns a shipped object, or a file's bytes.
    pub fn object_source(&self, name: &str) -> Result<ObjectSource> {
        if let Some(shipped) = scxlab_sched::find(name) {
            return Ok(ObjectSource::Shipped(Source { name: shipped.name, bytes: shipped.object }));
        }
        let is_path = name.contains('/') || name.ends_with(".o");
        if !is_path && !self.is_file(name) {
            let mut names = vec![DEFAULT_CLASS];
            names.extend(scxlab_sched::shipped().iter().map(|s| s.name));
            return Err(CliError::Unknown {
                kind: "scheduler",
                name: name.into(),
                there_are: format!("{} and object files (a path)", names.join(", ")),
            }
            .into());
        }
        Ok(ObjectSource::File(self.read(name)?))
    }

    pub fn recipe_text(&self, name: &str) -> Result<String> {
        if let Some((_, text)) = recipe::find(name) {
            return Ok(text.to_owned());
        }
        if !name.contains('/') && !name.ends_with(".toml") {
            let names: Vec<&str> = recipe::shipped().iter().map(|(n, _)| *n).collect();
            return Err(CliError::Unknown {
                kind: "recipe",
                name: name.into(),
                there_are: format!("{}, none and files (a path)", names.join(", ")),
            }
            .into());
        }
        self.read_text(name)
    }

    pub fn read_text(&self, path: &str) -> Result<String> {
        String::from_utf8(self.read(path)?)
            .map_err(|_| CliError::NotText { path: path.into() }.into())
    }
}

pub fn read(path: &str) -> Result<Vec<u8>> {
    use io::Read;
    let failed = |error| CliError::Read { path: path.into(), error };
    let mut bytes = Vec::new();
    let file = fs::File::open(path).map_err(failed)?;
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes).map_err(failed)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(failed(io::Error::other(format!("larger than {} MiB", MAX_BYTES >> 20))).into());
    }
    Ok(bytes)
}

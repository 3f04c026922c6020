// SPDX-License-Identifier: GPL-2.0-only
//! Every published version that `tools/pins.txt` names, on three machines, with its result or the
//! reason why it does not run.
//!
//! Owns: the result of each version, as shown in the docs. Does not: check the laws during a run;
//! `check()` does so for the newest versions.

use std::path::PathBuf;

use scxlab_lab::recipe;
use scxlab_loader::object::Object;

use super::{MS, attach_object, objects_dir};
use crate::{parallel, sim};

/// A version of a scheduler whose crate is `scx_<name>`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    pub name: &'static str,
    pub version: &'static str,
}

/// A desktop machine, a machine of several nodes, LLCs and threads, and a machine with more CPUs
/// than a number in a recipe's formula has bits (128).
pub const MACHINES: [&str; 3] = ["1n4c2t", "2n8l16c2t", "epyc-2s"];
const WORKLOAD: &str = "sleepers,tasks=24";

/// Returns the versions that `make scx-objects` takes; the newest of each scheduler comes first.
pub fn pinned() -> impl Iterator<Item = Version> {
    include_str!("../../../../tools/pins.txt").lines().filter_map(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["crate", name, version, _] => {
                Some(Version { name: name.strip_prefix("scx_")?, version })
            }
            _ => None,
        }
    })
}

impl Version {
    pub fn file_name(&self) -> String {
        format!("{}-{}.bpf.o", self.name, self.version)
    }

    pub fn path(&self) -> PathBuf {
        objects_dir().join(self.file_name())
    }

    pub fn bytes(&self) -> Vec<u8> {
        let path = self.path();
        std::fs::read(&path).unwrap_or_else(|error| {
            panic!("{}: {error}; `make scx-objects` takes the objects", path.display())
        })
    }

    /// Parses the object; None if that fails.
    pub fn object(&self) -> Option<Object> {
        Object::parse(&self.bytes(), &self.file_name()).ok()
    }

    /// Runs the version on a machine. Returns as text whether it runs, and without which parts of
    /// the recipe, or the reason why it is refused. Panics if the kernel ejects the scheduler.
    fn outcome(&self, machine: &str) -> String {
        let mut k = sim::kernel(machine, WORKLOAD, 1);
        let absent = match attach_object(&mut k, &self.file_name(), &self.bytes(), machine) {
            Err(why) => return format!("refused: {why}"),
            Ok((_, prepared)) => prepared.recipe.map_or_else(Vec::new, |r| r.absent),
        };
        k.start();
        k.advance(10 * MS);
        assert!(k.ext.exits.is_empty(), "{self:?} on {machine}: {:?}", k.ext.exits);
        if absent.is_empty() {
            "runs".into()
        } else {
            format!("runs without {}", absent.join(", "))
        }
    }

    /// Returns the common outcome of all machines, or one outcome per machine if they differ.
    fn outcomes(&self) -> String {
        let outcomes = MACHINES.map(|machine| self.outcome(machine));
        if outcomes.iter().all(|o| *o == outcomes[0]) {
            return outcomes[0].clone();
        }
        let each = MACHINES.iter().zip(&outcomes).map(|(m, o)| format!("{m}: {o}"));
        each.collect::<Vec<_>>().join("; ")
    }

    /// Returns a Markdown link to the first shipped recipe that lists this version of this crate,
    /// or "none".
    fn recipe(&self) -> String {
        let is_for = |name: &&str| {
            let (recipe, _) = recipe::find(name).expect("it is shipped");
            crates(&recipe.source).any(|c| c == self.name)
                && recipe.versions.iter().any(|v| v == self.version)
        };
        let found = recipe::shipped().iter().map(|(name, _)| *name).find(is_for);
        found.map_or("none".into(), |name| format!("[{name}](../../recipes/{name}.toml)"))
    }
}

/// Returns the crates that a recipe is for, from its `source`: "scx_a, files" or "scx_a and scx_b,
/// files".
pub fn crates(source: &str) -> impl Iterator<Item = &str> {
    let head = source.split(',').next().unwrap_or_default();
    head.split(' ').filter_map(|word| word.strip_prefix("scx_"))
}

/// Returns the table rows; versions of one scheduler with the same outcome share a row.
pub fn rows() -> String {
    let all: Vec<Version> = pinned().collect();
    let outcomes = parallel::map(&all, Version::outcomes);
    let mut rows: Vec<(&str, String, String)> = Vec::new();
    for (version, outcome) in all.iter().zip(outcomes) {
        let what = format!("{} | {outcome}", version.recipe());
        match rows.last_mut() {
            Some((name, versions, same)) if *name == version.name && *same == what => {
                *versions += &format!(", {}", version.version);
            }
            _ => rows.push((version.name, version.version.to_owned(), what)),
        }
    }
    let row = |(name, versions, what)| format!("| scx_{name} | {versions} | {what} |\n");
    rows.into_iter().map(row).collect()
}

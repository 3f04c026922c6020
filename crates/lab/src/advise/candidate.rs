// SPDX-License-Identifier: GPL-2.0-only
//! Candidates: the schedulers, with settings of their knobs, among which advice is sought.
//!
//! Owns: the order of candidates, the default class first; the form of a knobs file
//! (`NAME.knobs.toml`), which declares the values worth trying.
//! Does not: know a scheduler's knobs, or list folders.

#[cfg(test)]
mod tests;

use indexmap::IndexMap;
use scxlab_machine::Machine;
use scxlab_workload::Program;
use serde::Deserialize;

use crate::input::{InputError, InputFiles, SchedulerInput, read_text};
use crate::prepare::{PrepareError, Prepared};
use crate::scheduler::DEFAULT_CLASS;

/// A scheduler to try.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub prepared: Prepared,
    /// Index of the scheduler whose knobs are varied; None if the user gave the candidate as it is.
    family: Option<usize>,
    /// Knobs that differ from the scheduler's defaults.
    settings: Vec<(String, String)>,
}

impl Candidate {
    /// Returns the candidate as `-s` takes it.
    pub fn text(&self) -> &str {
        self.prepared.label()
    }

    /// Tells whether all knobs of the scheduler have their defaults, or the user gave the
    /// candidate.
    pub fn has_defaults(&self) -> bool {
        self.settings.is_empty()
    }
}

/// A scheduler with the values of its knobs that are worth trying.
#[derive(Clone, Debug)]
struct Family {
    /// Name or path.
    base: String,
    knobs: IndexMap<String, KnobRange>,
}

/// The values of a knob that are worth trying, as a knobs file declares them.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KnobRange {
    /// Tells in one sentence what the values are good for.
    pub doc: String,
    /// Values, besides the default.
    #[serde(rename = "try")]
    pub values: Vec<KnobValue>,
    /// Condition under which the values are tried; None: always.
    #[serde(default)]
    pub when: Option<When>,
}

/// A knob's value, as the user would write it behind `KNOB=`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum KnobValue {
    Number(i64),
    Switch(bool),
    Name(String),
}

impl std::fmt::Display for KnobValue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            KnobValue::Number(number) => number.fmt(f),
            KnobValue::Switch(on) => on.fmt(f),
            KnobValue::Name(name) => name.fmt(f),
        }
    }
}

/// A property of the machine or the workload without which a knob has no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    /// The machine has several NUMA nodes.
    Nodes,
    /// The machine has several last-level caches.
    Caches,
    /// The workload has cgroups.
    Cgroups,
    /// The workload has guests.
    Guests,
}

impl When {
    fn holds(self, machine: &Machine, program: &Program) -> bool {
        match self {
            When::Nodes => machine.topology.nodes().len() > 1,
            When::Caches => machine.topology.llcs().len() > 1,
            When::Cgroups => !program.cgroups.is_empty() || !program.guests.is_empty(),
            When::Guests => !program.guests.is_empty(),
        }
    }
}

/// Knobs file of the default class.
pub const EEVDF_KNOBS: &str = include_str!("eevdf.knobs.toml");

/// Parses a knobs file. `name` is for messages.
pub fn parse_knobs(name: &str, text: &str) -> Result<IndexMap<String, KnobRange>, CandidateError> {
    toml::from_str(text).map_err(|error| CandidateError::Knobs {
        file: name.to_owned(),
        why: error.to_string().trim_end().to_owned(),
    })
}

/// Where candidates come from.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// Candidates of the user, tried as they are, instead of the shipped schedulers.
    pub given: Vec<String>,
    /// Paths of objects, each tried with its knobs.
    pub objects: Vec<String>,
}

/// A scheduler that cannot be a candidate.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct LeftOut {
    pub scheduler: String,
    pub why: String,
}

/// Reason why there are no candidates.
#[derive(Debug, thiserror::Error)]
pub enum CandidateError {
    #[error("{file}: {why}")]
    Knobs { file: String, why: String },
    #[error(transparent)]
    Input(#[from] InputError),
    #[error(transparent)]
    Prepare(#[from] PrepareError),
}

/// All candidates. The first is the default class.
pub struct Candidates<'a> {
    origin: Origin<'a>,
    all: Vec<Candidate>,
    families: Vec<Family>,
    /// Schedulers that cannot be prepared for this machine and kernel.
    pub left_out: Vec<LeftOut>,
}

/// What candidates are made for, and the files that they may name.
#[derive(Clone, Copy)]
pub struct Origin<'a> {
    pub machine: &'a Machine,
    pub program: &'a Program,
    pub files: &'a dyn InputFiles,
}

impl<'a> Candidates<'a> {
    /// Prepares all candidates: the default class, then each scheduler with its defaults and with
    /// each single value of its knobs file. The default class has such a file too.
    pub fn collect(
        sources: &Sources,
        origin: Origin<'a>,
    ) -> Result<Candidates<'a>, CandidateError> {
        let mut found =
            Candidates { origin, all: Vec::new(), families: Vec::new(), left_out: Vec::new() };
        found.all.push(given(DEFAULT_CLASS, origin)?);
        for text in &sources.given {
            let candidate = given(text, origin)?;
            if !found.has(candidate.text()) {
                found.all.push(candidate);
            }
        }
        if sources.given.is_empty() {
            found.add_family(DEFAULT_CLASS, parse_knobs("eevdf.knobs.toml", EEVDF_KNOBS)?);
            for shipped in scxlab_sched::shipped() {
                let file = format!("bpf/sched/{}/knobs.toml", shipped.name);
                found.add_family(shipped.name, parse_knobs(&file, shipped.knobs)?);
            }
        }
        for path in &sources.objects {
            let knobs = match knobs_file(path).filter(|file| origin.files.is_file(file)) {
                Some(file) => parse_knobs(&file, &read_text(&file, origin.files)?)?,
                None => IndexMap::new(),
            };
            found.add_family(path, knobs);
        }
        Ok(found)
    }

    /// Returns the candidates. A candidate's index never changes.
    pub fn all(&self) -> &[Candidate] {
        &self.all
    }

    fn has(&self, text: &str) -> bool {
        self.all.iter().any(|candidate| candidate.text() == text)
    }

    fn add_family(&mut self, base: &str, mut knobs: IndexMap<String, KnobRange>) {
        let origin = self.origin;
        knobs.retain(|_, range| {
            range.when.is_none_or(|when| when.holds(origin.machine, origin.program))
        });
        self.families.push(Family { base: base.to_owned(), knobs });
        let family = self.families.len() - 1;
        if self.add(family, Vec::new()).is_some() {
            for settings in self.variants(family, &[]) {
                self.add(family, settings);
            }
        }
    }

    /// Adds a setting of a family. Returns the candidate's index; None if the candidate cannot be
    /// prepared.
    fn add(&mut self, family: usize, settings: Vec<(String, String)>) -> Option<usize> {
        let mut text = self.families[family].base.clone();
        settings.iter().for_each(|(knob, value)| text.push_str(&format!(",{knob}={value}")));
        if let Some(known) = self.all.iter().position(|candidate| candidate.text() == text) {
            return Some(known);
        }
        match given(&text, self.origin) {
            Ok(candidate) => {
                self.all.push(Candidate { family: Some(family), settings, ..candidate });
                Some(self.all.len() - 1)
            }
            Err(error) => {
                self.left_out.push(LeftOut { scheduler: text, why: error.to_string() });
                None
            }
        }
    }

    /// Returns the settings that differ from these in one knob, in the order of the knobs file.
    fn variants(&self, family: usize, settings: &[(String, String)]) -> Vec<Vec<(String, String)>> {
        let knobs = &self.families[family].knobs;
        let mut all = Vec::new();
        for (knob, range) in knobs {
            let present = settings.iter().find(|(name, _)| name == knob).map(|(_, value)| value);
            let values = range.values.iter().map(|value| Some(value.to_string()));
            for value in values.chain([None]).filter(|value| value.as_ref() != present) {
                let mut variant: Vec<(String, String)> =
                    settings.iter().filter(|(name, _)| name != knob).cloned().collect();
                variant.extend(value.map(|value| (knob.clone(), value)));
                variant.sort_by_key(|(name, _)| knobs.get_index_of(name));
                if variant != settings {
                    all.push(variant);
                }
            }
        }
        all
    }

    /// Adds the candidates that differ from this one in one knob, and returns the indices of those
    /// that are new.
    pub fn add_neighbours(&mut self, of: usize) -> Vec<usize> {
        let Some(family) = self.all[of].family else { return Vec::new() };
        let first_new = self.all.len();
        for settings in self.variants(family, &self.all[of].settings.clone()) {
            self.add(family, settings);
        }
        (first_new..self.all.len()).collect()
    }
}

fn given(text: &str, origin: Origin<'_>) -> Result<Candidate, CandidateError> {
    let input = SchedulerInput::resolve(text, origin.files)?;
    let prepared = Prepared::simulated(&input, origin.machine)?;
    Ok(Candidate { prepared, family: None, settings: Vec::new() })
}

/// Returns the path of the knobs file beside an object.
fn knobs_file(object: &str) -> Option<String> {
    let base = object.strip_suffix(".o")?;
    Some(format!("{}.knobs.toml", base.strip_suffix(".bpf").unwrap_or(base)))
}

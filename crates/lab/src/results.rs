// SPDX-License-Identifier: GPL-2.0-only
//! A results file: the resolved request, all runs, all comparisons.
//!
//! Owns: the manifest, from which any figure can be reproduced. The manifest contains no clock
//! time, so equal requests give equal manifests. `docs/reference/results.schema.json` describes the
//! format.

use indexmap::IndexMap;
use scxlab_machine::hash::HashWriter;
use scxlab_workload::program::TimeSpan;
use serde::{Deserialize, Serialize};

use crate::agreement::{Agreement, agreement};
use crate::compare::{Comparison, compare};
use crate::input::Workload;
use crate::prepare::Prepared;
use crate::run::Run;
use crate::session::{PERTURB, Session};

/// All results of a session.
#[derive(Clone, Debug, Serialize)]
pub struct Results {
    pub manifest: Manifest,
    pub runs: Vec<Run>,
    pub comparisons: Vec<Comparison>,
    /// One entry for each scheduler, quantity and target after the first target; empty if there is
    /// only one target.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub agreements: Vec<Agreement>,
}

/// The resolved request, defaults included.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Manifest {
    pub scxlab: Version,
    /// Name of the first target, which is also the first of `targets`.
    pub target: String,
    pub targets: Vec<String>,
    pub schedulers: Vec<SchedulerEntry>,
    pub workload: WorkloadEntry,
    pub machine: MachineEntry,
    pub runs: u32,
    pub seed: u64,
    /// Duration of each run; None if a run lasts until the workload ends.
    pub duration_ns: Option<u64>,
    pub start_offset_max_ns: u64,
    pub compute_noise_permille: u32,
    /// Automatic NUMA balancing, if the user chose it: `off`, `on` or `ext`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa_balancing: Option<String>,
    /// Time at which the schedulers were attached; None: before the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attach_after_ns: Option<u64>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Version {
    pub version: String,
    /// Commit that the program was built from, if the build knew it.
    pub commit: Option<String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SchedulerEntry {
    /// The scheduler as given with `-s`.
    pub scheduler: String,
    /// The object of the scheduler; None if the scheduler is the default class.
    pub object: Option<ObjectEntry>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ObjectEntry {
    pub name: String,
    pub ops: String,
    pub hash: String,
    pub recipe: Option<RecipeEntry>,
    /// All knobs with their values in this session.
    pub knobs: IndexMap<String, String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RecipeEntry {
    pub name: String,
    pub hash: String,
    pub params: IndexMap<String, String>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct WorkloadEntry {
    /// The workload as given with `-w`.
    pub workload: String,
    pub name: String,
    /// Name of one unit of work, in the singular.
    pub unit: String,
    /// Hash of the parsed program, independent of its text form.
    pub hash: String,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct MachineEntry {
    /// The machine as given with `-m`.
    pub machine: String,
    pub name: String,
    pub description: String,
    pub nr_cpus: usize,
    /// Hash of all properties of the machine that can change a run.
    pub fingerprint: String,
}

/// The parts of the user's request that `Session` does not keep: the arguments `-w` and `-m` as
/// given, the targets, the tolerance, and the version of the program.
#[derive(Clone, Debug)]
pub struct Request {
    pub version: Version,
    pub workload: String,
    pub machine: String,
    /// Targets (`sim`, `vm`, `host`) in the order in which runs were made.
    pub targets: Vec<String>,
    /// Tolerance in percent by which targets may differ.
    pub tolerance_percent: u32,
}

impl Results {
    pub fn new(session: &Session, request: Request, runs: Vec<Run>) -> Results {
        let schedulers = session.schedulers.len().max(1);
        let comparisons = compare(&runs, session.runs as usize, schedulers);
        let groups: Vec<&[Run]> = runs.chunks(session.runs.max(1) as usize).collect();
        let later = groups.iter().enumerate().skip(schedulers);
        let agreements = later.flat_map(|(at, other)| {
            agreement(groups[at % schedulers], other, request.tolerance_percent)
        });
        let agreements = agreements.collect();
        Results { manifest: Manifest::of(session, request), runs, comparisons, agreements }
    }

    /// Returns the contents of the results file.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("results are plain data");
        text.push('\n');
        text
    }
}

impl Manifest {
    /// Returns the command that makes one of the runs again.
    pub fn command(&self, run: &Run) -> String {
        let mut command = format!("scxlab run -s {}", quoted(&run.scheduler));
        let mut add = |flag: &str, value: &str| {
            command.push_str(&format!(" {flag} {}", quoted(value)));
        };
        add("-w", &self.workload.workload);
        add("-m", &self.machine.machine);
        if run.target != "sim" {
            add("--on", &run.target);
        }
        add("--seed", &run.seed.to_string());
        if let Some(ns) = self.duration_ns {
            add("--duration", &TimeSpan(ns).to_string());
        }
        if self.start_offset_max_ns != PERTURB.start_offset_max {
            add("--start-offset", &TimeSpan(self.start_offset_max_ns).to_string());
        }
        if self.compute_noise_permille != PERTURB.compute_noise_permille {
            add("--compute-noise", &self.compute_noise_permille.to_string());
        }
        if let Some(mode) = &self.numa_balancing {
            add("--numa-balancing", mode);
        }
        if let Some(ns) = self.attach_after_ns {
            add("--attach-after", &TimeSpan(ns).to_string());
        }
        command
    }

    /// Resolves a request.
    pub fn of(session: &Session, request: Request) -> Manifest {
        let machine = &session.machine;
        // The text of a recording's program can be larger than memory.
        let mut hash = HashWriter::default();
        let written = match &session.workload {
            Workload::Program(program) => serde_json::to_writer(&mut hash, program),
            Workload::Command(words) => serde_json::to_writer(&mut hash, words),
        };
        written.expect("a workload is plain data");
        Manifest {
            scxlab: request.version,
            target: request.targets.first().cloned().unwrap_or_default(),
            targets: request.targets,
            schedulers: session.schedulers.iter().map(scheduler).collect(),
            workload: WorkloadEntry {
                workload: request.workload,
                name: session.workload.name().to_owned(),
                unit: session.workload.unit().to_owned(),
                hash: hex(hash.finish()),
            },
            machine: MachineEntry {
                machine: request.machine,
                name: machine.name.clone(),
                description: machine.description.clone(),
                nr_cpus: machine.topology.nr_cpus(),
                fingerprint: hex(machine.fingerprint()),
            },
            runs: session.runs,
            seed: session.seed,
            duration_ns: session.duration.or(session.workload.duration()),
            start_offset_max_ns: session.perturb.start_offset_max,
            compute_noise_permille: session.perturb.compute_noise_permille,
            numa_balancing: session.numa_balancing.map(|mode| mode.name().to_owned()),
            attach_after_ns: session.attach_after,
        }
    }
}

fn scheduler(prepared: &Prepared) -> SchedulerEntry {
    let object = prepared.object.as_ref().map(|o| ObjectEntry {
        name: o.open.object().name.clone(),
        ops: o.ops_name.clone(),
        hash: hex(o.hash),
        recipe: o.recipe.as_ref().map(|r| RecipeEntry {
            name: r.recipe.name.clone(),
            hash: hex(r.hash),
            params: r.applied.params.iter().map(|(n, v)| (n.clone(), v.to_string())).collect(),
        }),
        knobs: o.knobs.clone(),
    });
    SchedulerEntry { scheduler: prepared.label().to_owned(), object }
}

/// Returns a word of a command as a shell reads it.
pub fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ",=./_-+:".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', r"'\''")),
    }
}

fn hex(hash: u64) -> String {
    format!("{hash:016x}")
}

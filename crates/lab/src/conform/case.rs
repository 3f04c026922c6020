// SPDX-License-Identifier: GPL-2.0-only
//! Conformance cases. Each has a workload, knobs for the selftest scheduler `tracer`, and actions
//! from outside the workload at given times.
//!
//! Cases leave generous gaps between actions, because an emulated kernel can be late by
//! milliseconds. No case depends on how often a slice ends.

use indexmap::IndexMap;
use scxlab_workload::Program;
use scxlab_workload::program::cpus::CpuList;
use scxlab_workload::program::{PolicyDef, TimeSpan};
use serde::Deserialize;

use crate::session::MAX_LENGTH;

/// A conformance case.
#[derive(Clone, Debug)]
pub struct Case {
    pub name: String,
    pub doc: String,
    pub knobs: IndexMap<String, toml::Value>,
    pub workload: Program,
    pub duration: TimeSpan,
    /// Tasks whose operations are compared; `-` stands for operations about no task.
    pub watch: Vec<String>,
    /// Operations that are not compared, each with the reason.
    pub ignore: IndexMap<String, String>,
    pub timeline: Vec<Timed>,
    /// Whether ticks and ends of slices are compared. They are compared if the scheduler is the
    /// selftest `tracer`, because its knobs determine when slices end.
    pub compare_turns: bool,
}

/// An action from outside the workload, with its time.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Timed {
    /// Time since the start of the workload.
    pub at: TimeSpan,
    #[serde(rename = "do")]
    pub action: Action,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    Nice {
        task: String,
        value: i8,
    },
    Affinity {
        task: String,
        cpus: CpuList,
    },
    Policy {
        task: String,
        policy: PolicyDef,
    },
    /// Moves the task to a cgroup of the workload.
    Cgroup {
        task: String,
        path: String,
    },
    Weight {
        path: String,
        weight: u32,
    },
    Hotplug {
        cpu: u32,
        online: bool,
    },
}

#[derive(Debug, thiserror::Error)]
pub enum CaseError {
    #[error("{name}: {why}")]
    Document { name: String, why: String },
    #[error(transparent)]
    Workload(#[from] scxlab_workload::WorkloadError),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseFile {
    doc: String,
    #[serde(default)]
    knobs: IndexMap<String, toml::Value>,
    duration: TimeSpan,
    watch: Vec<String>,
    #[serde(default)]
    ignore: IndexMap<String, String>,
    #[serde(default)]
    at: Vec<Timed>,
    /// A workload in its TOML form.
    workload: String,
}

impl Case {
    /// Parses a case; `name` is the file name.
    pub fn parse(name: &str, text: &str) -> Result<Case, CaseError> {
        let file: CaseFile = toml::from_str(text)
            .map_err(|e| CaseError::Document { name: name.into(), why: e.to_string() })?;
        if file.duration.0 > MAX_LENGTH {
            let why = format!("the duration is {}; the maximum for a case is a day", file.duration);
            return Err(CaseError::Document { name: name.into(), why });
        }
        let mut timeline = file.at;
        timeline.sort_by_key(|t| t.at.0);
        Ok(Case {
            name: name.trim_end_matches(".toml").to_owned(),
            doc: file.doc,
            knobs: file.knobs,
            workload: scxlab_workload::load(&format!("{name}.workload.toml"), &file.workload)?,
            duration: file.duration,
            watch: file.watch,
            ignore: file.ignore,
            timeline,
            compare_turns: true,
        })
    }

    /// Returns the scheduler `tracer` with the case's knobs, in the form of a `-s` argument.
    pub fn tracer(&self) -> String {
        let mut text = "tracer".to_owned();
        for (name, value) in &self.knobs {
            let value = match value {
                // A single letter stands for its character code, which is the value of a knob of
                // one byte.
                toml::Value::String(s) if s.len() == 1 => s.as_bytes()[0].to_string(),
                toml::Value::String(s) => s.clone(),
                other => other.to_string(),
            };
            text.push_str(&format!(",{name}={value}"));
        }
        text
    }
}

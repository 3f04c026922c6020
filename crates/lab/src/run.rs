// SPDX-License-Identifier: GPL-2.0-only
//! What every target returns: the measured result of one scheduler, workload, machine and seed.
//!
//! Owns: names and units of metrics; they are stable. Does not: know which target made it.

use indexmap::IndexMap;
use serde::Serialize;

/// One run's result.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// As given with `-s`, knobs included.
    pub scheduler: String,
    pub seed: u64,
    /// `sim`, `vm` or `host`.
    pub target: &'static str,
    pub exit: Exit,
    /// Rolling hash of every event, in hexadecimal.
    pub trace_hash: String,
    pub wall_ns: u64,
    pub virtual_ns: u64,
    pub metrics: IndexMap<String, Metric>,
    pub tasks: Vec<TaskResult>,
    pub cgroups: Vec<CgroupResult>,
    /// What a reader should know: parts of the workload that are not modelled, why the run stopped early.
    pub notes: Vec<String>,
}

/// How the scheduler left: kind `none` when it did not.
#[derive(Clone, Debug, Serialize)]
pub struct Exit {
    pub kind: String,
    pub code: i64,
    pub message: String,
    /// The kernel's debug dump, of errors.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub dump: String,
}

impl Exit {
    pub fn none() -> Self {
        Exit { kind: "none".into(), code: 0, message: String::new(), dump: String::new() }
    }
}

/// A measured value with its unit.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Metric {
    pub value: f64,
    pub unit: &'static str,
}

/// What a task got.
#[derive(Clone, Debug, Serialize)]
pub struct TaskResult {
    pub name: String,
    pub nice: i8,
    pub cgroup: String,
    pub run_ns: u64,
    pub wait_ns: u64,
    pub switches: u64,
    pub migrations: u64,
}

/// What a cgroup's own tasks got, beside what its weight promises.
#[derive(Clone, Debug, Serialize)]
pub struct CgroupResult {
    pub path: String,
    pub weight: u32,
    pub run_ns: u64,
    /// Of all CPU time used, thousandths.
    pub share_permille: f64,
}

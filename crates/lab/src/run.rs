// SPDX-License-Identifier: GPL-2.0-only
//! What every target returns: the measured result of one scheduler, workload, machine and seed.
//!
//! Owns: the form of a result; names and units are stable (`docs/reference/results.schema.json`).
//! Does not: know which target made it.

use std::borrow::Cow;

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
    pub stop: StopReason,
    /// Rolling hash of every event, in hexadecimal.
    pub trace_hash: String,
    pub wall_ns: u64,
    pub virtual_ns: u64,
    pub metrics: IndexMap<String, Metric>,
    pub tasks: Vec<TaskResult>,
    pub cgroups: Vec<CgroupResult>,
    /// What a reader should know: parts of the workload that are not modelled, system calls that failed.
    pub notes: Vec<String>,
}

impl Run {
    /// Whether the scheduler stayed and the workload went on to its end.
    pub fn went_well(&self) -> bool {
        self.exit.kind == Exit::NONE && self.stop.is_regular()
    }
}

/// How the scheduler left: kind `none` when it did not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Exit {
    pub kind: String,
    pub code: i64,
    pub message: String,
    /// The kernel's debug dump, of errors.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub dump: String,
}

impl Exit {
    /// The kind of a scheduler that stayed.
    pub const NONE: &'static str = "none";

    pub fn none() -> Self {
        Exit { kind: Exit::NONE.into(), code: 0, message: String::new(), dump: String::new() }
    }
}

/// Why the run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StopReason {
    /// `duration`, `all_exited`, `deadlock`, `livelock`, `event_limit` or `out_of_memory`.
    pub kind: &'static str,
    /// The reason in words; empty when there is nothing to say.
    pub message: String,
}

impl StopReason {
    pub fn is_regular(&self) -> bool {
        matches!(self.kind, "duration" | "all_exited")
    }
}

/// A measured value with its unit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Metric {
    pub value: f64,
    /// `1` for a count.
    pub unit: Cow<'static, str>,
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

/// What a cgroup got, beside what its weight promises among the children of its parent.
#[derive(Clone, Debug, Serialize)]
pub struct CgroupResult {
    pub path: String,
    pub weight: u32,
    /// CPU time of its tasks and of those below it.
    pub run_ns: u64,
    /// Of the CPU time of it and its siblings, thousandths.
    pub share_permille: f64,
    /// Its weight in the sum of its and its siblings' weights, thousandths. Siblings that used no CPU time
    /// do not count.
    pub weight_permille: f64,
}

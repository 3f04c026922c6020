// SPDX-License-Identifier: GPL-2.0-only
//! What every target returns: the measured result of one scheduler, workload, machine and seed.
//!
//! Owns: the form of a result; names and units are stable (`docs/reference/results.schema.json`).
//! Does not: know which target made it.

use std::borrow::Cow;

use indexmap::IndexMap;
use scxlab_workload::exec::LoopTotals;
use serde::{Deserialize, Serialize};

/// One run's result.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Run {
    /// As given with `-s`, knobs included.
    pub scheduler: String,
    pub seed: u64,
    /// `sim`, `vm` or `host`.
    pub target: Cow<'static, str>,
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    pub kind: String,
    pub code: i64,
    pub message: String,
    /// The kernel's debug dump, of errors.
    #[serde(default, skip_serializing_if = "String::is_empty")]
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
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopReason {
    /// `duration`, `all_exited`, `deadlock`, `livelock`, `event_limit`, `out_of_memory`
    /// or, on a real kernel, `interrupted`.
    pub kind: Cow<'static, str>,
    /// The reason in words; empty when there is nothing to say.
    pub message: String,
}

impl StopReason {
    pub fn is_regular(&self) -> bool {
        matches!(&*self.kind, "duration" | "all_exited")
    }
}

/// A measured value with its unit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Metric {
    pub value: f64,
    /// `1` for a count.
    pub unit: Cow<'static, str>,
}

/// Accumulates metrics in the order in which they are shown. Their names are the same for every target
/// (`docs/reference/metrics.md`); one that a target does not measure is absent.
#[derive(Debug, Default)]
pub struct MetricTable(pub IndexMap<String, Metric>);

impl MetricTable {
    pub fn put(&mut self, name: impl Into<String>, value: f64, unit: impl Into<Cow<'static, str>>) {
        self.0.insert(name.into(), Metric { value, unit: unit.into() });
    }

    pub fn count(&mut self, name: impl Into<String>, value: u64) {
        self.put(name, value as f64, "1");
    }

    pub fn ns(&mut self, name: impl Into<String>, value: u64) {
        self.put(name, value as f64, "ns");
    }

    /// The five numbers of a distribution, which is asked by thousandths.
    pub fn times(&mut self, name: &str, max: u64, permille: impl Fn(u32) -> u64) {
        for (suffix, at) in [("p50", 500), ("p90", 900), ("p99", 990), ("p99.9", 999)] {
            self.ns(format!("{name}_{suffix}"), permille(at));
        }
        self.ns(format!("{name}_max"), max);
    }

    /// What rt-app's log would say, over all threads; absent when nothing loops.
    pub fn loops(&mut self, totals: &[LoopTotals]) {
        let loops: u64 = totals.iter().map(|l| l.loops).sum();
        let Some(slack_min) = totals.iter().filter_map(|l| l.slack_min).min() else {
            return;
        };
        self.put("timer_slack_min", slack_min as f64, "ns");
        let mean = |sum: f64| if loops == 0 { 0.0 } else { sum / loops as f64 };
        self.put("timer_slack_mean", mean(totals.iter().map(|l| l.slack_sum as f64).sum()), "ns");
        let latencies = totals.iter().map(|l| l.wu_lat_sum as f64).sum();
        self.put("timer_latency_mean", mean(latencies), "ns");
        self.ns("timer_latency_max", totals.iter().map(|l| l.wu_lat_max).max().unwrap_or(0));
        self.count("timers_missed", totals.iter().map(|l| l.missed).sum());
    }
}

/// What a task got.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct TaskResult {
    pub name: String,
    pub nice: i8,
    pub cgroup: String,
    pub run_ns: u64,
    pub wait_ns: u64,
    pub switches: u64,
    pub migrations: u64,
    /// What its scheduler counted of it (`counters.rs`).
    #[serde(default, skip_serializing_if = "IndexMap::is_empty")]
    pub counters: IndexMap<String, u64>,
}

/// What a cgroup got, beside what its weight promises among the children of its parent.
#[derive(Clone, Debug, Serialize, Deserialize)]
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
    /// Of the time in which two or more of its own tasks were runnable and at least one ran, the part in which all did, or as
    /// many as there are CPUs; thousandths. None: there was no such time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub together_permille: Option<f64>,
}

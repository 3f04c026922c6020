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
    /// Whether its figures are the scheduler's alone, over the whole workload: it stayed, and the run ended regularly.
    /// Only such runs are averaged, compared and held against other targets.
    pub counts: bool,
    /// Tasks that could run and never did.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub never_ran: Vec<NeverRan>,
    /// Parts of the scheduler that did not run, frontend included.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub left_out: Vec<String>,
    /// Rolling hash of every event, in hexadecimal.
    pub trace_hash: String,
    /// What its trace has of a run on a real kernel; None if it was not traced. Simulated runs lose no events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<Traced>,
    pub wall_ns: u64,
    pub virtual_ns: u64,
    pub metrics: IndexMap<String, Metric>,
    pub tasks: Vec<TaskResult>,
    pub cgroups: Vec<CgroupResult>,
    /// What a reader should know: parts of the workload that are not modelled, system calls that failed.
    pub notes: Vec<String>,
}

impl Run {
    /// The run, judged: fills in what follows from the rest of it.
    pub fn judged(self) -> Run {
        let counts = !self.was_ejected() && self.stop.is_regular();
        let never_ran = never_ran(&self.tasks, self.virtual_ns);
        Run { counts, never_ran, ..self }
    }

    /// A run of a session that was interrupted before its turn.
    pub fn not_begun(scheduler: &str, seed: u64, why: &str) -> Run {
        Run {
            scheduler: scheduler.to_owned(),
            seed,
            target: "sim".into(),
            exit: Exit::none(),
            stop: StopReason {
                kind: StopReason::INTERRUPTED.into(),
                message: format!("not begun: {why}"),
            },
            counts: false,
            never_ran: Vec::new(),
            left_out: Vec::new(),
            trace_hash: String::new(),
            trace: None,
            wall_ns: 0,
            virtual_ns: 0,
            metrics: IndexMap::new(),
            tasks: Vec::new(),
            cgroups: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Whether the scheduler left before the end, for whatever reason.
    pub fn was_ejected(&self) -> bool {
        self.exit.kind != Exit::NONE
    }

    /// Whether the scheduler stayed, every task ran, and the workload went on to its end.
    pub fn went_well(&self) -> bool {
        self.counts && self.never_ran.is_empty()
    }
}

/// How much of a run is in its trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traced {
    pub events: u64,
    /// Events that found no room.
    pub lost: u64,
}

/// A task that was runnable and never ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NeverRan {
    pub name: String,
    /// How long it had waited when the run ended.
    pub wait_ns: u64,
}

/// Of the tasks that never ran, those that waited for at least a hundredth of the run. One that becomes runnable later
/// is not told from one whose turn was about to come; after the kernel's default slice it is, however long the run.
fn never_ran(tasks: &[TaskResult], length_ns: u64) -> Vec<NeverRan> {
    let grace = (length_ns / 100).min(SLICE_DFL_NS);
    let waited = |t: &TaskResult| t.wait_ns.filter(|ns| t.run_ns == 0 && *ns > 0 && *ns >= grace);
    let found = tasks.iter().filter_map(|t| Some((t, waited(t)?)));
    found.map(|(t, wait_ns)| NeverRan { name: t.name.clone(), wait_ns }).collect()
}

/// `SCX_SLICE_DFL`
const SLICE_DFL_NS: u64 = 20_000_000;

/// How the scheduler left: kind `none` when it did not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    pub kind: String,
    pub code: i64,
    pub message: String,
    /// When, from the start of the run; absent if it stayed, or if nothing tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub at_ns: Option<u64>,
    /// Where in the scheduler it comes from, and of a stall what the task waited for; a real kernel does not tell.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub origin: Vec<String>,
    /// The kernel's debug dump, of errors.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub dump: String,
}

impl Exit {
    /// The kind of a scheduler that stayed.
    pub const NONE: &'static str = "none";

    pub fn none() -> Self {
        Exit {
            kind: Exit::NONE.into(),
            code: 0,
            message: String::new(),
            at_ns: None,
            origin: Vec::new(),
            dump: String::new(),
        }
    }
}

/// Why the run ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopReason {
    /// `duration`, `all_exited`, `deadlock`, `livelock`, `event_limit`, `out_of_memory` or `interrupted`.
    pub kind: Cow<'static, str>,
    /// The reason in words; empty when there is nothing to say.
    pub message: String,
}

impl StopReason {
    /// The kind of a run that something outside of it ended.
    pub const INTERRUPTED: &'static str = "interrupted";

    pub fn was_interrupted(&self) -> bool {
        self.kind == Self::INTERRUPTED
    }

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

    /// The five numbers of a distribution of `count` times, which is asked by thousandths; none of an empty one.
    pub fn times(&mut self, name: &str, count: u64, max: u64, permille: impl Fn(u32) -> u64) {
        if count == 0 {
            return;
        }
        for (suffix, at) in [("p50", 500), ("p90", 900), ("p99", 990), ("p99.9", 999)] {
            self.ns(format!("{name}_{suffix}"), permille(at));
        }
        self.ns(format!("{name}_max"), max);
    }

    /// A quotient; absent when there is nothing to divide by.
    pub fn ratio(
        &mut self,
        name: impl Into<String>,
        sum: f64,
        count: f64,
        unit: impl Into<Cow<'static, str>>,
    ) {
        if count > 0.0 {
            self.put(name, sum / count, unit);
        }
    }

    /// What rt-app's log would say, over all threads. Means are over the loops that have the value: a loop without a
    /// timer has no slack, and one that missed its last timer no latency.
    pub fn loops(&mut self, totals: &[LoopTotals]) {
        let sum = |of: fn(&LoopTotals) -> f64| totals.iter().map(of).sum::<f64>();
        let Some(slack_min) = totals.iter().filter_map(|l| l.slack_min).min() else {
            return;
        };
        self.put("timer_slack_min", slack_min as f64, "ns");
        self.ratio("timer_slack_mean", sum(|l| l.slack_sum as f64), sum(|l| l.timed as f64), "ns");
        let woken = sum(|l| l.woken as f64);
        self.ratio("timer_latency_mean", sum(|l| l.wu_lat_sum as f64), woken, "ns");
        if woken > 0.0 {
            let max = totals.iter().map(|l| l.wu_lat_max).max();
            self.ns("timer_latency_max", max.unwrap_or_default());
        }
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
    /// None, as of the migrations: neither the probe saw the thread nor the kernel tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ns: Option<u64>,
    pub switches: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub migrations: Option<u64>,
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
    /// Of the CPU time of it and its siblings, thousandths. None: they used none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share_permille: Option<f64>,
    /// Its weight in the sum of its and its siblings' weights, thousandths. Those that neither used CPU time nor waited
    /// for it do not count.
    pub weight_permille: f64,
    /// Of the time in which two or more of its own tasks were runnable and at least one ran, the part in which all did, or as
    /// many as there are CPUs; thousandths. None: there was no such time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub together_permille: Option<f64>,
}

// SPDX-License-Identifier: GPL-2.0-only
//! The data of a page, as `web/src/data.ts` reads it. Times are in ns.

use serde::Serialize;

#[derive(Clone, Debug, Default, Serialize)]
pub struct Page {
    pub title: String,
    pub version: String,
    pub verdict: Verdict,
    /// What is wrong with the results that the page was made from.
    pub problems: Vec<String>,
    pub sessions: Vec<Session>,
    pub published: Vec<PublishedTable>,
    pub advice: Option<Advice>,
}

/// The answer of the page.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Verdict {
    pub sentence: String,
    /// How sure the answer is, in a sentence.
    pub sure: String,
    pub reasons: Vec<String>,
}

/// Runs of several schedulers with one workload on one machine.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Session {
    pub workload: String,
    pub machine: String,
    pub facts: Vec<(String, String)>,
    pub schedulers: Vec<Scheduler>,
    pub metrics: Vec<Metric>,
    pub cgroups: Vec<Cgroup>,
    pub waits: Vec<Distribution>,
    pub timelines: Vec<Timeline>,
    pub remarks: Vec<String>,
}

#[derive(Clone, Debug, Default, Serialize)]
pub struct Scheduler {
    pub name: String,
    pub failures: Vec<Failure>,
}

/// A run that was ejected, ended irregularly, or left a task without a CPU.
#[derive(Clone, Debug, Serialize)]
pub struct Failure {
    pub seed: u64,
    pub kind: String,
    pub at: Option<u64>,
    pub message: String,
    pub story: Vec<String>,
    /// What ran before an ejection, if the run tells.
    pub moments: Option<Moments>,
    /// Command that makes the run again.
    pub again: String,
}

/// What CPUs ran in the last moments before an ejection.
#[derive(Clone, Debug, Serialize)]
pub struct Moments {
    pub start: u64,
    /// Time of the ejection.
    pub end: u64,
    pub lanes: Vec<Lane>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Lane {
    pub cpu: u32,
    /// In order of time.
    pub runs: Vec<Ran>,
}

/// A time for which a task was on a CPU.
#[derive(Clone, Debug, Serialize)]
pub struct Ran {
    pub task: String,
    pub start: u64,
    pub end: u64,
}

#[derive(Clone, Debug, Serialize)]
pub struct Metric {
    pub name: String,
    pub label: String,
    pub unit: String,
    pub better: &'static str,
    /// Whether the page shows the metric at first.
    pub main: bool,
    /// One cell for each scheduler.
    pub cells: Vec<Cell>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Cell {
    pub n: usize,
    pub mean: Option<f64>,
    /// 95 % interval of the mean.
    pub low: Option<f64>,
    pub high: Option<f64>,
    /// Change against the first scheduler; None for the first.
    pub change: Option<scxlab_lab::stats::Change>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Cgroup {
    pub path: String,
    pub weight: u32,
    /// Part of its siblings' weights, in thousandths.
    pub due: f64,
    /// Mean share of CPU time for each scheduler, in thousandths.
    pub shares: Vec<Option<f64>>,
}

/// Numbers of waits by length: `counts[i]` waits took at most `limits[i]`, and more than the limit
/// before.
#[derive(Clone, Debug, Serialize)]
pub struct Distribution {
    pub scheduler: String,
    pub limits: Vec<u64>,
    pub counts: Vec<u64>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Timeline {
    pub scheduler: String,
    pub seed: u64,
    pub start: u64,
    pub end: u64,
    /// Number of intervals of each CPU.
    pub counts: Vec<usize>,
    pub tasks: Vec<Task>,
    pub queues: Vec<String>,
    /// Numbers of migrations in equal parts of the time: within an LLC, within a node, between
    /// nodes.
    pub migrations: [Vec<u64>; 3],
    /// CPU time of each node in the same parts of the time.
    pub residency: Vec<Vec<u64>>,
    /// Name of the block with the columns.
    pub bytes: String,
    /// What the timeline leaves out.
    pub cut: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Task {
    pub name: String,
    /// Its cgroup, or its process if it is in the root.
    pub group: String,
}

#[derive(Clone, Debug, Serialize)]
pub struct PublishedTable {
    pub name: String,
    pub score: String,
    pub cells: Vec<PublishedCell>,
}

#[derive(Clone, Debug, Serialize)]
pub struct PublishedCell {
    pub label: String,
    pub published: f64,
    pub predicted: f64,
    /// Whether the sign of the effect agrees; None if there is no effect to agree on.
    pub agrees: Option<bool>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Advice {
    pub sentence: String,
    pub command: Option<String>,
    pub goals: Vec<String>,
    pub ranks: Vec<Rank>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Rank {
    pub scheduler: String,
    /// Gain over the default class by the goal that decides; positive is better.
    pub change: Option<f64>,
    pub low: Option<f64>,
    pub high: Option<f64>,
    pub worlds: String,
    pub state: String,
}

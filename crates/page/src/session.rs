// SPDX-License-Identifier: GPL-2.0-only
//! The part of a page that is about one session: a results file, and the timelines of its runs.
//!
//! Owns: which metrics are shown at first, and what is said of a run that does not count.

use indexmap::{IndexMap, IndexSet};
use scxlab_lab::compare::{change_of, known, values};
use scxlab_lab::metric::{self, Better, ONE_CPU_BUSY, ONE_CPU_IDLE, ONE_CPU_OVERHEAD, Row};
use scxlab_lab::report::outcome::origin_and_story;
use scxlab_lab::results::Manifest;
use scxlab_lab::run::{NeverRan, Run};
use scxlab_lab::stats::Summary;
use scxlab_lab::story::{Moment, Story, StoryCpu};
use serde::Deserialize;

use crate::data::{Cell, Cgroup, Failure, Lane, Metric, Moments, Ran, Scheduler, Session};
use crate::intervals::Packed;

/// The results of a session.
#[derive(Clone, Debug, Deserialize)]
pub struct Document {
    pub manifest: Manifest,
    pub runs: Vec<Run>,
}

/// All runs of one scheduler on one target.
pub(crate) struct Group<'a> {
    /// The scheduler, and the target if there are several.
    pub name: String,
    pub runs: &'a [Run],
}

impl Document {
    /// Returns the groups of runs; changes are against the first.
    pub(crate) fn groups(&self) -> Vec<Group<'_>> {
        let targets = self.manifest.targets.len();
        let chunks = self.runs.chunks(self.manifest.runs.max(1) as usize);
        let named = chunks.filter_map(|runs| {
            let first = runs.first()?;
            let on = if targets > 1 { format!(" on {}", first.target) } else { String::new() };
            Some(Group { name: format!("{}{on}", first.scheduler), runs })
        });
        named.collect()
    }
}

/// Returns the session's part of a page.
pub fn session(document: &Document, packed: &[Packed]) -> Session {
    let groups = document.groups();
    let Manifest { workload, machine, .. } = &document.manifest;
    Session {
        workload: workload.workload.clone(),
        machine: machine.machine.clone(),
        facts: facts(&document.manifest),
        schedulers: groups.iter().map(|group| scheduler(document, group)).collect(),
        metrics: metrics(&groups),
        cgroups: cgroups(&groups),
        waits: packed.iter().map(|packed| packed.waits.clone()).collect(),
        timelines: packed.iter().map(|packed| packed.timeline.clone()).collect(),
        remarks: remarks(&groups),
    }
}

fn facts(manifest: &Manifest) -> Vec<(String, String)> {
    let Manifest { workload, machine, seed, runs, .. } = manifest;
    let last = seed.saturating_add(u64::from(*runs)).saturating_sub(1);
    let duration = manifest
        .duration_ns
        .map_or("until it ends".to_owned(), |ns| format!("{} ms", ns as f64 / 1e6));
    let mut facts = vec![
        ("Workload".to_owned(), format!("{} (hash {})", workload.workload, workload.hash)),
        ("Machine".to_owned(), format!("{}: {}", machine.machine, machine.description)),
        ("Machine's hash".to_owned(), machine.fingerprint.clone()),
        ("CPUs".to_owned(), machine.nr_cpus.to_string()),
        ("Runs".to_owned(), format!("{runs} of each scheduler, seeds {seed} to {last}")),
        ("Duration".to_owned(), duration),
        ("Target".to_owned(), manifest.targets.join(", ")),
    ];
    for entry in &manifest.schedulers {
        if let Some(object) = &entry.object {
            let knobs = object.knobs.iter().map(|(name, value)| format!(", {name} = {value}"));
            let text = format!("object {}{}", object.hash, knobs.collect::<String>());
            facts.push((entry.scheduler.clone(), text));
        }
    }
    facts
}

fn scheduler(document: &Document, group: &Group<'_>) -> Scheduler {
    Scheduler {
        name: group.name.clone(),
        failures: group.runs.iter().filter_map(|run| failure(&document.manifest, run)).collect(),
    }
}

/// Returns what went wrong in a run.
fn failure(manifest: &Manifest, run: &Run) -> Option<Failure> {
    if run.succeeded() {
        return None;
    }
    let (kind, message) = if run.was_ejected() {
        (format!("ejected ({})", run.exit.kind), run.exit.message.clone())
    } else if !run.stop.is_regular() {
        (run.stop.kind.meaning().to_owned(), run.stop.message.clone())
    } else {
        let tasks = run.never_ran.iter();
        let tasks = tasks.map(|t| format!("{} waited {} ms", t.name, t.wait_ns / 1_000_000));
        let kind = format!("tasks {}", NeverRan::words(&run.never_ran));
        (kind, tasks.collect::<Vec<_>>().join("; "))
    };
    Some(Failure {
        seed: run.seed,
        kind,
        at: run.exit.at_ns,
        message,
        story: origin_and_story(run),
        moments: run.exit.story.as_ref().and_then(moments),
        again: manifest.command(run),
    })
}

/// Returns what the CPUs of a story ran in its last moments; None if it does not tell.
fn moments(story: &Story) -> Option<Moments> {
    let lanes: Vec<Lane> = story.cpus.iter().take(LANES).map(lane).collect();
    let start = lanes.iter().flat_map(|lane| &lane.runs).map(|run| run.start).min()?;
    Some(Moments { start, end: story.to_ns, lanes })
}

fn lane(cpu: &StoryCpu) -> Lane {
    let run = |moment: &Moment| Ran {
        task: moment.task.clone(),
        start: moment.start_ns,
        end: moment.end_ns,
    };
    Lane { cpu: cpu.cpu, runs: cpu.last.iter().map(run).collect() }
}

/// Maximum number of CPUs in the chart of the last moments.
const LANES: usize = 16;

/// Returns the row of the report that shows a metric.
fn row(name: &str) -> Option<Row> {
    metric::all().flat_map(|metric| metric.rows).copied().find(|row| row.name == name)
}

fn is_per_cpu(name: &str) -> bool {
    [ONE_CPU_BUSY, ONE_CPU_IDLE, ONE_CPU_OVERHEAD].iter().any(|metric| metric.declares(name))
}

fn metrics(groups: &[Group<'_>]) -> Vec<Metric> {
    let all = groups.iter().flat_map(|group| group.runs).flat_map(|run| &run.metrics);
    let mut named: IndexMap<&str, &str> = IndexMap::new();
    for (name, value) in all.filter(|(name, _)| !is_per_cpu(name)) {
        named.entry(name).or_insert(&value.unit);
    }
    let of = |(name, unit): (&str, &str)| {
        let better = metric::find(name).map_or(Better::Open, |metric| metric.better);
        let row = row(name);
        let base = groups.first().map(|group| (group.runs, values(group.runs, name)));
        let cell = |(at, group): (usize, &Group<'_>)| {
            let values = values(group.runs, name);
            let Summary { n, mean, low, high } = Summary::of(&known(&values));
            let base = base.as_ref().filter(|_| at > 0);
            let change = base.map(|(runs, base)| change_of(runs, group.runs, base, &values));
            Cell { n, mean, low, high, change }
        };
        Metric {
            name: name.to_owned(),
            label: row.map_or_else(|| name.replace('_', " "), |row| row.label.to_owned()),
            unit: unit.to_owned(),
            better: match better {
                Better::Less => "less",
                Better::More => "more",
                Better::Open => "open",
            },
            main: row.is_some_and(|row| row.is_deciding),
            cells: groups.iter().enumerate().map(cell).collect(),
        }
    };
    named.into_iter().map(of).collect()
}

fn cgroups(groups: &[Group<'_>]) -> Vec<Cgroup> {
    let counted = |group: &Group<'_>| {
        let runs = group.runs.iter().filter(|run| run.counts);
        runs.flat_map(|run| run.cgroups.clone()).collect::<Vec<_>>()
    };
    let all: Vec<_> = groups.iter().map(counted).collect();
    let mut paths: IndexMap<&str, (u32, f64)> = IndexMap::new();
    for cgroup in all.iter().flatten().filter(|cgroup| cgroup.path != "/") {
        paths.entry(&cgroup.path).or_insert((cgroup.weight, cgroup.weight_permille));
    }
    let rows = paths.iter().map(|(path, (weight, due))| Cgroup {
        path: (*path).to_owned(),
        weight: *weight,
        due: *due,
        shares: all
            .iter()
            .map(|cgroups| {
                let of_it = cgroups.iter().filter(|cgroup| cgroup.path == **path);
                Summary::of(&of_it.filter_map(|cgroup| cgroup.share_permille).collect::<Vec<_>>())
                    .mean
            })
            .collect(),
    });
    rows.collect()
}

/// Returns what runs note and leave out, each text once.
fn remarks(groups: &[Group<'_>]) -> Vec<String> {
    let mut all: IndexSet<String> = IndexSet::new();
    for group in groups {
        for run in group.runs {
            all.extend(run.notes.iter().cloned());
            let left_out = run.left_out.iter();
            all.extend(left_out.map(|part| format!("{}: did not run: {part}", group.name)));
        }
    }
    all.into_iter().collect()
}

// SPDX-License-Identifier: GPL-2.0-only
//! `scxlab list`: lists schedulers, workloads, machines or experiments.

use std::fmt::Write;

use anyhow::Result;
use scxlab_lab::recipe;
use scxlab_lab::reproduce::experiment::Experiment;
use scxlab_lab::reproduce::experiments;
use scxlab_machine::Machine;

use crate::args::Listed;
use crate::output;

pub fn list(what: Listed) -> Result<()> {
    output::print(&match what {
        Listed::Schedulers => schedulers(),
        Listed::Workloads => workloads(),
        Listed::Machines => machines()?,
        Listed::Experiments => listed_experiments()?,
    })
}

fn schedulers() -> String {
    let mut rows = vec![("eevdf", "The kernel's default class; nothing is loaded.".to_owned())];
    let shipped = scxlab_sched::shipped().iter();
    rows.extend(shipped.map(|s| (s.name, s.summary().to_owned())));
    let mut text = columns(rows);
    text.push_str("\nAny other sched_ext object is given by its path. Recipes prepare some of them as their own\n");
    text.push_str("frontends do, chosen by the name of the object's ops:\n\n");
    let recipes =
        recipe::shipped().iter().filter_map(|(name, _)| Some((*name, recipe::find(name)?.0.doc)));
    text.push_str(&columns(recipes.collect()));
    text
}

fn workloads() -> String {
    let mut text = String::new();
    for generator in scxlab_workload::benchmarks::list() {
        let _ = writeln!(text, "{}: {} Unit: {}.", generator.name, generator.doc, generator.unit);
        for param in generator.params {
            let default = if param.default.is_empty() { "\"\"" } else { param.default };
            let _ = writeln!(text, "    {}={default}  {}", param.name, param.doc);
        }
    }
    text.push_str("\nA path is a file: rt-app's JSON, or our TOML or JSON.\n");
    text
}

fn machines() -> Result<String> {
    let mut rows = Vec::new();
    for (name, _) in scxlab_machine::presets() {
        let machine = Machine::resolve(name)?;
        rows.push((*name, machine.description));
    }
    let mut text = columns(rows);
    text.push_str("\nOr a spec: 2n4c2t is 2 nodes of 4 cores of 2 threads, 2n1l4c2t says LLCs per node too.\n");
    text.push_str("Or a .toml file of that kind, an .xml file of `lstopo --of xml`, or `host`.\n");
    Ok(text)
}

fn listed_experiments() -> Result<String> {
    let mut rows = Vec::new();
    for files in experiments() {
        let experiment = Experiment::parse(files.name, files.published, files.experiment)?;
        let first = experiment.doc.split_once(". ").map(|(first, _)| format!("{first}."));
        rows.push((files.name, first.unwrap_or(experiment.doc)));
    }
    Ok(columns(rows))
}

/// Formats names and descriptions in two columns. Long lines are left for the terminal to wrap.
fn columns(rows: Vec<(&str, String)>) -> String {
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    rows.iter().map(|(name, what)| format!("{name:width$}  {what}\n")).collect()
}

// SPDX-License-Identifier: GPL-2.0-only
//! The parser of rt-app's workload files (JSON).
//!
//! Owns: the grammar: sections, tasks, phases, event keys by prefix, the legacy forms. A request
//! that a simulation cannot fulfil becomes a line of `Program::notes`; an unknown key is an error.
//! Does not: run anything. The executors own the meaning of the events. A table in README.md says
//! how this crate reads keys whose meaning is not obvious.
//! Models: rt-app at 55cb0c0. Differs: a repeated key is another event, another phase or another
//! task, as if the file went through rt-app's helper `workgen` first; rt-app itself would keep only
//! the last occurrence of the key.

use std::collections::{BTreeMap, BTreeSet};

use crate::compile;
use crate::error::WorkloadError;
use crate::program::places::Places;
use crate::program::{BarrierDef, Program, TimeSpan};

mod event;
mod global;
pub mod json;
mod legacy;
mod read;
mod sched;
mod task;

use global::Global;
use json::{Member, Pos, Value};
use read::{Source, get};

const SECTIONS: [&str; 3] = ["tasks", "global", "resources"];

/// Parses one file.
///
/// ```
/// let text = r#"{ "tasks": { "t": { "run": 1000, "timer": { "ref": "unique", "period": 4000 } } } }"#;
/// let program = scxlab_workload::rtapp::parse("t.json", text).unwrap();
/// assert_eq!(program.threads[0].name, "t");
/// let error = scxlab_workload::rtapp::parse("t.json", r#"{ "tasks": { "t": { "rum": 1 } } }"#);
/// assert!(error.unwrap_err().to_string().starts_with("t.json:1:21: unknown key \"rum\""));
/// ```
pub fn parse(name: &str, text: &str) -> Result<Program, WorkloadError> {
    parse_parts(&[(name, text)])
}

/// Parses a workload whose sections are spread over several files, given as (name, text).
pub fn parse_parts(files: &[(&str, &str)]) -> Result<Program, WorkloadError> {
    let mut src = Source { files, notes: Vec::new() };
    let mut sections = Sections::default();
    for (i, (name, text)) in files.iter().enumerate() {
        let root = json::parse(u16::try_from(i).unwrap_or(u16::MAX), name, text)?;
        collect(&src, &root, &mut sections)?;
    }
    let global = global::read(&mut src, &sections.global)?;
    let resources = legacy::resources(&src, &sections.resources)?;
    let mut context = Context { global, resources, ..Context::default() };
    let (mut threads, mut offsets) = (Vec::new(), Vec::new());
    for (name, member) in task::names(&sections.tasks) {
        offsets.push(member.pos.offset as usize);
        threads.push(task::read(&mut src, &mut context, &name, member)?);
    }
    let place = files.first().map_or("", |f| f.0);
    if threads.is_empty() {
        src.notes.push(format!("{place}: the file has no tasks; it is only a part of a workload"));
    }
    let mut program = Program {
        name: crate::stem(place).to_owned(),
        unit: "loop".to_owned(),
        duration: context.global.duration.map(TimeSpan),
        pi_enabled: context.global.pi_enabled,
        cumulative_slack: context.global.cumulative_slack,
        threads,
        from_rtapp: true,
        ..Program::default()
    };
    // Places are those of one file.
    if let [(name, text)] = files {
        program.places = Places::of_rtapp(name, text, offsets);
    }
    context.check_forks(&src, &program)?;
    program.barriers = context.barrier_defs(&src)?;
    program.notes = src.notes;
    compile::check(&program)?;
    Ok(program)
}

/// The members of each top-level section, collected from all files.
#[derive(Default)]
struct Sections {
    tasks: Vec<Member>,
    global: Vec<Member>,
    resources: Vec<Member>,
}

fn collect(src: &Source<'_>, root: &json::Node, into: &mut Sections) -> Result<(), WorkloadError> {
    let members = src.object("the file", root)?;
    for Member { key, pos, node } in members {
        let section = match key.as_str() {
            "tasks" => &mut into.tasks,
            "global" => &mut into.global,
            "resources" => &mut into.resources,
            _ => {
                return Err(WorkloadError::UnknownKey {
                    at: src.place(*pos),
                    key: key.clone(),
                    within: "the file's top level".to_owned(),
                    candidates: SECTIONS.iter().map(|s| (*s).to_owned()).collect(),
                });
            }
        };
        // The oldest files give a number of resources, which are then named 0, 1, 2.
        if key == "resources" && matches!(node.value, Value::Number(_)) {
            src.int(key, node, 0, 100_000)?;
            continue;
        }
        section.extend_from_slice(src.object(key, node)?);
    }
    if SECTIONS.iter().all(|s| get(members, s).is_none()) {
        return Err(src.invalid(root.pos, "an rt-app file needs a \"tasks\" object"));
    }
    Ok(())
}

/// Data shared by the parsing of all tasks.
#[derive(Default)]
struct Context {
    global: Global,
    resources: legacy::Resources,
    /// Barriers by name: number of parties, and place of the first use in the file.
    barriers: BTreeMap<String, (u32, Pos)>,
    /// Forks in the file: forking task, forked task, place of the fork.
    forks: Vec<(String, String, Pos)>,
    /// Tasks with zero instances, each with the place of the zero in the file.
    zero: Vec<(String, Pos)>,
}

impl Context {
    /// Adds the parties of one use of a barrier: one for each instance of the task.
    fn count_barrier(&mut self, name: &str, instances: u32, pos: Pos) {
        let known = self.barriers.entry(name.to_owned()).or_insert((0, pos));
        known.0 = known.0.saturating_add(instances);
    }

    fn barrier_defs(&self, src: &Source<'_>) -> Result<Vec<BarrierDef>, WorkloadError> {
        let mut defs = Vec::new();
        for (name, (parties, pos)) in &self.barriers {
            if *parties == 0 {
                let problem = format!("barrier \"{name}\" is used by tasks of 0 instances only");
                return Err(src.invalid(*pos, problem));
            }
            defs.push(BarrierDef { name: name.clone(), parties: *parties });
        }
        Ok(defs)
    }

    /// Makes the same checks of forks as `compile::check`, but reports each error with its place in
    /// the file.
    fn check_forks(&self, src: &Source<'_>, program: &Program) -> Result<(), WorkloadError> {
        let tasks: BTreeSet<&str> = program.threads.iter().map(|t| t.name.as_str()).collect();
        for (_, target, pos) in &self.forks {
            if !tasks.contains(target.as_str()) {
                return Err(WorkloadError::UnknownName {
                    at: src.place(*pos),
                    kind: "task",
                    name: target.clone(),
                    candidates: program.threads.iter().map(|t| t.name.clone()).collect(),
                });
            }
        }
        if let Some(cycle) = compile::fork_cycle(program) {
            let first =
                self.forks.iter().find(|(from, to, _)| *from == cycle[0] && *to == cycle[1]);
            let pos = first.map_or(Pos::default(), |f| f.2);
            let path = cycle.join(" -> ");
            return Err(src.invalid(pos, format!("tasks fork one another for ever: {path}")));
        }
        let forked: BTreeSet<&str> = self.forks.iter().map(|(_, to, _)| to.as_str()).collect();
        for (name, pos) in &self.zero {
            if !forked.contains(name.as_str()) {
                let problem = format!("task \"{name}\" has 0 instances, and nothing forks it");
                return Err(src.invalid(*pos, problem));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;

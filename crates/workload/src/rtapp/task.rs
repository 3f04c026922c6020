// SPDX-License-Identifier: GPL-2.0-only
//! Tasks and phases.
//!
//! Owns: the keys that a task and a phase may have, the nesting of loops, and the changes at the
//! beginning of a phase.

use std::collections::{BTreeMap, BTreeSet};

use super::event::{self, TaskReader};
use super::global::PolicyName;
use super::json::{Member, Node};
use super::read::{Source, get};
use super::sched::{self, Attributes};
use super::{Context, legacy};
use crate::error::WorkloadError;
use crate::program::{CpuList, Op, ThreadTemplate, TimeSpan};

/// Keys of a task besides scheduling attributes and events.
const TASK_KEYS: [&str; 4] = ["instance", "delay", "loop", "phases"];
/// Deadline parameters by their old names.
const OLD_DEADLINE_KEYS: [&str; 2] = ["period", "deadline"];

/// Returns the tasks with their names. A repeated name gets a number, as from `workgen`. A brace
/// means nothing in rt-app, so `{i` becomes `(i`; otherwise it would begin an instance expression.
pub(super) fn names(tasks: &[Member]) -> Vec<(String, &Member)> {
    let mut taken: BTreeSet<String> = BTreeSet::new();
    let mut next: BTreeMap<String, u32> = BTreeMap::new();
    let mut out = Vec::with_capacity(tasks.len());
    for member in tasks {
        let plain = member.key.replace("{i", "(i");
        let mut name = plain.clone();
        while taken.contains(&name) {
            let number = next.entry(plain.clone()).or_insert(1);
            name = format!("{plain}{number}");
            *number += 1;
        }
        taken.insert(name.clone());
        out.push((name, member));
    }
    out
}

/// Parses one task.
pub(super) fn read(
    src: &mut Source<'_>,
    context: &mut Context,
    name: &str,
    member: &Member,
) -> Result<ThreadTemplate, WorkloadError> {
    if name.is_empty() {
        return Err(src.invalid(member.pos, "a task needs a name"));
    }
    let members = src.object(name, &member.node)?;
    let phases = get(members, "phases");
    keys(src, name, members, true)?;
    let mut attributes = Attributes::read(src, members)?;
    let default_policy = context.global.policy;
    let policy_name = attributes.policy.unwrap_or(default_policy);
    old_deadline(src, members, policy_name, &mut attributes)?;
    let (policy, nice) = attributes.policy(src, members, default_policy)?;
    let instances = instances(src, context, name, members)?;
    let delay = get(members, "delay").map(|m| src.micros("delay", &m.node)).transpose()?;

    let group = attributes.taskgroup.clone();
    let cpus = attributes.cpus.clone();
    let mut state = PhaseState { policy: policy_name, group, cpus, changes: false };
    fair_group(src, member, &state)?;
    let mut reading =
        TaskReader { context, task: name, instances, held: BTreeSet::new(), footprint: 0 };
    let ops = match phases {
        Some(phases) => phased(src, &mut reading, &mut state, members, &phases.node)?,
        None => {
            let body = body(src, &mut reading, member, members)?;
            let times = loops(src, members, None)?;
            vec![Op::Phase { name: name.to_owned(), times, ops: body }]
        }
    };
    let footprint = reading.footprint;
    let is_fair = policy_name.is_fair();
    Ok(ThreadTemplate {
        instances,
        policy,
        nice,
        slice: attributes.runtime.filter(|r| is_fair && *r > 0).map(TimeSpan),
        cpus: attributes.cpus,
        cgroup: attributes.taskgroup,
        process: Some("rt-app".to_owned()),
        footprint,
        delay: delay.filter(|d| *d > 0).map(TimeSpan),
        ..ThreadTemplate::new(name, ops)
    })
}

/// The attributes in force when a phase begins, if the phases before it ran in order.
struct PhaseState {
    policy: PolicyName,
    group: Option<String>,
    /// CPUs of the task. A phase without CPUs of its own returns to them.
    cpus: Option<CpuList>,
    /// Whether some phase changes the policy, or sets a real-time or deadline policy.
    changes: bool,
}

/// Refuses unknown keys, and repeated keys that are not events.
fn keys(
    src: &Source<'_>,
    within: &str,
    members: &[Member],
    is_task: bool,
) -> Result<(), WorkloadError> {
    let old_form = legacy::is_old_form(members);
    let mut seen = BTreeSet::new();
    for Member { key, pos, .. } in members {
        let key = key.as_str();
        let mine = sched::KEYS.contains(&key)
            || key == "loop"
            || (is_task && (TASK_KEYS.contains(&key) || OLD_DEADLINE_KEYS.contains(&key)))
            || legacy::KEYS.contains(&key) && (old_form || key == "resources");
        if mine && !seen.insert(key) {
            return Err(src.invalid(*pos, format!("\"{key}\" is repeated in \"{within}\"")));
        }
        if !mine && (old_form || event::of_key(key).is_none()) {
            return Err(unknown_key(src, within, key, *pos, is_task, old_form));
        }
    }
    Ok(())
}

fn unknown_key(
    src: &Source<'_>,
    within: &str,
    key: &str,
    pos: super::json::Pos,
    is_task: bool,
    old_form: bool,
) -> WorkloadError {
    let task_keys: &[&str] = if is_task { &TASK_KEYS } else { &["loop"] };
    let mut candidates: Vec<&str> = task_keys.iter().chain(&sched::KEYS).copied().collect();
    match old_form {
        true => candidates.extend(legacy::KEYS),
        false => candidates.extend(event::PREFIXES.iter().map(|(prefix, _)| *prefix)),
    }
    WorkloadError::UnknownKey {
        at: src.place(pos),
        key: key.to_owned(),
        within: format!("\"{within}\""),
        candidates: candidates.into_iter().map(str::to_owned).collect(),
    }
}

/// Parses `runtime`, `period` and `deadline`, the old names of a SCHED_DEADLINE task's parameters
/// (now `dl-`). For other policies `period` and `deadline` have no effect and give a note.
fn old_deadline(
    src: &mut Source<'_>,
    members: &[Member],
    policy: PolicyName,
    into: &mut Attributes,
) -> Result<(), WorkloadError> {
    if legacy::is_old_form(members) {
        return legacy::deadline(src, members, policy, into);
    }
    for Member { key, pos, node } in members {
        let field = match key.as_str() {
            "runtime" if policy == PolicyName::Deadline => &mut into.runtime,
            "period" => &mut into.period,
            "deadline" => &mut into.deadline,
            _ => continue,
        };
        let value = src.micros(key, node)?;
        if policy == PolicyName::Deadline {
            field.get_or_insert(value);
        } else {
            src.note(*pos, format!("{key}: has an effect only with SCHED_DEADLINE"));
        }
    }
    Ok(())
}

fn instances(
    src: &Source<'_>,
    context: &mut Context,
    name: &str,
    members: &[Member],
) -> Result<u32, WorkloadError> {
    let Some(member) = get(members, "instance") else {
        return Ok(1);
    };
    let max = i64::try_from(crate::compile::MAX_THREADS).unwrap_or(i64::MAX);
    let count = src.int("instance", &member.node, 0, max)?;
    if count == 0 {
        context.zero.push((name.to_owned(), member.node.pos));
    }
    Ok(u32::try_from(count).unwrap_or(u32::MAX))
}

/// Parses `loop`; -1 means for ever. If the key is absent, returns `default`.
fn loops(
    src: &Source<'_>,
    members: &[Member],
    default: Option<u64>,
) -> Result<Option<u64>, WorkloadError> {
    let Some(member) = get(members, "loop") else {
        return Ok(default);
    };
    let times = src.int("loop", &member.node, -1, i64::from(i32::MAX))?;
    Ok(u64::try_from(times).ok())
}

/// Parses the events of a phase, or of a task without phases.
fn body(
    src: &mut Source<'_>,
    reading: &mut TaskReader<'_>,
    owner: &Member,
    members: &[Member],
) -> Result<Vec<Op>, WorkloadError> {
    let mut ops = Vec::new();
    if legacy::is_old_form(members) {
        legacy::body(src, reading, owner, members, &mut ops)?;
    } else {
        for member in members {
            if is_attribute(&member.key) {
                continue;
            }
            if let Some(event) = event::of_key(&member.key) {
                reading.event(src, event, member, &mut ops)?;
            }
        }
    }
    if ops.is_empty() {
        let problem = format!("\"{}\" has no events: it would do nothing", owner.key);
        return Err(src.invalid(owner.pos, problem));
    }
    Ok(ops)
}

fn is_attribute(key: &str) -> bool {
    sched::KEYS.contains(&key)
        || TASK_KEYS.contains(&key)
        || OLD_DEADLINE_KEYS.contains(&key)
        || matches!(key, "exec" | "lock_order" | "resources")
}

fn phased(
    src: &mut Source<'_>,
    reading: &mut TaskReader<'_>,
    state: &mut PhaseState,
    task: &[Member],
    phases: &Node,
) -> Result<Vec<Op>, WorkloadError> {
    for member in task.iter().filter(|m| !is_attribute(&m.key)) {
        src.note(
            member.pos,
            format!("{}: an event beside \"phases\"; rt-app does not run it", member.key),
        );
    }
    let phases_members = src.object("phases", phases)?;
    if phases_members.is_empty() {
        return Err(src.invalid(phases.pos, "there are no phases in \"phases\""));
    }
    let times = loops(src, task, None)?;
    let mut masks = Vec::with_capacity(phases_members.len());
    let mut parts = Vec::with_capacity(phases_members.len());
    for member in phases_members {
        let members = src.object(&member.key, &member.node)?;
        keys(src, &member.key, members, false)?;
        let attributes = Attributes::read(src, members)?;
        let mut entry = Vec::new();
        phase_policy(src, &attributes, member, members, state, &mut entry)?;
        let times = loops(src, members, Some(1))?;
        let ops = body(src, reading, member, members)?;
        masks.push(attributes.cpus.or_else(|| state.cpus.clone()));
        parts.push((entry, Op::Phase { name: member.key.clone(), times: times_of(times), ops }));
    }
    let mut ops = Vec::new();
    for (i, (mut entry, phase)) in parts.into_iter().enumerate() {
        // If some phase changes the policy, every phase that names a policy must set it, because in
        // a task that loops any phase may have run before it.
        entry.retain(|op| state.changes || !matches!(op, Op::SetPolicy(_)));
        if changes_affinity(&masks, &state.cpus, i, times) {
            ops.push(masks[i].clone().map_or(Op::ClearAffinity, Op::SetAffinity));
        }
        ops.extend(entry);
        ops.push(phase);
    }
    Ok(match times {
        Some(1) => ops,
        times => vec![Op::Loop { times, ops }],
    })
}

/// Returns a phase's number of passes. 0 means for ever, because rt-app compares the count for
/// equality after each pass, and 0 never matches.
fn times_of(times: Option<u64>) -> Option<u64> {
    times.filter(|&n| n > 0)
}

/// Whether phase `i` must set its CPUs, because they differ from those of a phase that may come
/// before it.
fn changes_affinity(
    masks: &[Option<CpuList>],
    task: &Option<CpuList>,
    i: usize,
    times: Option<u64>,
) -> bool {
    match i.checked_sub(1) {
        Some(before) => masks[i] != masks[before],
        None => masks[0] != *task || (times != Some(1) && masks[0] != masks[masks.len() - 1]),
    }
}

/// Appends the ops that set a phase's policy, priority and group, and updates the state.
fn phase_policy(
    src: &mut Source<'_>,
    attributes: &Attributes,
    member: &Member,
    members: &[Member],
    state: &mut PhaseState,
    ops: &mut Vec<Op>,
) -> Result<(), WorkloadError> {
    let before = state.policy;
    let said = attributes.policy.is_some() || attributes.priority.is_some();
    let deadline = attributes.runtime.or(attributes.period).or(attributes.deadline).is_some();
    let policy = attributes.policy.unwrap_or(before);
    if said || (deadline && policy == PolicyName::Deadline) {
        let (def, nice) = attributes.policy(src, members, before)?;
        ops.push(Op::SetPolicy(def));
        state.changes |= policy != before || !policy.is_fair();
        if matches!(policy, PolicyName::Other | PolicyName::Batch) {
            ops.push(Op::SetNice(nice));
        }
        state.policy = policy;
    }
    if deadline && policy != PolicyName::Deadline {
        src.note(member.pos, "dl-runtime of a phase: a slice cannot change while a thread runs");
    }
    if let Some(group) = &attributes.taskgroup {
        if state.group.as_ref() != Some(group) {
            ops.push(Op::MoveCgroup(group.clone()));
        }
        state.group = Some(group.clone());
    }
    fair_group(src, member, state)
}

/// Refuses a real-time task in a task group, as rt-app does.
fn fair_group(src: &Source<'_>, member: &Member, state: &PhaseState) -> Result<(), WorkloadError> {
    match &state.group {
        Some(group) if !state.policy.is_fair() => {
            let problem = format!(
                "\"{}\" is in taskgroup {group}, which needs SCHED_OTHER, SCHED_BATCH or SCHED_IDLE",
                member.key
            );
            Err(src.invalid(member.pos, problem))
        }
        _ => Ok(()),
    }
}

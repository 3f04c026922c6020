// SPDX-License-Identifier: GPL-2.0-only
//! The form of rt-app's first versions: `exec`, `period`, `lock_order` and per-task `resources`.
//!
//! Owns: the meaning of this form. In each period a task goes through its resources in order, then
//! computes until `exec` us are spent, and sleeps to the end of its period unless `sleep` is false.
//! For a mutex, the task first takes the mutexes in `access`, then the mutex itself, and computes
//! for `duration` us while it holds them.
//! Also owns: the `resources` section, which declares the types of resources. Files of later forms
//! need no such section.

use std::collections::BTreeMap;

use super::event::{TaskReader, known_keys, named};
use super::global::PolicyName;
use super::json::{Member, Node, Value};
use super::read::{Source, get};
use super::sched::Attributes;
use crate::error::WorkloadError;
use crate::program::{Op, TimeSpan, TimerMode};

pub const KEYS: [&str; 6] = ["exec", "period", "deadline", "lock_order", "resources", "sleep"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResourceType {
    Mutex,
    Wait,
    Signal,
    Broadcast,
    Sync,
    Run,
    Sleep,
    /// Resource types that files of later forms may declare, but that no task of the legacy form
    /// can use.
    Other,
}

const TYPES: [(&str, ResourceType); 18] = [
    ("mutex", ResourceType::Mutex),
    ("wait", ResourceType::Wait),
    ("signal", ResourceType::Signal),
    ("broadcast", ResourceType::Broadcast),
    ("broad", ResourceType::Broadcast),
    ("sync", ResourceType::Sync),
    ("run", ResourceType::Run),
    ("runtime", ResourceType::Run),
    ("sleep", ResourceType::Sleep),
    ("timer", ResourceType::Other),
    ("suspend", ResourceType::Other),
    ("resume", ResourceType::Other),
    ("mem", ResourceType::Other),
    ("iorun", ResourceType::Other),
    ("yield", ResourceType::Other),
    ("barrier", ResourceType::Other),
    ("fork", ResourceType::Other),
    ("sem", ResourceType::Other),
];

/// The declared resources by name. Each has a type. A resource that acts on a condition, such as a
/// signal, may name this condition as its `target`.
#[derive(Clone, Debug, Default)]
pub struct Resources(BTreeMap<String, (ResourceType, Option<String>)>);

/// Parses the `resources` section.
pub fn resources(src: &Source<'_>, members: &[Member]) -> Result<Resources, WorkloadError> {
    let mut table = BTreeMap::new();
    for Member { key, node, .. } in members {
        let fields = src.object(key, node)?;
        known_keys(src, key, fields, &["type", "target"])?;
        let mut kind = ResourceType::Mutex;
        if let Some(member) = get(fields, "type") {
            let text = src.string("type", &member.node)?;
            kind = TYPES.iter().find(|(name, _)| *name == text).map(|t| t.1).ok_or_else(|| {
                let all: Vec<_> = TYPES.iter().map(|(name, _)| *name).collect();
                src.out_of_range("type", &member.node, format!("one of {}", all.join(", ")))
            })?;
        }
        let target = get(fields, "target").map(|m| named(src, "target", &m.node)).transpose()?;
        table.insert(key.clone(), (kind, target));
    }
    Ok(Resources(table))
}

/// Whether a task or phase is written in the legacy form.
pub fn is_old_form(members: &[Member]) -> bool {
    get(members, "exec").is_some() || get(members, "lock_order").is_some()
}

/// The keys `exec`, `period` and `deadline` of a task, in nanoseconds. The function `times` has
/// checked them against one another, as in rt-app's old parser.
struct Times {
    exec: u64,
    period: Option<u64>,
    deadline: Option<u64>,
}

fn times(src: &Source<'_>, members: &[Member]) -> Result<Times, WorkloadError> {
    let micros = |key: &str| get(members, key).map(|m| src.micros(key, &m.node)).transpose();
    let exec = micros("exec")?.unwrap_or(0);
    let (period, deadline) = (micros("period")?, micros("deadline")?);
    let order = |key: &str, ok: bool, rule: &str| match get(members, key) {
        Some(member) if !ok => Err(src.out_of_range(key, &member.node, rule)),
        _ => Ok(()),
    };
    order("period", period.is_none_or(|p| p > 0 && p >= exec), "at least \"exec\", and not 0")?;
    let limit = period.unwrap_or(u64::MAX);
    let fits = deadline.is_none_or(|d| (exec..=limit).contains(&d));
    order("deadline", fits, "from \"exec\" to \"period\"")?;
    Ok(Times { exec, period, deadline })
}

/// Sets the parameters of a SCHED_DEADLINE task that is written in the legacy form.
pub fn deadline(
    src: &Source<'_>,
    members: &[Member],
    policy: PolicyName,
    into: &mut Attributes,
) -> Result<(), WorkloadError> {
    let times = times(src, members)?;
    if policy == PolicyName::Deadline {
        into.runtime.get_or_insert(times.exec);
        into.period = into.period.or(times.period);
        into.deadline = into.deadline.or(times.deadline);
    }
    Ok(())
}

/// Appends the ops of one period of a task in the legacy form.
pub fn body(
    src: &mut Source<'_>,
    reading: &mut TaskReader<'_>,
    owner: &Member,
    members: &[Member],
    ops: &mut Vec<Op>,
) -> Result<(), WorkloadError> {
    let times = times(src, members)?;
    let details = match get(members, "resources") {
        Some(member) => src.object("resources", &member.node)?,
        None => &[],
    };
    let mut spent = 0u64;
    for name in lock_order(src, members)? {
        let usage = usage(src, details, &name)?;
        spent = spent.saturating_add(usage.duration);
        let Some((kind, target)) = reading.context.resources.0.get(&name).cloned() else {
            src.note(
                owner.pos,
                format!("resource \"{name}\" is not declared: assumed to be a mutex"),
            );
            usage.mutexes(&name, ops);
            continue;
        };
        let target = target.unwrap_or_else(|| name.clone());
        match kind {
            ResourceType::Mutex => usage.mutexes(&name, ops),
            ResourceType::Run => ops.push(Op::Compute(TimeSpan(usage.duration).into())),
            ResourceType::Sleep => ops.push(Op::Sleep(TimeSpan(usage.duration))),
            ResourceType::Wait => usage.waiting(&name, None, ops),
            ResourceType::Sync => usage.waiting(&target, Some(Op::Signal(target.clone())), ops),
            ResourceType::Signal => usage.signalling(Op::Signal(target), ops),
            ResourceType::Broadcast => usage.signalling(Op::Broadcast(target), ops),
            ResourceType::Other => {
                let problem = format!("resource \"{name}\" is not of a type for \"lock_order\"");
                return Err(src.invalid(owner.pos, problem));
            }
        }
    }
    let rest = times.exec.saturating_sub(spent);
    ops.push(Op::Compute(TimeSpan(rest).into()));
    let sleeps = get(members, "sleep").map(|m| src.bool("sleep", &m.node)).transpose()?;
    if let (Some(period), true) = (times.period, sleeps.unwrap_or(true)) {
        let (name, mode) = ("unique period".to_owned(), TimerMode::Absolute);
        ops.push(Op::Timer { name, period: TimeSpan(period), mode, unique: true });
    }
    Ok(())
}

/// Parses `lock_order`, the list of a task's resources. Its items are names, or numbers in the
/// oldest files.
fn lock_order(src: &Source<'_>, members: &[Member]) -> Result<Vec<String>, WorkloadError> {
    match get(members, "lock_order") {
        Some(member) => name_list(src, "lock_order", &member.node),
        None => Ok(Vec::new()),
    }
}

fn name_list(src: &Source<'_>, key: &str, node: &Node) -> Result<Vec<String>, WorkloadError> {
    let Value::Array(items) = &node.value else {
        return Err(src.wrong_type(key, node, "a list of resources"));
    };
    items
        .iter()
        .map(|item| match &item.value {
            Value::Number(_) => Ok(src.int(key, item, 0, 100_000)?.to_string()),
            _ => named(src, key, item),
        })
        .collect()
}

/// A task's use of a resource.
struct Usage {
    /// Work in nanoseconds that the task does while it holds the resource.
    duration: u64,
    /// Mutexes that the task holds during the use.
    access: Vec<String>,
}

fn usage(src: &Source<'_>, details: &[Member], name: &str) -> Result<Usage, WorkloadError> {
    let Some(member) = get(details, name) else {
        return Ok(Usage { duration: 0, access: Vec::new() });
    };
    let fields = src.object(name, &member.node)?;
    known_keys(src, name, fields, &["duration", "access"])?;
    let duration = get(fields, "duration").map(|m| src.micros("duration", &m.node)).transpose()?;
    let access = get(fields, "access").map(|m| name_list(src, "access", &m.node)).transpose()?;
    Ok(Usage { duration: duration.unwrap_or(0), access: access.unwrap_or_default() })
}

impl Usage {
    /// Appends the ops of the use of the mutex `name`: take the mutexes in `access`, then the mutex
    /// `name`, compute, and release all of them in reverse order.
    fn mutexes(&self, name: &str, ops: &mut Vec<Op>) {
        let mut all: Vec<&String> = Vec::new();
        let own = name.to_owned();
        for mutex in self.access.iter().chain([&own]) {
            if !all.contains(&mutex) {
                all.push(mutex);
            }
        }
        ops.extend(all.iter().map(|m| Op::Lock((*m).clone())));
        ops.push(Op::Compute(TimeSpan(self.duration).into()));
        ops.extend(all.iter().rev().map(|m| Op::Unlock((*m).clone())));
    }

    /// Appends ops that take a mutex, wait for the condition `cond`, and release the mutex. The
    /// mutex is the first in `access`; if `access` is empty, it is the mutex that has the same name
    /// as the condition. The op `first`, if given, comes before the wait, under the mutex.
    fn waiting(&self, cond: &str, first: Option<Op>, ops: &mut Vec<Op>) {
        let mutex = self.access.first().cloned().unwrap_or_else(|| cond.to_owned());
        ops.push(Op::Lock(mutex.clone()));
        ops.extend(first);
        ops.push(Op::Wait { cond: cond.to_owned(), mutex: mutex.clone() });
        ops.push(Op::Unlock(mutex));
    }

    /// Appends `op`, which signals a condition. If `access` is not empty, the task holds the first
    /// mutex in `access` during the op.
    fn signalling(&self, op: Op, ops: &mut Vec<Op>) {
        ops.extend(self.access.first().cloned().map(Op::Lock));
        ops.push(op);
        ops.extend(self.access.first().cloned().map(Op::Unlock));
    }
}

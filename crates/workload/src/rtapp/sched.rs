// SPDX-License-Identifier: GPL-2.0-only
//! Scheduling attributes of a task or phase: policy, priority, deadline parameters, CPUs, task
//! group.
//!
//! Owns: the defaults that depend on the policy, and the combinations that rt-app refuses.

use super::global::PolicyName;
use super::json::{Member, Node, Value};
use super::read::{Source, get};
use crate::error::WorkloadError;
use crate::program::cpus::parse_range;
use crate::program::{CpuList, PolicyDef, TimeSpan};

/// The scheduling attributes that the JSON object of a task or phase sets; None: not set. Times are
/// in nanoseconds.
#[derive(Clone, Debug, Default)]
pub struct Attributes {
    pub policy: Option<PolicyName>,
    pub priority: Option<i8>,
    pub runtime: Option<u64>,
    pub deadline: Option<u64>,
    pub period: Option<u64>,
    pub cpus: Option<CpuList>,
    pub taskgroup: Option<String>,
}

/// The keys that `Attributes::read` reads.
pub const KEYS: [&str; 10] = [
    "policy",
    "priority",
    "dl-runtime",
    "dl-period",
    "dl-deadline",
    "cpus",
    "nodes_membind",
    "util_min",
    "util_max",
    "taskgroup",
];

impl Attributes {
    pub fn read(src: &mut Source<'_>, members: &[Member]) -> Result<Self, WorkloadError> {
        let mut this = Attributes::default();
        for Member { key, pos, node } in members {
            match key.as_str() {
                "policy" => this.policy = Some(PolicyName::read(src, key, node)?),
                "priority" => {
                    let priority = src.int(key, node, -20, 99)?;
                    this.priority = i8::try_from(priority).ok();
                }
                "dl-runtime" => this.runtime = Some(src.micros(key, node)?),
                "dl-period" => this.period = Some(src.micros(key, node)?),
                "dl-deadline" => this.deadline = Some(src.micros(key, node)?),
                "cpus" => this.cpus = Some(cpus(src, key, node)?),
                "nodes_membind" => {
                    cpus(src, key, node)?;
                    src.note(*pos, "nodes_membind: memory placement by node is not modelled");
                }
                "util_min" | "util_max" => {
                    src.int(key, node, -1, 1024)?;
                    let text = format!("{key}: utilization clamps need a frequency model");
                    src.note(*pos, text);
                }
                "taskgroup" => this.taskgroup = taskgroup(src, key, node)?,
                _ => {}
            }
        }
        Ok(this)
    }

    /// Returns the policy with its priority, and the nice value. If the task or phase names no
    /// policy, `from` is the policy.
    pub fn policy(
        &self,
        src: &Source<'_>,
        members: &[Member],
        from: PolicyName,
    ) -> Result<(PolicyDef, i8), WorkloadError> {
        let name = self.policy.unwrap_or(from);
        let range = |default: i8, min: i8, max: i8| {
            let priority = self.priority.unwrap_or(default);
            if (min..=max).contains(&priority) {
                return Ok(priority);
            }
            // The default priority is in range, so the error comes from a `priority` member.
            let member = get(members, "priority");
            let node = member.map(|m| m.node.clone());
            let node = node.unwrap_or(Node { pos: Default::default(), value: Value::Absent });
            Err(src.out_of_range("priority", &node, format!("from {min} to {max} here")))
        };
        let real_time = || range(10, 1, 99).map(i8::unsigned_abs);
        Ok(match name {
            PolicyName::Other => (PolicyDef::Normal, range(0, -20, 19)?),
            PolicyName::Batch => (PolicyDef::Batch, range(0, -20, 19)?),
            PolicyName::Idle => (PolicyDef::Idle, 0),
            PolicyName::Fifo => (PolicyDef::Fifo(real_time()?), 0),
            PolicyName::Rr => (PolicyDef::Rr(real_time()?), 0),
            PolicyName::Deadline => (self.deadline_policy(src, members)?, 0),
        })
    }

    fn deadline_policy(
        &self,
        src: &Source<'_>,
        members: &[Member],
    ) -> Result<PolicyDef, WorkloadError> {
        let runtime = self.runtime.unwrap_or(0);
        let period = self.period.unwrap_or(runtime);
        let deadline = self.deadline.unwrap_or(period);
        if runtime < 1024 || runtime > deadline || deadline > period {
            let pos = members.first().map_or_else(Default::default, |m| m.pos);
            let problem = "SCHED_DEADLINE needs 2 <= dl-runtime <= dl-deadline <= dl-period (us)";
            return Err(src.invalid(pos, problem));
        }
        let (runtime, deadline, period) = (TimeSpan(runtime), TimeSpan(deadline), TimeSpan(period));
        Ok(PolicyDef::Deadline { runtime, deadline, period })
    }
}

/// Parses `[0, 2-3]`, `[0, "2-3"]`, `"0,2-3"`, or one number.
fn cpus(src: &Source<'_>, key: &str, node: &Node) -> Result<CpuList, WorkloadError> {
    let allowed = "a list of numbers and ranges, such as [0, \"2-3\"], that is not empty";
    let bad = |at: &Node| src.out_of_range(key, at, allowed);
    let mut ranges = Vec::new();
    let items = match &node.value {
        Value::Array(items) => items.as_slice(),
        Value::String(_) | Value::Number(_) => std::slice::from_ref(node),
        _ => return Err(src.wrong_type(key, node, "a list of CPU numbers")),
    };
    for item in items {
        let (Value::Number(text) | Value::String(text)) = &item.value else {
            return Err(src.wrong_type(key, item, "a CPU number"));
        };
        for part in text.split(',') {
            ranges.push(parse_range(part).ok_or_else(|| bad(item))?);
        }
    }
    CpuList::from_ranges(ranges).ok_or_else(|| bad(node))
}

/// Parses a path from the root of the hierarchy; an empty string means no task group.
fn taskgroup(src: &Source<'_>, key: &str, node: &Node) -> Result<Option<String>, WorkloadError> {
    let path = src.string(key, node)?;
    if path.is_empty() {
        return Ok(None);
    }
    let trimmed = if path.len() > 1 { path.trim_end_matches('/') } else { path };
    let clean = trimmed.starts_with('/')
        && (trimmed == "/" || trimmed[1..].split('/').all(|p| !matches!(p, "" | "." | "..")));
    match clean {
        true => Ok(Some(trimmed.to_owned())),
        false => Err(src.out_of_range(key, node, "a path such as /a/b")),
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! The `global` section.
//!
//! Owns: the keys of the section, their types and defaults. A key that has no effect here is
//! accepted, in some cases with a note.

use super::json::{Member, Node, Pos, Value};
use super::read::Source;
use crate::error::WorkloadError;
use crate::program::time_span::MAX_NANOS;

/// A policy by rt-app's name. It lacks the priority, so it is not yet a `PolicyDef`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PolicyName {
    Other,
    Batch,
    Idle,
    Fifo,
    Rr,
    Deadline,
}

impl PolicyName {
    const ALL: [(&'static str, PolicyName); 6] = [
        ("SCHED_OTHER", PolicyName::Other),
        ("SCHED_BATCH", PolicyName::Batch),
        ("SCHED_IDLE", PolicyName::Idle),
        ("SCHED_RR", PolicyName::Rr),
        ("SCHED_FIFO", PolicyName::Fifo),
        ("SCHED_DEADLINE", PolicyName::Deadline),
    ];

    pub fn read(src: &Source<'_>, key: &str, node: &Node) -> Result<Self, WorkloadError> {
        let text = src.string(key, node)?;
        let found = Self::ALL.iter().find(|(name, _)| *name == text);
        found.map(|(_, policy)| *policy).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|(name, _)| *name).collect();
            src.out_of_range(key, node, format!("one of {}", names.join(", ")))
        })
    }

    /// Whether a task of this policy may be in a task group.
    pub fn is_fair(self) -> bool {
        matches!(self, PolicyName::Other | PolicyName::Batch | PolicyName::Idle)
    }
}

/// The settings of the section `global` that the simulation uses.
#[derive(Clone, Debug)]
pub struct Global {
    /// Length of the run in nanoseconds; None: until every task has exited.
    pub duration: Option<u64>,
    pub policy: PolicyName,
    pub pi_enabled: bool,
    pub cumulative_slack: bool,
    pub io_device: String,
    pub mem_buffer_size: u64,
}

impl Default for Global {
    fn default() -> Self {
        Global {
            duration: None,
            policy: PolicyName::Other,
            pi_enabled: false,
            cumulative_slack: false,
            io_device: "/dev/null".to_owned(),
            mem_buffer_size: 4 << 20,
        }
    }
}

/// The keys of the section `global`. The keys `frag` and `fragment` have no effect: rt-app's
/// example files contain `frag`, and old versions of rt-app, built for the AQuoSA scheduler, read
/// `fragment`.
const KEYS: [&str; 16] = [
    "duration",
    "calibration",
    "default_policy",
    "pi_enabled",
    "lock_pages",
    "logdir",
    "log_basename",
    "log_size",
    "ftrace",
    "gnuplot",
    "io_device",
    "mem_buffer_size",
    "cumulative_slack",
    "frag",
    "fragment",
    "spacing",
];

/// The categories of events that `ftrace` may name.
const FTRACE: [&str; 7] = ["main", "task", "run", "loop", "stats", "event", "attrs"];

/// Parses the members of the section `global` in order. A repeated key overrides the earlier one,
/// as in json-c.
pub fn read(src: &mut Source<'_>, members: &[Member]) -> Result<Global, WorkloadError> {
    let mut global = Global::default();
    for Member { key, pos, node } in members {
        match key.as_str() {
            "duration" => global.duration = duration(src, key, node)?,
            "default_policy" => global.policy = PolicyName::read(src, key, node)?,
            "pi_enabled" => {
                global.pi_enabled = src.bool(key, node)?;
                if global.pi_enabled {
                    src.note(*pos, "pi_enabled: priority inheritance is not modelled");
                }
            }
            "cumulative_slack" => global.cumulative_slack = src.bool(key, node)?,
            "io_device" => global.io_device = src.string(key, node)?.to_owned(),
            "mem_buffer_size" => {
                let size = src.int(key, node, 1, 1 << 40)?;
                global.mem_buffer_size = size.unsigned_abs();
            }
            other => without_effect(src, other, *pos, node)?,
        }
    }
    Ok(global)
}

/// Checks the keys that concern rt-app's own process, its calibration or its log, and have no
/// effect here.
fn without_effect(
    src: &mut Source<'_>,
    key: &str,
    pos: Pos,
    node: &Node,
) -> Result<(), WorkloadError> {
    match key {
        "lock_pages" | "gnuplot" => drop(src.bool(key, node)?),
        "logdir" | "log_basename" => drop(src.string(key, node)?),
        "calibration" => calibration(src, key, node)?,
        "log_size" => log_size(src, key, node)?,
        "ftrace" => ftrace(src, key, node)?,
        "frag" | "fragment" => {
            src.int(key, node, 0, i64::from(i32::MAX))?;
            src.note(pos, format!("{key}: for reservations of an old rt-app; has no effect"));
        }
        "spacing" => {
            if src.int(key, node, 0, i64::from(i32::MAX))? > 0 {
                src.note(pos, "spacing: no longer known to rt-app; use delay in each task");
            }
        }
        _ => {
            return Err(WorkloadError::UnknownKey {
                at: src.place(pos),
                key: key.to_owned(),
                within: "global".to_owned(),
                candidates: KEYS.iter().map(|k| (*k).to_owned()).collect(),
            });
        }
    }
    Ok(())
}

/// Parses the duration in seconds. With -1 or 0, the run lasts until every task has exited, as in
/// rt-app.
fn duration(src: &Source<'_>, key: &str, node: &Node) -> Result<Option<u64>, WorkloadError> {
    let max = (MAX_NANOS / 1_000_000_000).cast_signed();
    let seconds = src.int(key, node, -1, max)?;
    Ok((seconds > 0).then(|| seconds.unsigned_abs().saturating_mul(1_000_000_000)))
}

/// Checks `calibration`. It has no effect, because run events are work at reference speed.
fn calibration(src: &Source<'_>, key: &str, node: &Node) -> Result<(), WorkloadError> {
    let allowed = "\"CPU\" and a number, or nanoseconds per loop";
    match &node.value {
        Value::Number(_) => drop(src.int(key, node, 0, i64::from(i32::MAX))?),
        Value::String(text) => {
            let digits = text.strip_prefix("CPU").unwrap_or("");
            if digits.parse::<u32>().is_err() {
                return Err(src.out_of_range(key, node, allowed));
            }
        }
        _ => return Err(src.wrong_type(key, node, "a string or a whole number")),
    }
    Ok(())
}

fn log_size(src: &Source<'_>, key: &str, node: &Node) -> Result<(), WorkloadError> {
    match &node.value {
        Value::Number(_) => drop(src.int(key, node, 0, i64::from(i32::MAX))?),
        Value::String(text) => {
            let known = ["file", "disable", "auto"];
            if !known.iter().any(|k| text.eq_ignore_ascii_case(k)) {
                let allowed = "megabytes, \"file\", \"disable\" or \"auto\"";
                return Err(src.out_of_range(key, node, allowed));
            }
        }
        _ => return Err(src.wrong_type(key, node, "a string or a whole number")),
    }
    Ok(())
}

fn ftrace(src: &Source<'_>, key: &str, node: &Node) -> Result<(), WorkloadError> {
    match &node.value {
        Value::Bool(_) => Ok(()),
        Value::String(text) => {
            let good = |word: &str| {
                let word = word.trim();
                word.is_empty() || FTRACE.contains(&word) || matches!(word, "none" | "all")
            };
            if text.split(',').all(good) {
                return Ok(());
            }
            Err(src.out_of_range(key, node, format!("a list of {}", FTRACE.join(", "))))
        }
        _ => Err(src.wrong_type(key, node, "a string or a boolean")),
    }
}

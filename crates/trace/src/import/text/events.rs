// SPDX-License-Identifier: GPL-2.0-only
//! The events of a text, by their names.
//!
//! Models: the `TP_printk` formats of `include/trace/events/sched.h` and `task.h`, Linux 4.14 to
//! 7.3, and the forms of libtraceevent's plugin for `sched_switch` and `sched_wakeup`.

use super::fields::{between, numeric, short_who, state, value, who};
use super::head::{Rest, number};
use super::{calls, shortened};
use crate::import::raw::{Comms, RawKind, Who, marker};

/// What an event is.
pub enum Read {
    Kind(RawKind),
    /// Known, and nothing that scxlab needs.
    Ignored,
    Unknown(String),
}

/// `CLONE_THREAD`
const CLONE_THREAD: u64 = 1 << 16;

pub fn read(event: &Rest<'_>, comms: &mut Comms) -> Read {
    let Rest { name, fields } = *event;
    let kind = match name {
        "sched_switch" => switch(fields, comms),
        "sched_waking" => {
            wakeup(fields, comms).map(|(task, target)| RawKind::Waking { task, target })
        }
        "sched_wakeup" => {
            wakeup(fields, comms).map(|(task, target)| RawKind::Wakeup { task, target })
        }
        "sched_wakeup_new" => {
            wakeup(fields, comms).map(|(task, target)| RawKind::WakeupNew { task, target })
        }
        "sched_migrate_task" => migrate(fields, comms),
        "sched_process_fork" => fork(fields, comms),
        "sched_process_exec" => exec(fields),
        "sched_process_exit" => who(fields, "", comms).map(|task| RawKind::Exit { task }),
        "sched_process_free" => numeric(fields, "pid").map(|tid| RawKind::Free { tid }),
        "task_newtask" => new_task(fields, comms),
        "task_rename" => rename(fields, comms),
        "PERF_RECORD_LOST" => {
            fields.strip_prefix("lost ").and_then(number).map(|events| RawKind::Lost { events })
        }
        "print" | "tracing_mark_write" => return mark(fields),
        _ if name.starts_with("sched_stat_") || name.starts_with("sys_exit_") => {
            return Read::Ignored;
        }
        _ => match name.strip_prefix("sys_enter_").or_else(|| name.strip_prefix("sys_")) {
            Some(call) => return calls::read(call, fields),
            None => return Read::Unknown(format!("the event {}", shortened(name))),
        },
    };
    match kind {
        Some(kind) => Read::Kind(kind),
        None => Read::Unknown(format!("{name} without the fields that it must have")),
    }
}

fn switch(fields: &str, comms: &mut Comms) -> Option<RawKind> {
    let (prev, next) = fields.rsplit_once(" ==> ")?;
    if prev.starts_with("prev_comm=") {
        let state = state(value(prev, "prev_state")?)?;
        let (prev, next) = (who(prev, "prev_", comms)?, who(next, "next_", comms)?);
        return Some(RawKind::Switch { prev: Some(prev), state, next });
    }
    let (prev, letters) = prev.trim_end().rsplit_once(' ')?;
    let (prev, next) = (short_who(prev, comms)?, short_who(next, comms)?);
    Some(RawKind::Switch { prev: Some(prev), state: state(letters)?, next })
}

/// Reads `comm=X pid=N prio=N target_cpu=N` or `X:N [PRIO] ... CPU:N`.
fn wakeup(fields: &str, comms: &mut Comms) -> Option<(Who, u32)> {
    if fields.starts_with("comm=") {
        return Some((who(fields, "", comms)?, numeric(fields, "target_cpu")?));
    }
    let (task, cpu) = fields.rsplit_once("CPU:")?;
    let task = task.trim_end().trim_end_matches("success=1").trim_end();
    Some((short_who(task, comms)?, number(cpu)?))
}

fn migrate(fields: &str, comms: &mut Comms) -> Option<RawKind> {
    let task = who(fields, "", comms)?;
    Some(RawKind::Migrate {
        task,
        from: numeric(fields, "orig_cpu")?,
        to: numeric(fields, "dest_cpu")?,
    })
}

/// Reads `comm=X pid=N child_comm=Y child_pid=N`.
fn fork(fields: &str, comms: &mut Comms) -> Option<RawKind> {
    let comm = between(fields, "child_comm", "child_pid").map(|comm| comms.get(comm));
    let child = Who { tid: numeric(fields, "child_pid")?, comm, prio: None };
    Some(RawKind::Fork { parent: numeric(fields, "pid")?, child })
}

fn exec(fields: &str) -> Option<RawKind> {
    let tid = numeric(fields, "pid")?;
    Some(RawKind::Exec { tid, old: numeric(fields, "old_pid").unwrap_or(tid) })
}

/// Reads `pid=N comm=X clone_flags=HEX oom_score_adj=N`.
fn new_task(fields: &str, comms: &mut Comms) -> Option<RawKind> {
    let comm = between(fields, "comm", "clone_flags").map(|comm| comms.get(comm));
    let child = Who { tid: first_pid(fields)?, comm, prio: None };
    let flags = value(fields, "clone_flags").and_then(calls::hex);
    Some(RawKind::NewTask { child, thread: flags.map(|flags| flags & CLONE_THREAD != 0) })
}

/// Reads `pid=N oldcomm=X newcomm=Y oom_score_adj=N`.
fn rename(fields: &str, comms: &mut Comms) -> Option<RawKind> {
    let comm = between(fields, "newcomm", "oom_score_adj").map(|comm| comms.get(comm));
    Some(RawKind::Rename { task: Who { tid: first_pid(fields)?, comm, prio: None } })
}

/// Returns the thread id of an event that begins with it.
fn first_pid(fields: &str) -> Option<u32> {
    number(fields.strip_prefix("pid=")?.split(' ').next()?)
}

/// Reads a line of `trace_marker`. Lines of other programs are ignored.
fn mark(fields: &str) -> Read {
    let line = fields.strip_prefix("tracing_mark_write: ").unwrap_or(fields);
    marker(line).map_or(Read::Ignored, |call| Read::Kind(RawKind::Call(call)))
}

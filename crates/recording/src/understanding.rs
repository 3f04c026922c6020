// SPDX-License-Identifier: GPL-2.0-only
//! What was understood of a recording, for people.
//!
//! Owns: the figures by role, the chains of wake-ups, the critical path, and the share of run time
//! that is explained.
//! Does not: print.

mod path;

use std::collections::BTreeMap;

use scxlab_machine::Nanos;

use crate::history::{History, Step, TaskHistory, TaskIndex, Waker};
use crate::infer::{Replay, Wait, role_name};
pub use path::{PathPart, critical_path};

/// What was understood of a recording.
#[derive(Clone, Debug)]
pub struct Understanding {
    /// The roles, those with the most run time first.
    pub roles: Vec<Role>,
    /// The wake-ups from role to role, the most frequent first.
    pub chains: Vec<Chain>,
    /// The parts of the critical path, the longest first.
    pub path: Vec<PathPart>,
    /// Run time of the tasks of the workload in ns.
    pub run_ns: Nanos,
    /// Part of `run_ns` that follows a wait with a known cause, or no wait.
    pub explained_ns: Nanos,
    /// Causes that are not known, each with its number of waits.
    pub unknown: Vec<(&'static str, u64)>,
}

/// The tasks of one role.
#[derive(Clone, Debug, Default)]
pub struct Role {
    /// Name: that of its tasks without numbers.
    pub name: String,
    /// Number of tasks.
    pub tasks: u64,
    /// Time on CPUs in ns.
    pub run_ns: Nanos,
    /// Time in run queues in ns, which does not become part of the workload.
    pub queue_ns: Nanos,
    /// Work at reference speed in ns.
    pub work_ns: Nanos,
    /// Number of waits by meaning.
    pub waits: BTreeMap<&'static str, u64>,
    /// Number of waits that begin at times of their own, whatever the scheduler does.
    pub open_loop: u64,
}

/// Wake-ups from one role to another.
#[derive(Clone, Debug)]
pub struct Chain {
    /// Role of the waker; "outside" for interrupts and for tasks outside the workload.
    pub from: String,
    /// Role of the woken tasks.
    pub to: String,
    /// Number of wake-ups.
    pub count: u64,
    /// Mean work in ns of the woken task until its next wait.
    pub work_ns: Nanos,
}

/// Name of the source of wake-ups from outside the workload.
pub const OUTSIDE: &str = "outside";

/// Summarises what was understood.
pub fn understand(history: &History, replay: &Replay) -> Understanding {
    let mut roles: BTreeMap<String, Role> = BTreeMap::new();
    let mut chains: BTreeMap<(String, String), (u64, Nanos)> = BTreeMap::new();
    let mut unknown: BTreeMap<&'static str, u64> = BTreeMap::new();
    let (mut run_ns, mut explained_ns) = (0, 0);
    for (i, task) in history.tasks.iter().enumerate().filter(|(i, _)| replay.kept[*i]) {
        let name = role_name(&task.name.comm);
        let role = roles.entry(name.clone()).or_default();
        role.name = name.clone();
        role.tasks += 1;
        let work = task.work();
        // The times of a damaged file can be anything.
        role.run_ns = role.run_ns.saturating_add(task.run_ns);
        role.queue_ns = role.queue_ns.saturating_add(task.wait_ns);
        role.work_ns = role.work_ns.saturating_add(work);
        run_ns = u64::saturating_add(run_ns, task.run_ns);
        let mut explained = task.run_ns;
        for (sleep, after) in work_after(task) {
            let wait = replay.waits[i][sleep as usize];
            let s = &task.sleeps[sleep as usize];
            *role.waits.entry(wait_name(wait)).or_default() += 1;
            role.open_loop += u64::from(matches!(wait, Wait::Arrival | Wait::Timer));
            if let Some(cause) = unknown_cause(history, task, sleep, wait) {
                *unknown.entry(cause).or_default() += 1;
                // The share of the run time that the work after the wait has of all work.
                let share = u128::from(task.run_ns) * u128::from(after) / u128::from(work.max(1));
                explained = explained.saturating_sub(u64::try_from(share).unwrap_or(u64::MAX));
            }
            if s.until.is_some() {
                let from = source(history, replay, s.by);
                let chain = chains.entry((from, name.clone())).or_default();
                *chain = (chain.0 + 1, chain.1.saturating_add(after));
            }
        }
        explained_ns = u64::saturating_add(explained_ns, explained);
    }
    let mut roles: Vec<Role> = roles.into_values().collect();
    roles.sort_by_key(|role| std::cmp::Reverse(role.run_ns));
    let chain = |((from, to), (count, work)): ((String, String), (u64, Nanos))| Chain {
        from,
        to,
        count,
        work_ns: work / count.max(1),
    };
    let mut chains: Vec<Chain> = chains.into_iter().map(chain).collect();
    chains.sort_by_key(|chain| std::cmp::Reverse(chain.count));
    let path = critical_path(history, replay);
    let unknown = unknown.into_iter().collect();
    Understanding { roles, chains, path, run_ns, explained_ns, unknown }
}

/// Returns each wait of a task with the work that follows until the next wait.
fn work_after(task: &TaskHistory) -> Vec<(u32, Nanos)> {
    let mut waits: Vec<(u32, Nanos)> = Vec::new();
    for step in &task.steps {
        match (step, waits.last_mut()) {
            (Step::Sleep(sleep), _) => waits.push((*sleep, 0)),
            (Step::Work(work), Some((_, after))) => *after = after.saturating_add(*work),
            _ => {}
        }
    }
    waits
}

/// Returns the role of a waker.
fn source(history: &History, replay: &Replay, by: Waker) -> String {
    match by {
        Waker::Task(task) if replay.kept[task as usize] => {
            role_name(&history.tasks[task as usize].name.comm)
        }
        _ => OUTSIDE.to_owned(),
    }
}

/// Returns why the cause of a wait is not known; None: it is known.
fn unknown_cause(
    history: &History,
    task: &TaskHistory,
    sleep: u32,
    wait: Wait,
) -> Option<&'static str> {
    let s = &task.sleeps[sleep as usize];
    let before = task.steps[..s.step as usize].last();
    let after = task.steps.get(s.step as usize + 1);
    let call = |step: Option<&Step>| matches!(step, Some(Step::Call(..)));
    match (s.by, wait) {
        (_, Wait::Open) => None,
        (Waker::Unknown, _) => Some("the recording has no wake-up for the end of the wait"),
        (Waker::Interrupt, Wait::Arrival) if !call(before) && !call(after) => {
            Some(match history.has_calls {
                true => "an interrupt ended a wait that no system call of the recording explains",
                false => "an interrupt ended the wait, and the recording has no system calls",
            })
        }
        _ => None,
    }
}

/// Returns the name of a meaning.
pub fn wait_name(wait: Wait) -> &'static str {
    match wait {
        Wait::Open => "until the end",
        Wait::Channel => "channel",
        Wait::Barrier(_) => "barrier",
        Wait::Mutex(_) => "mutex",
        Wait::Dependency => "task",
        Wait::For(_) => "sleep",
        Wait::Timer => "timer",
        Wait::Io { .. } => "device",
        Wait::Arrival => "arrival",
        Wait::Start => "start",
    }
}

/// Returns the last wait of a task that ended at a time or before it.
fn wait_before(task: &TaskHistory, at: Nanos) -> Option<u32> {
    let count = task.sleeps.partition_point(|s| s.until.is_some_and(|until| until <= at));
    count.checked_sub(1).map(|i| i as u32)
}

/// Returns the tasks of the workload.
fn kept(replay: &Replay) -> impl Iterator<Item = TaskIndex> + '_ {
    (0..replay.kept.len()).filter(|t| replay.kept[*t]).map(|t| t as TaskIndex)
}

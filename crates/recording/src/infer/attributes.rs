// SPDX-License-Identifier: GPL-2.0-only
//! Names and attributes of threads and cgroups.
//!
//! Owns: names that are unique and no patterns.

use std::collections::BTreeMap;

use scxlab_trace::{TaskAttributes, TaskPolicy};
use scxlab_workload::program::{CgroupDef, CpuList, Op, PolicyDef, ThreadTemplate, TimeSpan};

use super::Plan;
use super::scale::{Copy, Scaled};
use crate::history::{History, TaskIndex};

/// Returns a name for each task: the name in the recording, with the thread id if several tasks
/// have the same name.
pub fn names(history: &History) -> Vec<String> {
    let mut count: BTreeMap<String, u32> = BTreeMap::new();
    let plain: Vec<String> = history.tasks.iter().map(|t| plain(&t.name.comm)).collect();
    for name in &plain {
        *count.entry(name.clone()).or_default() += 1;
    }
    let mut used: BTreeMap<String, u32> = BTreeMap::new();
    let mut unique = |name: String| {
        let again = used.entry(name.clone()).or_default();
        *again += 1;
        if *again == 1 { name } else { format!("{name}.{again}") }
    };
    let named = plain.into_iter().zip(&history.tasks).map(|(name, task)| {
        let single = count.get(&name) == Some(&1);
        if single { name } else { format!("{name}.{}", task.name.pid) }
    });
    named.map(&mut unique).collect()
}

/// Returns the name without the braces of a pattern.
fn plain(comm: &str) -> String {
    let name = comm.replace(['{', '}'], "_");
    if name.is_empty() { "task".to_owned() } else { name }
}

/// Returns the thread of a task in a copy, with its ops. A copy is in a process of its own, unless
/// the process has tasks that stay single.
pub fn thread(
    plan: &Plan<'_>,
    (copy, task): (Copy, TaskIndex),
    ops: Vec<Op>,
    scaled: &Scaled,
) -> ThreadTemplate {
    let t = &plan.history.tasks[task as usize];
    let fallback = TaskAttributes::default();
    let attributes = t.attributes.as_ref().unwrap_or(&fallback);
    let (policy, nice) = match t.attributes {
        Some(_) => (policy(attributes.policy), attributes.nice),
        None => by_priority(t.name.prio),
    };
    let delay = plan.begin(task).saturating_sub(plan.history.start);
    let shares = plan.history.tasks.iter().filter(|o| o.name.tgid == t.name.tgid).count() > 1;
    ThreadTemplate {
        instances: u32::from(!plan.is_forked(task)),
        policy,
        nice,
        slice: (attributes.slice > 0).then_some(TimeSpan(attributes.slice)),
        cpus: attributes.cpus.as_deref().and_then(cpu_list),
        cgroup: (attributes.cgroup.len() > 1).then(|| attributes.cgroup.clone()),
        process: shares.then(|| scaled.process(plan, copy, t.name.tgid)),
        delay: (delay > 0 && !plan.is_forked(task)).then_some(TimeSpan(delay)),
        ..ThreadTemplate::new(&scaled.name(copy, &plan.names[task as usize]), ops)
    }
}

/// Returns policy and nice value of a task of which only the kernel's priority is known: below 100
/// it is real-time, and deadline tasks have -1. Which real-time policy it is, and a deadline task's
/// parameters, are not known; they count as SCHED_FIFO.
fn by_priority(prio: i32) -> (PolicyDef, i8) {
    match prio {
        100.. => (PolicyDef::Normal, i8::try_from((prio - 120).clamp(-20, 19)).unwrap_or(0)),
        _ => (PolicyDef::Fifo(u8::try_from((99 - prio).clamp(1, 99)).unwrap_or(99)), 0),
    }
}

/// Returns the ops that change a task's attributes. A slice request goes with a policy.
pub fn change(before: &TaskAttributes, after: &TaskAttributes) -> Vec<Op> {
    let mut ops = Vec::new();
    if before.policy != after.policy {
        ops.push(Op::SetPolicy(policy(after.policy)));
    }
    if before.nice != after.nice {
        ops.push(Op::SetNice(after.nice));
    }
    if before.cpus != after.cpus {
        let cpus = after.cpus.as_deref().and_then(cpu_list);
        ops.push(cpus.map_or(Op::ClearAffinity, Op::SetAffinity));
    }
    if before.cgroup != after.cgroup {
        let root = || "/".to_owned();
        ops.push(Op::MoveCgroup(if after.cgroup.is_empty() {
            root()
        } else {
            after.cgroup.clone()
        }));
    }
    ops
}

fn policy(policy: TaskPolicy) -> PolicyDef {
    match policy {
        TaskPolicy::Normal => PolicyDef::Normal,
        TaskPolicy::Batch => PolicyDef::Batch,
        TaskPolicy::Idle => PolicyDef::Idle,
        TaskPolicy::Ext => PolicyDef::Ext,
        TaskPolicy::Fifo(prio) => PolicyDef::Fifo(prio),
        TaskPolicy::RoundRobin(prio) => PolicyDef::Rr(prio),
        TaskPolicy::Deadline { runtime, deadline, period } => PolicyDef::Deadline {
            runtime: TimeSpan(runtime),
            deadline: TimeSpan(deadline),
            period: TimeSpan(period),
        },
    }
}

fn cpu_list(text: &str) -> Option<CpuList> {
    let ranges: Option<Vec<_>> =
        text.split(',').map(|r| scxlab_workload::program::cpus::parse_range(r.trim())).collect();
    CpuList::from_ranges(ranges?)
}

/// Returns the cgroups of the workload's tasks, and those above them.
pub fn cgroups(plan: &Plan<'_>) -> Vec<CgroupDef> {
    let paths = plan.tasks().flat_map(|t| {
        let t = &plan.history.tasks[t as usize];
        t.attributes.iter().chain(&t.changes).map(|a| a.cgroup.as_str())
    });
    let mut used: BTreeMap<&str, ()> = BTreeMap::new();
    for mut path in paths {
        while path.len() > 1 {
            used.insert(path, ());
            path = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        }
    }
    used.into_keys().map(|path| cgroup(plan, path)).collect()
}

fn cgroup(plan: &Plan<'_>, path: &str) -> CgroupDef {
    let mut def = CgroupDef::new(path);
    if let Some(limits) = plan.history.cgroups.get(path) {
        def.weight = limits.weight;
        def.quota = limits.quota.map(TimeSpan);
        def.period = TimeSpan(limits.period);
        def.idle = limits.idle;
        def.cpus = limits.cpus.as_deref().and_then(cpu_list);
    }
    def
}

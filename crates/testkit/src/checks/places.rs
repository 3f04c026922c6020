// SPDX-License-Identifier: GPL-2.0-only
//! No task is lost or in two places: every runnable task runs on one CPU, waits in one queue, or is
//! in its scheduler's custody.

use super::Violation;
use scxlab_kernel::Kernel;
use scxlab_kernel::ext::entity::OpsState;
use scxlab_kernel::task::{Class, TaskState};
use scxlab_machine::id::{CpuId, TaskId};
use std::collections::BTreeMap;

const LAW: &str = "a task is in one place";

pub(super) fn check(k: &Kernel, broken: &mut Vec<Violation>) {
    let mut say = |what: String| broken.push(Violation { law: LAW, at: k.now, what });
    let mut places: BTreeMap<TaskId, Vec<String>> = BTreeMap::new();
    for c in &k.cpus {
        if !c.is_idle() {
            places.entry(c.curr).or_default().push(format!("running on CPU {}", c.id));
        }
        for &task in &c.wake_list {
            places.entry(task).or_default().push(format!("on the wake list of CPU {}", c.id));
        }
    }
    for (cpu, pcpu) in k.ext.cpus.iter().enumerate() {
        for &task in &pcpu.ddsp_deferred {
            places.entry(task).or_default().push(format!("deferred on CPU {cpu}"));
        }
    }
    for dsq in k.ext.dsqs.iter() {
        for task in dsq.iter() {
            places.entry(task).or_default().push(format!("on {:?}", dsq.kind));
        }
    }
    for task in k.tasks.iter().filter(|t| k.is_workload(t)) {
        let mut at = places.remove(&task.id).unwrap_or_default();
        if task.class == Class::Ext && matches!(task.ext.ops_state, OpsState::Queued { .. }) {
            at.push("in its scheduler's custody".into());
        }
        if task.class == Class::Fair
            && task.state == TaskState::Runnable
            && !task.on_cpu
            && task.on_rq
        {
            at.push("on the default class's queue".into());
        }
        if task.class > Class::Fair
            && task.state == TaskState::Runnable
            && !task.on_cpu
            && task.on_rq
        {
            at.push("on a real-time queue".into());
        }
        let wanted = usize::from(task.state == TaskState::Runnable);
        if task.state != TaskState::Dead && at.len() != wanted {
            let where_ = if at.is_empty() { "nowhere".into() } else { at.join(" and ") };
            say(format!("{}[{}] is {:?} and {where_}", task.name, task.pid, task.state));
        }
    }
    for (task, at) in places {
        if k.tasks.get(task).is_none() {
            say(format!("task {task} does not exist and is {}", at.join(" and ")));
        }
    }
    check_counts(k, say);
}

/// The counts of sched_ext's queued tasks are those of the tasks that are on a CPU's run queue.
fn check_counts(k: &Kernel, mut say: impl FnMut(String)) {
    let mut queued: BTreeMap<CpuId, u32> = BTreeMap::new();
    for task in k.tasks.iter().filter(|t| t.class == Class::Ext && t.on_rq) {
        *queued.entry(task.cpu).or_default() += 1;
    }
    for (cpu, pcpu) in (0..).map(CpuId).zip(k.ext.cpus.iter()) {
        let (counted, queued) = (pcpu.nr_running, queued.get(&cpu).copied().unwrap_or(0));
        if counted != queued {
            say(format!("CPU {cpu} counts {counted} queued tasks of {queued}"));
        }
    }
    let (counted, queued) = (k.ext.nr_queued, queued.values().sum::<u32>());
    if counted != queued {
        say(format!("{counted} queued tasks are counted in all of {queued}"));
    }
}

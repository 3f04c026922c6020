// SPDX-License-Identifier: GPL-2.0-only
//! CPUs that are idle while tasks wait that may run there: their count in the kernel's metrics, and
//! work conservation, for schedulers that promise it.

use super::Violation;
use scxlab_kernel::Kernel;
use scxlab_kernel::cpu::Cpu;
use scxlab_kernel::task::{Task, TaskState};
use scxlab_machine::id::{CpuId, Nanos};
use std::collections::BTreeMap;

const LAW: &str = "no CPU idles beside a waiting task";

/// For each CPU that is idle beside a waiting task: the time of the first check that found this
/// state, and the CPU's number of switches at that time.
#[derive(Default)]
pub(super) struct IdleWatch {
    since: BTreeMap<CpuId, (Nanos, u64)>,
}

impl IdleWatch {
    pub(super) fn check(&mut self, k: &Kernel, grace: Nanos, broken: &mut Vec<Violation>) {
        if !k.cpus.iter().any(idles) {
            return self.since.clear();
        }
        let waiting: Vec<&Task> = k.tasks.iter().filter(|t| waits(k, t)).collect();
        for c in &k.cpus {
            let waiter = waiting.iter().find(|t| t.allowed_on(c.id)).filter(|_| idles(c));
            let Some(waiter) = waiter else {
                self.since.remove(&c.id);
                continue;
            };
            let seen = self.since.entry(c.id).or_insert((k.now, c.switches));
            // The CPU ran something between two checks, so its idle time starts anew.
            if seen.1 != c.switches {
                *seen = (k.now, c.switches);
            }
            let idle = k.now - seen.0;
            if idle > grace {
                let (cpu, name, pid) = (c.id, &waiter.name, waiter.pid);
                let what =
                    format!("CPU {cpu} has been idle for {idle} ns while {name}[{pid}] waits");
                broken.push(Violation { law: LAW, at: k.now, what });
            }
        }
    }
}

const COUNT: &str = "the metrics count the CPUs that could have waiting tasks";

/// Compares the number of CPUs that count in `Metrics::idle_while_waiting` with the largest number
/// of idle CPUs that can be given a waiting task each. Where sets of CPUs overlap, the metric may
/// be less, but no less than half.
pub(super) fn count(k: &Kernel, broken: &mut Vec<Violation>) {
    if k.metrics.hotplugged {
        return;
    }
    let waiting: Vec<&Task> = k.tasks.iter().filter(|t| is_left_waiting(t)).collect();
    let mut given: BTreeMap<CpuId, usize> = BTreeMap::new();
    let idle: Vec<CpuId> = k.cpus.iter().filter(|c| c.is_idle()).map(|c| c.id).collect();
    let bound = (0..waiting.len()).filter(|i| !waiting[*i].all_cpus_allowed);
    let mut most = 0;
    for task in bound {
        most += u32::from(give(&waiting, &idle, task, &mut given, &mut Vec::new()));
    }
    let free = waiting.iter().filter(|t| t.all_cpus_allowed).count() as u32;
    most += free.min(idle.len() as u32 - most);
    let nested = waiting.iter().all(|t| t.all_cpus_allowed || t.nr_allowed == 1);
    let level = k.metrics.idle_while_waiting.level();
    if level > most || level * 2 < most || nested && level < most {
        let what = format!("{level} CPUs count, and {most} could have waiting tasks");
        broken.push(Violation { law: COUNT, at: k.now, what });
    }
}

/// Gives a task an idle CPU; tasks that have one may get another one instead.
fn give(
    waiting: &[&Task],
    idle: &[CpuId],
    task: usize,
    given: &mut BTreeMap<CpuId, usize>,
    tried: &mut Vec<CpuId>,
) -> bool {
    for cpu in idle.iter().filter(|cpu| waiting[task].allowed_on(**cpu)) {
        if tried.contains(cpu) {
            continue;
        }
        tried.push(*cpu);
        let owner = given.get(cpu).copied();
        if owner.is_none_or(|owner| give(waiting, idle, owner, given, tried)) {
            given.insert(*cpu, task);
            return true;
        }
    }
    false
}

fn is_left_waiting(t: &Task) -> bool {
    t.state == TaskState::Runnable && !t.on_cpu && !t.is_idle_task()
}

fn idles(c: &Cpu) -> bool {
    c.online && c.is_idle() && !c.need_resched && c.wake_list.is_empty()
}

fn waits(k: &Kernel, t: &Task) -> bool {
    k.is_workload(t) && t.state == TaskState::Runnable && !t.on_cpu && t.wake_queued.is_none()
}

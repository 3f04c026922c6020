// SPDX-License-Identifier: GPL-2.0-only
//! Work conservation, for schedulers that promise it: no CPU stays idle while a task waits that may
//! run there.

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

fn idles(c: &Cpu) -> bool {
    c.online && c.is_idle() && !c.need_resched && c.wake_list.is_empty()
}

fn waits(k: &Kernel, t: &Task) -> bool {
    k.is_workload(t) && t.state == TaskState::Runnable && !t.on_cpu && t.wake_queued.is_none()
}

// SPDX-License-Identifier: GPL-2.0-only
//! Work conservation, for schedulers that promise it: no CPU stays idle beside a task that waits and may run
//! there.

use super::Broken;
use scxlab_kernel::Kernel;
use scxlab_kernel::task::State;
use scxlab_machine::id::{CpuId, Nanos};
use std::collections::BTreeMap;

const LAW: &str = "no CPU idles beside a waiting task";

/// Since when each CPU has been idle beside a waiter, as seen by the looks so far.
#[derive(Default)]
pub(super) struct IdleWatch {
    since: BTreeMap<CpuId, Nanos>,
}

impl IdleWatch {
    pub(super) fn check(&mut self, k: &Kernel, grace: Nanos, broken: &mut Vec<Broken>) {
        for c in &k.cpus {
            let waiter = k.tasks.iter().find(|t| {
                k.is_workload(t)
                    && t.state == State::Runnable
                    && !t.on_cpu
                    && t.wake_queued.is_none()
                    && t.allowed_on(c.id)
            });
            let idle = c.online && c.is_idle() && !c.need_resched && c.wake_list.is_empty();
            let Some(waiter) = waiter.filter(|_| idle) else {
                self.since.remove(&c.id);
                continue;
            };
            let since = *self.since.entry(c.id).or_insert(k.now);
            if k.now - since > grace {
                broken.push(Broken {
                    law: LAW,
                    at: k.now,
                    what: format!(
                        "CPU {} has been idle for {} ns while {}[{}] waits",
                        c.id,
                        k.now - since,
                        waiter.name,
                        waiter.pid
                    ),
                });
            }
        }
    }
}

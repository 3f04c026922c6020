// SPDX-License-Identifier: GPL-2.0-only
//! What a trace tells beside scheduling: attributes of tasks, limits of cgroups, and the time of
//! the scheduler's programs that are no operations.
//!
//! Owns: the translation of the kernel's attributes into the trace's.
//! Does not: change the trace's hash, or cost virtual time. Nothing happens unless a sink takes the
//! events.

use scxlab_machine::id::{CgroupId, Nanos, TaskId};
use scxlab_trace::event::{Event, EventKind};
use scxlab_trace::{CgroupAttributes, TaskAttributes, TaskPolicy};

use crate::kernel::Kernel;
use crate::task::behavior::Policy;

impl Kernel {
    /// Records an event that is not part of the trace's hash.
    pub(crate) fn note(&mut self, kind: EventKind) {
        let (time, cpu) = (self.exec.clock, self.exec.cpu);
        self.tracer.note(Event { time, cpu, kind });
    }

    /// Records that a program of the scheduler that is no operation ran from `start` until now.
    /// `Kernel::op_about` records the operations.
    pub(crate) fn note_program(&mut self, start: Nanos) {
        if self.tracer.is_recording() {
            self.note(EventKind::Program { cost_ns: self.clock() - start });
        }
    }

    /// Records the attributes of a task, which is new or whose attributes have changed.
    pub(crate) fn note_attributes(&mut self, task: TaskId) {
        if !self.tracer.is_recording() {
            return;
        }
        let t = &self.tasks[task];
        let group = t.cgroup;
        let attributes = TaskAttributes {
            policy: policy(t.policy),
            nice: t.nice,
            slice: t.slice_request,
            cpus: (!self.has_all_cpus(&t.user_cpus)).then(|| t.user_cpus.to_string()),
            cgroup: self.cgroups.get(group).map_or("/", |g| &g.path).to_owned(),
            kthread: t.kthread,
        };
        self.describe_cgroups(group);
        self.name_in_trace(task);
        self.tracer.names.set_attributes(task, attributes);
        self.note(EventKind::Attributes { task });
    }

    /// Gives the trace the limits of a cgroup and of its ancestors.
    fn describe_cgroups(&mut self, lowest: CgroupId) {
        let mut next = Some(lowest);
        while let Some(group) = next.and_then(|id| self.cgroups.get(id)) {
            next = group.parent;
            let spec = &group.spec;
            let attributes = CgroupAttributes {
                weight: spec.weight,
                quota: spec.quota,
                period: spec.period,
                idle: spec.idle,
                cpus: group.cpuset.as_ref().map(|cpus| cpus.to_string()),
            };
            self.tracer.names.set_cgroup(&group.path, attributes);
        }
    }
}

fn policy(policy: Policy) -> TaskPolicy {
    match policy {
        Policy::Normal => TaskPolicy::Normal,
        Policy::Batch => TaskPolicy::Batch,
        Policy::Idle => TaskPolicy::Idle,
        Policy::Ext => TaskPolicy::Ext,
        Policy::Fifo { prio } => TaskPolicy::Fifo(prio),
        Policy::RoundRobin { prio } => TaskPolicy::RoundRobin(prio),
        Policy::Deadline { runtime, deadline, period } => {
            TaskPolicy::Deadline { runtime, deadline, period }
        }
    }
}

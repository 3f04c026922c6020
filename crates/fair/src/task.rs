// SPDX-License-Identifier: GPL-2.0-only
//! Tasks: creation and removal, and changes of weight, slice, group and class.
//!
//! Owns: the parameters of a task. To change a queued task, the class takes it off its queue,
//! changes it, and puts it back, so that no order or sum is stale. The task keeps its lag and the
//! distance to its deadline.
//! Models: `sched_change` scopes, `reweight_task_fair()`, `__setparam_fair()`,
//! `task_change_group_fair()`, `switched_from_fair()`, `switched_to_fair()`, v7.3.

use super::group::nested;
use super::queue::Leave;
use super::state::{Entity, EntityId, FairPolicy, FairTask, Resched, Waker};
use super::weight::{WEIGHT_IDLEPRIO, nice_weight, scale_load, scale_load_down};
use super::{EnqueueFlags, Fair, WakeFlags};
use scxlab_machine::id::{CgroupId, CpuId, Nanos, TaskId};

/// Parameters of a task in this class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskParams {
    pub nice: i8,
    pub policy: FairPolicy,
    /// Slice that the task requests (`sched_attr.sched_runtime`), ns; 0 means the default slice.
    pub slice_request: Nanos,
    /// Cgroup of the task; 0 is the root.
    pub group: CgroupId,
    /// Leader of the task's process, which may be the task itself; None for a kernel thread.
    pub process: Option<TaskId>,
}

impl Default for TaskParams {
    fn default() -> Self {
        TaskParams {
            nice: 0,
            policy: FairPolicy::Normal,
            slice_request: 0,
            group: CgroupId(0),
            process: None,
        }
    }
}

/// State of a task in this class, for dumps, traces and checkers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TaskDump {
    pub cpu: Option<CpuId>,
    pub queued: bool,
    pub delayed: bool,
    pub throttled: bool,
    pub vruntime: u64,
    pub deadline: u64,
    pub slice_ns: Nanos,
    /// `weight` is the task's weight within its group. `cpu_weight` is its weight on its CPU, with
    /// the shares of all groups applied. Both are scaled by 1024.
    pub weight: u64,
    pub cpu_weight: u64,
    /// Virtual lag: the present lag of a queued task, else the lag with which the task left its
    /// queue.
    pub vlag: i64,
    /// The lag as run time, ns: w (V - v) / NICE_0_LOAD, where w is `cpu_weight`.
    pub lag_ns: i64,
    pub sum_exec_runtime: Nanos,
    pub load_avg: u64,
    pub util_avg: u64,
}

impl Fair {
    /// Adds a new task, which is not queued yet. The task inherits nothing from its parent here.
    pub fn task_new(&mut self, id: TaskId, params: TaskParams) {
        let weight = task_weight(params.policy, params.nice);
        let mut entity = Entity::new(Some(id), super::state::CfsRqId::NIL, weight, self.base_slice);
        entity.avg.load_avg = scale_load_down(weight);
        set_slice(&mut entity, params.slice_request, self.base_slice);
        let task = FairTask {
            ent: self.add_entity(entity),
            policy: params.policy,
            group: nested(params.group),
            cpu: None,
            attached: true,
            throttled: false,
            waker: Waker::default(),
            recent_used_cpu: None,
            process: params.process,
            prefers_llc: None,
            at_home: false,
            prev: EntityId::NIL,
            next: EntityId::NIL,
        };
        if self.tasks.len() <= id.idx() {
            self.tasks.resize(id.idx() + 1, None);
        }
        assert!(self.tasks[id.idx()].is_none(), "task {id} exists already");
        self.tasks[id.idx()] = Some(task);
        if let (Some(caches), Some(leader)) = (&mut self.caches, params.process) {
            caches.thread_new(leader);
        }
    }

    /// Removes a task. The caller must have dequeued it (`DequeueFlags::EXIT`), and it must not
    /// run.
    pub fn task_dead(&mut self, id: TaskId, now: Nanos) {
        self.end_delay(id, now);
        let e = self.task(id).ent;
        assert!(!self.ents[e].on_rq, "task {id} dies while queued");
        if self.task(id).throttled {
            self.leave_limbo(id, super::DequeueFlags::EXIT);
        }
        if self.task(id).attached && self.ents[e].avg.last_update_time != 0 {
            self.remove_load(e);
        }
        self.free_ents.push(e);
        let leader = self.task(id).process;
        if let (Some(caches), Some(leader)) = (&mut self.caches, leader) {
            caches.thread_dead(leader);
        }
        self.tasks[id.idx()] = None;
    }

    /// Changes `nice` or the policy. The result says whether the task's CPU should reschedule.
    pub fn reweight(&mut self, id: TaskId, nice: i8, policy: FairPolicy, now: Nanos) -> Resched {
        let weight = task_weight(policy, nice);
        let old = self.ents[self.task(id).ent].load;
        self.change(id, now, |fair, e| {
            fair.task_mut(id).policy = policy;
            if fair.task(id).attached {
                fair.reweight_entity(e, weight);
            } else {
                fair.ents[e].load = weight;
            }
        });
        self.priority_changed(id, weight < old)
    }

    fn priority_changed(&mut self, id: TaskId, lower: bool) -> Resched {
        let task = self.task(id);
        let (e, cpu) = (task.ent, task.cpu);
        let Some(cpu) = cpu.filter(|_| self.ents[e].on_rq) else {
            return Resched::No;
        };
        if self.nr_running(cpu) == 1 {
            return Resched::No;
        }
        if self.cpus[cpu].curr == e {
            if lower {
                self.want_resched(cpu, Resched::Now);
            }
            return self.cpus[cpu].resched;
        }
        self.wakeup_preempt(cpu, id, WakeFlags::default())
    }

    /// Sets the slice that the task requests (`sched_attr.sched_runtime`), clamped to 0.1 to 100
    /// ms. 0 means the default slice.
    pub fn set_slice_request(&mut self, id: TaskId, request: Nanos, now: Nanos) {
        let base = self.base_slice;
        self.change(id, now, |fair, e| set_slice(&mut fair.ents[e], request, base));
    }

    /// Moves the task to another cgroup.
    pub fn set_group(&mut self, id: TaskId, group: CgroupId, now: Nanos) {
        let group = nested(group);
        if self.task(id).group == group {
            return;
        }
        self.change(id, now, |fair, e| {
            let attached = fair.task(id).attached && fair.ents[e].avg.last_update_time != 0;
            if attached {
                fair.detach_entity(e);
            }
            fair.task_mut(id).group = group;
            let Some(cpu) = fair.task(id).cpu else { return };
            fair.set_queue(e, group, cpu);
            if attached {
                fair.ents[e].avg.last_update_time = 0;
                fair.attach_entity(e);
            }
        });
    }

    /// Detaches a task that leaves for another class. The caller must have dequeued the task, and
    /// have called `put_prev` if it ran.
    pub fn switched_from(&mut self, id: TaskId, now: Nanos) {
        self.end_delay(id, now);
        if let Some(cpu) = self.task(id).cpu {
            self.update_clock(cpu, now);
        }
        let e = self.task(id).ent;
        if std::mem::take(&mut self.task_mut(id).attached) {
            self.detach_entity(e);
        }
    }

    /// Attaches a task that comes (back) from another class, on this CPU. The kernel calls this
    /// before it enqueues the task.
    pub fn switched_to(&mut self, id: TaskId, cpu: CpuId, now: Nanos) {
        self.update_clock(cpu, now);
        let e = self.task(id).ent;
        if std::mem::replace(&mut self.task_mut(id).attached, true) {
            return;
        }
        self.task_mut(id).cpu = Some(cpu);
        self.set_queue(e, self.task(id).group, cpu);
        self.attach_entity(e);
    }

    /// Returns the state of a task. Values that depend on the time are those of the last charge.
    pub fn dump_task(&mut self, id: TaskId) -> TaskDump {
        let task = self.task(id);
        let (e, cpu, throttled) = (task.ent, task.cpu, task.throttled);
        let queued_on = cpu.filter(|_| self.ents[e].on_rq);
        let vlag = match queued_on {
            Some(cpu) => self.avg_vruntime(cpu).wrapping_sub(self.ents[e].vruntime) as i64,
            None => self.ents[e].vlag,
        };
        let entity = &self.ents[e];
        TaskDump {
            cpu,
            queued: entity.on_rq,
            delayed: entity.sched_delayed,
            throttled,
            vruntime: entity.vruntime,
            deadline: entity.deadline,
            slice_ns: entity.slice,
            weight: entity.load,
            cpu_weight: entity.h_load,
            vlag,
            lag_ns: super::weight::rescale(vlag, entity.h_load, super::weight::NICE_0_LOAD),
            sum_exec_runtime: entity.sum_exec_runtime,
            load_avg: entity.avg.load_avg,
            util_avg: entity.avg.util_avg,
        }
    }

    /// Dequeues the task if it is queued, lets `f` change it, and puts it back.
    fn change(&mut self, id: TaskId, now: Nanos, f: impl FnOnce(&mut Fair, EntityId)) {
        let e = self.task(id).ent;
        let cpu = self.task(id).cpu;
        if let Some(cpu) = cpu {
            self.update_clock(cpu, now);
        }
        let limbo = self.task(id).throttled;
        let queued_on = cpu.filter(|_| self.ents[e].on_rq);
        let running_on = cpu.filter(|&cpu| self.cpus[cpu].curr == e);
        if limbo {
            self.leave_limbo(id, super::DequeueFlags::SAVE);
        }
        if let Some(cpu) = queued_on {
            self.dequeue_task(cpu, e, Leave::default());
        }
        if let Some(cpu) = running_on {
            self.stop_entity(cpu, e);
        }
        f(self, e);
        if let Some(cpu) = queued_on {
            self.enqueue_task(cpu, e, EnqueueFlags::RESTORE);
        } else if let (true, Some(cpu)) = (limbo, cpu)
            && !self.stays_in_limbo(cpu, id)
        {
            self.enqueue_task(cpu, e, EnqueueFlags::RESTORE);
        }
        if let Some(cpu) = running_on {
            self.run_entity(cpu, e, false);
        }
    }

    /// Moves the accounting of a task's load to the queue of the task's group on `cpu`, and removes
    /// the load from the queue where it counted before.
    pub(super) fn account_on(&mut self, id: TaskId, cpu: CpuId, now: Nanos) {
        let task = self.task(id);
        let (e, group, old) = (task.ent, task.group, task.cpu);
        if old == Some(cpu) && !self.ents[e].cfs_rq.is_nil() {
            return;
        }
        if let Some(old) = old {
            self.update_clock(old, now);
            if self.task(id).attached && self.ents[e].avg.last_update_time != 0 {
                self.remove_load(e);
                self.age_to_now(e);
            }
            self.ents[e].avg.last_update_time = 0;
        }
        self.task_mut(id).cpu = Some(cpu);
        self.set_queue(e, group, cpu);
    }

    fn set_queue(&mut self, e: EntityId, group: Option<CgroupId>, cpu: CpuId) {
        let rq = self.queue_of(group, cpu);
        self.ents[e].cfs_rq = rq;
        self.ents[e].parent = self.rqs[rq].ent;
    }
}

fn task_weight(policy: FairPolicy, nice: i8) -> u64 {
    scale_load(match policy {
        FairPolicy::Idle => WEIGHT_IDLEPRIO,
        FairPolicy::Normal | FairPolicy::Batch => nice_weight(nice),
    })
}

fn set_slice(entity: &mut Entity, request: Nanos, base: Nanos) {
    entity.custom_slice = request != 0;
    entity.slice = match request {
        0 => base,
        _ => request.clamp(100_000, 100_000_000),
    };
}

// SPDX-License-Identifier: GPL-2.0-only
//! The records of the default class: entities, queues per group and CPU, CPUs, groups.
//!
//! Owns: layout and ids. An entity is a task, or a group on one CPU. A `CfsRq` is the queue of a
//! group on one CPU. Since 7.x all tasks of a CPU compete in the root queue's tree, whatever their
//! group, and groups only set the tasks' weights.
//! Models: `sched_entity`, `cfs_rq`, `task_group`, the fair part of `rq`, v7.3.

use super::pelt::SchedAvg;
use super::weight::NICE_0_LOAD;
use scxlab_machine::id::{CgroupId, CpuId, Nanos, TaskId};
use std::collections::BTreeSet;
use std::ops::{Index, IndexMut};

/// Index of an entity in `Ents`. `NIL` means no entity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntityId(pub u32);
/// Index of a queue in `Rqs`. `NIL` means no queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CfsRqId(pub u32);

impl EntityId {
    pub const NIL: EntityId = EntityId(u32::MAX);
    #[inline]
    pub fn is_nil(self) -> bool {
        self.0 == u32::MAX
    }
    #[inline]
    pub fn some(self) -> Option<EntityId> {
        (!self.is_nil()).then_some(self)
    }
}

impl CfsRqId {
    pub const NIL: CfsRqId = CfsRqId(u32::MAX);
    #[inline]
    pub fn is_nil(self) -> bool {
        self.0 == u32::MAX
    }
}

/// Entities, indexed by `EntityId`.
#[derive(Debug, Default)]
pub(super) struct Ents(pub Vec<Entity>);
/// Queues, indexed by `CfsRqId`; the root queue of CPU n has index n.
#[derive(Debug, Default)]
pub(super) struct Rqs(pub Vec<CfsRq>);
#[derive(Debug, Default)]
pub(super) struct Cpus(pub Vec<FairCpu>);

macro_rules! indexed {
    ($table:ident, $id:ident, $row:ident, $i:ident => $at:expr) => {
        impl Index<$id> for $table {
            type Output = $row;
            #[inline]
            fn index(&self, $i: $id) -> &$row {
                &self.0[$at]
            }
        }
        impl IndexMut<$id> for $table {
            #[inline]
            fn index_mut(&mut self, $i: $id) -> &mut $row {
                &mut self.0[$at]
            }
        }
    };
}
indexed!(Ents, EntityId, Entity, i => i.0 as usize);
indexed!(Rqs, CfsRqId, CfsRq, i => i.0 as usize);
indexed!(Cpus, CpuId, FairCpu, i => i.idx());

/// A schedulable entity.
#[derive(Clone, Debug)]
pub(super) struct Entity {
    /// The task that the entity stands for, or None if it stands for the group whose queue is
    /// `my_q`.
    pub task: Option<TaskId>,
    pub my_q: CfsRqId,
    /// `cfs_rq` is the queue in which the entity is accounted. `parent` is the entity of that
    /// queue's group.
    pub cfs_rq: CfsRqId,
    pub parent: EntityId,
    /// Weight of the entity within its queue.
    pub load: u64,
    /// Weight on the CPU: `load` times the shares of all groups above.
    pub h_load: u64,

    pub vruntime: u64,
    pub deadline: u64,
    /// Virtual lag (V - v), valid while the entity is not queued.
    pub vlag: i64,
    /// Vruntime up to which the entity, once it runs, keeps its CPU although another entity has an
    /// earlier deadline.
    pub vprot: u64,
    pub slice: Nanos,
    pub on_rq: bool,
    /// The entity sleeps, but competes until its lag is paid back.
    pub sched_delayed: bool,
    /// `deadline` is relative to vruntime (while the entity is dequeued).
    pub rel_deadline: bool,
    pub custom_slice: bool,
    pub exec_start: Nanos,
    pub sum_exec_runtime: Nanos,
    pub prev_sum_exec_runtime: Nanos,
    /// Entity of a group: number of runnable tasks in the group, as the entity's averages count
    /// them.
    pub runnable_weight: u64,
    pub avg: SchedAvg,

    pub node: TreeNode,
}

/// Links of the deadline tree, and the aggregates over the node's subtree (see `tree.rs`).
#[derive(Clone, Copy, Debug)]
pub(super) struct TreeNode {
    pub left: EntityId,
    pub right: EntityId,
    pub prio: u64,
    /// Order of arrival, which decides among equal deadlines.
    pub seq: u64,
    pub min_vruntime: u64,
    pub min_slice: Nanos,
    pub max_slice: Nanos,
}

impl Entity {
    pub fn new(task: Option<TaskId>, my_q: CfsRqId, load: u64, slice: Nanos) -> Self {
        Entity {
            task,
            my_q,
            cfs_rq: CfsRqId::NIL,
            parent: EntityId::NIL,
            load,
            h_load: load,
            vruntime: 0,
            deadline: 0,
            vlag: 0,
            vprot: 0,
            slice,
            on_rq: false,
            sched_delayed: false,
            rel_deadline: false,
            custom_slice: false,
            exec_start: 0,
            sum_exec_runtime: 0,
            prev_sum_exec_runtime: 0,
            runnable_weight: 0,
            avg: SchedAvg::default(),
            node: TreeNode {
                left: EntityId::NIL,
                right: EntityId::NIL,
                prio: 0,
                seq: 0,
                min_vruntime: 0,
                min_slice: 0,
                max_slice: 0,
            },
        }
    }
}

/// Queue of one group on one CPU.
#[derive(Clone, Debug)]
pub(super) struct CfsRq {
    pub cpu: CpuId,
    /// Group to which the queue belongs; None is the root group.
    pub group: Option<CgroupId>,
    /// The group's entity on this CPU; NIL for the root.
    pub ent: EntityId,
    pub depth: u32,

    /// Sum of `load` of the queued entities, the running one included.
    pub load: u64,
    pub nr_queued: u32,
    /// Numbers of tasks in this group and its descendants. `h_nr_queued` counts queued tasks
    /// (delayed ones included), `h_nr_runnable` runnable tasks, and `h_nr_idle` queued tasks of
    /// idle policy or in idle groups.
    pub h_nr_queued: u32,
    pub h_nr_runnable: u32,
    pub h_nr_idle: u32,
    /// Entity of this queue on the path to the running task.
    pub h_curr: EntityId,
    pub idle: bool,

    pub avg: SchedAvg,
    pub removed: Removed,
    pub propagate: bool,
    pub prop_runnable_sum: i64,
    pub tg_load_avg_contrib: u64,
    pub tg_runnable_avg_contrib: u64,
    pub last_update_tg: Nanos,
    pub h_load: u64,
    /// Jiffy in which `h_load` was computed.
    pub h_load_at: u64,
    pub on_leaf_list: bool,

    pub runtime_enabled: bool,
    pub runtime_remaining: i64,
    pub throttled: bool,
    /// Number of throttled queues on the path to the root, this one included.
    pub throttle_count: u32,
    pub throttled_at: Option<Nanos>,
    pub pelt_clock_throttled: bool,
    pub throttled_clock_pelt: u64,
    pub throttled_clock_pelt_time: u64,
    /// Tasks that were taken off the CPU because this queue is throttled.
    pub limbo: Vec<TaskId>,
}

/// Averages of sleepers that left for another CPU. The next update of their queue subtracts them.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Removed {
    pub nr: u32,
    pub load_avg: u64,
    pub util_avg: u64,
    pub runnable_avg: u64,
}

impl CfsRq {
    pub fn new(cpu: CpuId, group: Option<CgroupId>, ent: EntityId, depth: u32) -> Self {
        CfsRq {
            cpu,
            group,
            ent,
            depth,
            load: 0,
            nr_queued: 0,
            h_nr_queued: 0,
            h_nr_runnable: 0,
            h_nr_idle: 0,
            h_curr: EntityId::NIL,
            idle: false,
            avg: SchedAvg::default(),
            removed: Removed::default(),
            propagate: false,
            prop_runnable_sum: 0,
            tg_load_avg_contrib: 0,
            tg_runnable_avg_contrib: 0,
            last_update_tg: 0,
            h_load: 0,
            h_load_at: u64::MAX,
            on_leaf_list: false,
            runtime_enabled: false,
            runtime_remaining: 0,
            throttled: false,
            throttle_count: 0,
            throttled_at: None,
            pelt_clock_throttled: false,
            throttled_clock_pelt: 0,
            throttled_clock_pelt_time: 0,
            limbo: Vec::new(),
        }
    }
}

/// The fair part of a CPU's run queue.
#[derive(Clone, Debug)]
pub(super) struct FairCpu {
    pub online: bool,
    pub capacity: u64,
    pub clock: Nanos,
    pub clock_pelt: u64,
    pub lost_idle_time: u64,
    /// Load of the running task if it needs a larger CPU and may run on one; else 0
    /// (`rq->misfit_task_load`).
    pub misfit_load: u64,

    // The EEVDF state: the tree contains all queued tasks except the running one.
    pub tree: EntityId,
    pub curr: EntityId,
    /// Task that the next pick prefers.
    pub next: EntityId,
    pub sum_w_vruntime: i128,
    pub sum_weight: u64,
    pub zero_vruntime: u64,
    pub seq: u64,

    pub resched: Resched,
    /// Queues with load that decays, children before parents.
    pub leaves: Vec<CfsRqId>,
    /// `cfs_tasks`: queued tasks, most recently run first.
    pub tasks_head: EntityId,
    pub tasks_tail: EntityId,

    pub idle_stamp: Nanos,
    pub avg_idle: Nanos,
    pub max_idle_balance_cost: Nanos,
    /// Jiffy of the next periodic balance.
    pub next_balance: u64,
    pub active_balance: Option<Push>,
    pub has_blocked_load: bool,
    pub last_blocked_update: u64,
    pub nohz_idle: bool,
    pub nohz_kick: u8,
    pub rng: u64,
    pub idle_waker: Waker,
}

/// The push of a running task that a balance requested.
#[derive(Clone, Copy, Debug)]
pub(super) struct Push {
    pub to: CpuId,
    /// Only a task that prefers the LLC of `to` may go.
    pub llc_only: bool,
}

/// Whether, and how urgently, a CPU should call the scheduler.
///
/// The class asks for `Lazy` at the end of a slice and on wake-up preemption. Under lazy
/// preemption, `Lazy` takes effect at the CPU's next return to user mode (no IPI), and becomes
/// `Now` at the CPU's next tick. Under full preemption the two are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Resched {
    #[default]
    No,
    Lazy,
    Now,
}

/// Record of the tasks that a task wakes. It distinguishes 1:1 partners from a dispatcher with many
/// workers (`record_wakee()`).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Waker {
    pub last_wakee: Option<TaskId>,
    pub flips: u32,
    pub decay_at: u64,
}

impl FairCpu {
    pub fn new(capacity: u64, migration_cost: Nanos, rng: u64) -> Self {
        FairCpu {
            online: true,
            capacity,
            clock: 0,
            clock_pelt: 0,
            lost_idle_time: 0,
            misfit_load: 0,
            tree: EntityId::NIL,
            curr: EntityId::NIL,
            next: EntityId::NIL,
            sum_w_vruntime: 0,
            sum_weight: 0,
            // Virtual time starts just below the wrap-around, so that arithmetic that is not
            // modular fails early.
            zero_vruntime: (1u64 << 20).wrapping_neg(),
            seq: 0,
            resched: Resched::No,
            leaves: Vec::new(),
            tasks_head: EntityId::NIL,
            tasks_tail: EntityId::NIL,
            idle_stamp: 0,
            avg_idle: 2 * migration_cost,
            max_idle_balance_cost: migration_cost,
            next_balance: 0,
            active_balance: None,
            has_blocked_load: false,
            last_blocked_update: 0,
            nohz_idle: false,
            nohz_kick: 0,
            rng,
            idle_waker: Waker::default(),
        }
    }
}

/// State of a task besides its entity. The task keeps the same entity for life.
#[derive(Clone, Debug)]
pub(super) struct FairTask {
    pub ent: EntityId,
    pub policy: FairPolicy,
    pub group: Option<CgroupId>,
    /// CPU on which the task's load is accounted; None before the first enqueue.
    pub cpu: Option<CpuId>,
    /// False while the task belongs to another class.
    pub attached: bool,
    /// The task is in a throttled queue's limbo.
    pub throttled: bool,
    pub waker: Waker,
    pub recent_used_cpu: Option<CpuId>,
    /// Leader of the task's process; None for a kernel thread.
    pub process: Option<TaskId>,
    /// LLC on which the task should run, and whether the task is queued there.
    pub prefers_llc: Option<u32>,
    pub at_home: bool,
    // Neighbours in the CPU's list of queued tasks (`cfs_tasks`).
    pub prev: EntityId,
    pub next: EntityId,
}

/// The policies of this class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FairPolicy {
    Normal,
    Batch,
    Idle,
}

/// A cgroup.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub parent: Option<CgroupId>,
    /// Children in the order of creation, which is the order of their ids.
    pub children: BTreeSet<CgroupId>,
    /// Weight, scaled by `scale_load`.
    pub shares: u64,
    pub idle: bool,
    /// Ids of the group's queues, indexed by CPU; NIL until something first needs the queue.
    pub rqs: Vec<CfsRqId>,
    /// Number of CPUs that the group's cpuset allows; None means all on-line CPUs.
    pub nr_cpus: Option<u32>,
    pub load_avg: i64,
    pub runnable_avg: i64,
    pub bw: Bandwidth,
}

/// `cpu.max` of a group: the global pool and its timers.
#[derive(Clone, Debug, Default)]
pub(super) struct Bandwidth {
    /// Run time per period; None means unlimited.
    pub quota: Option<Nanos>,
    pub period: Nanos,
    pub burst: Nanos,
    pub runtime: Nanos,
    pub runtime_snap: Nanos,
    /// Offset of the period boundaries, ns.
    pub phase: Nanos,
    /// Time at which the period timer expires; None if the timer is not armed.
    pub period_at: Option<Nanos>,
    pub slack_at: Option<Nanos>,
    pub idle: bool,
    /// Throttled queues, in the order in which they were throttled.
    pub throttled: Vec<CfsRqId>,
    pub nr_periods: u64,
    pub nr_throttled: u64,
    pub throttled_time: Nanos,
    pub nr_burst: u64,
    pub burst_time: Nanos,
}

impl Group {
    pub fn new(parent: Option<CgroupId>, nr_cpus: usize) -> Self {
        Group {
            parent,
            children: BTreeSet::new(),
            shares: NICE_0_LOAD,
            idle: false,
            rqs: vec![CfsRqId::NIL; nr_cpus],
            nr_cpus: None,
            load_avg: 0,
            runnable_avg: 0,
            bw: Bandwidth { period: 100_000_000, ..Bandwidth::default() },
        }
    }
}

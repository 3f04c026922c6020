// SPDX-License-Identifier: GPL-2.0-only
//! Tasks, and the table that holds each task in a slot. A slot holds the kernel's private state of
//! the task; the part that BPF programs can see (`struct task_struct` of `abi/kernel.h`) is in
//! guest memory.
//!
//! Owns: allocation of slots and pids.
//! Does not: decide or charge anything, or fill the guest part of the slots (see `mirror.rs`).

pub mod behavior;
mod cut;
mod exec;
mod life;
mod notes;
mod sys;

use crate::cgroup::co_scheduling::CoschedState;
use crate::ext::entity::ExtEntity;
use crate::task::behavior::{Policy, TaskStep};
pub use crate::task::cut::Cut;
use scxlab_bpf::mem::{Memory, Perm};
use scxlab_machine::cpumask::{self, CpuMask};
use scxlab_machine::id::{CgroupId, CpuId, Nanos, NodeId, TaskId};
use std::collections::VecDeque;

/// Distance between two task slots in guest memory, bytes. `cpus_mask` alone takes NR_CPUS/8 = 1
/// KiB. The distance is a cache line more than a power of two, because equal fields of many tasks
/// would otherwise share a few sets of the host's cache.
pub const SLOT_BYTES: u64 = 2048 + 64;
/// Multiplicative inverse of the odd factor of `SLOT_BYTES`, modulo 2^64. With it, the lookup of a
/// task by address needs no division.
const SLOT_INVERSE: u64 = {
    let odd = SLOT_BYTES >> SLOT_BYTES.trailing_zeros();
    let (mut inverse, mut right_bits) = (odd, 3);
    while right_bits < u64::BITS {
        inverse = inverse.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(inverse)));
        right_bits *= 2;
    }
    inverse
};
/// Upper bound on the number of task slots. Address space is reserved for all of them; a slot takes
/// memory when it is first used.
pub const MAX_TASKS: u32 = 1 << 18;
/// Number of slots that are freed before a freed slot is used again, so that a stale pointer held
/// across a grace period still reads the task that it meant.
const REUSE_DELAY: usize = 64;
/// `MAX_RT_PRIO`. The `static_prio` of nice 0 is `MAX_RT_PRIO + 20`.
const MAX_RT_PRIO: i32 = 100;

/// Scheduling classes, lowest first, as the kernel ranks them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    Idle,
    Ext,
    Fair,
    Rt,
    Deadline,
}

/// Stage of a task's life.
///
/// ```text
///   New --fork--> Runnable <--wake-- Sleeping
///                    |  \---block------^
///                    \--exit--> Dead
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskState {
    New,
    Runnable,
    Sleeping,
    Dead,
}

/// The caches of the CPU that a task left last, and their byte counts at that time. The kernel
/// computes the task's cache refill from them (see `cache_occupancy.rs`).
#[derive(Clone, Copy, Debug, Default)]
pub struct CacheMarks {
    pub core: Option<u32>,
    pub llc: Option<u32>,
    /// Total bytes that tasks had fetched into the cache of `core`, and into `llc`, when this task
    /// left the CPU.
    pub core_mark: u64,
    pub llc_mark: u64,
}

/// Measurements of a task over the run.
#[derive(Clone, Debug, Default)]
pub struct TaskAccount {
    /// CPU time, as the kernel charges it (system calls and switches included).
    pub run_ns: Nanos,
    /// Time runnable but not running.
    pub wait_ns: Nanos,
    pub switches_voluntary: u64,
    pub switches_involuntary: u64,
    pub migrations: u64,
    pub wakeups: u64,
    pub work_units: u64,
    /// CPU time by node, up to the last move from one node to another.
    pub node_ns: Vec<Nanos>,
    /// `run_ns` at that move.
    pub node_since_ns: Nanos,
    /// Start of the present wait for a CPU.
    pub waiting_since: Option<Nanos>,
    /// State of the task in its cgroup's co-scheduling account (see `co_scheduling.rs`).
    pub cosched_state: CoschedState,
    /// Time of the wake-up that began the present wait; None if something else began it.
    pub woken_at: Option<Nanos>,
    /// Mask of the groups in `Metrics::watched` to which the task belongs.
    pub watched: u32,
}

impl TaskAccount {
    /// Counts the CPU time since the last move between nodes for the node that the task leaves.
    pub(crate) fn leave_node(&mut self, node: NodeId) {
        let ran = self.run_ns - std::mem::replace(&mut self.node_since_ns, self.run_ns);
        if self.node_ns.len() <= node.idx() {
            self.node_ns.resize(node.idx() + 1, 0);
        }
        self.node_ns[node.idx()] += ran;
    }
}

/// One task. The fields that a task switch needs come first, as in `Cpu`.
#[derive(Debug)]
#[repr(C, align(64))]
pub struct Task {
    pub id: TaskId,
    pub cpu: CpuId,
    /// Guest address of the task's `task_struct`.
    pub addr: u64,
    pub state: TaskState,
    pub class: Class,
    /// The task is enqueued in its class: it waits, runs, or sleeps with a delayed dequeue.
    pub on_rq: bool,
    /// The task is the current task of its CPU.
    pub on_cpu: bool,
    /// Whether `cpus` contains every CPU of the machine. If so, checks of the affinity need not
    /// read `cpus`.
    pub all_cpus_allowed: bool,
    pub exiting: bool,
    /// A wake-up came while the task was awake: its next block or sleep returns at once.
    pub wake_pending: bool,
    pub spin_ended: bool,
    pub nr_allowed: u32,
    pub tgid: u32,
    pub cgroup: CgroupId,
    /// Generation of the sleep timer. An expiry with an older generation is ignored.
    pub sleep_gen: u32,
    /// `step`: the present step. `step_left`: the remaining work of that step, in 1/1024 ns of
    /// full-speed time for `Compute`, in 2^-20 ns of work for `Memory`, in wall ns for other steps.
    pub step: Option<TaskStep>,
    pub step_left: u64,
    /// Cache refill time that the task still owes, wall ns.
    pub refill_left: Nanos,
    /// Time up to which the kernel has charged the task's CPU time.
    pub exec_start: Nanos,
    pub account: TaskAccount,
    pub ext: ExtEntity,
    pub footprint_bytes: u64,
    pub cache_marks: CacheMarks,
    /// Enqueue flags while the task is on a remote CPU's wake list and not yet enqueued.
    pub wake_queued: Option<u64>,
    /// Speed of a memory step while it runs: work per wall time, 2^-20 (see `memory/step.rs`).
    pub mem_speed: u64,
    pub pid: u32,
    /// Leader of the task's thread group. The leader's slot is kept as long as the group exists.
    pub leader: TaskId,
    pub name: String,
    pub policy: Policy,
    pub nice: i8,
    pub kthread: bool,
    /// The task has executed a program (`execve`) since it was forked.
    pub execed: bool,
    /// Number of references that BPF programs hold. The slot is not freed while there are any.
    pub refs: u32,
    /// Number of other threads in the group that this task leads. Their slots refer to this slot.
    pub nr_other_threads: u32,
    pub slice_request: Nanos,
    pub cut: Cut,
    /// `user_cpus`: the affinity that the task requested (`p->user_cpus_ptr`). `cpus`: the CPUs
    /// that it may use within its cpuset (`p->cpus_mask`).
    pub user_cpus: CpuMask,
    pub cpus: CpuMask,
}

/// Bytes at the start of a `Task` that every task switch needs.
pub(crate) const HOT_TASK_BYTES: usize = std::mem::offset_of!(Task, wake_queued);

impl Task {
    pub fn allowed_on(&self, cpu: CpuId) -> bool {
        debug_assert!(!self.all_cpus_allowed || cpumask::test(&self.cpus, cpu));
        self.all_cpus_allowed || cpumask::test(&self.cpus, cpu)
    }

    /// `p->static_prio`: 120 plus the nice value.
    pub fn static_prio(&self) -> i32 {
        MAX_RT_PRIO + 20 + i32::from(self.nice)
    }

    /// `p->prio`: the smaller value runs first; deadline tasks have -1.
    pub fn prio(&self) -> i32 {
        match self.policy {
            Policy::Fifo { prio } | Policy::RoundRobin { prio } => {
                MAX_RT_PRIO - 1 - i32::from(prio)
            }
            Policy::Deadline { .. } => -1,
            _ => self.static_prio(),
        }
    }

    /// Weight of the task's nice value in `sched_prio_to_weight`; a SCHED_IDLE task has weight 3.
    pub fn load_weight(&self) -> u64 {
        match self.policy {
            Policy::Idle => 3,
            _ => NICE_TO_WEIGHT[(self.nice + 20) as usize],
        }
    }

    pub fn is_idle_task(&self) -> bool {
        self.class == Class::Idle
    }
}

/// Load weights by nice level, from -20: a step of one is worth about 10 % CPU, a factor of 1.25
/// (kernel/sched/core.c).
pub const NICE_TO_WEIGHT: [u64; 40] = [
    88761, 71755, 56483, 46273, 36291, 29154, 23254, 18705, 14949, 11916, 9548, 7620, 6100, 4904,
    3906, 3121, 2501, 1991, 1586, 1277, 1024, 820, 655, 526, 423, 335, 272, 215, 172, 137, 110, 87,
    70, 56, 45, 36, 29, 23, 18, 15,
];

/// `sched_weight_to_cgroup()`: converts a load weight to a cgroup weight, where nice 0 is 100.
pub fn weight_to_cgroup(weight: u64) -> u32 {
    ((weight * 100 + 512) / 1024).clamp(1, 10_000) as u32
}

/// Task id that marks a slot without a task.
const FREE_SLOT_ID: TaskId = TaskId(u32::MAX);

/// All task slots, those of freed tasks included.
pub struct TaskTable {
    /// Indexed by task id. A free slot keeps the fields of its last task, with the id
    /// `FREE_SLOT_ID`, so that a lookup reads one slot and nothing else.
    slots: Vec<Task>,
    base: u64,
    freed_slots: VecDeque<TaskId>,
    next_pid: u32,
    /// Living tasks by pid.
    by_pid: rustc_hash::FxHashMap<u32, TaskId>,
    live: usize,
    /// The task that stands for init: the parent of orphans, and `current` of callers in user
    /// space.
    pub(crate) init: TaskId,
    /// Tasks of the workload that have not exited.
    pub(crate) nr_workload: usize,
    /// Tasks that run or wait for a CPU.
    pub(crate) nr_runnable: usize,
    /// While the workload starts, the tasks that are made; then those of them that are not runnable
    /// yet.
    pub(crate) starting: Option<VecDeque<TaskId>>,
    /// The task that is being moved from one run queue to another (`task_on_rq_migrating()`).
    pub(crate) migrating: Option<TaskId>,
}

impl TaskTable {
    /// Makes a table without tasks. `init` will be the id of the init task.
    pub fn new(mem: &mut Memory, init: TaskId) -> Result<Self, scxlab_bpf::mem::OutOfMemory> {
        let base = mem.reserve_region(u64::from(MAX_TASKS) * SLOT_BYTES, Perm::Kernel)?;
        Ok(TaskTable {
            slots: Vec::new(),
            base,
            freed_slots: VecDeque::new(),
            next_pid: 1,
            by_pid: Default::default(),
            live: 0,
            init,
            nr_workload: 0,
            starting: None,
            nr_runnable: 0,
            migrating: None,
        })
    }

    /// Tells the host that much of the table will be used, so that it may use huge pages.
    pub(crate) fn expect_many(&self, mem: &mut Memory) {
        mem.expect_use(self.base, u64::from(MAX_TASKS) * SLOT_BYTES);
    }

    /// Returns the task whose `task_struct` is at `addr`. It may be dead if its slot is not freed
    /// yet.
    #[inline]
    pub fn at(&self, addr: u64) -> Option<TaskId> {
        let off = addr.wrapping_sub(self.base);
        // `slot` is the quotient if `SLOT_BYTES` divides `off`, else a number larger than any slot
        // number.
        let slot = off.wrapping_mul(SLOT_INVERSE).rotate_right(SLOT_BYTES.trailing_zeros());
        let id = self.slots.get(usize::try_from(slot).ok()?)?.id;
        (u64::from(id.0) == slot).then_some(id)
    }

    /// Returns the guest address of a slot.
    #[inline]
    pub(crate) fn slot_addr(&self, id: TaskId) -> u64 {
        self.base + u64::from(id.0) * SLOT_BYTES
    }

    /// Returns a slot and its guest address without a check of the slot's id, for prefetching.
    #[inline]
    pub(crate) fn slot(&self, id: TaskId) -> Option<(&Task, u64)> {
        Some((self.slots.get(id.idx())?, self.slot_addr(id)))
    }

    /// Returns the task whose slot contains `addr`.
    pub fn containing(&self, addr: u64) -> Option<TaskId> {
        let off = addr.checked_sub(self.base)?;
        self.at(self.base + off / SLOT_BYTES * SLOT_BYTES)
    }

    pub fn by_pid(&self, pid: u32) -> Option<TaskId> {
        self.by_pid.get(&pid).copied()
    }

    /// Iterates over the tasks that have a slot, ascending by id.
    pub fn iter(&self) -> impl Iterator<Item = &Task> {
        self.slots.iter().filter(|t| t.id != FREE_SLOT_ID)
    }

    pub fn ids(&self) -> Vec<TaskId> {
        self.iter().map(|t| t.id).collect()
    }

    pub fn len(&self) -> usize {
        self.live
    }

    pub fn is_empty(&self) -> bool {
        self.live == 0
    }

    /// Reserves the slot for the next task to be inserted. Returns its id and guest address; None
    /// if there is no room for another task.
    pub fn reserve(&mut self, mem: &mut Memory) -> Option<(TaskId, u64)> {
        let id = if self.freed_slots.len() > REUSE_DELAY {
            self.freed_slots.pop_front()?
        } else if self.slots.len() < MAX_TASKS as usize {
            mem.charge(SLOT_BYTES + size_of::<Task>() as u64).ok()?;
            TaskId(self.slots.len() as u32)
        } else {
            self.freed_slots.pop_front()?
        };
        Some((id, self.slot_addr(id)))
    }

    /// Returns the next pid. Idle tasks have pid 0 and do not take one.
    pub fn next_pid(&mut self) -> u32 {
        let pid = self.next_pid;
        self.next_pid += 1;
        pid
    }

    /// Puts a task into the slot that was reserved for it.
    pub fn insert(&mut self, task: Task) {
        let id = task.id;
        if task.pid != 0 {
            self.by_pid.insert(task.pid, id);
        }
        match self.slots.get_mut(id.idx()) {
            Some(slot) => *slot = task,
            None => self.slots.push(task),
        }
        debug_assert_eq!(self.slots[id.idx()].id, id);
        self.live += 1;
    }

    /// Removes the pid of a task (unhashes it). The task may live on while it is referenced.
    pub fn unhash(&mut self, pid: u32) {
        self.by_pid.remove(&pid);
    }

    /// Frees the slot of a task. A new task gets the slot only after `REUSE_DELAY` more slots have
    /// been freed, unless the table is full.
    pub fn remove(&mut self, id: TaskId) {
        self[id].id = FREE_SLOT_ID;
        self.live -= 1;
        self.freed_slots.push_back(id);
    }

    #[inline]
    pub fn get(&self, id: TaskId) -> Option<&Task> {
        let task = self.slots.get(id.idx())?;
        (task.id == id).then_some(task)
    }
}

/// Panic message of an access to a freed task when debug assertions are on. Without debug
/// assertions the access reads the old fields of the freed task.
const OUTLIVED: &str = "task id outlived its task";

impl std::ops::Index<TaskId> for TaskTable {
    type Output = Task;
    #[inline(always)]
    fn index(&self, id: TaskId) -> &Task {
        let task = &self.slots[id.idx()];
        debug_assert_eq!(task.id, id, "{OUTLIVED}");
        task
    }
}

impl std::ops::IndexMut<TaskId> for TaskTable {
    #[inline(always)]
    fn index_mut(&mut self, id: TaskId) -> &mut Task {
        let task = &mut self.slots[id.idx()];
        debug_assert_eq!(task.id, id, "{OUTLIVED}");
        task
    }
}

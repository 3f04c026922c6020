// SPDX-License-Identifier: GPL-2.0-only
//! The default scheduling class, EEVDF: picks the next task of a CPU, places woken tasks, and moves
//! tasks between CPUs.
//!
//! Owns: virtual time, load averages, group shares, bandwidth, placement and balancing of the tasks
//! of this class, with all their state. The computation uses integers only and is deterministic.
//! Does not: know the lives of tasks, events, costs or other classes. The kernel calls the class
//! with the CPU's `now` (`rq_clock_task`) and carries out what the class answers. The class reads
//! the rest of the system through `Env`.
//! Models: kernel/sched/fair.c and pelt.c, Linux 7.3 (all tasks of a CPU compete in one tree;
//! groups only set weights).
//! Departures: docs/internals/fidelity-eevdf.md.
//!
//! One scheduling pass on a CPU, as the kernel's `__schedule()`:
//!
//! ```text
//!   [dequeue(prev, sleep)]  ->  pick_next  ->  [newidle_balance, pick_next]  ->  put_prev  ->  set_next
//! ```
//!
//! The kernel leaves out `put_prev` and `set_next` when the pick is the task that already runs.
//! After any call that takes a CPU, `take_resched(cpu)` tells whether that CPU should make a
//! scheduling pass.

#![cfg_attr(not(test), deny(clippy::float_arithmetic, clippy::iter_over_hash_type))]

mod asym;
mod balance;
mod bandwidth;
mod cache;
mod check;
mod class;
mod domain;
mod eevdf;
mod group;
mod idlest;
mod lb_stats;
mod load;
mod migrate;
mod newidle;
mod nohz;
mod numa;
mod params;
mod pelt;
mod queue;
mod select;
mod shares;
mod state;
mod sums;
mod task;
mod tree;
mod tunable;
mod weight;

pub use balance::{ActiveBalance, Balanced, Move};
pub use bandwidth::{BandwidthTimer, TimerKind};
pub use check::Violation;
pub use domain::FairTopo;
pub use group::{BandwidthSpec, BandwidthStat};
pub use newidle::Newidle;
pub use numa::{Go, HintFault, LastAccess, MmScan, NumaAction, NumaRules, ScanBudget};
pub use params::{CgroupMode, Features, Params, TunableScaling};
pub use select::WakeFlags;
pub use state::{FairPolicy, Resched};
pub use task::{TaskDump, TaskParams};
pub use tunable::{TUNABLES, Tunable};
pub use weight::{cgroup_weight, nice_weight};

use domain::Domains;
use scxlab_machine::id::{CgroupId, CpuId, Nanos, TaskId};
use scxlab_machine::prefetch::prefetch;
use state::{CfsRqId, Cpus, EntityId, Ents, FairCpu, FairTask, Group, Rqs};
use sums::Sums;

/// What the class must know about the rest of the system.
pub trait Env {
    /// `p->cpus_ptr`: the CPUs on which the task may run, as words of bits. The class uses only
    /// those of these CPUs that are active.
    fn allowed(&self, task: TaskId) -> &[u64];
    /// Whether the CPU runs its idle task and no task is on its way to it (`idle_rq()`). The
    /// implementation need not check this class's own queue.
    fn cpu_idle(&self, cpu: CpuId) -> bool;
    /// Returns the task of any class that runs on a CPU, or None if the idle task runs.
    fn curr_task(&self, cpu: CpuId) -> Option<TaskId>;
    /// Returns the number of queued tasks of other classes, running ones included (they count in
    /// `rq->nr_running`).
    fn nr_running_other(&self, cpu: CpuId) -> u32;
    /// Whether `nr_running_other` is above 0 for some CPU.
    fn others_queue(&self) -> bool;
    /// Whether the task is a kernel thread bound to one CPU, which is never moved.
    fn per_cpu_kthread(&self, _task: TaskId) -> bool {
        false
    }
    /// Returns the exit latency of the CPU's present idle state, ns, or None if the CPU is in no
    /// idle state.
    fn idle_exit_latency(&self, _cpu: CpuId) -> Option<u32> {
        None
    }

    // For NUMA balancing.

    /// Returns the leader of the task's process, which stands for its address space.
    fn process(&self, task: TaskId) -> TaskId {
        task
    }
    /// Returns the number of threads of the task's process.
    fn nr_threads(&self, _task: TaskId) -> u32 {
        1
    }
    /// `p->pid`.
    fn pid(&self, task: TaskId) -> i32 {
        task.0 as i32
    }
    /// Returns the CPU time of the task in all classes, ns (`se.sum_exec_runtime`).
    fn run_ns(&self, _task: TaskId) -> Nanos {
        0
    }
    /// Returns the number of present pages of the task's address space (`get_mm_rss()`).
    fn rss_pages(&self, _task: TaskId) -> u64 {
        0
    }
    /// Returns the number of pages of the task's address space, present or not (`mm->total_vm`).
    fn vm_pages(&self, _task: TaskId) -> u64 {
        0
    }
    /// Whether the task has an address space and does not exit.
    fn has_mm(&self, _task: TaskId) -> bool {
        true
    }
}

/// Kind of an enqueue. If all flags are false, the kernel puts back a task that it took off for a
/// moment (`ENQUEUE_RESTORE`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EnqueueFlags {
    /// The task slept.
    pub wakeup: bool,
    /// The task was last queued on another CPU.
    pub migrated: bool,
    /// The task is new.
    pub initial: bool,
}

impl EnqueueFlags {
    pub const RESTORE: EnqueueFlags =
        EnqueueFlags { wakeup: false, migrated: false, initial: false };
    pub const WAKEUP: EnqueueFlags = EnqueueFlags { wakeup: true, ..EnqueueFlags::RESTORE };
    pub const INITIAL: EnqueueFlags = EnqueueFlags { initial: true, ..EnqueueFlags::RESTORE };
}

/// Kind of a dequeue. If all flags are false, the kernel takes the task off for a moment
/// (`DEQUEUE_SAVE`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DequeueFlags {
    /// The task goes to sleep.
    pub sleep: bool,
    /// The task exits or stops: its dequeue must not be delayed.
    pub special: bool,
    /// The task is about to be queued on another CPU.
    pub migrating: bool,
}

impl DequeueFlags {
    pub const SAVE: DequeueFlags = DequeueFlags { sleep: false, special: false, migrating: false };
    pub const SLEEP: DequeueFlags = DequeueFlags { sleep: true, ..DequeueFlags::SAVE };
    pub const EXIT: DequeueFlags = DequeueFlags { special: true, ..DequeueFlags::SLEEP };
    pub const MIGRATE: DequeueFlags = DequeueFlags { migrating: true, ..DequeueFlags::SAVE };
}

/// Result of a dequeue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Dequeued {
    Done,
    /// The task sleeps, but still competes until its lag is paid back (DELAY_DEQUEUE). The task
    /// counts in `nr_running`, but no pick returns it. The kernel wakes it on the CPU where it is
    /// queued (`delayed_on`), without `select_cpu`.
    Delayed,
}

/// The scheduling class for the whole machine.
#[derive(Debug)]
pub struct Fair {
    params: Params,
    base_slice: Nanos,
    nr_online: u32,
    ents: Ents,
    free_ents: Vec<EntityId>,
    rqs: Rqs,
    free_rqs: Vec<CfsRqId>,
    cpus: Cpus,
    tasks: Vec<Option<FairTask>>,
    groups: Vec<Option<Group>>,
    domains: Domains,
    sums: Sums,
    /// CPUs whose queues are empty or hold only tasks of idle policy or idle groups. Searches for
    /// an idle CPU visit only these CPUs, because no other CPU can be idle.
    maybe_idle_cpus: Box<[u64]>,
    /// Some CPU has more than one task (`rd->overloaded`), so that newidle balancing may find a
    /// task to pull.
    overloaded: bool,
    nohz: nohz::Nohz,
    /// None on a machine with a single LLC, or without cache-aware scheduling.
    caches: Option<Box<cache::Caches>>,
    /// None without NUMA balancing.
    numa: Option<Box<numa::Numa>>,
    timers: Vec<BandwidthTimer>,
    throttles: Vec<(CgroupId, CpuId, bool)>,
}

impl Fair {
    /// Creates the class for an idle machine without tasks. The root group exists.
    pub fn new(topo: &FairTopo, params: Params) -> Self {
        let nr_cpus = topo.nr_cpus();
        let cpus = (0..nr_cpus).map(|i| {
            let rng = tree::mix(params.seed ^ (i as u64) << 32);
            FairCpu::new(topo.capacity[i], params.migration_cost_ns, rng)
        });
        let root = |i| state::CfsRq::new(CpuId(i), None, EntityId::NIL, 0);
        let mut fair = Fair {
            base_slice: 0,
            nr_online: nr_cpus as u32,
            ents: Ents::default(),
            free_ents: Vec::new(),
            rqs: Rqs((0..nr_cpus as u32).map(root).collect()),
            free_rqs: Vec::new(),
            cpus: Cpus(cpus.collect()),
            tasks: Vec::new(),
            groups: Vec::new(),
            domains: Domains::build(topo, &vec![true; nr_cpus], &params),
            sums: Sums::default(),
            maybe_idle_cpus: vec![u64::MAX; nr_cpus.div_ceil(64)].into(),
            overloaded: false,
            nohz: nohz::Nohz::new(nr_cpus),
            caches: None,
            numa: None,
            timers: Vec::new(),
            throttles: Vec::new(),
            params,
        };
        fair.base_slice = fair.params.scaled_base_slice(fair.nr_online);
        fair.sums = Sums::new(nr_cpus, &mut fair.domains.groups);
        if fair.params.features.sched_cache && fair.domains.has_multi_llcs() {
            let caches = cache::Caches::new(&topo.llc_bytes, nr_cpus, fair.params.tick_ns);
            fair.caches = Some(Box::new(caches));
        }
        // All CPUs are idle at the start. They enter the set of tickless CPUs, so that other CPUs
        // balance for them.
        (0..nr_cpus as u32).for_each(|cpu| fair.nohz_enter(CpuId(cpu)));
        fair
    }

    pub fn params(&self) -> &Params {
        &self.params
    }

    /// Slice of a task that requested none, ns.
    pub fn base_slice(&self) -> Nanos {
        self.base_slice
    }

    /// Returns whether the CPU should call the scheduler, and clears the request.
    #[inline]
    pub fn take_resched(&mut self, cpu: CpuId) -> Resched {
        std::mem::take(&mut self.cpus[cpu].resched)
    }

    /// Number of queued tasks, delayed ones and the running one included (`rq->cfs.h_nr_queued`).
    #[inline]
    pub fn nr_running(&self, cpu: CpuId) -> u32 {
        self.rqs[CfsRqId(cpu.0)].h_nr_queued
    }

    /// Prefetches the count that `nr_running` reads, for a caller that will soon need the count.
    #[inline]
    pub fn prefetch_nr_running(&self, cpu: CpuId) {
        prefetch(&self.rqs[CfsRqId(cpu.0)].h_nr_queued);
    }

    /// Number of queued tasks that want to run (without delayed ones).
    pub fn nr_runnable(&self, cpu: CpuId) -> u32 {
        self.rqs[CfsRqId(cpu.0)].h_nr_runnable
    }

    /// `cpu_load()`: load average of the CPU's queue. A nice-0 task that always runs contributes
    /// 1024.
    pub fn load(&self, cpu: CpuId) -> u64 {
        self.rqs[CfsRqId(cpu.0)].avg.load_avg
    }

    /// `cpu_util_cfs()`: utilisation of the CPU by this class, 0 to 1024.
    pub fn util(&self, cpu: CpuId) -> u64 {
        self.cpu_util(cpu, None, false)
    }

    /// `cfs_rq->avg.runnable_avg`: average number of tasks that run or wait, times 1024.
    pub fn runnable(&self, cpu: CpuId) -> u64 {
        self.rqs[CfsRqId(cpu.0)].avg.runnable_avg
    }

    /// `util_avg` of a task at its last update, 0 to 1024.
    pub fn task_util(&self, id: TaskId) -> u64 {
        self.ents[self.task(id).ent].avg.util_avg
    }

    /// Total lag of the CPU's PELT clock that was dropped because the CPU had no idle time, ns
    /// (`rq->lost_idle_time`).
    #[inline]
    pub fn lost_idle_time(&self, cpu: CpuId) -> u64 {
        self.cpus[cpu].lost_idle_time
    }

    /// Returns the task of this class that runs on the CPU, as `set_next` and `put_prev` recorded
    /// it.
    pub fn current(&self, cpu: CpuId) -> Option<TaskId> {
        self.cpus[cpu].curr.some().and_then(|e| self.ents[e].task)
    }

    #[inline]
    fn jiffies(&self, now: Nanos) -> u64 {
        now / self.params.tick_ns
    }

    fn want_resched(&mut self, cpu: CpuId, urgency: Resched) {
        let row = &mut self.cpus[cpu];
        row.resched = row.resched.max(urgency);
    }

    fn task(&self, task: TaskId) -> &FairTask {
        let row = self.tasks.get(task.idx()).and_then(Option::as_ref);
        row.unwrap_or_else(|| panic!("task {task} is unknown to the fair class"))
    }

    fn task_mut(&mut self, task: TaskId) -> &mut FairTask {
        let row = self.tasks.get_mut(task.idx()).and_then(Option::as_mut);
        row.unwrap_or_else(|| panic!("task {task} is unknown to the fair class"))
    }

    fn group(&self, id: CgroupId) -> Option<&Group> {
        self.groups.get(id.idx()).and_then(Option::as_ref)
    }

    fn group_mut(&mut self, id: CgroupId) -> Option<&mut Group> {
        self.groups.get_mut(id.idx()).and_then(Option::as_mut)
    }
}

#[cfg(test)]
mod tests;

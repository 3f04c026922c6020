// SPDX-License-Identifier: GPL-2.0-only
//! Automatic NUMA balancing: the decisions about scans of address spaces, migrations of pages, and
//! the nodes on which tasks should run.
//!
//! Owns: fault statistics of tasks and groups, scan periods, preferred nodes.
//! Does not: know pages. The kernel scans address spaces, tells each hinting fault, and carries out
//! the answer.
//! Models: the numa fields of `task_struct`, `struct numa_group`, `init_numa_balancing()`,
//! `task_numa_free()`, fair.c v7.3; with other `NumaRules`, kernels of 2013.
//! Differs: no memory tiering.
//!
//! ```text
//!   numa_tick -> numa_scan -> (kernel marks pages) -> numa_scanned
//!   hinting fault -> numa_wants_page -> (kernel moves the page) -> numa_fault -> NumaAction
//! ```
//!
//! A task has statistics from its first tick or fault in an address space that is scanned. They
//! belong to the task, not to its class: faults count in every class.

mod early;
mod faults;
mod place;
mod scan;
mod weight;

use super::domain::FairTopo;
use super::{Env, Fair, Violation};
use scxlab_machine::cost::to_jiffies;
use scxlab_machine::id::{CpuId, Nanos, TaskId};
use weight::{Of, Topology};

/// `numa_balancing_scan_delay_ms`, and the scan period of a new task, ms.
const SCAN_DELAY_MS: u64 = 1000;

/// The kernel whose NUMA balancing is modelled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NumaRules {
    #[default]
    Linux73,
    /// Linux 3.9: pages move to the tasks that access them, and no task prefers a node.
    Linux39,
    /// Linux 3.9 with the series "Basic scheduler support for automatic NUMA balancing V5" (July
    /// 2013): each task prefers the node with most of its private faults.
    SeriesV5,
}

/// The scans of one address space (`mm->numa_next_scan`, `numa_scan_seq`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MmScan {
    /// Jiffy before which no scan begins; 0: it is set at the first attempt.
    pub next_scan: u64,
    /// Number of times that the whole address space has been scanned.
    pub seq: u32,
    /// Under `NumaRules::Linux39`: jiffy after which the next scan resets its task's period.
    pub next_reset: u64,
}

impl MmScan {
    /// The scans of a new address space, at a jiffy of `tick_ns`.
    pub fn new(jiffies: u64, tick_ns: Nanos) -> MmScan {
        MmScan {
            next_scan: jiffies + to_jiffies(SCAN_DELAY_MS, tick_ns),
            seq: 0,
            next_reset: jiffies,
        }
    }
}

/// The part of an address space that one scan marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScanBudget {
    /// Number of pages in areas in which pages were marked.
    pub pages: u64,
    /// Number of pages in all areas.
    pub virtual_pages: u64,
}

/// The CPU and the low bits of the pid of a page's last access (`last_cpupid`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LastAccess {
    pub cpu: CpuId,
    pub pid: u8,
}

impl LastAccess {
    /// Keeps as many bits of the pid as the kernel does.
    pub fn new(cpu: CpuId, pid: i32) -> LastAccess {
        LastAccess { cpu, pid: pid as u8 }
    }
}

/// A hinting fault of a running task on a page.
#[derive(Clone, Copy, Debug)]
pub struct HintFault {
    pub task: TaskId,
    pub cpu: CpuId,
    /// Node of the page: before the fault for `numa_wants_page`, after it for `numa_fault`.
    pub node: u32,
    /// Number of pages that the fault stands for, and number of page faults: a huge page has one.
    pub pages: u64,
    pub faults: u64,
    /// Last access before this one; None: there was none.
    pub last: Option<LastAccess>,
    /// Several address spaces map the page (`TNF_SHARED`).
    pub shared: bool,
    /// The page was on the CPU's node (`TNF_FAULT_LOCAL`).
    pub local: bool,
    pub migrated: bool,
    /// The page should have moved, but its target had no room (`TNF_MIGRATE_FAIL`).
    pub failed: bool,
}

/// What the kernel must do after a fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NumaAction {
    /// The task has a new preferred node (`sched_setnuma()`).
    pub preferred: Option<u32>,
    pub go: Go,
    /// Number of CPUs that a search for a place looked at.
    pub scanned_cpus: u32,
}

/// A move of the faulting task. The kernel calls `numa_arrived` with the target once the move is
/// over or was not possible.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Go {
    #[default]
    Stay,
    Move(CpuId),
    /// The faulting task changes places with a task that runs on the CPU.
    Swap(TaskId, CpuId),
}

/// Statistics of one task.
#[derive(Clone, Debug, Default)]
struct NumaTask {
    preferred: Option<u32>,
    seq: u32,
    /// Scan period and its upper bound, ms.
    scan_period: u64,
    scan_period_max: u64,
    /// Jiffy after which placement is tried again.
    migrate_retry: u64,
    /// CPU time of the last scan, ns.
    node_stamp: Nanos,
    /// See `faults::index`; empty before the first fault.
    faults: Vec<i64>,
    total_faults: i64,
    /// Faults since the last placement: remote, local, and those whose page could not move.
    locality: [u64; 3],
    pages_migrated: u64,
    /// Under `NumaRules::SeriesV5`: number of placements since the preferred node changed
    /// (`numa_migrate_seq`).
    settled: u32,
    group: Option<usize>,
    last_placement: Nanos,
    last_runtime: Nanos,
    /// The task has had its first tick or fault.
    known: bool,
}

/// Tasks that share memory.
#[derive(Clone, Debug)]
pub(super) struct NumaGroup {
    pub(super) nr_tasks: u64,
    active_nodes: u32,
    max_faults_cpu: i64,
    pub(super) total_faults: i64,
    /// The first half of `NumaTask::faults`, summed over the members.
    pub(super) faults: Vec<i64>,
}

/// The state of NUMA balancing.
#[derive(Clone, Debug)]
pub(super) struct Numa {
    rules: NumaRules,
    topo: Topology,
    /// By `TaskId`.
    tasks: Vec<Option<Box<NumaTask>>>,
    /// By number; None once its last member has left. Numbers are not used again.
    pub(super) groups: Vec<Option<NumaGroup>>,
    /// CPUs that a move is on its way to (`rq->numa_migrate_on`).
    migrate_on: Vec<bool>,
}

impl Numa {
    fn task(&self, id: TaskId) -> Option<&NumaTask> {
        self.tasks.get(id.idx())?.as_deref()
    }

    fn task_mut(&mut self, id: TaskId) -> &mut NumaTask {
        if self.tasks.len() <= id.idx() {
            self.tasks.resize(id.idx() + 1, None);
        }
        self.tasks[id.idx()].get_or_insert_default()
    }

    fn group_of(&self, id: TaskId) -> Option<&NumaGroup> {
        self.groups[self.task(id)?.group?].as_ref()
    }

    fn preferred(&self, id: TaskId) -> Option<u32> {
        self.task(id)?.preferred
    }

    #[cfg(test)]
    pub(super) fn test_period(&mut self, id: TaskId, period: u64, max: u64, locality: [u64; 3]) {
        let task = self.task_mut(id);
        (task.scan_period, task.scan_period_max, task.locality) = (period, max, locality);
    }

    #[cfg(test)]
    pub(super) fn test_preferred(&mut self, id: TaskId, node: u32, seq: u32) {
        let task = self.task_mut(id);
        (task.preferred, task.seq) = (Some(node), seq);
    }

    #[cfg(test)]
    pub(super) fn test_kind(&self) -> impl std::fmt::Debug {
        self.topo.kind
    }

    /// Whether the task has had a fault (`p->numa_faults`).
    fn has_faults(&self, id: TaskId) -> bool {
        self.task(id).is_some_and(|task| !task.faults.is_empty())
    }
}

impl Fair {
    /// Switches NUMA balancing on. The kernel does so when the first address space has pages that
    /// may be scanned. Does nothing on a machine on which fewer than two nodes have CPUs.
    pub fn numa_enable(&mut self, topo: &FairTopo, rules: NumaRules) {
        let topo = Topology::new(topo);
        if self.numa.is_none() && topo.nr_cpu_nodes() > 1 {
            let migrate_on = vec![false; self.cpus.0.len()];
            let (tasks, groups) = (Vec::new(), Vec::new());
            self.numa = Some(Box::new(Numa { rules, topo, tasks, groups, migrate_on }));
            if rules != NumaRules::Linux73 {
                self.forget_caches();
            }
        }
    }

    pub fn numa_enabled(&self) -> bool {
        self.numa.is_some()
    }

    /// Gives a new thread the preferred node of the thread of its process that made it.
    pub fn numa_thread_new(&mut self, task: TaskId, creator: TaskId) {
        if let Some(numa) = &mut self.numa
            && let Some(preferred) = numa.preferred(creator)
        {
            numa.task_mut(task).preferred = Some(preferred);
        }
    }

    /// Forgets the statistics of a task: it ends (`fin`), or executes another program.
    pub fn numa_free(&mut self, task: TaskId, fin: bool) {
        let Some(numa) = &mut self.numa else { return };
        numa.leave_group(task);
        let touched = numa.task(task).map_or(0, |row| row.total_faults);
        self.change_footprint(task, -touched);
        let Some(numa) = &mut self.numa else { return };
        let Some(row) = numa.tasks.get_mut(task.idx()) else { return };
        if fin {
            *row = None;
        } else if let Some(task) = row {
            task.faults.fill(0);
            task.total_faults = 0;
            task.group = None;
        }
    }

    /// Records that a move to a CPU is over (clears `rq->numa_migrate_on`).
    pub fn numa_arrived(&mut self, cpu: CpuId) {
        if let Some(numa) = &mut self.numa {
            numa.migrate_on[cpu.idx()] = false;
        }
    }

    /// `p->numa_preferred_nid`.
    pub fn numa_preferred(&self, task: TaskId) -> Option<u32> {
        self.numa.as_ref()?.preferred(task)
    }

    /// `p->total_numa_faults` and `p->numa_pages_migrated`.
    pub fn numa_counts(&self, task: TaskId) -> (u64, u64) {
        let row = self.numa.as_ref().and_then(|numa| numa.task(task));
        row.map_or((0, 0), |row| (row.total_faults.max(0) as u64, row.pages_migrated))
    }

    /// `rq->nr_numa_running` and `rq->nr_preferred_running`: queued tasks of this class with a
    /// preferred node, and those that are on it. Counts them anew; the kernel keeps the counts.
    pub(super) fn numa_running(&self, cpu: CpuId) -> (u32, u32) {
        let Some(numa) = &self.numa else { return (0, 0) };
        let node = numa.topo.node_of[cpu.idx()];
        let (mut with, mut there) = (0, 0);
        let mut at = self.cpus[cpu].tasks_head;
        while let Some(e) = at.some() {
            let task = self.ents[e].task.expect("only tasks are listed");
            let preferred = numa.preferred(task);
            with += u32::from(preferred.is_some());
            there += u32::from(preferred == Some(node));
            at = self.task(task).next;
        }
        (with, there)
    }

    /// Checks that the counts of each group are the sums of its members' counts.
    pub fn check_numa(&self) -> Result<(), Violation> {
        let Some(numa) = &self.numa else { return Ok(()) };
        for (group, row) in numa.groups.iter().enumerate() {
            let Some(row) = row else { continue };
            let members = || numa.tasks.iter().flatten().filter(|t| t.group == Some(group));
            let wrong = |what, kept, found| Violation::NumaGroup { group, what, kept, found };
            let size = members().count() as i64;
            if row.nr_tasks as i64 != size {
                return Err(wrong("number of tasks", row.nr_tasks as i64, size));
            }
            let total = members().map(|task| task.total_faults).sum();
            if row.total_faults != total {
                return Err(wrong("total of faults", row.total_faults, total));
            }
            for (at, kept) in row.faults.iter().enumerate() {
                let found = members().map(|task| task.faults[at]).sum();
                if *kept != found {
                    return Err(wrong("number of faults", *kept, found));
                }
            }
        }
        Ok(())
    }

    /// Returns the number of a task's group, for dumps and tests.
    pub fn numa_group(&self, task: TaskId) -> Option<usize> {
        self.numa.as_ref()?.task(task)?.group
    }

    /// Whether a move between two CPUs takes a task away from its memory (above 0) or nearer to it
    /// (below 0). `idle`: the destination is idle. `others` tells whether the source has tasks that
    /// do not prefer its node.
    pub(super) fn numa_locality_lost(
        &self,
        task: TaskId,
        src: CpuId,
        dst: CpuId,
        idle: bool,
        others: impl Fn() -> bool,
    ) -> i64 {
        let Some(numa) = self.numa.as_ref().filter(|numa| numa.has_faults(task)) else { return 0 };
        let (src, dst) = (numa.topo.node_of[src.idx()], numa.topo.node_of[dst.idx()]);
        let preferred = numa.preferred(task);
        if src == dst {
            0
        } else if preferred == Some(src) {
            i64::from(others())
        } else if preferred == Some(dst) {
            -1
        } else if idle {
            0
        } else {
            let of = if numa.group_of(task).is_some() { Of::Group } else { Of::Task };
            let distance = numa.topo.between(src, dst);
            numa.weight(task, src, distance, of) - numa.weight(task, dst, distance, of)
        }
    }

    /// Whether a CPU is on the task's preferred node.
    pub(super) fn numa_prefers(&self, task: TaskId, cpu: CpuId) -> bool {
        let Some(numa) = &self.numa else { return false };
        numa.preferred(task) == Some(numa.topo.node_of[cpu.idx()])
    }

    /// Runs `f` with the state of NUMA balancing beside the rest of the class.
    fn with_numa<T>(&mut self, f: impl FnOnce(&mut Fair, &mut Numa) -> T) -> Option<T> {
        let mut numa = self.numa.take()?;
        let result = f(self, &mut numa);
        self.numa = Some(numa);
        Some(result)
    }
}

/// Returns a task's statistics, made at the first use.
fn known<'a>(
    fair: &Fair,
    numa: &'a mut Numa,
    env: &dyn Env,
    id: TaskId,
    seq: u32,
) -> &'a mut NumaTask {
    if !numa.task(id).is_some_and(|task| task.known) {
        let max = numa.scan_max(env, id);
        let early = numa.is_early();
        let task = numa.task_mut(id);
        task.known = true;
        task.seq = seq;
        task.scan_period = SCAN_DELAY_MS;
        if env.process(id) != id && !early {
            // The kernel compares milliseconds with nanoseconds here.
            let users = u64::from(env.nr_threads(id));
            let delay = max.min(u64::from((SCAN_DELAY_MS * users * 1_000_000) as u32));
            task.node_stamp = delay + 2 * fair.params.tick_ns;
        }
    }
    numa.task_mut(id)
}

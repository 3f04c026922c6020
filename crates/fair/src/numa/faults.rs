// SPDX-License-Identifier: GPL-2.0-only
//! Faults: which pages move, how faults are counted, and the groups that form from them.
//!
//! Owns: the fault counts of tasks and groups, and the membership of groups.
//! Models: `should_numa_migrate_memory()` in the normal mode, `task_numa_fault()`,
//! `task_numa_group()`, `task_numa_placement()`, `numa_get_avg_runtime()`,
//! `numa_group_count_active_nodes()`, fair.c v7.3.
//! Differs: between groups of equal size, the one that was made first takes the other's task. The
//! kernel compares their addresses. No fault has `TNF_NO_GROUP`: all pages count as writable.

use super::super::pelt::LOAD_AVG_MAX;
use super::super::{Env, Fair};
use super::{HintFault, LastAccess, MmScan, Numa, NumaAction, NumaGroup, known, to_jiffies};
use scxlab_machine::id::{Nanos, TaskId};

/// A node with more than this part of the largest node's faults is active (`ACTIVE_NODE_FRACTION`).
const ACTIVE_FRACTION: i64 = 3;
/// Number of scans of the whole address space during which private pages move at once.
const EARLY_SCANS: u32 = 4;

/// Kinds of counts, for each node and for shared (0) and private (1) faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Faults on memory of the node.
    Mem,
    /// Faults of CPUs of the node, weighted by run time.
    Cpu,
    /// Counts since the last placement.
    MemBuf,
    CpuBuf,
}

/// Number of kinds of which groups have sums.
const GROUP_KINDS: usize = 2;
pub(super) const KINDS: usize = 4;

/// Index of a count of `NumaTask::faults` or `NumaGroup::faults`.
pub(super) fn index(nr_nodes: usize, kind: Kind, node: u32, private: usize) -> usize {
    2 * (kind as usize * nr_nodes + node as usize) + private
}

impl Numa {
    pub(super) fn matches(env: &dyn Env, task: TaskId, last: LastAccess) -> bool {
        LastAccess::new(last.cpu, env.pid(task)) == last
    }

    /// Whether a page should move to the node of the faulting CPU. The kernel asks only if the page
    /// is on another node.
    fn wants_page(&self, env: &dyn Env, fault: &HintFault) -> bool {
        let to = self.topo.node_of[fault.cpu.idx()];
        let row = self.task(fault.task);
        let (preferred, seq) = row.map_or((None, 0), |row| (row.preferred, row.seq));
        let private = fault.last.is_some_and(|last| Self::matches(env, fault.task, last));
        if (preferred.is_none() || seq <= EARLY_SCANS) && (fault.last.is_none() || private) {
            return true;
        }
        // Two faults in a row must come from the node to which the page would move.
        if fault.last.is_some_and(|last| self.topo.node_of[last.cpu.idx()] != to) {
            return false;
        }
        let Some(group) = self.group_of(fault.task).filter(|_| !private) else { return true };
        let cpu = |node| self.group_faults_cpu(group, node);
        let mem = |node| self.group_faults(fault.task, node);
        if cpu(to) > cpu(fault.node) * ACTIVE_FRACTION {
            return true;
        }
        cpu(to) * mem(fault.node) * 3 > cpu(fault.node) * mem(to) * 4
    }

    fn is_active(&self, group: &NumaGroup, node: u32) -> bool {
        self.group_faults_cpu(group, node) * ACTIVE_FRACTION > group.max_faults_cpu
    }

    fn count_active_nodes(&mut self, group: usize) {
        let row = self.groups[group].as_ref().expect("a group with a member");
        let faults: Vec<i64> =
            self.topo.cpu_nodes().map(|node| self.group_faults_cpu(row, node)).collect();
        let max = faults.iter().copied().max().unwrap_or(0).max(0);
        let active = faults.iter().filter(|faults| **faults * ACTIVE_FRACTION > max).count();
        let row = self.groups[group].as_mut().expect("a group with a member");
        (row.max_faults_cpu, row.active_nodes) = (max, active as u32);
    }

    /// Adds a task's counts to a group, or subtracts them.
    fn account(&mut self, id: TaskId, group: usize, sign: i64) {
        let row = self.tasks[id.idx()].as_deref().expect("a task with faults");
        let group = self.groups[group].as_mut().expect("a group with a member");
        group.faults.iter_mut().zip(&row.faults).for_each(|(sum, own)| *sum += sign * own);
        group.total_faults += sign * row.total_faults;
        group.nr_tasks = group.nr_tasks.wrapping_add_signed(sign);
    }

    /// Takes a task out of its group.
    pub(super) fn leave_group(&mut self, id: TaskId) {
        let Some(group) = self.task(id).and_then(|task| task.group) else { return };
        self.account(id, group, -1);
        self.task_mut(id).group = None;
        if self.groups[group].as_ref().is_some_and(|group| group.nr_tasks == 0) {
            self.groups[group] = None;
        }
    }

    fn enter_group(&mut self, id: TaskId, group: usize) {
        self.leave_group(id);
        self.task_mut(id).group = Some(group);
        self.account(id, group, 1);
    }

    /// After a shared fault: joins the group of the task that runs where the last access came from,
    /// if that task made the access. Returns whether the fault counts as private.
    fn join(&mut self, env: &dyn Env, fault: &HintFault, last: LastAccess) -> bool {
        let id = fault.task;
        if self.task(id).is_some_and(|task| task.group.is_none()) {
            let kept = GROUP_KINDS * 2 * self.topo.nr_nodes();
            self.groups.push(Some(NumaGroup {
                nr_tasks: 0,
                active_nodes: 1,
                max_faults_cpu: 0,
                total_faults: 0,
                faults: vec![0; kept],
            }));
            self.enter_group(id, self.groups.len() - 1);
        }
        let other = env.curr_task(last.cpu).filter(|other| Self::matches(env, *other, last));
        let (Some(other), Some(own)) = (other, self.task(id).and_then(|task| task.group)) else {
            return false;
        };
        let Some(group) = self.task(other).and_then(|task| task.group) else { return false };
        let size = |group: usize| self.groups[group].as_ref().map_or(0, |group| group.nr_tasks);
        if group == own || (size(own), group) > (size(group), own) {
            return false;
        }
        let joins = env.process(other) == env.process(id) || fault.shared;
        if joins {
            self.enter_group(id, group);
        }
        !joins
    }

    /// Ages the counts of a task by half, adds those since the last placement, and finds the node
    /// that the task should prefer. Returns the counts since the last placement: shared, private.
    fn age(&mut self, id: TaskId, (runtime, period): (u64, u64)) -> (Option<u32>, [i64; 2]) {
        let nr = self.topo.nr_nodes();
        let row = self.tasks[id.idx()].as_deref_mut().expect("a task with faults");
        let mut group = row.group.and_then(|group| self.groups[group].as_mut());
        let total = (row.locality[0] + row.locality[1]) as i64;
        let (mut types, mut most, mut found) = ([0; 2], 0, None);
        let weight = ((u128::from(runtime) << 16) / u128::from(period + 1)) as i64;
        for node in 0..nr as u32 {
            let mut faults = 0;
            for (private, of_type) in types.iter_mut().enumerate() {
                let at = |kind| index(nr, kind, node, private);
                let (mem, cpu) = (at(Kind::Mem), at(Kind::Cpu));
                let new = std::mem::take(&mut row.faults[at(Kind::MemBuf)]);
                let new_cpu = std::mem::take(&mut row.faults[at(Kind::CpuBuf)]);
                *of_type += new;
                let diff = new - row.faults[mem] / 2;
                let cpu_diff = weight * new_cpu / (total + 1) - row.faults[cpu] / 2;
                row.faults[mem] += diff;
                row.faults[cpu] += cpu_diff;
                row.total_faults += diff;
                faults += row.faults[mem];
                if let Some(group) = &mut group {
                    group.faults[mem] += diff;
                    group.faults[cpu] += cpu_diff;
                    group.total_faults += diff;
                }
            }
            if let Some(group) = &group {
                let at = |private| index(nr, Kind::Mem, node, private);
                faults = group.faults[at(0)] + group.faults[at(1)];
            }
            if faults > most {
                (most, found) = (faults, Some(node));
            }
        }
        (found, types)
    }
}

/// What placement needs besides the statistics.
struct Now<'a> {
    env: &'a dyn Env,
    mm: &'a mut MmScan,
    jiffies: u64,
    now: Nanos,
}

impl Fair {
    /// Whether the page of a fault, which is on another node than the faulting CPU, should move to
    /// that CPU's node.
    pub fn numa_wants_page(&self, env: &dyn Env, fault: &HintFault) -> bool {
        self.numa.as_ref().is_some_and(|numa| match numa.is_early() {
            true => numa.early_wants_page(fault),
            false => numa.wants_page(env, fault),
        })
    }

    /// Counts a hinting fault of a running task, and places the task anew if it is time.
    pub fn numa_fault(
        &mut self,
        env: &dyn Env,
        fault: &HintFault,
        mm: &mut MmScan,
        jiffies: u64,
        now: Nanos,
    ) -> NumaAction {
        let done = self.with_numa(|fair, numa| {
            if numa.is_early() {
                known(fair, numa, env, fault.task, mm.seq);
                return numa.early_fault(env, fault, mm, fair.params.tick_ns);
            }
            let preferred = numa.preferred(fault.task);
            let nr = numa.topo.nr_nodes();
            let row = known(fair, numa, env, fault.task, mm.seq);
            if row.faults.is_empty() {
                row.faults = vec![0; KINDS * 2 * nr];
            }
            let private = match fault.last {
                None => true,
                Some(last) => Numa::matches(env, fault.task, last) || numa.join(env, fault, last),
            };
            let cpu_node = numa.topo.node_of[fault.cpu.idx()];
            let settled = |group: &NumaGroup| {
                let active = |node| numa.is_active(group, node);
                group.active_nodes > 1 && active(cpu_node) && active(fault.node)
            };
            let local = fault.local || !private && numa.group_of(fault.task).is_some_and(settled);
            let retry = numa.task_mut(fault.task).migrate_retry;
            let mut action = NumaAction::default();
            if jiffies > retry {
                let mut at = Now { env, mm, jiffies, now };
                fair.numa_placement(numa, fault.task, &mut at);
                fair.numa_go(numa, fault, &mut at, &mut action);
            }
            let row = numa.task_mut(fault.task);
            row.pages_migrated += if fault.migrated { fault.pages } else { 0 };
            row.locality[2] += if fault.failed { fault.pages } else { 0 };
            row.locality[usize::from(local)] += fault.pages;
            let pages = fault.pages as i64;
            row.faults[index(nr, Kind::MemBuf, fault.node, private.into())] += pages;
            row.faults[index(nr, Kind::CpuBuf, cpu_node, private.into())] += pages;
            action.preferred = row.preferred.filter(|_| row.preferred != preferred);
            action
        });
        done.unwrap_or_default()
    }

    /// Sets the preferred node once for each scan of the whole address space, and adapts the scan
    /// period.
    fn numa_placement(&mut self, numa: &mut Numa, id: TaskId, at: &mut Now<'_>) {
        let max = numa.scan_max(at.env, id);
        let row = numa.task_mut(id);
        if row.seq == at.mm.seq {
            return;
        }
        (row.seq, row.scan_period_max) = (at.mm.seq, max);
        let run = at.env.run_ns(id);
        let spent = match row.last_placement {
            0 => (self.ents[self.task(id).ent].avg.load_sum, LOAD_AVG_MAX),
            last => (run.saturating_sub(row.last_runtime), at.now.saturating_sub(last)),
        };
        (row.last_runtime, row.last_placement) = (run, at.now);
        let (group, before) = (row.group, row.total_faults);
        let (found, types) = numa.age(id, spent);
        self.change_footprint(id, numa.task_mut(id).total_faults - before);
        let mut best = found.map(|node| numa.topo.nearest_cpu_node(node));
        if let Some(group) = group {
            numa.count_active_nodes(group);
            best = best.map(|node| numa.preferred_of_group(id, node));
        }
        if best.is_some() {
            numa.task_mut(id).preferred = best;
        }
        let clock = (at.jiffies, self.params.tick_ns);
        numa.adapt_period(at.env, id, types, at.mm, clock);
    }

    /// Looks for a CPU of the preferred node, if the task is not on that node.
    fn numa_go(
        &mut self,
        numa: &mut Numa,
        fault: &HintFault,
        at: &mut Now<'_>,
        action: &mut NumaAction,
    ) {
        let row = numa.task_mut(fault.task);
        let Some(preferred) = row.preferred else { return };
        let period = to_jiffies(row.scan_period, self.params.tick_ns);
        row.migrate_retry = at.jiffies + (1_000_000_000 / self.params.tick_ns).min(period / 16);
        if numa.topo.node_of[fault.cpu.idx()] != preferred {
            (action.go, action.scanned_cpus) =
                self.numa_search(numa, at.env, fault.task, fault.cpu);
        }
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! The search for a CPU on a task's preferred node, or on a better one: an idle CPU, or a task to
//! change places with.
//!
//! Models: `update_numa_stats()`, `numa_classify()`, `task_numa_assign()`,
//! `load_too_imbalanced()`, `task_numa_compare()`, `task_numa_find_cpu()`, `task_numa_migrate()`,
//! fair.c v7.3.

use super::super::idlest::adjust_numa_imbalance;
use super::super::{Env, Fair};
use super::weight::{Interconnect, Of};
use super::{Go, Numa};
use scxlab_machine::cpumask;
use scxlab_machine::id::{CpuId, TaskId};

/// An importance below this does not justify a swap (`SMALLIMP`).
const SMALL_IMPORTANCE: i64 = 30;

/// Occupation of a node (`enum numa_type`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Occupation {
    #[default]
    HasSpare,
    FullyBusy,
    Overloaded,
}

/// Sums over the CPUs of a node.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct NodeStats {
    pub load: i64,
    pub runnable: u64,
    pub util: u64,
    pub capacity: u64,
    pub nr_running: u32,
    pub weight: u32,
    pub kind: Occupation,
    pub idle_cpu: Option<CpuId>,
}

impl NodeStats {
    pub fn classify(&self, pct: u64) -> Occupation {
        let NodeStats { runnable, util, capacity, nr_running, weight, .. } = *self;
        if nr_running > weight && (capacity * 100 < util * pct || capacity * pct < runnable * 100) {
            return Occupation::Overloaded;
        }
        if nr_running < weight || capacity * 100 > util * pct && capacity * pct > runnable * 100 {
            return Occupation::HasSpare;
        }
        Occupation::FullyBusy
    }
}

/// Whether new loads of two nodes, corrected for capacity, are further from balance than the old.
pub(super) fn too_imbalanced(new: (i64, i64), src: &NodeStats, dst: &NodeStats) -> bool {
    let (src_capacity, dst_capacity) = (src.capacity as i64, dst.capacity as i64);
    let off = |src: i64, dst: i64| (dst * src_capacity - src * dst_capacity).abs();
    off(new.0, new.1) > off(src.load, dst.load)
}

/// The state of a search (`struct task_numa_env`).
struct Search {
    task: TaskId,
    src_cpu: CpuId,
    src_node: u32,
    dst_cpu: CpuId,
    dst_node: u32,
    imb_numa_nr: u32,
    pct: u64,
    distance: u32,
    src: NodeStats,
    dst: NodeStats,
    best_task: Option<TaskId>,
    best_imp: i64,
    best_cpu: Option<CpuId>,
    scanned: u32,
}

impl Fair {
    /// Searches for a place for a running task that is not on its preferred node. Returns it, and
    /// the number of CPUs that were looked at.
    pub(super) fn numa_search(
        &mut self,
        numa: &mut Numa,
        env: &dyn Env,
        task: TaskId,
        cpu: CpuId,
    ) -> (Go, u32) {
        let src_node = numa.topo.node_of[cpu.idx()];
        let levels = self.domains.of_cpu[cpu.idx()].len();
        let domain = (0..levels).map(|l| self.domains.shape(cpu, l)).find(|shape| shape.flags.numa);
        let Some(domain) = domain else {
            numa.task_mut(task).preferred = Some(src_node);
            return (Go::Stay, 0);
        };
        let preferred = numa.preferred(task).expect("the caller has checked");
        let distance = numa.topo.between(src_node, preferred);
        let mut s = Search {
            task,
            src_cpu: cpu,
            src_node,
            dst_cpu: cpu,
            dst_node: preferred,
            imb_numa_nr: domain.imb_numa_nr,
            pct: 100 + (domain.imbalance_pct - 100) / 2,
            distance,
            src: NodeStats::default(),
            dst: NodeStats::default(),
            best_task: None,
            best_imp: 0,
            best_cpu: None,
            scanned: 0,
        };
        let weights = |numa: &Numa, node, distance| {
            let of = |of| numa.weight(task, node, distance, of);
            (of(Of::Task), of(Of::Group))
        };
        let mut own = weights(numa, src_node, distance);
        s.src = self.node_stats(numa, env, &mut s, src_node, false);
        let there = weights(numa, preferred, distance);
        s.dst = self.node_stats(numa, env, &mut s, preferred, true);
        self.find_cpu(numa, env, &mut s, there.0 - own.0, there.1 - own.1);
        let in_group = numa.task(task).is_some_and(|task| task.group.is_some());
        let spread = numa.group_of(task).is_some_and(|group| group.active_nodes > 1);
        if s.best_cpu.is_none() || spread {
            for node in numa.topo.cpu_nodes().filter(|n| *n != src_node && *n != preferred) {
                // The distance to the node of the last round, as in the kernel.
                let distance = numa.topo.between(src_node, s.dst_node);
                if numa.topo.kind == Interconnect::Backplane && distance != s.distance {
                    own = weights(numa, src_node, distance);
                }
                let there = weights(numa, node, distance);
                let better = (there.0 - own.0, there.1 - own.1);
                if better.0 < 0 && better.1 < 0 {
                    continue;
                }
                (s.distance, s.dst_node) = (distance, node);
                s.dst = self.node_stats(numa, env, &mut s, node, true);
                self.find_cpu(numa, env, &mut s, better.0, better.1);
            }
        }
        if in_group {
            let node = s.best_cpu.map_or(src_node, |cpu| numa.topo.node_of[cpu.idx()]);
            numa.task_mut(task).preferred = Some(node);
        }
        let go = match (s.best_cpu, s.best_task) {
            (None, _) => Go::Stay,
            (Some(cpu), None) => Go::Move(cpu),
            (Some(cpu), Some(other)) => Go::Swap(other, cpu),
        };
        (go, s.scanned)
    }

    fn node_stats(
        &self,
        numa: &Numa,
        env: &dyn Env,
        s: &mut Search,
        node: u32,
        find_idle: bool,
    ) -> NodeStats {
        let mut stats = NodeStats::default();
        let mut idle_core = None;
        for cpu in self.cpus_of_node(numa, node) {
            s.scanned += 1;
            stats.load += self.load(cpu) as i64;
            stats.runnable += self.runnable(cpu);
            stats.util += self.util(cpu);
            stats.nr_running += self.nr_runnable(cpu);
            stats.capacity += self.cpus[cpu].capacity;
            stats.weight += 1;
            if !find_idle || idle_core.is_some() || !self.idle(env, cpu) {
                continue;
            }
            if numa.migrate_on[cpu.idx()] || !cpumask::test(env.allowed(s.task), cpu) {
                continue;
            }
            stats.idle_cpu = stats.idle_cpu.or(Some(cpu));
            if self.domains.has_idle_cores(cpu) && self.core_is_idle(env, cpu) {
                idle_core = Some(cpu);
            }
        }
        stats.kind = stats.classify(s.pct);
        stats.idle_cpu = idle_core.or(stats.idle_cpu);
        stats
    }

    /// Returns the on-line CPUs of a node.
    fn cpus_of_node(&self, numa: &Numa, node: u32) -> Vec<CpuId> {
        cpumask::iter(&numa.topo.cpus[node as usize]).filter(|cpu| self.cpus[*cpu].online).collect()
    }

    fn h_load_of(&mut self, task: TaskId) -> i64 {
        let row = self.task(task);
        let (e, attached) = (row.ent, row.attached);
        if attached { self.task_h_load(e) as i64 } else { 0 }
    }

    fn find_cpu(&mut self, numa: &mut Numa, env: &dyn Env, s: &mut Search, task: i64, group: i64) {
        let may_move = if s.dst.kind == Occupation::HasSpare {
            let (src, dst) = (i64::from(s.src.nr_running) - 1, i64::from(s.dst.nr_running) + 1);
            let imbalance = (dst - src).max(0);
            let free = adjust_numa_imbalance(imbalance, dst as u32, s.imb_numa_nr) == 0;
            if let (true, Some(cpu)) = (free, s.dst.idle_cpu) {
                s.dst_cpu = cpu;
                self.assign(numa, env, s, None, 0);
                return;
            }
            free
        } else {
            let load = self.h_load_of(s.task);
            !too_imbalanced((s.src.load - load, s.dst.load + load), &s.src, &s.dst)
        };
        for cpu in self.cpus_of_node(numa, s.dst_node) {
            if !cpumask::test(env.allowed(s.task), cpu) {
                continue;
            }
            s.scanned += 1;
            s.dst_cpu = cpu;
            if self.compare(numa, env, s, task, group, may_move) {
                break;
            }
        }
    }

    /// Compares the best place so far with `s.dst_cpu`: a move there, or a swap with the task that
    /// runs there. Returns whether the search of the node is over.
    fn compare(
        &mut self,
        numa: &mut Numa,
        env: &dyn Env,
        s: &mut Search,
        task_imp: i64,
        group_imp: i64,
        may_move: bool,
    ) -> bool {
        if numa.migrate_on[s.dst_cpu.idx()] {
            return false;
        }
        let cur = env.curr_task(s.dst_cpu).filter(|cur| env.has_mm(*cur));
        if cur == Some(s.task) {
            return true;
        }
        let own_group = numa.task(s.task).and_then(|task| task.group);
        let move_imp = if own_group.is_some() { group_imp } else { task_imp };
        let Some(cur) = cur else {
            if may_move && move_imp >= s.best_imp {
                return self.take(numa, env, s, None, move_imp, may_move);
            }
            return false;
        };
        let preferred = numa.preferred(cur);
        let goes_home = preferred == Some(s.src_node);
        let best_goes_home = s.best_task.map(|best| numa.preferred(best) == Some(s.src_node));
        if !cpumask::test(env.allowed(cur), s.src_cpu) || best_goes_home == Some(true) && !goes_home
        {
            return false;
        }
        let cur_group = numa.task(cur).and_then(|task| task.group);
        let differs = |of| {
            numa.weight(cur, s.src_node, s.distance, of)
                - numa.weight(cur, s.dst_node, s.distance, of)
        };
        let mut imp = if cur_group == own_group {
            if s.dst.kind == Occupation::HasSpare {
                return false;
            }
            let imp = task_imp + differs(Of::Task);
            if cur_group.is_some() { imp - imp / 16 } else { imp }
        } else if cur_group.is_some() && own_group.is_some() {
            move_imp + differs(Of::Group)
        } else {
            move_imp + differs(Of::Task)
        };
        if preferred == Some(s.dst_node) {
            imp -= imp / 16;
        }
        if goes_home {
            imp += imp / 8;
        }
        if may_move && move_imp > imp && move_imp > s.best_imp {
            return self.take(numa, env, s, None, move_imp, may_move);
        }
        if best_goes_home == Some(false) && goes_home {
            return self.take(numa, env, s, Some(cur), imp, may_move);
        }
        if imp < SMALL_IMPORTANCE || imp <= s.best_imp + SMALL_IMPORTANCE / 2 {
            return false;
        }
        let load = self.h_load_of(s.task) - self.h_load_of(cur);
        if load != 0 && too_imbalanced((s.src.load - load, s.dst.load + load), &s.src, &s.dst) {
            return false;
        }
        self.take(numa, env, s, Some(cur), imp, may_move)
    }

    /// Takes `s.dst_cpu` as the best place. Returns whether the search of the node is over.
    fn take(
        &mut self,
        numa: &mut Numa,
        env: &dyn Env,
        s: &mut Search,
        cur: Option<TaskId>,
        imp: i64,
        may_move: bool,
    ) -> bool {
        if cur.is_none() {
            let cpu = s.dst.idle_cpu.unwrap_or(s.dst_cpu);
            let kept = s.best_cpu.filter(|best| !self.idle(env, cpu) && self.idle(env, *best));
            s.dst_cpu = kept.unwrap_or(cpu);
        }
        self.assign(numa, env, s, cur, imp);
        let idle = s.best_cpu.is_some_and(|best| self.idle(env, best));
        let goes_home = s.best_task.is_some_and(|t| numa.preferred(t) == Some(s.src_node));
        may_move && cur.is_none() && idle || !may_move && goes_home
    }

    fn assign(
        &self,
        numa: &mut Numa,
        env: &dyn Env,
        s: &mut Search,
        task: Option<TaskId>,
        imp: i64,
    ) {
        if s.best_cpu != Some(s.dst_cpu)
            && std::mem::replace(&mut numa.migrate_on[s.dst_cpu.idx()], true)
        {
            // Another move is on its way to that CPU.
            let cpus = self.cpus_of_node(numa, s.dst_node);
            let after = cpus.iter().position(|cpu| *cpu > s.dst_cpu).unwrap_or(0);
            let other = cpus[after..].iter().chain(&cpus[..after]).find(|cpu| {
                Some(**cpu) != s.best_cpu
                    && self.idle(env, **cpu)
                    && cpumask::test(env.allowed(s.task), **cpu)
                    && !numa.migrate_on[cpu.idx()]
            });
            let Some(other) = other else { return };
            s.dst_cpu = *other;
            numa.migrate_on[other.idx()] = true;
        }
        if let Some(best) = s.best_cpu.filter(|best| *best != s.dst_cpu) {
            numa.migrate_on[best.idx()] = false;
        }
        (s.best_task, s.best_imp, s.best_cpu) = (task, imp, Some(s.dst_cpu));
    }
}

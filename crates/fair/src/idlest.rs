// SPDX-License-Identifier: GPL-2.0-only
//! Placement of a new task, or of a task that calls execve. The search goes down the domains, from
//! large to small, and enters the idlest group of each.
//!
//! Models: `sched_balance_find_dst_cpu()`, `sched_balance_find_dst_group()`,
//! `update_pick_idlest()`, `sched_balance_find_dst_group_cpu()`, `adjust_numa_imbalance()`, fair.c
//! v7.3.

use super::lb_stats::{GroupStats, GroupType};
use super::{Env, Fair, WakeFlags};
use scxlab_machine::cpumask;
use scxlab_machine::id::{CpuId, TaskId};

/// Largest difference between two nodes, in tasks, that is not balanced, so that a pair of tasks
/// may stay on one node.
const NUMA_IMBALANCE_MIN: i64 = 2;

impl Fair {
    pub(super) fn find_idlest_cpu(
        &mut self,
        env: &dyn Env,
        task: TaskId,
        this_cpu: CpuId,
        prev: CpuId,
        level: usize,
        flags: WakeFlags,
    ) -> CpuId {
        let mut cpu = this_cpu;
        let mut new_cpu = this_cpu;
        if !cpumask::intersects(&self.domains.shape(cpu, level).span, env.allowed(task)) {
            return prev;
        }
        if !flags.fork {
            self.sync_load(self.task(task).ent);
        }
        let mut level = Some(level);
        while let Some(at) = level {
            let below = at.checked_sub(1);
            let Some(group) = self.idlest_group_at(env, task, cpu, at) else {
                level = below;
                continue;
            };
            new_cpu = self.idlest_cpu_of(env, group, task, cpu);
            if new_cpu == cpu {
                level = below;
                continue;
            }
            let weight = self.domains.shape(cpu, at).span_weight;
            cpu = new_cpu;
            level = self.level_below(cpu, weight);
        }
        new_cpu
    }

    /// Returns the level (the index among the CPU's domains, smallest first) of the largest domain
    /// that has fewer than `weight` CPUs and over which forks are placed.
    fn level_below(&self, cpu: CpuId, weight: u32) -> Option<usize> {
        (0..self.domains.of_cpu[cpu.idx()].len())
            .map(|level| (level, self.domains.shape(cpu, level)))
            .take_while(|(_, shape)| shape.span_weight < weight)
            .filter(|(_, shape)| shape.flags.balance_fork)
            .last()
            .map(|(level, _)| level)
    }

    fn idlest_group_at(
        &mut self,
        env: &dyn Env,
        task: TaskId,
        this_cpu: CpuId,
        level: usize,
    ) -> Option<usize> {
        if !self.domains.shape(this_cpu, level).flags.balance_fork {
            return None;
        }
        let shape = self.domains.shape(this_cpu, level);
        let (pct, asym) = (shape.imbalance_pct, shape.flags.asym_capacity);
        let mut local = None;
        let mut idlest: Option<(usize, GroupStats)> = None;
        for at in 0..self.domains.shape(this_cpu, level).groups.len() {
            let group = self.group_from_own(this_cpu, level, at);
            let span = &self.domains.groups[group].span;
            if !cpumask::intersects(span, env.allowed(task)) {
                continue;
            }
            let is_local = cpumask::test(span, this_cpu);
            let stats = self.wakeup_stats(env, group, task, pct, asym);
            if is_local {
                local = Some((group, stats));
            } else if idlest.as_ref().is_none_or(|(_, best)| idler(best, &stats)) {
                idlest = Some((group, stats));
            }
        }
        let (group, stats) = idlest?;
        let Some((own, local)) = local else {
            return Some(group);
        };
        if local.kind == GroupType::HasSpare
            && stats.kind == GroupType::HasSpare
            && let Some(leave) = self.numa_choice(task, this_cpu, level, group)
        {
            return leave.then_some(group);
        }
        let leave = self.worth_leaving(env, task, this_cpu, level, own, &local, &stats);
        leave.then_some(group)
    }

    /// With room on both sides, a task stays on its preferred node or goes there. Returns None if
    /// the task prefers neither.
    fn numa_choice(&self, task: TaskId, this: CpuId, level: usize, group: usize) -> Option<bool> {
        if self.numa.is_none() || !self.domains.shape(this, level).flags.numa {
            return None;
        }
        let first = cpumask::first(&self.domains.groups[group].span)?;
        match self.numa_prefers(task, this) {
            true => Some(false),
            false => self.numa_prefers(task, first).then_some(true),
        }
    }

    /// Returns the `at`-th group of a CPU's domain, counted from the group that contains the CPU.
    pub(super) fn group_from_own(&self, cpu: CpuId, level: usize, at: usize) -> usize {
        let domain = &self.domains.of_cpu[cpu.idx()][level];
        let groups = &self.domains.shapes[domain.shape as usize].groups;
        let at = domain.own as usize + at;
        groups[if at < groups.len() { at } else { at - groups.len() }] as usize
    }

    #[allow(clippy::too_many_arguments, reason = "one comparison, all of it needed")]
    fn worth_leaving(
        &self,
        env: &dyn Env,
        task: TaskId,
        this_cpu: CpuId,
        level: usize,
        own: usize,
        local: &GroupStats,
        idlest: &GroupStats,
    ) -> bool {
        if local.kind != idlest.kind {
            return local.kind > idlest.kind;
        }
        let shape = self.domains.shape(this_cpu, level);
        match local.kind {
            GroupType::Overloaded | GroupType::FullyBusy => {
                let margin = 1024 * (shape.imbalance_pct - 100) / 100;
                let numa_keeps = shape.flags.numa && idlest.avg_load + margin >= local.avg_load;
                !numa_keeps
                    && idlest.avg_load < local.avg_load + margin
                    && 100 * local.avg_load > shape.imbalance_pct * idlest.avg_load
            }
            GroupType::HasSpare => {
                if shape.flags.numa {
                    let mut allowed_imbalance = shape.imb_numa_nr;
                    let cpus = cpumask::weight(env.allowed(task)) as usize;
                    if cpus < self.cpus.0.len() {
                        let span = &self.domains.groups[own].span;
                        let here = cpumask::iter(span)
                            .filter(|&cpu| cpumask::test(env.allowed(task), cpu))
                            .count();
                        allowed_imbalance = allowed_imbalance.min(here as u32);
                    }
                    let difference =
                        (i64::from(local.idle_cpus) - i64::from(idlest.idle_cpus)).abs();
                    let running = local.nr_running + 1;
                    if adjust_numa_imbalance(difference, running, allowed_imbalance) == 0 {
                        return false;
                    }
                }
                local.idle_cpus < idlest.idle_cpus
            }
            GroupType::Misfit => local.max_capacity < idlest.max_capacity,
            GroupType::SmtBalance | GroupType::Imbalanced | GroupType::LlcBalance => false,
        }
    }

    /// Returns the CPU of a group that is in the shallowest idle state, or the group's least loaded
    /// CPU if none is idle. If the search comes to a CPU that has only tasks of idle policy, it
    /// returns that CPU at once, unless `task` has idle policy too.
    fn idlest_cpu_of(&self, env: &dyn Env, group: usize, task: TaskId, this_cpu: CpuId) -> CpuId {
        let row = &self.domains.groups[group];
        if row.weight == 1 {
            return cpumask::first(&row.span).expect("no group is empty");
        }
        let e = self.task(task).ent;
        let mut least_loaded = this_cpu;
        let mut min_load = u64::MAX;
        let mut best_idle: Option<CpuId> = None;
        let (mut min_latency, mut latest) = (u32::MAX, 0);
        for cpu in cpumask::iter(&row.span) {
            if !cpumask::test(env.allowed(task), cpu) {
                continue;
            }
            if self.sched_idle_rq(env, cpu) && !self.has_idle_policy(e) {
                return cpu;
            }
            if self.idle(env, cpu) {
                let latency = env.idle_exit_latency(cpu);
                let stamp = self.cpus[cpu].idle_stamp;
                if latency.is_some_and(|l| l < min_latency) {
                    min_latency = latency.unwrap_or(u32::MAX);
                    (latest, best_idle) = (stamp, Some(cpu));
                } else if best_idle.is_none()
                    || latency.is_none_or(|l| l == min_latency) && stamp > latest
                {
                    (latest, best_idle) = (stamp, Some(cpu));
                }
            } else if best_idle.is_none() && self.load(cpu) < min_load {
                min_load = self.load(cpu);
                least_loaded = cpu;
            }
        }
        best_idle.unwrap_or(least_loaded)
    }
}

/// Whether the group with the statistics `stats` is idler than the idlest group so far, which has
/// the statistics `best`.
fn idler(best: &GroupStats, stats: &GroupStats) -> bool {
    if stats.kind != best.kind {
        return stats.kind < best.kind;
    }
    match stats.kind {
        GroupType::Overloaded | GroupType::FullyBusy => best.avg_load > stats.avg_load,
        GroupType::HasSpare => {
            best.idle_cpus < stats.idle_cpus
                || best.idle_cpus == stats.idle_cpus && best.util > stats.util
        }
        GroupType::Misfit => best.max_capacity < stats.max_capacity,
        GroupType::SmtBalance | GroupType::Imbalanced | GroupType::LlcBalance => false,
    }
}

/// Returns the part of an imbalance between two nodes that the caller should correct: 0 if the
/// imbalance is at most two tasks and at most `imb_numa_nr` tasks run on the destination node, and
/// otherwise the whole `imbalance`.
pub(super) fn adjust_numa_imbalance(imbalance: i64, dst_running: u32, imb_numa_nr: u32) -> i64 {
    if dst_running <= imb_numa_nr && imbalance <= NUMA_IMBALANCE_MIN { 0 } else { imbalance }
}

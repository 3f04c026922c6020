// SPDX-License-Identifier: GPL-2.0-only
//! Statistics of a group of CPUs for placement and balancing, and the type of the group that
//! follows from them.
//!
//! Owns: the sums over a group and its classification.
//! Models: `update_sg_lb_stats()`, `update_sg_wakeup_stats()`, `group_classify()`, fair.c v7.3.
//! Differs: the group type that needs packing does not occur.

use super::domain::SchedGroup;
use super::select::Words;
use super::state::CfsRqId;
use super::weight::CAPACITY_SCALE;
use super::{Env, Fair};
use scxlab_machine::cpumask;
use scxlab_machine::id::TaskId;

/// Type of a group, ordered by the pressure to balance it, least first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum GroupType {
    /// The group can take more tasks.
    #[default]
    HasSpare,
    /// The group has no capacity to spare, but is not overloaded.
    FullyBusy,
    /// A task of the group needs a larger CPU.
    Misfit,
    /// The group's CPUs are SMT siblings with more than one task, and the balancing CPU is idle.
    SmtBalance,
    /// Pinned tasks kept the group from being balanced.
    Imbalanced,
    /// A task of the group prefers the LLC of the balancing CPU.
    LlcBalance,
    /// The group has more tasks than it can serve.
    Overloaded,
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GroupStats {
    pub avg_load: u64,
    pub load: u64,
    pub capacity: u64,
    pub util: u64,
    pub runnable: u64,
    pub nr_running: u32,
    pub h_nr_running: u32,
    pub idle_cpus: u32,
    pub weight: u32,
    pub kind: GroupType,
    pub smt_balance: bool,
    /// Balancing: largest load of a task that needs a larger CPU. Placement: 1 if the task fits on
    /// no CPU of the group.
    pub misfit_load: u64,
    /// Number of tasks that prefer the LLC of the balancing CPU, and whether balancing should bring
    /// one there.
    pub prefer_dst: u32,
    pub llc_balance: bool,
    /// Capacity of the group's largest CPU, for placement.
    pub max_capacity: u64,
    /// Some CPU of the group has more than one task.
    pub overloaded: bool,
}

impl GroupStats {
    /// Completes the statistics of a group for balancing by what follows from them.
    #[inline(always)]
    pub(super) fn judge(&mut self, group: &SchedGroup, imbalance_pct: u64) {
        self.capacity = group.capacity;
        self.weight = group.weight;
        self.kind = classify(group, self, imbalance_pct);
        if self.kind == GroupType::Overloaded {
            self.avg_load = self.load * CAPACITY_SCALE / self.capacity;
        }
    }
}

impl Fair {
    /// Statistics for balancing over all CPUs of a group, from sums that are up to date. No other
    /// class has queued tasks.
    pub(super) fn kept_stats(&self, env: &dyn Env, group: &SchedGroup) -> GroupStats {
        let sums = self.sums.of_group(group);
        debug_assert_eq!(*sums, self.recount(&group.span), "of the CPUs {}", group.span);
        let may_idle =
            cpumask::iter_and_within(&group.span, &self.maybe_idle_cpus, group.words.clone());
        let idle = may_idle.filter(|cpu| self.sums.of_cpu(*cpu).nr_queued == 0);
        GroupStats {
            load: sums.load,
            util: sums.util,
            runnable: sums.runnable,
            nr_running: sums.nr_queued,
            h_nr_running: sums.nr_runnable,
            idle_cpus: idle.filter(|cpu| env.cpu_idle(*cpu)).count() as u32,
            overloaded: sums.nr_overloaded != 0,
            ..GroupStats::default()
        }
    }

    /// Statistics for balancing over the CPUs of a group that are in `cpus`.
    pub(super) fn counted_stats(
        &self,
        env: &dyn Env,
        group: &SchedGroup,
        cpus: &Words,
    ) -> GroupStats {
        let mut stats = GroupStats::default();
        for cpu in cpumask::iter_and(&group.span, cpus) {
            let queue = &self.rqs[CfsRqId(cpu.0)];
            stats.load += queue.avg.load_avg;
            stats.util += self.cpu_util(cpu, None, false);
            stats.runnable += queue.avg.runnable_avg;
            stats.h_nr_running += queue.h_nr_runnable;
            let nr_running = self.rq_nr_running(env, cpu);
            stats.nr_running += nr_running;
            if nr_running == 0 && self.idle(env, cpu) {
                stats.idle_cpus += 1;
            }
            stats.overloaded |= nr_running > 1;
        }
        stats
    }

    /// Statistics of a group for the placement of `task` at fork or exec, as if `task` were on no
    /// CPU. `asym` tells that the domain has CPUs of different capacity.
    pub(super) fn wakeup_stats(
        &mut self,
        env: &dyn Env,
        group: usize,
        task: TaskId,
        imbalance_pct: u64,
        asym: bool,
    ) -> GroupStats {
        let mut stats = GroupStats { misfit_load: u64::from(asym), ..GroupStats::default() };
        let (e, home) = (self.task(task).ent, self.task(task).cpu);
        let attached = self.ents[e].avg.last_update_time != 0;
        let task_load = self.task_h_load(e);
        let row = &self.domains.groups[group];
        let allowed = env.allowed(task);
        for cpu in cpumask::iter_and(&row.span, allowed) {
            let queue = &self.rqs[CfsRqId(cpu.0)];
            let here = home == Some(cpu) && attached;
            let (load, runnable) =
                if here { (task_load, self.ents[e].avg.runnable_avg) } else { (0, 0) };
            let counted = u32::from(here && self.ents[e].on_rq);
            stats.load += queue.avg.load_avg.saturating_sub(load);
            stats.util += self.cpu_util(cpu, Some(task), false);
            stats.runnable += queue.avg.runnable_avg.saturating_sub(runnable);
            stats.h_nr_running += queue.h_nr_runnable.saturating_sub(counted);
            let nr_running = self.rq_nr_running(env, cpu).saturating_sub(counted);
            stats.nr_running += nr_running;
            if nr_running == 0 && self.idle_without(env, cpu, task) {
                stats.idle_cpus += 1;
            }
            if stats.misfit_load != 0 && self.task_fits(e, cpu) {
                stats.misfit_load = 0;
            }
        }
        stats.capacity = row.capacity;
        stats.max_capacity = row.max_capacity;
        stats.weight = row.weight;
        stats.kind = classify(row, &stats, imbalance_pct);
        if matches!(stats.kind, GroupType::FullyBusy | GroupType::Overloaded) {
            stats.avg_load = stats.load * CAPACITY_SCALE / stats.capacity;
        }
        stats
    }

    fn idle_without(&self, env: &dyn Env, cpu: scxlab_machine::id::CpuId, task: TaskId) -> bool {
        env.cpu_idle(cpu) || env.curr_task(cpu) == Some(task)
    }
}

fn classify(group: &SchedGroup, stats: &GroupStats, imbalance_pct: u64) -> GroupType {
    match () {
        _ if overloaded(stats, imbalance_pct) => GroupType::Overloaded,
        _ if stats.llc_balance => GroupType::LlcBalance,
        _ if group.imbalance => GroupType::Imbalanced,
        _ if stats.smt_balance => GroupType::SmtBalance,
        _ if stats.misfit_load != 0 => GroupType::Misfit,
        _ if !has_capacity(stats, imbalance_pct) => GroupType::FullyBusy,
        _ => GroupType::HasSpare,
    }
}

fn overloaded(stats: &GroupStats, imbalance_pct: u64) -> bool {
    stats.nr_running > stats.weight
        && (stats.capacity * 100 < stats.util * imbalance_pct
            || stats.capacity * imbalance_pct < stats.runnable * 100)
}

fn has_capacity(stats: &GroupStats, imbalance_pct: u64) -> bool {
    stats.nr_running < stats.weight
        || stats.capacity * imbalance_pct >= stats.runnable * 100
            && stats.capacity * 100 > stats.util * imbalance_pct
}

// SPDX-License-Identifier: GPL-2.0-only
//! CPUs of different capacity: whether a task fits on a CPU, the misfit tasks, which run on a CPU
//! that is too small for them, and the search for an idle CPU that is large enough.
//!
//! Owns: fitness, the misfit mark of each CPU, and the idle CPU for a wake-up on such a machine.
//! Does not: move misfit tasks (`balance.rs`, `nohz.rs`).
//! Models: `util_fits_cpu()`, `update_misfit_status()`, `asym_fits_cpu()`,
//! `select_idle_capacity()`, fair.c v7.3.
//! Differs: no uclamp, and the capacity is the topology's, without pressure from other classes.

use super::lb_stats::GroupStats;
use super::select::{Words, Wrap};
use super::state::EntityId;
use super::{Env, Fair};
use scxlab_machine::cpumask;
use scxlab_machine::id::{CpuId, TaskId};

/// How well an idle CPU suits a task, best first. A CPU that fits on an idle core, or that fits
/// while no core is known to be idle, ends the search.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Suits {
    /// The core is idle, but the CPU is too small.
    IdleCore,
    /// The CPU is large enough, but a sibling is busy.
    Fits,
    Neither,
}

/// Whether a capacity is larger than another by more than about 5 % (`capacity_greater()`).
pub(super) fn capacity_greater(one: u64, other: u64) -> bool {
    one * 1024 > other * 1078
}

impl Fair {
    /// Whether some domain has CPUs of different capacity (`sched_asym_cpucap_active()`).
    #[inline]
    pub fn asymmetric(&self) -> bool {
        self.domains.asymmetric
    }

    /// Whether a task's utilisation leaves the CPU a fifth of its capacity (`task_fits_cpu()`).
    pub(super) fn task_fits(&self, e: EntityId, cpu: CpuId) -> bool {
        let util = self.ents[e].avg.util_avg.max(self.task_util_est(e));
        util * 1280 < self.cpus[cpu].capacity * 1024
    }

    /// Whether an idle CPU is large enough for a task, and its core has no busy sibling. True on
    /// any CPU of a symmetric machine.
    pub(super) fn suits(&self, env: &dyn Env, e: EntityId, cpu: CpuId) -> bool {
        !self.asymmetric() || self.core_free(env, cpu) && self.task_fits(e, cpu)
    }

    pub(super) fn core_free(&self, env: &dyn Env, cpu: CpuId) -> bool {
        !self.domains.smt_present || self.core_is_idle(env, cpu)
    }

    /// Records whether the task that runs on a CPU needs a larger one, and may run on one. The
    /// kernel calls this when a task of this class begins to run, and at each of its ticks.
    pub fn update_misfit(&mut self, env: &dyn Env, cpu: CpuId) {
        if !self.asymmetric() {
            return;
        }
        let misfit = self.cpus[cpu].curr.some().filter(|&e| self.misfit(env, e, cpu));
        self.cpus[cpu].misfit_load = misfit.map_or(0, |e| self.task_h_load(e).max(1));
    }

    fn misfit(&self, env: &dyn Env, e: EntityId, cpu: CpuId) -> bool {
        let task = self.ents[e].task.expect("only tasks run");
        let larger = |other: CpuId| self.cpus[other].capacity > self.cpus[cpu].capacity;
        !self.task_fits(e, cpu) && cpumask::iter(env.allowed(task)).any(larger)
    }

    /// Returns an idle CPU of the smallest domain that has CPUs of all capacities: the first one
    /// after `target` that suits the task, else the best one. Without such a domain the result is
    /// None; if no idle CPU is found, it is `target`.
    pub(super) fn select_idle_capacity(
        &mut self,
        env: &dyn Env,
        task: TaskId,
        target: CpuId,
    ) -> Option<CpuId> {
        let level = self.domains.asym_level[target.idx()]?;
        let shape = self.domains.shape(target, level as usize);
        let has_idle_core = self.domains.has_idle_cores(target);
        let mut left = u32::MAX;
        if let Some(shared) = shape.shared.filter(|_| self.params.features.sis_util) {
            left = self.domains.shared[shared as usize].nr_idle_scan + 1;
            if left == 1 {
                return Some(target);
            }
        }
        let e = self.task(task).ent;
        let allowed = env.allowed(task);
        let words = shape.words.clone();
        let cpus: Words = shape.span.iter().zip(allowed).map(|(span, may)| span & may).collect();
        let mut at = Wrap::from(target, words);
        let (mut best, mut best_is) = (None, (Suits::Neither, 0));
        while let Some(cpu) = at.next(&cpus) {
            if !has_idle_core {
                left -= 1;
                if left == 0 {
                    return Some(best.unwrap_or(target));
                }
            }
            if !self.choose_idle(env, cpu, e) {
                continue;
            }
            let fits = self.task_fits(e, cpu);
            let preferred = !has_idle_core || self.core_is_idle(env, cpu);
            let suits = match (preferred, fits) {
                (true, true) => return Some(cpu),
                (true, false) => Suits::IdleCore,
                (false, true) => Suits::Fits,
                (false, false) => Suits::Neither,
            };
            let capacity = self.cpus[cpu].capacity;
            if suits < best_is.0 || suits == best_is.0 && capacity > best_is.1 {
                (best, best_is) = (Some(cpu), (suits, capacity));
            }
        }
        if has_idle_core && best_is.0 != Suits::IdleCore {
            self.domains.set_idle_cores(target, false);
        }
        Some(best.unwrap_or(target))
    }

    /// Adds the misfit tasks of a group to its statistics, as far as `dst` could take them.
    pub(super) fn count_misfits(
        &self,
        env: &dyn Env,
        group: usize,
        cpus: &Words,
        dst: CpuId,
        stats: &mut GroupStats,
    ) {
        let row = &self.domains.groups[group];
        let helps = capacity_greater(self.cpus[dst].capacity, row.max_capacity);
        for cpu in cpumask::iter_and(&row.span, cpus) {
            let load = self.cpus[cpu].misfit_load;
            if load == 0 || self.idle(env, cpu) {
                continue;
            }
            // A large CPU that runs dry shall look for misfit tasks.
            stats.overloaded = true;
            if helps {
                stats.misfit_load = stats.misfit_load.max(load);
            }
        }
    }
}

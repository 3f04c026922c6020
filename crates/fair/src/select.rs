// SPDX-License-Identifier: GPL-2.0-only
//! Placement of a woken task: near its waker or near the CPU where it ran last, on an idle CPU of
//! the chosen LLC if there is one.
//!
//! Owns: the wake-up fast path and its hints (wakee flips, recently used CPU, idle-core flag).
//! Does not: fork and exec placement over domains (`idlest.rs`); the search among CPUs of different
//! capacity (`asym.rs`).
//! Models: `select_task_rq_fair()`, `wake_wide()`, `wake_affine()`, `select_idle_sibling()`,
//! `select_idle_core()`, `select_idle_cpu()`, `select_idle_smt()`, `__update_idle_core()`, fair.c
//! v7.3.
//! Differs: no energy-aware placement, no clusters.

use super::state::{CfsRqId, EntityId, Waker};
use super::{Env, Fair};
use scxlab_machine::cpumask;
use scxlab_machine::id::{CpuId, Nanos, TaskId};
use smallvec::SmallVec;
use std::ops::Range;

/// A CPU set, on the stack for up to 1024 CPUs.
pub(super) type Words = SmallVec<[u64; 16]>;

/// Reason for a placement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WakeFlags {
    /// A sleeping task is woken (`WF_TTWU`).
    pub ttwu: bool,
    /// A new task starts (`WF_FORK`).
    pub fork: bool,
    /// A task calls execve (`WF_EXEC`).
    pub exec: bool,
    /// The waker is about to sleep (`WF_SYNC`).
    pub sync: bool,
    /// The task goes to the waker's CPU if it may run there (`WF_CURRENT_CPU`).
    pub current_cpu: bool,
}

impl WakeFlags {
    pub const TTWU: WakeFlags =
        WakeFlags { ttwu: true, fork: false, exec: false, sync: false, current_cpu: false };
    pub const FORK: WakeFlags = WakeFlags { ttwu: false, fork: true, ..WakeFlags::TTWU };
    pub const EXEC: WakeFlags = WakeFlags { ttwu: false, exec: true, ..WakeFlags::TTWU };
}

impl Fair {
    /// Returns the CPU for a task that wakes, starts or calls execve. `this_cpu` is the waker's
    /// CPU. The result may be `prev` even if the task may not run there any more. In that case the
    /// caller must choose a CPU.
    pub fn select_cpu(
        &mut self,
        env: &dyn Env,
        task: TaskId,
        prev: CpuId,
        this_cpu: CpuId,
        flags: WakeFlags,
        now: Nanos,
    ) -> CpuId {
        self.update_clock(this_cpu, now);
        let mut want_affine = false;
        if flags.ttwu {
            self.record_wakee(env, task, this_cpu);
            let allowed = cpumask::test(env.allowed(task), this_cpu);
            if flags.current_cpu && allowed {
                return this_cpu;
            }
            want_affine = allowed && !self.wake_wide(env, task, this_cpu);
        }
        let mut new_cpu = prev;
        let mut slow = None;
        for level in 0..self.domains.of_cpu[this_cpu.idx()].len() {
            let shape = self.domains.shape(this_cpu, level);
            if want_affine && shape.flags.wake_affine && cpumask::test(&shape.span, prev) {
                if this_cpu != prev {
                    let pct = shape.imbalance_pct;
                    new_cpu = self.wake_affine(env, task, this_cpu, prev, pct, flags.sync);
                }
                slow = None;
                break;
            }
            if (flags.fork || flags.exec) && shape.flags.balance_fork {
                slow = Some(level);
            } else if !want_affine {
                break;
            }
        }
        match slow {
            Some(level) => self.find_idlest_cpu(env, task, this_cpu, prev, level, flags),
            None if flags.ttwu => self.select_idle_sibling(env, task, prev, new_cpu, this_cpu),
            None => new_cpu,
        }
    }

    /// Whether the CPU is idle: this class has no task queued on it, and `Env` says that it idles.
    #[inline]
    pub(super) fn idle(&self, env: &dyn Env, cpu: CpuId) -> bool {
        self.nr_running(cpu) == 0 && env.cpu_idle(cpu)
    }

    /// Whether the CPU is idle, or busy only with tasks of idle policy that `e` may preempt.
    pub(super) fn choose_idle(&self, env: &dyn Env, cpu: CpuId, e: EntityId) -> bool {
        self.idle(env, cpu) || self.sched_idle_rq(env, cpu) && !self.has_idle_policy(e)
    }

    pub(super) fn sched_idle_rq(&self, env: &dyn Env, cpu: CpuId) -> bool {
        self.sched_idle_cpu(cpu) && env.nr_running_other(cpu) == 0
    }

    /// `rq->nr_running`: number of queued tasks of all classes.
    #[inline]
    pub(super) fn rq_nr_running(&self, env: &dyn Env, cpu: CpuId) -> u32 {
        self.nr_running(cpu) + env.nr_running_other(cpu)
    }

    fn waker(&mut self, env: &dyn Env, cpu: CpuId) -> &mut Waker {
        match env.curr_task(cpu).filter(|t| self.knows(*t)) {
            Some(task) => &mut self.task_mut(task).waker,
            None => &mut self.cpus[cpu].idle_waker,
        }
    }

    pub(super) fn knows(&self, task: TaskId) -> bool {
        self.tasks.get(task.idx()).is_some_and(Option::is_some)
    }

    fn record_wakee(&mut self, env: &dyn Env, wakee: TaskId, cpu: CpuId) {
        let now = self.cpus[cpu].clock;
        let waker = self.waker(env, cpu);
        // `flips` counts the times that the waker woke another task than at its previous wake-up.
        // The count is halved about once a second while the waker wakes tasks.
        if now > waker.decay_at + 1_000_000_000 {
            waker.flips >>= 1;
            waker.decay_at = now;
        }
        if waker.last_wakee != Some(wakee) {
            waker.last_wakee = Some(wakee);
            waker.flips += 1;
        }
    }

    /// Whether waker and wakee are a dispatcher and one of many workers that would not fit into one
    /// LLC. Such tasks are not pulled together.
    fn wake_wide(&mut self, env: &dyn Env, wakee: TaskId, cpu: CpuId) -> bool {
        let factor = self.domains.llc_size[cpu.idx()];
        let (a, b) = (self.waker(env, cpu).flips, self.task(wakee).waker.flips);
        let (master, slave) = (a.max(b), a.min(b));
        slave >= factor && master >= slave.saturating_mul(factor)
    }

    /// Chooses between the waker's CPU and the task's previous CPU.
    fn wake_affine(
        &mut self,
        env: &dyn Env,
        task: TaskId,
        this_cpu: CpuId,
        prev: CpuId,
        imbalance_pct: u64,
        sync: bool,
    ) -> CpuId {
        let features = self.params.features;
        let mut target = None;
        if features.wa_idle {
            target = self.wake_affine_idle(env, this_cpu, prev, sync);
        }
        if features.wa_weight && target.is_none() {
            target = self
                .wake_affine_weight(env, task, this_cpu, prev, imbalance_pct, sync)
                .then_some(this_cpu);
        }
        if target == Some(this_cpu) { this_cpu } else { prev }
    }

    fn wake_affine_idle(
        &self,
        env: &dyn Env,
        this_cpu: CpuId,
        prev: CpuId,
        sync: bool,
    ) -> Option<CpuId> {
        // If the waker's CPU is idle, an interrupt woke the task. The interrupt's CPU then attracts
        // the task only if it shares a cache with `prev`, because otherwise the place of the
        // interrupt would decide the placement.
        if self.idle(env, this_cpu) && self.domains.share_cache(this_cpu, prev) {
            return Some(if self.idle(env, prev) { prev } else { this_cpu });
        }
        if sync {
            let delayed = self.nr_running(this_cpu) - self.nr_runnable(this_cpu);
            if self.rq_nr_running(env, this_cpu) - delayed == 1 {
                return Some(this_cpu);
            }
        }
        self.idle(env, prev).then_some(prev)
    }

    fn wake_affine_weight(
        &mut self,
        env: &dyn Env,
        task: TaskId,
        this_cpu: CpuId,
        prev: CpuId,
        imbalance_pct: u64,
        sync: bool,
    ) -> bool {
        let mut this_load = self.load(this_cpu) as i64;
        if sync && let Some(curr) = env.curr_task(this_cpu).filter(|t| self.knows(*t)) {
            let curr_load = self.task_h_load(self.task(curr).ent) as i64;
            if curr_load > this_load {
                return true;
            }
            this_load -= curr_load;
        }
        let task_load = self.task_h_load(self.task(task).ent) as i64;
        let bias = self.params.features.wa_bias;
        let (this_pct, prev_pct) =
            if bias { (100, 100 + (imbalance_pct as i64 - 100) / 2) } else { (1, 1) };
        let this_eff = (this_load + task_load) * this_pct * self.cpus[prev].capacity as i64;
        let prev_load = self.load(prev) as i64 - task_load;
        let prev_eff = prev_load * prev_pct * self.cpus[this_cpu].capacity as i64;
        // A sync waker frees its CPU, so if both CPUs' scaled loads are equal, the task goes to the
        // waker's CPU.
        this_eff < prev_eff + i64::from(sync)
    }

    /// Returns an idle CPU that shares the target's cache, else the target. Among CPUs of different
    /// capacity, returns an idle CPU that is large enough, also beyond the cache.
    fn select_idle_sibling(
        &mut self,
        env: &dyn Env,
        task: TaskId,
        prev: CpuId,
        target: CpuId,
        this_cpu: CpuId,
    ) -> CpuId {
        let e = self.task(task).ent;
        if self.asymmetric() {
            self.sync_load(e);
        }
        if self.choose_idle(env, target, e) && self.suits(env, e, target) {
            return target;
        }
        let near = self.domains.share_cache(prev, target);
        if prev != target && near && self.choose_idle(env, prev, e) && self.suits(env, e, prev) {
            return prev;
        }
        // The waker is a per-CPU kernel thread, which has completed work for the task and is about
        // to sleep, so the task stays on this CPU.
        if env.curr_task(this_cpu).is_some_and(|t| env.per_cpu_kthread(t))
            && prev == this_cpu
            && self.rq_nr_running(env, this_cpu) <= 1
            && self.suits(env, e, prev)
        {
            return prev;
        }
        let recent = self.task_mut(task).recent_used_cpu.replace(prev);
        if let Some(recent) = recent.filter(|&cpu| cpu != prev && cpu != target)
            && self.domains.share_cache(recent, target)
            && self.choose_idle(env, recent, e)
            && cpumask::test(env.allowed(task), recent)
            && self.suits(env, e, recent)
        {
            return recent;
        }
        if let Some(cpu) = self.select_idle_capacity(env, task, target) {
            return cpu;
        }
        if self.domains.llc_level[target.idx()].is_none() {
            return target;
        }
        let mut has_idle_core = false;
        if self.domains.smt_present {
            has_idle_core = self.domains.has_idle_cores(target);
            if !has_idle_core
                && near
                && let Some(cpu) = self.select_idle_smt(env, task, e, target, prev)
            {
                return cpu;
            }
        }
        self.select_idle_cpu(env, task, e, has_idle_core, target).unwrap_or(target)
    }

    fn select_idle_smt(
        &self,
        env: &dyn Env,
        task: TaskId,
        e: EntityId,
        target: CpuId,
        prev: CpuId,
    ) -> Option<CpuId> {
        let span = &self.domains.llc_shape(target)?.span;
        self.domains.siblings(prev).iter().copied().find(|&cpu| {
            cpu != prev
                && cpumask::test(env.allowed(task), cpu)
                && cpumask::test(span, cpu)
                && self.choose_idle(env, cpu, e)
        })
    }

    /// Scans the target's LLC, beginning after the target, for an idle core if there may be one,
    /// else for any idle CPU. The higher the LLC's utilisation is, the fewer CPUs the scan for an
    /// idle CPU covers.
    fn select_idle_cpu(
        &mut self,
        env: &dyn Env,
        task: TaskId,
        e: EntityId,
        has_idle_core: bool,
        target: CpuId,
    ) -> Option<CpuId> {
        let shape = self.domains.llc_shape(target)?;
        let mut left = u32::MAX;
        if let Some(shared) = shape.shared.filter(|_| self.params.features.sis_util) {
            left = self.domains.shared[shared as usize].nr_idle_scan + 1;
            if left == 1 {
                return None;
            }
        }
        let allowed = env.allowed(task);
        let words = shape.words.clone();
        let mut cpus = Words::from_elem(0, shape.span.len());
        for at in words.clone() {
            cpus[at] = shape.span[at] & allowed[at];
        }
        let mut at = Wrap::new(target, words);
        if !has_idle_core {
            // The loop skips CPUs that cannot be idle, but counts them as scanned.
            let mut busy = 0;
            while let Some(cpu) = at.next_of(&cpus, &self.maybe_idle_cpus, &mut busy) {
                left = left.saturating_sub(std::mem::take(&mut busy) + 1);
                if left == 0 {
                    return None;
                }
                if self.choose_idle(env, cpu, e) {
                    return Some(cpu);
                }
            }
            return None;
        }
        let mut found = None;
        while let Some(cpu) = at.next(&cpus) {
            if self.core_idle(env, cpu, e, &mut cpus, &mut found) {
                return Some(cpu);
            }
        }
        self.domains.set_idle_cores(target, false);
        found
    }

    /// Whether all CPUs of a core are idle. If not, removes these CPUs from `cpus`. If `found` is
    /// empty, stores a CPU of the core and of `cpus` there that is idle, or busy only with tasks of
    /// idle policy that `e` may preempt.
    fn core_idle(
        &self,
        env: &dyn Env,
        core: CpuId,
        e: EntityId,
        cpus: &mut Words,
        found: &mut Option<CpuId>,
    ) -> bool {
        let mut idle = true;
        for &cpu in self.domains.siblings(core) {
            if !self.idle(env, cpu) {
                idle = false;
                if found.is_some() {
                    break;
                }
                let pushable = self.sched_idle_rq(env, cpu) && !self.has_idle_policy(e);
                if pushable && cpumask::test(cpus, cpu) {
                    *found = Some(cpu);
                    break;
                }
                continue;
            }
            if found.is_none() && cpumask::test(cpus, cpu) {
                *found = Some(cpu);
            }
        }
        if !idle {
            for &cpu in self.domains.siblings(core) {
                cpumask::clear(cpus, cpu);
            }
        }
        idle
    }

    /// Records that the CPU runs its idle task from now on. If its siblings are idle too, wake-ups
    /// may look for an idle core again.
    pub fn enter_idle(&mut self, env: &dyn Env, cpu: CpuId, now: Nanos) {
        self.update_clock(cpu, now);
        self.idle_clock_pelt(cpu);
        if !self.domains.smt_present {
            return;
        }
        if self.core_is_idle(env, cpu) {
            self.domains.set_idle_cores(cpu, true);
        }
    }

    /// Whether all other CPUs of the CPU's core are idle.
    pub(super) fn core_is_idle(&self, env: &dyn Env, cpu: CpuId) -> bool {
        self.domains.siblings(cpu).iter().all(|&s| s == cpu || self.idle(env, s))
    }

    /// Utilisation of a CPU, as if the task `without` were not there. With `boost`, waiting tasks
    /// count too.
    pub(super) fn cpu_util(&self, cpu: CpuId, without: Option<TaskId>, boost: bool) -> u64 {
        let avg = &self.rqs[CfsRqId(cpu.0)].avg;
        let mut util = avg.util_avg;
        let mut est = u64::from(avg.util_est);
        let mut runnable = avg.runnable_avg;
        let here = without.map(|t| self.task(t)).filter(|t| t.cpu == Some(cpu));
        if let Some(task) = here.filter(|t| self.ents[t.ent].avg.last_update_time != 0) {
            let gone = &self.ents[task.ent];
            util = util.saturating_sub(gone.avg.util_avg);
            runnable = runnable.saturating_sub(gone.avg.runnable_avg);
            if gone.on_rq {
                est = est.saturating_sub(self.task_util_est(task.ent));
            }
        }
        if boost {
            util = util.max(runnable);
        }
        if self.params.features.util_est {
            util = util.max(est);
        }
        util.min(self.cpus[cpu].capacity)
    }
}

/// Iteration over a CPU set that begins at a given CPU, or after one, and wraps around.
/// The set may shrink during the iteration.
pub(super) struct Wrap {
    start: u32,
    next: u32,
    wrapped: bool,
    /// The set lies within these CPUs.
    within: Range<u32>,
}

impl Wrap {
    /// `words` are the words of the set that are not 0.
    pub(super) fn new(after: CpuId, words: Range<usize>) -> Self {
        Self::from(CpuId(after.0 + 1), words)
    }

    /// Begins with the CPU itself.
    pub(super) fn from(start: CpuId, words: Range<usize>) -> Self {
        let within = words.start as u32 * 64..words.end as u32 * 64;
        Wrap { start: start.0, next: start.0, wrapped: false, within }
    }

    pub(super) fn next(&mut self, words: &[u64]) -> Option<CpuId> {
        self.next_of(words, words, &mut 0)
    }

    /// Returns the next CPU that is in both sets. Adds to `passed` the CPUs of the first set that
    /// were skipped because they are not in the second one.
    pub(super) fn next_of(
        &mut self,
        words: &[u64],
        also: &[u64],
        passed: &mut u32,
    ) -> Option<CpuId> {
        if !self.wrapped {
            if let Some(cpu) = next_bit(words, also, self.next, self.within.end, passed) {
                self.next = cpu + 1;
                return Some(CpuId(cpu));
            }
            self.wrapped = true;
            self.next = self.within.start;
        }
        let cpu = next_bit(words, also, self.next, self.start, passed)?;
        self.next = cpu + 1;
        Some(CpuId(cpu))
    }
}

/// Returns the first CPU of both sets from `from` up to, but not including, `end`.
fn next_bit(words: &[u64], also: &[u64], from: u32, end: u32, passed: &mut u32) -> Option<u32> {
    let mut from = from;
    while from < end {
        let at = from as usize / 64;
        let (word, also) = (words.get(at)?, also.get(at)?);
        let next = (from / 64 + 1) * 64;
        let upto = if end < next { (1 << (end % 64)) - 1 } else { u64::MAX };
        let word = word & (u64::MAX << (from % 64)) & upto;
        let both = word & also;
        if both != 0 {
            let bit = both.trailing_zeros();
            *passed += (word & ((1 << bit) - 1)).count_ones();
            return Some(from / 64 * 64 + bit);
        }
        *passed += word.count_ones();
        from = next;
    }
    None
}

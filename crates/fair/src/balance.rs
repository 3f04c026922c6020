// SPDX-License-Identifier: GPL-2.0-only
//! Load balancing within one domain, for one CPU: the CPU finds the busiest group of the domain and
//! that group's busiest CPU, and pulls tasks from there.
//!
//! Owns: the decision. `migrate.rs` moves the tasks. A moved task is on its new queue when a
//! balancing call returns.
//! Does not: update the kernel's records. The kernel updates them for each `Move`, and reschedules
//! the CPUs for which `take_resched` asks it to.
//! Models: `sched_balance_rq()`, `sched_balance_find_src_group()`, `calculate_imbalance()`,
//! `sched_balance_find_src_rq()`, `need_active_balance()`, fair.c v7.3.
//! Differs: no packing by priority.

use super::asym::capacity_greater;
use super::idlest::adjust_numa_imbalance;
use super::lb_stats::{GroupStats, GroupType};
use super::select::Words;
use super::state::Push;
use super::weight::CAPACITY_SCALE;
use super::{Env, Fair};
use scxlab_machine::cpumask;
use scxlab_machine::id::{CpuId, TaskId};
use smallvec::SmallVec;

/// Longest balance interval while all tasks are pinned, ms (`MAX_PINNED_INTERVAL`).
const MAX_PINNED_INTERVAL: u32 = 512;

/// A task that was moved from one CPU's queue to another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Move {
    pub task: TaskId,
    pub from: CpuId,
    pub to: CpuId,
    /// The task sleeps. Balancing moved the task because it is still queued (delayed dequeue).
    pub delayed: bool,
}

/// Request to push a running task away from a CPU. The caller stops the task on `from`, and then
/// calls `Fair::active_balance(from)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ActiveBalance {
    pub from: CpuId,
    pub to: CpuId,
}

/// Moves that balancing made, and pushes that it requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Balanced {
    pub moves: SmallVec<[Move; 4]>,
    pub active: SmallVec<[ActiveBalance; 2]>,
    /// Number of CPUs examined, for which the caller charges the cost.
    pub scanned: u32,
}

/// Whether the balancing CPU is busy, is idle, or has just run out of tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum IdleType {
    Busy,
    Idle,
    NewlyIdle,
}

/// Quantity that balancing moves, which is the unit of `Attempt::imbalance`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ImbalanceKind {
    Load,
    Util,
    Task,
    /// One task that needs a larger CPU.
    Misfit,
    /// A task that prefers the LLC of the balancing CPU.
    LlcTask,
}

/// One attempt to balance a domain (`struct lb_env`).
pub(super) struct Attempt {
    pub this_cpu: CpuId,
    pub level: usize,
    pub dst: CpuId,
    pub src: CpuId,
    pub idle: IdleType,
    /// CPUs of the domain that take part. `whole` tells that these are still all.
    pub cpus: Words,
    pub whole: bool,
    pub dst_groups: Words,
    pub kind: ImbalanceKind,
    pub imbalance: i64,
    pub looped: u32,
    pub loop_max: u32,
    pub all_pinned: bool,
    pub some_pinned: bool,
    pub dst_pinned: bool,
    pub new_dst: CpuId,
    pub active: bool,
    /// Only tasks that prefer the LLC of `dst` may go.
    pub llc_only: bool,
    /// Some task was left alone, because it prefers another LLC than that of `dst`.
    pub llc_pinned: bool,
}

impl Attempt {
    fn exclude(&mut self, cpu: CpuId) {
        cpumask::clear(&mut self.cpus, cpu);
        self.whole = false;
    }
}

/// Tasks that balancing between nodes may move (`enum fbq_type`), the first choice first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum TaskKind {
    /// Tasks without a preferred node.
    Regular,
    /// Tasks that are not on their preferred node.
    Remote,
    All,
}

impl TaskKind {
    /// Classifies the tasks of a group or a queue: their number, the number of those with a
    /// preferred node, and the number of those that are on it.
    pub fn of(nr: u32, numa: u32, preferred: u32) -> TaskKind {
        match () {
            _ if nr > numa => TaskKind::Regular,
            _ if nr > preferred => TaskKind::Remote,
            _ => TaskKind::All,
        }
    }
}

/// Statistics of a domain (`struct sd_lb_stats`): the balancing CPU's group, the busiest other
/// group, and sums over all groups.
struct Survey {
    local: (usize, GroupStats),
    busiest: Option<(usize, GroupStats)>,
    load: u64,
    capacity: u64,
}

impl Fair {
    /// Balances one domain of `this_cpu`. Returns how many tasks were pulled, and whether larger
    /// domains are worth balancing.
    pub(super) fn balance_domain(
        &mut self,
        env: &dyn Env,
        this_cpu: CpuId,
        level: usize,
        idle: IdleType,
        out: &mut Balanced,
    ) -> (u32, bool) {
        let mut lb = self.attempt(this_cpu, level, idle);
        out.scanned += self.domains.shape(this_cpu, level).span_weight;
        loop {
            if !self.should_balance(env, &lb) {
                self.balanced(&lb, true);
                return (0, false);
            }
            let source = self.find_src_group(env, &mut lb);
            let source = source.and_then(|group| self.find_src_cpu(env, &lb, group));
            let Some(src) = source else {
                self.balanced(&lb, true);
                return (0, true);
            };
            lb.src = src;
            lb.all_pinned = true;
            let moved = self.pull(env, &mut lb, out);
            if lb.all_pinned && self.rq_nr_running(env, src) > 1 {
                lb.exclude(src);
                if cpumask::is_subset(&lb.cpus, &lb.dst_groups) {
                    self.balanced(&lb, false);
                    return (0, true);
                }
                lb.looped = 0;
                continue;
            }
            self.settle(env, &mut lb, moved, out);
            return (moved, true);
        }
    }

    pub(super) fn attempt(&self, this_cpu: CpuId, level: usize, idle: IdleType) -> Attempt {
        let shape = self.domains.shape(this_cpu, level);
        let own = self.domains.of_cpu[this_cpu.idx()][level].own as usize;
        let group = &self.domains.groups[shape.groups[own] as usize];
        Attempt {
            this_cpu,
            level,
            dst: this_cpu,
            src: this_cpu,
            idle,
            cpus: Words::from_slice(&shape.span),
            whole: true,
            dst_groups: Words::from_slice(&group.balance_mask),
            kind: ImbalanceKind::Load,
            imbalance: 0,
            looped: 0,
            loop_max: 0,
            all_pinned: false,
            some_pinned: false,
            dst_pinned: false,
            new_dst: this_cpu,
            active: false,
            llc_only: false,
            llc_pinned: false,
        }
    }

    /// Pulls tasks from the busiest CPU to `lb.dst`. If some tasks may not run on `lb.dst`, but may
    /// run on another CPU of the group of `lb.dst`, pulls tasks to that CPU too.
    fn pull(&mut self, env: &dyn Env, lb: &mut Attempt, out: &mut Balanced) -> u32 {
        let mut moved = 0;
        let nr_running = self.rq_nr_running(env, lb.src);
        if nr_running <= 1 {
            lb.all_pinned = false;
            return 0;
        }
        lb.loop_max = self.params.nr_migrate.min(nr_running);
        loop {
            moved += self.detach_and_attach(env, lb, out);
            if !(lb.dst_pinned && lb.imbalance > 0) {
                break;
            }
            lb.exclude(lb.dst);
            lb.dst = lb.new_dst;
            lb.dst_pinned = false;
            lb.looped = 0;
        }
        if lb.some_pinned && lb.imbalance > 0 {
            self.set_parent_imbalance(lb, true);
        }
        moved
    }

    /// Updates the domain's balance interval and number of failed balances after a pull. If pulls
    /// have failed too often, requests a push of the running task (an active balance).
    fn settle(&mut self, env: &dyn Env, lb: &mut Attempt, moved: u32, out: &mut Balanced) {
        let shape = self.domains.shape(lb.this_cpu, lb.level);
        let (weight, nice_tries) = (shape.span_weight, shape.cache_nice_tries);
        let domain = &mut self.domains.of_cpu[lb.this_cpu.idx()][lb.level];
        if moved != 0 {
            domain.nr_balance_failed = 0;
            domain.balance_interval = weight;
            return;
        }
        if lb.idle != IdleType::NewlyIdle && lb.kind != ImbalanceKind::Misfit && !lb.llc_pinned {
            domain.nr_balance_failed += 1;
        }
        let push = match lb.kind {
            ImbalanceKind::Task => domain.nr_balance_failed > nice_tries + 2,
            ImbalanceKind::Misfit | ImbalanceKind::LlcTask => true,
            ImbalanceKind::Load | ImbalanceKind::Util => false,
        };
        let push = push && !self.push_breaks_llc(env, lb);
        if push && !self.request_active(env, lb, out) {
            self.back_off(lb);
            return;
        }
        self.domains.of_cpu[lb.this_cpu.idx()][lb.level].balance_interval = weight;
    }

    /// Requests a push of the running task of the busiest CPU to the balancing CPU. Returns false
    /// if that task may not run on the balancing CPU.
    fn request_active(&mut self, env: &dyn Env, lb: &mut Attempt, out: &mut Balanced) -> bool {
        let Some(curr) = env.curr_task(lb.src) else {
            return true;
        };
        if !cpumask::test(env.allowed(curr), lb.this_cpu) {
            return false;
        }
        lb.all_pinned = false;
        if self.cpus[lb.src].active_balance.is_none() {
            let llc_only = lb.kind == ImbalanceKind::LlcTask;
            self.cpus[lb.src].active_balance = Some(Push { to: lb.this_cpu, llc_only });
            out.active.push(ActiveBalance { from: lb.src, to: lb.this_cpu });
        }
        true
    }

    /// Records that the domain is balanced, or that no task can be moved. With `unpin`, and if not
    /// all tasks are pinned, also clears `SchedGroup::imbalance` of the group that contains this
    /// CPU one level up.
    fn balanced(&mut self, lb: &Attempt, unpin: bool) {
        if unpin && !lb.all_pinned {
            self.set_parent_imbalance(lb, false);
        }
        self.domains.of_cpu[lb.this_cpu.idx()][lb.level].nr_balance_failed = 0;
        self.back_off(lb);
    }

    fn back_off(&mut self, lb: &Attempt) {
        if lb.idle == IdleType::NewlyIdle || lb.kind == ImbalanceKind::Misfit {
            return;
        }
        let max = 2 * self.domains.shape(lb.this_cpu, lb.level).span_weight;
        let domain = &mut self.domains.of_cpu[lb.this_cpu.idx()][lb.level];
        if lb.all_pinned && domain.balance_interval < MAX_PINNED_INTERVAL
            || domain.balance_interval < max
        {
            domain.balance_interval *= 2;
        }
    }

    fn set_parent_imbalance(&mut self, lb: &Attempt, imbalance: bool) {
        let Some(parent) = self.domains.of_cpu[lb.this_cpu.idx()].get(lb.level + 1) else {
            return;
        };
        let own = self.domains.shapes[parent.shape as usize].groups[parent.own as usize];
        self.domains.groups[own as usize].imbalance = imbalance;
    }

    /// Whether `lb.dst` is the CPU that balances for its group. A newly idle CPU balances if it
    /// still has no task. In the other cases one CPU of the group balances: the first idle CPU on
    /// an idle core, else the first idle CPU, else the first CPU.
    fn should_balance(&self, env: &dyn Env, lb: &Attempt) -> bool {
        if !cpumask::test(&lb.cpus, lb.dst) {
            return false;
        }
        if lb.idle == IdleType::NewlyIdle {
            return self.rq_nr_running(env, lb.dst) == 0;
        }
        let smt_level = self.domains.shape(lb.this_cpu, lb.level).flags.share_capacity;
        let mut idle_smt = None;
        for cpu in cpumask::iter(&lb.dst_groups) {
            if !cpumask::test(&lb.cpus, cpu) || !self.idle(env, cpu) {
                continue;
            }
            if self.domains.smt_present && !smt_level && !self.core_is_idle(env, cpu) {
                idle_smt = idle_smt.or(Some(cpu));
                continue;
            }
            return cpu == lb.dst;
        }
        match idle_smt {
            Some(cpu) => cpu == lb.dst,
            None => cpumask::first(&lb.dst_groups) == Some(lb.dst),
        }
    }

    fn survey(&mut self, env: &dyn Env, lb: &Attempt) -> Survey {
        let kept = lb.whole && !env.others_queue();
        if kept {
            self.refresh_sums(lb.this_cpu, lb.level);
        }
        let shape = self.domains.shape(lb.this_cpu, lb.level);
        let (pct, nr_groups) = (shape.imbalance_pct, shape.groups.len());
        let asym = shape.flags.asym_capacity;
        let between_llcs = self.between_llcs(shape.flags.share_llc);
        let (mut local, mut busiest) = (None, None);
        let (mut load, mut capacity, mut util, mut overloaded) = (0, 0, 0, false);
        for at in 0..nr_groups {
            let group = self.group_from_own(lb.this_cpu, lb.level, at);
            let row = &self.domains.groups[group];
            let own = cpumask::test(&row.span, lb.dst);
            let mut stats = match kept {
                true => self.kept_stats(env, row),
                false => self.counted_stats(env, row, &lb.cpus),
            };
            let smt = !own && lb.idle != IdleType::Busy && row.flags.share_capacity;
            stats.smt_balance = smt && stats.h_nr_running > 1;
            if asym && !own {
                self.count_misfits(env, group, &lb.cpus, lb.dst, &mut stats);
            }
            if between_llcs && !own {
                self.count_preferring(lb, group, &mut stats);
            }
            stats.judge(&self.domains.groups[group], pct);
            self.record_llc(lb, group, &stats);
            if own {
                local = Some((group, stats));
            } else if !(asym && self.left_alone(env, lb, local.as_ref(), group, &stats))
                && self.busier(busiest.as_ref(), group, &stats)
            {
                busiest = Some((group, stats));
            }
            load += stats.load;
            capacity += stats.capacity;
            util += stats.util;
            overloaded |= stats.overloaded;
        }
        if lb.level + 1 == self.domains.of_cpu[lb.this_cpu.idx()].len() {
            self.overloaded = overloaded;
        }
        self.update_idle_scan(lb, util);
        let local = local.expect("the balancing CPU is in a group of its domain");
        Survey { local, busiest, load, capacity }
    }

    /// Sets the number of CPUs that a wake-up scans in the LLC for an idle CPU: the higher the
    /// LLC's utilisation, the fewer CPUs.
    fn update_idle_scan(&mut self, lb: &Attempt, util: u64) {
        let shape = self.domains.shape(lb.this_cpu, lb.level);
        let (Some(shared), weight, pct) =
            (shape.shared, u64::from(shape.span_weight), shape.imbalance_pct)
        else {
            return;
        };
        if lb.idle == IdleType::NewlyIdle || !self.params.features.sis_util {
            return;
        }
        let x = util / weight;
        let busy = (x * x * pct * pct / (10_000 * CAPACITY_SCALE)).min(CAPACITY_SCALE);
        let scan = (CAPACITY_SCALE - busy) * weight / CAPACITY_SCALE;
        self.domains.shared[shared as usize].nr_idle_scan = scan as u32;
    }

    /// Whether balancing between CPUs of different capacity passes a group over: `lb.dst` could
    /// not help its misfit task, or is smaller than all of its CPUs, none of which has two tasks.
    fn left_alone(
        &self,
        env: &dyn Env,
        lb: &Attempt,
        local: Option<&(usize, GroupStats)>,
        group: usize,
        stats: &GroupStats,
    ) -> bool {
        let (row, dst) = (&self.domains.groups[group], self.cpus[lb.dst].capacity);
        if stats.kind == GroupType::Misfit {
            return !self.core_free(env, lb.dst)
                || !capacity_greater(dst, row.max_capacity)
                || local.is_none_or(|(_, local)| local.kind != GroupType::HasSpare);
        }
        stats.kind <= GroupType::FullyBusy && capacity_greater(row.min_capacity, dst)
    }

    fn busier(
        &self,
        busiest: Option<&(usize, GroupStats)>,
        group: usize,
        stats: &GroupStats,
    ) -> bool {
        if stats.h_nr_running == 0 {
            return false;
        }
        let none = GroupStats { idle_cpus: u32::MAX, ..GroupStats::default() };
        let (best_group, best) = busiest.map_or((None, &none), |(g, s)| (Some(*g), s));
        if stats.kind != best.kind {
            return stats.kind > best.kind;
        }
        let smt = |g: usize| self.domains.groups[g].flags.share_capacity;
        let has_spare = || {
            stats.idle_cpus < best.idle_cpus
                || stats.idle_cpus == best.idle_cpus && stats.nr_running > best.nr_running
        };
        match stats.kind {
            GroupType::Overloaded => stats.avg_load > best.avg_load,
            GroupType::Imbalanced => false,
            GroupType::LlcBalance => stats.prefer_dst > best.prefer_dst,
            GroupType::Misfit => stats.misfit_load > best.misfit_load,
            GroupType::SmtBalance if stats.idle_cpus != 0 || best.idle_cpus != 0 => has_spare(),
            GroupType::SmtBalance | GroupType::FullyBusy => {
                stats.avg_load > best.avg_load
                    || stats.avg_load == best.avg_load && !best_group.is_some_and(smt)
            }
            GroupType::HasSpare => match best_group {
                Some(b) if smt(b) != smt(group) => !(smt(group) && stats.h_nr_running <= 1),
                _ => has_spare(),
            },
        }
    }

    /// Returns the group to pull from, or None if the domain is balanced. Sets the kind and the
    /// amount of the imbalance in `lb`.
    fn find_src_group(&mut self, env: &dyn Env, lb: &mut Attempt) -> Option<usize> {
        let mut survey = self.survey(env, lb);
        let (group, busiest) = survey.busiest?;
        if !self.imbalanced(lb, &mut survey, group, &busiest) {
            return None;
        }
        self.calculate_imbalance(lb, &mut survey, group, &busiest);
        (lb.imbalance != 0).then_some(group)
    }

    fn imbalanced(
        &self,
        lb: &Attempt,
        survey: &mut Survey,
        group: usize,
        busiest: &GroupStats,
    ) -> bool {
        let shape = self.domains.shape(lb.this_cpu, lb.level);
        let idle = lb.idle != IdleType::Busy;
        let (own, local) = &survey.local;
        if matches!(busiest.kind, GroupType::Imbalanced | GroupType::Misfit) {
            return true;
        }
        if local.kind > busiest.kind {
            return false;
        }
        if local.kind == GroupType::Overloaded {
            let average = survey.load * CAPACITY_SCALE / survey.capacity;
            if local.avg_load >= busiest.avg_load
                || local.avg_load >= average
                || 100 * busiest.avg_load <= shape.imbalance_pct * local.avg_load
            {
                return false;
            }
        }
        let groups = &self.domains.groups;
        if groups[group].flags.prefer_sibling
            && local.kind == GroupType::HasSpare
            && (busiest.kind == GroupType::LlcBalance
                || self.sibling_imbalance(idle, *own, group, local, busiest) > 1)
        {
            return true;
        }
        if busiest.kind == GroupType::Overloaded {
            return true;
        }
        if !idle {
            return false;
        }
        if busiest.kind == GroupType::SmtBalance
            && groups[*own].flags.share_capacity != groups[group].flags.share_capacity
        {
            return true;
        }
        let as_idle = busiest.weight > 1 && local.idle_cpus <= busiest.idle_cpus + 1;
        !as_idle && busiest.h_nr_running != 1
    }

    /// Number of tasks by which the busiest group exceeds the balancing CPU's group, scaled by the
    /// groups' numbers of cores. 0 if the balancing CPU is busy.
    fn sibling_imbalance(
        &self,
        idle: bool,
        own: usize,
        group: usize,
        local: &GroupStats,
        busiest: &GroupStats,
    ) -> i64 {
        if !idle || busiest.nr_running == 0 {
            return 0;
        }
        let there = i64::from(self.domains.groups[group].cores);
        let here = i64::from(self.domains.groups[own].cores);
        let (busy_nr, local_nr) = (i64::from(busiest.nr_running), i64::from(local.nr_running));
        if there == here {
            return (busy_nr - local_nr).max(0);
        }
        let difference = (here * busy_nr - there * local_nr).max(0);
        let imbalance = (2 * difference + here + there) / (here + there);
        if imbalance <= 1 && local_nr == 0 && busy_nr > 1 { 2 } else { imbalance }
    }

    fn calculate_imbalance(
        &self,
        lb: &mut Attempt,
        survey: &mut Survey,
        group: usize,
        busiest: &GroupStats,
    ) {
        let shape = self.domains.shape(lb.this_cpu, lb.level);
        let idle = lb.idle != IdleType::Busy;
        let (own, local) = &mut survey.local;
        lb.imbalance = 1;
        lb.kind = match busiest.kind {
            GroupType::Misfit => ImbalanceKind::Misfit,
            GroupType::LlcBalance => ImbalanceKind::LlcTask,
            _ => ImbalanceKind::Task,
        };
        let one = matches!(busiest.kind, GroupType::SmtBalance | GroupType::Imbalanced);
        if one || lb.kind != ImbalanceKind::Task {
            return;
        }
        if local.kind == GroupType::HasSpare {
            if busiest.kind > GroupType::FullyBusy && !shape.flags.share_llc {
                let spare = local.capacity.saturating_sub(local.util) as i64;
                if spare != 0 || !idle {
                    (lb.kind, lb.imbalance) = (ImbalanceKind::Util, spare);
                }
                return;
            }
            let prefer_sibling = self.domains.groups[group].flags.prefer_sibling;
            let mut imbalance = if busiest.weight == 1 || prefer_sibling {
                self.sibling_imbalance(idle, *own, group, local, busiest)
            } else {
                (i64::from(local.idle_cpus) - i64::from(busiest.idle_cpus)).max(0)
            };
            if shape.flags.numa {
                let running = local.nr_running + 1;
                imbalance = adjust_numa_imbalance(imbalance, running, shape.imb_numa_nr);
            }
            lb.imbalance = imbalance >> 1;
            return;
        }
        let average = survey.load * CAPACITY_SCALE / survey.capacity;
        if local.kind < GroupType::Overloaded {
            local.avg_load = local.load * CAPACITY_SCALE / local.capacity;
            if local.avg_load >= busiest.avg_load || local.avg_load >= average {
                lb.imbalance = 0;
                return;
            }
        }
        lb.kind = ImbalanceKind::Load;
        let above = busiest.avg_load.checked_sub(average).map(|d| d * busiest.capacity);
        let below = average.checked_sub(local.avg_load).map(|d| d * local.capacity);
        let load = above.unwrap_or(u64::MAX).min(below.unwrap_or(u64::MAX));
        lb.imbalance = (load / CAPACITY_SCALE) as i64;
    }

    /// Returns the kind of tasks that balancing takes from the group. It takes none from a queue
    /// whose tasks are all of a later kind.
    #[cold]
    fn tasks_to_move(&self, lb: &Attempt, group: usize) -> TaskKind {
        if !self.domains.shape(lb.this_cpu, lb.level).flags.numa {
            return TaskKind::All;
        }
        let (mut nr, mut with, mut there) = (0, 0, 0);
        for cpu in cpumask::iter_and(&self.domains.groups[group].span, &lb.cpus) {
            let (numa, preferred) = self.numa_running(cpu);
            nr += self.nr_runnable(cpu);
            with += numa;
            there += preferred;
        }
        TaskKind::of(nr, with, there)
    }

    #[cold]
    fn kind_on(&self, env: &dyn Env, cpu: CpuId) -> TaskKind {
        let (numa, preferred) = self.numa_running(cpu);
        TaskKind::of(self.rq_nr_running(env, cpu), numa, preferred)
    }

    fn find_src_cpu(&mut self, env: &dyn Env, lb: &Attempt, group: usize) -> Option<CpuId> {
        let mut busiest = None;
        let (mut top, mut top_capacity) = (0, 1);
        let tasks = if self.numa.is_some() { self.tasks_to_move(lb, group) } else { TaskKind::All };
        let asym = self.domains.shape(lb.this_cpu, lb.level).flags.asym_capacity;
        let row = &self.domains.groups[group];
        for cpu in cpumask::iter_within(&row.span, row.words.clone()) {
            let nr = self.nr_runnable(cpu);
            if !cpumask::test(&lb.cpus, cpu) || nr == 0 {
                continue;
            }
            if tasks != TaskKind::All && self.kind_on(env, cpu) > tasks {
                continue;
            }
            let capacity = self.cpus[cpu].capacity;
            // A lone task stays on a CPU that is no smaller, unless a busy sibling slows it down.
            if asym
                && nr == 1
                && self.core_free(env, cpu)
                && !capacity_greater(self.cpus[lb.dst].capacity, capacity)
            {
                continue;
            }
            match lb.kind {
                ImbalanceKind::Load => {
                    let load = self.load(cpu);
                    let one_too_heavy = nr == 1 && load as i64 > lb.imbalance;
                    // Cross-multiplication compares the CPUs' load per capacity without a division.
                    if !one_too_heavy && load * top_capacity > top * capacity {
                        (top, top_capacity, busiest) = (load, capacity, Some(cpu));
                    }
                }
                ImbalanceKind::Util => {
                    let util = self.cpu_util(cpu, None, true);
                    if nr > 1 && util > top {
                        (top, busiest) = (util, Some(cpu));
                    }
                }
                ImbalanceKind::Task => {
                    if u64::from(nr) > top {
                        (top, busiest) = (u64::from(nr), Some(cpu));
                    }
                }
                ImbalanceKind::LlcTask => {
                    let prefer = u64::from(self.nr_preferring(cpu, lb.dst));
                    if prefer > top {
                        (top, busiest) = (prefer, Some(cpu));
                    }
                }
                ImbalanceKind::Misfit => {
                    let misfit = self.cpus[cpu].misfit_load;
                    if misfit > top {
                        (top, busiest) = (misfit, Some(cpu));
                    }
                }
            }
        }
        busiest.filter(|&cpu| env.curr_task(cpu).is_some() || self.nr_running(cpu) != 0)
    }

    /// Number of CPUs that a wake-up scans in the CPU's LLC, as balancing last set the number. For
    /// tests and dumps.
    pub fn idle_scan_limit(&self, cpu: CpuId) -> Option<u32> {
        let shared = self.domains.llc_shape(cpu)?.shared?;
        Some(self.domains.shared[shared as usize].nr_idle_scan)
    }
}

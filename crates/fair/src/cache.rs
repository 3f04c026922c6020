// SPDX-License-Identifier: GPL-2.0-only
//! Cache-aware scheduling: the LLC that a process of several threads prefers, and what balancing
//! between LLCs owes to that preference.
//!
//! Owns: the occupancy of each CPU by each process, the preferred LLC of processes and tasks, and
//! the rule that says whether a task may leave it or come to it.
//! Does not: move tasks (`balance.rs`, `migrate.rs`).
//! Models: `account_mm_sched()`, `task_tick_cache()`, `task_cache_work()`, `account_llc_enqueue()`,
//! `can_migrate_llc()`, `alb_break_llc()`, `migrate_degrades_llc()`, `llc_balance()`,
//! `record_sg_llc_stats()`, fair.c v7.3 (`CONFIG_SCHED_CACHE`), with the default tunables.
//! Differs: the search for the preferred LLC happens at the tick, not at the next return to user
//! mode. A process has occupancies from its second thread on. Counts survive CPU hotplug.
//!
//! ```text
//!   run time of a process on each CPU -> occupancy of each LLC (tick, every 10 ms)
//!     -> preferred LLC of the process -> of its tasks (at their next charge)
//!     -> balancing between LLCs gathers them, until the LLC is half busy
//! ```

use super::balance::{Attempt, IdleType, ImbalanceKind};
use super::domain::Domains;
use super::lb_stats::GroupStats;
use super::state::EntityId;
use super::weight::NICE_0_LOAD;
use super::{Env, Fair, Violation};
use scxlab_machine::cpumask::{self, CpuMask};
use scxlab_machine::id::{CpuId, Nanos, TaskId};

/// Epochs of a CPU after which a process that was not searched loses its preference
/// (`llc_epoch_affinity_timeout`).
const AFFINITY_TIMEOUT: i64 = 5;
/// Utilisation from which on an LLC counts as busy, percent (`llc_overaggr_pct`); half as much
/// again without SMT.
const BUSY_PCT: u64 = 50;
/// Difference between the utilisations of two LLCs that counts, percent (`llc_imb_pct`).
const IMBALANCE_PCT: u64 = 20;
const PAGE_SIZE: u64 = 4096;

/// Run time of a process on a CPU. It is halved with each epoch of the CPU.
#[derive(Clone, Copy, Debug, Default)]
struct Occupancy {
    runtime: u64,
    epoch: u64,
}

/// The threads of a process (`struct sched_cache_group`).
#[derive(Clone, Debug, Default)]
struct Process {
    nr_threads: u32,
    /// CPU of the preferred LLC.
    cpu: Option<CpuId>,
    /// Epoch of the last search, and jiffy before which there is no further one.
    epoch: u64,
    next_search: u64,
    /// Average number of CPUs that run the process.
    nr_running_avg: u64,
    /// Memory that the process's tasks touch, in pages, as far as NUMA balancing sees it.
    footprint: u64,
    /// Indexed by CPU; empty before the second thread.
    on: Vec<Occupancy>,
}

/// The state of one CPU.
#[derive(Clone, Debug, Default)]
struct CacheCpu {
    epoch: u64,
    /// Time at which the epoch ends, ns.
    ends: Nanos,
    /// Run time of all processes, halved with each epoch.
    runtime: u64,
    /// Number of queued tasks that prefer each LLC, indexed by LLC (`sd->llc_counts`).
    prefer: Vec<u32>,
    /// Number of runnable tasks whose preferred LLC is this CPU's (`rq->nr_pref_llc_running`).
    at_home: u32,
}

impl CacheCpu {
    /// Begins the epochs that are due (`__update_mm_sched()`).
    fn advance(&mut self, now: Nanos, period: Nanos) {
        if now >= self.ends {
            let n = (now - self.ends) / period + 1;
            self.epoch += n;
            self.ends += n * period;
            self.runtime = half(self.runtime, n);
        }
    }
}

impl Occupancy {
    fn advance(&mut self, epoch: u64) {
        let n = epoch - self.epoch;
        self.epoch = epoch;
        self.runtime = half(self.runtime, n);
    }
}

fn half(value: u64, times: u64) -> u64 {
    u32::try_from(times).ok().and_then(|n| value.checked_shr(n)).unwrap_or(0)
}

/// The state of cache-aware scheduling. There is none on a machine with a single LLC.
#[derive(Clone, Debug)]
pub(super) struct Caches {
    /// Length of an epoch, ns, and in jiffies (`llc_epoch_period`).
    period: Nanos,
    period_jiffies: u64,
    /// Size of each LLC, bytes.
    bytes: Vec<u64>,
    cpus: Vec<CacheCpu>,
    /// Indexed by the leader of the process.
    processes: Vec<Process>,
    /// Number of queued tasks that prefer some LLC.
    nr_prefer: u32,
}

/// Whether a move between two LLCs respects the preferred one (`enum llc_mig`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Respects {
    Forbidden,
    /// The move brings the task to its LLC, or relieves that LLC.
    Wanted,
    /// Both LLCs are busy, or nothing is known of them. Balancing does what it would without
    /// preferences.
    Free,
}

impl Caches {
    pub fn new(bytes: &[u64], nr_cpus: usize, tick_ns: Nanos) -> Self {
        let period_jiffies = (1_000_000_000 / tick_ns / 100).max(1);
        let cpu = CacheCpu { ends: tick_ns, prefer: vec![0; bytes.len()], ..CacheCpu::default() };
        Caches {
            period: period_jiffies * tick_ns,
            period_jiffies,
            bytes: bytes.to_vec(),
            cpus: vec![cpu; nr_cpus],
            processes: Vec::new(),
            nr_prefer: 0,
        }
    }

    fn process(&mut self, leader: TaskId) -> &mut Process {
        if self.processes.len() <= leader.idx() {
            self.processes.resize(leader.idx() + 1, Process::default());
        }
        &mut self.processes[leader.idx()]
    }

    pub fn thread_new(&mut self, leader: TaskId) {
        let process = self.process(leader);
        process.nr_threads += 1;
        if process.nr_threads == 2 && process.on.is_empty() {
            let epochs = self.cpus.iter().map(|cpu| cpu.epoch);
            let on: Vec<_> = epochs.map(|epoch| Occupancy { runtime: 0, epoch }).collect();
            let process = self.process(leader);
            process.epoch = on.last().map_or(0, |last| last.epoch);
            process.on = on;
        }
    }

    pub fn thread_dead(&mut self, leader: TaskId) {
        let process = self.process(leader);
        process.nr_threads -= 1;
        if process.nr_threads == 0 {
            *process = Process::default();
        }
    }

    /// Adds a change of the faults that NUMA balancing counts for a task of the process.
    pub fn change_footprint(&mut self, leader: TaskId, by: i64) {
        let process = self.process(leader);
        process.footprint = process.footprint.saturating_add_signed(by);
    }

    /// Whether the process has one thread, or keeps more CPUs busy than fit into the CPU's LLC, or
    /// uses more memory than that (`invalid_llc_nr()`, `exceed_llc_capacity()`).
    fn unfit(&self, domains: &Domains, leader: TaskId, cpu: CpuId) -> bool {
        let process = &self.processes[leader.idx()];
        let busy = process.nr_running_avg * u64::from(domains.smt_threads);
        process.nr_threads <= 1
            || busy * 1280 >= u64::from(domains.llc_size[cpu.idx()]) * 1024
            || self.bytes[domains.llc_of[cpu.idx()] as usize] < process.footprint * PAGE_SIZE
    }

    /// Share of the CPU's run time that the process had, at most about NICE_0_LOAD.
    fn share(&mut self, leader: TaskId, cpu: CpuId, now: Nanos) -> u64 {
        let row = &mut self.cpus[cpu.idx()];
        row.advance(now, self.period);
        let on = &mut self.processes[leader.idx()].on[cpu.idx()];
        on.advance(row.epoch);
        (u128::from(NICE_0_LOAD) * u128::from(on.runtime) / u128::from(row.runtime + 1)) as u64
    }
}

impl Fair {
    /// Whether cache-aware scheduling is on (`sched_cache_enabled()`).
    #[inline]
    pub fn cache_aware(&self) -> bool {
        self.caches.is_some()
    }

    /// Charges a process for the run time of a task, and brings the task's preferred LLC up to date
    /// with the process's.
    #[inline(never)]
    pub(super) fn account_process(&mut self, cpu: CpuId, e: EntityId, delta: Nanos) {
        let now = self.cpus[cpu].clock;
        let id = self.ents[e].task.expect("only tasks run");
        let Some(leader) = self.task(id).process else { return };
        let Some(caches) = &mut self.caches else { return };
        let row = &mut caches.cpus[cpu.idx()];
        row.advance(now, caches.period);
        row.runtime += delta;
        let epoch = row.epoch;
        let process = &mut caches.processes[leader.idx()];
        // A process that never had a second thread has had no preference either.
        let Some(on) = process.on.get_mut(cpu.idx()) else { return };
        on.advance(epoch);
        on.runtime += delta;
        if process.cpu.is_some() {
            let old = epoch.wrapping_sub(process.epoch) as i64 > AFFINITY_TIMEOUT;
            if old || caches.unfit(&self.domains, leader, cpu) {
                caches.processes[leader.idx()].cpu = None;
            }
        }
        let prefers = self.preferred_llc(id, leader);
        if self.ents[e].on_rq && self.task(id).prefers_llc != prefers {
            self.forget_preference(e);
            self.task_mut(id).prefers_llc = prefers;
            self.count_preference(e);
        }
    }

    /// `get_pref_llc()`: the LLC of the process, unless the task prefers another node.
    fn preferred_llc(&self, task: TaskId, leader: TaskId) -> Option<u32> {
        let cpu = self.caches.as_ref()?.processes[leader.idx()].cpu?;
        let elsewhere = self.numa_preferred(task).is_some() && !self.numa_prefers(task, cpu);
        (!elsewhere).then(|| self.domains.llc_of[cpu.idx()])
    }

    /// Counts a task that enters a queue (`account_llc_enqueue()`).
    #[inline]
    pub(super) fn count_preference(&mut self, e: EntityId) {
        if self.caches.is_some() {
            self.change_preference(e, true);
        }
    }

    /// Uncounts a task that leaves a queue (`account_llc_dequeue()`).
    #[inline]
    pub(super) fn forget_preference(&mut self, e: EntityId) {
        if self.caches.is_some() {
            self.change_preference(e, false);
        }
    }

    #[inline(never)]
    fn change_preference(&mut self, e: EntityId, enters: bool) {
        let cpu = self.rqs[self.ents[e].cfs_rq].cpu;
        let id = self.ents[e].task.expect("only tasks prefer an LLC");
        let Some(llc) = self.task(id).prefers_llc else { return };
        if enters {
            self.task_mut(id).at_home = llc == self.domains.llc_of[cpu.idx()];
        }
        self.count_at_home(e, if enters { 1 } else { -1 });
        let by = if enters { 1 } else { -1 };
        let caches = self.caches.as_mut().expect("checked by the callers");
        let prefer = &mut caches.cpus[cpu.idx()].prefer[llc as usize];
        *prefer = prefer.strict_add_signed(by);
        caches.nr_prefer = caches.nr_prefer.strict_add_signed(by);
        if !enters {
            self.task_mut(id).at_home = false;
        }
    }

    /// Counts or uncounts a task among the runnable ones that are queued on their preferred LLC.
    pub(super) fn count_at_home(&mut self, e: EntityId, by: i32) {
        let Some(task) = self.ents[e].task.filter(|_| self.caches.is_some()) else { return };
        if !self.task(task).at_home || self.ents[e].sched_delayed {
            return;
        }
        let cpu = self.rqs[self.ents[e].cfs_rq].cpu;
        if let Some(caches) = &mut self.caches {
            let at_home = &mut caches.cpus[cpu.idx()].at_home;
            *at_home = at_home.strict_add_signed(by);
        }
    }

    /// Searches the LLC that the process of the running task should prefer, at a tick, at most once
    /// in an epoch. Returns the number of CPUs that the search looked at.
    pub fn cache_tick(&mut self, env: &dyn Env, cpu: CpuId) -> u32 {
        let curr = self.cpus[cpu].curr.some().and_then(|e| self.ents[e].task);
        let (Some(task), now) = (curr, self.cpus[cpu].clock) else { return 0 };
        let jiffies = self.jiffies(now);
        let Some(leader) = self.task(task).process else { return 0 };
        let Some(caches) = &mut self.caches else { return 0 };
        let epoch = caches.cpus[cpu.idx()].epoch;
        let process = &mut caches.processes[leader.idx()];
        if process.nr_threads <= 1 || process.epoch >= epoch {
            return 0;
        }
        process.epoch = epoch;
        if jiffies < process.next_search {
            return 0;
        }
        process.next_search = jiffies + caches.period_jiffies;
        if caches.unfit(&self.domains, leader, cpu) {
            caches.processes[leader.idx()].cpu = None;
            return 0;
        }
        self.search_llc(env, task, leader, cpu)
    }

    fn search_llc(&mut self, env: &dyn Env, task: TaskId, leader: TaskId, here: CpuId) -> u32 {
        let now = self.cpus[here].clock;
        let mut left = self.cpus_to_search(task, leader, here);
        let Some(caches) = &mut self.caches else { return 0 };
        let home = caches.processes[leader.idx()].cpu;
        let home = home.map(|cpu| self.domains.llc_of[cpu.idx()]);
        let (mut most, mut at_home, mut best) = (0, 0, None);
        let (mut nr_running, mut scanned) = (0, 0);
        while let Some(first) = cpumask::first(&left) {
            cpumask::clear(&mut left, first);
            let Some(shape) = self.domains.llc_shape(first) else { continue };
            let (mut sum, mut top) = (0, (0, None));
            for cpu in cpumask::iter(&shape.span) {
                cpumask::clear(&mut left, cpu);
                scanned += 1;
                let share = caches.share(leader, cpu, now);
                sum += share;
                if share > top.0 {
                    top = (share, Some(cpu));
                }
                let member = |id: TaskId| {
                    let row = self.tasks.get(id.idx()).and_then(Option::as_ref);
                    row.is_some_and(|row| row.process == Some(leader))
                };
                nr_running += u64::from(env.curr_task(cpu).is_some_and(member));
            }
            if sum > most {
                (most, best) = (sum, top.1);
            }
            if home == Some(self.domains.llc_of[first.idx()]) {
                at_home = sum;
            }
        }
        let factor = (self.domains.llc_size[here.idx()] >> 2).clamp(2, 8);
        let process = &mut caches.processes[leader.idx()];
        if most > 2 * at_home {
            process.cpu = best;
        }
        let diff = nr_running as i64 - process.nr_running_avg as i64;
        process.nr_running_avg =
            process.nr_running_avg.saturating_add_signed(diff / i64::from(factor));
        scanned
    }

    /// Returns the CPUs in whose LLCs the search looks: those of the node that the task prefers, of
    /// the present LLC's node and of the task's own, or all of them (`get_scan_cpumasks()`).
    fn cpus_to_search(&self, task: TaskId, leader: TaskId, here: CpuId) -> CpuMask {
        let online = (0..self.cpus.0.len() as u32).map(CpuId).filter(|&cpu| self.cpus[cpu].online);
        let nr_cpus = self.cpus.0.len();
        let Some(preferred) = self.numa_preferred(task) else {
            return CpuMask::of(nr_cpus, online);
        };
        let node = |cpu: CpuId| self.domains.node_of[cpu.idx()];
        let home = self.caches.as_ref().and_then(|caches| caches.processes[leader.idx()].cpu);
        let wanted = |of: u32| of == preferred || of == node(here) || home.map(node) == Some(of);
        CpuMask::of(nr_cpus, online.filter(|&cpu| wanted(node(cpu))))
    }

    /// Whether preferences count in a balance of a domain: its CPUs do not share a cache, and some
    /// task prefers an LLC.
    pub(super) fn between_llcs(&self, share_llc: bool) -> bool {
        !share_llc && self.caches.as_ref().is_some_and(|caches| caches.nr_prefer != 0)
    }

    /// Records the utilisation of an LLC, which is a group of the domain above it.
    pub(super) fn record_llc(&mut self, lb: &Attempt, group: usize, stats: &GroupStats) {
        let above = self.domains.llc_level[lb.dst.idx()].map(|level| level as usize + 1);
        if self.caches.is_none() || lb.idle == IdleType::NewlyIdle || above != Some(lb.level) {
            return;
        }
        let first = cpumask::first(&self.domains.groups[group].span);
        if let Some(shared) = first.and_then(|cpu| self.domains.llc_shared(cpu)) {
            (shared.util, shared.capacity) = (stats.util, stats.capacity);
        }
    }

    /// Counts the tasks of a group that prefer the LLC of `lb.dst`, and notes whether balancing
    /// should bring one there (`llc_balance()`).
    pub(super) fn count_preferring(&self, lb: &Attempt, group: usize, stats: &mut GroupStats) {
        let Some(caches) = &self.caches else { return };
        let to = self.domains.llc_of[lb.dst.idx()];
        let row = &self.domains.groups[group];
        let cpus = cpumask::iter_and(&row.span, &lb.cpus);
        let elsewhere = cpus.filter(|cpu| self.domains.llc_of[cpu.idx()] != to);
        stats.prefer_dst = elsewhere.map(|cpu| caches.cpus[cpu.idx()].prefer[to as usize]).sum();
        let first = cpumask::first(&row.span).unwrap_or(lb.dst);
        stats.llc_balance = stats.prefer_dst != 0
            && stats.misfit_load == 0
            && !self.gave_up(lb)
            && self.respects(first, lb.dst, 0, true) == Respects::Wanted;
    }

    /// Whether balancing has failed too often to respect preferences.
    fn gave_up(&self, lb: &Attempt) -> bool {
        let domain = &self.domains.of_cpu[lb.this_cpu.idx()][lb.level];
        let tries = self.domains.shape(lb.this_cpu, lb.level).cache_nice_tries;
        domain.nr_balance_failed > tries
    }

    /// Number of queued tasks of a CPU that prefer the LLC of `dst`.
    pub(super) fn nr_preferring(&self, cpu: CpuId, dst: CpuId) -> u32 {
        let to = self.domains.llc_of[dst.idx()] as usize;
        self.caches.as_ref().map_or(0, |caches| caches.cpus[cpu.idx()].prefer[to])
    }

    /// `can_migrate_llc()`: the rule for the move of a task with utilisation `util` to its
    /// preferred LLC, or away from it.
    fn respects(&self, src: CpuId, dst: CpuId, util: u64, to_preferred: bool) -> Respects {
        let stats = |cpu| {
            let shared = self.domains.llc_shape(cpu)?.shared?;
            let shared = &self.domains.shared[shared as usize];
            Some((shared.util, shared.capacity))
        };
        let (Some((src_util, src_cap)), Some((dst_util, dst_cap))) = (stats(src), stats(dst))
        else {
            return Respects::Free;
        };
        let (src_util, dst_util) = (src_util.saturating_sub(util), dst_util + util);
        let smt = self.domains.smt_threads > 1;
        let busy_pct = if smt { BUSY_PCT } else { BUSY_PCT * 3 / 2 };
        let fits = |util: u64, capacity: u64| util * 100 < capacity * busy_pct;
        let greater = |one: u64, other: u64| one * 100 > other * (100 + IMBALANCE_PCT);
        let (src_fits, dst_fits) = (fits(src_util, src_cap), fits(dst_util, dst_cap));
        let forbidden = match to_preferred {
            _ if !src_fits && !dst_fits => return Respects::Free,
            true => !dst_fits && greater(dst_util, src_util),
            false => src_fits || !greater(src_util, dst_util),
        };
        if forbidden { Respects::Forbidden } else { Respects::Wanted }
    }

    /// Whether preferences keep a task from a move that balancing would make
    /// (`migrate_degrades_llc()`).
    pub(super) fn degrades_llc(&mut self, lb: &Attempt, e: EntityId) -> bool {
        if self.caches.is_none() || self.gave_up(lb) {
            return false;
        }
        self.wrong_llc(lb, e) || self.task_respects(lb, e) == Respects::Forbidden
    }

    /// Whether balancing moves tasks to their preferred LLC, and this task prefers another one.
    pub(super) fn wrong_llc(&self, lb: &Attempt, e: EntityId) -> bool {
        let to = self.domains.llc_of[lb.dst.idx()];
        let task = self.ents[e].task.expect("only tasks are moved");
        (lb.kind == ImbalanceKind::LlcTask || lb.llc_only)
            && self.task(task).prefers_llc != Some(to)
    }

    /// `can_migrate_llc_task()`.
    fn task_respects(&mut self, lb: &Attempt, e: EntityId) -> Respects {
        let asym = self.domains.shape(lb.this_cpu, lb.level).flags.asym_capacity;
        if asym && !self.task_fits(e, lb.dst) && self.task_fits(e, lb.src) {
            return Respects::Forbidden;
        }
        let task = self.ents[e].task.expect("only tasks are moved");
        let Some(caches) = &mut self.caches else { return Respects::Free };
        let Some(leader) = self.tasks[task.idx()].as_ref().and_then(|row| row.process) else {
            return Respects::Free;
        };
        let Some(home) = caches.processes[leader.idx()].cpu else { return Respects::Free };
        if self.domains.share_cache(lb.src, lb.dst) {
            return Respects::Free;
        }
        if caches.unfit(&self.domains, leader, lb.dst) {
            caches.processes[leader.idx()].cpu = None;
            return Respects::Free;
        }
        let util = self.ents[e].avg.util_avg;
        match () {
            _ if self.domains.share_cache(lb.dst, home) => {
                self.respects(lb.src, lb.dst, util, true)
            }
            _ if self.domains.share_cache(lb.src, home) => {
                self.respects(lb.src, lb.dst, util, false)
            }
            _ => Respects::Free,
        }
    }

    /// Whether a push of the source's running task would take it from its preferred LLC without
    /// need (`alb_break_llc()`).
    pub(super) fn push_breaks_llc(&self, env: &dyn Env, lb: &Attempt) -> bool {
        let Some(caches) = &self.caches else { return false };
        let at_home = caches.cpus[lb.src.idx()].at_home;
        if self.domains.share_cache(lb.src, lb.dst)
            || at_home == 0
            || at_home != self.nr_runnable(lb.src)
            || lb.kind == ImbalanceKind::Misfit
        {
            return false;
        }
        if self.rq_nr_running(env, lb.src) <= 1 {
            return true;
        }
        let curr = self.cpus[lb.src].curr.some();
        let util = curr.map_or(0, |e| self.ents[e].avg.util_avg);
        let asym = self.domains.shape(lb.this_cpu, lb.level).flags.asym_capacity;
        let small = |e| asym && !self.task_fits(e, lb.dst) && self.task_fits(e, lb.src);
        curr.is_some_and(small) || self.respects(lb.src, lb.dst, util, false) == Respects::Forbidden
    }

    /// Switches cache-aware scheduling off, which earlier kernels do not have.
    pub(super) fn forget_caches(&mut self) {
        self.caches = None;
        self.tasks.iter_mut().flatten().for_each(|task| {
            task.prefers_llc = None;
            task.at_home = false;
        });
    }

    /// Adds a change of a task's faults to the footprint of its process.
    pub(super) fn change_footprint(&mut self, task: TaskId, by: i64) {
        if let Some(caches) = &mut self.caches
            && let Some(leader) = self.tasks[task.idx()].as_ref().and_then(|row| row.process)
        {
            caches.change_footprint(leader, by);
        }
    }

    /// LLC that a task prefers, for dumps and tests.
    pub fn prefers_llc(&self, task: TaskId) -> Option<u32> {
        self.task(task).prefers_llc
    }

    /// Checks the counts of the tasks on a CPU that prefer an LLC.
    pub(super) fn check_preferences(
        &self,
        cpu: CpuId,
        queued: &[EntityId],
    ) -> Result<(), Violation> {
        let Some(caches) = &self.caches else { return Ok(()) };
        let row = &caches.cpus[cpu.idx()];
        let task = |e: &EntityId| self.ents[*e].task.map(|task| self.task(task));
        for (llc, &kept) in (0..).zip(&row.prefer) {
            let prefers = |e: &&EntityId| task(e).and_then(|task| task.prefers_llc) == Some(llc);
            let found = queued.iter().filter(prefers).count() as u32;
            if kept != found {
                return Err(Violation::Preference { cpu, llc, kept, found });
            }
        }
        let here = Some(self.domains.llc_of[cpu.idx()]);
        let at_home = |e: &&EntityId| {
            let awake = !self.ents[**e].sched_delayed;
            awake && task(e).and_then(|task| task.prefers_llc) == here
        };
        let (kept, found) = (row.at_home, queued.iter().filter(at_home).count() as u32);
        if kept != found {
            return Err(Violation::AtHome { cpu, kept, found });
        }
        Ok(())
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! Balancing for CPUs whose tick is stopped: a busy CPU kicks one idle CPU, which balances for all
//! CPUs without a tick.
//!
//! Owns: the set of tickless CPUs, and the time of the next balance for them. A CPU that has had
//! nothing to do since the start, or since it came on line, belongs to the set.
//! Models: `nohz_balancer_kick()`, `kick_ilb()`, `find_new_ilb()`, `_nohz_idle_balance()`, fair.c
//! v7.3.
//! Differs: a CPU that becomes idle does not update other CPUs' blocked load (`NOHZ_NEWILB_KICK`);
//! the kicked CPU does. CPU hotplug rebuilds the domains, so that all balancing state in them
//! starts afresh.

use super::balance::{Balanced, IdleType};
use super::domain::{Domains, FairTopo};
use super::select::Wrap;
use super::sums::Sums;
use super::{Env, Fair};
use scxlab_machine::cpumask::{self, CpuMask};
use scxlab_machine::id::{CpuId, Nanos};

const STATS: u8 = 1;
const BALANCE: u8 = 2;
const NEXT: u8 = 4;

#[derive(Clone, Debug)]
pub(super) struct Nohz {
    idle: CpuMask,
    /// Jiffy of the next balance for the tickless CPUs.
    next_balance: u64,
    next_blocked: u64,
    has_blocked: bool,
    needs_update: bool,
}

impl Nohz {
    pub fn new(nr_cpus: usize) -> Self {
        Nohz {
            idle: CpuMask::new(nr_cpus),
            next_balance: 0,
            next_blocked: 0,
            has_blocked: false,
            needs_update: false,
        }
    }
}

impl Fair {
    /// Adds a CPU to the set of tickless CPUs, because the CPU is idle and stops its tick.
    pub fn nohz_enter(&mut self, cpu: CpuId) {
        if !self.cpus[cpu].online {
            return;
        }
        self.cpus[cpu].has_blocked_load = true;
        self.nohz.has_blocked = true;
        if !self.cpus[cpu].nohz_idle {
            self.cpus[cpu].nohz_idle = true;
            cpumask::set(&mut self.nohz.idle, cpu);
            self.count_busy(cpu, -1);
            self.nohz.needs_update = true;
        }
    }

    fn nohz_exit(&mut self, cpu: CpuId) {
        if std::mem::take(&mut self.cpus[cpu].nohz_idle) {
            cpumask::clear(&mut self.nohz.idle, cpu);
            self.count_busy(cpu, 1);
        }
    }

    fn count_busy(&mut self, cpu: CpuId, by: i32) {
        if let Some(shared) = self.domains.llc_shared(cpu) {
            shared.nr_busy_cpus = shared.nr_busy_cpus.saturating_add_signed(by);
        }
    }

    /// Returns the idle CPU that `cpu` should kick at its tick, if any. The kernel decides when the
    /// kick arrives, and then calls `nohz_balance` for the kicked CPU.
    pub fn nohz_kick(&mut self, env: &dyn Env, cpu: CpuId, now: Nanos) -> Option<CpuId> {
        if self.idle(env, cpu) {
            return None;
        }
        self.nohz_exit(cpu);
        let jiffy = self.jiffies(now);
        let mut flags = 0;
        if self.nohz.has_blocked && jiffy > self.nohz.next_blocked {
            flags = STATS;
        }
        if jiffy >= self.nohz.next_balance {
            if cpumask::is_empty(&self.nohz.idle) {
                return None;
            }
            if self.rq_nr_running(env, cpu) >= 2 || self.wants_idle_cpu(cpu) {
                flags |= STATS | BALANCE;
            }
        }
        if self.nohz.needs_update {
            flags |= NEXT;
        }
        if flags == 0 {
            return None;
        }
        if flags & BALANCE != 0 {
            self.nohz.next_balance = jiffy + 1;
        }
        let ilb = self.find_ilb(env)?;
        let before = self.cpus[ilb].nohz_kick;
        self.cpus[ilb].nohz_kick = before | flags;
        (before == 0).then_some(ilb)
    }

    /// Whether the only task of a CPU may gain from an idle CPU. Where capacities differ, only a
    /// larger CPU counts; elsewhere other busy CPUs of the LLC do, with which the task shares it.
    fn wants_idle_cpu(&mut self, cpu: CpuId) -> bool {
        match self.domains.asym_level[cpu.idx()] {
            Some(_) => self.cpus[cpu].misfit_load != 0,
            None => self.domains.llc_shared(cpu).is_some_and(|s| s.nr_busy_cpus > 1),
        }
    }

    /// Returns the tickless CPU to kick: an idle CPU on an idle core, else any idle CPU.
    fn find_ilb(&self, env: &dyn Env) -> Option<CpuId> {
        let mut fallback = None;
        let maybe_idle = cpumask::iter_and(&self.nohz.idle, &self.maybe_idle_cpus);
        for cpu in maybe_idle.filter(|&cpu| self.idle(env, cpu)) {
            if !self.domains.smt_present || self.core_is_idle(env, cpu) {
                return Some(cpu);
            }
            fallback = fallback.or(Some(cpu));
        }
        fallback
    }

    /// Balances for all tickless CPUs, on a CPU that was kicked. Returns None if that CPU is no
    /// longer idle.
    pub fn nohz_balance(&mut self, env: &dyn Env, this_cpu: CpuId, now: Nanos) -> Option<Balanced> {
        let flags = std::mem::take(&mut self.cpus[this_cpu].nohz_kick);
        if flags == 0 || !self.idle(env, this_cpu) {
            return None;
        }
        let mut out = Balanced::default();
        let jiffy = self.jiffies(now);
        let mut next_balance: Option<u64> = None;
        let mut blocked = false;
        if flags & STATS != 0 {
            self.nohz.has_blocked = false;
        }
        if flags & NEXT != 0 {
            self.nohz.needs_update = false;
        }
        let mut at = Wrap::new(this_cpu, 0..self.nohz.idle.len());
        while let Some(cpu) = at.next_of(&self.nohz.idle, &self.maybe_idle_cpus, &mut 0) {
            if self.alone(cpu) || !self.idle(env, cpu) {
                continue;
            }
            self.update_clock(cpu, now);
            if flags & STATS != 0 {
                blocked |= self.update_nohz_stats(cpu, jiffy);
            }
            if jiffy >= self.cpus[cpu].next_balance && flags & BALANCE != 0 {
                self.balance_domains(env, cpu, IdleType::Idle, &mut out);
            }
            let next = self.cpus[cpu].next_balance;
            next_balance = Some(next_balance.map_or(next, |soonest| soonest.min(next)));
        }
        if let Some(next) = next_balance {
            self.nohz.next_balance = next.min(jiffy + 60 * self.hz());
        }
        if flags & STATS != 0 {
            self.nohz.next_blocked = jiffy + (32_000_000 / self.params.tick_ns).max(1);
        }
        self.nohz.has_blocked |= blocked;
        Some(out)
    }

    fn update_nohz_stats(&mut self, cpu: CpuId, jiffy: u64) -> bool {
        if !self.cpus[cpu].has_blocked_load {
            return false;
        }
        if jiffy > self.cpus[cpu].last_blocked_update {
            self.update_blocked(cpu);
        }
        self.cpus[cpu].has_blocked_load
    }

    /// Takes a CPU off line: unthrottles its queues, removes its load from the groups' sums, and
    /// rebuilds the domains without it. Afterwards the caller must move `tasks_on(cpu)` elsewhere.
    pub fn cpu_offline(&mut self, topo: &FairTopo, cpu: CpuId, now: Nanos) {
        self.update_clock(cpu, now);
        self.nohz_exit(cpu);
        self.cpus[cpu].online = false;
        self.cpus[cpu].active_balance = None;
        let mine =
            |rq: &super::state::CfsRqId| self.rqs[*rq].cpu == cpu && self.rqs[*rq].runtime_enabled;
        let limited: Vec<_> =
            (0..self.rqs.0.len() as u32).map(super::state::CfsRqId).filter(mine).collect();
        for rq in limited {
            self.rqs[rq].runtime_enabled = false;
            if self.rqs[rq].throttled {
                self.rqs[rq].runtime_remaining = 1;
                self.unthrottle(rq);
            }
        }
        self.clear_tg_load_avg(cpu);
        // A kick that is on its way will find the CPU off line. If the kick's flags stayed set, no
        // CPU would ever kick this CPU again.
        self.cpus[cpu].nohz_kick = 0;
        self.rebuild(topo);
    }

    /// Brings a CPU (back) on line, idle.
    pub fn cpu_online(&mut self, topo: &FairTopo, cpu: CpuId, now: Nanos) {
        self.update_clock(cpu, now);
        self.cpus[cpu].online = true;
        for at in 0..self.rqs.0.len() as u32 {
            let rq = super::state::CfsRqId(at);
            let limited = self.rqs[rq].group.and_then(|id| self.group(id));
            let limited = limited.is_some_and(|g| g.bw.quota.is_some());
            if self.rqs[rq].cpu == cpu {
                self.rqs[rq].runtime_enabled = limited;
            }
        }
        self.rebuild(topo);
        self.nohz_enter(cpu);
    }

    fn rebuild(&mut self, topo: &FairTopo) {
        let online: Vec<bool> = self.cpus.0.iter().map(|cpu| cpu.online).collect();
        self.nr_online = online.iter().filter(|&&on| on).count() as u32;
        self.base_slice = self.params.scaled_base_slice(self.nr_online);
        self.domains = Domains::build(topo, &online, &self.params);
        self.sums = Sums::new(online.len(), &mut self.domains.groups);
        let idle: Vec<CpuId> = cpumask::iter(&self.nohz.idle).collect();
        idle.into_iter().for_each(|cpu| self.count_busy(cpu, -1));
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! The times at which a CPU balances: when it runs out of tasks (newidle), and periodically.
//!
//! Owns: intervals, the cost of newidle balancing and its rate of success, the average idle time.
//! Models: `sched_balance_newidle()`, `sched_balance_domains()`, `update_newidle_cost()`,
//! `update_rq_avg_idle()`, fair.c and core.c v7.3.
//! Differs: the cost of a newidle balance is `Params::scan_cost_ns` per CPU examined.

use super::balance::{Balanced, IdleType};
use super::{Env, Fair};
use scxlab_machine::id::{CpuId, Nanos};

/// Factor by which the balance interval of a busy CPU is longer than that of an idle CPU
/// (`busy_factor`).
const BUSY_FACTOR: u64 = 16;

/// Result of a newidle balance, and its cost for the CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Newidle {
    pub balanced: Balanced,
    pub cost_ns: Nanos,
}

impl Fair {
    /// Pulls a task to a CPU that has nothing to run, if the CPU is likely to be idle for longer
    /// than the search takes.
    pub fn newidle_balance(&mut self, env: &dyn Env, cpu: CpuId, now: Nanos) -> Newidle {
        let mut result = Newidle::default();
        self.update_clock(cpu, now);
        self.cpus[cpu].misfit_load = 0;
        self.cpus[cpu].idle_stamp = now;
        let levels = self.domains.of_cpu[cpu.idx()].len();
        if !self.cpus[cpu].online || levels == 0 {
            return result;
        }
        let mut next_balance = self.jiffies(now) + self.hz();
        let first = &self.domains.of_cpu[cpu.idx()][0];
        if !self.overloaded || self.cpus[cpu].avg_idle < first.max_newidle_lb_cost {
            self.earlier_balance(cpu, 0, &mut next_balance);
            self.finish_newidle(cpu, next_balance);
            return result;
        }
        self.update_blocked(cpu);
        for level in 0..levels {
            self.earlier_balance(cpu, level, &mut next_balance);
            let cost = self.domains.of_cpu[cpu.idx()][level].max_newidle_lb_cost;
            if self.cpus[cpu].avg_idle < result.cost_ns + cost {
                break;
            }
            let Some(weight) = self.newidle_dice(cpu, level) else {
                continue;
            };
            let scanned = result.balanced.scanned;
            let (moved, go_on) =
                self.balance_domain(env, cpu, level, IdleType::NewlyIdle, &mut result.balanced);
            let cost = self.params.scan_cost_ns * Nanos::from(result.balanced.scanned - scanned);
            result.cost_ns += cost;
            let success = if moved != 0 { weight } else { 0 };
            self.update_newidle_cost(cpu, level, cost, success);
            if moved != 0 || !go_on {
                break;
            }
        }
        let row = &mut self.cpus[cpu];
        row.max_idle_balance_cost = row.max_idle_balance_cost.max(result.cost_ns);
        self.finish_newidle(cpu, next_balance);
        if self.nr_running(cpu) != 0 {
            self.cpus[cpu].idle_stamp = 0;
        }
        result
    }

    fn finish_newidle(&mut self, cpu: CpuId, next_balance: u64) {
        let row = &mut self.cpus[cpu];
        row.next_balance = row.next_balance.min(next_balance);
    }

    /// Decides at random whether to try a domain, with a probability that follows the success rate
    /// of the domain's newidle balancing. `Some(weight)` means: try, and count a success with this
    /// weight.
    fn newidle_dice(&mut self, cpu: CpuId, level: usize) -> Option<u32> {
        let ratio = self.domains.of_cpu[cpu.idx()][level].newidle_ratio;
        if !self.params.features.ni_random || ratio >= 1024 {
            return Some(1);
        }
        let rng = &mut self.cpus[cpu].rng;
        *rng = rng.wrapping_add(1);
        let dice = (super::tree::mix(*rng) % 1024) as u32;
        let weight = 1 + ratio;
        if dice > weight {
            self.update_newidle_stats(cpu, level, 0);
            return None;
        }
        Some((1024 + weight / 2) / weight)
    }

    fn update_newidle_stats(&mut self, cpu: CpuId, level: usize, success: u32) {
        let now = self.cpus[cpu].clock;
        let rate = self.params.features.ni_rate;
        let domain = &mut self.domains.of_cpu[cpu.idx()][level];
        domain.newidle_call += 1;
        domain.newidle_success += success;
        if domain.newidle_call < 1024 {
            return;
        }
        // A domain that is rarely tried shall still be tried now and then: every 2^22 ns (about 4
        // ms) since the last update counts as a success.
        let rare = if rate { (now - domain.newidle_stamp) >> 22 } else { 0 };
        domain.newidle_stamp = now;
        domain.newidle_ratio = (rare + u64::from(domain.newidle_success)).min(1024) as u32;
        domain.newidle_call /= 2;
        domain.newidle_success /= 2;
    }

    /// Keeps the largest cost of a domain's newidle balances, which decays by about 1 % per second.
    /// Returns true if the cost decayed.
    fn update_newidle_cost(&mut self, cpu: CpuId, level: usize, cost: Nanos, success: u32) -> bool {
        if cost != 0 {
            self.update_newidle_stats(cpu, level, success);
        }
        let now = self.jiffies(self.cpus[cpu].clock);
        let hz = self.hz();
        let domain = &mut self.domains.of_cpu[cpu.idx()][level];
        if cost > domain.max_newidle_lb_cost {
            domain.max_newidle_lb_cost = cost;
            domain.last_decay = now;
        } else if now > domain.last_decay + hz {
            domain.max_newidle_lb_cost = domain.max_newidle_lb_cost * 253 / 256;
            domain.last_decay = now;
            return true;
        }
        false
    }

    /// Adds the idle period that ends now to the CPU's average idle time. `set_next` calls this for
    /// a task of this class. The kernel calls it when a task of another class ends the idle period.
    pub fn leave_idle(&mut self, cpu: CpuId, now: Nanos) {
        self.update_clock(cpu, now);
        let row = &mut self.cpus[cpu];
        let stamp = std::mem::take(&mut row.idle_stamp);
        if stamp == 0 {
            return;
        }
        let idle = (row.clock - stamp) as i64;
        let diff = idle - row.avg_idle as i64;
        row.avg_idle = row.avg_idle.saturating_add_signed(diff / 8);
        row.avg_idle = row.avg_idle.min(2 * row.max_idle_balance_cost);
    }

    /// Whether a periodic balance is due on a CPU at its tick.
    pub fn balance_due(&self, cpu: CpuId, now: Nanos) -> bool {
        !self.alone(cpu) && self.jiffies(now) >= self.cpus[cpu].next_balance
    }

    /// Whether no domain contains the CPU (`on_null_domain()`): the CPU is off line, or the only
    /// CPU on line.
    pub(super) fn alone(&self, cpu: CpuId) -> bool {
        self.domains.of_cpu[cpu.idx()].is_empty()
    }

    /// Does the periodic balance, which the kernel runs in a softirq.
    pub fn balance(&mut self, env: &dyn Env, cpu: CpuId, now: Nanos) -> Balanced {
        let mut out = Balanced::default();
        self.update_clock(cpu, now);
        let idle = if self.idle(env, cpu) { IdleType::Idle } else { IdleType::Busy };
        self.update_blocked(cpu);
        self.balance_domains(env, cpu, idle, &mut out);
        out
    }

    pub(super) fn balance_domains(
        &mut self,
        env: &dyn Env,
        cpu: CpuId,
        mut idle: IdleType,
        out: &mut Balanced,
    ) {
        let now = self.jiffies(self.cpus[cpu].clock);
        let mut next_balance = now + 60 * self.hz();
        let (mut go_on, mut decayed, mut max_cost) = (true, false, 0);
        for level in 0..self.domains.of_cpu[cpu.idx()].len() {
            decayed = self.update_newidle_cost(cpu, level, 0, 0);
            max_cost += self.domains.of_cpu[cpu.idx()][level].max_newidle_lb_cost;
            if !go_on {
                if decayed {
                    continue;
                }
                break;
            }
            let busy = idle != IdleType::Idle && !self.sched_idle_rq(env, cpu);
            let mut interval = self.balance_interval(cpu, level, busy);
            if now >= self.domains.of_cpu[cpu.idx()][level].last_balance + interval {
                let (moved, more) = self.balance_domain(env, cpu, level, idle, out);
                go_on = more;
                if moved != 0 {
                    idle = if self.idle(env, cpu) { IdleType::Idle } else { IdleType::Busy };
                }
                self.domains.of_cpu[cpu.idx()][level].last_balance = now;
                let busy = idle != IdleType::Idle && !self.sched_idle_rq(env, cpu);
                interval = self.balance_interval(cpu, level, busy);
            }
            let last = self.domains.of_cpu[cpu.idx()][level].last_balance;
            next_balance = next_balance.min(last + interval);
        }
        if decayed {
            self.cpus[cpu].max_idle_balance_cost = max_cost.max(self.params.migration_cost_ns);
        }
        self.cpus[cpu].next_balance = next_balance;
    }

    /// Number of jiffies between two balances of a domain.
    fn balance_interval(&self, cpu: CpuId, level: usize, busy: bool) -> u64 {
        let ms = u64::from(self.domains.of_cpu[cpu.idx()][level].balance_interval);
        let ms = if busy { ms * BUSY_FACTOR } else { ms };
        let mut jiffies = (ms * 1_000_000).div_ceil(self.params.tick_ns);
        if busy {
            // One jiffy less keeps the interval off the multiples of the smaller domains'
            // intervals.
            jiffies = jiffies.saturating_sub(1);
        }
        jiffies.clamp(1, (self.hz() * u64::from(self.nr_online) / 10).max(1))
    }

    fn earlier_balance(&self, cpu: CpuId, level: usize, next_balance: &mut u64) {
        let last = self.domains.of_cpu[cpu.idx()][level].last_balance;
        *next_balance = (*next_balance).min(last + self.balance_interval(cpu, level, false));
    }

    /// Jiffies per second.
    pub(super) fn hz(&self) -> u64 {
        (1_000_000_000 / self.params.tick_ns).max(1)
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! Per-entity load tracking: how long an entity (or a queue) was runnable and running, decayed so
//! that a contribution counts half after 32 periods of 1024 us.
//!
//! Owns: the geometric series, in integers.
//! Does not: know the relations of entities (see `load.rs`).
//! Models: kernel/sched/pelt.c `___update_load_sum()`, `___update_load_avg()`, `accumulate_sum()`,
//! v7.3, with the same results.

/// Number of periods after which a contribution has halved.
pub const LOAD_AVG_PERIOD: u64 = 32;
/// Powers y^n of the decay factor of one period, in units of 2^-32, for n below a half-life;
/// `y^32 = 1/2`.
const Y_POW: [u64; 32] = y_powers();
/// Sum of the series for an entity that has always run.
pub const LOAD_AVG_MAX: u64 = load_avg_max();
/// Upper bound of the sums at the beginning of a period.
pub const MIN_DIVIDER: u64 = LOAD_AVG_MAX - 1024;
const CAPACITY_SHIFT: u32 = 10;

/// Averages of one entity or queue. Sums are raw series; averages are scaled to weight or capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SchedAvg {
    pub last_update_time: u64,
    pub load_sum: u64,
    pub runnable_sum: u64,
    pub util_sum: u64,
    /// Microseconds (of 1024 ns) into the present period.
    pub period_contrib: u32,
    pub load_avg: u64,
    pub runnable_avg: u64,
    pub util_avg: u64,
    /// Utilisation at the last dequeue, smoothed. The top bit says that `util_avg` has not changed
    /// since then (`UTIL_AVG_UNCHANGED`).
    pub util_est: u32,
}

impl SchedAvg {
    /// Upper bound of the sums at this point of the present period. An average is a sum divided by
    /// it.
    #[inline]
    pub fn divider(&self) -> u64 {
        MIN_DIVIDER + u64::from(self.period_contrib)
    }

    /// Whether all sums are 0, so that nothing is left to decay.
    pub fn is_decayed(&self) -> bool {
        self.load_sum == 0 && self.util_sum == 0 && self.runnable_sum == 0
    }

    /// Whether an update at `now` would change nothing, because the last update was less than a
    /// unit of time (1024 ns) ago.
    #[inline(always)]
    pub fn is_current(&self, now: u64) -> bool {
        now.wrapping_sub(self.last_update_time) < 1 << 10
    }

    /// Ages the sums to `now` and adds the time since the last update. `load` is the weight,
    /// `runnable` the number of runnable tasks, and `running` tells whether a task ran. Returns
    /// true if a period boundary was crossed, which makes the averages stale.
    #[inline]
    pub fn update_sum(&mut self, now: u64, load: u64, runnable: u64, running: bool) -> bool {
        let delta = now.wrapping_sub(self.last_update_time);
        if (delta as i64) < 0 {
            self.last_update_time = now;
            return false;
        }
        let delta = delta >> 10;
        if delta == 0 {
            return false;
        }
        self.last_update_time += delta << 10;
        let (runnable, running) = if load == 0 { (0, false) } else { (runnable, running) };
        self.accumulate(delta, load, runnable, running)
    }

    fn accumulate(&mut self, delta: u64, load: u64, runnable: u64, running: bool) -> bool {
        let mut contrib = delta;
        let total = delta + u64::from(self.period_contrib);
        let periods = total / 1024;
        let mut into_period = total;
        if periods != 0 {
            self.load_sum = decay(self.load_sum, periods);
            self.runnable_sum = decay(self.runnable_sum, periods);
            self.util_sum = decay(self.util_sum, periods);
            into_period %= 1024;
            if load != 0 {
                contrib = segments(periods, 1024 - u64::from(self.period_contrib), into_period);
            }
        }
        self.period_contrib = into_period as u32;
        self.load_sum += load * contrib;
        self.runnable_sum += (runnable * contrib) << CAPACITY_SHIFT;
        if running {
            self.util_sum += contrib << CAPACITY_SHIFT;
        }
        periods != 0
    }

    /// Recomputes the averages from the sums. `load` is the weight for an entity, 1 for a queue.
    pub fn update_avg(&mut self, load: u64) {
        let divider = self.divider();
        self.load_avg = load * self.load_sum / divider;
        self.runnable_avg = self.runnable_sum / divider;
        self.util_avg = self.util_sum / divider;
    }
}

/// Adds changes to an average and to its sum. Neither goes below zero, and the sum is raised to the
/// average times `MIN_DIVIDER` if it is smaller.
/// Models: `__update_sa()`.
pub fn shift(avg: &mut u64, sum: &mut u64, delta_avg: i64, delta_sum: i64) {
    *avg = avg.saturating_add_signed(delta_avg);
    *sum = sum.saturating_add_signed(delta_sum).max(*avg * MIN_DIVIDER);
}

/// Decays `val` by `n` periods: `val * y^n`.
pub fn decay(val: u64, n: u64) -> u64 {
    if n > LOAD_AVG_PERIOD * 63 {
        return 0;
    }
    let val = val >> (n / LOAD_AVG_PERIOD);
    ((u128::from(val) * u128::from(Y_POW[(n % LOAD_AVG_PERIOD) as usize])) >> 32) as u64
}

/// Contribution of a time span that crosses `periods` period boundaries: the rest of the old period
/// (`first`), the full periods after it, and the present period so far (`last`). Each part is
/// decayed by its age.
fn segments(periods: u64, first: u64, last: u64) -> u64 {
    let full = LOAD_AVG_MAX - decay(LOAD_AVG_MAX, periods) - 1024;
    decay(first, periods) + full + last
}

/// Powers of the 32nd root of 1/2, computed by five square roots in units of 2^-63 and truncated to
/// 32 bits.
const fn y_powers() -> [u64; 32] {
    let one: u128 = 1 << 63;
    let mut y = one / 2;
    let mut roots = 0;
    while roots < 5 {
        y = isqrt(y * one);
        roots += 1;
    }
    let mut table = [0; 32];
    let mut power = one;
    let mut n = 0;
    while n < 32 {
        table[n] = ((power * 0xffff_ffff) >> 63) as u64;
        power = (power * y) >> 63;
        n += 1;
    }
    table
}

const fn isqrt(value: u128) -> u128 {
    let (mut low, mut high): (u128, u128) = (0, 1 << 64);
    while low + 1 < high {
        let mid = (low + high) / 2;
        if mid * mid <= value {
            low = mid;
        } else {
            high = mid;
        }
    }
    low
}

/// Sums the contributions of an entity that always runs, until the sum no longer grows.
const fn load_avg_max() -> u64 {
    let mut sum: u64 = 1024;
    loop {
        let next = ((sum * Y_POW[1]) >> 32) + 1024;
        if next == sum {
            return sum;
        }
        sum = next;
    }
}

#[cfg(test)]
mod tests;

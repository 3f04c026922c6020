// SPDX-License-Identifier: GPL-2.0-only
//! Variants of a cost table, in which groups of costs are larger or smaller: a simulated result
//! that holds in all of them does not hang on one figure of the table.
//!
//! Owns: which constants vary together. Does not: choose the factors.

use super::table::{check, scale};
use super::{CostTable, Ratio};

/// Factors by which groups of costs differ from a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CostFactors {
    /// Migrating a task and refilling its caches.
    pub migration: Ratio,
    /// Switches, wake-ups and interrupts.
    pub switch: Ratio,
    /// Locks.
    pub lock: Ratio,
    /// BPF programs, helpers and kernel functions that programs call.
    pub bpf: Ratio,
}

impl CostFactors {
    /// Returns the factor of a constant, by its name; None if it does not vary.
    fn of(&self, name: &str) -> Option<Ratio> {
        let (group, key) = name.split_once('.')?;
        match (group, key) {
            ("cache", _) | ("sched", "migrate") => Some(self.migration),
            ("sched" | "irq", _) => Some(self.switch),
            ("lock", _) => Some(self.lock),
            ("bpf" | "kfunc", _) => Some(self.bpf),
            _ => None,
        }
    }
}

impl CostTable {
    /// Returns the table with its costs multiplied by the factors. `source` says where the factors
    /// come from.
    ///
    /// ```
    /// use scxlab_machine::cost::{CostFactors, CostTable};
    /// use scxlab_machine::Ratio;
    /// let table = CostTable::modern();
    /// let factors = CostFactors {
    ///     migration: Ratio { num: 2, den: 1 },
    ///     switch: Ratio::ONE,
    ///     lock: Ratio::ONE,
    ///     bpf: Ratio::ONE,
    /// };
    /// let dear = table.scaled(&factors, "twice");
    /// assert_eq!(dear.sched.migrate_ns, 2 * table.sched.migrate_ns);
    /// assert_eq!(dear.sched.wakeup_ns, table.sched.wakeup_ns);
    /// ```
    pub fn scaled(&self, factors: &CostFactors, source: &str) -> CostTable {
        let mut constants = self.constants.clone();
        for constant in &mut constants {
            if let Some(factor) = factors.of(&constant.name) {
                scale(constant, factor, source);
            }
        }
        let value = |group: &'static str, key: &'static str| {
            let is_it = |name: &str| name.split_once('.') == Some((group, key));
            let found = constants.iter().find(|constant| is_it(&constant.name));
            found.map(|constant| constant.value).ok_or((group, key))
        };
        let list = constants.clone();
        let table = CostTable::fill(value, |group, key, _| (group, key), self.idle.clone(), list);
        let table = table.expect("a table has all of its constants, each in its form");
        assert_eq!(check(&table), Ok(()), "factors change no constant that has narrower bounds");
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_group_follows_its_factor_and_the_rest_stays() {
        let table = CostTable::modern();
        let one = CostFactors {
            migration: Ratio::ONE,
            switch: Ratio::ONE,
            lock: Ratio::ONE,
            bpf: Ratio::ONE,
        };
        let double = Ratio { num: 2, den: 1 };
        let lock = table.scaled(&CostFactors { lock: double, ..one }, "test");
        assert_eq!(lock.lock.hand_over_ns.node, 2 * table.lock.hand_over_ns.node);
        let with_lock = CostTable {
            lock: lock.lock.clone(),
            constants: lock.constants.clone(),
            ..table.clone()
        };
        assert_eq!(lock, with_lock);
        let bpf = table.scaled(&CostFactors { bpf: double, ..one }, "test");
        assert_eq!(bpf.bpf.insn_ps, 2 * table.bpf.insn_ps);
        assert_eq!(bpf.bpf.call_bytes, table.bpf.call_bytes, "a size is no cost");
        assert_eq!(bpf.kfunc.kick_ns, 2 * table.kfunc.kick_ns);
        let switch = table.scaled(&CostFactors { switch: double, ..one }, "test");
        assert_eq!(switch.sched.context_switch_ns, 2 * table.sched.context_switch_ns);
        assert_eq!(switch.irq.tick_ns, 2 * table.irq.tick_ns);
        assert_eq!(switch.sched.migrate_ns, table.sched.migrate_ns);
        assert_eq!(switch.clock, table.clock);
    }
}

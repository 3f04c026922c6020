// SPDX-License-Identifier: GPL-2.0-only
//! Recent number of calls of each operation on each CPU, for the report of a stall.
//!
//! Owns: the counts. A copy of the counts for each waiting task would be too large, so the watchdog
//! keeps copies from its last two checks. A task that the watchdog finds stalled has waited since
//! before the older check, so a report may compare the counts with the older copy.

use super::op::Op;
use scxlab_machine::cpumask::CpuMask;
use scxlab_machine::id::{CpuId, Nanos};
use std::fmt::Write;

type Calls = [u32; Op::COUNT];

/// CPUs on which the same set of operations ran, with the sums of their counts.
struct CpuGroup {
    cpus: Vec<CpuId>,
    sums: [u64; Op::COUNT],
    /// Whether a task of a higher class runs on these CPUs.
    higher_class_runs: bool,
}

impl CpuGroup {
    fn is_like(&self, calls: &Calls, higher_class_runs: bool) -> bool {
        self.higher_class_runs == higher_class_runs
            && self.sums.iter().zip(calls).all(|(sum, n)| (*sum > 0) == (*n > 0))
    }

    fn add(&mut self, cpu: CpuId, calls: &Calls) {
        self.cpus.push(cpu);
        self.sums.iter_mut().zip(calls).for_each(|(sum, n)| *sum += u64::from(*n));
    }

    fn text(&self, nr_cpus: usize) -> String {
        let note = match self.higher_class_runs {
            true => "; a task of a higher scheduling class runs there",
            false => "",
        };
        let mask = CpuMask::of(nr_cpus, self.cpus.iter().copied());
        format!("{}: {}{note}", cpus_text(&mask), ops_text(&self.sums))
    }
}

/// Numbers of calls, indexed by CPU and operation. The counts may wrap around, because only
/// differences between them are used.
#[derive(Debug, Default)]
pub struct RecentOpCounts {
    calls: Vec<Calls>,
    /// Copies of the counts from the watchdog's last check but one, and from its last check.
    checks: [CountSnapshot; 2],
}

#[derive(Clone, Debug, Default)]
struct CountSnapshot {
    at: Nanos,
    calls: Vec<Calls>,
}

/// Maximum number of groups of CPUs in a report.
const GROUPS: usize = 8;
/// Maximum number of operations listed per group.
const OPS: usize = 6;
/// Maximum length of a list of CPUs, in characters.
const LIST_MAX: usize = 60;

impl RecentOpCounts {
    pub fn new(nr_cpus: usize) -> RecentOpCounts {
        RecentOpCounts { calls: vec![[0; Op::COUNT]; nr_cpus], ..RecentOpCounts::default() }
    }

    /// Counts a call of `op` on `cpu`.
    #[inline(always)]
    pub fn count(&mut self, cpu: CpuId, op: Op) {
        let count = &mut self.calls[cpu.idx()][op as usize];
        *count = count.wrapping_add(1);
    }

    /// Starts counting for a scheduler that is being loaded: both kept copies of the counts get the
    /// time `at`.
    pub fn start(&mut self, at: Nanos) {
        self.check(at);
        self.check(at);
    }

    /// Keeps a copy of the counts, after the watchdog has checked all tasks.
    pub fn check(&mut self, at: Nanos) {
        self.checks.swap(0, 1);
        self.checks[1].at = at;
        self.checks[1].calls.clone_from(&self.calls);
    }

    /// Describes the operations that ran on each of the CPUs since the last check but one.
    /// `higher_class_runs` tells whether a task of a higher class runs on a CPU.
    pub fn lines(
        &self,
        cpus: impl Iterator<Item = CpuId>,
        higher_class_runs: impl Fn(CpuId) -> bool,
    ) -> Vec<String> {
        let mut groups: Vec<CpuGroup> = Vec::new();
        for cpu in cpus {
            let (calls, higher_class_runs) = (self.since_check(cpu), higher_class_runs(cpu));
            match groups.iter_mut().find(|group| group.is_like(&calls, higher_class_runs)) {
                Some(group) => group.add(cpu, &calls),
                None => groups.push(CpuGroup {
                    cpus: vec![cpu],
                    sums: calls.map(u64::from),
                    higher_class_runs,
                }),
            }
        }
        let since = seconds(self.checks[0].at);
        let shown = groups.iter().take(GROUPS);
        let mut lines: Vec<String> = shown
            .map(|group| format!("since {since} on {}", group.text(self.calls.len())))
            .collect();
        let rest: usize = groups.iter().skip(GROUPS).map(|group| group.cpus.len()).sum();
        if rest > 0 {
            lines.push(format!("{rest} more CPUs, with other sets of operations"));
        }
        lines
    }

    fn since_check(&self, cpu: CpuId) -> Calls {
        let (now, then) = (&self.calls[cpu.idx()], self.checks[0].calls.get(cpu.idx()));
        std::array::from_fn(|op| now[op].wrapping_sub(then.map_or(0, |then| then[op])))
    }
}

/// Formats counts as `dispatch 120 times, enqueue once`, the most frequent operation first.
fn ops_text(sums: &[u64; Op::COUNT]) -> String {
    let mut ran: Vec<(u64, Op)> =
        Op::ALL.into_iter().map(|op| (sums[op as usize], op)).filter(|(n, _)| *n > 0).collect();
    ran.sort_by_key(|(n, op)| (std::cmp::Reverse(*n), *op));
    if ran.is_empty() {
        return "no operation".to_owned();
    }
    let shown = ran.iter().take(OPS);
    let shown: Vec<String> = shown
        .map(|(n, op)| match n {
            1 => format!("{} once", op.name()),
            _ => format!("{} {n} times", op.name()),
        })
        .collect();
    let mut text = shown.join(", ");
    if ran.len() > OPS {
        let _ = write!(text, " and {} other operations", ran.len() - OPS);
    }
    text
}

/// Formats a set of CPUs as `CPU 3` or `CPUs 0-3,8`. A list longer than `LIST_MAX` is cut.
pub fn cpus_text(mask: &CpuMask) -> String {
    let count: u32 = mask.iter().map(|word| word.count_ones()).sum();
    let list = mask.to_string();
    if list.len() > LIST_MAX {
        let kept = list[..LIST_MAX].rfind(',').unwrap_or(LIST_MAX);
        return format!("CPUs {},... ({count} in all)", &list[..kept]);
    }
    format!("{} {list}", if count == 1 { "CPU" } else { "CPUs" })
}

/// Formats a time as `1.250000 s`.
pub fn seconds(ns: Nanos) -> String {
    format!("{}.{:06} s", ns / 1_000_000_000, ns % 1_000_000_000 / 1000)
}

#[cfg(test)]
mod tests;

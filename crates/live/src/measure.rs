// SPDX-License-Identifier: GPL-2.0-only
//! Conversion of the probe's and the workload's data to a `Run`, with the metric names of simulated
//! runs.
//!
//! Does not: invent values that are not measured here; overhead of kernel paths, lock waits, cache
//! refills and kicks are absent.

use std::collections::HashMap;

use scxlab_lab::counters::Counters;
use scxlab_lab::metric::{self, MetricTable};
use scxlab_lab::run::{
    CgroupResult, Exit, RegionResult, StopKind, StopReason, TaskResult, TraceCounts,
};
use scxlab_lab::shares::{CgroupTime, shares};
use scxlab_machine::id::CpuId;
use scxlab_machine::topology::{Distance, Topology};
use scxlab_workload::native::{NativeReport, NativeStop, NativeTask};
use scxlab_workload::timers::TimerTotals;
use scxlab_workload::{Perturb, Program, RegionPages};

use crate::guest::{self, GuestReport};
use crate::probe::{ProbeData, TaskSum};
use crate::scheduler::OpCost;

/// Returns the thread's key, which the probe and the executor share: its id and its name of at most
/// 15 characters.
fn key(task: &NativeTask) -> (u32, String) {
    (task.tid as u32, task.comm.as_ref().unwrap_or(&task.name).chars().take(15).collect())
}

/// Returns the result of a task that only the probe knows, because the workload is a command.
fn seen_task(task: &TaskSum, counters: &Counters) -> TaskResult {
    TaskResult {
        name: task.name.clone(),
        nice: task.nice.clamp(-20, 19) as i8,
        cgroup: "/".into(),
        run_ns: task.run_ns,
        wait_ns: Some(task.wait_ns),
        switches: task.voluntary + task.involuntary,
        migrations: Some(task.migrations),
        node_ns: Vec::new(),
        counters: counters.of(task.tid),
    }
}

/// The kernel's counts of NUMA balancing, in the order of `NAMES`. None: the kernel lacks a count.
#[derive(Clone, Copy, Debug, Default)]
pub struct NumaCounts([Option<u64>; 4]);

impl NumaCounts {
    const NAMES: [&str; 4] =
        ["numa_pte_updates", "numa_hint_faults", "numa_hint_faults_local", "numa_pages_migrated"];

    pub fn read() -> NumaCounts {
        NumaCounts::of(&std::fs::read_to_string("/proc/vmstat").unwrap_or_default())
    }

    fn of(vmstat: &str) -> NumaCounts {
        let value = |name: &str| {
            let mut lines = vmstat.lines();
            lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
        };
        NumaCounts(NumaCounts::NAMES.map(value))
    }

    /// Returns how much each count has grown since `before`.
    pub fn since(self, before: NumaCounts) -> NumaCounts {
        let grown = |at: usize| Some(self.0[at]?.saturating_sub(before.0[at]?));
        NumaCounts(std::array::from_fn(grown))
    }
}

/// All data measured in one run.
pub struct Measured<'a> {
    pub report: &'a NativeReport,
    pub guests: &'a [GuestReport],
    pub reading: &'a ProbeData,
    /// Counts of NUMA balancing during the run.
    pub numa: NumaCounts,
    pub topology: &'a Topology,
    pub ops: &'a [OpCost],
    pub counters: &'a Counters,
    /// Instructions that the verifier processed, one entry per program.
    pub verified: &'a [u64],
    pub trace: Option<TraceCounts>,
    pub perturb: Perturb,
}

impl Measured<'_> {
    pub fn metrics(&self) -> MetricTable {
        let mut t = MetricTable::new(&self.report.unit);
        let Measured { report, reading, .. } = self;
        let seconds = report.length_ns() as f64 / 1e9;
        let in_guests: u64 = self.guests.iter().map(|guest| guest.report.work_units()).sum();
        let work_units = report.work_units().saturating_add(in_guests);
        t.ratio(&metric::THROUGHPUT, work_units as f64, seconds);
        t.count(&metric::WORK_UNITS, work_units);
        let begins = self.perturb.begins(self.tasks().len());
        for (metric, times, begins) in [
            (&metric::WAKEUP_LATENCY, &reading.wakeup_latency, begins),
            (&metric::RUN_QUEUE_WAIT, &reading.run_queue_wait, 0),
        ] {
            if times.count() <= begins {
                continue;
            }
            t.times(metric, times.count(), times.max, |at| times.quantile(u64::from(at)));
        }
        let reports = [*report].into_iter().chain(self.guests.iter().map(|guest| &guest.report));
        let mut timers = TimerTotals::default();
        reports.for_each(|report| timers.add(&report.timer_totals()));
        t.timers(&timers);
        self.switches(&mut t);
        let of_all = |all: &[u64]| all.iter().sum();
        t.count(&metric::CPU_BUSY, of_all(&reading.busy_ns));
        t.count(&metric::CPU_IDLE, of_all(&reading.idle_ns));
        for (cpu, (busy, idle)) in reading.busy_ns.iter().zip(&reading.idle_ns).enumerate() {
            t.count_part(&metric::ONE_CPU_BUSY, cpu, *busy);
            t.count_part(&metric::ONE_CPU_IDLE, cpu, *idle);
        }
        for op in self.ops.iter().filter(|op| op.calls > 0) {
            t.count_part(&metric::OP_CALLS, &op.op, op.calls);
            t.put_part(&metric::OP_MEAN, &op.op, op.ns as f64 / op.calls as f64);
        }
        if let Some(max) = self.verified.iter().max() {
            t.count(&metric::VERIFIER_INSNS, self.verified.iter().sum());
            t.count(&metric::VERIFIER_INSNS_MAX, *max);
        }
        self.memory(&mut t);
        guest::metrics(&mut t, self.guests, &self.tasks());
        self.counters.put(&mut t);
        t
    }

    /// Adds the pages of each node, if all regions were counted.
    fn memory(&self, t: &mut MetricTable) {
        let regions = self.regions();
        let nodes = regions.first().map_or(0, |region| region.pages.len());
        for n in 0..if self.report.uncounted == 0 { nodes } else { 0 } {
            let pages = regions.iter().map(|region| region.pages[n]).sum();
            t.count_part(&metric::MEMORY_NODE_PAGES, n, pages);
        }
        let metrics = [
            &metric::NUMA_PTE_UPDATES,
            &metric::NUMA_HINT_FAULTS,
            &metric::NUMA_HINT_FAULTS_LOCAL,
            &metric::NUMA_PAGES_MIGRATED,
        ];
        if regions.is_empty() {
            return;
        }
        for (metric, count) in metrics.into_iter().zip(self.numa.0) {
            if let Some(count) = count {
                t.count(metric, count);
            }
        }
        t.count(&metric::NUMA_TASK_MOVES, self.reading.numa_moves);
        t.count(&metric::NUMA_TASK_SWAPS, self.reading.numa_swaps);
    }

    /// Returns where the pages of each region lay when its owner ended.
    pub fn regions(&self) -> Vec<RegionResult> {
        let known = self.topology.nodes().len();
        let used = self.report.regions.iter().map(|region| region.pages.len()).max().unwrap_or(0);
        let result = |region: &RegionPages| {
            let RegionPages { owner, region, mut pages } = region.clone();
            pages.resize(known.max(used), 0);
            RegionResult { owner, region, pages }
        };
        self.report.regions.iter().map(result).collect()
    }

    fn switches(&self, t: &mut MetricTable) {
        let reading = self.reading;
        t.count(&metric::CONTEXT_SWITCHES, reading.switches);
        let (voluntary, involuntary) = self.switches_of_tasks();
        t.count(&metric::SWITCHES_VOLUNTARY, voluntary);
        t.count(&metric::SWITCHES_INVOLUNTARY, involuntary);
        t.count(&metric::WAKEUPS, reading.wakeups);
        let by_distance = |wanted: Distance| {
            let known = |cpu: u32| (cpu as usize) < self.topology.nr_cpus();
            let of = |(from, to, count): &(u32, u32, u64)| {
                let near = known(*from) && known(*to);
                let distance = near.then(|| self.topology.distance(CpuId(*from), CpuId(*to)));
                if distance == Some(wanted) { *count } else { 0 }
            };
            reading.moves.iter().map(of).sum::<u64>()
        };
        t.count(&metric::MIGRATIONS, reading.moves.iter().map(|(.., count)| count).sum());
        for distance in [Distance::Smt, Distance::Core, Distance::Llc, Distance::Node] {
            let count = by_distance(distance);
            t.count_part(&metric::MIGRATIONS_BY_DISTANCE, distance.name(), count);
        }
    }

    /// Returns the voluntary and the involuntary switches of all tasks. The probe has those of
    /// tasks that have left their CPU for the last time; the executor has those of a thread that
    /// was preempted on its way out and is still there.
    fn switches_of_tasks(&self) -> (u64, u64) {
        let ended = self.reading.tasks.iter().map(|t| (t.voluntary, t.involuntary));
        let seen = self.seen();
        let unseen = self.report.tasks.iter().filter(|t| !seen.contains_key(&key(t)));
        let unseen = unseen.map(|t| (t.switches_voluntary, t.switches_involuntary));
        ended.chain(unseen).fold((0, 0), |(v, i), (more_v, more_i)| (v + more_v, i + more_i))
    }

    fn seen(&self) -> HashMap<(u32, String), &TaskSum> {
        self.reading.tasks.iter().map(|t| ((t.tid, t.name.clone()), t)).collect()
    }

    /// Returns the results of the workload's threads from the probe, or from the executor for a
    /// thread that the probe did not see.
    pub fn tasks(&self) -> Vec<TaskResult> {
        // The executor knows no thread of a command.
        if self.report.tasks.is_empty() {
            return self.reading.tasks.iter().map(|t| seen_task(t, self.counters)).collect();
        }
        let seen = self.seen();
        let result = |t: &NativeTask| {
            let found = seen.get(&key(t));
            TaskResult {
                name: t.name.clone(),
                nice: t.nice,
                cgroup: t.cgroup.clone(),
                run_ns: found.map_or(t.run_ns, |s| s.run_ns),
                wait_ns: found.map_or(t.wait_ns, |s| Some(s.wait_ns)),
                switches: found.map_or(t.switches_voluntary + t.switches_involuntary, |s| {
                    s.voluntary + s.involuntary
                }),
                migrations: found.map_or(t.migrations, |s| Some(s.migrations)),
                node_ns: Vec::new(),
                counters: self.counters.of(t.tid as u32),
            }
        };
        self.report.tasks.iter().map(result).collect()
    }

    pub fn cgroups(&self, program: &Program) -> Vec<CgroupResult> {
        let tasks = self.tasks();
        let seen = self.seen();
        // The workload names a cgroup by its path, and the probe names it by its inode. The inode
        // is in the probe's data on any task of the cgroup.
        let inode_of = |path: &str| {
            let mut inside = self.report.tasks.iter().filter(|t| t.cgroup == path);
            inside.find_map(|t| seen.get(&key(t)).map(|s| s.cgroup))
        };
        let group = |path: &str, weight, idle| CgroupTime {
            path: path.into(),
            weight,
            idle,
            own_ns: tasks.iter().filter(|t| t.cgroup == path).map(|t| t.run_ns).sum(),
            waited: tasks.iter().any(|t| t.cgroup == path && t.wait_ns > Some(0)),
            coscheduled: inode_of(path)
                .and_then(|inode| self.reading.cgroups.get(&inode).copied())
                .unwrap_or_default(),
        };
        let mut groups = vec![group("/", 100, false)];
        let defined = scxlab_workload::compile::cgroups(program);
        groups.extend(defined.iter().map(|c| group(&c.path, c.weight, c.idle)));
        shares(&groups)
    }

    pub fn stop(&self) -> StopReason {
        let (kind, message) = match &self.report.stop {
            NativeStop::Duration => (StopKind::Duration, String::new()),
            NativeStop::AllExited => (StopKind::AllExited, String::new()),
            NativeStop::Deadlock(waiting) => (StopKind::Deadlock, waiting.join("; ")),
            NativeStop::Interrupted(signal) => {
                (StopKind::Interrupted, format!("by signal {signal}"))
            }
        };
        StopReason { kind, message }
    }

    pub fn notes(&self, program: &Program, exit: &Exit, scheduler: &[String]) -> Vec<String> {
        let mut notes = program.notes.clone();
        notes.extend(self.report.notes.iter().cloned());
        notes.extend(guest::notes(program));
        notes.extend(guest::notes_of(self.guests));
        if let Some(first) = self.report.errors.first() {
            notes.push(format!(
                "{} system calls of the workload failed; the first: {first}",
                self.report.nr_errors
            ));
        }
        let seen = self.seen();
        let unseen = |t: &&NativeTask| {
            !seen.contains_key(&key(t)) && (t.wait_ns.is_none() || t.migrations.is_none())
        };
        let unseen = self.report.tasks.iter().filter(unseen).count();
        if unseen > 0 {
            notes.push(format!(
                "the probe did not see {unseen} threads, and the kernel keeps no statistics: their waits or migrations are absent"
            ));
        }
        if self.reading.lost > 0 {
            let lost = self.reading.lost;
            notes.push(format!("the probe had no room for {lost} tasks that ended"));
        }
        if let Some(TraceCounts { lost, .. }) = self.trace.filter(|trace| trace.lost > 0) {
            notes.push(format!(
                "the trace lacks {lost} events, because its buffer was full; --trace-buffer sets another size"
            ));
        }
        if exit.kind != Exit::NONE {
            notes.push(
                "the scheduler exited; the rest of the run was under the default class".into(),
            );
        }
        notes.extend(scheduler.iter().cloned());
        notes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_numa_balancing_are_differences() {
        let text = "numa_hint_faults_local 7\nnuma_hint_faults 9\nnuma_pages_migrated 100\n";
        let before = NumaCounts::of(text);
        assert_eq!(before.0, [None, Some(9), Some(7), Some(100)]);
        let after = NumaCounts::of(&text.replace("100", "130"));
        assert_eq!(after.since(before).0, [None, Some(0), Some(0), Some(30)]);
    }
}

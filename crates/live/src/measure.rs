// SPDX-License-Identifier: GPL-2.0-only
//! Conversion of the probe's and the workload's data to a `Run`, with the metric names of simulated
//! runs.
//!
//! Does not: invent values that are not measured here; overhead of kernel paths, lock waits, cache
//! refills and kicks are absent.

use std::collections::HashMap;

use scxlab_lab::counters::Counters;
use scxlab_lab::run::{CgroupResult, Exit, MetricTable, StopReason, TaskResult, TraceCounts};
use scxlab_lab::shares::{CgroupTime, shares};
use scxlab_machine::id::CpuId;
use scxlab_machine::topology::{Distance, Topology};
use scxlab_workload::Program;
use scxlab_workload::native::{NativeReport, NativeStop, NativeTask};

use crate::probe::{ProbeData, TaskSum};
use crate::scheduler::OpCost;

/// Returns the thread's key, which the probe and the executor share: its id and its name of at most
/// 15 characters.
fn key(task: &NativeTask) -> (u32, String) {
    (task.tid as u32, task.name.chars().take(15).collect())
}

/// Returns the result of a task that only the probe knows.
fn seen_task(task: &TaskSum, counters: &Counters) -> TaskResult {
    TaskResult {
        name: task.name.clone(),
        nice: task.nice.clamp(-20, 19) as i8,
        cgroup: "/".into(),
        run_ns: task.run_ns,
        wait_ns: Some(task.wait_ns),
        switches: task.voluntary + task.involuntary,
        migrations: Some(task.migrations),
        counters: counters.of(task.tid),
    }
}

/// All data measured in one run.
pub struct Measured<'a> {
    pub report: &'a NativeReport,
    pub reading: &'a ProbeData,
    pub topology: &'a Topology,
    pub ops: &'a [OpCost],
    pub counters: &'a Counters,
    /// Instructions that the verifier processed, one entry per program.
    pub verified: &'a [u64],
    pub trace: Option<TraceCounts>,
}

impl Measured<'_> {
    pub fn metrics(&self) -> MetricTable {
        let mut t = MetricTable::default();
        let Measured { report, reading, .. } = self;
        let seconds = report.length_ns() as f64 / 1e9;
        let work = report.work_units() as f64;
        t.ratio("throughput", work, seconds, format!("{}/s", report.unit));
        t.put("work_units", work, report.unit.clone());
        for (name, times) in [
            ("wakeup_latency", &reading.wakeup_latency),
            ("run_queue_wait", &reading.run_queue_wait),
        ] {
            t.times(name, times.count(), times.max, |permille| times.permille(u64::from(permille)));
        }
        let totals = report.loop_totals();
        t.loops(&totals.into_iter().map(|(_, totals)| totals).collect::<Vec<_>>());
        self.switches(&mut t);
        let of_all = |all: &[u64]| all.iter().sum();
        t.ns("cpu_busy", of_all(&reading.busy_ns));
        t.ns("cpu_idle", of_all(&reading.idle_ns));
        for (cpu, (busy, idle)) in reading.busy_ns.iter().zip(&reading.idle_ns).enumerate() {
            t.ns(format!("cpu{cpu}_busy"), *busy);
            t.ns(format!("cpu{cpu}_idle"), *idle);
        }
        for op in self.ops.iter().filter(|op| op.calls > 0) {
            t.count(format!("op_{}_calls", op.op), op.calls);
            t.put(format!("op_{}_mean", op.op), op.ns as f64 / op.calls as f64, "ns");
        }
        if let Some(max) = self.verified.iter().max() {
            t.count("verifier_insns", self.verified.iter().sum());
            t.count("verifier_insns_max", *max);
        }
        self.counters.put(&mut t);
        t
    }

    fn switches(&self, t: &mut MetricTable) {
        let reading = self.reading;
        t.count("context_switches", reading.switches);
        t.count("switches_voluntary", reading.tasks.iter().map(|t| t.voluntary).sum());
        t.count("switches_involuntary", reading.tasks.iter().map(|t| t.involuntary).sum());
        t.count("wakeups", reading.wakeups);
        let by_distance = |wanted: Distance| {
            let known = |cpu: u32| (cpu as usize) < self.topology.nr_cpus();
            let of = |(from, to, count): &(u32, u32, u64)| {
                let near = known(*from) && known(*to);
                let distance = near.then(|| self.topology.distance(CpuId(*from), CpuId(*to)));
                if distance == Some(wanted) { *count } else { 0 }
            };
            reading.moves.iter().map(of).sum::<u64>()
        };
        t.count("migrations", reading.moves.iter().map(|(.., count)| count).sum());
        for distance in [Distance::Smt, Distance::Core, Distance::Llc, Distance::Node] {
            t.count(format!("migrations_{}", distance.name()), by_distance(distance));
        }
    }

    fn seen(&self) -> HashMap<(u32, String), &TaskSum> {
        self.reading.tasks.iter().map(|t| ((t.tid, t.name.clone()), t)).collect()
    }

    /// Returns the results of the workload's threads from the probe, or from the executor for a
    /// thread that the probe did not see.
    pub fn tasks(&self) -> Vec<TaskResult> {
        if self.report.templates.is_empty() {
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
                counters: self.counters.of(t.tid as u32),
            }
        };
        self.report.tasks.iter().map(result).collect()
    }

    pub fn cgroups(&self, program: &Program) -> Vec<CgroupResult> {
        let tasks = self.tasks();
        let seen = self.seen();
        // The probe identifies cgroups by inode, which is taken from the tasks in the cgroup.
        let inode_of = |path: &str| {
            let mut inside = self.report.tasks.iter().filter(|t| t.cgroup == path);
            inside.find_map(|t| seen.get(&key(t)).map(|s| s.cgroup))
        };
        let group = |path: &str, weight| CgroupTime {
            path: path.into(),
            weight,
            own_ns: tasks.iter().filter(|t| t.cgroup == path).map(|t| t.run_ns).sum(),
            waited: tasks.iter().any(|t| t.cgroup == path && t.wait_ns > Some(0)),
            coscheduled: inode_of(path)
                .and_then(|inode| self.reading.cgroups.get(&inode).copied())
                .unwrap_or_default(),
        };
        let mut groups = vec![group("/", 100)];
        let defined = scxlab_workload::compile::cgroups(program);
        groups.extend(defined.iter().map(|c| group(&c.path, c.weight)));
        shares(&groups)
    }

    pub fn stop(&self) -> StopReason {
        let (kind, message) = match &self.report.stop {
            NativeStop::Duration => ("duration", String::new()),
            NativeStop::AllExited => ("all_exited", String::new()),
            NativeStop::Deadlock(waiting) => ("deadlock", waiting.join("; ")),
            NativeStop::Interrupted(signal) => ("interrupted", format!("by signal {signal}")),
        };
        StopReason { kind: kind.into(), message }
    }

    pub fn notes(&self, program: &Program, exit: &Exit, scheduler: &[String]) -> Vec<String> {
        let mut notes = program.notes.clone();
        notes.extend(self.report.notes.iter().cloned());
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

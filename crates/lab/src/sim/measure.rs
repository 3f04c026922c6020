// SPDX-License-Identifier: GPL-2.0-only
//! Reading a finished kernel: metrics with units, tasks, cgroups, exit.
//!
//! Owns: names of metrics and their order; they are stable, and `docs/reference/metrics.md` describes each.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use scxlab_kernel::cgroup::Cgroup;
use scxlab_kernel::cpu::CpuTime;
use scxlab_kernel::ext::op::Op;
use scxlab_kernel::kernel::{Kernel, Stop};
use scxlab_kernel::metrics::{TaskReport, Times};
use scxlab_kernel::task::Task;
use scxlab_machine::id::{CgroupId, Nanos};
use scxlab_machine::topology::Distance;

use super::SimSpec;
use super::watch::Watched;
use crate::run::{CgroupResult, Exit, Metric, Run, StopReason, TaskResult};

pub fn result(k: &Kernel, spec: &SimSpec<'_>, stop: &Stop, hash: u64, watched: &Watched) -> Run {
    Run {
        scheduler: spec.scheduler.label.clone(),
        seed: spec.seed,
        target: "sim",
        exit: exit(k),
        stop: stop_reason(stop),
        trace_hash: format!("{hash:016x}"),
        wall_ns: 0,
        virtual_ns: k.now,
        metrics: metrics(k, &spec.workload.unit, watched),
        tasks: tasks(k),
        cgroups: cgroups(k),
        notes: notes(spec, watched),
    }
}

fn exit(k: &Kernel) -> Exit {
    k.ext.exits.last().map_or_else(Exit::none, |info| Exit {
        kind: info.kind.name().into(),
        code: info.code,
        message: info.message.clone(),
        dump: info.dump.clone(),
    })
}

fn stop_reason(stop: &Stop) -> StopReason {
    let (kind, message) = match stop {
        Stop::Finished => ("duration", String::new()),
        Stop::AllExited => ("all_exited", String::new()),
        Stop::Deadlock { waiting } => ("deadlock", waiting.join("; ")),
        Stop::EventLimit { max } => ("event_limit", format!("more than {max} events")),
        Stop::Livelock { task, max } => {
            ("livelock", format!("task {task} made {max} steps in a row that took no time"))
        }
        Stop::OutOfMemory(what) => ("out_of_memory", what.clone()),
        Stop::Unmodelled(what) => ("unmodelled", what.clone()),
    };
    StopReason { kind, message }
}

fn notes(spec: &SimSpec<'_>, watched: &Watched) -> Vec<String> {
    let mut notes = spec.workload.notes.clone();
    let executor = watched.executor();
    let (faults, total) = executor.faults();
    if let Some(first) = faults.first() {
        notes.push(format!("{total} system calls of the workload failed; the first: {first}"));
    }
    notes
}

/// Accumulates metrics in the order in which they are shown.
struct Table(IndexMap<String, Metric>);

impl Table {
    fn put(
        &mut self,
        name: impl Into<String>,
        value: f64,
        unit: impl Into<std::borrow::Cow<'static, str>>,
    ) {
        self.0.insert(name.into(), Metric { value, unit: unit.into() });
    }

    fn count(&mut self, name: impl Into<String>, value: u64) {
        self.put(name, value as f64, "1");
    }

    fn ns(&mut self, name: impl Into<String>, value: u64) {
        self.put(name, value as f64, "ns");
    }

    /// The five numbers of a distribution.
    fn times(&mut self, name: &str, times: &Times) {
        for (suffix, permille) in [("p50", 500), ("p90", 900), ("p99", 990), ("p99.9", 999)] {
            self.ns(format!("{name}_{suffix}"), times.permille(permille));
        }
        self.ns(format!("{name}_max"), times.max());
    }
}

fn metrics(k: &Kernel, unit: &str, watched: &Watched) -> IndexMap<String, Metric> {
    let mut t = Table(IndexMap::new());
    let m = &k.metrics;
    let seconds = k.now as f64 / 1e9;
    let throughput = if k.now > 0 { m.work_units as f64 / seconds } else { 0.0 };
    t.put("throughput", throughput, format!("{unit}/s"));
    t.put("work_units", m.work_units as f64, unit.to_owned());
    t.times("wakeup_latency", &m.wakeup_latency);
    t.times("run_queue_wait", &m.run_queue_wait);
    loops(&mut t, watched);
    switches(&mut t, k);
    cpu_times(&mut t, k);
    t.ns("cache_refill", m.refill_ns);
    t.count("lock_waits", m.lock_wait.count());
    t.times("lock_wait", &m.lock_wait);
    op_costs(&mut t, k);
    t.count("events", m.events);
    t.count("bpf_instructions", k.vm.executed);
    t.0
}

/// What rt-app's log would say, over all threads; absent when nothing loops.
fn loops(t: &mut Table, watched: &Watched) {
    let executor = watched.executor();
    let totals: Vec<_> = executor.loop_totals().map(|(_, totals)| totals).collect();
    let loops: u64 = totals.iter().map(|l| l.loops).sum();
    let Some(slack_min) = totals.iter().filter_map(|l| l.slack_min).min() else {
        return;
    };
    t.put("timer_slack_min", slack_min as f64, "ns");
    let mean = |sum: f64| if loops == 0 { 0.0 } else { sum / loops as f64 };
    t.put("timer_slack_mean", mean(totals.iter().map(|l| l.slack_sum as f64).sum()), "ns");
    t.put("timer_latency_mean", mean(totals.iter().map(|l| l.wu_lat_sum as f64).sum()), "ns");
    t.ns("timer_latency_max", totals.iter().map(|l| l.wu_lat_max).max().unwrap_or(0));
    t.count("timers_missed", totals.iter().map(|l| l.missed).sum());
}

fn switches(t: &mut Table, k: &Kernel) {
    let m = &k.metrics;
    let reports = reports(k);
    t.count("context_switches", m.switches);
    t.count("switches_voluntary", reports.iter().map(|r| r.switches_voluntary).sum());
    t.count(
        "switches_involuntary",
        reports.iter().map(|r| r.switches - r.switches_voluntary).sum(),
    );
    t.count("wakeups", m.wakeups);
    t.count("migrations", m.migrations.iter().sum());
    for distance in [Distance::Smt, Distance::Core, Distance::Llc, Distance::Node] {
        t.count(format!("migrations_{}", distance.name()), m.migrations[distance as usize]);
    }
    t.count("kicks", k.cpus.iter().map(|c| c.kicks).sum());
}

fn cpu_times(t: &mut Table, k: &Kernel) {
    let sum = |f: fn(&CpuTime) -> u64| k.cpus.iter().map(|c| f(&c.time)).sum();
    t.ns("cpu_busy", sum(|c| c.busy));
    t.ns("cpu_idle", sum(|c| c.idle));
    t.ns("cpu_overhead", sum(|c| c.overhead));
    t.ns("cpu_lock_wait", sum(|c| c.lock_wait));
    for c in &k.cpus {
        t.ns(format!("cpu{}_busy", c.id.0), c.time.busy);
        t.ns(format!("cpu{}_idle", c.id.0), c.time.idle);
        t.ns(format!("cpu{}_overhead", c.id.0), c.time.overhead);
    }
}

fn op_costs(t: &mut Table, k: &Kernel) {
    for op in Op::ALL {
        let cost = k.ext.op_stats.0[op as usize];
        if cost.calls > 0 {
            t.count(format!("op_{}_calls", op.name()), cost.calls);
            t.put(format!("op_{}_mean", op.name()), cost.ns as f64 / cost.calls as f64, "ns");
            t.put(format!("op_{}_insns", op.name()), cost.insns as f64 / cost.calls as f64, "1");
        }
    }
}

fn reports(k: &Kernel) -> Vec<TaskReport> {
    let ours = |t: &&Task| k.is_workload(t);
    let living = k.tasks.iter().filter(ours).map(TaskReport::of);
    let mut all: Vec<TaskReport> = k.metrics.tasks.iter().cloned().chain(living).collect();
    all.sort_by_key(|r| r.pid);
    all
}

fn tasks(k: &Kernel) -> Vec<TaskResult> {
    let path = |id| k.cgroups.get(id).map_or_else(String::new, |g| g.path.clone());
    let result = |r: TaskReport| TaskResult {
        name: r.name,
        nice: r.nice,
        cgroup: path(r.cgroup),
        run_ns: r.run_ns,
        wait_ns: r.wait_ns,
        switches: r.switches,
        migrations: r.migrations,
    };
    reports(k).into_iter().map(result).collect()
}

fn cgroups(k: &Kernel) -> Vec<CgroupResult> {
    let mut run: BTreeMap<CgroupId, Nanos> = BTreeMap::new();
    for g in k.cgroups.iter() {
        for above in k.cgroups.ascend(g.id) {
            *run.entry(above).or_default() += g.run_ns;
        }
    }
    let run_of = |g: &Cgroup| run.get(&g.id).copied().unwrap_or(0);
    // CPU time and weight of all children of a parent that used any.
    let mut families: BTreeMap<Option<CgroupId>, (Nanos, u64)> = BTreeMap::new();
    for g in k.cgroups.iter().filter(|g| run_of(g) > 0) {
        let family = families.entry(g.parent).or_default();
        family.0 += run_of(g);
        family.1 += u64::from(g.spec.weight);
    }
    let permille =
        |part: u64, whole: u64| if whole == 0 { 0.0 } else { part as f64 * 1000.0 / whole as f64 };
    let result = |g: &Cgroup| {
        let (family_run, family_weight) = families.get(&g.parent).copied().unwrap_or_default();
        let weight = if run_of(g) > 0 { u64::from(g.spec.weight) } else { 0 };
        CgroupResult {
            path: g.path.clone(),
            weight: g.spec.weight,
            run_ns: run_of(g),
            share_permille: permille(run_of(g), family_run),
            weight_permille: permille(weight, family_weight),
        }
    };
    k.cgroups.iter().map(result).collect()
}

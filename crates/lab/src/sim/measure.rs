// SPDX-License-Identifier: GPL-2.0-only
//! Reads the result of a run from the kernel after the run: metrics with units, tasks, cgroups,
//! exit.
//!
//! Owns: the order of metrics in results. `metric.rs` declares them.

use std::collections::BTreeSet;

use scxlab_bpf::vm::Instance;
use scxlab_kernel::cgroup::Cgroup;
use scxlab_kernel::cpu::CpuTime;
use scxlab_kernel::ext::op::Op;
use scxlab_kernel::ext::stats::Ev;
use scxlab_kernel::ext::tracing::runs_tracing;
use scxlab_kernel::kernel::{Kernel, Stop};
use scxlab_kernel::metrics::{TaskReport, TimeHistogram, quantile};
use scxlab_kernel::task::Task;
use scxlab_loader::link::Loaded;
use scxlab_machine::id::{CgroupId, NodeId};
use scxlab_machine::topology::Distance;
use scxlab_workload::{Executor, RegionPages};

use super::{SimSpec, measure_guests};
use crate::counters::Counters;
use crate::metric::{self, Metric, MetricTable};
use crate::prepare::{Prepared, PreparedObject};
use crate::run::{CgroupResult, Exit, RegionResult, Run, StopKind, StopReason, TaskResult};
use crate::shares::{CgroupTime, CoscheduledTime, shares};
use crate::story::Story;

/// The objects from which a run's result is computed, once the run is over.
#[derive(Clone, Copy)]
pub struct FinishedRun<'a> {
    pub kernel: &'a Kernel,
    pub loaded: Option<&'a Loaded>,
    pub counters: &'a Counters,
}

pub fn result(seen: FinishedRun<'_>, spec: &SimSpec<'_>, stop: &Stop, hash: u64) -> Run {
    let FinishedRun { kernel: k, loaded, counters } = seen;
    let executor = executor(k);
    let mut metrics = metrics(k, spec, executor);
    counters.put(&mut metrics);
    let run = Run {
        scheduler: spec.scheduler.label().to_owned(),
        seed: spec.seed,
        target: "sim".into(),
        exit: exit(k),
        stop: incomplete(executor, stop_reason(stop)),
        counts: false,
        never_ran: Vec::new(),
        left_out: left_out(spec.scheduler),
        trace_hash: format!("{hash:016x}"),
        trace: None,
        wall_ns: 0,
        virtual_ns: k.now,
        metrics: metrics.into_values(),
        tasks: tasks(k, counters),
        cgroups: cgroups(k),
        memory: regions(k),
        guests: measure_guests::results(k),
        notes: notes(spec, k, executor, loaded.and_then(|loaded| k.vm.instance(loaded.instance))),
    };
    run.with_verdict(spec.workload)
}

/// Lists the omitted parts of the scheduler. The list includes tracing programs that the simulated
/// kernel does not run; a real kernel runs these programs.
pub fn left_out(scheduler: &Prepared) -> Vec<String> {
    let object = scheduler.object.as_ref();
    object.map(|o| crate::left_out::left_out(o, |_, kind| runs_tracing(kind))).unwrap_or_default()
}

/// Returns the executor of the host's program. `sim.rs` gives an executor to every kernel that is
/// measured.
fn executor(k: &Kernel) -> &Executor {
    scxlab_workload::exec::executor(k).expect("a measured kernel runs an executor")
}

fn exit(k: &Kernel) -> Exit {
    k.ext.exits.last().map_or_else(Exit::none, |info| Exit {
        kind: info.kind.name().into(),
        code: info.code,
        message: info.message.clone(),
        at_ns: Some(info.at),
        origin: info.origin.lines.clone(),
        story: Some(Story::of(info)),
        dump: info.dump.clone(),
    })
}

/// Returns the reason for which a run's figures are not those of the whole workload, if it ended
/// regularly without some of the workload's threads; else `stop`.
fn incomplete(executor: &Executor, stop: StopReason) -> StopReason {
    match executor.missing() {
        Some(refused) if stop.is_regular() => {
            StopReason { kind: StopKind::ThreadsMissing, message: refused.to_string() }
        }
        _ => stop,
    }
}

fn stop_reason(stop: &Stop) -> StopReason {
    let (kind, message) = match stop {
        Stop::Finished => (StopKind::Duration, String::new()),
        Stop::AllExited => (StopKind::AllExited, String::new()),
        Stop::Deadlock { waiting } => (StopKind::Deadlock, waiting.join("; ")),
        Stop::EventLimit { max } => (StopKind::EventLimit, format!("more than {max} events")),
        Stop::Livelock { task, max } => {
            (StopKind::Livelock, format!("task {task} made {max} steps in a row that took no time"))
        }
        Stop::ScheduleLoop { cpu, max } => (
            StopKind::Livelock,
            format!("CPU {cpu} scheduled {max} times in a row and ran no task"),
        ),
        Stop::OutOfMemory(what) => (StopKind::OutOfMemory, what.clone()),
        Stop::MemoryFull { region } => (
            StopKind::MemoryFull,
            format!("no node that its policy allows has room for region \"{region}\""),
        ),
        Stop::Unmodelled(what) => (StopKind::Unmodelled, what.clone()),
        Stop::Interrupted(why) => (StopKind::Interrupted, why.clone()),
    };
    StopReason { kind, message }
}

/// Returns a line for each kind of fault while a scheduler exited. Faults that differ only in an
/// address are of one kind.
fn late_faults(faults: impl Iterator<Item = String>) -> Vec<String> {
    let kind = |fault: &str| {
        let parts = fault.split("0x").enumerate();
        let digits = |c: char| c.is_ascii_hexdigit();
        parts
            .map(|(i, p)| if i == 0 { p } else { p.trim_start_matches(digits) })
            .collect::<String>()
    };
    let mut all: indexmap::IndexMap<String, (String, u32)> = indexmap::IndexMap::new();
    for fault in faults {
        all.entry(kind(&fault)).or_insert((fault, 0)).1 += 1;
    }
    let line = |(fault, count): (String, u32)| match count {
        1 => format!("while it exited: {fault}"),
        _ => format!("while it exited, {count} times: {fault}"),
    };
    all.into_values().map(line).collect()
}

fn notes(
    spec: &SimSpec<'_>,
    k: &Kernel,
    executor: &Executor,
    object: Option<&Instance>,
) -> Vec<String> {
    let mut notes = spec.workload.notes.clone();
    notes.extend(spec.scheduler.object.iter().flat_map(PreparedObject::notes));
    notes.extend(late_faults(k.ext.late_faults.iter().map(ToString::to_string)));
    notes.extend(object.and_then(interpreted));
    if spec.scheduler.object.is_none() && spec.machine.topology.is_asymmetric() {
        notes.push(ENERGY.to_owned());
    }
    let (faults, total) = executor.faults();
    if let Some(first) = faults.first() {
        notes.push(format!("{total} system calls of the workload failed; the first: {first}"));
    }
    notes.extend(measure_guests::notes(k));
    notes
}

/// Note of runs under the default class on a machine whose CPUs differ in capacity.
const ENERGY: &str = "the model of EEVDF places tasks by the CPUs' capacity; Linux places them for \
                      energy if it has an energy model of the machine (EAS)";

/// Notes which functions of an object run in the interpreter, although machine code was asked for.
fn interpreted(object: &Instance) -> Option<String> {
    let refusals = object.refusals();
    let (first, why) = refusals.first()?;
    let (count, of) = (refusals.len(), object.image().funcs.len());
    Some(format!("{count} of {of} functions of {} are interpreted; {first}: {why}", object.name))
}

fn times(t: &mut MetricTable, metric: &Metric, times: &TimeHistogram) {
    let all = times.histogram();
    t.times(metric, all.len(), all.max(), |at| quantile(&all, at));
}

fn metrics(k: &Kernel, spec: &SimSpec<'_>, executor: &Executor) -> MetricTable {
    let mut t = MetricTable::new(&spec.workload.unit);
    let m = &k.metrics;
    let seconds = k.now as f64 / 1e9;
    t.ratio(&metric::THROUGHPUT, m.work_units as f64, seconds);
    t.count(&metric::WORK_UNITS, m.work_units);
    if let Some((threads, sum)) = executor.completed() {
        t.ratio(&metric::COMPLETION_MEAN, sum as f64, threads as f64);
    }
    let begins = spec.perturb.begins(reports(k).len());
    if m.wakeup_latency.count() > begins {
        times(&mut t, &metric::WAKEUP_LATENCY, &m.wakeup_latency);
    }
    times(&mut t, &metric::RUN_QUEUE_WAIT, &m.run_queue_wait);
    let mut timers = executor.timer_totals(k.now);
    measure_guests::executors(k).for_each(|guest| timers.add(&guest.timer_totals(k.now)));
    t.timers(&timers);
    switches(&mut t, k);
    cpu_times(&mut t, k);
    let limited = spec.workload.cgroups.iter().any(|group| group.quota.is_some());
    if !limited && !m.hotplugged {
        t.count(&metric::IDLE_WHILE_WAITING, m.idle_while_waiting.until(k.now));
    }
    t.count(&metric::CACHE_REFILL, m.refill_ns);
    t.count(&metric::LOCK_WAITS, m.lock_wait.count());
    times(&mut t, &metric::LOCK_WAIT, &m.lock_wait);
    memory(&mut t, k);
    measure_guests::metrics(&mut t, k);
    op_costs(&mut t, k);
    scx_events(&mut t, k);
    t.count(&metric::EVENTS, m.events);
    t.count(&metric::BPF_INSTRUCTIONS, k.vm.executed);
    t
}

fn switches(t: &mut MetricTable, k: &Kernel) {
    let m = &k.metrics;
    let reports = reports(k);
    t.count(&metric::CONTEXT_SWITCHES, m.switches);
    t.count(&metric::SWITCHES_VOLUNTARY, reports.iter().map(|r| r.switches_voluntary).sum());
    t.count(
        &metric::SWITCHES_INVOLUNTARY,
        reports.iter().map(|r| r.switches - r.switches_voluntary).sum(),
    );
    t.count(&metric::WAKEUPS, m.wakeups);
    t.count(&metric::MIGRATIONS, m.migrations.iter().sum());
    for distance in [Distance::Smt, Distance::Core, Distance::Llc, Distance::Node] {
        let count = m.migrations[distance as usize];
        t.count_part(&metric::MIGRATIONS_BY_DISTANCE, distance.name(), count);
    }
    t.count(&metric::KICKS, k.cpus.iter().map(|c| c.kicks).sum());
}

fn cpu_times(t: &mut MetricTable, k: &Kernel) {
    let times: Vec<CpuTime> = k.cpus.iter().map(|c| c.time_until(k.now)).collect();
    let sum = |f: fn(&CpuTime) -> u64| times.iter().map(f).sum();
    t.count(&metric::CPU_BUSY, sum(|c| c.busy));
    t.count(&metric::CPU_IDLE, sum(|c| c.idle));
    t.count(&metric::CPU_OVERHEAD, sum(|c| c.overhead));
    t.count(&metric::CPU_LOCK_WAIT, sum(|c| c.lock_wait));
    for (c, time) in k.cpus.iter().zip(&times) {
        t.count_part(&metric::ONE_CPU_BUSY, c.id.0, time.busy);
        t.count_part(&metric::ONE_CPU_IDLE, c.id.0, time.idle);
        t.count_part(&metric::ONE_CPU_OVERHEAD, c.id.0, time.overhead);
    }
}

fn op_costs(t: &mut MetricTable, k: &Kernel) {
    for op in Op::ALL {
        let cost = k.ext.op_stats.0[op as usize];
        if cost.calls > 0 {
            let mean = |sum: u64| sum as f64 / cost.calls as f64;
            t.count_part(&metric::OP_CALLS, op.name(), cost.calls);
            t.put_part(&metric::OP_MEAN, op.name(), mean(cost.ns));
            t.put_part(&metric::OP_INSNS, op.name(), mean(cost.insns));
        }
    }
}

/// Adds the counters of the last scheduler's events. Those of sub-schedulers, which are not
/// modelled, are absent.
fn scx_events(t: &mut MetricTable, k: &Kernel) {
    let stats = match &k.ext.root {
        Some(scheduler) => scheduler.events,
        None if k.ext.exits.is_empty() => return,
        None => k.ext.last_events,
    };
    for (name, count) in Ev::NAMES.iter().zip(*stats.all()) {
        match *name {
            "bypass_duration" => t.count(&metric::SCX_EV_BYPASS_DURATION, count),
            name if name.starts_with("sub_") => {}
            name => t.count_part(&metric::SCX_EV, name, count),
        }
    }
}

fn regions(k: &Kernel) -> Vec<RegionResult> {
    let pages = scxlab_workload::exec::region_pages(k).into_iter();
    let result = |RegionPages { owner, region, pages }| RegionResult { owner, region, pages };
    pages.map(result).collect()
}

/// Adds the metrics of a run with regions.
fn memory(t: &mut MetricTable, k: &Kernel) {
    let Some(memory) = &k.memory else { return };
    let regions = regions(k);
    for n in 0..memory.nodes.len() {
        let pages = regions.iter().filter_map(|region| region.pages.get(n)).sum();
        t.count_part(&metric::MEMORY_NODE_PAGES, n, pages);
        let served = memory.stats.served_bytes(NodeId(n as u32)) as f64;
        if k.now > 0 {
            t.put_part(&metric::MEMORY_NODE_BANDWIDTH, n, served * 1000.0 / k.now as f64);
        }
    }
    t.count(&metric::MEMORY_ACCESSES, memory.stats.accesses());
    t.count(&metric::MEMORY_REMOTE_ACCESSES, memory.stats.remote_accesses());
    let stats = &memory.stats;
    t.count(&metric::MEMORY_FIRST_TOUCH, stats.first_touch_ns);
    t.count(&metric::MEMORY_MIGRATE, stats.migrate_ns);
    t.count(&metric::NUMA_PTE_UPDATES, stats.pte_updates);
    t.count(&metric::NUMA_HINT_FAULTS, stats.hint_faults);
    t.count(&metric::NUMA_HINT_FAULTS_LOCAL, stats.hint_faults_local);
    t.count(&metric::NUMA_PAGES_MIGRATED, stats.pages_migrated);
    t.count(&metric::NUMA_TASK_MOVES, stats.task_moves);
    t.count(&metric::NUMA_TASK_SWAPS, stats.task_swaps);
}

fn reports(k: &Kernel) -> Vec<TaskReport> {
    let ours = |t: &&Task| k.is_workload(t);
    let living = k.tasks.iter().filter(ours).map(|t| TaskReport::of(t, &k.machine.topology));
    let mut all: Vec<TaskReport> = k.metrics.tasks.iter().cloned().chain(living).collect();
    all.sort_by_key(|r| r.pid);
    all
}

fn tasks(k: &Kernel, counters: &Counters) -> Vec<TaskResult> {
    let path = |id| k.cgroups.get(id).map_or_else(String::new, |g| g.path.clone());
    let result = |r: TaskReport| TaskResult {
        name: r.name,
        nice: r.nice,
        cgroup: path(r.cgroup),
        run_ns: r.run_ns,
        wait_ns: Some(r.wait_ns),
        switches: r.switches,
        migrations: Some(r.migrations),
        node_ns: if k.machine.topology.nodes().len() > 1 { r.node_ns } else { Vec::new() },
        counters: counters.of(r.pid),
    };
    reports(k).into_iter().map(result).collect()
}

fn cgroups(k: &Kernel) -> Vec<CgroupResult> {
    let waiters: BTreeSet<CgroupId> =
        reports(k).iter().filter(|r| r.wait_ns > 0).map(|r| r.cgroup).collect();
    let group = |g: &Cgroup| {
        let mut account = g.cosched;
        account.settle(k.now, k.cpus.len() as u32);
        let coscheduled = CoscheduledTime { some_ns: account.some_ns, all_ns: account.all_ns };
        CgroupTime {
            path: g.path.clone(),
            weight: g.spec.weight,
            idle: g.spec.idle,
            own_ns: g.run_ns,
            waited: waiters.contains(&g.id),
            coscheduled,
        }
    };
    shares(&k.cgroups.iter().map(group).collect::<Vec<_>>())
}

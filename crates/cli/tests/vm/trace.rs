// SPDX-License-Identifier: GPL-2.0-only
//! Tests of traces of a real kernel and of the simulator. The tests read the traces with Perfetto's
//! own definitions, and compare them with the metrics.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use perfetto_protos::ftrace_event::FtraceEvent;
use perfetto_protos::ftrace_event::ftrace_event::Event as Ftrace;
use perfetto_protos::ftrace_stats::ftrace_stats::Phase;
use perfetto_protos::trace::Trace;
use protobuf::Message;
use serde_json::Value;

use crate::bench::{Bench, object};

/// Hogs that preempt each other, sleepers, and a pair that wakes each other. Every thread has its
/// own name.
const WORKLOAD: &str = r#"
duration = "400ms"

[[thread]]
name = "hog-{i}"
instances = 3
ops = [{ loop = { ops = [{ compute = "1ms" }, { count = 1 }] } }]

[[thread]]
name = "sleeper-{i}"
instances = 3
ops = [{ loop = { ops = [{ compute = "300us" }, { sleep = "3ms" }] } }]

[[thread]]
name = "ping"
ops = [{ loop = { ops = [{ write = { pipe = "there", bytes = 4 } }, { read = { pipe = "back", bytes = 4 } }, { sleep = "2ms" }] } }]

[[thread]]
name = "pong"
ops = [{ loop = { ops = [{ read = { pipe = "there", bytes = 4 } }, { write = { pipe = "back", bytes = 4 } }] } }]
"#;
/// `TRACE_FLAG_HARDIRQ`, which marks wake-ups by interrupts.
const IN_INTERRUPT: u32 = 8;
const LENGTH_NS: u64 = 400_000_000;

/// Figures of a task, computed from its trace.
#[derive(Debug, Default)]
struct Got {
    run_ns: u64,
    wait_ns: u64,
    /// Number of switches to the task, and in `unexplained` the number of switches to the task
    /// after a sleep that no wake-up ended.
    switches: u64,
    unexplained: u64,
    migrations: u64,
    running_since: Option<u64>,
    waiting_since: Option<u64>,
}

struct Read {
    /// Tasks by name.
    tasks: BTreeMap<String, Got>,
    /// Switches whose previous task is not the task to which the CPU switched last.
    broken: Vec<String>,
    cpus: BTreeSet<u32>,
    /// Number of sched_switch events, and in `wakeups` the number of sched_waking events.
    switches: u64,
    wakeups: u64,
    /// Number of wake-ups by a task instead of an interrupt.
    by_tasks: u64,
    last_ns: u64,
    /// Lost events by CPU, from the statistics at the end of the trace.
    lost: Vec<u64>,
}

/// Parses a trace.
pub fn parse(file: &Path) -> Trace {
    let bytes = std::fs::read(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    Trace::parse_from_bytes(&bytes).unwrap()
}

/// Returns the events of a trace with their CPUs, by time: each bundle has events of one CPU.
pub fn by_time(trace: &Trace) -> Vec<(u32, &FtraceEvent)> {
    let bundles = trace.packet.iter().map(|packet| packet.ftrace_events());
    let mut events: Vec<_> =
        bundles.flat_map(|bundle| bundle.event.iter().map(|event| (bundle.cpu(), event))).collect();
    events.sort_by_key(|(_, event)| event.timestamp());
    events
}

fn read(file: &Path) -> Read {
    let trace = parse(file);
    let events = by_time(&trace);
    let mut lost = Vec::new();
    for packet in &trace.packet {
        let unknown = packet.special_fields.unknown_fields();
        assert_eq!(unknown.iter().count(), 0, "fields that Perfetto does not know: {packet}");
        let stats = packet.ftrace_stats();
        if stats.phase() == Phase::END_OF_TRACE {
            lost = stats.cpu_stats.iter().map(|cpu| cpu.dropped_events()).collect();
        }
    }
    let mut read = Read {
        tasks: BTreeMap::new(),
        broken: Vec::new(),
        cpus: BTreeSet::new(),
        switches: 0,
        wakeups: 0,
        by_tasks: 0,
        last_ns: events.last().map_or(0, |(_, event)| event.timestamp()),
        lost,
    };
    let mut now: BTreeMap<u32, i32> = BTreeMap::new();
    for (cpu, event) in events {
        read.cpus.insert(cpu);
        let at = event.timestamp();
        match event.event.as_ref().unwrap() {
            Ftrace::SchedSwitch(switch) => {
                let had = now.insert(cpu, switch.next_pid());
                if had.is_some_and(|had| had != switch.prev_pid()) {
                    read.broken.push(format!("CPU {cpu} had {had:?}: {switch}"));
                }
                read.switches += 1;
                let prev = read.tasks.entry(switch.prev_comm().to_owned()).or_default();
                prev.run_ns += prev.running_since.take().map_or(0, |since| at - since);
                prev.waiting_since = (switch.prev_state() == 0).then_some(at);
                let next = read.tasks.entry(switch.next_comm().to_owned()).or_default();
                next.running_since = Some(at);
                next.switches += 1;
                match next.waiting_since.take() {
                    Some(since) => next.wait_ns += at - since,
                    None => next.unexplained += 1,
                }
            }
            Ftrace::SchedWaking(waking) => {
                read.wakeups += 1;
                let by_interrupt = event.common_flags() & IN_INTERRUPT != 0;
                read.by_tasks += u64::from(event.pid() != 0 && !by_interrupt);
                read.tasks.entry(waking.comm().to_owned()).or_default().waiting_since = Some(at);
            }
            Ftrace::SchedMigrateTask(migrate) => {
                read.tasks.entry(migrate.comm().to_owned()).or_default().migrations += 1;
            }
            _ => {}
        }
    }
    for got in read.tasks.values_mut() {
        got.run_ns += got.running_since.take().map_or(0, |since| LENGTH_NS.saturating_sub(since));
        got.wait_ns += got.waiting_since.take().map_or(0, |since| LENGTH_NS.saturating_sub(since));
    }
    read
}

/// Both targets use one schema. On the real kernel, sums over the trace equal the metrics to the
/// nanosecond.
#[test]
fn a_trace_of_a_real_kernel_adds_up_to_the_metrics() {
    let Some(bench) = Bench::new() else { return };
    let workload = bench.file("work.toml", WORKLOAD);
    let file = bench.file("run.pftrace", "");
    std::fs::remove_file(&file).unwrap();
    let schedulers = ["-s", "eevdf", "-s", "vtime"];
    let mut args = vec!["--on", "sim", "-w", &workload, "-m", "1n2c1t", "--trace", &file];
    args.extend(["-n", "2", "--timeline", "100ms..140ms"]);
    args.extend(schedulers);
    let done = bench.run(&args);
    let runs = done.runs();
    assert_eq!(runs.len(), 8);
    for run in &runs {
        let (target, scheduler) =
            (run["target"].as_str().unwrap(), run["scheduler"].as_str().unwrap());
        let traced = &run["trace"];
        if run["seed"] != 1 || target == "sim" {
            assert_eq!(traced, &Value::Null, "{run}");
        }
        if run["seed"] != 1 {
            continue;
        }
        let at = format!("run.{target}.{scheduler}.pftrace");
        let read = read(&bench.folder.path().join(&at));
        assert_eq!(read.broken, Vec::<String>::new(), "{at}");
        assert_eq!(read.cpus, BTreeSet::from([0, 1]), "{at}");
        assert!(read.wakeups > read.by_tasks && read.by_tasks > 0, "{at}: {}", read.by_tasks);
        if target == "vm" {
            assert_eq!(traced["lost"], 0, "{run}");
            assert!(traced["events"].as_u64() >= Some(read.switches + read.wakeups), "{traced}");
            assert!(read.lost.is_empty() && read.last_ns <= LENGTH_NS, "{at}");
        }
        let names: Vec<&str> = run["tasks"].as_array().unwrap().iter().map(name).collect();
        assert_eq!(names.len(), 8, "{run}");
        assert!(names.iter().all(|name| read.tasks.contains_key(*name)), "{at}: {names:?}");
        if target == "vm" {
            adds_up(run, &read, &at);
        }
        let heading = format!("{scheduler} on {target}, seed 1");
        assert!(done.stderr.contains(&heading), "no \"{heading}\": {done}");
    }
}

fn name(task: &Value) -> &str {
    task["name"].as_str().unwrap()
}

fn adds_up(run: &Value, read: &Read, at: &str) {
    for task in run["tasks"].as_array().unwrap() {
        let (name, got) = (name(task), &read.tasks[name(task)]);
        assert!(got.switches > 0 && got.unexplained == 0, "{at}, {name}: {got:?}");
        let said = |field: &str| task[field].as_u64().unwrap();
        assert_eq!(got.run_ns, said("run_ns"), "{at}, {name}: {got:?}, {task}");
        assert_eq!(got.wait_ns, said("wait_ns"), "{at}, {name}: {got:?}, {task}");
        assert_eq!(got.migrations, said("migrations"), "{at}, {name}: {got:?}, {task}");
    }
}

/// Two pairs of tasks wake each other as often as they can, which gives more events than fit into
/// the trace buffer. The results, the trace and the report must give the number of lost events.
#[test]
fn events_that_find_no_room_are_counted_and_said() {
    let Some(bench) = Bench::new() else { return };
    let workload = bench.file(
        "work.toml",
        r#"
duration = "2s"

[[thread]]
name = "ping-{i}"
instances = 2
ops = [{ loop = { ops = [{ write = { pipe = "there-{i}", bytes = 4 } }, { read = { pipe = "back-{i}", bytes = 4 } }] } }]

[[thread]]
name = "pong-{i}"
instances = 2
ops = [{ loop = { ops = [{ read = { pipe = "there-{i}", bytes = 4 } }, { write = { pipe = "back-{i}", bytes = 4 } }] } }]
"#,
    );
    let file = bench.file("run.pftrace", "");
    let folder = bench.folder.path().join("results");
    let mut args = vec!["-w", &workload, "-s", "eevdf", "-m", "1n2c1t", "--trace", &file];
    // With the guest's time counted in instructions, the number of events does not depend on how
    // fast the host is.
    args.extend(["--accel", "counted", "--trace-buffer", "1M", "-o", folder.to_str().unwrap()]);
    let done = bench.run(&args);
    let run = &done.runs()[0];
    let lost = run["trace"]["lost"].as_u64().unwrap();
    assert!(lost > 0, "{}", run["trace"]);
    let read = read(Path::new(&file));
    assert_eq!(read.lost.iter().sum::<u64>(), lost);
    // The recorded events must be consistent. They end before the run does, when the buffer is
    // full.
    assert_eq!(read.broken, Vec::<String>::new());
    assert!(read.last_ns < 2_000_000_000, "{}", read.last_ns);
    let events = run["trace"]["events"].as_u64().unwrap();
    assert!((8_000..=(1 << 20) / 88).contains(&events), "{events}");
    let report = std::fs::read_to_string(folder.join("report.txt")).unwrap();
    assert!(report.contains(&format!("the trace lacks {lost} events")), "{report}");
    assert!(!folder.join("trace.eevdf.pftrace").exists(), "only --trace asks for one");
}

#[test]
fn an_ejection_is_in_the_trace() {
    let Some(bench) = Bench::new() else { return };
    let file = bench.file("run.pftrace", "");
    let scheduler = format!("{},exit_point=1", object("exit"));
    let workload = bench.file("work.toml", WORKLOAD);
    let args = ["-w", &workload, "-s", &scheduler, "-m", "1n2c1t", "--trace", &file];
    let done = bench.run(&args);
    let exit = &done.runs()[0]["exit"];
    assert_eq!(exit["kind"], "unreg_bpf", "{exit}");
    let trace = Trace::parse_from_bytes(&std::fs::read(&file).unwrap()).unwrap();
    let instants = trace.packet.iter().map(|packet| &packet.track_event().debug_annotations);
    let message = exit["message"].as_str().unwrap();
    let told = instants.flatten().filter(|a| a.has_string_value() && a.string_value() == message);
    assert_eq!(told.count(), 1, "{exit}");
}

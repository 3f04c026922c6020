// SPDX-License-Identifier: GPL-2.0-only
//! Pages in a real browser (`web/tests/page.mjs`): nothing is requested, the timeline shows the
//! right task under the pointer, tables sort, and axe finds no violation.

use std::fs;
use std::path::Path;
use std::process::Command;

use scxlab_machine::hash::hash_bytes;
use scxlab_machine::{CpuId, Machine, TaskId};
use scxlab_page::data::{
    Advice, Failure, Lane, Moments, Page, PublishedCell, PublishedTable, Ran, Rank,
};
use scxlab_page::{Document, IntervalSink, html, session, verdict};
use scxlab_trace::{Event, EventKind, Names, PrevState, Sink, TaskName};
use serde_json::{Value, json};

/// Folder with the page's npm packages, which the build script fills.
const WEB: &str = concat!(env!("OUT_DIR"), "/web");

const MACHINE: &str = "2n2c2t";
const CPUS: u32 = 8;
const TASKS: u32 = 24;
/// Length of an interval, in ns; the test's script knows it too.
const STEP: u64 = 1000;

/// Task that runs on a CPU in an interval. Every fourth interval is idle.
fn task_at(cpu: u32, interval: u64) -> Option<u32> {
    (!interval.is_multiple_of(4)).then(|| (cpu * 3 + (interval % 3) as u32) % TASKS)
}

/// Passes so many intervals of each CPU to a sink, two events for each. On an irregular timeline,
/// which no packing makes small, tasks and times are random.
fn events(sink: &mut dyn Sink, intervals: u64, irregular: bool) -> u64 {
    let random =
        |cpu: u32, interval: u64| hash_bytes(&(u64::from(cpu) << 40 | interval).to_le_bytes());
    let task_at = |cpu: u32, interval: u64| match irregular {
        true => Some((random(cpu, interval) >> 32) as u32 % TASKS),
        false => task_at(cpu, interval),
    };
    let mut names = Names::default();
    for task in 0..TASKS {
        let (pid, comm) = (task + 100, format!("task-{task}"));
        names.set_task(TaskId(task), TaskName { pid, tgid: 100 + task / 4, comm, prio: 120 });
    }
    let mut count = 0;
    for interval in 0..intervals {
        for cpu in 0..CPUS {
            let late = if irregular { random(cpu, interval) % STEP } else { 0 };
            let time = interval * STEP + late;
            let next = task_at(cpu, interval);
            let prev = interval.checked_sub(1).and_then(|before| task_at(cpu, before));
            let mut emit = |kind| {
                sink.event(&Event { time, cpu: CpuId(cpu), kind }, &names);
                count += 1;
            };
            if let Some(task) = next {
                let waker = prev.map(TaskId);
                emit(EventKind::Wakeup { task: TaskId(task), target: CpuId(cpu), waker });
            }
            let (prev, next) = (prev.map(TaskId), next.map(TaskId));
            emit(EventKind::Switch { prev, next, prev_state: PrevState::Sleeping });
        }
    }
    count
}

fn document() -> Document {
    let run = |name: &str, seed: u64, throughput: f64| {
        let metric = |value: f64, unit: &str| json!({ "value": value, "unit": unit });
        json!({
            "scheduler": name, "seed": seed, "target": "sim",
            "exit": { "kind": "none", "code": 0, "message": "" },
            "stop": { "kind": "duration", "message": "" },
            "counts": true, "trace_hash": "", "wall_ns": 1, "virtual_ns": 1,
            "metrics": {
                "throughput": metric(throughput + seed as f64, "op/s"),
                "wakeup_latency_p99": metric(1e6 - throughput * 100.0, "ns"),
            },
            "tasks": [],
            "cgroups": [{ "path": "/a", "weight": 100, "run_ns": 1, "share_permille": 500.0, "weight_permille": 500.0 }],
            "notes": ["a note"],
        })
    };
    let names = ["eevdf", "o1", "<script>alert(1)</script>"];
    let runs = names
        .iter()
        .enumerate()
        .flat_map(|(at, name)| (1..4).map(move |seed| run(name, seed, 1000.0 + 100.0 * at as f64)));
    let runs: Vec<Value> = runs.collect();
    let schedulers: Vec<Value> =
        names.iter().map(|name| json!({ "scheduler": name, "object": null })).collect();
    let json = json!({
        "manifest": {
            "scxlab": { "version": "0", "commit": null }, "target": "sim", "targets": ["sim"],
            "schedulers": schedulers,
            "workload": { "workload": "chat", "name": "chat", "unit": "op", "hash": "0" },
            "machine": { "machine": MACHINE, "name": MACHINE, "description": "", "nr_cpus": CPUS, "fingerprint": "0" },
            "runs": 3, "seed": 1, "duration_ns": 1000,
            "start_offset_max_ns": 0, "compute_noise_permille": 0,
        },
        "runs": runs,
    });
    serde_json::from_value(json).unwrap()
}

/// Writes a page whose two timelines have so many intervals on each CPU, and returns the number of
/// events of both.
fn write(path: &Path, intervals: u64, irregular: bool) -> u64 {
    let machine = Machine::from_spec(MACHINE).unwrap();
    let document = document();
    let mut count = 0;
    let timeline = |at: usize| {
        let (mut sink, collected) = IntervalSink::new();
        count += events(&mut sink, intervals, irregular);
        let block = format!("timeline-{at}");
        collected.pack(&machine.topology, ["eevdf", "o1"][at], 1, &block)
    };
    let packed: Vec<_> = (0..2).map(timeline).collect();
    let mut session = session(&document, &packed);
    session.schedulers[1].failures.push(Failure {
        seed: 1,
        kind: "ejected (stall)".into(),
        at: Some(30_000),
        message: "task-1 did not run for 30 s".into(),
        story: vec!["task-1 waits in DSQ 0x7".into()],
        moments: Some(Moments {
            start: 10_000,
            end: 30_000,
            lanes: vec![
                Lane {
                    cpu: 0,
                    runs: vec![Ran { task: "task-2".into(), start: 10_000, end: 30_000 }],
                },
                Lane { cpu: 3, runs: Vec::new() },
            ],
        }),
        again: "scxlab run -s o1 -w chat -m 2n2c2t --seed 1".into(),
    });
    let rank = |scheduler: &str, change: f64| Rank {
        scheduler: scheduler.into(),
        change: Some(change),
        low: Some(change - 0.02),
        high: Some(change + 0.02),
        worlds: "12 of 12".into(),
        state: "finalist".into(),
    };
    let cell = |published: f64, predicted: f64| PublishedCell {
        label: "row, column".into(),
        published,
        predicted,
        agrees: Some(published > predicted),
    };
    let page = Page {
        title: "A page <of> tests".into(),
        version: "scxlab 0".into(),
        verdict: verdict(&[document]),
        problems: vec!["results/old: the column \"value\" is missing".into()],
        sessions: vec![session],
        published: vec![PublishedTable {
            name: "o1-2002 chat".into(),
            score: "all".into(),
            cells: vec![cell(2.0, 1.0), cell(3.0, 5.0), cell(100.0, 90.0)],
        }],
        advice: Some(Advice {
            sentence: "Take o1.".into(),
            command: Some("sudo scxlab attach -s o1".into()),
            goals: vec!["max:throughput".into()],
            ranks: vec![rank("o1", 0.1), rank("vtime", -0.05)],
        }),
    };
    let blocks = packed.into_iter().map(|packed| (packed.timeline.bytes, packed.bytes));
    fs::write(path, html(&page, &blocks.collect::<Vec<_>>())).unwrap();
    count
}

#[test]
fn pages_work_in_a_browser() {
    let folder = tempfile::tempdir().unwrap();
    let (small, large) = (folder.path().join("small.html"), folder.path().join("large.html"));
    write(&small, 40, false);
    let events = write(&large, 160_000, true);
    assert!(events > 5_000_000, "{events}");
    let size = fs::metadata(&large).unwrap().len();
    println!("{events} events: {size} bytes");
    assert!(size < 30_000_000, "{events} events: {size} bytes");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("web/tests/page.mjs");
    let done = Command::new("node")
        .arg(script)
        .args([Path::new(WEB), &small, &large])
        .output()
        .expect("node, which `make setup` installs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    println!("{}", text(&done.stdout));
    assert!(done.status.success(), "{}{}", text(&done.stdout), text(&done.stderr));
}

// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the command from outside: results, traces, comparisons, determinism.

mod advise;
mod again;
mod build;
mod check;
mod docs;
mod kept_code;
mod machines;
mod outputs;
mod report;
mod reproduce;
mod schema;
mod shrink;
mod sweep;
mod trace;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use perfetto_protos::track_event::track_event::Type;
use schema::Schema;
use scxlab_lab::metric;
use serde_json::Value;

const RT_APP: &str = "/usr/share/doc/rt-app/examples/browser-short.json";

fn scxlab(args: &[&str]) -> Command {
    let mut command = program(env!("CARGO_BIN_EXE_scxlab"));
    command.args(args);
    command
}

/// Returns a command that keeps nothing in the user's cache.
fn program(name: &str) -> Command {
    let mut command = Command::new(name);
    command.env("XDG_CACHE_HOME", env!("CARGO_TARGET_TMPDIR"));
    command
}

fn output(args: &[&str]) -> Output {
    let out = scxlab(args).output().unwrap();
    let code = out.status.code();
    assert_eq!(code, Some(0), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    out
}

fn text(args: &[&str]) -> String {
    String::from_utf8(output(args).stdout).unwrap()
}

fn json(args: &[&str]) -> Value {
    let mut all = args.to_vec();
    all.extend(["--format", "json"]);
    serde_json::from_slice(&output(&all).stdout).unwrap()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn check_schema(results: &Value) {
    let path = root().join("docs/reference/results.schema.json");
    let schema = Schema::parse(&fs::read_to_string(path).unwrap());
    let faults = schema.faults(results);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// The schema knows every metric by name, with its unit.
#[test]
fn the_schema_refuses_a_metric_that_is_not_declared() {
    let path = root().join("docs/reference/results.schema.json");
    let schema = Schema::parse(&fs::read_to_string(path).unwrap());
    let mut results = json(&["run", "-w", "hogs,tasks=2", "-m", "2c", "--duration", "10ms"]);
    assert_eq!(schema.faults(&results), Vec::<String>::new());
    let metrics = &mut results["runs"][0]["metrics"];
    metrics["kicks"]["unit"] = Value::from("ns");
    metrics["cpux_busy"] = metrics["cpu0_busy"].clone();
    let faults = schema.faults(&results).join("\n");
    assert!(faults.contains("metrics.kicks.unit: enum [\"1\"]"), "{faults}");
    assert!(faults.contains("metrics: additionalProperties false"), "{faults}");
}

/// Returns the results with all wall times set to 0.
fn without_wall_time(mut results: Value) -> Value {
    for run in results["runs"].as_array_mut().unwrap() {
        run["wall_ns"] = Value::from(0);
    }
    results
}

#[test]
fn twenty_times_the_same_with_one_thread_and_with_many() {
    let run = |jobs: &str| {
        let args = [
            "run",
            "-s",
            "eevdf",
            "-s",
            "vtime",
            "-w",
            "hackbench,groups=1,loops=5",
            "-m",
            "2n4c2t",
            "-n",
            "3",
        ];
        let mut args = args.to_vec();
        args.extend(["-j", jobs]);
        without_wall_time(json(&args))
    };
    let first = run("1");
    for at in 0..10 {
        assert_eq!(run("1"), first, "one thread, {at}");
        assert_eq!(run("4"), first, "four threads, {at}");
    }
    let hashes: Vec<&str> = first["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| r["trace_hash"].as_str().unwrap())
        .collect();
    let mut different = hashes.clone();
    different.sort_unstable();
    different.dedup();
    assert_eq!(different.len(), 6, "each seed and scheduler has a trace of its own: {hashes:?}");
}

#[test]
fn results_fit_the_schema() {
    check_schema(&json(&["run", "-w", "hogs", "-m", "1n2c1t", "--duration", "50ms"]));
    let work =
        ["-w", "hogs,tasks=6,weights=100:300", "-m", "2n2c2t", "--duration", "50ms", "-n", "2"];
    let mut args = vec!["run", "-s", "eevdf", "-s", "vtime,slice_ns=1000000"];
    args.extend(work);
    let results = json(&args);
    check_schema(&results);
    assert_eq!(results["manifest"]["schedulers"][1]["object"]["knobs"]["slice_ns"], "1000000");
    let order: Vec<_> = results["runs"]
        .as_array()
        .unwrap()
        .iter()
        .map(|r| (r["scheduler"].as_str().unwrap().to_owned(), r["seed"].as_u64().unwrap()))
        .collect();
    let vtime = "vtime,slice_ns=1000000".to_owned();
    assert_eq!(order, [("eevdf".into(), 1), ("eevdf".into(), 2), (vtime.clone(), 1), (vtime, 2)]);
    assert!(results["runs"][0]["metrics"]["context_switches"]["value"].as_f64().unwrap() > 0.0);
    assert_eq!(results["runs"][0]["exit"]["kind"], "none");
}

/// A run has the kernel's counters of its scheduler's events. Without a scheduler there are none,
/// and an ejection leaves what was counted, with the time in bypass mode.
#[test]
fn events_of_a_scheduler_are_counted() {
    let ejected = "lapse,eject_after_ns=5000000,eject_permille=1000";
    let args = ["run", "-s", "eevdf", "-s", "vtime", "-s", ejected, "-w", "hogs", "-m", "2c"];
    let results = json(&[&args[..], &["--duration", "40ms"]].concat());
    let value = |run: usize, name: &str| {
        results["runs"][run]["metrics"][format!("scx_ev_{name}")]["value"].as_f64()
    };
    for name in ["dispatch_keep_last", "bypass_duration"] {
        assert_eq!(value(0, name), None, "{name}");
        assert!(value(1, name).is_some(), "{name}");
    }
    assert!(value(2, "bypass_activate") > Some(0.0), "{:?}", value(2, "bypass_activate"));
    assert_eq!(value(1, "sub_rescue"), None, "sub-schedulers are not modelled");
}

/// Ejected runs, tasks that never ran and an absent frontend are marked in the JSON results.
#[test]
fn what_goes_wrong_fits_the_schema() {
    let both = ["-s", "lapse,starve=104", "-s", "lapse,eject_after_ns=5000000,eject_permille=500"];
    let mut args = vec!["run", "-s", "relay", "-w", "hogs", "-m", "1n2c1t", "--duration", "40ms"];
    args.extend(both);
    args.extend(["-n", "6"]);
    let results = json(&args);
    check_schema(&results);
    let runs = results["runs"].as_array().unwrap();
    for run in runs {
        let ejected = run["exit"]["kind"] != "none";
        assert_eq!(run["counts"], !ejected, "{run}");
        assert_eq!(run["exit"]["at_ns"].is_u64(), ejected, "{run}");
        assert_eq!(run["exit"]["origin"].is_array(), ejected, "{run}");
        assert!(run["metrics"]["throughput"]["value"].is_f64(), "an ejected run has its figures");
        assert_eq!(run["left_out"].is_array(), run["scheduler"] == "relay", "{run}");
    }
    let starved = |run: &Value| run["never_ran"].as_array().map_or(0, Vec::len);
    // `lapse` starves tasks whose name begins with "h" (character code 104), as the hogs' names do.
    assert!(runs[6..12].iter().all(|run| starved(run) == 4), "{runs:?}");
    let gone = runs[12..].iter().filter(|run| run["counts"] == false).count();
    assert!((1..6).contains(&gone), "{gone} of 6");
    let comparisons = results["comparisons"].as_array().unwrap();
    let of = comparisons
        .iter()
        .find(|c| c["metric"] == "context_switches" && c["treated"]["scheduler"] == both[3]);
    let treated = &of.unwrap()["treated"];
    assert_eq!((&treated["runs"], &treated["n"]), (&Value::from(6), &Value::from(6 - gone)));
    let all = json(&[
        "run",
        "-s",
        "vtime",
        "-s",
        "lapse,eject_after_ns=1",
        "-w",
        "hogs",
        "-m",
        "1n1c1t",
        "--duration",
        "20ms",
        "-n",
        "2",
    ]);
    check_schema(&all);
    for c in all["comparisons"].as_array().unwrap() {
        assert_eq!(
            (&c["change"]["verdict"], &c["treated"]["mean"]),
            (&"no_runs".into(), &Value::Null)
        );
    }
}

#[test]
fn the_schema_is_no_formality() {
    let mut results = json(&["run", "-w", "hogs", "-m", "1n1c1t", "--duration", "5ms"]);
    results["runs"][0]["exit"]["kind"] = Value::from(1);
    results["runs"][0]["metrics"]["throughput"]["extra"] = Value::from(1);
    results["manifest"].as_object_mut().unwrap().remove("seed");
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/results.schema.json");
    let faults = Schema::parse(&fs::read_to_string(path).unwrap()).faults(&results);
    assert_eq!(faults.len(), 3, "{faults:?}");
}

#[test]
fn every_metric_is_described() {
    let results =
        json(&["run", "-s", "vtime", "-w", RT_APP, "-m", "2n1c2t", "--duration", "200ms"]);
    let page = fs::read_to_string(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/metrics.md"),
    )
    .unwrap();
    for name in results["runs"][0]["metrics"].as_object().unwrap().keys() {
        let declared = metric::find(name).unwrap_or_else(|| panic!("{name} is not declared"));
        assert!(page.contains(&format!("`{}`", declared.name)), "{name} ({})", declared.name);
    }
}

#[test]
fn an_rt_app_file_runs_and_its_trace_decodes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.pftrace");
    let trace = file.to_str().unwrap();
    let table = text(&[
        "run",
        "-s",
        "vtime",
        "-w",
        RT_APP,
        "-m",
        "2n4c2t",
        "--duration",
        "2s",
        "--trace",
        trace,
    ]);
    assert!(table.contains("throughput, loop/s") && table.contains("exit"), "{table}");
    assert!(trace::read(&file).packets > 10);
}

/// Checks the promises of docs/start/reading-a-trace.md, on the run that the page shows and on a
/// run with more events.
#[test]
fn a_trace_shows_what_its_page_promises() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.pftrace");
    let of = |scheduler: &str, workload: &str, duration: &str| {
        let trace = file.to_str().unwrap();
        let args = ["run", "-s", scheduler, "-w", workload, "-m", "1n4c2t", "--duration", duration];
        output(&[&args[..], &["--trace", trace]].concat());
        trace::read(&file)
    };
    for (scheduler, workload) in [("vtime", "schbench"), ("fair", "hackbench,groups=2")] {
        let seen = of(scheduler, workload, "200ms");
        assert_eq!(seen.cpus, (0..8).collect(), "{scheduler}: each CPU shows what runs");
        let tasks = |prefix: &str| seen.ran.iter().filter(|name| name.starts_with(prefix)).count();
        let names =
            if scheduler == "vtime" { ["message", "worker"] } else { ["sender", "receiver"] };
        names.iter().for_each(|name| assert!(tasks(name) > 0, "{name}: {:?}", seen.ran));
        assert!(
            seen.wakeups.iter().any(|(waker, woken)| *waker != 0 && woken.starts_with(names[1]))
        );
        let operations = seen.names(Type::TYPE_SLICE_BEGIN);
        for op in ["select_cpu", "enqueue", "dispatch", "running", "stopping"] {
            assert!(operations.contains(op), "{scheduler}: {op}: {operations:?}");
        }
        assert!(!operations.iter().any(|name| name.contains("unknown")), "{operations:?}");
        let mut instants = vec!["insert", "move"];
        // `vtime` kicks only if a waking task finds no idle CPU and a CPU becomes idle a moment
        // later, so only the trace of `fair` must have kicks.
        instants.extend((scheduler == "fair").then_some("kick"));
        for name in instants {
            let mut drawn = seen.named(Type::TYPE_INSTANT, name).peekable();
            assert!(drawn.peek().is_some(), "{scheduler}: {name}");
            assert!(drawn.all(|d| d.track.starts_with("sched_ext/CPU ")));
        }
        let queues =
            seen.named(Type::TYPE_INSTANT, "insert").map(|d| (&d.args["task"], &d.args["queue"]));
        assert!(queues.clone().any(|(_, queue)| queue.starts_with("local DSQ of CPU")));
        assert!(queues.clone().all(|(task, queue)| task.ends_with(']') && queue.contains("DSQ")));
        assert!(
            seen.drawn
                .iter()
                .any(|d| d.kind == Type::TYPE_COUNTER && d.track.starts_with("DSQs/DSQ 0x"))
        );
        let waits: Vec<_> = seen
            .drawn
            .iter()
            .filter(|d| d.track.ends_with(" locks") && !d.name.is_empty())
            .collect();
        let known = ["run queue of CPU ", "DSQ ", "local DSQ of CPU ", "lock in "];
        assert!(waits.iter().all(|d| known.iter().any(|k| d.name.starts_with(k))), "{waits:?}");
    }
    let left = of("lapse,eject_after_ns=20000000", "hogs", "100ms");
    let exits: Vec<_> = left.named(Type::TYPE_INSTANT, "scheduler exit").collect();
    assert_eq!(exits.len(), 1);
    assert!(exits[0].args["message"].contains("its time is over"), "{exits:?}");
}

/// Checks the statements of docs/start/first-run.md about the demo's table.
#[test]
fn the_demo_has_an_answer() {
    let workload = root().join("workloads/desktop-build.toml").display().to_string();
    let results = json(&[
        "run",
        "-s",
        "eevdf",
        "-s",
        "vtime",
        "-w",
        &workload,
        "-m",
        "laptop-4c8t",
        "-n",
        "5",
    ]);
    let comparisons = results["comparisons"].as_array().unwrap();
    let change = |metric: &str| {
        let found = comparisons.iter().find(|c| c["metric"] == metric).expect("a metric");
        assert_eq!(found["change"]["verdict"], "different", "{metric}");
        found["change"]["relative"].as_f64().unwrap()
    };
    assert!((0.02..0.15).contains(&change("throughput")));
    assert!((0.7..2.0).contains(&change("wakeup_latency_p99")));
    let run = &results["runs"][0];
    let busy_ns = run["metrics"]["cpu_busy"]["value"].as_f64().unwrap();
    let cpus = results["manifest"]["machine"]["nr_cpus"].as_f64().unwrap();
    let busy = busy_ns / (cpus * run["virtual_ns"].as_f64().unwrap());
    assert!((0.9..=1.0).contains(&busy), "{busy}");
}

/// Tracing does not change the run.
#[test]
fn tracing_does_not_disturb() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().to_str().unwrap();
    let args = [
        "run",
        "-s",
        "eevdf",
        "-s",
        "vtime",
        "-w",
        "pingpong",
        "-m",
        "1n2c2t",
        "--duration",
        "20ms",
        "-n",
        "2",
    ];
    let plain = without_wall_time(json(&args));
    let mut traced = args.to_vec();
    traced.extend(["-o", out]);
    assert_eq!(without_wall_time(json(&traced)), plain);
    let file = |name: &str| fs::read(folder.path().join(name)).unwrap();
    let written: Value = serde_json::from_slice(&file("results.json")).unwrap();
    assert_eq!(without_wall_time(written), plain);
    assert!(String::from_utf8(file("report.txt")).unwrap().contains("95 % interval"));
    for name in ["trace.eevdf.pftrace", "trace.vtime.pftrace"] {
        assert!(trace::read(&folder.path().join(name)).packets > 10, "{name}");
    }
}

#[test]
fn a_scheduler_differs_from_itself_in_nothing() {
    let results = json(&[
        "run",
        "-s",
        "vtime",
        "-s",
        "vtime",
        "-w",
        "schbench",
        "-m",
        "1n4c1t",
        "--duration",
        "30ms",
        "-n",
        "3",
    ]);
    let comparisons = results["comparisons"].as_array().unwrap();
    assert!(comparisons.len() > 20);
    assert!(comparisons.iter().all(|c| c["change"]["verdict"] == "equal"));
}

#[test]
fn verdicts_tell_an_effect_from_noise() {
    let results = json(&[
        "run",
        "-s",
        "vtime",
        "-s",
        "vtime,slice_ns=1000000",
        "-w",
        "hogs,tasks=8",
        "-m",
        "1n2c1t",
        "--duration",
        "500ms",
        "-n",
        "4",
    ]);
    let verdict = |metric: &str| {
        let comparisons = results["comparisons"].as_array().unwrap();
        let found = comparisons.iter().find(|c| c["metric"] == metric).unwrap();
        found["change"].clone()
    };
    // A fifth of the slice gives more switches, though not five times as many, because slices end
    // at ticks. The verdict must be that this difference is not noise.
    let switches = verdict("context_switches");
    assert_eq!(switches["verdict"], "different");
    assert!(switches["low"].as_f64().unwrap() > 0.5, "{switches}");
    // The busy time hardly changes, because the hogs saturate both CPUs with either slice.
    let busy = verdict("cpu_busy");
    assert!(busy["relative"].as_f64().unwrap().abs() < 0.02, "{busy}");
    let one = json(&[
        "run",
        "-s",
        "eevdf",
        "-s",
        "vtime",
        "-w",
        "hogs",
        "-m",
        "1n2c1t",
        "--duration",
        "20ms",
    ]);
    assert!(
        one["comparisons"].as_array().unwrap().iter().all(|c| c["change"]["verdict"] == "unknown")
    );
}

#[test]
fn what_a_scheduler_counts_is_in_its_results() {
    let workload = "sleepers,tasks=16,run=2ms,sleep=1ms";
    let both = ["-s", "credit,tickle=old", "-s", "credit,tickle=new"];
    let mut args = vec!["run", "-w", workload, "-m", "2n4c2t", "--duration", "500ms"];
    args.extend(both);
    let results = json(&args);
    check_schema(&results);
    let runs = results["runs"].as_array().unwrap();
    // Each waking task finds an idle CPU. With `tickle=new`, the scheduler then kicks ("tickles")
    // only idle CPUs; with `tickle=old`, it may also kick a busy CPU. So only `tickle=old` must
    // count preemptions.
    let preempted =
        |run: &Value| run["metrics"]["sched.tickle_preempt"]["value"].as_f64().expect("counted");
    assert!(preempted(&runs[0]) >= 1.0 && preempted(&runs[1]) == 0.0, "{runs:?}");
    let tasks = runs[0]["tasks"].as_array().unwrap();
    let vcpu = tasks.iter().find(|t| t["name"] == "sleeper-0").unwrap();
    let counters = vcpu["counters"].as_object().expect("credit counts for each task");
    assert!(!counters.is_empty(), "{vcpu}");
    let none = json(&["run", "-w", "hogs", "-m", "1n1c1t", "--duration", "5ms"]);
    let named = none["runs"][0]["metrics"].as_object().unwrap().keys();
    assert_eq!(
        named.filter(|n| n.starts_with("sched.")).count(),
        0,
        "the default class has no map"
    );
}

#[test]
fn a_gang_runs_together_where_the_scheduler_knows_gangs() {
    let workload = root().join("workloads/gang.toml").display().to_string();
    let both = ["-s", "fair", "-s", "fair,gang=v2"];
    let mut args = vec!["run", "-w", &workload, "-m", "1n8c1t", "--duration", "1s"];
    args.extend(both);
    let results = json(&args);
    check_schema(&results);
    let together = |run: &Value, path: &str| {
        let groups = run["cgroups"].as_array().unwrap();
        let group = groups.iter().find(|g| g["path"] == path).unwrap();
        group["coscheduled_permille"].as_f64().expect("measured")
    };
    let runs = results["runs"].as_array().unwrap();
    for path in ["/left", "/right"] {
        let (off, v2) = (together(&runs[0], path), together(&runs[1], path));
        assert!(off < 100.0 && v2 > 900.0, "{path}: {off} and {v2}");
    }
}

#[test]
fn seeds_are_noise_that_flags_turn_off() {
    let hashes = |extra: &[&str]| {
        let mut args =
            vec!["run", "-w", "sleepers,tasks=9", "-m", "1n2c1t", "--duration", "50ms", "-n", "3"];
        args.extend(extra);
        let results = json(&args);
        let values = |r: &Value| r["tasks"][0]["run_ns"].as_u64().unwrap();
        results["runs"].as_array().unwrap().iter().map(values).collect::<Vec<_>>()
    };
    let noisy = hashes(&[]);
    assert!(noisy[0] != noisy[1] || noisy[1] != noisy[2], "{noisy:?}");
    let first = hashes(&["--seed", "7"])[0];
    assert_eq!(hashes(&["--seed", "6"])[1], first, "run i has seed + i");
    let manifest = json(&[
        "run",
        "-w",
        "hogs",
        "-m",
        "1n1c1t",
        "--duration",
        "1ms",
        "--start-offset",
        "0ms",
        "--compute-noise",
        "2.5%",
    ]);
    assert_eq!(manifest["manifest"]["start_offset_max_ns"], 0);
    assert_eq!(manifest["manifest"]["compute_noise_permille"], 25);
}

/// A scheduler that is attached after half of the run has about half of the operations, and the
/// default class the time before. The manifest names both requests.
#[test]
fn a_scheduler_can_be_attached_later() {
    let run = |more: &[&str]| {
        let base =
            ["run", "-s", "vtime", "-w", "hogs,tasks=4", "-m", "1n2c1t", "--duration", "400ms"];
        json(&[&base[..], more].concat())
    };
    let calls = |results: &Value| {
        let value = &results["runs"][0]["metrics"]["op_enqueue_calls"]["value"];
        value.as_f64().unwrap_or_default()
    };
    let (early, late) = (run(&[]), run(&["--attach-after", "200ms", "--numa-balancing", "off"]));
    assert!(early["manifest"].get("attach_after_ns").is_none());
    assert_eq!(late["manifest"]["attach_after_ns"], 200_000_000);
    assert_eq!(late["manifest"]["numa_balancing"], "off");
    let (all, half) = (calls(&early), calls(&late));
    assert!(half > all * 0.3 && half < all * 0.7, "{half} of {all}");
}

#[test]
fn a_closed_pipe_is_no_failure() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let out = scxlab(&["list", "machines"]).stdout(writer).stderr(Stdio::piped()).output().unwrap();
    assert_eq!(out.status.code(), Some(0));
    assert_eq!(String::from_utf8_lossy(&out.stderr), "");
}

/// A reader that has gone ends the printing, and neither the writing of files nor the verdict.
#[test]
fn a_closed_pipe_changes_neither_files_nor_exit_code() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let run = |args: &[&str], closes_errors: bool| {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut command = scxlab(args);
        if closes_errors {
            command.stderr(writer.try_clone().unwrap());
        }
        command.stdout(writer).status().unwrap().code()
    };
    for closes_errors in [false, true] {
        let good = ["run", "-s", "vtime", "-w", "hogs,tasks=2", "-m", "2c", "--duration", "10ms"];
        let paged = [&good[..], &["--report", page.to_str().unwrap()]].concat();
        assert_eq!(run(&paged, closes_errors), Some(0));
        assert!(fs::remove_file(&page).is_ok(), "the page is written");
        let bad = ["run", "-s", "vtime", "-w", "no-such-workload", "-m", "2c"];
        assert_eq!(run(&bad, closes_errors), Some(2));
    }
}

/// A recording and a workload file may come through a pipe, as from a shell's `<(...)`.
#[test]
fn a_pipe_is_a_file() {
    let switch = |ns: u32, prev: &str, pid: u32, next: &str, next_pid: u32| {
        format!(
            "{prev} {pid}/{pid} [000] 1.{ns:09}: sched:sched_switch: prev_comm={prev} prev_pid={pid} \
             prev_prio=120 prev_state=S ==> next_comm={next} next_pid={next_pid} next_prio=120\n"
        )
    };
    let recording: String = (0..20)
        .map(|i| {
            let at = i * 1_000_000;
            switch(at, "swapper", 0, "task", 9) + &switch(at + 500_000, "task", 9, "swapper", 0)
        })
        .collect();
    let workload = "duration = '10ms'\n[[thread]]\nname = 'task'\nops = [{ compute = '1ms' }]\n";
    for text in [&recording[..], workload] {
        let mut command = scxlab(&["run", "-w", "/dev/stdin", "-m", "1n1c1t", "--format", "json"]);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("started");
        std::io::Write::write_all(&mut child.stdin.take().unwrap(), text.as_bytes()).unwrap();
        let out = child.wait_with_output().unwrap();
        assert_eq!(out.status.code(), Some(0));
        let results: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(results["runs"][0]["tasks"][0]["name"], "task");
    }
}

#[test]
fn lists_name_what_is_shipped() {
    let schedulers = text(&["list", "schedulers"]);
    assert!(
        schedulers.contains("eevdf")
            && schedulers.contains("vtime")
            && schedulers.contains("bpfland")
    );
    assert!(text(&["list", "machines"]).contains("x3650m2"));
    assert!(text(&["list", "workloads"]).contains("groups=10"));
}

#[test]
fn inspect_shows_needs_and_knobs() {
    let short = text(&["inspect", "vtime"]);
    let knob = short.lines().find(|line| line.trim_start().starts_with("slice_ns"));
    assert!(knob.is_some_and(|line| line.contains("u64") && line.contains("5000000")), "{short}");
    assert!(short.contains("callbacks: select_cpu enqueue"), "{short}");
    assert!(short.contains("Nothing that it needs is missing."), "{short}");
    assert!(text(&["inspect", "vtime", "--all"]).contains("scx_bpf_create_dsq  function  strong"));
}

#[test]
fn completions_and_man_pages_are_made() {
    assert!(text(&["completions", "bash"]).contains("_scxlab"));
    assert!(text(&["completions", "fish"]).contains("SCXLAB_COMPLETE=fish"));
    // A shell's completion script sets SCXLAB_COMPLETE when it asks for candidates.
    let mut asked = scxlab(&["--", "scxlab", "run", "--fail"]);
    let offered = asked.env("SCXLAB_COMPLETE", "fish").output().unwrap().stdout;
    assert!(String::from_utf8(offered).unwrap().starts_with("--fail-on-exit\t"));
    assert!(text(&["man"]).contains(".TH scxlab 1"));
    let folder = tempfile::tempdir().unwrap();
    text(&["man", "-o", folder.path().to_str().unwrap()]);
    let page = fs::read_to_string(folder.path().join("scxlab-run.1")).unwrap();
    assert!(page.contains("compute\\-noise"), "{page}");
}

#[test]
fn topo_shows_the_tree() {
    let tree = text(&["topo", "2n2c2t"]);
    for line in [
        "node 1  CPUs 4-7  memory 64 GiB",
        "    core 3  CPUs 6-7  L1d 32 KiB, L2 1 MiB",
        "     0   10   20",
    ] {
        assert!(tree.lines().any(|l| l == line), "{line} in\n{tree}");
    }
}

/// A deadlock is detected at once. If a duration is given, the run still has that length.
#[test]
fn a_deadlock_is_told_from_idleness() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("w.json");
    let locks =
        |a: &str, b: &str| format!(r#"{{ "lock0": "{a}", "sleep": 3000, "lock1": "{b}" }}"#);
    fs::write(
        &file,
        format!(r#"{{ "tasks": {{ "a": {}, "b": {} }} }}"#, locks("m", "n"), locks("n", "m")),
    )
    .unwrap();
    let run = |extra: &[&str]| {
        let mut args = vec!["run", "-w", file.to_str().unwrap(), "-m", "1n2c1t"];
        args.extend(extra);
        json(&args)["runs"][0].clone()
    };
    let short = run(&[]);
    assert_eq!(short["stop"]["kind"], "deadlock");
    assert!(short["stop"]["message"].as_str().unwrap().contains("a-0"), "{}", short["stop"]);
    assert!(short["virtual_ns"].as_u64().unwrap() < 10_000_000);
    let long = run(&["--duration", "50ms"]);
    assert_eq!(
        (&long["stop"]["kind"], &long["virtual_ns"]),
        (&Value::from("deadlock"), &Value::from(50_000_000))
    );
    assert_eq!(long["metrics"]["cpu_busy"], short["metrics"]["cpu_busy"]);
}

/// The JSON is the machine's canonical form, from which the fingerprint in every manifest is made.
#[test]
fn topo_as_json_is_the_machine() {
    let machine: Value =
        serde_json::from_str(&text(&["topo", "2n4c2t", "--format", "json"])).unwrap();
    assert_eq!(machine["topology"]["cpus"].as_array().unwrap().len(), 16);
    let costs = text(&["topo", "2n4c2t", "--costs"]);
    assert!(costs.contains("workload.pipe_rw") && costs.contains("estimate:"), "{costs}");
    let rows = "memory latency, ns; row: node of the CPU, column: node of the memory\n             \
                0       1\n     0      90     153\n     1     153      90\n";
    assert!(costs.contains(rows), "{costs}");
    assert!(costs.contains("     0       -   45000\n"), "{costs}");
}

#[test]
fn a_target_given_twice_counts_once() {
    let args = ["run", "-s", "eevdf", "-w", "hogs,tasks=1", "-m", "2c", "--duration", "1ms"];
    let once = json(&args);
    let twice = json(&[&args[..], &["--on", "sim", "--on", "sim"]].concat());
    assert_eq!(twice["manifest"]["targets"], serde_json::json!(["sim"]));
    assert_eq!(once["runs"][0]["trace_hash"], twice["runs"][0]["trace_hash"]);
    text(&[&args[..], &["--on", "sim", "--on", "sim"]].concat());
}

/// How much of a recording's load there is can be said behind its name or by options.
#[test]
fn a_recording_is_scaled_and_repeated_by_options() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("t.pftrace");
    let file = file.to_str().unwrap();
    output(&["run", "-w", "schbench", "-m", "2c", "--duration", "50ms", "--trace", file]);
    let shown = |name: &str, more: &[&str]| text(&[&["workload", "show", name], more].concat());
    let by_name = shown(&format!("{file},scale=2,repeat=3"), &["--toml"]);
    assert_eq!(shown(file, &["--scale", "2x", "--repeat", "3", "--toml"]), by_name);
    assert_ne!(shown(file, &["--repeat", "3", "--toml"]), by_name);
    assert_ne!(shown(file, &["--scale", "2", "--toml"]), by_name);
    let results = json(&["run", "-w", file, "--scale", "2x", "-m", file]);
    assert_eq!(results["manifest"]["workload"]["workload"], format!("{file},scale=2x"));
}

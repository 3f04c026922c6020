// SPDX-License-Identifier: GPL-2.0-only
//! Tests on real kernels: `scxlab run --on vm`, `attach` and `conform` in emulated virtual
//! machines.
//!
//! Owns: tests that need a kernel that boots. Does not: test crates directly; every test runs the
//! command.
//! The tests are skipped, with a message, if QEMU or a kernel is not available. `bench.rs` finds
//! both.

mod attach;
mod bench;
mod benchmarks;
mod conform;
mod conserve;
mod ejections;
mod guests;
mod install;
mod memory;
mod placement;
mod record;
mod refusals;
#[path = "../end_to_end/schema.rs"]
mod schema;
mod shipped;
mod soak;
mod trace;

use bench::{Bench, metric, scxlab};

/// Two nodes with eight CPUs in all.
const MACHINE: &str = "2n4c1t";
/// A workload in rt-app's grammar. It ends by itself, so the amount of work does not depend on the
/// host's speed.
const RT_APP: &str = r#"{
    "global": { "default_policy": "SCHED_OTHER" },
    "tasks": {
        "frame": { "instance": 2, "loop": 20, "run": 300, "timer": { "ref": "vsync", "period": 4000 } },
        "worker": { "loop": 15, "run": 1000, "sleep": 2000 },
        "render": { "loop": 10, "phases": { "a": { "run": 500 }, "b": { "sleep": 1000 } } }
    }
}"#;
const RT_APP_THREADS: usize = 4;

/// Stressors of stress-ng, with the minimum number of operations of all workers of a kind.
const STRESSORS: [(&str, u32); 5] =
    [("cpu", 20), ("switch", 1000), ("futex", 1000), ("fork", 30), ("affinity", 300)];

#[test]
fn external_commands_run_to_their_end_under_vtime() {
    let Some(bench) = Bench::new() else { return };
    let mut stress = "/usr/bin/stress-ng --timeout 60 --metrics-brief".to_owned();
    for (name, ops) in STRESSORS {
        stress.push_str(&format!(" --{name} 2 --{name}-ops {ops}"));
    }
    let script = format!(
        "set -e; exec >/dev/console 2>&1
         /usr/bin/hackbench --groups 2 --loops 50
         {stress}
         for i in 1 2 3 4 5 6 7 8 9 10; do
             /bin/mkdir /sys/fs/cgroup/churn$i
             (echo 0 >/sys/fs/cgroup/churn$i/cgroup.procs; read group </proc/self/cgroup; echo in $group)
             /bin/rmdir /sys/fs/cgroup/churn$i
         done"
    );
    let programs = ["hackbench", "stress-ng", "/bin/mkdir", "/bin/rmdir"];
    let done = bench.script(&["-s", "vtime", "-m", MACHINE], &script, &programs);
    let run = &done.runs()[0];
    assert_eq!(run["target"], "vm");
    assert_eq!(run["exit"]["kind"], "none", "{run}");
    assert_eq!(run["stop"]["kind"], "all_exited", "{run}");
    // A failed command is no unit of work, and a note reports it.
    assert_eq!(metric(run, "work_units"), 1.0, "{}", run["notes"]);
    for name in ["wakeups", "wakeup_latency_p50", "op_select_cpu_calls", "op_enqueue_calls"] {
        assert!(metric(run, name) > 0.0, "{name}");
    }
    done.says("Time: ");
    for (name, ops) in STRESSORS {
        let said = |line: &&str| line.contains("metrc:") && line.contains(&format!(" {name} "));
        let line = done.console.lines().find(said).unwrap_or_else(|| panic!("{name}: {done}"));
        let mut words = line.split_whitespace().skip_while(|word| *word != name).skip(1);
        let count: u32 = words.next().and_then(|w| w.parse().ok()).unwrap_or(0);
        assert!(count >= ops, "{name}: {line}");
    }
    done.says("in 0::/churn10");
    done.says("BPF scheduler \"vtime\" enabled");
    done.says("BPF scheduler \"vtime\" disabled (unregistered from user space)");
    assert!(!done.console.contains("stall"), "{done}");
}

/// With `--attach-after`, the default class has the tasks first. A scheduler that would come after
/// the end is an error.
#[test]
fn a_scheduler_can_be_attached_to_a_running_workload() {
    let Some(bench) = Bench::new() else { return };
    let args = ["-s", "vtime", "-w", "hogs,tasks=4", "-m", "1n2c1t", "--duration", "3s"];
    let done = bench.run(&[&args[..], &["--attach-after", "1s"]].concat());
    let run = &done.runs()[0];
    assert_eq!(run["exit"]["kind"], "none", "{run}");
    assert_eq!(run["stop"]["kind"], "duration", "{run}");
    assert!(metric(run, "op_enqueue_calls") > 0.0, "{run}");
    done.says("BPF scheduler \"vtime\" enabled");
    let late = [&["run"][..], &args, &["--attach-after", "60s"]].concat();
    let done = bench.output(bench.command(&late).args(["--on", "vm"]));
    assert_eq!(done.code, Some(3), "{done}");
    assert!(done.stderr.contains("was not attached: the workload ended before"), "{done}");
}

/// All runs take place in one boot, so each scheduler after the first can be attached only if the
/// previous one has left.
#[test]
fn an_rt_app_file_runs_under_one_scheduler_after_another() {
    let Some(bench) = Bench::new() else { return };
    let schedulers = ["vtime", "eevdf", "vtime,slice_ns=1000000"];
    let file = bench.file("app.json", RT_APP);
    let simulated =
        bench.output(&mut scxlab(&["run", "-w", &file, "-m", MACHINE, "--format", "json"]));
    let work = metric(&simulated.runs()[0], "work_units");
    let mut args = vec!["-w", &file, "-m", MACHINE, "-n", "2"];
    args.extend(schedulers.iter().flat_map(|name| ["-s", *name]));
    let done = bench.run(&args);
    let runs = done.runs();
    let of: Vec<_> = runs.iter().map(|r| (r["scheduler"].as_str(), r["seed"].as_u64())).collect();
    let wanted =
        schedulers.iter().flat_map(|name| [(Some(*name), Some(1)), (Some(*name), Some(2))]);
    assert_eq!(of, wanted.collect::<Vec<_>>());
    for run in &runs {
        let name = &run["scheduler"];
        assert_eq!(run["exit"]["kind"], "none", "{run}");
        assert_eq!(run["stop"]["kind"], "all_exited", "{run}");
        assert_eq!(metric(run, "work_units"), work, "{name}");
        for measured in ["wakeups", "wakeup_latency_p50"] {
            assert!(metric(run, measured) > 0.0, "{name}: {measured}");
        }
        let called = run["metrics"].get("op_enqueue_calls").is_some();
        assert_eq!(called, name != "eevdf", "{name} has operations, the default class has none");
        let tasks = run["tasks"].as_array().unwrap();
        let ran = |task: &&serde_json::Value| task["run_ns"].as_u64() > Some(0);
        assert_eq!(tasks.iter().filter(ran).count(), RT_APP_THREADS, "{name}: {tasks:?}");
    }
    assert_eq!(
        done.console.matches("disabled (unregistered from user space)").count(),
        4,
        "{done}"
    );
}

/// A script in `/tmp` of the host is there in the guest, whose `/tmp` anybody may write to.
#[test]
fn tmp_has_the_host_s_programs_and_is_anybody_s() {
    let Some(bench) = Bench::new() else { return };
    let script = bench.file("script", "#!/bin/sh\necho somebody wrote >$TMPDIR/file\n");
    let line =
        format!("setpriv --reuid 1000 --clear-groups {script} && cat $TMPDIR/file >/dev/console");
    let programs = ["setpriv", "cat", &script];
    bench.script(&["-s", "eevdf", "-m", "1n1c1t"], &line, &programs).says("somebody wrote");
}

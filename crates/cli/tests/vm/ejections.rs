// SPDX-License-Identifier: GPL-2.0-only
//! Tests of schedulers that exit: the kind, code and reason of the exit are the same in the
//! simulator and on a real kernel.

use serde_json::Value;

use crate::bench::{Bench, metric, object};

/// A workload whose threads all end by themselves; a stalled thread ends once its scheduler is
/// gone. Sleepers wake up on idle and on busy CPUs.
const WORKLOAD: &str = r#"
[[thread]]
name = "lost"
ops = [{ sleep = "50ms" }, { set_nice = 5 }, { sleep = "100ms" }, { compute = "50us" }]

[[thread]]
name = "work"
instances = 6
ops = [{ loop = { times = 20, ops = [{ compute = "1ms" }, { sleep = "2ms" }] } }]
"#;

struct Leaver {
    scheduler: String,
    kind: &'static str,
    code: i64,
    says: &'static str,
}

fn leavers(bench: &Bench) -> Vec<Leaver> {
    let tracer = scxlab_sched::selftests().iter().find(|s| s.name == "tracer").unwrap();
    let tracer = bench.file("tracer.bpf.o", tracer.object);
    let mut all = vec![Leaver {
        // The tracer loses tasks whose names begin with "l" (character code 108) once their nice
        // value has changed.
        scheduler: format!("{tracer},drop=108,idle_pick=0"),
        kind: "error_stall",
        code: 0,
        says: "lost[",
    }];
    for (name, says) in [
        ("select_cpu_dispatch_bad_dsq", "0xcafef00d"),
        ("select_cpu_dispatch_dbl_dsp", "already direct-dispatched"),
        ("ddsp_bogus_dsq_fail", "0xcafef00d"),
        ("ddsp_vtimelocal_fail", "vtime"),
        ("enq_last_no_enq_fails", "SCX_OPS_ENQ_LAST"),
    ] {
        all.push(Leaver { scheduler: object(name), kind: "error", code: 0, says });
    }
    // The kernel's selftest scheduler `exit` exits in the operation that `exit_point` selects:
    // select_cpu, enqueue, dispatch, enable, init_task or init.
    for (point, says) in ["0", "1", "2", "3", "4", "5"].into_iter().enumerate() {
        let scheduler = format!("{},exit_point={point}", object("exit"));
        all.push(Leaver { scheduler, kind: "unreg_bpf", code: point as i64, says });
    }
    all
}

#[test]
fn ejections_have_the_simulated_kind_and_code() {
    let Some(bench) = Bench::new() else { return };
    let workload = bench.file("w.toml", WORKLOAD);
    let leavers = leavers(&bench);
    let mut args = vec!["--on", "sim", "-w", &workload, "-m", "1n4c1t"];
    args.extend(leavers.iter().flat_map(|l| ["-s", &l.scheduler]));
    let done = bench.run(&args);
    let runs = done.runs();
    for target in ["sim", "vm"] {
        let of: Vec<&Value> = runs.iter().filter(|r| r["target"] == target).collect();
        assert_eq!(of.len(), leavers.len(), "{target}");
        for (leaver, run) in leavers.iter().zip(of) {
            let Leaver { scheduler, kind, code, says } = leaver;
            let exit = &run["exit"];
            let about = format!("{target}: {scheduler}: {exit}");
            assert_eq!(run["scheduler"], scheduler.as_str(), "{about}");
            assert_eq!(
                (exit["kind"].as_str(), exit["code"].as_i64()),
                (Some(*kind), Some(*code)),
                "{about}"
            );
            assert!(exit["message"].as_str().is_some_and(|m| m.contains(says)), "{about}");
            assert!(exit["at_ns"].is_u64() && run["counts"] == false, "{about}");
            // The watchdog reports a stall once the lost task has waited for 3 s since its wake-up.
            // It checks every 1.5 s.
            if *kind == "error_stall" {
                assert!(exit["at_ns"].as_u64() >= Some(3_000_000_000), "{about}");
            }
            assert_eq!(run["stop"]["kind"], "all_exited", "{about}");
            // The workload goes on after the exit. It has 121 wake-ups on an idle host, and fewer
            // on a busy host, where the time of a sleep may be over before the task has gone to
            // sleep. The test requires more than 20.
            assert!(metric(run, "wakeups") > 20.0, "{about}: the workload went on");
        }
    }
    done.says("disabled (runnable task stall)");
    let results = done.results();
    for kind in ["comparisons", "agreements"] {
        for one in results[kind].as_array().unwrap() {
            let verdict = one["change"]["verdict"].as_str();
            assert_eq!(verdict, Some("no_runs"), "{one}");
        }
    }
}

/// On both kernels, two tasks are woken up and wait until the measurement is over. Their waits
/// count up to that time, though the waits end later or never, and the scheduler is not ejected.
#[test]
fn starvation_shows_on_both_kernels() {
    let Some(bench) = Bench::new() else { return };
    let workload = bench.file(
        "w.toml",
        "[[thread]]\nname = 'victim'\ninstances = 2\nops = [{ sleep = '300ms' }, { compute = '1ms' }]\n\
         [[thread]]\nname = 'fed'\n\
         ops = [{ loop = { ops = [{ compute = '1ms' }, { sleep = '1ms' }] } }]",
    );
    let lapse = scxlab_sched::find("lapse").unwrap();
    let lapse = bench.file("lapse.bpf.o", lapse.object);
    let starving = format!("{lapse},starve=118,woken=1,release_after_ns=15000000000");
    // With the guest's time counted in instructions, neither wait depends on how fast the host is:
    // on a busy host, a late wake-up would leave too little of the run for the wait.
    let common = ["--on", "sim", "--accel", "counted", "-m", "1c", "--duration", "2s"];
    let done =
        bench.run(&[&common[..], &["-s", &lapse, "-s", &starving, "-w", &workload]].concat());
    for run in done.runs() {
        let about = format!("{}: {}, {}", run["target"], run["scheduler"], run["exit"]);
        assert_eq!(
            (&run["exit"]["kind"], &run["counts"]),
            (&"none".into(), &true.into()),
            "{about}"
        );
        let starves = run["scheduler"] == starving.as_str();
        for name in ["run_queue_wait_max", "wakeup_latency_max"] {
            let wait = metric(&run, name) / 1e9;
            assert!(if starves { wait > 1.2 } else { wait < 1.2 }, "{about}: {name} {wait} s");
        }
        let victims = run["tasks"].as_array().unwrap().iter();
        let waits = victims.filter(|t| t["name"].as_str().unwrap().starts_with("victim"));
        let waits: Vec<f64> = waits.map(|t| t["wait_ns"].as_f64().unwrap() / 1e9).collect();
        assert_eq!(waits.len(), 2, "{about}");
        assert!(!starves || waits.iter().all(|wait| *wait > 1.2), "{about}: {waits:?}");
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! Every shipped scheduler under a mixed load: forks, switches, messages, affinities, cgroups that
//! come and go, weights, CPU hotplug. No task may stall, and each scheduler must exit cleanly,
//! because otherwise the next scheduler cannot be attached.
//!
//! `make thorough` runs each scheduler's default and its richest combination of knobs for some
//! seconds. `make soak` runs every mode for a minute, or for SOAK_SECONDS. SOAK_SCHEDULERS selects
//! schedulers.

use crate::MACHINE;
use crate::bench::{Bench, metric};

/// Schedulers that exit on CPU hotplug, by design. `main.rs` runs them under a mixed load without
/// hotplug.
const WITHOUT_HOTPLUG: &[&str] = &["vtime"];

/// Each scheduler with its default knobs, and with its richest combination of knobs. Every shipped
/// scheduler that is not in `WITHOUT_HOTPLUG` must be listed here.
const BRIEF: &[&str] = &[
    "goodness",
    "goodness,mode=hamq",
    "o1",
    "o1,mode=mqo1",
    "credit",
    "credit,tickle=old",
    "fair",
    "fair,load=pelt,gang=v2,numa=consolidate+load",
];

/// Further combinations of knobs. Together with `BRIEF`, they cover every mode and every pair of
/// knobs that interact.
const MORE: &[&str] = &[
    "goodness,mode=2.4",
    "credit,tickle_one_idle=0",
    "credit,tickle=old,tickle_one_idle=0",
    "fair,load=pelt",
    "fair,gang=v1",
    "fair,gang=v2",
    "fair,gang=v2,gang_domain=core",
    "fair,gang=v2,gang_domain=llc",
    "fair,gang=v2,gang_domain=all",
    "fair,numa=consolidate",
    "fair,load=pelt,gang=v1",
    "fair,load=pelt,gang=v2",
    "fair,load=pelt,numa=consolidate",
    "fair,load=pelt,numa=consolidate+load",
    "fair,load=pelt,numa=consolidate+faults",
    "fair,gang=v2,numa=consolidate",
    "fair,load=pelt,gang=v1,numa=consolidate",
];

/// Maximum number of instructions that the verifier may process for one program; the kernel's limit
/// is a million.
const VERIFIER_BUDGET: f64 = 500_000.0;

/// Returns a script that runs the whole load in a guest for `seconds`. Some cgroups are gangs, for
/// schedulers that know gangs.
fn script(seconds: u64) -> String {
    format!(
        "exec >/dev/console 2>&1
         cpus=/sys/devices/system/cpu; cg=/sys/fs/cgroup
         echo +cpu >$cg/cgroup.subtree_control
         churn() {{
             n=0
             while [ -e /churning ]; do
                 n=$((n + 1)); g=$cg/churn$((n % 4))
                 /bin/mkdir -p $g/below
                 case $((n % 3)) in 0) /init gang on $g;; 1) /init gang off $g;; esac
                 (echo 0 >$g/cgroup.procs; /usr/bin/hackbench --groups 1 --fds 4 --loops 5 >/dev/null)
                 echo $((n * 37 % 1000 + 1)) >$g/cpu.weight
                 /bin/rmdir $g/below $g
                 echo 0 >$cpus/cpu3/online; echo 0 >$cpus/cpu6/online
                 echo 1 >$cpus/cpu3/online; echo 1 >$cpus/cpu6/online
             done
         }}
         : >/churning
         churn & churn=$!
         /usr/bin/stress-ng --timeout {seconds} --cpu 2 --switch 1 --futex 1 --fork 1 --affinity 1 --yield 1
         echo stress-ng: $?
         /bin/rm /churning; wait $churn
         read online <$cpus/online; echo online $online"
    )
}

/// Runs schedulers that consolidate tasks on nodes on a machine with four nodes of two CPUs, and
/// all other schedulers on a machine with two nodes of four CPUs. An emulated guest keeps one CPU
/// of the host busy, so two guests at a time share the work.
fn soak(schedulers: &[&str], seconds: u64) {
    let (numa, others): (Vec<&str>, Vec<&str>) =
        schedulers.iter().partition(|scheduler| scheduler.contains("numa="));
    let half = (schedulers.len() / 2).min(others.len());
    let (first, second) = others.split_at(half);
    std::thread::scope(|threads| {
        threads.spawn(|| soak_on(MACHINE, first, seconds));
        soak_on(MACHINE, second, seconds);
        soak_on("4n2c1t", &numa, seconds);
    });
}

fn soak_on(machine: &str, schedulers: &[&str], seconds: u64) {
    if schedulers.is_empty() {
        return;
    }
    let Some(bench) = Bench::new() else { return };
    let programs = ["hackbench", "stress-ng", "/bin/mkdir", "/bin/rmdir", "/bin/rm"];
    // Allow for the time after the load, because ending the load takes long in an emulated machine.
    let patience = format!("{}s", seconds * 4 + 60);
    let mut args = vec!["-m", machine, "--duration", &patience];
    args.extend(schedulers.iter().flat_map(|name| ["-s", *name]));
    let done = bench.script(&args, &script(seconds), &programs);
    let runs = done.runs();
    assert_eq!(runs.len(), schedulers.len());
    let mut table = String::new();
    for (run, scheduler) in runs.iter().zip(schedulers) {
        assert_eq!(run["scheduler"], *scheduler);
        assert_eq!(run["exit"]["kind"], "none", "{run}");
        assert_eq!(run["stop"]["kind"], "all_exited", "{run}");
        assert_eq!(metric(run, "work_units"), 1.0, "{scheduler}: {}", run["notes"]);
        let (largest, all) = (metric(run, "verifier_insns_max"), metric(run, "verifier_insns"));
        assert!(largest < VERIFIER_BUDGET, "{scheduler}: the verifier took {largest} instructions");
        let time = |op: &str| {
            let mean = run["metrics"].get(format!("op_{op}_mean"));
            mean.and_then(|m| m["value"].as_f64()).map_or("-".into(), |ns| format!("{ns:.0}"))
        };
        table.push_str(&format!(
            "{scheduler:<46} {largest:>8} {all:>8} {:>8} {:>8} {:>8}\n",
            time("select_cpu"),
            time("enqueue"),
            time("dispatch")
        ));
    }
    assert_eq!(done.console.matches("stress-ng: 0").count(), runs.len(), "{done}");
    assert_eq!(done.console.matches("online 0-7").count(), runs.len(), "{done}");
    assert!(!done.console.contains("stall"), "{done}");
    // Write to stderr directly, because println! is not shown when a test passes.
    let head = "verifier instructions: largest program, all; mean ns (emulated): select_cpu, enqueue, dispatch";
    let _ =
        std::io::Write::write_all(&mut std::io::stderr(), format!("{head}\n{table}").as_bytes());
}

#[test]
fn every_shipped_scheduler_is_soaked() {
    let named = |s: &&str| s.split(',').next().unwrap_or_default().to_owned();
    for shipped in scxlab_sched::shipped() {
        let here = BRIEF.iter().any(|s| named(s) == shipped.name);
        let spared = WITHOUT_HOTPLUG.contains(&shipped.name);
        assert!(spared || here, "{} is not soaked", shipped.name);
    }
}

#[test]
#[ignore = "long"]
fn every_shipped_scheduler_endures() {
    let seconds = std::env::var("SOAK_SECONDS").ok().map(|s| s.parse().expect("SOAK_SECONDS"));
    // SOAK_SCHEDULERS names schedulers, separated by spaces. It helps to search for the cause of a
    // failure.
    let named = std::env::var("SOAK_SCHEDULERS").unwrap_or_default();
    let chosen: Vec<&str> = named.split_whitespace().collect();
    let more = if seconds.is_some() { MORE } else { &[] };
    let all = [BRIEF, more].concat();
    soak(if chosen.is_empty() { &all } else { &chosen }, seconds.unwrap_or(10));
}

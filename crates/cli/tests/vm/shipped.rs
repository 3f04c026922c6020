// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the shipped schedulers on a real kernel: the CPU shares of cgroups and nice values, the
//! same operations as in the simulator, and hostile settings of cgroups.

use std::fmt::Write;

use serde_json::Value;

use crate::MACHINE;
use crate::bench::{Bench, Done};

/// Returns the CPU time of one of a run's cgroups, as a share of the CPU time of all cgroups below
/// the root.
fn share(run: &Value, path: &str) -> f64 {
    let groups = run["cgroups"].as_array().unwrap();
    let of = |g: &Value| g["run_ns"].as_f64().unwrap();
    let all: f64 = groups.iter().filter(|g| g["path"] != "/").map(of).sum();
    let one = groups.iter().find(|g| g["path"] == path);
    one.map_or(0.0, of) / all
}

fn named(run: &Value) -> String {
    format!("{} on {}", run["scheduler"], run["target"])
}

/// Returns a workload of two hogs on one CPU for three seconds, each in a cgroup. The tuples hold
/// path, cgroup settings and thread settings.
fn two_hogs(cgroups: [(&str, &str, &str); 2]) -> String {
    let mut text = String::from("duration = \"3s\"\n");
    for (path, cgroup, thread) in cgroups {
        let name = &path[1..];
        write!(
            text,
            "[[cgroup]]\npath = \"{path}\"\n{cgroup}\n\
             [[thread]]\nname = \"{name}\"\ncgroup = \"{path}\"\n{thread}\n{HOG}"
        )
        .unwrap();
    }
    text
}

/// Tests weights of cgroups for schedulers that know cgroups, and two nice values for the other
/// schedulers. The share of a nice value follows from each scheduler's own rule, so the simulator
/// gives the expected share. The guest's clock counts instructions, so it does not depend on other
/// load of the host.
#[test]
fn shares_are_as_the_weights_say() {
    let Some(bench) = Bench::new() else { return };
    let text = two_hogs([("/one", "weight = 100", ""), ("/three", "weight = 300", "")]);
    let weights = bench.file("weights.toml", text);
    // Slices are long, because a switch takes long in an emulated kernel and its time belongs to no
    // task.
    let fair = "fair,sched_latency_ns=50000000";
    let pelt = format!("{fair},load=pelt");
    let common = ["--on", "sim", "--accel", "counted", "-m", "1c"];
    let args = ["-w", &weights, "-s", "credit", "-s", fair, "-s", &pelt];
    let done = bench.run(&[&common[..], &args].concat());
    for run in done.runs() {
        let three = share(&run, "/three");
        assert!((three - 0.75).abs() < 0.75 * 0.05, "{}: {three} instead of 0.75", named(&run));
    }

    let nice = two_hogs([("/plain", "", ""), ("/nice", "", "nice = 15")]);
    let nice = bench.file("nice.toml", nice);
    let schedulers = ["goodness", "goodness,mode=hamq", "goodness,mode=2.4", "o1", "o1,mode=mqo1"];
    let mut args = [&common[..], &["-w", &nice]].concat();
    args.extend(schedulers.iter().flat_map(|s| ["-s", *s]));
    let runs = bench.run(&args).runs();
    for scheduler in schedulers {
        let of = |target: &str| {
            let is = |r: &&Value| r["scheduler"] == scheduler && r["target"] == target;
            share(runs.iter().find(is).unwrap(), "/plain")
        };
        let (sim, vm) = (of("sim"), of("vm"));
        assert!(sim > 0.55, "{scheduler}: a nice value that changes nothing: {sim}");
        assert!((vm - sim).abs() < sim * 0.05, "{scheduler}: simulated {sim}, real {vm}");
    }
}

const HOG: &str = "ops = [{ loop = { ops = [{ compute = \"1ms\" }] } }]\n";

/// Conformance cases that do not need the tracer's knobs. They are few, because loading a large
/// scheduler takes seconds in an emulated kernel.
const CASES: &[&str] = &["cgroup_move", "fork", "wake_sync"];

#[test]
fn every_shipped_scheduler_is_called_as_simulated() {
    let Some(bench) = Bench::new() else { return };
    let mut args = vec!["conform", "--accel", "counted", "--tries", "4"];
    args.extend(CASES);
    let shipped = scxlab_sched::shipped();
    args.extend(shipped.iter().flat_map(|s| ["-s", s.name]));
    let done = bench.output(&mut bench.command(&args));
    assert_eq!(done.code, Some(0), "{done}");
    let agree = CASES.len() * shipped.len();
    assert!(done.stdout.contains(&format!("{agree} of {agree} cases agree")), "{done}");
}

fn stayed(done: &Done) {
    for run in done.runs() {
        assert_eq!(run["exit"]["kind"], "none", "{}: {done}", named(&run));
    }
    assert!(!done.console.contains("stall"), "{done}");
}

const KNOW_CGROUPS: &[&str] = &["credit", "fair", "fair,load=pelt,gang=v2"];

/// No scheduler exits and no task starves under this workload. It has cgroups deeper than the
/// schedulers' maximum depth, a gang attribute that is neither 0 nor 1, a gang with more threads
/// than CPUs, and several threads under a small quota.
#[test]
fn odd_cgroups_are_no_stall() {
    let Some(bench) = Bench::new() else { return };
    let mut text = String::from("duration = \"3s\"\n");
    for depth in 1..=20 {
        writeln!(text, "[[cgroup]]\npath = \"{}\"", "/d".repeat(depth)).unwrap();
    }
    text.push_str("[[cgroup]]\npath = \"/two\"\nxattr = { \"user.cpu.gang\" = \"2\" }\n");
    text.push_str(
        "[[cgroup]]\npath = \"/large\"\nxattr = { \"user.cpu.gang\" = \"1\" }\nweight = 10000\n",
    );
    text.push_str(
        "[[cgroup]]\npath = \"/small\"\nweight = 1\nquota = \"5ms\"\nperiod = \"100ms\"\n",
    );
    let mut hogs = |name: &str, count: u32, cgroup: &str| {
        write!(
            text,
            "[[thread]]\nname = \"{name}\"\ninstances = {count}\ncgroup = \"{cgroup}\"\n{HOG}"
        )
        .unwrap();
    };
    hogs("deep", 2, &"/d".repeat(20));
    hogs("two", 2, "/two");
    hogs("large", 12, "/large");
    hogs("small", 4, "/small");
    let odd = bench.file("odd.toml", &text);
    // With the guest's time counted in instructions, the watchdog does not depend on how fast the
    // host is.
    let mut args = vec!["--accel", "counted", "-m", MACHINE, "-w", &odd];
    args.extend(KNOW_CGROUPS.iter().flat_map(|s| ["-s", *s]));
    let done = bench.run(&args);
    stayed(&done);
    for run in done.runs() {
        for name in ["deep-0", "two-0", "large-11"] {
            let task = run["tasks"].as_array().unwrap().iter().find(|t| t["name"] == name);
            let ran = task.and_then(|t| t["run_ns"].as_u64()).unwrap_or(0);
            assert!(ran > 10_000_000, "{}: {name} ran {ran} ns", named(&run));
        }
    }
}

/// No scheduler exits under this script. It makes more cgroups than the schedulers have slots for,
/// and removes gangs as soon as their running tasks are killed.
#[test]
fn many_cgroups_come_and_go() {
    let Some(bench) = Bench::new() else { return };
    let script = "exec >/dev/console 2>&1
        cg=/sys/fs/cgroup; echo +cpu >$cg/cgroup.subtree_control
        n=0; all=; while [ $n -lt 600 ]; do all=\"$all $cg/g$n\"; n=$((n + 1)); done
        /bin/mkdir $all
        echo 0 >$cg/g599/cgroup.procs; echo 0 >$cg/g1/cgroup.procs; echo 0 >$cg/cgroup.procs
        echo 0 >$cg/g1/cpu.weight; echo 10001 >$cg/g1/cpu.weight
        n=0; while [ $n -lt 5 ]; do
            /init gang on $cg/g$n
            (echo 0 >$cg/g$n/cgroup.procs; while :; do :; done) & one=$!
            (echo 0 >$cg/g$n/cgroup.procs; while :; do :; done) & two=$!
            /bin/sleep 0.3
            kill -9 $one $two; wait $one $two
            until /bin/rmdir $cg/g$n; do :; done
            n=$((n + 1))
        done
        n=5; rest=; while [ $n -lt 600 ]; do rest=\"$rest $cg/g$n\"; n=$((n + 1)); done
        /bin/rmdir $rest && echo all gone";
    let mut args = vec!["-m", "1n4c1t", "--duration", "240s"];
    args.extend(KNOW_CGROUPS.iter().flat_map(|s| ["-s", *s]));
    let programs = ["/bin/mkdir", "/bin/rmdir", "/bin/sleep"];
    let done = bench.script(&args, script, &programs);
    stayed(&done);
    assert_eq!(done.console.matches("all gone").count(), KNOW_CGROUPS.len(), "{done}");
}

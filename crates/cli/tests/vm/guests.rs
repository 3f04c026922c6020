// SPDX-License-Identifier: GPL-2.0-only
//! Workloads with guests: real virtual machines under KVM, in a virtual machine whose processor,
//! with its virtualization, is emulated. `qemu_guests.rs` tests more of them without a scheduler.

use std::fs;

use serde_json::Value;

use crate::bench::{Bench, metric, scxlab};

/// A guest with a cgroup for each vCPU, and a thread of the host.
const WORKLOAD: &str = r#"
duration = "2s"

[[guest]]
name = "vm{i}"
cgroup = "/vm{i}"
vcpu_cgroups = true
nice = 3
cpus = "0"
memory = { size = "768MiB", policy = { bind = "0" } }

[[guest.program.thread]]
name = "busy"
ops = [{ loop = { ops = [{ compute = "100us" }, { count = 1 }] } }]

[[thread]]
name = "beside"
cpus = "0"
ops = [{ loop = { ops = [{ compute = "100us" }, { count = 1 }] } }]
"#;

const TARGET: i32 = 7;

/// The vCPU's thread is a task that the loaded scheduler schedules and the probe measures.
#[test]
fn a_guest_is_a_virtual_machine_under_kvm() {
    let Some(bench) = Bench::new() else { return };
    if !has_modules(&bench) {
        return;
    }
    let file = bench.file("guests.toml", WORKLOAD);
    let done = bench.run_nested(&["-s", "vtime", "-w", &file, "-m", "1n1c1t"]);
    let run = &done.runs()[0];
    assert_eq!(run["exit"]["kind"], "none", "{run}");
    assert_eq!(run["stop"]["kind"], "duration", "{run}");
    let task = |name: &str| {
        let tasks = run["tasks"].as_array().expect("a list").iter();
        tasks.clone().find(|task| task["name"] == name).unwrap_or_else(|| panic!("{name}: {run}"))
    };
    let vcpu = task("vm0-vcpu0");
    assert_eq!((&vcpu["cgroup"], &vcpu["nice"]), (&"/vm0/vcpu0".into(), &3.into()), "{vcpu}");
    // Both are always busy, and share a CPU.
    for name in ["vm0-vcpu0", "beside"] {
        let task = task(name);
        assert!(task["run_ns"].as_u64() > Some(0) && task["wait_ns"].as_u64() > Some(0), "{task}");
    }
    let guest = &run["guests"][0];
    assert_eq!(guest["name"], "vm0");
    assert_eq!(guest["vcpus"][0]["steal_ns"], vcpu["wait_ns"], "{guest}");
    assert_eq!(metric(run, "guest_steal"), vcpu["wait_ns"].as_f64().expect("a number"));
    let units = metric(run, "guest0_work_units");
    assert!(units > 0.0 && metric(run, "guest0_throughput") > 0.0, "{run}");
    assert!(metric(run, "work_units") > units, "the host's thread works too: {run}");
    assert_eq!(guest["work_units"].as_f64(), Some(units));
    assert_eq!(guest["threads"][0]["work_units"].as_f64(), Some(units));
    // A real guest does not say what its vCPUs do.
    assert!(guest.get("exits").is_none() && guest["vcpus"][0].get("user_ns").is_none(), "{guest}");
    let absent = ["guest_user", "guest_spin", "guest_idle", "guest_exits_halt"];
    let metrics = run["metrics"].as_object().expect("an object");
    assert!(absent.iter().all(|name| !metrics.contains_key(*name)), "{metrics:?}");
    let cgroups = run["cgroups"].as_array().expect("a list").iter();
    let own = |group: &Value| group["path"] == "/vm0/vcpu0" && group["run_ns"] == vcpu["run_ns"];
    assert!(cgroups.clone().any(own), "{:?}", run["cgroups"]);
    let memory = &run["memory"][0];
    assert_eq!((&memory["owner"], &memory["region"]), (&"vm0".into(), &"memory".into()), "{run}");
    assert!(memory["pages"][0].as_u64() > Some(0), "{memory}");
    assert!(metric(run, "op_enqueue_calls") > 0.0, "{run}");
}

/// Without threads of the host, the virtual CPUs are all there is to measure.
#[test]
fn guests_need_no_thread_of_the_host() {
    let Some(bench) = Bench::new() else { return };
    if !has_modules(&bench) {
        return;
    }
    let work = "hogs,tasks=2,vms=1,vcpus=2,vm.spinlock=ticket,vm.pv_spinlock=no,vm.halt_poll=50us";
    let done = bench.run_nested(&["-s", "eevdf", "-w", work, "-m", "1n1c1t", "--duration", "2s"]);
    let run = &done.runs()[0];
    assert_eq!(run["stop"]["kind"], "duration", "{run}");
    let tasks = run["tasks"].as_array().expect("a list");
    let vcpus: Vec<&Value> = tasks.iter().take(2).collect();
    assert_eq!([&vcpus[0]["name"], &vcpus[1]["name"]], ["vm0-vcpu0", "vm0-vcpu1"], "{tasks:?}");
    assert!(vcpus.iter().all(|vcpu| vcpu["run_ns"].as_u64() > Some(0)), "{tasks:?}");
    // They share one CPU.
    assert!(metric(run, "guest_steal") > 0.0, "{run}");
    let units = metric(run, "work_units");
    assert!(units > 0.0 && units == metric(run, "guest0_work_units"), "{run}");
}

/// Whether the kernel has its modules beside it; prints a message if not.
fn has_modules(bench: &Bench) -> bool {
    let has = bench.kernel.with_file_name("modules/kvm.ko.xz").exists();
    if !has {
        eprintln!("vm: skipped: {} has no modules beside it", bench.kernel.display());
    }
    has
}

/// The message names the guest, its line and the reason.
#[test]
fn a_guest_is_refused_where_kvm_does_not_work() {
    let Some(bench) = Bench::new() else { return };
    let file = bench.file("guests.toml", WORKLOAD);
    let named =
        ["guests.toml:4:1: guest \"vm{i}\" cannot run on ", "is a virtual machine under KVM"];
    // The copy of the kernel has no modules beside it.
    let kernel = bench.folder.path().join("vmlinux");
    fs::copy(bench.kernel, &kernel).unwrap();
    let mut command = scxlab(&["run", "--on", "vm", "-w", &file, "-m", "1n1c1t"]);
    command.args(["--accel", "tcg", "--deadline", "45min", "--kernel"]).arg(&kernel);
    let done = bench.output(&mut command);
    assert_eq!(done.code, Some(TARGET), "{done}");
    for text in named.iter().chain(&["on vm", "/dev/kvm: No such file"]) {
        assert!(done.stderr.contains(text), "no \"{text}\": {done}");
    }
    let Err(why) = scxlab_vm::probe_kvm() else { return };
    let done = bench.output(&mut scxlab(&["run", "--on", "host", "-w", &file, "-m", "host"]));
    assert_eq!(done.code, Some(TARGET), "{done}");
    for text in named.iter().chain(&["on host", why.as_str()]) {
        assert!(done.stderr.contains(text), "no \"{text}\": {done}");
    }
}

/// A property that no real guest has is refused before anything boots.
#[test]
fn a_guest_that_cannot_be_real_is_refused() {
    let Some(bench) = Bench::new() else { return };
    let ticket = WORKLOAD.replace("nice = 3", "spinlock = 'ticket'");
    let file = bench.file("guests.toml", &ticket);
    let done =
        bench.output(&mut bench.command(&["run", "--on", "vm", "-w", &file, "-m", "1n1c1t"]));
    assert_eq!(done.code, Some(3), "{done}");
    let says = "guests.toml:4:1: guest \"vm{i}\" cannot run on a real kernel: Linux has no";
    assert!(done.stderr.contains(says), "{done}");
    assert_eq!(done.console, "", "it booted");
}

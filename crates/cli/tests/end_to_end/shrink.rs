// SPDX-License-Identifier: GPL-2.0-only
//! Ejections of the kernel's own selftests, and of `vtime` with planted bugs, shrink to a few
//! threads on at most two CPUs, and the printed command makes them again. `make kernel-objects`
//! compiles the selftests.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::{json, program, root, scxlab, text};

/// Clients and workers in a cgroup, and hogs.
const WORK: &str = "
duration = '60s'
[[cgroup]]
path = '/jobs'
[[pipe]]
name = 'p{i}'
[[thread]]
name = 'client{i}'
instances = 4
ops = [{ loop = { ops = [{ write = { pipe = 'p{i}', bytes = 100 } }, { compute = '200us' }, { sleep = '50ms' }] } }]
[[thread]]
name = 'worker{i}'
instances = 4
cgroup = '/jobs'
ops = [{ loop = { ops = [{ read = { pipe = 'p{i}', bytes = 100 } }, { compute = '1ms' }] } }]
[[thread]]
name = 'hog{i}'
instances = 6
nice = 5
ops = [{ loop = { ops = [{ compute = '50ms' }] } }]
";

/// Threads that sleep while hogs begin on their CPUs, so that hogs meet on a CPU though others are
/// idle.
const MEETING: &str = "
duration = '60s'
[[thread]]
name = 'waker{i}'
instances = 8
ops = [{ loop = { times = 5, ops = [{ compute = '200us' }, { sleep = '5ms' }] } }]
[[thread]]
name = 'hog{i}'
instances = 2
ops = [{ sleep = '100ms' }, { loop = { ops = [{ compute = '50ms' }] } }]
";

/// A run of `work.toml` that ends in an ejection.
struct Ejection<'a> {
    scheduler: &'a str,
    machine: &'a str,
    seed: &'a str,
    kind: &'a str,
    threads: u64,
}

/// Shrinks an ejection, asserts that little is left, and makes it again by the printed command.
/// Returns the number of CPUs.
fn shrinks(folder: &Path, ejection: &Ejection<'_>) -> u64 {
    let Ejection { scheduler, machine, seed, kind, threads } = *ejection;
    let small = folder.join("small.toml");
    let work = folder.join("work.toml");
    let args = ["shrink", "-s", scheduler, "-m", machine, "--seed", seed, "--budget", "10min"];
    let mut command = scxlab(&args);
    let out = command.arg("-w").arg(&work).arg("-o").arg(&small).output().unwrap();
    let said = String::from_utf8_lossy(&[&out.stdout[..], &out.stderr[..]].concat()).into_owned();
    assert!(out.status.success(), "{scheduler}: {said}");
    println!("{scheduler}:\n{said}");
    assert!(said.starts_with(&format!("{kind}: ")), "{scheduler}: {said}");
    let number = |before: &str, after: &str| -> u64 {
        let (_, rest) = said.split_once(before).unwrap_or_else(|| panic!("{before}: {said}"));
        rest.split_once(after).unwrap().0.rsplit(' ').next().unwrap().parse().unwrap()
    };
    assert_eq!(number("threads: ", " ->"), threads, "{said}");
    assert!((1..=4).contains(&number("threads: ", "\n")), "{said}");
    let cpus = number("machine: ", " CPU");
    assert!(cpus <= 2, "{said}");
    let again = said.lines().last().unwrap().strip_prefix("scxlab ").unwrap();
    let command = format!("'{}' {again} --format json", env!("CARGO_BIN_EXE_scxlab"));
    let out = program("sh").arg("-c").arg(command).output().unwrap();
    let run: Value = serde_json::from_slice(&out.stdout).unwrap();
    let exit = &run["runs"][0]["exit"];
    let message = exit["message"].as_str().unwrap().replace('\n', " ");
    let first = said.lines().next().unwrap();
    assert_eq!(first, format!("{}: {message}", exit["kind"].as_str().unwrap()), "{scheduler}");
    cpus
}

/// The kernel's objects that are ejected under `WORK`, with the kind of their exit.
const EJECTED: [(&str, &str); 8] = [
    ("ddsp_bogus_dsq_fail", "error"),
    ("ddsp_vtimelocal_fail", "error"),
    ("enq_last_no_enq_fails", "error"),
    ("exit", "unreg_bpf"),
    ("numa", "error"),
    ("scx_userland", "error_bpf"),
    ("select_cpu_dispatch_bad_dsq", "error"),
    ("select_cpu_dispatch_dbl_dsp", "error"),
];

#[test]
fn the_kernels_failing_selftests_shrink() {
    let folder = tempfile::tempdir().unwrap();
    let work = folder.path().join("work.toml");
    fs::write(&work, WORK).unwrap();
    let objects = fs::read_dir(root().join("build/kernel/objects")).expect("make kernel-objects");
    let mut objects: Vec<PathBuf> = objects.map(|entry| entry.unwrap().path()).collect();
    objects.sort();
    let mut ejected: Vec<(String, String)> = Vec::new();
    // It leaves tasks in a node's global queue and kicks nobody, so its stall takes two nodes.
    objects.retain(|object| !object.ends_with("nohz_tick.bpf.o"));
    for object in &objects {
        let args = ["run", "-m", "2n4c2t", "--seed", "1", "--format", "json", "-s"];
        let out = scxlab(&args).arg(object).arg("-w").arg(&work).output().unwrap();
        // The kernel or the simulator refuses some objects.
        let Ok(run) = serde_json::from_slice::<Value>(&out.stdout) else { continue };
        let kind = run["runs"][0]["exit"]["kind"].as_str().unwrap();
        if kind != "none" {
            let scheduler = object.to_str().unwrap();
            let ejection = Ejection { scheduler, machine: "2n4c2t", seed: "1", kind, threads: 14 };
            shrinks(folder.path(), &ejection);
            let name = object.file_name().unwrap().to_str().unwrap();
            ejected.push((name.trim_end_matches(".bpf.o").to_owned(), kind.to_owned()));
        }
    }
    let expected = EJECTED.map(|(name, kind)| (name.to_owned(), kind.to_owned()));
    assert_eq!(ejected, expected);
}

/// A bug that is planted in the source of `vtime`: texts, each of which is replaced by another.
struct Bug {
    name: &'static str,
    changes: &'static [(&'static str, &'static str)],
    knobs: &'static str,
    work: &'static str,
    machine: &'static str,
    threads: u64,
    seed: &'static str,
    /// Smallest number of CPUs on which the bug shows.
    cpus: u64,
}

const BUGS: [Bug; 3] = [
    // A task of low weight is held, and never queued again.
    Bug {
        name: "lost_task",
        changes: &[(
            "\tu64 vtime = p->scx.dsq_vtime;\n\n\tif (enq_flags",
            "\tu64 vtime = p->scx.dsq_vtime;\n\n\tif (p->scx.weight < 100)\n\t\treturn;\n\tif (enq_flags",
        )],
        knobs: "",
        work: WORK,
        machine: "2n2c1t",
        threads: 14,
        seed: "1",
        cpus: 1,
    },
    // The CPUs of odd LLCs look in the queue of the LLC before theirs, and stealing ends one LLC
    // too early. Nobody takes from the last queue.
    Bug {
        name: "dsq_never_consumed",
        changes: &[
            (
                "if (scx_bpf_dsq_move_to_local(own, 0))",
                "if (scx_bpf_dsq_move_to_local(own & ~1, 0))",
            ),
            (
                "\tbpf_for(llc, 0, nr_llcs)\n\t\tif (llc != own &&",
                "\tbpf_for(llc, 0, nr_llcs - 1)\n\t\tif (llc != own &&",
            ),
        ],
        knobs: ",pull_ns=0",
        work: WORK,
        machine: "2n2c1t",
        threads: 14,
        seed: "3",
        cpus: 2,
    },
    // A task joins its queue though another CPU is idle, and no kick follows. Its own CPU runs a
    // long slice.
    Bug {
        name: "kick_forgotten",
        changes: &[NO_DIRECT_DISPATCH, ("\tcall_idle_cpu(p);\n", "")],
        knobs: LONG_SLICE,
        work: MEETING,
        machine: "1n4c1t",
        threads: 10,
        seed: "4",
        cpus: 2,
    },
];

/// `vtime` without its way of starting a task on an idle CPU: each task goes through its queue, and
/// only the kick in ops.enqueue tells an idle CPU.
const NO_DIRECT_DISPATCH: (&str, &str) =
    ("\tif (is_idle) {\n\t\tu64 vtime", "\tcpu = prev_cpu;\n\tif (false) {\n\t\tu64 vtime");
const LONG_SLICE: &str = ",slice_ns=50000000000";

/// Builds `vtime` with these changes, and returns the object's path.
fn planted(folder: &Path, name: &str, changes: &[(&str, &str)]) -> String {
    let mut source = fs::read_to_string(root().join("bpf/sched/vtime/vtime.bpf.c")).unwrap();
    for (before, after) in changes {
        assert_eq!(source.matches(before).count(), 1, "{name}: {before}");
        source = source.replace(before, after);
    }
    let file = folder.join(format!("{name}.bpf.c"));
    let object = folder.join(format!("{name}.bpf.o"));
    fs::write(&file, source).unwrap();
    text(&["build", file.to_str().unwrap(), "-o", object.to_str().unwrap()]);
    object.to_str().unwrap().to_owned()
}

#[test]
fn planted_bugs_shrink() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for Bug { name, changes, knobs, work, machine, threads, seed, cpus } in BUGS {
        fs::write(folder.join("work.toml"), work).unwrap();
        let scheduler = planted(folder, name, changes) + knobs;
        let kind = "error_stall";
        let ejection = Ejection { scheduler: &scheduler, machine, seed, kind, threads };
        assert_eq!(shrinks(folder, &ejection), cpus, "{name}");
        // The bug is what ejects it: the scheduler without the bug stays.
        let sound = match name {
            "kick_forgotten" => planted(folder, "kicks", &[NO_DIRECT_DISPATCH]),
            _ => "vtime".to_owned(),
        };
        let scheduler = sound + knobs;
        let work = folder.join("work.toml");
        let args = ["run", "-s", &scheduler, "-m", machine, "--seed", seed, "-w"];
        let run = json(&[&args[..], &[work.to_str().unwrap()]].concat());
        assert_eq!(run["runs"][0]["exit"]["kind"], "none", "{name}: {}", run["runs"][0]["exit"]);
    }
}

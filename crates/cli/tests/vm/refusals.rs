// SPDX-License-Identifier: GPL-2.0-only
//! Requests that must be refused: each has its own message with advice, and the exit code that the
//! manual names.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use crate::bench::{Bench, Done, object, scxlab};

const INPUT: i32 = 3;
const USAGE: i32 = 2;
const OUTPUT: i32 = 6;
const TARGET: i32 = 7;
const GUEST: i32 = 8;

fn refused(done: &Done, code: i32, says: &[&str]) {
    assert_eq!(done.code, Some(code), "{done}");
    assert!(done.stdout.is_empty(), "{done}");
    for text in says {
        assert!(done.stderr.contains(text), "no \"{text}\": {done}");
    }
    assert!(!done.stderr.contains("error: internal"), "{done}");
}

/// Asserts that the message about a rejected object has the verifier's words and the source line,
/// and that the simulator refuses the object with the same exit code.
fn verifier_rejects(name: &str, program: &str) {
    let Some(bench) = Bench::new() else { return };
    let object = object(name);
    let args = ["run", "-s", &object, "-w", "hogs", "-m", "1n2c1t", "--duration", "100ms"];
    let done = bench.output(bench.command(&args).args(["--on", "vm"]));
    let line = format!("at {name}.bpf.c:");
    let by_the_verifier = format!("program {program} is rejected by the kernel's verifier");
    refused(&done, INPUT, &[&object, &by_the_verifier, &line, "NULL"]);
    let done = bench.output(&mut scxlab(&args));
    refused(&done, INPUT, &[&object, program, "may be NULL"]);
}

#[test]
fn a_rejected_dispatch_is_shown_with_its_line() {
    verifier_rejects("maybe_null_fail_dsp", "maybe_null_fail_dispatch");
}

#[test]
fn a_rejected_yield_is_shown_with_its_line() {
    verifier_rejects("maybe_null_fail_yld", "maybe_null_fail_yield");
}

#[test]
fn a_deadline_ends_the_machine() {
    let Some(bench) = Bench::new() else { return };
    let done = bench.output(&mut small(&bench, &["--deadline", "2s"]));
    refused(&done, GUEST, &["after 2.0 s and was stopped", "guest's console"]);
}

/// Returns `run --on vm` with a default workload and machine, and further arguments.
fn small(bench: &Bench, args: &[&str]) -> Command {
    let mut all = vec!["run", "--on", "vm"];
    for (flag, usual) in [("-w", "hogs"), ("-m", "1n2c1t")] {
        if !args.contains(&flag) {
            all.extend([flag, usual]);
        }
    }
    all.extend(args);
    bench.command(&all)
}

#[test]
fn what_the_host_lacks_is_named() {
    let Some(bench) = Bench::new() else { return };
    let done = bench.output(small(&bench, &[]).env("PATH", ""));
    refused(&done, TARGET, &["no qemu-system-x86_64 on this host", "qemu-system-x86"]);

    let nowhere = bench.folder.path().join("nowhere");
    let mut command = scxlab(&["vm", "setup"]);
    let done = bench.output(command.env("XDG_CACHE_HOME", &nowhere).env("PATH", ""));
    refused(&done, TARGET, &["Debian's", "by --kernel"]);

    // A run without --kernel tries to prepare a kernel, for which it looks for QEMU first. PATH is
    // empty in the first run, and has only QEMU in the second.
    let run = ["run", "--on", "vm", "-w", "hogs", "-m", "1n2c1t"];
    let done = bench.output(scxlab(&run).env("XDG_CACHE_HOME", &nowhere).env("PATH", ""));
    refused(&done, TARGET, &["no qemu-system-x86_64 on this host"]);
    let programs = bench.folder.path().join("programs");
    fs::create_dir(&programs).unwrap();
    symlink(scxlab_vm::find_qemu().unwrap(), programs.join("qemu-system-x86_64")).unwrap();
    let done = bench.output(scxlab(&run).env("XDG_CACHE_HOME", &nowhere).env("PATH", &programs));
    refused(
        &done,
        TARGET,
        &["no kernel for virtual machines", "`scxlab vm setup`", "Debian's", "by --kernel"],
    );

    if scxlab_vm::probe_kvm().is_err() {
        let mut command = scxlab(&["run", "--on", "vm", "-w", "hogs", "-m", "1n2c1t"]);
        command.args(["--accel", "kvm", "--kernel"]).arg(bench.kernel);
        refused(&bench.output(&mut command), TARGET, &["KVM does not work here"]);
    }
    let done = bench.output(&mut small(&bench, &["--memory", "100000000"]));
    refused(&done, TARGET, &["MiB are available"]);
}

#[test]
fn a_file_that_is_no_kernel_is_named() {
    let Some(bench) = Bench::new() else { return };
    let text = bench.file("text", "no kernel\n");
    for (path, says) in [
        ("/no/such/kernel", "cannot be read"),
        (text.as_str(), "no kernel image"),
        ("/bin/sh", "no kernel image"),
    ] {
        let mut command =
            scxlab(&["run", "--on", "vm", "-w", "hogs", "-m", "1n2c1t", "--kernel", path]);
        refused(&bench.output(&mut command), INPUT, &[path, says]);
    }
}

#[test]
fn what_the_guests_kernel_lacks_is_named() {
    let Some(bench) = Bench::new() else { return };
    let groups =
        "[[cgroup]]\npath = '/a'\n[[thread]]\nname = 'x'\ncgroup = '/a'\nops = ['yield']\n";
    let workload = bench.file("groups.toml", groups);
    let without = ["-w", &workload, "--kernel-args", "cgroup_disable=cpu"];
    let done = bench.output(&mut small(&bench, &without));
    refused(
        &done,
        TARGET,
        &["the cgroup controller \"cpu\", which this kernel lacks", "cgroup.controllers"],
    );
}

#[test]
fn what_no_guest_can_be_is_refused_before_it_boots() {
    let Some(bench) = Bench::new() else { return };
    for (args, code, says) in [
        (&["--memory", "64"][..], INPUT, "64 MiB are too little for this guest: give it at least"),
        (&["-m", "biglittle-4b4l"], INPUT, "QEMU has no slower CPUs"),
        (&["-m", "129n1c"], INPUT, "QEMU has at most 128"),
        (&["-w", "cmd:no-such-program --flag"], INPUT, "no program no-such-program in PATH"),
        (&["-w", "cmd:/no/such/program"], INPUT, "/no/such/program: No such file"),
        (&["-w", "cmd:/etc/hostname"], INPUT, "/etc/hostname: "),
        (&["-w", "cmd:'unfinished"], INPUT, "a quote"),
        (&["--vm-program", "no-such-program"], INPUT, "no program no-such-program in PATH"),
        (&["--on", "sim", "-w", "cmd:/bin/sh"], USAGE, "runs on a real kernel only"),
        (&["--on", "host"], USAGE, "a run on this host needs -m host, not 1n2c1t"),
        (&["-s", "no-such-scheduler"], USAGE, "no-such-scheduler"),
        (&["-s", "vtime,no_such_knob=1"], USAGE, "no_such_knob"),
    ] {
        let done = bench.output(&mut small(&bench, args));
        refused(&done, code, &[says]);
        assert_eq!(done.console, "", "{args:?}: it booted");
    }
    let mut command = scxlab(&["run", "--on", "vm", "-w", "hogs", "-m", "1n2c1t"]);
    command.arg("--kernel").arg(bench.kernel).args(["--console", "/no/such/folder/console"]);
    refused(&bench.output(&mut command), OUTPUT, &["/no/such/folder/console cannot be written"]);
    let done = bench.output(&mut bench.command(&["conform", "no_such_case"]));
    refused(&done, USAGE, &["unknown case \"no_such_case\""]);
}

// SPDX-License-Identifier: GPL-2.0-only
//! Tests of external commands.

use scxlab_workload::native::{CommandReport, CommandStatus, run_command};
use scxlab_workload::{WorkloadArg, parse_workload_arg};

use crate::{Test, now};

pub const TESTS: &[Test] = &[
    ("a_command_runs", a_command_runs),
    ("a_command_fails", a_command_fails),
    ("a_command_is_ended", a_command_is_ended),
    ("a_command_leaves_nothing", a_command_leaves_nothing),
    ("output_is_cut_at_the_front", output_is_cut_at_the_front),
];

fn run(arg: &str, duration: Option<u64>) -> CommandReport {
    let WorkloadArg::Command(words) = parse_workload_arg(arg).unwrap() else { panic!("{arg}") };
    run_command(&words, duration).unwrap_or_else(|e| panic!("{e}"))
}

fn a_command_runs() {
    let report = run(
        "cmd:sh -c 'echo out; echo err >&2; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done'",
        None,
    );
    assert_eq!(report.status, CommandStatus::Exited(0));
    assert_eq!((report.stdout.as_str(), report.stderr.as_str()), ("out\n", "err\n"));
    assert_eq!((report.work_units(), report.succeeded()), (1, true));
    assert!(report.length_ns() > 0);
    assert!(report.usage.user_ns + report.usage.system_ns > 0 && report.usage.max_rss_kib > 0);
}

fn a_command_fails() {
    let report = run("cmd:sh -c 'exit 7'", None);
    assert_eq!((report.status, report.work_units()), (CommandStatus::Exited(7), 0));
    let report = run("cmd:sh -c 'kill -11 $$'", Some(60_000_000_000));
    assert_eq!(report.status, CommandStatus::Signaled(11));
    let words = ["/no/such/program".to_owned()];
    let error = run_command(&words, None).unwrap_err().to_string();
    assert!(
        error.contains("command \"/no/such/program\"") && error.contains("os error 2"),
        "{error}"
    );
    assert!(run_command(&[], None).unwrap_err().to_string().contains("empty"));
    for bad in ["cmd:", "cmd:  ", "cmd:echo 'x"] {
        assert!(parse_workload_arg(bad).is_err(), "{bad}");
    }
}

fn a_command_is_ended() {
    let report = run("cmd:sh -c 'echo begun; sleep 100; echo over'", Some(300_000_000));
    assert_eq!(report.status, CommandStatus::TimedOut);
    assert_eq!((report.stdout.as_str(), report.work_units()), ("begun\n", 0));
    assert!(report.length_ns() >= 300_000_000);
}

fn a_command_leaves_nothing() {
    // The command ends at once. Its child holds the output open and would do so for 98 seconds, so
    // the run must kill it.
    let report = run("cmd:sh -c 'sleep 98.7 & echo $!'", None);
    assert!(report.succeeded());
    let child: u32 = report.stdout.trim().parse().unwrap();
    let deadline = now() + std::time::Duration::from_secs(20);
    let running = |child| {
        let line = std::fs::read(format!("/proc/{child}/cmdline")).unwrap_or_default();
        line.starts_with(b"sleep")
    };
    while running(child) {
        assert!(now() < deadline, "{child} is still there");
    }
}

fn output_is_cut_at_the_front() {
    let report =
        run("cmd:sh -c 'i=0; while [ $i -lt 30000 ]; do echo line $i; i=$((i+1)); done'", None);
    assert_eq!(report.stdout.len(), 64 << 10);
    assert!(report.stdout.ends_with("line 29999\n"));
}

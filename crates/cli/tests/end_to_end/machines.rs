// SPDX-License-Identifier: GPL-2.0-only
//! Tests of one comparison on several machines.

use std::fs;

use serde_json::Value;

use super::{check_schema, json, text, without_wall_time};

const WORK: [&str; 9] =
    ["run", "-s", "eevdf", "-s", "vtime", "-w", "hackbench,groups=1,loops=2", "-n", "2"];

fn on<'a>(machines: &[&'a str]) -> Vec<&'a str> {
    let mut args = WORK.to_vec();
    machines.iter().for_each(|machine| args.extend(["-m", machine]));
    args
}

#[test]
fn each_machine_has_the_results_that_it_has_alone() {
    let together = json(&on(&["2n2c1t", "1n4c2t", "2n2c1t"]));
    let all = together.as_array().unwrap();
    assert_eq!(all.len(), 2, "each once");
    for (machine, results) in ["2n2c1t", "1n4c2t"].iter().zip(all) {
        check_schema(results);
        let alone = json(&on(&[machine]));
        assert_eq!(without_wall_time(results.clone()), without_wall_time(alone));
    }
}

#[test]
fn the_summary_has_a_line_for_each_machine() {
    let shown = text(&on(&["2n2c1t", "1n4c2t"]));
    let (tables, summary) = shown.split_once("2 machines, hackbench,groups=1,loops=2\n").unwrap();
    let figures = |text: &str, line: &str| {
        let line = text
            .lines()
            .find(|l| l.starts_with(line))
            .unwrap_or_else(|| panic!("{line} in {text}"));
        line.split_whitespace().map(str::to_owned).collect::<Vec<_>>()
    };
    // Compare only the change against the baseline: it is in percent in both tables, while the
    // values may be in different units.
    let change = figures(tables, "throughput").pop();
    assert_eq!(figures(summary, "2n2c1t").pop(), change, "{shown}");
    for label in ["throughput", "wake-up latency p99", "run-queue wait p99"] {
        assert_eq!(
            summary.lines().filter(|l| l.starts_with(label)).count(),
            1,
            "{label}: {summary}"
        );
    }
    assert_eq!(summary.lines().filter(|l| l.starts_with("1n4c2t ")).count(), 3, "{summary}");
}

/// The summary marks a machine on which a scheduler is ejected, and has no figure for that
/// scheduler on it.
#[test]
fn a_machine_whose_runs_do_not_count_is_marked() {
    let args = [
        "run",
        "-s",
        "eevdf",
        "-s",
        "lapse,eject_after_ns=20000000",
        "-w",
        "hogs",
        "-m",
        "1n2c1t",
        "-m",
        "2c",
    ];
    let mut args = args.to_vec();
    args.extend(["--duration", "1s"]);
    let shown = text(&args);
    let summary = shown.split_once("2 machines").unwrap().1;
    assert!(summary.contains("1n2c1t !"), "{summary}");
    assert!(summary.contains("not all runs count"), "{summary}");
}

#[test]
fn each_machine_has_a_folder() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_str().unwrap();
    let mut args = on(&["2n2c1t", "machines/laptop-4c8t.toml"]);
    args.extend(["-o", path]);
    let root = super::root();
    let out = super::scxlab(&args).current_dir(root).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    for machine in ["2n2c1t", "machines_laptop-4c8t.toml"] {
        let results = fs::read_to_string(folder.path().join(machine).join("results.json")).unwrap();
        check_schema(&serde_json::from_str::<Value>(&results).unwrap());
        for file in ["report.txt", "trace.eevdf.pftrace", "trace.vtime.pftrace"] {
            assert!(folder.path().join(machine).join(file).is_file(), "{machine}/{file}");
        }
    }
    assert!(fs::read_to_string(folder.path().join("report.txt")).unwrap().contains("2 machines"));
}

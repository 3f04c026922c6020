// SPDX-License-Identifier: GPL-2.0-only
//! `scxlab advise`: its JSON, its budget, and its interruption.

use std::fs;
use std::process::{Command, Stdio};

use serde_json::Value;

use super::{Schema, json, output, root, scxlab, text};

const QUICK: [&str; 9] = [
    "advise",
    "-w",
    "sleepers,tasks=8,duration=100ms",
    "-m",
    "2c",
    "-s",
    "vtime,slice_ns=20000000",
    "-g",
    "min:context_switches",
];

fn quick(more: &[&'static str]) -> Vec<&'static str> {
    [&QUICK[..], more].concat()
}

fn check_schema(advice: &Value) {
    let path = root().join("docs/reference/advise.schema.json");
    let faults = Schema::parse(&fs::read_to_string(path).unwrap()).faults(advice);
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn the_json_has_a_recommendation_and_all_candidates() {
    let advice = json(&quick(&["--rounds", "4+12", "-s", "lapse,eject_after_ns=1000000"]));
    check_schema(&advice);
    let recommendation = &advice["recommendation"];
    assert_eq!(recommendation["scheduler"], "vtime,slice_ns=20000000", "{advice}");
    assert_eq!(recommendation["command"], "sudo scxlab attach vtime,slice_ns=20000000");
    assert_eq!(recommendation["holds_in"]["of"], 12);
    assert!(recommendation["change"]["high"].as_f64().unwrap() < 0.0);
    let places: Vec<&Value> =
        advice["candidates"].as_array().unwrap().iter().map(|c| &c["place"]).collect();
    assert_eq!(places, ["better", "failed"]);
}

#[test]
fn equal_rounds_give_equal_json_with_any_number_of_jobs() {
    let with = |jobs| text(&quick(&["--rounds", "3+5", "--format", "json", "--jobs", jobs]));
    assert_eq!(with("1"), with("3"));
}

#[test]
fn to_stay_is_an_answer() {
    let advice = json(&[
        "advise",
        "-w",
        "hogs,tasks=1,duration=50ms",
        "-m",
        "1c",
        "-s",
        "vtime",
        "--rounds",
        "4+12",
    ]);
    check_schema(&advice);
    assert_eq!(advice["recommendation"]["scheduler"], "eevdf");
    assert!(advice["recommendation"]["command"].is_null());
    assert_eq!(advice["goals"], Value::from(vec!["max:throughput"]));
    assert!(advice["notes"][0].as_str().unwrap().contains("p99:wakeup_latency is no goal here"));
}

/// A budget that is over before the first run ends leaves no advice.
#[test]
fn a_budget_without_time_is_said() {
    let out = scxlab(&quick(&["--budget", "1ns"])).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("interrupted: the budget is used"), "{said}");
}

/// Ctrl-C prints the best so far, and says that the work is unfinished.
#[test]
fn an_interrupted_search_says_what_it_has() {
    let child = scxlab(&[
        "advise",
        "-w",
        "hackbench,groups=4,loops=1000000",
        "-m",
        "2n4c2t",
        "--duration",
        "200s",
        "-j",
        "1",
        "--budget",
        "1000s",
    ]);
    let mut child = child_of(child);
    // The first run takes far longer than the program needs to handle the signal; a signal before
    // its handler exists ends the program at once.
    while !handles_signals(child.id()) {
        assert!(child.try_wait().unwrap().is_none(), "the work ended by itself");
        std::thread::yield_now();
    }
    let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert!(status.success());
    let out = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("interrupted: cancelled"), "{said}");
}

fn child_of(mut command: Command) -> std::process::Child {
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Tells whether a process catches SIGINT, by the mask in /proc.
fn handles_signals(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> 1 & 1 == 1
}

#[test]
fn a_folder_of_objects_gives_candidates() {
    let folder = tempfile::tempdir().unwrap();
    let object = scxlab_sched::find("vtime").unwrap().object;
    fs::write(folder.path().join("mine.bpf.o"), object).unwrap();
    fs::write(folder.path().join("notes.txt"), "no object").unwrap();
    let knobs = "[slice_ns]\ndoc = \"Fewer switches.\"\ntry = [20000000]\n";
    fs::write(folder.path().join("mine.knobs.toml"), knobs).unwrap();
    let out = scxlab(&quick(&["--rounds", "2+0", "--format", "json"]))
        .arg("--candidates")
        .arg(folder.path())
        .output()
        .unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let advice: Value = serde_json::from_slice(&out.stdout).unwrap();
    check_schema(&advice);
    let mut names: Vec<String> = advice["candidates"]
        .as_array()
        .unwrap()
        .iter()
        .map(|c| c["scheduler"].as_str().unwrap().replace(folder.path().to_str().unwrap(), "DIR"))
        .collect();
    names.sort();
    assert_eq!(
        names,
        ["DIR/mine.bpf.o", "DIR/mine.bpf.o,slice_ns=20000000", "vtime,slice_ns=20000000"]
    );
}

#[test]
fn a_goal_for_a_target_that_simulates_is_refused() {
    let out = scxlab(&quick(&["--verify", "sim"])).output().unwrap();
    assert_eq!(out.status.code(), Some(2));
    assert!(output(&["advise", "--help"]).status.success());
}

/// A difference that is certain, and too small to matter, is not called noise.
#[test]
fn small_differences_are_named() {
    let both = ["-s", "goodness", "-s", "vtime", "--rounds", "3+12"];
    let asked = ["advise", "-w", "schbench", "-m", "epyc-2s"];
    let goals = ["-g", "p99:wakeup_latency@worker*,max:throughput"];
    let advice = text(&[&asked[..], &both, &goals].concat());
    assert!(advice.contains("no candidate is so much better that a change pays"), "{advice}");
    assert!(advice.contains("differs from eevdf by too little"), "{advice}");
    assert!(advice.contains("count as equal"), "{advice}");
}

/// Advice that makes a wait longer tells a limit that rules it out.
#[test]
fn a_limit_rules_long_waits_out() {
    let asked = ["advise", "-w", "chat,rooms=2", "-m", "laptop-4c8t"];
    let asked = [&asked[..], &["-s", "vtime,sleep_lag_ns=0", "--rounds", "3+12"]].concat();
    let advice = text(&asked);
    assert!(advice.contains("Use vtime,sleep_lag_ns=0"), "{advice}");
    let limited = advice.lines().find_map(|line| line.strip_prefix("A limit rules that out: -g "));
    let goals = limited.expect(&advice).trim_matches('\'').to_owned();
    assert!(goals.starts_with("max:throughput,p99:wakeup_latency<"), "{goals}");
    let advice = text(&[&asked[..], &["-g", &goals]].concat());
    assert!(advice.contains("Stay with eevdf"), "{advice}");
}

/// The replay of a recording is compared with it, if eevdf was its scheduler.
#[test]
fn a_recording_is_compared_with_its_replay() {
    let folder = tempfile::tempdir().unwrap();
    let advise = |scheduler: &str| {
        let file = folder.path().join(format!("{scheduler}.pftrace")).display().to_string();
        let run = ["run", "-s", scheduler, "-w", "schbench", "-m", "2c", "--duration", "100ms"];
        assert!(output(&[&run[..], &["--trace", &file]].concat()).status.success());
        let shown = text(&["workload", "show", &file]);
        let args = ["advise", "-w", &file, "-m", &file, "-s", "vtime", "--rounds", "1+2"];
        let advice = json(&[&args[..], &["-g", "max:throughput"]].concat());
        check_schema(&advice);
        (shown, advice)
    };
    let (shown, advice) = advise("eevdf");
    assert!(shown.contains("replay under eevdf, as recorded"), "{shown}");
    let figures = advice["replay"]["figures"].as_array().unwrap();
    assert!(figures.iter().all(|figure| figure["differs"] == false), "{figures:?}");
    let wakeups = figures.iter().find(|figure| figure["name"] == "wake-ups").unwrap();
    assert!(wakeups["recorded"].as_u64().unwrap() > 100, "{wakeups}");
    let (shown, advice) = advise("vtime");
    assert!(shown.contains("not known: it was made under vtime"), "{shown}");
    assert_eq!(advice["replay"]["unknown"], "it was made under vtime");
}

// SPDX-License-Identifier: GPL-2.0-only
//! Tests that a results folder suffices to repeat its runs.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::path::Path;

use super::{root, scxlab, text};

/// Makes a folder with input files of every kind, and runs a command that reads them.
fn made(folder: &Path) {
    for (from, to) in
        [("workloads/sleepers.toml", "work.toml"), ("machines/small.toml", "machine.toml")]
    {
        fs::copy(root().join(from), folder.join(to)).unwrap();
    }
    let object = scxlab_sched::find("credit").unwrap().object;
    fs::write(folder.join("mine.bpf.o"), object).unwrap();
    let recipe = fs::read_to_string(root().join("recipes/credit.toml")).unwrap();
    fs::write(folder.join("mine.toml"), recipe).unwrap();
    let args = "run -s eevdf -s ./mine.bpf.o,recipe=./mine.toml -w work.toml -m machine.toml -m host -n 2 \
                --duration 50ms --seed 7 --compute-noise 3 -o first";
    let out =
        scxlab(&args.split_whitespace().collect::<Vec<_>>()).current_dir(folder).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// Returns the traces in a folder, by name.
fn traces(folder: &Path) -> BTreeMap<OsString, Vec<u8>> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
    let files = entries.filter(|e| e.path().extension().is_some_and(|e| e == "pftrace"));
    files.map(|e| (e.file_name(), fs::read(e.path()).unwrap())).collect()
}

#[test]
fn a_run_is_made_again_from_its_folder_alone() {
    let (before, after) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    made(before.path());
    // The results folder moves to another place and gets another name, so the repeated command can
    // read no file outside it.
    fs::rename(before.path().join("first"), after.path().join("kept")).unwrap();
    let again = |args: &[&str]| {
        let mut all = vec!["run", "--again", "kept"];
        all.extend(args);
        let out = scxlab(&all).current_dir(after.path()).output().unwrap();
        let said = String::from_utf8_lossy(&out.stderr).into_owned();
        (out.status.code(), said)
    };
    let (code, said) = again(&["-j", "1", "-o", "second"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("all 8 simulated runs are the same, bit for bit"), "{said}");
    for machine in ["host", "machine.toml"] {
        let traces = traces(&after.path().join("kept").join(machine));
        assert_eq!(traces.len(), 2);
        assert!(traces == self::traces(&after.path().join("second").join(machine)), "{machine}");
    }
    // Repeated results can be repeated again.
    let out = scxlab(&["run", "--again", "second"]).current_dir(after.path()).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

#[test]
fn another_result_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept");
    let at = path.to_str().unwrap();
    text(&["run", "-s", "vtime", "-w", "hogs,tasks=3", "-m", "2c", "--duration", "20ms", "-o", at]);
    let command = path.join("request/command.json");
    let seeds =
        fs::read_to_string(&command).unwrap().replace("\"hogs,tasks=3\"", "\"hogs,tasks=4\"");
    fs::write(&command, seeds).unwrap();
    let out = scxlab(&["run", "--again", at]).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("1 of 1 simulated runs differ from the stored results"), "{said}");
    assert!(said.contains("vtime with seed 1: "), "{said}");
}

/// An earlier scxlab wrote the field `coscheduled_permille` under the name `together_permille`.
/// Such results count as equal to new ones.
#[test]
fn results_with_the_old_name_of_a_field_are_the_same() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept");
    let at = path.to_str().unwrap();
    text(&["run", "-w", "hogs,tasks=3", "-m", "2c", "--duration", "20ms", "-o", at]);
    let results = path.join("results.json");
    let now = fs::read_to_string(&results).unwrap();
    let old = now.replace("coscheduled_permille", "together_permille");
    assert!(now != old, "{now}");
    fs::write(&results, old).unwrap();
    let out = scxlab(&["run", "--again", at]).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
}

/// A run that was interrupted has no result to compare, and is left out. The two runs after it are
/// still compared with the stored runs of the same seeds.
#[test]
fn interrupted_runs_are_not_compared() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kept");
    let at = path.to_str().unwrap();
    let args = ["run", "-w", "hogs,tasks=3", "-m", "2c", "--duration", "20ms", "-n", "3", "-o", at];
    text(&args);
    let results = path.join("results.json");
    let mut kept: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(&results).unwrap()).unwrap();
    kept["runs"][0]["stop"]["kind"] = "interrupted".into();
    kept["runs"][0]["virtual_ns"] = 5.into();
    fs::write(&results, kept.to_string()).unwrap();
    let out = scxlab(&["run", "--again", at]).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(out.status.success(), "{said}");
    assert!(said.contains("all 2 simulated runs are the same"), "{said}");
}

#[test]
fn a_folder_without_a_command_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let out = scxlab(&["run", "--again", folder.path().to_str().unwrap()]).output().unwrap();
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(3), "{said}");
    assert!(said.contains("the folder holds no run to repeat"), "{said}");
    // Other options would be ignored with --again, so they are refused.
    let out = scxlab(&["run", "--again", "x", "-s", "eevdf"]).output().unwrap();
    assert_eq!(out.status.code(), Some(2));
}

/// Results of a version that did not have a metric, or stories of ejections, yet can be repeated.
#[test]
fn what_came_later_is_no_difference() {
    let temp = tempfile::tempdir().unwrap();
    let kept = temp.path().join("kept");
    let workload = root().join("workloads/groups-and-nice.toml").display().to_string();
    let mut args = vec!["run", "-s", "vtime", "-s", "lapse,eject_after_ns=20000000"];
    args.extend(["-w", &workload, "-m", "1n2c1t", "--duration", "50ms", "-o"]);
    assert!(scxlab(&args).arg(&kept).output().unwrap().status.success());
    let file = kept.join("results.json");
    let mut results: serde_json::Value = serde_json::from_slice(&fs::read(&file).unwrap()).unwrap();
    let again = || scxlab(&["run", "--again"]).arg(&kept).output().unwrap();
    for (run, part, name) in [(0, "metrics", "weight_error"), (1, "exit", "story")] {
        let all = results["runs"][run][part].as_object_mut().unwrap();
        assert!(all.shift_remove(name).is_some(), "{name}");
    }
    fs::write(&file, results.to_string()).unwrap();
    assert_eq!(again().status.code(), Some(0));
    results["runs"][0]["metrics"].as_object_mut().unwrap().shift_remove("throughput");
    fs::write(&file, results.to_string()).unwrap();
    assert_eq!(again().status.code(), Some(1));
}

// SPDX-License-Identifier: GPL-2.0-only
//! Pages of `scxlab report`: what is read from which folder, and what is wrong with it, on the page
//! and in the exit code.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use scxlab_results::folder::{MANIFEST, RUNS, TASKS};
use scxlab_results::parquet;
use serde_json::Value;

use super::{program, scxlab};

const RESULTS: &str = "results.json";

/// Makes runs, and keeps them in a folder below `temp`.
fn keep(temp: &Path, name: &str, args: &[&str]) -> PathBuf {
    let folder = temp.join(name);
    let mut command = scxlab(&["run", "--duration", "60ms"]);
    let out = command.args(args).arg("-o").arg(&folder).output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    folder
}

const SOUND: &[&str] =
    &["-s", "eevdf", "-s", "vtime", "-w", "sleepers,tasks=6", "-m", "1n2c1t", "-n", "3"];

/// Makes a page from folders, and returns its data.
fn page(folders: &[&Path]) -> (Output, Option<Value>) {
    let file = folders[0].parent().unwrap().join("page.html");
    let _ = fs::remove_file(&file);
    let out = scxlab(&["report"]).args(folders).arg("-o").arg(&file).output().unwrap();
    let html = fs::read_to_string(&file).ok();
    let data = html.map(|html| {
        let (_, rest) = html.split_once("id=\"page-data\">").unwrap();
        serde_json::from_str(rest.split_once("</script>").unwrap().0).unwrap()
    });
    (out, data)
}

fn expect(folders: &[&Path], code: i32, said: &str) -> Value {
    let (out, data) = page(folders);
    let stderr = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(code), "{stderr}");
    assert!(stderr.contains(said), "{said}: {stderr}");
    data.unwrap_or_else(|| panic!("no page: {stderr}"))
}

fn problems(page: &Value) -> String {
    page["problems"].to_string()
}

/// The tables alone give the same comparison and verdict as the results file.
#[test]
fn a_page_needs_no_results_json() {
    let temp = tempfile::tempdir().unwrap();
    let folder = keep(temp.path(), "a", SOUND);
    let whole = expect(&[&folder], 0, "");
    assert_eq!(problems(&whole), "[]");
    // One that belongs to another command, one of another version, and none.
    let text = fs::read_to_string(folder.join(RESULTS)).unwrap();
    let mut other: Value = serde_json::from_str(&text).unwrap();
    other["manifest"]["seed"] = 77.into();
    let mut older: Value = serde_json::from_str(&text).unwrap();
    older["manifest"].as_object_mut().unwrap().remove("machine");
    for replaced in [Some(other), Some(older), None] {
        match replaced {
            Some(json) => fs::write(folder.join(RESULTS), json.to_string()).unwrap(),
            None => fs::remove_file(folder.join(RESULTS)).unwrap(),
        }
        let stored = expect(&[&folder], 0, "");
        for part in ["verdict", "problems"] {
            assert_eq!(stored[part], whole[part], "{part}");
        }
        let (stored, whole) = (&stored["sessions"][0], &whole["sessions"][0]);
        for part in ["metrics", "schedulers", "workload", "machine", "facts", "waits", "timelines"]
        {
            assert_eq!(stored[part], whole[part], "{part}");
        }
        let remarks = stored["remarks"].to_string();
        assert!(remarks.contains("Read from manifest.json and the Parquet files"), "{remarks}");
    }
}

/// A folder of a check has no results file, and one of several machines has a folder for each.
#[test]
fn folders_of_checks_and_machines_are_read() {
    let temp = tempfile::tempdir().unwrap();
    let check = temp.path().join("check");
    let mut command = scxlab(&["check", "-s", "eevdf", "-s", "vtime", "-n", "2", "--duration"]);
    let args = ["40ms", "-w", "sleepers,tasks=6", "-m", "1n2c1t", "-o"];
    command.args(args).arg(&check).output().unwrap();
    let page = expect(&[&check.join("base")], 0, "");
    assert_eq!(page["sessions"][0]["schedulers"][0]["name"], "eevdf");
    let both = [SOUND, &["-m", "2n2c1t"]].concat();
    let page = expect(&[&keep(temp.path(), "both", &both)], 0, "");
    let machines: Vec<&Value> =
        page["sessions"].as_array().unwrap().iter().map(|session| &session["machine"]).collect();
    assert_eq!(machines, ["1n2c1t", "2n2c1t"]);
    assert_eq!(page["sessions"][1]["timelines"].as_array().unwrap().len(), 2);
}

#[test]
fn old_and_damaged_folders_are_named() {
    let temp = tempfile::tempdir().unwrap();
    let sound = keep(temp.path(), "sound", SOUND);
    // A version without tables.
    let old = keep(temp.path(), "old", SOUND);
    for file in [MANIFEST, RUNS, TASKS] {
        fs::remove_file(old.join(file)).unwrap();
    }
    let page = expect(&[&old], 0, "");
    assert!(problems(&page).contains("an earlier scxlab wrote this folder"), "{page}");
    // A table without a column, with a hash that fits.
    let lacking = keep(temp.path(), "lacking", SOUND);
    let mut table = parquet::read(&fs::read(lacking.join(RUNS)).unwrap()).unwrap();
    table.columns.retain(|column| column.name != "value");
    let bytes = parquet::write(&table);
    fs::write(lacking.join(RUNS), &bytes).unwrap();
    let mut manifest: Value =
        serde_json::from_slice(&fs::read(lacking.join(MANIFEST)).unwrap()).unwrap();
    let hash = scxlab_machine::hash::hash_bytes(&bytes);
    manifest["files"][RUNS] = format!("{hash:016x}").into();
    fs::write(lacking.join(MANIFEST), manifest.to_string()).unwrap();
    let said = "the column \"value\" is missing";
    let page = expect(&[&lacking, &sound], 3, said);
    assert!(problems(&page).contains("Not on this page: "), "{page}");
    assert_eq!(page["sessions"].as_array().unwrap().len(), 1);
    // Alone it gives no page.
    let (out, data) = self::page(&[&lacking]);
    assert_eq!((out.status.code(), data), (Some(3), None));
    // One of a later version.
    manifest["format"] = 99.into();
    fs::write(lacking.join(MANIFEST), manifest.to_string()).unwrap();
    expect(&[&lacking, &sound], 3, "format 99, which a newer scxlab wrote");
}

#[test]
fn what_cannot_be_compared_is_said() {
    let temp = tempfile::tempdir().unwrap();
    let run = |name: &str, scheduler: &str, work: &str| {
        keep(temp.path(), name, &["-s", scheduler, "-w", work, "-m", "1n2c1t"])
    };
    let (a, b) = (run("a", "eevdf", "sleepers,tasks=6"), run("b", "vtime", "hogs,tasks=3"));
    let page = expect(&[&a, &b], 3, "Nothing can be compared");
    assert!(problems(&page).contains("hogs,tasks=3 on 1n2c1t"), "{page}");
    // Two workloads of one name.
    let work = temp.path().join("work.toml");
    let same_name = |folder: &str, compute: &str| {
        let text = format!("[[thread]]\nname = 't'\nops = [{{ compute = '{compute}' }}]");
        fs::write(&work, text).unwrap();
        run(folder, "vtime", work.to_str().unwrap())
    };
    let (c, d) = (same_name("c", "1ms"), same_name("d", "2ms"));
    let page = expect(&[&c, &d], 3, "there are two workloads of this name");
    assert!(problems(&page).contains("they are not compared"), "{page}");
}

#[test]
fn ejected_and_empty_runs_are_said() {
    let temp = tempfile::tempdir().unwrap();
    let lapse = "lapse,eject_after_ns=20000000";
    let args = ["-s", "eevdf", "-s", lapse, "-w", "sleepers,tasks=6", "-m", "1n2c1t", "-n", "3"];
    let folder = keep(temp.path(), "ejected", &args);
    let page = expect(&[&folder], 1, "3 of 6 runs do not count");
    let reasons = page["verdict"]["reasons"].to_string();
    assert!(reasons.contains("is out: 3 of 3 ejected"), "{reasons}");
    // The story, its moments, and a command that makes the run again.
    let failure = &page["sessions"][0]["schedulers"][1]["failures"][0];
    let story = failure["story"].to_string();
    assert!(story.contains("in ops.dispatch(): lapse_dispatch"), "{story}");
    assert!(story.contains("before the exit:"), "{story}");
    let lanes = failure["moments"]["lanes"].as_array().unwrap();
    assert!(!lanes.is_empty() && failure["moments"]["end"] == failure["at"], "{failure}");
    let again = failure["again"].as_str().unwrap().strip_prefix("scxlab ").unwrap();
    let command = format!("'{}' {again} --format json", env!("CARGO_BIN_EXE_scxlab"));
    let out = program("sh").arg("-c").arg(command).output().unwrap();
    let run: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(run["runs"][0]["exit"]["at_ns"], failure["at"]);
    // No run at all.
    let empty = keep(temp.path(), "empty", SOUND);
    let path = empty.join(RESULTS);
    let mut results: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    results["runs"] = Value::Array(Vec::new());
    fs::write(&path, results.to_string()).unwrap();
    for file in [MANIFEST, RUNS, TASKS] {
        fs::remove_file(empty.join(file)).unwrap();
    }
    let page = expect(&[&empty], 3, "has no runs");
    assert_eq!(page["verdict"]["sentence"], "There are no runs.");
}

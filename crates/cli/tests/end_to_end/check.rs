// SPDX-License-Identifier: GPL-2.0-only
//! Tests of results folders and of `scxlab check`: what passes, what is an alarm, what is refused.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use scxlab_results::folder::{Folder, MANIFEST, RUNS, TASKS};
use scxlab_results::parquet;
use serde_json::Value;

use super::{program, scxlab};

/// Makes runs, and keeps them in a folder below `temp`.
fn keep(temp: &Path, name: &str, scheduler: &str, extra: &[&str]) -> PathBuf {
    let folder = temp.join(name);
    let mut command = scxlab(&["run", "-w", "sleepers,tasks=6", "-m", "1n2c1t", "--duration"]);
    command.args(["60ms", "-n", "3", "-s", scheduler]).args(extra).arg("-o").arg(&folder);
    let out = command.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    folder
}

fn check(base: &Path, new: &Path, extra: &[&str]) -> Output {
    scxlab(&["check"]).arg(base).arg(new).args(extra).output().unwrap()
}

fn said(out: &Output) -> String {
    String::from_utf8_lossy(&[&out.stdout[..], &out.stderr[..]].concat()).into_owned()
}

fn expect(out: &Output, code: i32, text: &str) {
    assert_eq!(out.status.code(), Some(code), "{}", said(out));
    assert!(said(out).contains(text), "{text}: {}", said(out));
}

/// What the folder's tables say is what results.json says, and CSV has the same rows.
#[test]
fn a_folder_holds_what_the_results_say() {
    let temp = tempfile::tempdir().unwrap();
    let path = keep(temp.path(), "a", "vtime", &["--csv"]);
    let folder = Folder::read(&path).unwrap();
    let text = fs::read_to_string(path.join("results.json")).unwrap();
    let results: Value = serde_json::from_str(&text).unwrap();
    let runs = results["runs"].as_array().unwrap();
    assert_eq!((runs.len(), folder.runs.len()), (3, 3));
    for (stored, run) in folder.runs.iter().zip(runs) {
        assert_eq!(stored.seed, run["seed"]);
        assert_eq!(stored.trace_hash, run["trace_hash"].as_str().unwrap());
        let metrics = run["metrics"].as_object().unwrap();
        assert_eq!(stored.metrics.len(), metrics.len());
        for (name, metric) in metrics {
            assert_eq!(stored.metrics[name].value, metric["value"].as_f64().unwrap(), "{name}");
            assert_eq!(stored.metrics[name].unit, metric["unit"].as_str().unwrap());
        }
        let tasks = run["tasks"].as_array().unwrap();
        assert_eq!(stored.tasks.len(), tasks.len());
        for (stored, task) in stored.tasks.iter().zip(tasks) {
            assert_eq!(
                (&*stored.name, stored.run_ns),
                (task["name"].as_str().unwrap(), task["run_ns"].as_u64().unwrap())
            );
        }
    }
    let rows = folder.runs.iter().map(|run| run.metrics.len()).sum::<usize>();
    assert_eq!(fs::read_to_string(path.join("runs.csv")).unwrap().lines().count(), rows + 1);
    // The results file of an earlier version alone says the same.
    for file in [MANIFEST, RUNS, TASKS] {
        fs::remove_file(path.join(file)).unwrap();
    }
    assert_eq!(Folder::read(&path).unwrap().runs, folder.runs);
}

#[test]
fn equal_folders_pass_and_other_things_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let base = keep(temp.path(), "base", "vtime", &[]);
    let same = keep(temp.path(), "same", "vtime", &[]);
    expect(&check(&base, &same, &[]), 0, "passed: 0 regressed, 0 undecided");
    let longer = keep(temp.path(), "longer", "vtime", &["--start-offset", "2ms"]);
    expect(&check(&base, &longer, &[]), 3, "differ in the start offset");
    let others = temp.path().join("others");
    let run = scxlab(&["run", "-w", "hogs", "-m", "1c", "--duration", "5ms"])
        .arg("-o")
        .arg(&others)
        .output();
    assert!(run.unwrap().status.success());
    expect(&check(&base, &others, &[]), 3, "no workload and machine are in both");
    expect(&check(&base, temp.path(), &[]), 3, "the results of several commands");
    expect(&check(&base, &temp.path().join("absent"), &[]), 3, "No such file");
    let empty = temp.path().join("empty");
    fs::create_dir(&empty).unwrap();
    expect(&check(&base, &empty, &[]), 3, "no results here");
    expect(&scxlab(&["check"]).arg(&base).output().unwrap(), 2, "2 values required");
    expect(&scxlab(&["check", "-s", "vtime"]).output().unwrap(), 2, "two schedulers");
    let gate = temp.path().join("gate.toml");
    fs::write(&gate, "[metric.trougput]\nrelative = '2 %'\n").unwrap();
    let with_gate = check(&base, &same, &["--gate", gate.to_str().unwrap()]);
    expect(&with_gate, 3, "no metric has this name");
}

/// A folder that is not what its manifest says is refused with the file's name.
#[test]
fn damaged_folders_are_refused() {
    let temp = tempfile::tempdir().unwrap();
    let base = keep(temp.path(), "base", "vtime", &[]);
    let runs = base.join(RUNS);
    let whole = fs::read(&runs).unwrap();
    fs::write(&runs, &whole[..whole.len() / 2]).unwrap();
    expect(&check(&base, &base, &[]), 3, "runs.parquet: no table can be read from it");
    // Another table with a hash that fits, without the column `value`.
    let mut table = parquet::read(&whole).unwrap();
    table.columns.retain(|column| column.name != "value");
    let lacking = parquet::write(&table);
    fs::write(&runs, &lacking).unwrap();
    expect(&check(&base, &base, &[]), 3, "it belongs to another command");
    let manifest = base.join(MANIFEST);
    let text = fs::read_to_string(&manifest).unwrap();
    let mut stored: Value = serde_json::from_str(&text).unwrap();
    let hash = scxlab_machine::hash::hash_bytes(&lacking);
    stored["files"][RUNS] = format!("{hash:016x}").into();
    fs::write(&manifest, stored.to_string()).unwrap();
    expect(&check(&base, &base, &[]), 3, "the column \"value\" is missing");
    stored["format"] = 99.into();
    fs::write(&manifest, stored.to_string()).unwrap();
    expect(&check(&base, &base, &[]), 3, "format 99, which a newer scxlab wrote");
    fs::write(&manifest, "{").unwrap();
    expect(&check(&base, &base, &[]), 3, "manifest.json: EOF");
}

/// A scheduler that loses its slices slows nothing down that a mean could hide; an ejection is an
/// alarm in every form of the report.
#[test]
fn ejections_and_regressions_are_alarms() {
    let temp = tempfile::tempdir().unwrap();
    let junit = temp.path().join("junit.xml");
    let run = |new: &str, extra: &[&str]| {
        let mut command = scxlab(&["check", "-s", "lapse", "-s", new, "-w", "sleepers,tasks=6"]);
        command.args(["-m", "1n2c1t", "--duration", "60ms", "--github", "--junit"]).arg(&junit);
        command.args(extra).output().unwrap()
    };
    let out = run("lapse", &[]);
    expect(&out, 0, "passed: 0 regressed");
    let out = run("lapse,eject_after_ns=20000000", &[]);
    expect(&out, 1, "REGRESSED sleepers,tasks=6 on 1n2c1t, seed 1: ejected in NEW: error_bpf");
    assert!(said(&out).contains("::error title=scxlab%3A sleepers%2Ctasks=6 on 1n2c1t::"));
    assert!(fs::read_to_string(&junit).unwrap().contains("<failure message="));
    // One run each of schedulers that differ decides nothing.
    let mut command = scxlab(&["check", "-s", "eevdf", "-s", "vtime", "-n", "1"]);
    let out = command.args(["-w", "sleepers,tasks=6", "-m", "1n2c1t"]).output().unwrap();
    expect(&out, 9, "UNDECIDED");
}

/// The standing matrix runs, and its runs can be kept and compared again.
#[test]
fn the_standing_matrix_runs() {
    let temp = tempfile::tempdir().unwrap();
    let mut command = scxlab(&["check", "-s", "vtime", "-s", "vtime", "-n", "1", "--duration"]);
    let out = command.args(["20ms", "-o"]).arg(temp.path()).output().unwrap();
    expect(&out, 0, "passed");
    let again = check(&temp.path().join("base"), &temp.path().join("new"), &[]);
    expect(&again, 0, "passed");
    let folder = Folder::read(&temp.path().join("new")).unwrap();
    assert_eq!(folder.runs.len(), scxlab_results::matrix::ENTRIES.len());
}

/// A scheduler that handles hotplug is compared. If both versions leave and ask for a restart, that
/// is a note; if only the new one does, it is a regression.
#[test]
fn hotplug_is_in_the_standing_matrix() {
    let check = |base: &str, new: &str| {
        let cell = ["-w", "matrix/hotplug.toml", "-m", "2n2c1t", "-n", "1"];
        scxlab(&["check", "-s", base, "-s", new]).args(cell).output().unwrap()
    };
    expect(&check("fair", "fair"), 0, "passed: 0 regressed, 0 undecided");
    expect(&check("vtime", "vtime"), 0, "ended in both with a request to load the scheduler again");
    expect(&check("fair", "vtime"), 1, "ejected in NEW: unreg_kern: cpu 2 going offline");
    // A machine that lacks the CPUs runs the other workloads of the matrix.
    let mut command = scxlab(&["check", "-s", "fair", "-s", "fair", "-n", "1", "--duration"]);
    let out = command.args(["10ms", "-m", "1n2c1t", "--all"]).output().unwrap();
    let ran = said(&out);
    assert!(ran.contains("matrix/caps.toml on 1n2c1t") && !ran.contains("hotplug"), "{ran}");
    // No CPU of a real kernel is taken off line.
    let temp = tempfile::tempdir().unwrap();
    let work = temp.path().join("work.toml");
    fs::write(&work, "[[thread]]\nname = 'h'\nops = [{ cpu_offline = '1' }]").unwrap();
    let mut command = scxlab(&["run", "-s", "vtime", "-m", "1n2c1t", "--on", "vm", "-w"]);
    expect(&command.arg(&work).output().unwrap(), 7, "takes CPUs off line");
}

/// A disk that fills up, which a limit on the size of files stands for, leaves no half file under
/// its name, and no manifest.
#[test]
fn a_full_disk_leaves_no_half_file() {
    let temp = tempfile::tempdir().unwrap();
    let limited = |blocks: u32, args: &[&str], folder: &Path| {
        let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
        let mut command = program("sh");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_scxlab")]).args(args);
        command.args(["-w", "sleepers,tasks=6", "-m", "4c", "--duration", "20ms", "-n", "3"]);
        command.arg("-o").arg(folder).output().unwrap()
    };
    let mut failed = 0;
    // Blocks have 512 bytes or 1 KiB. The tables have some KiB, and a trace has more.
    for blocks in [0, 1, 2, 4, 8] {
        let (run, check) =
            (temp.path().join(format!("{blocks}r")), temp.path().join(format!("{blocks}c")));
        let outs = [
            (limited(blocks, &["run", "-s", "vtime", "--csv"], &run), run),
            (limited(blocks, &["check", "-s", "vtime", "-s", "vtime"], &check), check.join("base")),
        ];
        for (out, folder) in outs {
            if out.status.success() {
                continue;
            }
            failed += 1;
            expect(&out, 6, "File too large");
            assert!(!folder.join(MANIFEST).exists(), "{blocks}");
            for file in ["results.json", RUNS, TASKS] {
                let Ok(bytes) = fs::read(folder.join(file)) else { continue };
                let whole = match file {
                    "results.json" => serde_json::from_slice::<Value>(&bytes).is_ok(),
                    _ => parquet::read(&bytes).is_ok(),
                };
                assert!(whole, "{file} with {blocks} blocks");
            }
        }
    }
    assert!(failed >= 6, "{failed} commands failed");
}

// SPDX-License-Identifier: GPL-2.0-only
//! Tests of interrupted runs, and of files that must be complete or absent.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use super::{check_schema, program, scxlab, trace};

/// A command with three runs, one after the other, each of a day of virtual time.
const ENDLESS: [&str; 15] = [
    "run",
    "-s",
    "vtime",
    "-w",
    "hogs,tasks=64",
    "-m",
    "64c",
    "-n",
    "3",
    "--jobs",
    "1",
    "--duration",
    "86400s",
    "--format",
    "json",
];

fn start(args: &[&str], folder: &Path) -> Child {
    let mut command = scxlab(args);
    command.arg("-o").arg(folder).stdout(Stdio::piped()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

fn files(folder: &Path) -> Vec<String> {
    let names =
        fs::read_dir(folder).unwrap().map(|f| f.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.collect();
    names.sort();
    names
}

/// Waits until the first run writes its trace.
fn wait_for_trace(folder: &Path) {
    while !folder.is_dir() || files(folder).is_empty() {
        thread::sleep(Duration::from_millis(10));
    }
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args([name, &child.id().to_string()]).status().unwrap();
    assert!(status.success());
}

#[test]
fn ctrl_c_ends_the_runs_and_keeps_what_there_is() {
    let temp = tempfile::tempdir().unwrap();
    let folder = temp.path().join("results");
    let child = start(&ENDLESS, &folder);
    wait_for_trace(&folder);
    // The trace has a temporary name until it is complete.
    assert!(!folder.join("trace.vtime.pftrace").exists());
    signal(&child, "-INT");
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(said.contains("cancelled; 0 runs are complete, 1 were cut short"), "{said}");
    assert!(said.contains("2 were not begun"), "{said}");
    let results: Value = serde_json::from_slice(&out.stdout).unwrap();
    check_schema(&results);
    let runs = results["runs"].as_array().unwrap();
    assert_eq!(runs.len(), 3);
    assert!(runs.iter().all(|run| run["stop"]["kind"] == "interrupted" && run["counts"] == false));
    assert!(runs[0]["metrics"]["work_units"]["value"].as_f64().unwrap() > 0.0);
    assert_eq!(runs[1]["stop"]["message"], "not begun: cancelled");
    let written = [
        "manifest.json",
        "report.txt",
        "request",
        "results.json",
        "runs.parquet",
        "tasks.parquet",
        "trace.vtime.pftrace",
    ];
    assert_eq!(files(&folder), written);
    assert!(trace::read(&folder.join("trace.vtime.pftrace")).packets > 10);
}

#[test]
fn a_deadline_holds_in_simulations() {
    let out = scxlab(&ENDLESS).args(["--deadline", "300ms"]).output().unwrap();
    assert_eq!(out.status.code(), Some(1));
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(said.contains("the deadline of 300ms has passed"), "{said}");
    let results: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(results["runs"].as_array().unwrap().iter().all(|run| run["counts"] == false));
}

#[test]
fn a_folder_has_one_writer() {
    let temp = tempfile::tempdir().unwrap();
    let first = start(&ENDLESS, temp.path());
    wait_for_trace(temp.path());
    let second = start(&ENDLESS, temp.path()).wait_with_output().unwrap();
    assert_eq!(second.status.code(), Some(6));
    let said = String::from_utf8(second.stderr).unwrap();
    assert!(said.contains("another scxlab is writing its results there"), "{said}");
    signal(&first, "-KILL");
    first.wait_with_output().unwrap();
    // A killed process leaves only temporary files, and the kernel releases its lock.
    assert!(files(temp.path()).iter().all(|name| name.ends_with(".part")));
    let brief = ["run", "-s", "vtime", "-w", "hogs", "-m", "2c", "--duration", "10ms"];
    assert!(start(&brief, temp.path()).wait_with_output().unwrap().status.success());
}

/// If two processes write the same trace, the file is complete, and comes from the process that
/// ended last.
#[test]
fn traces_of_one_name_are_whole() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("t.pftrace");
    let run = || {
        let args =
            ["run", "-s", "vtime", "-w", "schbench", "-m", "4c", "--duration", "300ms", "--trace"];
        scxlab(&args).arg(&file).stdout(Stdio::null()).spawn().unwrap()
    };
    let both = [run(), run()];
    for mut child in both {
        assert!(child.wait().unwrap().success());
    }
    assert!(trace::read(&file).packets > 10);
    assert_eq!(files(temp.path()), ["t.pftrace"]);
}

#[test]
fn a_full_disk_is_named_and_a_device_stays_one() {
    let args = [
        "run",
        "-s",
        "vtime",
        "-w",
        "hogs",
        "-m",
        "2c",
        "--duration",
        "100ms",
        "--trace",
        "/dev/full",
    ];
    let out = scxlab(&args).output().unwrap();
    assert_eq!(out.status.code(), Some(6));
    let said = String::from_utf8(out.stderr).unwrap();
    assert!(said.contains("/dev/full") && said.contains("No space left"), "{said}");
    assert!(!fs::metadata("/dev/full").unwrap().is_file());
}

/// Containers and batch systems limit the address space of a process. Commands succeed under a
/// limit of 4 GiB; under 1 GiB a run fails, and its message names the limit.
#[test]
fn address_space_is_what_the_run_needs() {
    let under = |kib: u32, args: &str| {
        let script = format!("ulimit -v {kib}; exec \"$0\" {args}");
        let out = program("sh").args(["-c", &script, env!("CARGO_BIN_EXE_scxlab")]).output();
        let out = out.unwrap();
        (out.status.code(), String::from_utf8(out.stderr).unwrap())
    };
    let run = "run -s vtime -w hogs -m 4c --duration 20ms --jobs 1";
    assert_eq!(under(4 << 20, run), (Some(0), String::new()));
    assert_eq!(under(4 << 20, "inspect vtime"), (Some(0), String::new()));
    let (code, said) = under(1 << 20, run);
    assert_eq!(code, Some(7), "{said}");
    assert!(said.contains("bytes of address space") && said.contains("ulimit -v"), "{said}");
}

/// The origin of an error and of a stall appears on the terminal, in report.txt, in results.json
/// and in the debug dump.
#[test]
fn an_exit_says_everywhere_where_it_comes_from() {
    let temp = tempfile::tempdir().unwrap();
    let victims = temp.path().join("w.toml");
    let text = "[[thread]]\nname = 'victim'\nops = [{ sleep = '1ms' }, { compute = '1ms' }, { sleep = '1ms' }]\n";
    fs::write(&victims, text).unwrap();
    let knobs = [("lapse,wrong=3,eject_after_ns=1", 1), ("lapse,starve=118", 3)];
    for (nth, (scheduler, least)) in knobs.into_iter().enumerate() {
        let folder = temp.path().join(nth.to_string());
        let mut command = scxlab(&["run", "-m", "2c", "--duration", "50s", "-s", scheduler]);
        let out = command.arg("-o").arg(&folder).arg("-w").arg(&victims).output().unwrap();
        let table = String::from_utf8(out.stdout).unwrap();
        let report = fs::read_to_string(folder.join("report.txt")).unwrap();
        let results = fs::read(folder.join("results.json")).unwrap();
        let results: Value = serde_json::from_slice(&results).unwrap();
        check_schema(&results);
        let exit = &results["runs"][0]["exit"];
        let origin: Vec<&str> =
            exit["origin"].as_array().unwrap().iter().map(|line| line.as_str().unwrap()).collect();
        assert!(origin.len() >= least, "{exit}");
        let indented: String = origin.iter().map(|line| format!("\n  {line}")).collect();
        let said = format!("{}{indented}\n", exit["message"].as_str().unwrap());
        assert!(table.contains(&said), "{table}");
        assert!(report.contains(&said), "{report}");
        let dump = exit["dump"].as_str().unwrap();
        assert!(dump.contains(&format!("\nBacktrace:{indented}\n  #0 lapse_enqueue [")), "{dump}");
    }
}

/// Names from files are escaped in the table, in report.txt, in timelines and in errors.
#[test]
fn a_terminal_obeys_no_name() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("w.toml");
    let thread = "[[thread]]\nname = \"\\u001b]0;x\\u0007victim\"\nops = [{ compute = '1ms' }]\n";
    fs::write(
        &file,
        thread.to_owned()
            + "[[thread]]\nname = 'b'\nops = [{ loop = { ops = [{ compute = '1ms' }] } }]\n",
    )
    .unwrap();
    let folder = temp.path().join("results");
    let run = |extra: &[&str]| {
        let mut command =
            scxlab(&["run", "-m", "1c", "--duration", "30ms", "--timeline", "0ms..30ms"]);
        command.args(extra).arg("-o").arg(&folder).arg("-w").arg(&file).output().unwrap()
    };
    let starved = run(&["-s", "lapse,starve=27"]);
    let said = String::from_utf8([starved.stdout, starved.stderr].concat()).unwrap();
    let report = fs::read_to_string(folder.join("report.txt")).unwrap();
    assert!(said.contains("never ran: \\u{1b}]0;x\\u{7}victim"), "{said}");
    assert!(report.contains("\\u{1b}]0;x\\u{7}victim"), "{report}");
    let refused = run(&["-s", "vtime,\u{1b}[2J=1"]);
    assert_ne!(refused.status.code(), Some(0));
    let error = String::from_utf8(refused.stderr).unwrap();
    assert!(error.contains("\\u{1b}[2J"), "{error}");
    for text in [said, report, error] {
        assert!(!text.contains(|c: char| c.is_control() && c != '\n'), "{text:?}");
    }
}

#[test]
fn a_manifest_names_the_commit() {
    let results =
        super::json(&["run", "-s", "eevdf", "-w", "hogs", "-m", "1c", "--duration", "5ms"]);
    let commit = results["manifest"]["scxlab"]["commit"].as_str();
    let is_commit = |text: &str| text.len() == 40 && text.chars().all(|c| c.is_ascii_hexdigit());
    assert_eq!(commit.is_some_and(is_commit), super::root().join(".git").exists(), "{commit:?}");
}

/// The test limits file sizes to increasing values, which acts like a full disk. The error says
/// that a file is too large, and no incomplete file remains.
#[test]
fn a_full_disk_leaves_no_half_files() {
    let temp = tempfile::tempdir().unwrap();
    let whole = full_disk(&temp.path().join("whole"), None).1;
    assert!(whole.iter().any(|(name, _)| name.ends_with(".pftrace")), "{whole:?}");
    let largest = whole.iter().map(|(_, bytes)| bytes.len()).max().unwrap();
    let mut blocks = 0;
    loop {
        let (said, files) = full_disk(&temp.path().join(blocks.to_string()), Some(blocks));
        for (name, bytes) in &files {
            let expected = whole.iter().find(|(n, _)| n == name).map(|(_, bytes)| bytes);
            // The bytes of the results are not compared, because they contain the runs' wall time.
            let same = name.starts_with("results") || expected == Some(bytes);
            assert!(expected.is_some() && same, "{blocks} blocks: {name} is not whole");
        }
        let Some(said) = said else { break };
        assert!(said.contains("File too large"), "{blocks} blocks: {said}");
        assert!(files.len() < whole.len(), "{blocks} blocks: all is there");
        blocks = blocks * 5 / 4 + 1;
    }
    assert!(blocks * 512 > largest / 2, "{blocks} blocks of {largest} bytes");
}

/// Makes a run whose files are limited to `blocks` blocks of 512 bytes. Returns its messages if it
/// fails, and the files that it leaves.
fn full_disk(folder: &Path, blocks: Option<usize>) -> (Option<String>, Vec<(String, Vec<u8>)>) {
    let limit = blocks.map_or("unlimited".to_owned(), |n| n.to_string());
    let script = "trap '' XFSZ; ulimit -f $0; exec \"$@\"";
    let mut command = program("sh");
    command.args(["-c", script, &limit, env!("CARGO_BIN_EXE_scxlab")]);
    command.args(["run", "-s", "vtime", "-w", "hogs,tasks=2", "-m", "2c", "--duration", "50ms"]);
    fs::create_dir(folder).unwrap();
    // The output folder has the same name each time, because one of the files holds the command,
    // and its bytes are compared.
    let out = command.args(["-o", "out"]).current_dir(folder).output().unwrap();
    let said = (!out.status.success()).then(|| String::from_utf8_lossy(&out.stderr).into_owned());
    let out = folder.join("out");
    let mut names = Vec::new();
    for (below, dir) in [("", out.clone()), ("request/", out.join("request"))] {
        let found = if dir.is_dir() { files(&dir) } else { Vec::new() };
        names.extend(found.iter().filter(|n| *n != "request").map(|n| format!("{below}{n}")));
    }
    let read = |name: String| {
        let bytes = fs::read(out.join(&name)).unwrap();
        (name, bytes)
    };
    (said, names.into_iter().map(read).collect())
}

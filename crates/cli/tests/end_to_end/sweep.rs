// SPDX-License-Identifier: GPL-2.0-only
//! `scxlab sweep` from outside: the same table whatever happened on the way, nothing run twice,
//! refusals before work.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Child, Stdio};

use scxlab_results::parquet::{self, Values};
use tempfile::TempDir;

use super::scxlab;

const SWEEP: &str = "\
machines = ['1n2c1t', '2n2c1t']
seeds = 3
duration = '20ms'
metrics = ['throughput', 'context_switches']

[[scheduler]]
name = 'eevdf'

[[scheduler]]
name = 'vtime'
knobs = { slice_ns = [1000000, 5000000] }

[[workload]]
name = 'hogs'
parameters = { tasks = [3, 5] }
";

/// Number of cells of `SWEEP`.
const CELLS: usize = 36;

fn folder_with(text: &str) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("s.toml"), text).unwrap();
    folder
}

/// Runs the sweep in a folder, and returns its exit code and what it printed.
fn sweep(folder: &Path, args: &[&str]) -> (i32, String) {
    let out = scxlab(&["sweep", "s.toml"]).args(args).current_dir(folder).output().unwrap();
    let text = [out.stdout, out.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    (out.status.code().unwrap(), text)
}

fn results(folder: &Path) -> Vec<u8> {
    fs::read(folder.join("s.sweep/results.parquet")).unwrap()
}

/// Returns the number of times that each cell is in the store.
fn stored(folder: &Path) -> BTreeMap<(String, i64), usize> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder.join("s.sweep/cells")).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|end| end != "parquet") {
            continue;
        }
        let table = parquet::read(&fs::read(path).unwrap()).unwrap();
        let (Some(Values::Text(setups)), Some(Values::Int(seeds))) =
            (table.column("setup"), table.column("seed"))
        else {
            panic!("no keys")
        };
        for (setup, seed) in setups.iter().zip(seeds) {
            *all.entry((setup.clone().unwrap(), seed.unwrap())).or_default() += 1;
        }
    }
    all
}

#[test]
fn a_sweep_has_a_row_for_each_cell() {
    let folder = folder_with(SWEEP);
    let (code, text) = sweep(folder.path(), &[]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("36 of 36 cells finished\n  0 were there, 36 were run"), "{text}");
    let table = parquet::read(&results(folder.path())).unwrap();
    assert_eq!(table.rows(), CELLS);
    let Some(Values::Int(slices)) = table.column("knob.slice_ns") else { panic!("no slices") };
    let of = |slice| slices.iter().filter(|found| **found == slice).count();
    assert_eq!([of(None), of(Some(1_000_000)), of(Some(5_000_000))], [12, 12, 12]);
    let Some(Values::Float(switches)) = table.column("context_switches") else {
        panic!("no switches")
    };
    let mean = |slice| {
        let rows = slices.iter().zip(switches).filter(|(found, _)| **found == slice);
        rows.map(|(_, switches)| switches.unwrap()).sum::<f64>()
    };
    assert!(mean(Some(1_000_000)) > mean(Some(5_000_000)), "a short slice switches more often");
}

/// A row of the table is the run that `scxlab run` makes.
#[test]
fn a_cell_is_the_run_of_the_same_arguments() {
    let folder = folder_with(SWEEP);
    assert_eq!(sweep(folder.path(), &[]).0, 0);
    let table = parquet::read(&results(folder.path())).unwrap();
    let Some(Values::Text(hashes)) = table.column("trace_hash") else { panic!("no hashes") };
    let args = ["run", "-s", "vtime,slice_ns=5000000", "-w", "hogs,tasks=5", "-m", "2n2c1t"];
    let args = [&args[..], &["--seed", "3", "--duration", "20ms"]].concat();
    let run = super::json(&args);
    assert_eq!(hashes.last().unwrap().as_deref(), run["runs"][0]["trace_hash"].as_str());
}

#[test]
fn threads_and_order_do_not_change_the_table() {
    let (one, three) = (folder_with(SWEEP), folder_with(SWEEP));
    assert_eq!(sweep(one.path(), &["-j", "1"]).0, 0);
    assert_eq!(sweep(three.path(), &["-j", "3"]).0, 0);
    assert!(results(one.path()) == results(three.path()));
}

#[test]
fn more_seeds_and_values_run_only_what_is_new() {
    let folder = folder_with(SWEEP);
    assert_eq!(sweep(folder.path(), &[]).0, 0);
    let more = SWEEP.replace("seeds = 3", "seeds = 4").replace("[3, 5]", "[3, 4, 5]");
    fs::write(folder.path().join("s.toml"), &more).unwrap();
    let (code, text) = sweep(folder.path(), &[]);
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("36 were there, 36 were run"), "{text}");
    let fresh = folder_with(&more);
    assert_eq!(sweep(fresh.path(), &[]).0, 0);
    assert!(results(folder.path()) == results(fresh.path()));
    let (_, text) = sweep(folder.path(), &[]);
    assert!(text.contains("72 were there, 0 were run"), "{text}");
}

/// The key of a cell is made of contents, not of names.
#[test]
fn a_renamed_workload_is_not_run_again_and_a_changed_one_is() {
    let program =
        "duration = '10ms'\nname = 'w'\n[[thread]]\nname = 't'\nops = [{ compute = '3ms' }]\n";
    let of = |name: &str| {
        format!(
            "machines = ['1c']\nseeds = 1\n[[scheduler]]\nname = 'vtime'\n[[workload]]\nname = '{name}'\n"
        )
    };
    let folder = folder_with(&of("a.toml"));
    fs::write(folder.path().join("a.toml"), program).unwrap();
    fs::write(folder.path().join("b.toml"), program).unwrap();
    assert_eq!(sweep(folder.path(), &[]).0, 0);
    fs::write(folder.path().join("s.toml"), of("b.toml")).unwrap();
    assert!(sweep(folder.path(), &[]).1.contains("1 were there, 0 were run"));
    fs::write(folder.path().join("b.toml"), program.replace("3ms", "4ms")).unwrap();
    assert!(sweep(folder.path(), &[]).1.contains("0 were there, 1 were run"));
}

fn start(folder: &Path) -> Child {
    let mut command = scxlab(&["sweep", "s.toml", "-j", "2"]);
    command.current_dir(folder).stdout(Stdio::null()).stderr(Stdio::null());
    command.spawn().unwrap()
}

/// Whenever a sweep is killed, the next one continues: nothing that was stored is run again, and
/// the table is that of a sweep that was not killed.
#[test]
fn a_killed_sweep_continues() {
    let text = SWEEP.replace("20ms", "400ms").replace("seeds = 3", "seeds = 12");
    let folder = folder_with(&text);
    for kill in 0..4 {
        let mut child = start(folder.path());
        // Kill when new cells have come in, or in the middle of the work on the first ones.
        let before = stored(folder.path()).len();
        while kill > 0
            && stored(folder.path()).len() == before
            && child.try_wait().unwrap().is_none()
        {
            std::thread::yield_now();
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(stored(folder.path()).values().all(|times| *times == 1));
    }
    let before = stored(folder.path()).len();
    let (code, text_of_last) = sweep(folder.path(), &[]);
    assert_eq!(code, 0, "{text_of_last}");
    assert!(text_of_last.contains(&format!("{before} were there")), "{text_of_last}");
    assert!(stored(folder.path()).values().all(|times| *times == 1));
    let whole = folder_with(&text);
    assert_eq!(sweep(whole.path(), &[]).0, 0);
    assert!(results(folder.path()) == results(whole.path()));
}

#[test]
fn a_cell_that_cannot_be_run_is_a_row_with_its_reason() {
    let text = "machines = ['1n1c1t', '1n4c1t']\nseeds = 2\nduration = '10ms'\n\
        [[scheduler]]\nname = 'eevdf'\n[[workload]]\nname = 'w.toml'\n";
    let folder = folder_with(text);
    let program = "[[thread]]\nname = 't'\ncpus = '2'\nops = [{ compute = '1ms' }]\n";
    fs::write(folder.path().join("w.toml"), program).unwrap();
    let (code, said) = sweep(folder.path(), &[]);
    assert_eq!(code, 1, "{said}");
    assert!(
        said.contains("2 could not be run; the first: ") && said.contains("machine=1n1c1t"),
        "{said}"
    );
    let table = parquet::read(&results(folder.path())).unwrap();
    let Some(Values::Bool(counts)) = table.column("counts") else { panic!("no verdict") };
    assert_eq!(counts[..], [Some(false), Some(false), Some(true), Some(true)]);
    // The reason is stored, and the cell is not tried again.
    assert!(sweep(folder.path(), &[]).1.contains("4 were there, 0 were run"));
}

/// The object's frontend is a program of its own, which is absent: it ejects itself.
#[test]
fn an_ejected_cell_is_a_result() {
    let object = super::root().join("build/kernel/objects/scx_userland.bpf.o");
    let text = format!(
        "machines = ['1n2c1t']\nseeds = 2\nduration = '10ms'\n\
         [[scheduler]]\nname = '{}'\n[[workload]]\nname = 'hogs'\n",
        object.display()
    );
    let folder = folder_with(&text);
    let (code, said) = sweep(folder.path(), &[]);
    assert_eq!(code, 0, "{said}");
    assert!(said.contains("2 ejected (") && said.contains("seed=1: "), "{said}");
    let table = parquet::read(&results(folder.path())).unwrap();
    let Some(Values::Text(exits)) = table.column("exit") else { panic!("no exits") };
    assert!(exits.iter().all(|exit| exit.as_deref().is_some_and(|exit| exit != "none")));
    assert!(sweep(folder.path(), &[]).1.contains("2 were there, 0 were run"));
}

#[test]
fn a_store_of_another_version_is_refused() {
    let folder = folder_with(SWEEP);
    assert_eq!(sweep(folder.path(), &[]).0, 0);
    let about = folder.path().join("s.sweep/store.json");
    let text = fs::read_to_string(&about).unwrap();
    let simulator = text.split('"').nth(9).unwrap().to_owned();
    fs::write(&about, text.replace(&simulator, "0123456789abcdef")).unwrap();
    let (code, said) = sweep(folder.path(), &[]);
    assert_eq!(code, 3, "{said}");
    assert!(said.contains("0123456789abcdef") && said.contains(&simulator), "{said}");
}

#[test]
fn a_folder_of_other_things_is_refused() {
    let folder = folder_with(SWEEP);
    let (code, said) = sweep(folder.path(), &["-o", "."]);
    assert_eq!(code, 3, "{said}");
    assert!(said.contains("s.toml") && said.contains("empty or a new folder"), "{said}");
}

/// Paths in a sweep's file are relative to its folder, and else to the current folder.
#[test]
fn files_are_looked_up_beside_the_sweep() {
    let folder = tempfile::tempdir().unwrap();
    let beside = folder.path().join("sweeps");
    fs::create_dir(&beside).unwrap();
    let workload = |tasks: u32| {
        format!("[[thread]]\nname = 'w'\ninstances = {tasks}\nops = [{{ compute = '1ms' }}]\n")
    };
    let file = "machines = ['2c']\nseeds = 1\n[[scheduler]]\nname = 'eevdf'\n\
                [[workload]]\nname = 'w.toml'\n";
    fs::write(beside.join("s.toml"), file).unwrap();
    let run = || {
        let out = scxlab(&["sweep", "sweeps/s.toml"]).current_dir(&folder).output().unwrap();
        (out.status.code(), String::from_utf8(out.stderr).unwrap())
    };
    let (code, said) = run();
    let expected = "sweeps/s.toml: w.toml: no such file in sweeps or in the current folder";
    assert!(code == Some(3) && said.contains(expected), "{code:?} {said}");
    fs::write(folder.path().join("w.toml"), "no workload").unwrap();
    assert_eq!(run().0, Some(3), "the file of the current folder is read, and is wrong");
    fs::write(beside.join("w.toml"), workload(3)).unwrap();
    assert_eq!(run(), (Some(0), String::new()));
}

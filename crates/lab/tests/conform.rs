// SPDX-License-Identifier: GPL-2.0-only
//! Tests that the simulated half of every conformance case runs, loses no entry, is deterministic,
//! and gives the operations in `cases/conform/simulated.txt`. This file makes a change of the
//! simulator visible in review, even where no virtual machine is available. `BLESS=1` rewrites it.

use std::path::Path;
use std::sync::Arc;

use scxlab_lab::conform::{Case, Observed, SHIPPED, simulate};
use scxlab_lab::input::{RecipeInput, SchedulerInput};
use scxlab_lab::prepare::Prepared;
use scxlab_machine::Machine;

fn cases() -> Vec<Case> {
    let read =
        |(name, text): &(&str, &str)| Case::parse(name, text).unwrap_or_else(|e| panic!("{e}"));
    SHIPPED.iter().map(read).collect()
}

#[test]
fn every_case_of_the_folder_is_shipped() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cases/conform");
    let mut names: Vec<_> = std::fs::read_dir(&folder)
        .expect("the cases' folder")
        .filter_map(|e| e.ok()?.file_name().to_str()?.strip_suffix(".toml").map(str::to_owned))
        .collect();
    names.sort();
    assert_eq!(SHIPPED.iter().map(|(name, _)| *name).collect::<Vec<_>>(), names);
}

fn shown(case: &Case, observed: &Observed) -> String {
    let mut text = format!("{}: exit {}\n", case.name, observed.exit);
    for (about, ops) in &observed.sequences {
        text.push_str(&format!("  {about}: {}\n", ops.join(" ")));
    }
    text
}

#[test]
fn every_case_runs_simulated() {
    let machine = Arc::new(Machine::resolve("2n2c1t").unwrap());
    let object = scxlab_sched::selftests().iter().find(|s| s.name == "tracer").unwrap().object;
    let mut text = String::new();
    for case in cases() {
        let tracer = SchedulerInput::of_object(&case.tracer(), object, RecipeInput::None);
        let tracer = Prepared::simulated(&tracer.unwrap(), &machine).unwrap();
        let run = |seed| simulate(&case, &tracer, &machine, seed).unwrap_or_else(|e| panic!("{e}"));
        let observed = run(1);
        assert_eq!(observed.lost, 0, "{}", case.name);
        for about in &case.watch {
            assert!(observed.sequences.contains_key(about), "{}: nothing of {about}", case.name);
        }
        assert_eq!(observed, run(1), "{}: not the same twice", case.name);
        text.push_str(&shown(&case, &observed));
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../cases/conform/simulated.txt");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, &text).expect("a writable file");
    }
    let before = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(before, text, "BLESS=1 rewrites it, if that is right");
}

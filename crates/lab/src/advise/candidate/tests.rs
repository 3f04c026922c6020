// SPDX-License-Identifier: GPL-2.0-only
//! Tests of the variants of a candidate's knobs.

use super::*;
use crate::input::{NoFiles, Workload};

fn with_candidates<R>(check: impl FnOnce(Candidates<'_>) -> R) -> R {
    let machine = Machine::resolve("4c").unwrap();
    let Workload::Program(program) = Workload::resolve("hogs", &NoFiles).unwrap() else {
        panic!("hogs is a program")
    };
    let origin = Origin { machine: &machine, program: &program, files: &NoFiles };
    check(Candidates::collect(&Sources::default(), origin).unwrap())
}

fn texts(candidates: &Candidates<'_>, from: usize) -> Vec<String> {
    candidates.all()[from..].iter().map(|c| c.text().to_owned()).collect()
}

#[test]
fn the_default_class_comes_first_and_each_scheduler_before_its_settings() {
    with_candidates(|candidates| {
        let all = texts(&candidates, 0);
        assert_eq!(all[0], "eevdf");
        for shipped in scxlab_sched::shipped() {
            let of_it: Vec<usize> = (0..all.len())
                .filter(|at| all[*at].split(',').next() == Some(shipped.name))
                .collect();
            assert!(of_it.len() > 1 && all[of_it[0]] == shipped.name, "{all:?}");
        }
    });
}

#[test]
fn neighbours_differ_in_one_knob_and_are_new() {
    with_candidates(|mut candidates| {
        let find = |c: &Candidates<'_>, text: &str| c.all().iter().position(|x| x.text() == text);
        let of = find(&candidates, "vtime,sleep_lag_ns=0").unwrap();
        let count = candidates.all().len();
        let new = candidates.add_neighbours(of);
        assert_eq!(new, (count..candidates.all().len()).collect::<Vec<_>>());
        let found = texts(&candidates, count);
        assert!(found.contains(&"vtime,slice_ns=20000000,sleep_lag_ns=0".to_owned()), "{found:?}");
        assert!(found.iter().all(|text| text.matches(',').count() == 2), "{found:?}");
        // A second call finds all of them known.
        assert_eq!(candidates.add_neighbours(of), Vec::<usize>::new());
        let plain = find(&candidates, "vtime").unwrap();
        assert_eq!(candidates.add_neighbours(plain), Vec::<usize>::new());
    });
}

#[test]
fn a_given_candidate_is_tried_as_it_is() {
    let machine = Machine::resolve("4c").unwrap();
    let Workload::Program(program) = Workload::resolve("hogs", &NoFiles).unwrap() else {
        panic!("hogs is a program")
    };
    let origin = Origin { machine: &machine, program: &program, files: &NoFiles };
    let sources = Sources {
        given: vec!["vtime".into(), "eevdf".into(), "vtime".into()],
        ..Sources::default()
    };
    let mut candidates = Candidates::collect(&sources, origin).unwrap();
    assert_eq!(texts(&candidates, 0), ["eevdf", "vtime"]);
    assert_eq!(candidates.add_neighbours(1), Vec::<usize>::new());
}

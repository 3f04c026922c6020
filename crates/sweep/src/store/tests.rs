// SPDX-License-Identifier: GPL-2.0-only
//! Merging, leftovers of killed writers, damaged files.

use std::fs;

use indexmap::IndexMap;
use scxlab_results::parquet::Values;

use super::*;
use crate::cell::{METRIC, Outcome};
use crate::plan::SetupKey;

fn result(seed: u64) -> CellResult {
    let outcome = Outcome {
        counts: true,
        exit: "none".to_owned(),
        exit_message: String::new(),
        stop: "duration".to_owned(),
        stop_message: String::new(),
        never_ran: 0,
        virtual_ns: seed,
        trace_hash: format!("{seed:016x}"),
    };
    // Schedulers differ in their counters, and so do the columns of files.
    let metrics = [("all".to_owned(), seed as f64), (format!("sched.{}", seed % 3), 1.0)];
    let key = CellKey { setup: SetupKey([seed % 7, 1]), seed };
    CellResult { key, outcome, metrics: IndexMap::from(metrics) }
}

fn nr_files(folder: &Path) -> usize {
    fs::read_dir(folder.join(CELLS)).unwrap().count()
}

/// Returns the value of `all` of each row, by key.
fn rows(store: &Store) -> Vec<(CellKey, f64)> {
    let mut rows = Vec::new();
    store
        .each(&|name| name == format!("{METRIC}all"), &mut |keys, table| {
            let Some(Values::Float(values)) = table.column(&format!("{METRIC}all")) else {
                panic!("no values")
            };
            rows.extend(keys.into_iter().zip(values.iter().map(|value| value.unwrap())));
        })
        .unwrap();
    rows.sort_by_key(|(key, _)| *key);
    rows
}

#[test]
fn small_files_are_merged_without_loss() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let nr = FILES_MAX as u64 + 10;
    for seed in 1..=nr {
        store.add(&[result(seed)]).unwrap();
    }
    let before = rows(&store);
    assert_eq!(before.len(), nr as usize);
    assert!(before.iter().all(|(key, value)| key.seed as f64 == *value));
    store.merge().unwrap();
    assert_eq!(nr_files(folder.path()), 1);
    assert_eq!(rows(&store), before);
    // Counters that a cell does not have are null.
    let mut nulls = 0;
    store
        .each(&|name| name == format!("{METRIC}sched.1"), &mut |_, table| {
            let Some(Values::Float(values)) = table.column(&format!("{METRIC}sched.1")) else {
                panic!("no counter")
            };
            nulls += values.iter().filter(|value| value.is_none()).count();
        })
        .unwrap();
    assert_eq!(nulls as u64, (1..=nr).filter(|seed| seed % 3 != 1).count() as u64);
}

#[test]
fn few_files_stay() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    (1..=5).for_each(|seed| store.add(&[result(seed)]).unwrap());
    store.merge().unwrap();
    assert_eq!(nr_files(folder.path()), 5);
}

#[test]
fn files_of_batches_become_one_file() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    let files: Vec<_> = (1..=4).map(|seed| cell::file(&[result(seed)])).collect();
    store.add_files(&files).unwrap();
    assert_eq!(nr_files(folder.path()), 1);
    assert_eq!(store.keys().unwrap(), (1..=4).map(|seed| result(seed).key).collect());
    store.add_files(&[]).unwrap();
    assert!(store.add_files(&[b"no file".to_vec(), files[0].clone()]).is_err());
    assert_eq!(nr_files(folder.path()), 1);
}

#[test]
fn the_rest_of_a_killed_write_is_removed() {
    let folder = tempfile::tempdir().unwrap();
    drop(Store::open(folder.path()).unwrap());
    fs::create_dir_all(folder.path().join(CELLS)).unwrap();
    let rest = folder.path().join(CELLS).join(".x.parquet1234.part");
    fs::write(&rest, "half").unwrap();
    let store = Store::open(folder.path()).unwrap();
    assert!(!rest.exists());
    assert!(store.keys().unwrap().is_empty());
}

#[test]
fn one_process_writes_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    assert!(matches!(Store::open(folder.path()), Err(SweepError::Busy { .. })));
    drop(store);
    Store::open(folder.path()).unwrap();
}

#[test]
fn a_damaged_file_is_said_with_its_path() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    store.add(&[result(1)]).unwrap();
    let file = fs::read_dir(folder.path().join(CELLS)).unwrap().next().unwrap().unwrap().path();
    let bytes = fs::read(&file).unwrap();
    fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
    let error = store.keys().unwrap_err();
    assert!(matches!(error, SweepError::Damaged { .. }), "{error}");
    assert!(error.to_string().contains(&file.display().to_string()), "{error}");
}

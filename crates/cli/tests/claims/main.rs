// SPDX-License-Identifier: GPL-2.0-only
//! Claims: sentences on pages about schedulers, each with runs that show it.
//!
//! A claim is a file in `cases/claims`. It names variants of a command, at least two machines, and
//! checks that must hold on every machine under every seed. A page names the claim, and this test
//! compares the figures between its markers with the runs. `BLESS=1` rewrites figures, but never
//! checks. `CLAIM=o1` runs only claims whose names begin with `o1`. `make claims-vm` runs the
//! claims that are measured in virtual machines. The test evaluates the checks of these claims, but
//! does not compare their figures, because runs on a real kernel are not reproducible.

mod check;
mod claim;
mod figures;
mod page;
mod prose;
mod reading;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::thread;

use claim::{Claim, SEEDS};
use page::Pages;
use reading::Reading;

/// Command that rewrites the figures of all pages.
const BLESS: &str = "BLESS=1 cargo test -p scxlab-cli --test claims";

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// Returns all files below a folder whose names end with `end`, in order.
fn files(folder: &Path, end: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, end));
        } else if path.to_string_lossy().ends_with(end) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// Returns all claims by name: `credit/spares` is `cases/claims/credit/spares.toml`.
fn claims() -> BTreeMap<String, Claim> {
    let folder = root().join("cases/claims");
    let one = |path: PathBuf| {
        let name = path.strip_prefix(&folder).unwrap().with_extension("").display().to_string();
        let text = fs::read_to_string(&path).unwrap();
        let claim = Claim::parse(&text).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        (name, claim)
    };
    files(&folder, ".toml").into_iter().map(one).collect()
}

/// Runs the commands of all claims, with as many processes at a time as there are CPUs. Returns the
/// results of each claim's commands, in the order of `claims`.
fn readings(claims: &[(&String, &Claim)]) -> Vec<Vec<Reading>> {
    let jobs: Vec<(usize, Vec<String>)> = claims
        .iter()
        .enumerate()
        .flat_map(|(at, (_, claim))| claim.commands().into_iter().map(move |args| (at, args)))
        .collect();
    let next = Mutex::new(jobs.iter().enumerate());
    let done = Mutex::new(BTreeMap::new());
    let worker = || {
        loop {
            let Some((job, (_, args))) = next.lock().unwrap().next() else { return };
            let reading = Reading::of(&root(), args);
            done.lock().unwrap().insert(job, reading);
        }
    };
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(worker);
        }
    });
    let mut all: Vec<Vec<Reading>> = claims.iter().map(|_| Vec::new()).collect();
    for ((at, _), reading) in jobs.iter().zip(done.into_inner().unwrap().into_values()) {
        all[*at].push(reading);
    }
    all
}

/// Tells whether to run a claim. `CLAIM` selects claims by the beginning of their names. With
/// `CLAIMS_VM=1`, only claims that are measured in virtual machines run, and otherwise only
/// simulated claims.
fn is_chosen(name: &str, claim: &Claim) -> bool {
    let only = std::env::var("CLAIM").unwrap_or_default();
    if !name.starts_with(&only) || claim.is_live() != std::env::var_os("CLAIMS_VM").is_some() {
        return false;
    }
    let missing = claim.missing(&root());
    if let Some(file) = &missing {
        eprintln!("{name} is skipped: there is no {file}");
    }
    missing.is_none()
}

#[test]
fn claims_hold_and_pages_show_them() {
    let all = claims();
    let chosen: Vec<(&String, &Claim)> =
        all.iter().filter(|(name, claim)| is_chosen(name, claim)).collect();
    let mut pages = Pages::read(&root());
    let mut faults = pages.faults(&all);
    for ((name, claim), readings) in chosen.iter().zip(readings(&chosen)) {
        match claim.table(&readings) {
            Ok(table) => {
                let broken = claim.broken(&readings);
                faults.extend(broken.into_iter().map(|why| format!("{name}: {why}")));
                pages.put(name, &table);
            }
            Err(why) => faults.push(format!("{name}: {why}")),
        }
    }
    if std::env::var_os("BLESS").is_some() {
        pages.write();
    } else if std::env::var_os("CLAIMS_VM").is_none() {
        faults.extend(pages.stale().iter().map(|page| format!("{page} is stale; {BLESS}")));
    }
    assert!(faults.is_empty(), "{} seeds each:\n{}", SEEDS, faults.join("\n"));
}

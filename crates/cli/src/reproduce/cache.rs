// SPDX-License-Identifier: GPL-2.0-only
//! Runs that `scxlab reproduce` made before, as files in the user's cache folder.
//!
//! Owns: the form of an entry. An entry holds its whole key and a checksum; an entry that is
//! damaged or comes from another version of the simulator is made anew.

use std::fs;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use scxlab_lab::reproduce::job::{KeptRun, RunKey, RunStore};
use scxlab_lab::sim::SIMULATOR;
use scxlab_machine::hash::hash_bytes;
use scxlab_results::kept_code::cache_folder;
use serde::{Deserialize, Serialize};

use crate::output;

/// The folder with one file for each run.
pub struct RunCache {
    folder: PathBuf,
    damaged: AtomicUsize,
    outdated: AtomicUsize,
    unwritable: AtomicUsize,
}

#[derive(Serialize, Deserialize)]
struct Entry {
    simulator: String,
    setup: String,
    seed: u64,
    /// Hash of `run`.
    sum: String,
    /// The run as JSON.
    run: String,
}

impl RunCache {
    /// Returns the cache of this user; None if the user has no home folder.
    pub fn open() -> Option<RunCache> {
        Some(RunCache {
            folder: cache_folder()?.join("cells"),
            damaged: AtomicUsize::new(0),
            outdated: AtomicUsize::new(0),
            unwritable: AtomicUsize::new(0),
        })
    }

    /// Says how many entries could not be used.
    pub fn say_unusable(&self) {
        let say = |count: &AtomicUsize, what: &str| match count.load(Ordering::Relaxed) {
            0 => {}
            n => output::say(&format!("{n} kept runs {what}; they are made anew")),
        };
        say(&self.damaged, "are damaged");
        say(&self.outdated, "come from another version of the simulator");
    }

    fn path(&self, key: &RunKey) -> PathBuf {
        let name = format!("{:016x}", hash_bytes(format!("{} {}", key.setup, key.seed).as_bytes()));
        self.folder.join(&name[..2]).join(name + ".json")
    }
}

impl RunStore for RunCache {
    fn get(&self, key: &RunKey) -> Option<KeptRun> {
        let text = fs::read(self.path(key)).ok()?;
        let damaged = || {
            self.damaged.fetch_add(1, Ordering::Relaxed);
        };
        let Ok(entry) = serde_json::from_slice::<Entry>(&text) else {
            damaged();
            return None;
        };
        if entry.simulator != SIMULATOR {
            self.outdated.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        // Two keys may have one file name; then the later run replaces the earlier one.
        if (&entry.setup, entry.seed) != (&key.setup, key.seed) {
            return None;
        }
        let run = serde_json::from_str(&entry.run).ok().filter(|_| entry.sum == sum(&entry.run));
        if run.is_none() {
            damaged();
        }
        run
    }

    fn put(&self, key: &RunKey, run: &KeptRun) {
        let run = serde_json::to_string(run).expect("a run is plain data");
        let entry = Entry {
            simulator: SIMULATOR.to_owned(),
            setup: key.setup.clone(),
            seed: key.seed,
            sum: sum(&run),
            run,
        };
        let text = serde_json::to_vec(&entry).expect("an entry is plain data");
        let path = self.path(key);
        let folder = path.parent().expect("an entry has a folder");
        let written = output::make_folder(folder).and_then(|()| output::write_file(&path, &text));
        // Without a cache the result is the same, so the first failure is said and the work goes
        // on.
        if let Err(error) = written
            && self.unwritable.fetch_add(1, Ordering::Relaxed) == 0
        {
            output::say(&format!("runs are not kept: {error}"));
        }
    }
}

fn sum(text: &str) -> String {
    format!("{:016x}", hash_bytes(text.as_bytes()))
}

// SPDX-License-Identifier: GPL-2.0-only
//! Tunables of the running kernel's default class, set for the time of a run or of `attach`.
//!
//! Owns: the files in debugfs, and what they had before.

use std::fs;
use std::path::{Path, PathBuf};

use scxlab_lab::scheduler::{SchedulerArg, Tunable};

use crate::LiveError;

const FOLDER: &str = "/sys/kernel/debug/sched";

/// Tunables that are set, until this is restored or dropped.
#[derive(Debug, Default)]
pub struct Tuning {
    /// What was set, and the values before.
    before: Vec<(&'static Tunable, u64)>,
}

impl Tuning {
    /// Sets the tunables that a scheduler's argument names. If one cannot be set, those before it
    /// are restored.
    pub fn apply(arg: &SchedulerArg) -> Result<Tuning, LiveError> {
        let mut tuning = Tuning::default();
        for (tunable, value) in arg.tuning() {
            let text = fs::read_to_string(file(tunable));
            let text = text.map_err(|error| failed(tunable, error))?;
            let missing = || failed(tunable, "this kernel does not have it");
            let was = tunable.read(&text).ok_or_else(missing)?;
            set(tunable, value)?;
            tuning.before.push((tunable, was));
        }
        Ok(tuning)
    }

    /// Gives the tunables their former values.
    pub fn restore(mut self) -> Result<(), LiveError> {
        while let Some((tunable, was)) = self.before.pop() {
            set(tunable, was)?;
        }
        Ok(())
    }
}

impl Drop for Tuning {
    fn drop(&mut self) {
        for (tunable, was) in self.before.drain(..).rev() {
            if let Err(error) = set(tunable, was) {
                eprintln!("scxlab: {error}");
            }
        }
    }
}

fn file(tunable: &Tunable) -> PathBuf {
    Path::new(FOLDER).join(tunable.file)
}

fn set(tunable: &'static Tunable, value: u64) -> Result<(), LiveError> {
    fs::write(file(tunable), tunable.text(value)).map_err(|error| failed(tunable, error))
}

fn failed(tunable: &'static Tunable, why: impl ToString) -> LiveError {
    LiveError::Tunable { name: tunable.name, file: file(tunable), why: why.to_string() }
}

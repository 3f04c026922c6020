// SPDX-License-Identifier: GPL-2.0-only
//! Tunables of the running kernel's default class, set for the time of a run or of `attach`.
//!
//! Owns: the files in debugfs, and what they had before.

use std::fs;
use std::path::{Path, PathBuf};

use scxlab_lab::scheduler::SchedulerArg;

use crate::LiveError;

const FOLDER: &str = "/sys/kernel/debug/sched";

/// Tunables that are set. When this is dropped, they have their former values again.
#[derive(Debug, Default)]
pub struct Tuning {
    /// Files, and the texts that restore them.
    before: Vec<(PathBuf, String)>,
}

impl Tuning {
    /// Sets the tunables that a scheduler's argument names. If one cannot be set, those before it
    /// are restored.
    pub fn apply(arg: &SchedulerArg) -> Result<Tuning, LiveError> {
        let mut tuning = Tuning::default();
        for (tunable, value) in arg.tuning() {
            let path = Path::new(FOLDER).join(tunable.file);
            let failed =
                |why: String| LiveError::Tunable { name: tunable.name, file: path.clone(), why };
            let text = fs::read_to_string(&path).map_err(|e| failed(e.to_string()))?;
            let was = tunable.read(&text);
            let was = was.ok_or_else(|| failed("this kernel does not have it".into()))?;
            fs::write(&path, tunable.text(value)).map_err(|e| failed(e.to_string()))?;
            tuning.before.push((path, tunable.text(was)));
        }
        Ok(tuning)
    }
}

impl Drop for Tuning {
    fn drop(&mut self) {
        for (path, text) in self.before.iter().rev() {
            // The file was written before; a process that lost its rights cannot restore it.
            let _ = fs::write(path, text);
        }
    }
}

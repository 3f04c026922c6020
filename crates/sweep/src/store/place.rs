// SPDX-License-Identifier: GPL-2.0-only
//! Where a store lies: a folder of this host, or something like it elsewhere.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use scxlab_results::atomic;

use crate::SweepError;

/// A folder. Names of files are relative to it; `/` separates the parts of a name.
pub trait Place: Send + Sync {
    /// Returns the path of a file for messages.
    fn path(&self, name: &str) -> PathBuf;
    /// Returns the names of the files and folders in a folder, relative to it. `""` is the folder
    /// itself. A folder that does not exist is empty.
    fn list(&self, folder: &str) -> io::Result<Vec<String>>;
    /// Reads a file; an absent one is `ErrorKind::NotFound`.
    fn read(&self, name: &str) -> io::Result<Vec<u8>>;
    /// Writes a file, which appears under its name only when it is complete.
    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()>;
    fn remove(&self, name: &str) -> io::Result<()>;
}

/// A folder of this host, locked against other writers.
#[derive(Debug)]
pub struct LocalFolder {
    path: PathBuf,
    /// The open folder, whose lock ends with this process.
    _lock: File,
}

impl LocalFolder {
    /// Makes the folder if it does not exist, locks it, and removes files that a killed writer left
    /// incomplete.
    pub fn open(path: &Path) -> Result<LocalFolder, SweepError> {
        let failed = |error| SweepError::Write { path: path.to_owned(), error };
        atomic::make_folder(path).map_err(failed)?;
        let lock = File::open(path).map_err(failed)?;
        lock.try_lock().map_err(|error| match error {
            fs::TryLockError::WouldBlock => SweepError::Busy { path: path.to_owned() },
            fs::TryLockError::Error(error) => failed(error),
        })?;
        remove_parts(path);
        for entry in fs::read_dir(path).map_err(failed)?.flatten() {
            remove_parts(&entry.path());
        }
        Ok(LocalFolder { path: path.to_owned(), _lock: lock })
    }
}

fn remove_parts(folder: &Path) {
    for path in fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with('.') && name.ends_with(".part") {
            // A file that cannot be removed takes space, and is not read.
            let _ = fs::remove_file(path);
        }
    }
}

impl Place for LocalFolder {
    fn path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    fn list(&self, folder: &str) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(self.path.join(folder)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries?,
        };
        let name =
            |entry: io::Result<fs::DirEntry>| Ok(entry?.file_name().to_string_lossy().into_owned());
        entries.map(name).collect()
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        fs::read(self.path.join(name))
    }

    fn write(&self, name: &str, bytes: &[u8]) -> io::Result<()> {
        let path = self.path.join(name);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        atomic::write_file(&path, bytes)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        fs::remove_file(self.path.join(name))
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! The input files of a command. This module reads and remembers all of them; `lab::input` gives
//! them their meaning.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::Path;

use scxlab_lab::input::{InputError, InputFiles};
use scxlab_machine::SysfsReader;

/// Maximum size of an input file in bytes. It exceeds any object or workload, and ends the reading
/// of endless devices.
const MAX_BYTES: u64 = 256 << 20;

/// The input files of a command: files of this host, each remembered with its contents, or the
/// files stored with an earlier command.
#[derive(Default)]
pub struct Inputs {
    files: RefCell<BTreeMap<String, Vec<u8>>>,
    /// Contents of sysfs files of this machine, by path.
    sysfs: RefCell<BTreeMap<String, String>>,
    /// Whether a command sees only stored files, and no files of this host.
    is_closed: bool,
}

impl SysfsReader for Inputs {
    fn read(&self, path: &str) -> io::Result<String> {
        if self.is_closed {
            let kept = self.sysfs.borrow().get(path).cloned();
            return kept.ok_or_else(|| io::ErrorKind::NotFound.into());
        }
        let text = scxlab_vm::guest::Sys.read(path)?;
        self.sysfs.borrow_mut().insert(path.to_owned(), text.clone());
        Ok(text)
    }
}

impl Inputs {
    /// Returns inputs that consist of stored files, by the paths that the command named.
    pub fn kept(files: BTreeMap<String, Vec<u8>>, sysfs: BTreeMap<String, String>) -> Inputs {
        Inputs { files: files.into(), sysfs: sysfs.into(), is_closed: true }
    }

    /// Adds a file that scxlab ships, in place of one of this host.
    pub fn add(&self, path: &str, bytes: &[u8]) {
        self.files.borrow_mut().insert(path.to_owned(), bytes.to_vec());
    }

    /// Returns all files that were read, by the paths that the command named.
    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        self.files.borrow().clone()
    }

    pub fn sysfs(&self) -> BTreeMap<String, String> {
        self.sysfs.borrow().clone()
    }
}

impl InputFiles for Inputs {
    fn is_file(&self, path: &str) -> bool {
        self.files.borrow().contains_key(path) || (!self.is_closed && Path::new(path).is_file())
    }

    fn read(&self, path: &str) -> io::Result<Vec<u8>> {
        if let Some(bytes) = self.files.borrow().get(path) {
            return Ok(bytes.clone());
        }
        if self.is_closed {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "it was not kept with the results",
            ));
        }
        let bytes = read_bytes(path)?;
        self.files.borrow_mut().insert(path.to_owned(), bytes.clone());
        Ok(bytes)
    }
}

/// Reads a file that is no input of a run, and so is not remembered.
pub fn read(path: &Path) -> Result<Vec<u8>, InputError> {
    read_bytes(path).map_err(|error| InputError::Read { path: path.to_owned(), error })
}

fn read_bytes(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    use io::Read;
    let mut bytes = Vec::new();
    fs::File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(io::Error::other(format!("larger than {} MiB", MAX_BYTES >> 20)));
    }
    Ok(bytes)
}

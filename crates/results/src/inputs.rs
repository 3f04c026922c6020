// SPDX-License-Identifier: GPL-2.0-only
//! The input files of a command. This module reads and remembers all of them; `lab::input` gives
//! them their meaning.
//!
//! A recording may be larger than memory. Its bytes pass by, and only its size and its time of
//! change are remembered, so that a change while the command uses it is an error.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use bytes::Bytes;
use scxlab_bpf::jit::CodeStore;
use scxlab_lab::input::{InputError, InputFiles};
use scxlab_machine::SysfsReader;

use crate::kept_code::KeptCode;

/// Maximum size in bytes of an input file other than a recording. It exceeds any object or workload
/// file, and ends the reading of endless devices.
const MAX_BYTES: u64 = 256 << 20;

/// The input files of a command: files of this host, each remembered with its contents, or the
/// files stored with an earlier command.
#[derive(Default)]
pub struct Inputs {
    files: RefCell<BTreeMap<String, Bytes>>,
    /// Files that were opened, as they were at first.
    opened: RefCell<BTreeMap<String, Version>>,
    /// Contents of sysfs files of this machine, by path.
    sysfs: RefCell<BTreeMap<String, String>>,
    /// The files stored with an earlier command, by the paths that the command named. A command
    /// with stored files sees no files of this host.
    stored: Option<BTreeMap<String, PathBuf>>,
    /// Where machine code of schedulers is kept; None: nowhere.
    code: Option<Arc<dyn CodeStore>>,
}

/// What tells whether a file has changed: its size and its time of change.
type Version = (u64, Option<SystemTime>);

impl SysfsReader for Inputs {
    fn read(&self, path: &str) -> io::Result<String> {
        if self.stored.is_some() {
            let kept = self.sysfs.borrow().get(path).cloned();
            return kept.ok_or_else(|| io::ErrorKind::NotFound.into());
        }
        let text = fs::read_to_string(Path::new("/sys").join(path))?;
        self.sysfs.borrow_mut().insert(path.to_owned(), text.clone());
        Ok(text)
    }
}

impl Inputs {
    /// Returns inputs that consist of stored files, by the paths that the command named.
    pub fn kept(files: BTreeMap<String, PathBuf>, sysfs: BTreeMap<String, String>) -> Inputs {
        Inputs { sysfs: sysfs.into(), stored: Some(files), ..Inputs::default() }
    }

    /// Keeps the machine code of schedulers for later commands.
    pub fn keep_code(self, keep: bool) -> Inputs {
        Inputs { code: keep.then(KeptCode::open).flatten(), ..self }
    }

    /// Returns the paths of all files that were read, as the command named them.
    pub fn paths(&self) -> Vec<String> {
        let (files, opened) = (self.files.borrow(), self.opened.borrow());
        let only_opened = opened.keys().filter(|path| !files.contains_key(*path));
        files.keys().chain(only_opened).cloned().collect()
    }

    /// Adds a file that scxlab ships, in place of one of this host.
    pub fn add(&self, path: &str, bytes: &[u8]) {
        self.files.borrow_mut().insert(path.to_owned(), Bytes::copy_from_slice(bytes));
    }

    /// Returns the contents of all files that were read, and of those that were added.
    pub fn files(&self) -> BTreeMap<String, Bytes> {
        self.files.borrow().clone()
    }

    /// Returns the contents of all files of sysfs that were read.
    pub fn sysfs(&self) -> BTreeMap<String, String> {
        self.sysfs.borrow().clone()
    }

    /// Returns the place of a file on this host.
    fn place(&self, path: &str) -> io::Result<PathBuf> {
        match &self.stored {
            None => Ok(path.into()),
            Some(stored) => stored.get(path).cloned().ok_or_else(|| {
                io::Error::new(io::ErrorKind::NotFound, "it was not kept with the results")
            }),
        }
    }
}

impl InputFiles for Inputs {
    fn is_file(&self, path: &str) -> bool {
        let known = self.files.borrow().contains_key(path);
        let about = || fs::metadata(self.place(path)?);
        known
            || about().is_ok_and(|about| match about.file_type() {
                // A pipe gives its contents once, so they are kept from here on.
                kind if kind.is_fifo() => InputFiles::read(self, path).is_ok(),
                kind => kind.is_file(),
            })
    }

    fn read(&self, path: &str) -> io::Result<Bytes> {
        if let Some(bytes) = self.files.borrow().get(path) {
            return Ok(bytes.clone());
        }
        let bytes = Bytes::from(read_bytes(self.place(path)?)?);
        self.files.borrow_mut().insert(path.to_owned(), bytes.clone());
        Ok(bytes)
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn io::Read + '_>> {
        if let Some(bytes) = self.files.borrow().get(path) {
            return Ok(Box::new(io::Cursor::new(bytes.clone())));
        }
        let file = fs::File::open(self.place(path)?)?;
        let about = file.metadata()?;
        let now = (about.len(), about.modified().ok());
        let first = *self.opened.borrow_mut().entry(path.to_owned()).or_insert(now);
        match first == now {
            true => Ok(Box::new(file)),
            false => Err(io::Error::other("it has changed while the command used it")),
        }
    }

    fn code_store(&self) -> Option<Arc<dyn CodeStore>> {
        self.code.clone()
    }
}

/// Reads a file that is no input of a run, and so is not remembered.
pub fn read(path: &Path) -> Result<Vec<u8>, InputError> {
    read_bytes(path).map_err(|error| InputError::Read { path: path.to_owned(), error })
}

fn read_bytes(path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
    use io::Read;
    let file = fs::File::open(path)?;
    // The size of a file that is none, such as a pipe, is 0.
    let size = file.metadata()?.len().min(MAX_BYTES);
    let mut bytes = Vec::with_capacity(size as usize + 1);
    file.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(io::Error::other(format!("larger than {} MiB", MAX_BYTES >> 20)));
    }
    Ok(bytes)
}

// SPDX-License-Identifier: GPL-2.0-only
//! The files that a file of a command names: those of its own folder first, then those of the
//! current folder.

use std::borrow::Cow;
use std::io;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use scxlab_bpf::jit::CodeStore;
use scxlab_machine::SysfsReader;

use super::InputFiles;

/// The files of a command, for paths that one of them contains.
pub struct Beside<'a> {
    /// Folder of the naming file; empty if it is the current folder.
    folder: &'a str,
    files: &'a dyn InputFiles,
}

impl<'a> Beside<'a> {
    /// Returns the files that the file at `path` may name.
    pub fn new(path: &'a str, files: &'a dyn InputFiles) -> Beside<'a> {
        let folder = Path::new(path).parent().and_then(Path::to_str).unwrap_or_default();
        Beside { folder, files }
    }

    /// Returns the path in the folder of the naming file if it is a file, or else `path`.
    fn place<'p>(&self, path: &'p str) -> Cow<'p, str> {
        if self.folder.is_empty() || path.starts_with('/') {
            return Cow::Borrowed(path);
        }
        let beside = Path::new(self.folder).join(path).to_string_lossy().into_owned();
        if self.files.is_file(&beside) { Cow::Owned(beside) } else { Cow::Borrowed(path) }
    }

    /// Names both places in the error for a file that is in neither.
    fn told(&self, path: &str, error: io::Error) -> io::Error {
        let is_one_place = self.folder.is_empty() || path.starts_with('/');
        if error.kind() != io::ErrorKind::NotFound || is_one_place {
            return error;
        }
        let why = format!("no such file in {} or in the current folder", self.folder);
        io::Error::new(io::ErrorKind::NotFound, why)
    }
}

impl SysfsReader for Beside<'_> {
    fn read(&self, path: &str) -> io::Result<String> {
        SysfsReader::read(self.files, path)
    }
}

impl InputFiles for Beside<'_> {
    fn is_file(&self, path: &str) -> bool {
        self.files.is_file(&self.place(path))
    }

    fn read(&self, path: &str) -> io::Result<Bytes> {
        let read = InputFiles::read(self.files, &self.place(path));
        read.map_err(|error| self.told(path, error))
    }

    fn open(&self, path: &str) -> io::Result<Box<dyn io::Read + '_>> {
        self.files.open(&self.place(path)).map_err(|error| self.told(path, error))
    }

    fn code_store(&self) -> Option<Arc<dyn CodeStore>> {
        self.files.code_store()
    }
}

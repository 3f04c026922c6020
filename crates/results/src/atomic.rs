// SPDX-License-Identifier: GPL-2.0-only
//! Files that appear under their name only when they are complete and on the disk: each is written
//! under a temporary name in the same folder, synchronised, and renamed.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use tempfile::{NamedTempFile, TempPath};

/// Makes a folder if it does not exist.
pub fn make_folder(path: &Path) -> io::Result<()> {
    match path.is_file() {
        true => Err(io::Error::other("it is a file, and a folder is needed")),
        false => fs::create_dir_all(path),
    }
}

/// Checks that a file can be written, and leaves nothing behind.
pub fn check_place(path: &Path) -> io::Result<()> {
    match place(path) {
        OutputPath::Stream => Ok(()),
        OutputPath::File(path) => beside(&path).map(drop),
    }
}

/// Writes a file. An existing device or pipe is written to directly.
pub fn write_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    copy_to_file(path, bytes)
}

/// Writes a file with bytes that need not be in memory.
pub fn copy_to_file(path: &Path, mut bytes: impl Read) -> io::Result<()> {
    match place(path) {
        OutputPath::Stream => io::copy(&mut bytes, &mut File::create(path)?).map(drop),
        OutputPath::File(path) => {
            let mut file = beside(&path)?;
            io::copy(&mut bytes, &mut file)?;
            file.as_file().sync_all()?;
            file.persist(&path)?;
            sync_folder(&path)
        }
    }
}

/// Files that the caller writes in pieces under temporary names. `publish` renames all of them when
/// all are complete.
#[derive(Default)]
pub struct Files(Mutex<Vec<(TempPath, PathBuf)>>);

impl Files {
    /// Creates a file for writing. Errors of creation and of writes contain the file's name.
    pub fn create(&self, path: &Path) -> io::Result<Box<dyn Write + Send>> {
        let file = match place(path) {
            OutputPath::Stream => File::create(path),
            OutputPath::File(end) => beside(&end).map(|file| {
                let (file, written) = file.into_parts();
                self.0.lock().unwrap_or_else(PoisonError::into_inner).push((written, end));
                file
            }),
        };
        let file = Named { file: file.map_err(|e| naming(path, e))?, path: path.to_owned() };
        Ok(Box::new(BufWriter::with_capacity(1 << 20, file)))
    }

    /// Renames all files to their final names. The caller must have written and flushed the files.
    /// An error comes with the name of the file.
    pub fn publish(self) -> Result<(), (PathBuf, io::Error)> {
        let all = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        all.into_iter().try_for_each(|(written, path)| {
            let publish = || {
                File::open(&written)?.sync_all()?;
                written.persist(&path)?;
                sync_folder(&path)
            };
            publish().map_err(|error: io::Error| (path.clone(), error))
        })
    }
}

/// Way in which the file at a path is written.
enum OutputPath {
    /// An existing device or pipe, which is written to directly.
    Stream,
    /// An existing or new file, with symbolic links resolved.
    File(PathBuf),
}

fn place(path: &Path) -> OutputPath {
    match fs::metadata(path) {
        Ok(there) if !there.is_file() => OutputPath::Stream,
        Ok(_) => OutputPath::File(fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())),
        Err(_) => OutputPath::File(path.to_owned()),
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Makes the renaming of a file in its folder last. A file system that cannot synchronise a folder
/// is no failure.
fn sync_folder(path: &Path) -> io::Result<()> {
    match File::open(folder_of(path)).and_then(|folder| folder.sync_all()) {
        Err(error) if error.kind() == io::ErrorKind::StorageFull => Err(error),
        _ => Ok(()),
    }
}

/// Creates a temporary file in the folder of `path`. The caller renames the file when it is
/// complete; a file that is dropped before is deleted.
fn beside(path: &Path) -> io::Result<NamedTempFile> {
    let folder = folder_of(path);
    let mut name = OsString::from(".");
    name.push(path.file_name().unwrap_or_default());
    let mut file = tempfile::Builder::new();
    file.prefix(&name).suffix(".part");
    #[cfg(unix)]
    file.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
    // Report a missing folder here, because an error of `tempfile` would name the temporary file.
    fs::metadata(folder)?;
    file.tempfile_in(folder).map_err(|e| e.kind().into())
}

/// A file whose errors contain its name.
struct Named {
    file: File,
    path: PathBuf,
}

impl Write for Named {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes).map_err(|e| naming(&self.path, e))
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush().map_err(|e| naming(&self.path, e))
    }
}

fn naming(path: &Path, error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

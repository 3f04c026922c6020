// SPDX-License-Identifier: GPL-2.0-only
//! Writing to standard output and files. Errors name the file being written.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, Once, PoisonError};

use anstream::{AutoStream, ColorChoice};
use anyhow::Result;
use scxlab_lab::report::document::{Document, Screen};
use tempfile::{NamedTempFile, TempPath};

use crate::exit::CliError;

pub use scxlab_lab::report::document::visible;

/// Prints a line to standard error.
pub fn say(line: &str) {
    eprintln!("{}", visible(line));
}

/// Prints text to standard output.
pub fn print(text: &str) -> Result<()> {
    write_out(&visible(text))
}

/// Prints a report in the way that suits standard output.
pub fn print_report(report: &Document) -> Result<()> {
    write_out(&report.text(screen()))
}

/// Returns the width and the colours of standard output. A file or a pipe has no width. COLUMNS
/// overrides the width.
fn screen() -> Screen {
    let given = std::env::var("COLUMNS").ok().and_then(|text| text.trim().parse().ok());
    let asked = || terminal_size::terminal_size_of(io::stdout()).map(|(width, _)| width.0);
    Screen {
        width: given.or_else(asked).filter(|width| *width > 0),
        has_colour: AutoStream::choice(&io::stdout()) != ColorChoice::Never,
    }
}

/// Writes text to standard output, as it is.
fn write_out(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    let result = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    result.map_err(|error| CliError::Write { what: "standard output".into(), error }.into())
}

/// Writes a file under a temporary name, and renames it when it is complete.
pub fn write_file(path: &Path, bytes: &[u8]) -> Result<()> {
    copy_to_file(path, bytes)
}

/// Does the same with bytes that need not be in memory.
pub fn copy_to_file(path: &Path, mut bytes: impl Read) -> Result<()> {
    let mut write = || match place(path) {
        OutputPath::Stream => io::copy(&mut bytes, &mut File::create(path)?).map(drop),
        OutputPath::File(path) => {
            let mut file = beside(&path)?;
            io::copy(&mut bytes, &mut file)?;
            file.persist(&path)?;
            Ok(())
        }
    };
    write().map_err(|error| failed(path, error))
}

pub fn make_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(|error| failed(path, error))
}

/// Makes a folder for results if it does not exist, and locks it. No other command can lock the
/// folder until the caller drops the lock.
pub fn lock_folder(path: &Path) -> Result<File> {
    let lock = || {
        fs::create_dir_all(path)?;
        let folder = File::open(path)?;
        folder.try_lock()?;
        Ok(folder)
    };
    lock().map_err(|error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock => CliError::Busy { folder: path.to_owned() }.into(),
        _ => failed(path, error),
    })
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
    pub fn publish(self) -> Result<()> {
        let all = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        all.into_iter().try_for_each(|(written, path)| {
            written.persist(&path).map_err(|error| failed(&path, error.error))
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

/// Creates a temporary file in the folder of `path`. The caller renames the file when it is
/// complete; a file that is dropped before is deleted.
fn beside(path: &Path) -> io::Result<NamedTempFile> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
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

fn failed(path: &Path, error: io::Error) -> anyhow::Error {
    CliError::Write { what: path.display().to_string(), error }.into()
}

/// Inserts a name before a file's ending: `run.pftrace` and `vtime` make `run.vtime.pftrace`.
pub fn with_name(path: &Path, name: &str) -> PathBuf {
    let safe = safe_name(name);
    let mut file = path.file_stem().unwrap_or_default().to_os_string();
    file.push(format!(".{safe}"));
    if let Some(ending) = path.extension() {
        file.push(".");
        file.push(ending);
    }
    path.with_file_name(file)
}

/// Makes a name safe for use in a file name: letters, digits, `-`, `_`, `=` and `.` stay, other
/// characters become `_`.
pub fn safe_name(name: &str) -> String {
    const MAX: usize = 80;
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_=.".contains(c);
    name.chars().take(MAX).map(|c| if fits(c) { c } else { '_' }).collect()
}

/// Returns the flag that Ctrl-C and SIGTERM set; handling starts with the first call. A second
/// signal ends the process at once.
pub fn cancelled() -> &'static AtomicBool {
    static CANCELLED: AtomicBool = AtomicBool::new(false);
    static HANDLER: Once = Once::new();
    HANDLER.call_once(|| {
        // If the handler cannot be set, the signal ends the process, and the kernel detaches the
        // scheduler.
        let _ = ctrlc::set_handler(|| {
            if CANCELLED.swap(true, Ordering::Relaxed) {
                std::process::exit(crate::exit::CANCELLED);
            }
        });
    });
    &CANCELLED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_terminal_would_obey_is_shown() {
        assert_eq!(visible("plain\n\ttext é"), "plain\n\ttext é");
        assert_eq!(
            visible("\x1b[2J\r\u{9b}1m\x7f\u{202e}"),
            "\\u{1b}[2J\\u{d}\\u{9b}1m\\u{7f}\\u{202e}"
        );
    }

    #[test]
    fn names_go_before_the_ending() {
        let named = |path: &str, name: &str| with_name(Path::new(path), name).display().to_string();
        assert_eq!(named("a/run.pftrace", "vtime"), "a/run.vtime.pftrace");
        assert_eq!(named("run", "x,k=1"), "run.x_k=1");
        assert_eq!(named("a.b/run.x", "../y"), "a.b/run..._y.x");
    }
}

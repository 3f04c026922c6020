// SPDX-License-Identifier: GPL-2.0-only
//! Writing to standard output and files. Errors name the file being written.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use anstream::{AutoStream, ColorChoice};
use anyhow::Result;
use scxlab_lab::report::document::{Document, Screen};
use scxlab_lab::results::{Results, Version};
pub use scxlab_results::atomic::Files;
use scxlab_results::{atomic, folder};

use crate::exit::CliError;

pub use scxlab_lab::report::document::visible;

/// Prints a line to standard error. If nobody reads it, that is no failure.
pub fn say(line: &str) {
    let _ = writeln!(io::stderr(), "{}", visible(line));
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

/// Writes text to standard output, as it is. A reader that has gone, as in `scxlab ... | head`, is
/// no failure, and ends nothing but the printing.
fn write_out(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(CliError::Write { what: "standard output".into(), error }.into())
        }
        _ => Ok(()),
    }
}

/// Checks that a file can be written, before the work for it begins.
pub fn check_place(path: &Path) -> Result<()> {
    atomic::check_place(path).map_err(|error| failed(path, error))
}

/// Writes a file that appears under its name only when it is complete.
pub fn write_file(path: &Path, text: &[u8]) -> Result<()> {
    atomic::write_file(path, text).map_err(|error| failed(path, error))
}

/// Does the same with bytes that need not be in memory.
pub fn copy_to_file(path: &Path, bytes: impl Read) -> Result<()> {
    atomic::copy_to_file(path, bytes).map_err(|error| failed(path, error))
}

pub fn make_folder(path: &Path) -> Result<()> {
    atomic::make_folder(path).map_err(|error| failed(path, error))
}

/// Makes a folder for results if it does not exist, and locks it. No other command can lock the
/// folder until the caller drops the lock.
pub fn lock_folder(path: &Path) -> Result<File> {
    let lock = || {
        atomic::make_folder(path)?;
        let folder = File::open(path)?;
        folder.try_lock()?;
        Ok(folder)
    };
    lock().map_err(|error: io::Error| match error.kind() {
        io::ErrorKind::WouldBlock => CliError::Busy { folder: path.to_owned() }.into(),
        _ => failed(path, error),
    })
}

/// Renames all files to their final names.
pub fn publish(files: Files) -> Result<()> {
    files.publish().map_err(|(path, error)| failed(&path, error))
}

/// Removes the files of a folder whose names begin and end so, except those to keep: an earlier
/// command wrote them.
pub fn remove_others(folder: &Path, begin: &str, end: &str, keep: &[PathBuf]) -> Result<()> {
    let entries = std::fs::read_dir(folder).map_err(|error| failed(folder, error))?;
    for path in entries.filter_map(|entry| Some(entry.ok()?.path())) {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with(begin) && name.ends_with(end) && !keep.contains(&path) {
            std::fs::remove_file(&path).map_err(|error| failed(&path, error))?;
        }
    }
    Ok(())
}

/// Writes the tables of a results folder.
pub fn write_folder(
    folder: &Path,
    scxlab: &Version,
    all: &[Results],
    with_csv: bool,
) -> Result<()> {
    let written = folder::write(folder, scxlab, all, with_csv);
    written.map_err(|(path, error)| failed(&path, error))
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

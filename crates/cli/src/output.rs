// SPDX-License-Identifier: GPL-2.0-only
//! Writing: standard output and files, with errors that name what was being written.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;

use crate::exit::CliError;

/// Prints to standard output.
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    let result = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    result.map_err(|error| CliError::Write { what: "standard output".into(), error }.into())
}

pub fn write_file(path: &Path, text: &[u8]) -> Result<()> {
    fs::write(path, text).map_err(|error| failed(path, error))
}

pub fn make_folder(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(|error| failed(path, error))
}

/// A file to be written piece by piece. Its errors name it.
pub fn create(path: &Path) -> io::Result<Box<dyn Write + Send>> {
    let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
    Ok(Box::new(BufWriter::with_capacity(1 << 20, File::create(path).map_err(named)?)))
}

fn failed(path: &Path, error: io::Error) -> anyhow::Error {
    CliError::Write { what: path.display().to_string(), error }.into()
}

/// Puts a name before a file's ending: `run.pftrace` and `vtime` make `run.vtime.pftrace`.
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

/// A name as part of a file's name: letters, digits, `-`, `_`, `=` and `.`; the rest becomes `_`.
pub fn safe_name(name: &str) -> String {
    const MAX: usize = 80;
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_=.".contains(c);
    name.chars().take(MAX).map(|c| if fits(c) { c } else { '_' }).collect()
}

/// Raised by Ctrl-C and SIGTERM, from the first call on.
pub fn cancelled() -> &'static AtomicBool {
    static CANCELLED: AtomicBool = AtomicBool::new(false);
    static HANDLER: Once = Once::new();
    HANDLER.call_once(|| {
        // Without a handler the signal ends the process, and the kernel takes the scheduler off.
        let _ = ctrlc::set_handler(|| CANCELLED.store(true, Ordering::Relaxed));
    });
    &CANCELLED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_go_before_the_ending() {
        let named = |path: &str, name: &str| with_name(Path::new(path), name).display().to_string();
        assert_eq!(named("a/run.pftrace", "vtime"), "a/run.vtime.pftrace");
        assert_eq!(named("run", "x,k=1"), "run.x_k=1");
        assert_eq!(named("a.b/run.x", "../y"), "a.b/run..._y.x");
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! The transport of the plan and the report between the caller and the director: as JSON in memory
//! files, which are the director's standard input and output.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::os::fd::FromRawFd;

use super::error::SetupError;
use super::plan::Plan;
use super::report::NativeReport;
use super::sys::{self, Errno};

/// Creates a file in memory that only this process has.
pub fn memory_file() -> Result<File, Errno> {
    // SAFETY: the name is a C string.
    let fd = unsafe { libc::memfd_create(c"scxlab-wire".as_ptr(), libc::MFD_CLOEXEC) };
    sys::checked(fd.into())?;
    // SAFETY: a new descriptor that nobody else owns.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Writes the plan to a memory file.
pub fn plan_file(plan: &Plan) -> std::io::Result<File> {
    let mut file = memory_file().map_err(std::io::Error::from_raw_os_error)?;
    serde_json::to_writer(&mut file, plan)?;
    file.rewind()?;
    Ok(file)
}

/// Returns the whole contents of a file.
pub fn text_of(file: &mut File) -> String {
    let mut text = Vec::new();
    let read = file.rewind().and_then(|()| file.read_to_end(&mut text));
    read.map_or_else(|e| e.to_string(), |_| String::from_utf8_lossy(&text).into_owned())
}

/// Reads the plan from descriptor 0. Opens the file anew, because several processes read it, each
/// from the start.
pub fn read_plan() -> Option<Plan> {
    let text = std::fs::read("/proc/self/fd/0").ok()?;
    serde_json::from_slice(&text).ok()
}

/// Writes the report to descriptor 1.
pub fn write_report(report: &Result<NativeReport, SetupError>) -> bool {
    let Ok(text) = serde_json::to_vec(report) else {
        return false;
    };
    let mut out = std::io::stdout().lock();
    out.write_all(&text).and_then(|()| out.flush()).is_ok()
}

/// Reads the report; None if the director wrote no complete report.
pub fn read_report(file: &mut File) -> Option<Result<NativeReport, SetupError>> {
    serde_json::from_str(&text_of(file)).ok()
}

// SPDX-License-Identifier: GPL-2.0-only
//! kernbench: one parallel build of a kernel. Its defaults are those of `kernbench -M -H -o 16`
//! except for the number of files.
//!
//! Models and leaves out: see `make.rs`. The measured time is the length of the run.

use super::make::Build;
use super::{Generator, Params, param};
use crate::error::WorkloadError;
use crate::program::Program;

pub(super) const GENERATOR: Generator = Generator {
    name: "kernbench",
    doc: "A parallel build: make forks compilers, and links at the end.",
    unit: "file",
    params: &[
        param("jobs", "16", "files in work at a time (make -j)"),
        param("files", "96", "number of files"),
        param("work", "50ms", "mean work of compiling and assembling a file"),
        param("parse", "50ms", "work of make before the first file"),
        param("link", "150ms", "work of the linker"),
        param("hold", "400ns", "work under a lock of the kernel (in guests), per ms of cc1's work"),
        param("footprint", "1024", "KiB that a compiler uses repeatedly"),
        param("duration", "none", "length of the run; none: until the build is done"),
    ],
    build,
};

fn build(params: &Params) -> Result<Program, WorkloadError> {
    Ok(Build::new(params, 1)?.program())
}

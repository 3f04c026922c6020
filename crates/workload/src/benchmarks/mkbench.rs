// SPDX-License-Identifier: GPL-2.0-only
//! mkbench: several parallel builds of a kernel side by side (Mike Kravetz, 2002).
//!
//! Models and leaves out: see `make.rs`. The builds are equal and start together. The original
//! prints the average time of a build, which is `completion_mean`, not the length of the run: a
//! build that gets more CPU time than the others ends earlier.

use super::make::Build;
use super::{Generator, Params, param};
use crate::error::WorkloadError;
use crate::program::Program;

pub(super) const GENERATOR: Generator = Generator {
    name: "mkbench",
    doc: "Parallel builds side by side, each as kernbench has one.",
    unit: "file",
    params: &[
        param("makes", "2", "number of builds"),
        param("jobs", "8", "files in work at a time, of one build (make -j)"),
        param("files", "64", "number of files of a build"),
        param("work", "50ms", "mean work of compiling and assembling a file"),
        param("parse", "50ms", "work of make before the first file"),
        param("link", "100ms", "work of the linker"),
        param("hold", "400ns", "work under a lock of the kernel (in guests), per ms of cc1's work"),
        param("footprint", "1024", "KiB that a compiler uses repeatedly"),
        param("duration", "none", "length of the run; none: until all builds are done"),
    ],
    build,
};

fn build(params: &Params) -> Result<Program, WorkloadError> {
    Ok(Build::new(params, params.number("makes", 1, 100)?)?.program())
}

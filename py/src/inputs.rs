// SPDX-License-Identifier: GPL-2.0-only
//! Arguments from Python: names, paths, or texts of machines and workloads.
//!
//! Owns: the workloads inside the module. A text with several lines is the content of a file; any
//! other one has the form of `-m`, `-w` or `-s`.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use scxlab_lab::input::{self, Workload};
use scxlab_lab::recorded::Likeness;
use scxlab_lab::session::SessionError;
use scxlab_machine::Machine;
use scxlab_results::inputs::Inputs;
use scxlab_workload::Program;

use crate::error::Failure;

macro_rules! embed {
    ($($name:literal),* $(,)?) => {
        &[$((
            concat!("workloads/", $name, ".toml"),
            include_str!(concat!("../../workloads/", $name, ".toml")),
        )),*]
    };
}

/// Path and text of each workload of the project's folder `workloads`. A test checks that none is
/// left out.
pub const WORKLOADS: &[(&str, &str)] = embed![
    "credit-shares",
    "credit-wakeups",
    "desktop-build",
    "eighty-forty-forty",
    "gang",
    "groups-and-nice",
    "guests",
    "hogs-and-editor",
    "idle-guests",
    "lock-holder",
    "numa-far",
    "ping-pong",
    "sleepers",
    "spin-barrier",
    "stream",
    "work-queue",
];

/// Returns the files of this host, and the workloads inside the module.
pub fn inputs() -> Inputs {
    let inputs = Inputs::default().keep_code(true);
    // A file of the user goes before one of the same path in the module.
    for (path, text) in WORKLOADS.iter().filter(|(path, _)| !Path::new(path).is_file()) {
        inputs.add(path, text.as_bytes());
    }
    inputs
}

/// Returns the argument for a text, which becomes a file if it has several lines.
fn arg<'a>(text: &'a str, file: &'a str, inputs: &Inputs) -> Cow<'a, str> {
    if !text.contains('\n') {
        return text.into();
    }
    inputs.add(file, text.as_bytes());
    file.into()
}

pub fn machine(text: &str, inputs: &Inputs) -> Result<Arc<Machine>, Failure> {
    let file = if text.trim_start().starts_with('<') { "machine.xml" } else { "machine.toml" };
    Ok(Arc::new(input::machine(&arg(text, file, inputs), inputs)?))
}

pub fn workload(text: &str, inputs: &Inputs) -> Result<Workload, Failure> {
    Ok(Workload::resolve(&workload_arg(text, inputs), inputs)?)
}

/// Returns a workload's program, and how like its recording it is (see `Workload::compared`).
pub fn compared(
    text: &str,
    inputs: &Inputs,
) -> Result<(Program, Option<Result<Likeness, String>>), Failure> {
    let (workload, likeness) = Workload::compared(&workload_arg(text, inputs), inputs)?;
    Ok((of_program(workload)?, likeness))
}

fn workload_arg<'a>(text: &'a str, inputs: &Inputs) -> Cow<'a, str> {
    let file = if text.trim_start().starts_with('{') { "workload.json" } else { "workload.toml" };
    arg(text, file, inputs)
}

/// Returns a workload's program; refuses a command, which no simulation can run.
pub fn program(text: &str, inputs: &Inputs) -> Result<Program, Failure> {
    of_program(workload(text, inputs)?)
}

fn of_program(workload: Workload) -> Result<Program, Failure> {
    match workload {
        Workload::Program(program) => Ok(*program),
        Workload::Command(words) => Err(SessionError::Command { command: words.join(" ") }.into()),
    }
}

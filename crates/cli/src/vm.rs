// SPDX-License-Identifier: GPL-2.0-only
//! `scxlab vm`, and which kernel virtual machines boot.

use std::path::{Path, PathBuf};

use anyhow::Result;
use scxlab_vm::setup;

use crate::args::VmCommand;
use crate::exit::CliError;
use crate::output;

pub fn vm(command: &VmCommand) -> Result<()> {
    match command {
        VmCommand::Setup => {
            let kernel = setup::prepare(&setup::cache_dir()?, &mut |step| eprintln!("{step}"))?;
            output::print(&format!("{} is ready: {}\n", kernel.release, kernel.image.display()))
        }
        VmCommand::Show => output::print(&show()?),
    }
}

fn show() -> Result<String> {
    let mut text = String::new();
    match setup::find(&setup::cache_dir()?)? {
        Some(kernel) => {
            text.push_str(&format!("kernel  {}  {}\n", kernel.release, kernel.image.display()))
        }
        None => text.push_str("kernel  none; scxlab vm setup prepares one\n"),
    }
    match scxlab_vm::probe_kvm() {
        Ok(()) => text.push_str("engine  KVM\n"),
        Err(why) => text.push_str(&format!("engine  emulation (TCG): {why}\n")),
    }
    Ok(text)
}

/// The image of the kernel that was named, else of the prepared one; and its configuration, if it is known.
pub fn kernel(named: Option<&Path>) -> Result<(PathBuf, Option<PathBuf>)> {
    if let Some(path) = named {
        return Ok((path.to_owned(), setup::config_of(path)));
    }
    match setup::find(&setup::cache_dir()?)? {
        Some(kernel) => Ok((kernel.image, kernel.config)),
        None => Err(CliError::NoVmKernel.into()),
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! `scxlab vm`, and the choice of the kernel that virtual machines boot.

use std::path::{Path, PathBuf};

use anyhow::Result;
use scxlab_vm::setup;

use crate::args::VmCommand;
use crate::output;

pub fn vm(command: &VmCommand) -> Result<()> {
    match command {
        VmCommand::Setup => {
            let kernel = prepare()?;
            output::print(&format!("{} is ready: {}\n", kernel.release, kernel.image.display()))
        }
        VmCommand::Show => output::print(&show()?),
    }
}

fn prepare() -> Result<setup::KernelImage> {
    Ok(setup::prepare(&setup::cache_dir()?, &mut |step| output::say(step))?)
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

/// Returns the image of the kernel `named`, or else of the prepared kernel, and the kernel's
/// configuration if it is known. If no kernel is named and none has been prepared, prepares one.
pub fn kernel(named: Option<&Path>) -> Result<(PathBuf, Option<PathBuf>)> {
    if let Some(path) = named {
        return Ok((path.to_owned(), setup::config_of(path)));
    }
    let kernel = match setup::find(&setup::cache_dir()?)? {
        Some(kernel) => kernel,
        None => {
            // Check for QEMU first, because a kernel is useless without it.
            scxlab_vm::find_qemu()?;
            output::say(
                "no kernel for virtual machines has been prepared; downloading Debian's, as `scxlab vm setup` does",
            );
            prepare()?
        }
    };
    Ok((kernel.image, kernel.config))
}

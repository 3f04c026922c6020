// SPDX-License-Identifier: GPL-2.0-only
//! Outputs generated from the flags' declaration: completion scripts, man pages,
//! `docs/reference/flags.md`.

#[cfg(test)]
mod tests;

use std::path::Path;

use anyhow::Result;
use clap::{Command, CommandFactory};
use clap_complete::Shell;

use crate::args::Cli;
use crate::{complete, output};

/// Prints a completion script, for `scxlab completions`.
pub fn completions(shell: Shell) -> Result<()> {
    output::print(&String::from_utf8_lossy(&complete::registration(shell)?))
}

/// Prints or writes man pages, for `scxlab man`.
pub fn man(folder: Option<&Path>) -> Result<()> {
    let mut command = Cli::command();
    command.build();
    let Some(folder) = folder else {
        return output::print(&String::from_utf8_lossy(&page(&command)?));
    };
    output::make_folder(folder)?;
    output::write_file(&folder.join("scxlab.1"), &page(&command)?)?;
    for sub in command.get_subcommands().filter(|c| c.get_name() != "help") {
        let name = format!("scxlab-{}", sub.get_name());
        let renamed = sub.clone().name(name.clone());
        output::write_file(&folder.join(format!("{name}.1")), &page(&renamed)?)?;
    }
    Ok(())
}

fn page(command: &Command) -> Result<Vec<u8>> {
    let mut text = Vec::new();
    clap_mangen::Man::new(command.clone()).render(&mut text)?;
    Ok(text)
}

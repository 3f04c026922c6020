// SPDX-License-Identifier: GPL-2.0-only
//! `scxlab gang`: makes cgroups of this machine gangs or ordinary cgroups, and lists the gangs.

use anyhow::Result;
use scxlab_live::gang::Gangs;
use scxlab_live::kernel;

use crate::args::GangCommand;
use crate::output;

pub fn gang(command: &GangCommand) -> Result<()> {
    let gangs = Gangs::open()?;
    match command {
        GangCommand::On { cgroup } => switch(&gangs, cgroup, true),
        GangCommand::Off { cgroup } => switch(&gangs, cgroup, false),
        GangCommand::List => {
            let line = |m: scxlab_live::gang::GangCgroup| {
                let state = match m.value.as_str() {
                    "1" => "on".to_owned(),
                    "0" => "off".to_owned(),
                    other => format!("neither 0 nor 1, so off: {other:?}"),
                };
                format!("{}  {state}\n", m.cgroup)
            };
            output::print(&gangs.list()?.into_iter().map(line).collect::<String>())
        }
    }
}

fn switch(gangs: &Gangs, cgroup: &str, on: bool) -> Result<()> {
    let name = gangs.switch(cgroup, on)?;
    output::say(&format!("{name} is now {} gang", if on { "a" } else { "no" }));
    if kernel::loaded().is_none() && on {
        output::say("note: no sched_ext scheduler is attached, so nothing schedules gangs");
    }
    Ok(())
}

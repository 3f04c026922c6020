// SPDX-License-Identifier: GPL-2.0-only
//! `scxlab attach --install`: a systemd service that attaches a scheduler at each boot.
//!
//! Owns: the unit and the copies of the files that it needs. Does not: attach anything itself; the
//! service runs `scxlab attach`. If the scheduler is ejected, that command ends, the kernel has put
//! all tasks back into the default class, and systemd does not start the service again before the
//! next boot.

#[cfg(test)]
mod tests;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;
use scxlab_lab::input::{RecipeInput, SchedulerInput};
use scxlab_live::kernel;

use crate::exit::CliError;
use crate::output;

/// Name of the service.
const SERVICE: &str = "scxlab.service";
/// Folder of the unit, as for every unit of an administrator.
const UNITS: &str = "etc/systemd/system";
/// Folder of the copies of the object and the recipe.
const COPIES: &str = "var/lib/scxlab/attach";
/// Folder that exists if systemd is the init system (`sd_booted(3)`).
const BOOTED: &str = "run/systemd/system";
/// Maximum time for the service to attach the scheduler.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(100);
/// Time after which a service that sets tunables has set them or has failed.
const SETTLED: Duration = Duration::from_secs(1);

/// The machine as far as an installation concerns it. Tests have another one.
pub trait System {
    /// Root of the file system.
    fn root(&self) -> &Path;
    /// Runs systemctl, and returns its standard error if it fails.
    fn systemctl(&self, args: &[&str]) -> io::Result<Result<(), String>>;
    /// Tells whether a sched_ext scheduler is enabled.
    fn is_enabled(&self) -> bool;
}

/// This machine.
pub struct ThisSystem;

impl System for ThisSystem {
    fn root(&self) -> &Path {
        Path::new("/")
    }

    fn systemctl(&self, args: &[&str]) -> io::Result<Result<(), String>> {
        let output = Command::new("systemctl").args(args).output()?;
        let said = || String::from_utf8_lossy(&output.stderr).trim().to_owned();
        Ok(if output.status.success() { Ok(()) } else { Err(said()) })
    }

    fn is_enabled(&self) -> bool {
        kernel::state() == "enabled"
    }
}

/// Refuses without systemd.
pub fn check(system: &dyn System) -> Result<()> {
    let booted = system.root().join(BOOTED).is_dir();
    if booted { Ok(()) } else { Err(CliError::NoSystemd.into()) }
}

/// Tells whether the installed service runs.
pub fn is_running(system: &dyn System) -> bool {
    matches!(system.systemctl(&["is-active", "--quiet", SERVICE]), Ok(Ok(())))
}

/// Installs the service with this scheduler in place of an earlier one, and starts it. `program` is
/// the path of scxlab.
pub fn install(system: &dyn System, program: &Path, input: &SchedulerInput) -> Result<()> {
    check(system)?;
    let folder = system.root().join(COPIES);
    let plan = plan(input, Path::new("/").join(COPIES).as_path());
    let unit = unit(program, &plan.argument);
    output::make_folder(&folder)?;
    for (name, bytes) in &plan.files {
        output::write_file(&folder.join(name), bytes)?;
    }
    remove_others(&folder, &plan)?;
    let units = system.root().join(UNITS);
    output::make_folder(&units)?;
    output::write_file(&units.join(SERVICE), unit.as_bytes())?;
    systemctl(system, &["daemon-reload"])?;
    systemctl(system, &["enable", SERVICE])?;
    systemctl(system, &["restart", SERVICE])?;
    wait_attached(system, input.object.is_some())
}

/// Stops and removes the service. Returns false if there was none.
pub fn uninstall(system: &dyn System) -> Result<bool> {
    check(system)?;
    let unit = system.root().join(UNITS).join(SERVICE);
    let there = unit.exists();
    if there {
        systemctl(system, &["disable", "--now", SERVICE])?;
        fs::remove_file(&unit).map_err(|error| failed(&unit, error))?;
        systemctl(system, &["daemon-reload"])?;
        // A service that was ejected stays listed as failed; one that never ran is not known here.
        let _ = system.systemctl(&["reset-failed", SERVICE]);
    }
    let folder = system.root().join(COPIES);
    match fs::remove_dir_all(&folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(failed(&folder, error)),
        _ => Ok(there),
    }
}

/// The argument of `scxlab attach` in the service, and the files that it names.
struct Plan {
    argument: String,
    /// Names in the folder of copies, and contents.
    files: Vec<(String, Vec<u8>)>,
}

fn plan(input: &SchedulerInput, folder: &Path) -> Plan {
    let arg = &input.arg;
    let mut files = Vec::new();
    let mut copy = |path: &str, bytes: &[u8]| {
        let name = Path::new(path).file_name().unwrap_or_default().to_string_lossy();
        let name = output::safe_name(&name);
        files.push((name.clone(), bytes.to_vec()));
        folder.join(name).display().to_string()
    };
    let object = input.object.as_ref();
    let file = object.filter(|o| scxlab_sched::find(&o.name).is_none());
    let mut parts = vec![file.map_or_else(|| arg.name.clone(), |o| copy(&o.name, &o.bytes))];
    parts.extend(arg.knobs.iter().map(|(knob, value)| format!("{knob}={value}")));
    if let Some(recipe) = &arg.recipe {
        let shipped = scxlab_lab::recipe::find(recipe).is_some();
        parts.push(match object.map(|o| &o.recipe) {
            Some(RecipeInput::Text { text, .. }) if !shipped => {
                format!("recipe={}", copy(recipe, text.as_bytes()))
            }
            _ => format!("recipe={recipe}"),
        });
    }
    parts.extend(arg.ops.iter().map(|ops| format!("ops={ops}")));
    Plan { argument: parts.join(","), files }
}

/// Returns the text of the unit.
fn unit(program: &Path, argument: &str) -> String {
    let program = quoted(&program.display().to_string());
    format!(
        "# Written by `scxlab attach --install`; `scxlab attach --uninstall` removes it.
[Unit]
Description=CPU scheduler {}, attached by scxlab
Documentation=man:scxlab-attach(1)
ConditionPathIsDirectory=/sys/kernel/sched_ext

[Service]
Type=exec
ExecStart={program} attach --interval 0s {}
# If the kernel ejects the scheduler, the default class has all tasks again, and the log has the
# reason. The scheduler is not attached again before the next boot.
Restart=no
TimeoutStopSec=90
LimitMEMLOCK=infinity

[Install]
WantedBy=multi-user.target
",
        argument.replace('%', "%%"),
        quoted(argument),
    )
}

/// Quotes a word for a command line of systemd (`systemd.service(5)`).
fn quoted(word: &str) -> String {
    let mut text = String::from("\"");
    for c in word.chars() {
        match c {
            '"' | '\\' => text.extend(['\\', c]),
            '%' | '$' => text.extend([c, c]),
            _ if c.is_control() => text.push_str(&format!("\\U{:08x}", u32::from(c))),
            _ => text.push(c),
        }
    }
    text.push('"');
    text
}

/// Removes copies of an earlier installation that this one does not use.
fn remove_others(folder: &Path, plan: &Plan) -> Result<()> {
    let entries = fs::read_dir(folder).map_err(|error| failed(folder, error))?;
    let used = |path: &PathBuf| plan.files.iter().any(|(name, _)| path.ends_with(name));
    for path in entries.flatten().map(|entry| entry.path()).filter(|path| !used(path)) {
        fs::remove_file(&path).map_err(|error| failed(&path, error))?;
    }
    Ok(())
}

/// Waits until the service has attached the scheduler, or has ended. A service that sets tunables
/// of the default class enables none: it must still run after a moment.
fn wait_attached(system: &dyn System, enables: bool) -> Result<()> {
    let start = Instant::now();
    while start.elapsed() < PATIENCE && is_running(system) {
        let done = if enables { system.is_enabled() } else { start.elapsed() > SETTLED };
        if done {
            return Ok(());
        }
        std::thread::sleep(POLL);
    }
    let why = "it did not attach the scheduler; `journalctl -u scxlab` has its messages";
    Err(CliError::Service { what: format!("start {SERVICE}"), why: why.into() }.into())
}

fn systemctl(system: &dyn System, args: &[&str]) -> Result<()> {
    let why = match system.systemctl(args) {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(said)) => said,
        Err(error) => error.to_string(),
    };
    Err(CliError::Service { what: format!("systemctl {}", args.join(" ")), why }.into())
}

fn failed(path: &Path, error: io::Error) -> anyhow::Error {
    CliError::Write { what: path.display().to_string(), error }.into()
}

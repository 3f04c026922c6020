// SPDX-License-Identifier: GPL-2.0-only
//! The other side: this executable as init of the guest.
//!
//! Owns: the mounts, the reaping of orphans, the port, the end. Does not: know what the program does.
//!
//! ```text
//! pid 1   enter: mount, open the port, fork --> reap until the program ends; ended without a result: say so; off
//! pid 2                                   '--> compare the machine, say Ready, return to the caller --> finish; the host ends us
//! ```
//!
//! The program is not pid 1, so that it can wait for its own children, and die without taking the kernel along.

mod setup;

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, setsid};
use scxlab_machine::topology::sysfs::{self, SysfsReader};

use crate::initramfs;
use crate::protocol::{self, Kind, Ready};
use crate::qemu::MARKER;
use crate::shape;

/// Whether this process is init of one of our guests. Asked first of all, before any argument is read.
pub fn is_init() -> bool {
    // The kernel hands words of its command line that it does not know to init as variables.
    std::process::id() == 1 && std::env::var_os(MARKER).is_some()
}

/// A guest that is up, with its program running in it.
#[derive(Debug)]
pub struct Guest {
    args: Vec<String>,
    guest_cpus: Vec<u32>,
    port: File,
}

/// Makes a system of the bare kernel and returns in the process that is to run the program. Call it before any
/// thread is started. If it cannot, it tells the host why and powers off.
pub fn enter() -> Guest {
    let mounted = setup::prepare();
    let port = match setup::open_port() {
        Ok(port) => port,
        Err(why) => {
            eprintln!("scxlab: the result port: {why}; before that: {mounted:?}");
            off();
        }
    };
    if let Err(why) = mounted {
        fail(&port, &why);
    }
    // SAFETY: `enter` is called before any thread is started, so the child's memory is consistent.
    match unsafe { fork() } {
        Ok(ForkResult::Child) => {}
        Ok(ForkResult::Parent { child }) => reap_until(child, &port),
        Err(why) => fail(&port, &format!("no process for the program: {why}")),
    }
    match begin(&port) {
        Ok((args, guest_cpus)) => Guest { args, guest_cpus, port },
        Err(why) => fail(&port, &why),
    }
}

impl Guest {
    /// The arguments that the caller of [`crate::boot()`] gave.
    pub fn args(&self) -> &[String] {
        &self.args
    }

    /// A file of the caller's, or any other.
    pub fn file(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        std::fs::read(path)
    }

    /// This kernel's number of each CPU of the machine that was asked for, by that machine's number.
    pub fn cpus(&self) -> &[u32] {
        &self.guest_cpus
    }

    /// Returns `output` from [`crate::boot()`] on the host. The guest ends.
    pub fn finish(&self, output: &[u8]) -> ! {
        end(&self.port, Kind::Result, output)
    }

    /// Ends the guest without a result, for a reason that the host shows.
    pub fn fail(&self, why: &str) -> ! {
        fail(&self.port, why)
    }
}

/// The running kernel's files.
pub struct Sys;

impl SysfsReader for Sys {
    fn read(&self, path: &str) -> io::Result<String> {
        std::fs::read_to_string(Path::new("/sys").join(path))
    }
}

/// In the program's process: reads what the host gave, and says that we are up.
fn begin(mut port: &File) -> Result<(Vec<String>, Vec<u32>), String> {
    setsid().map_err(|why| format!("a session: {why}"))?;
    let read = |path: &str| std::fs::read_to_string(path).map_err(|why| format!("{path}: {why}"));
    let args = read(initramfs::ARGS)?;
    let args = args.split_terminator('\0').map(str::to_owned).collect();
    let guest_cpus = read(initramfs::CPUS)?;
    let guest_cpus = guest_cpus.lines().map(str::parse).collect::<Result<_, _>>();
    let guest_cpus = guest_cpus.map_err(|why| format!("{}: {why}", initramfs::CPUS))?;
    let found = match sysfs::read(&Sys) {
        Ok(topology) => shape::describe(&topology, |cpu| cpu),
        Err(why) => format!("a machine that cannot be read: {why}"),
    };
    let ready = Ready {
        release: read("/proc/sys/kernel/osrelease")?.trim().to_owned(),
        lacks: lacks(&read(initramfs::NEEDS)?),
        topology: shape::difference(&read(initramfs::SHAPE)?, &found),
    };
    protocol::send(&mut port, Kind::Ready, &ready.to_bytes()).map_err(|why| why.to_string())?;
    Ok((args, guest_cpus))
}

/// Names of the needs whose paths do not exist.
fn lacks(needs: &str) -> Vec<String> {
    let needs = needs.lines().filter_map(|line| line.split_once(' '));
    needs.filter(|(path, _)| !Path::new(path).exists()).map(|(_, name)| name.to_owned()).collect()
}

/// Pid 1: takes in orphans until the program is gone. A program that finished never gets here: the guest is off.
fn reap_until(program: Pid, port: &File) -> ! {
    loop {
        let status = match waitpid(None, None) {
            Ok(status) => status,
            Err(nix::errno::Errno::EINTR) => continue,
            Err(why) => fail(port, &format!("waiting for the program: {why}")),
        };
        match status {
            WaitStatus::Exited(pid, code) if pid == program => {
                fail(port, &format!("its program ended with status {code} and without a result"));
            }
            WaitStatus::Signaled(pid, signal, _) if pid == program => {
                fail(port, &format!("its program was killed by {signal}"));
            }
            _ => {}
        }
    }
}

fn fail(port: &File, why: &str) -> ! {
    end(port, Kind::Failed, why.as_bytes())
}

/// Says the last word, once what was printed is out. Whoever reads it ends the guest, which must not switch off before: what
/// QEMU has not passed on by then is lost.
fn end(mut port: &File, kind: Kind, payload: &[u8]) -> ! {
    let _ = io::stdout().flush();
    let _ = nix::sys::termios::tcdrain(io::stdout());
    match protocol::send(&mut port, kind, payload) {
        // Nothing ever comes; it returns when nobody listens any more.
        Ok(()) => drop(port.read(&mut [0])),
        Err(why) => eprintln!("scxlab: the result port: {why}"),
    }
    off();
}

/// Powers off. Nothing is on a disk that could be lost.
fn off() -> ! {
    let Err(why) = nix::sys::reboot::reboot(nix::sys::reboot::RebootMode::RB_POWER_OFF);
    eprintln!("scxlab: the guest cannot be switched off: {why}");
    // The host stops us; ending as pid 1 would bury the message under a panic.
    loop {
        std::thread::park();
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! The guest's side: this executable as init of the guest.
//!
//! Owns: the mounts, the reaping of orphans, the result port, the end of the guest. Does not: know
//! the program's task.
//!
//! ```text
//! pid 1   enter: mount, open the port, fork --> reap until the program ends; if it ended without
//!                                       |       a result, say so; power off
//! pid 2                                 '-----> compare the machine, say Ready, return to the
//!                                               caller --> finish: send the result; the host
//!                                               ends the guest
//! ```
//!
//! The program is not pid 1, so that it can wait for its own children, and so that its death does
//! not panic the kernel.

mod setup;

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::Path;

use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, fork, setsid};
use scxlab_machine::topology::sysfs::{self, SysfsReader};

use crate::initramfs;
use crate::protocol::{self, Frame, FrameKind, Ready};
use crate::qemu::MARKER;
use crate::shape;

/// Returns whether this process is init of a guest of this crate. Must be called first, before any
/// argument is read.
pub fn is_init() -> bool {
    // The kernel passes unknown words of its command line to init as environment variables.
    std::process::id() == 1 && std::env::var_os(MARKER).is_some()
}

/// A running guest, as seen by its program.
#[derive(Debug)]
pub struct Guest {
    args: Vec<String>,
    guest_cpus: Vec<u32>,
    port: File,
}

/// Sets up a system on the bare kernel and returns in the process that is to run the program. Must
/// be called before any thread is started. On an error, reports the reason to the host and powers
/// off.
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
    /// Returns the arguments that the caller of [`crate::boot()`] gave.
    pub fn args(&self) -> &[String] {
        &self.args
    }

    /// Reads a file of the guest, either one that the caller of [`crate::boot()`] gave or any
    /// other.
    pub fn file(&self, path: impl AsRef<Path>) -> io::Result<Vec<u8>> {
        std::fs::read(path)
    }

    /// Returns this kernel's number of each CPU of the requested machine, indexed by that machine's
    /// number.
    pub fn cpus(&self) -> &[u32] {
        &self.guest_cpus
    }

    /// Reports that the program is ready to begin, and waits until the host says so to all its
    /// guests.
    pub fn wait_for_go(&self) -> io::Result<()> {
        let mut port = &self.port;
        protocol::send(&mut port, FrameKind::Waiting, &[])?;
        match protocol::receive(&mut port) {
            Ok(Frame { kind: FrameKind::Go, .. }) => Ok(()),
            Ok(Frame { kind, .. }) => Err(io::Error::other(format!("the host sent {kind:?}"))),
            Err(why) => Err(io::Error::other(why)),
        }
    }

    /// Ends the guest and returns `output` from [`crate::boot()`] on the host.
    pub fn finish(&self, output: &[u8]) -> ! {
        end(&self.port, FrameKind::Result, output)
    }

    /// Ends the guest without a result; the host shows the reason.
    pub fn fail(&self, why: &str) -> ! {
        fail(&self.port, why)
    }
}

/// Reader of the running kernel's `/sys`.
pub struct Sys;

impl SysfsReader for Sys {
    fn read(&self, path: &str) -> io::Result<String> {
        std::fs::read_to_string(Path::new("/sys").join(path))
    }
}

/// Runs in the program's process: reads the files that the host put into the initramfs, and reports
/// to the host that the guest is up.
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
    protocol::send(&mut port, FrameKind::Ready, &ready.to_bytes())
        .map_err(|why| why.to_string())?;
    Ok((args, guest_cpus))
}

/// Returns the names of the required kernel features whose paths do not exist. A line of `needs` is
/// a path and the feature that the path shows.
fn lacks(needs: &str) -> Vec<String> {
    let needs = needs.lines().filter_map(|line| line.split_once(' '));
    needs.filter(|(path, _)| !Path::new(path).exists()).map(|(_, name)| name.to_owned()).collect()
}

/// Runs in pid 1: reaps orphans until the program ends. If the program finished with a result, the
/// host ends the guest first.
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
    end(port, FrameKind::Failed, why.as_bytes())
}

/// Sends the guest's last message to the host, after all printed output. The host ends the guest
/// once it has read the message. The guest must not power off before, because output that QEMU has
/// not passed on by then is lost.
fn end(mut port: &File, kind: FrameKind, payload: &[u8]) -> ! {
    let _ = io::stdout().flush();
    let _ = nix::sys::termios::tcdrain(io::stdout());
    match protocol::send(&mut port, kind, payload) {
        // The host sends nothing more; the read returns when the host closes the port.
        Ok(()) => drop(port.read(&mut [0])),
        Err(why) => eprintln!("scxlab: the result port: {why}"),
    }
    off();
}

/// Powers off. Nothing is on a disk, so nothing can be lost.
fn off() -> ! {
    let Err(why) = nix::sys::reboot::reboot(nix::sys::reboot::RebootMode::RB_POWER_OFF);
    eprintln!("scxlab: the guest cannot be switched off: {why}");
    // Wait until the host stops the guest. If pid 1 exited instead, the kernel would panic, and the
    // log of the panic would bury the message above.
    loop {
        std::thread::park();
    }
}

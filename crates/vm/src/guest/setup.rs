// SPDX-License-Identifier: GPL-2.0-only
//! Turns a bare kernel into a system that programs expect.
//!
//! Owns: mounts, limits, the loopback device, finding the result port.
//! Does not: report errors to the host; the caller does so through the port.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::fcntl::OFlag;
use nix::libc;
use nix::mount::{MsFlags, mount};
use nix::sys::resource::{Resource, setrlimit};

use crate::nested;
use crate::qemu::PORT;

/// Mounts in order: file system type, mount point, and whether the guest can do without it. `/tmp`
/// is none, because the programs that a run needs may be there.
const MOUNTS: [(&str, &str, bool); 10] = [
    ("proc", "/proc", false),
    ("sysfs", "/sys", false),
    ("devtmpfs", "/dev", false),
    ("devpts", "/dev/pts", true),
    ("tmpfs", "/dev/shm", true),
    ("tmpfs", "/run", false),
    ("cgroup2", "/sys/fs/cgroup", true),
    ("bpf", "/sys/fs/bpf", true),
    ("tracefs", "/sys/kernel/tracing", true),
    ("debugfs", "/sys/kernel/debug", true),
];
const PORTS: &str = "/sys/class/virtio-ports";
/// Time limit for the port to appear; the driver announces ports in the background.
const PORT_PATIENCE: Duration = Duration::from_secs(300);
const PORT_POLL: Duration = Duration::from_millis(5);
/// Limit of open files per process: benchmarks with thousands of sockets are usual.
const FILES_MAX: u64 = 1 << 20;

/// Makes the mounts and settings that programs expect; returns the first error that matters, as
/// text.
pub(super) fn prepare() -> Result<(), String> {
    for (kind, place, optional) in MOUNTS {
        match mount_at(kind, place) {
            Err(why) if !optional => return Err(format!("mounting {kind} on {place}: {why}")),
            Err(why) => eprintln!("scxlab: no {kind} on {place}: {why}"),
            Ok(()) => {}
        }
    }
    // For programs that do not run as root.
    std::fs::set_permissions("/tmp", Permissions::from_mode(0o1777))
        .map_err(|why| format!("the permissions of /tmp: {why}"))?;
    // Log everything from here on: the log is short, and shows what a scheduler did to the kernel.
    std::fs::write("/proc/sys/kernel/printk", "7")
        .map_err(|why| format!("the log's level: {why}"))?;
    setrlimit(Resource::RLIMIT_NOFILE, FILES_MAX, FILES_MAX)
        .map_err(|why| format!("limits: {why}"))?;
    nested::load_modules();
    if let Err(why) = loopback_up() {
        eprintln!("scxlab: no loopback device: {why}");
    }
    // Redirect standard input from /dev/null: no input will come, and a program that reads it must
    // not wait.
    let null = File::open("/dev/null").map_err(|why| format!("/dev/null: {why}"))?;
    nix::unistd::dup2_stdin(&null).map_err(|why| format!("standard input: {why}"))?;
    let variables = [
        ("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"),
        ("HOME", "/"),
        ("TMPDIR", "/tmp"),
    ];
    for (name, value) in variables {
        // SAFETY: `enter` requires that there is one thread, so no other reads the environment
        // meanwhile.
        unsafe { std::env::set_var(name, value) };
    }
    Ok(())
}

/// Opens the result port, which the host listens on.
pub(super) fn open_port() -> io::Result<File> {
    let started = Instant::now();
    loop {
        if let Some(device) = find_port()? {
            let close_on_exec = OFlag::O_CLOEXEC.bits();
            return File::options().read(true).write(true).custom_flags(close_on_exec).open(device);
        }
        if started.elapsed() > PORT_PATIENCE {
            let why = format!("no port named {PORT} in {PORTS} (CONFIG_VIRTIO_CONSOLE, _PCI)");
            return Err(io::Error::new(io::ErrorKind::NotFound, why));
        }
        std::thread::sleep(PORT_POLL);
    }
}

/// Returns the device file of the result port, which is found by the port's name; None if the port
/// or its device file does not exist yet.
fn find_port() -> io::Result<Option<PathBuf>> {
    let ports = match std::fs::read_dir(PORTS) {
        Ok(ports) => ports,
        Err(why) if why.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(why) => return Err(why),
    };
    for port in ports {
        let port = port?;
        // A port has no name until the host has sent the name.
        let name = std::fs::read_to_string(port.path().join("name")).unwrap_or_default();
        let device = Path::new("/dev").join(port.file_name());
        if name.trim() == PORT && device.exists() {
            return Ok(Some(device));
        }
    }
    Ok(None)
}

fn mount_at(kind: &str, place: &str) -> io::Result<()> {
    // Create the mount point if the initramfs lacks it. The kernel itself makes the mount points
    // that lie in its own file systems.
    if let Err(why) = std::fs::create_dir_all(place)
        && !Path::new(place).is_dir()
    {
        return Err(why);
    }
    let flags = MsFlags::MS_NOSUID;
    mount(Some(kind), place, Some(kind), flags, None::<&str>).map_err(io::Error::from)
}

/// Brings up the loopback device, which sockets between programs of the guest use.
fn loopback_up() -> io::Result<()> {
    let socket = std::net::UdpSocket::bind("0.0.0.0:0")?;
    // SAFETY: all-zero bytes are a valid `ifreq`, which is plain data.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    let fd = std::os::fd::AsRawFd::as_raw_fd(&socket);
    // SAFETY: the descriptor is open, and the request is the structure that this call reads.
    match unsafe { libc::ioctl(fd, libc::SIOCSIFFLAGS, &request) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! A virtual machine in which virtual machines run: the files of QEMU and the kernel's modules for
//! KVM that it needs besides QEMU itself.
//!
//! Owns: their names, and loading the modules. Does not: decide whether KVM works there (see
//! `accel.rs`).

use std::ffi::CString;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;

use nix::libc;

use crate::boot::{GuestFile, find_qemu};
use crate::error::VmError;

/// Files that QEMU loads into a machine: its firmware, and the code that starts a kernel.
const FIRMWARE: [&str; 4] = ["bios-256k.bin", "kvmvapic.bin", "linuxboot_dma.bin", "pvh.bin"];
/// Modules in the order in which they depend on each other. At most one of the last two fits the
/// CPU.
const MODULES: [&str; 4] = ["irqbypass", "kvm", "kvm-amd", "kvm-intel"];
/// Endings of a module's file, and whether the kernel must decompress it.
const ENDINGS: [(&str, bool); 4] =
    [("ko", false), ("ko.xz", true), ("ko.zst", true), ("ko.gz", true)];
/// Folder of the modules beside a kernel's image, and in a guest.
pub(crate) const FOLDER: &str = "modules";
const IN_GUEST: &str = "/scxlab/modules";

/// Returns the files that a guest needs to run guests, and that are no executables: QEMU's data,
/// and the modules for KVM, which lie in the folder `modules` beside the image of the guest's
/// kernel. A kernel without them must have KVM built in.
pub fn nested_files(kernel: &Path) -> Result<Vec<GuestFile>, VmError> {
    let mut files = Vec::new();
    let dirs = data_dirs(&find_qemu()?);
    for name in FIRMWARE {
        let found = dirs.iter().map(|dir| dir.join(name)).find(|path| path.is_file());
        // QEMU names a file that it misses.
        let Some(path) = found else { continue };
        files.push(copied(&path, path.display().to_string())?);
    }
    for name in module_names() {
        let path = kernel.with_file_name(FOLDER).join(&name);
        if path.is_file() {
            files.push(copied(&path, format!("{IN_GUEST}/{name}"))?);
        }
    }
    Ok(files)
}

/// Returns the names that a file with one of the modules may have.
pub(crate) fn module_names() -> impl Iterator<Item = String> {
    module_files().map(|(name, ending, _)| format!("{name}.{ending}"))
}

/// Loads the modules that the host put into this guest. The caller notices by other means if KVM
/// does not work then.
pub(crate) fn load_modules() {
    let flags = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let has = |flag: &str| flags.split_whitespace().any(|word| word == flag);
    let fits = |name: &str| match name {
        "kvm-amd" => has("svm"),
        "kvm-intel" => has("vmx"),
        _ => true,
    };
    for (name, ending, is_compressed) in module_files().filter(|(name, ..)| fits(name)) {
        let path = format!("{IN_GUEST}/{name}.{ending}");
        if let Err(why) = load(&path, is_compressed)
            && why.kind() != io::ErrorKind::NotFound
        {
            eprintln!("scxlab: {path}: {why}");
        }
    }
}

fn load(path: &str, is_compressed: bool) -> io::Result<()> {
    /// `MODULE_INIT_COMPRESSED_FILE`
    const COMPRESSED: libc::c_int = 4;
    let file = fs::File::open(path)?;
    let flags = if is_compressed { COMPRESSED } else { 0 };
    let parameters = CString::default();
    // SAFETY: the descriptor is open, and the parameters are a C string.
    let got = unsafe {
        libc::syscall(libc::SYS_finit_module, file.as_raw_fd(), parameters.as_ptr(), flags)
    };
    if got == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn module_files() -> impl Iterator<Item = (&'static str, &'static str, bool)> {
    MODULES.into_iter().flat_map(|name| ENDINGS.map(|(ending, packed)| (name, ending, packed)))
}

/// Returns the directories in which QEMU looks for its data.
fn data_dirs(qemu: &Path) -> Vec<PathBuf> {
    let said = Command::new(qemu).args(["-L", "help"]).output();
    let said = said.map(|out| String::from_utf8_lossy(&out.stdout).into_owned());
    // QEMU names them relative to its own directory; a guest has the same tree without links.
    said.unwrap_or_default().lines().filter_map(|dir| fs::canonicalize(dir).ok()).collect()
}

fn copied(from: &Path, to: String) -> Result<GuestFile, VmError> {
    let data = fs::read(from);
    let data = data.map_err(|why| VmError::File { path: to.clone(), why: why.to_string() })?;
    Ok(GuestFile { path: to, data, mode: 0o644 })
}

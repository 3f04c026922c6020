// SPDX-License-Identifier: GPL-2.0-only
//! The program's cgroups as cgroup v2 directories, for the length of the run.
//!
//! Owns: creating, limiting and removing these directories. Dropping the `Tree` undoes everything
//! that it created or switched on.
//!
//! Every cgroup of the program is of type `threaded`, below a base directory that serves as the
//! program's "/". The type `threaded` allows a single thread to be moved, and allows a parent to
//! hold threads beside its children (a domain cgroup that gives controllers to its children may
//! not). The controllers that a scheduler sees, cpu and cpuset, are threaded controllers and work
//! as in domain cgroups. A process enters the base through `cgroup.procs` before its threads enter
//! descendants through `cgroup.threads`.

use std::ffi::CString;
use std::fs;
use std::io::ErrorKind;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::error::SetupError;
use super::plan::CgroupPlace;
use super::sys::{self, Errno};
use crate::program::CgroupDef;

/// Number of attempts to remove a cgroup and the time between them: a cgroup is busy until its last
/// task is gone.
const TRIES: u32 = 100;
const TRY_NS: u64 = 10_000_000;

/// The cgroups of one run. Dropping the tree removes them.
pub struct Tree {
    /// Directories that this run created, parents first.
    made: Vec<PathBuf>,
    /// Controllers that this run switched on for the children of directories that it did not
    /// create.
    switched: Vec<(PathBuf, &'static str)>,
    /// Descriptor of `cgroup.procs` of the base directory.
    pub procs: Option<OwnedFd>,
    /// Descriptors of `cgroup.threads`: of the base directory, then of each cgroup of the program.
    pub threads: Vec<OwnedFd>,
}

impl Tree {
    /// Creates the program's cgroups. Fails if one of `controllers` is not available at the mount.
    pub fn create(
        place: &CgroupPlace,
        defs: &[CgroupDef],
        controllers: &[&'static str],
    ) -> Result<Self, SetupError> {
        let mut tree =
            Tree { made: Vec::new(), switched: Vec::new(), procs: None, threads: Vec::new() };
        let (mount, base) = (Path::new(&place.mount), Path::new(&place.base));
        available(mount, controllers)?;
        let Ok(below) = base.strip_prefix(mount) else {
            return Err(failed(base, "is not below the cgroup2 mount", libc::EINVAL, ""));
        };
        let mut at = mount.to_path_buf();
        for part in below.components() {
            tree.switch_on(&at, controllers)?;
            at.push(part);
            tree.make(&at, true)?;
        }
        tree.switch_on(base, controllers)?;
        tree.procs = Some(open(&base.join("cgroup.procs"))?);
        tree.threads.push(open(&base.join("cgroup.threads"))?);
        for def in defs {
            let path = base.join(def.path.trim_start_matches('/'));
            tree.make(&path, false)?;
            write(&path, "cgroup.type", "threaded")?;
            limit(&path, def)?;
            let prefix = format!("{}/", def.path);
            if defs.iter().any(|d| d.path.starts_with(&prefix)) {
                tree.switch_on(&path, controllers)?;
            }
            tree.threads.push(open(&path.join("cgroup.threads"))?);
        }
        Ok(tree)
    }

    fn make(&mut self, path: &Path, may_exist: bool) -> Result<(), SetupError> {
        match fs::create_dir(path) {
            Ok(()) => self.made.push(path.to_path_buf()),
            Err(e) if may_exist && e.kind() == ErrorKind::AlreadyExists => {}
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {
                let advice = "; it does not belong to this run, which leaves it unchanged";
                return Err(failed(path, "mkdir", code(&e), advice));
            }
            Err(e) => return Err(failed(path, "mkdir", code(&e), "; needs root")),
        }
        Ok(())
    }

    /// Gives the controllers to the children of a directory and records the controllers that were
    /// off before.
    fn switch_on(&mut self, path: &Path, controllers: &[&'static str]) -> Result<(), SetupError> {
        let file = path.join("cgroup.subtree_control");
        let on = fs::read_to_string(file).unwrap_or_default();
        for controller in controllers {
            if on.split_whitespace().any(|c| c == *controller) {
                continue;
            }
            write(path, "cgroup.subtree_control", &format!("+{controller}"))?;
            if !self.made.iter().any(|made| made == path) {
                self.switched.push((path.to_path_buf(), *controller));
            }
        }
        Ok(())
    }

    /// Removes the directories and switches off the controllers that this run switched on. Returns
    /// a message for each cgroup that could not be removed.
    pub fn remove(&mut self) -> Vec<String> {
        self.threads.clear();
        self.procs = None;
        let mut left = Vec::new();
        while let Some(path) = self.made.pop() {
            if let Err(e) = remove_dir(&path) {
                left.push(format!("cgroup {} could not be removed: {e}", path.display()));
            }
        }
        while let Some((path, controller)) = self.switched.pop() {
            // The write fails if somebody else uses the controller by now; the controller then
            // stays on.
            let _ = write(&path, "cgroup.subtree_control", &format!("-{controller}"));
        }
        left
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Returns the cgroup2 mount point: the first mount with the cpu controller, or else the first
/// mount.
pub fn find_mount() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").ok()?;
    let of_type = |line: &str| {
        let mut fields = line.split(' ').skip(1);
        let place = fields.next()?;
        (fields.next()? == "cgroup2").then(|| PathBuf::from(place.replace("\\040", " ")))
    };
    let all: Vec<PathBuf> = mounts.lines().filter_map(of_type).collect();
    let usable = |m: &&PathBuf| {
        fs::read_to_string(m.join("cgroup.controllers")).is_ok_and(|c| c.contains("cpu"))
    };
    all.iter().find(usable).or(all.first()).cloned()
}

/// Removes the cgroups of a run whose director did not remove them: first the cgroups of the
/// program, then the base if the run chose its name (`own_base`).
pub fn sweep(base: &Path, defs: &[CgroupDef], own_base: bool) {
    for def in defs.iter().rev() {
        let _ = fs::remove_dir(base.join(def.path.trim_start_matches('/')));
    }
    if own_base {
        let _ = fs::remove_dir(base);
    }
}

fn available(mount: &Path, controllers: &[&str]) -> Result<(), SetupError> {
    let text = fs::read_to_string(mount.join("cgroup.controllers")).map_err(|e| {
        failed(mount, "cgroup.controllers", code(&e), "; is cgroup2 mounted there?")
    })?;
    match controllers.iter().find(|c| !text.split_whitespace().any(|t| t == **c)) {
        None => Ok(()),
        Some(missing) => {
            let what = format!("the cgroup controller \"{missing}\"");
            let advice = format!(
                ": it is not in {}/cgroup.controllers (not built in, cgroup_disable=, or in a cgroup v1 hierarchy)",
                mount.display()
            );
            Err(SetupError::Lacks { what, advice })
        }
    }
}

fn limit(path: &Path, def: &CgroupDef) -> Result<(), SetupError> {
    if def.weight != 100 {
        write(path, "cpu.weight", &def.weight.to_string())?;
    }
    if let Some(quota) = def.quota {
        // The kernel's files take times in microseconds.
        write(path, "cpu.max", &format!("{} {}", quota.0 / 1000, def.period.0 / 1000))?;
        if def.burst.0 > 0 {
            write(path, "cpu.max.burst", &(def.burst.0 / 1000).to_string())?;
        }
    }
    if def.idle {
        write(path, "cpu.idle", "1")?;
    }
    for (name, value) in &def.xattrs {
        set_xattr(path, name, value)?;
    }
    if let Some(mems) = &def.mems {
        write(path, "cpuset.mems", &mems.to_string())?;
    }
    match &def.cpus {
        Some(cpus) => write(path, "cpuset.cpus", &cpus.to_string()),
        None => Ok(()),
    }
}

fn set_xattr(path: &Path, name: &str, value: &str) -> Result<(), SetupError> {
    // Neither string contains a NUL: the directory exists, and `compile::check` has checked the
    // name.
    let text = |bytes: &[u8]| CString::new(bytes).unwrap_or_default();
    let got = sys::set_xattr(
        &text(path.as_os_str().as_bytes()),
        &text(name.as_bytes()),
        value.as_bytes(),
    );
    got.map_err(|code| {
        let advice = match code {
            libc::EOPNOTSUPP => {
                let what = format!("user attributes of cgroups ({name})");
                return SetupError::Lacks {
                    what,
                    advice: ": Linux 5.7 and later have them".into(),
                };
            }
            libc::EACCES | libc::EPERM => "; needs root, or a cgroup delegated to this user",
            _ => "",
        };
        failed(path, &format!("setxattr {name}"), code, advice)
    })
}

fn write(path: &Path, file: &str, text: &str) -> Result<(), SetupError> {
    let opened = fs::OpenOptions::new().write(true).open(path.join(file));
    let got = opened.and_then(|mut f| std::io::Write::write_all(&mut f, text.as_bytes()));
    got.map_err(|e| {
        let advice = match code(&e) {
            libc::EACCES | libc::EPERM => "; needs root, or a cgroup delegated to this user",
            libc::EBUSY => "; a cgroup with processes cannot give controllers to its children",
            libc::EOPNOTSUPP => "; the parent gives controllers that are not threaded",
            libc::ENOENT if path.is_dir() => {
                let advice = format!(": {} is not there", path.join(file).display());
                return SetupError::Lacks { what: file.to_owned(), advice };
            }
            _ => "",
        };
        failed(path, &format!("{file} = {text}"), code(&e), advice)
    })
}

/// Opens a file for writing. The descriptor stays open over `execve`, because a thread may continue
/// in a new image.
fn open(path: &Path) -> Result<OwnedFd, SetupError> {
    let opened = fs::OpenOptions::new().write(true).open(path);
    let fd = OwnedFd::from(opened.map_err(|e| failed(path, "open", code(&e), ""))?);
    // SAFETY: this function owns the descriptor.
    sys::checked(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFD, 0) }.into())
        .map_err(|errno| failed(path, "fcntl", errno, ""))?;
    Ok(fd)
}

fn remove_dir(path: &Path) -> std::io::Result<()> {
    for _ in 1..TRIES {
        match fs::remove_dir(path) {
            Err(e) if code(&e) == libc::EBUSY => {
                sys::sleep_until(sys::now().saturating_add(TRY_NS));
            }
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
            got => return got,
        }
    }
    fs::remove_dir(path)
}

fn code(e: &std::io::Error) -> Errno {
    e.raw_os_error().unwrap_or(libc::EIO)
}

fn failed(path: &Path, what: &str, errno: Errno, advice: &str) -> SetupError {
    SetupError::Cgroup {
        path: path.display().to_string(),
        what: what.to_owned(),
        errno,
        advice: advice.to_owned(),
    }
}

#[cfg(test)]
mod tests;

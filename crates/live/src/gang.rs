// SPDX-License-Identifier: GPL-2.0-only
//! The gang switch of a cgroup, which is an extended attribute of the cgroup's directory. A
//! scheduler that knows gangs runs a gang's tasks at the same time.
//!
//! Owns: the attribute's name and values. `scxlab gang`, `setfattr` or a workload file may set the
//! attribute. A scheduler that schedules gangs reads the attribute itself, so no other channel is
//! needed.
//! Models: the interface of the thread "Gang scheduling in CFS" (2011), `echo 1 > cpu.gang`,
//! without a change to the kernel.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

use scxlab_workload::native::cgroup_mount;

/// Name of the attribute. With the value `1` the cgroup is a gang; with `0`, or without the
/// attribute, it is not.
pub const ATTRIBUTE: &str = "user.cpu.gang";

/// Reason why a gang switch could not be set or read.
#[derive(Debug, thiserror::Error)]
pub enum GangError {
    #[error("cgroup v2 is not mounted here; gangs are cgroups of it")]
    NoCgroups,
    #[error("\"{name}\" is not a cgroup below {}: {why}", .mount.display())]
    NoSuchCgroup { name: String, mount: PathBuf, why: String },
    #[error("setting {ATTRIBUTE} on {}: {error}{}", .path.display(), advice(.error))]
    Set { path: PathBuf, error: io::Error },
    #[error("reading {}: {error}", .path.display())]
    Read { path: PathBuf, error: io::Error },
}

fn advice(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            "; this needs root, or a cgroup that belongs to this user"
        }
        Some(libc::EOPNOTSUPP) => {
            "; this kernel has no user attributes on cgroups (Linux 5.7 or later does)"
        }
        _ => "",
    }
}

/// The cgroup hierarchy of this machine.
pub struct Gangs {
    mount: PathBuf,
}

/// A cgroup whose attribute is set.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GangCgroup {
    /// Path from the top of the hierarchy, such as `/a/b`.
    pub cgroup: String,
    pub value: String,
}

impl Gangs {
    pub fn open() -> Result<Gangs, GangError> {
        cgroup_mount().map(|mount| Gangs { mount }).ok_or(GangError::NoCgroups)
    }

    /// Makes a cgroup a gang, or an ordinary cgroup again. `cgroup` is the cgroup's directory or
    /// its path from the top of the hierarchy. Returns the path from the top.
    pub fn switch(&self, cgroup: &str, on: bool) -> Result<String, GangError> {
        let path = directory(&self.mount, cgroup)?;
        let value = if on { "1" } else { "0" };
        xattr::set(&path, ATTRIBUTE, value.as_bytes())
            .map_err(|error| GangError::Set { path: path.clone(), error })?;
        Ok(self.name_of(&path))
    }

    /// Returns all cgroups whose attribute is set, parents first.
    pub fn list(&self) -> Result<Vec<GangCgroup>, GangError> {
        let mut found = Vec::new();
        let mut todo = vec![self.mount.clone()];
        while let Some(path) = todo.pop() {
            match self.look(&path, &mut found) {
                Ok(below) => todo.extend(below),
                // A cgroup may be removed at any time.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(GangError::Read { path, error }),
            }
        }
        Ok(found)
    }

    /// Adds the directory to `found` if its attribute is set, and returns its subdirectories in
    /// reverse order of their names.
    fn look(&self, path: &Path, found: &mut Vec<GangCgroup>) -> io::Result<Vec<PathBuf>> {
        if let Some(value) = xattr::get(path, ATTRIBUTE)? {
            let value = String::from_utf8_lossy(&value).into_owned();
            found.push(GangCgroup { cgroup: self.name_of(path), value });
        }
        let mut below = Vec::new();
        for entry in fs::read_dir(path)? {
            let entry = entry?;
            if entry.file_type()?.is_dir() {
                below.push(entry.path());
            }
        }
        below.sort_by(|a, b| b.cmp(a));
        Ok(below)
    }

    fn name_of(&self, path: &Path) -> String {
        let below = path.strip_prefix(&self.mount).unwrap_or(path);
        format!("/{}", below.display())
    }
}

/// Returns the directory of a cgroup, which `name` names by its directory or by its path from the
/// top of the hierarchy that is mounted at `mount`.
pub(crate) fn directory(mount: &Path, name: &str) -> Result<PathBuf, GangError> {
    let refuse = |why: String| {
        let mount = mount.to_owned();
        GangError::NoSuchCgroup { name: name.to_owned(), mount, why }
    };
    if Path::new(name).components().any(|c| c == Component::ParentDir) {
        return Err(refuse("its name has \"..\"".into()));
    }
    let below = Path::new(name).strip_prefix(mount).unwrap_or(Path::new(name));
    let path = mount.join(below.strip_prefix("/").unwrap_or(below));
    match fs::metadata(path.join("cgroup.controllers")) {
        Ok(_) => Ok(path),
        Err(_) if path.is_dir() => Err(refuse("the directory is not one of cgroup v2".into())),
        Err(error) => Err(refuse(error.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Makes a folder that looks like a cgroup hierarchy to the code. Attributes need a file system
    /// that supports them.
    fn hierarchy() -> (tempfile::TempDir, Gangs) {
        let dir = tempfile::tempdir().expect("a folder");
        for path in ["a/b", "c", "other"] {
            fs::create_dir_all(dir.path().join(path)).expect("a folder");
        }
        for path in ["", "a", "a/b", "c"] {
            fs::write(dir.path().join(path).join("cgroup.controllers"), "").expect("a file");
        }
        let gangs = Gangs { mount: dir.path().to_owned() };
        (dir, gangs)
    }

    #[test]
    fn a_cgroup_has_two_names() {
        let (dir, gangs) = hierarchy();
        let full = dir.path().join("a/b");
        for name in ["a/b", "/a/b", full.to_str().expect("UTF-8")] {
            assert_eq!(directory(&gangs.mount, name).expect(name), full);
        }
        assert_eq!(gangs.name_of(&full), "/a/b");
        for (name, why) in [
            ("x", "No such file"),
            ("other", "not one of cgroup v2"),
            ("a/../c", "\"..\""),
            ("/etc", "No such file"),
        ] {
            let error = directory(&gangs.mount, name).expect_err(name).to_string();
            assert!(error.contains(why), "{name}: {error}");
        }
    }

    #[test]
    fn what_is_switched_is_listed() {
        let (dir, gangs) = hierarchy();
        if xattr::set(dir.path(), "user.probe", b"1").is_err() {
            eprintln!("skipped: this file system has no user attributes");
            return;
        }
        assert_eq!(gangs.list().expect("list"), []);
        assert_eq!(gangs.switch("c", true).expect("on"), "/c");
        gangs.switch("a/b", true).expect("on");
        gangs.switch("/a/b", false).expect("off");
        let marked = |cgroup: &str, value: &str| GangCgroup {
            cgroup: cgroup.to_owned(),
            value: value.to_owned(),
        };
        assert_eq!(gangs.list().expect("list"), [marked("/a/b", "0"), marked("/c", "1")]);
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! Paths and limits of the cgroups of recorded tasks.
//!
//! Owns: the path of each cgroup id, and the limits as they were when a task of the cgroup was
//! first seen. Later changes of limits are not noticed. A cgroup without the cpu controller has no
//! limits.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use scxlab_trace::CgroupAttributes;
use scxlab_workload::native::cgroup_mount;

use crate::LiveError;
use crate::gang::directory;

/// Path in a recording of a cgroup that was removed before its path was read.
const UNKNOWN: &str = "/(removed)";

/// The cgroups of this machine.
pub struct Cgroups {
    mount: Option<PathBuf>,
    nr_cpus: usize,
    paths: BTreeMap<u64, String>,
    /// Cgroups whose limits were read.
    read: BTreeSet<String>,
}

impl Cgroups {
    /// Lists the cgroups. A machine without cgroup v2 has none.
    pub fn find(nr_cpus: usize) -> Cgroups {
        let mut found = Cgroups { mount: cgroup_mount(), ..Cgroups::none(nr_cpus) };
        found.list();
        found
    }

    /// Returns the cgroups of a machine without any.
    pub fn none(nr_cpus: usize) -> Cgroups {
        Cgroups { mount: None, nr_cpus, paths: BTreeMap::new(), read: BTreeSet::new() }
    }

    /// Returns the id of a cgroup, which is named by its directory or its path from the top.
    pub fn id_of(&self, name: &str) -> Result<u64, LiveError> {
        let mount = self.mount.as_deref().ok_or(LiveError::NoCgroups)?;
        let path = directory(mount, name)?;
        let failed = |e| LiveError::Recorder(format!("{}: {e}", path.display()));
        Ok(fs::metadata(&path).map_err(failed)?.ino())
    }

    /// Notes the path of a new cgroup.
    pub fn learn(&mut self, id: u64, path: String) {
        self.paths.insert(id, path);
    }

    /// Returns a cgroup's path from the top; `/` for the root.
    pub fn path(&mut self, id: u64) -> String {
        if !self.paths.contains_key(&id) {
            self.list();
        }
        self.paths.entry(id).or_insert_with(|| UNKNOWN.into()).clone()
    }

    /// Returns the limits of a cgroup and of those above it, except of those that were returned
    /// before.
    pub fn limits(&mut self, path: &str) -> Vec<(String, CgroupAttributes)> {
        let above = path.match_indices('/').map(|(at, _)| &path[..at.max(1)]);
        let all: Vec<&str> = above.chain([path]).collect();
        let mut found = Vec::new();
        for group in all {
            if self.read.insert(group.to_owned()) {
                found.extend(self.read_limits(group).map(|limits| (group.to_owned(), limits)));
            }
        }
        found
    }

    fn read_limits(&self, path: &str) -> Option<CgroupAttributes> {
        let folder = self.mount.as_ref()?.join(path.trim_start_matches('/'));
        let read = |file: &str| fs::read_to_string(folder.join(file)).ok();
        limits(&read, self.nr_cpus)
    }

    fn list(&mut self) {
        let Some(mount) = self.mount.clone() else { return };
        let mut folders = vec![mount.clone()];
        while let Some(folder) = folders.pop() {
            let Ok(metadata) = fs::metadata(&folder) else { continue };
            self.paths.insert(metadata.ino(), name_of(&mount, &folder));
            let Ok(entries) = fs::read_dir(&folder) else { continue };
            let is_folder = |e: &fs::DirEntry| e.file_type().is_ok_and(|t| t.is_dir());
            folders.extend(entries.flatten().filter(is_folder).map(|entry| entry.path()));
        }
    }
}

fn name_of(mount: &Path, folder: &Path) -> String {
    format!("/{}", folder.strip_prefix(mount).unwrap_or(folder).display())
}

/// Reads the limits from the files of a cgroup; None without the cpu controller.
fn limits(read: &dyn Fn(&str) -> Option<String>, nr_cpus: usize) -> Option<CgroupAttributes> {
    let number = |file: &str| read(file)?.trim().parse().ok();
    let weight = number("cpu.weight")?;
    let max = read("cpu.max").unwrap_or_default();
    let mut parts = max.split_whitespace().map(|part| part.parse::<u64>().ok());
    let quota = parts.next().flatten();
    let period = parts.next().flatten().unwrap_or(100_000);
    let all = if nr_cpus == 1 { "0".into() } else { format!("0-{}", nr_cpus - 1) };
    let cpus = read("cpuset.cpus.effective").map(|list| list.trim().to_owned());
    Some(CgroupAttributes {
        weight,
        quota: quota.map(|us| us.saturating_mul(1000)),
        period: period.saturating_mul(1000),
        idle: number("cpu.idle") == Some(1),
        cpus: cpus.filter(|list| !list.is_empty() && *list != all),
    })
}

/// Returns a mask of CPUs as a list such as `0-3,8`; None if it has all CPUs.
pub fn cpu_list(mask: &[u64], nr_cpus: usize) -> Option<String> {
    let nr_cpus = nr_cpus.min(mask.len() * 64);
    let has = |cpu: usize| mask[cpu / 64] >> (cpu % 64) & 1 == 1;
    if (0..nr_cpus).all(has) {
        return None;
    }
    let mut parts: Vec<String> = Vec::new();
    let mut cpu = 0;
    while cpu < nr_cpus {
        if !has(cpu) {
            cpu += 1;
            continue;
        }
        let first = cpu;
        while cpu < nr_cpus && has(cpu) {
            cpu += 1;
        }
        let last = cpu - 1;
        parts.push(if first == last { first.to_string() } else { format!("{first}-{last}") });
    }
    Some(parts.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_are_those_of_the_files() {
        let files = |wanted: &[(&str, &str)]| {
            let files: BTreeMap<String, String> =
                wanted.iter().map(|(name, text)| ((*name).into(), (*text).into())).collect();
            limits(&move |name: &str| files.get(name).cloned(), 4)
        };
        assert_eq!(files(&[("cpu.max", "max 100000\n")]), None, "without the cpu controller");
        let plain = CgroupAttributes {
            weight: 100,
            quota: None,
            period: 100_000_000,
            idle: false,
            cpus: None,
        };
        let all = [
            ("cpu.weight", "100\n"),
            ("cpu.max", "max 100000\n"),
            ("cpu.idle", "0\n"),
            ("cpuset.cpus.effective", "0-3\n"),
        ];
        assert_eq!(files(&all), Some(plain));
        let capped = CgroupAttributes {
            weight: 1,
            quota: Some(5_000_000),
            period: 20_000_000,
            idle: true,
            cpus: Some("1-2".into()),
        };
        let all = [
            ("cpu.weight", "1\n"),
            ("cpu.max", "5000 20000\n"),
            ("cpu.idle", "1\n"),
            ("cpuset.cpus.effective", "1-2\n"),
        ];
        assert_eq!(files(&all), Some(capped));
    }

    #[test]
    fn masks_become_lists() {
        assert_eq!(cpu_list(&[0b1111], 4), None);
        assert_eq!(cpu_list(&[0b1011], 4).as_deref(), Some("0-1,3"));
        assert_eq!(cpu_list(&[1 << 63, 0b11], 128).as_deref(), Some("63-65"));
        assert_eq!(cpu_list(&[0b0100], 4).as_deref(), Some("2"));
        assert_eq!(cpu_list(&[!0], 64), None);
    }
}

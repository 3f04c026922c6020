// SPDX-License-Identifier: GPL-2.0-only
//! The nodes of the running kernel.
//!
//! Owns: what sysfs tells of them; the refusal of programs whose regions they cannot hold.

use std::fs;
use std::path::Path;

use super::error::{NativeError, SetupError};
use super::region::MAX_NODES;
use super::sys;
use crate::compile::{self, NodeInfo};
use crate::program::{Program, RegionPolicy};

/// Refuses a program whose regions, guests' memory or cpusets name nodes that this kernel lacks, or
/// need more memory than its nodes have.
pub fn check(program: &Program) -> Result<(), NativeError> {
    let mut memories = program.guests.iter().filter_map(|guest| guest.memory.as_ref());
    let no_guest = memories.all(|memory| memory.policy == RegionPolicy::FirstTouch);
    let no_cpuset = program.cgroups.iter().all(|def| def.mems.is_none());
    if program.regions.is_empty() && no_guest && no_cpuset {
        return Ok(());
    }
    let nodes = of_sysfs(Path::new("/sys/devices/system/node"));
    let what = "memory policies of nodes (CONFIG_NUMA)".to_owned();
    if nodes.is_empty() || !sys::has_policies() {
        return Err(
            SetupError::Lacks { what, advice: ", which regions of memory need".into() }.into()
        );
    }
    if nodes.len() > MAX_NODES {
        let what = format!("a count of pages for its {} nodes", nodes.len());
        return Err(
            SetupError::Lacks { what, advice: format!(": {MAX_NODES} are the limit") }.into()
        );
    }
    Ok(compile::check_nodes(program, &nodes)?)
}

/// Returns the nodes that a folder of sysfs lists, by number. Numbers without a node have no
/// memory.
fn of_sysfs(folder: &Path) -> Vec<NodeInfo> {
    let mut nodes: Vec<NodeInfo> = Vec::new();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("node")?.parse().ok());
        let Some(number): Option<usize> = number else { continue };
        let text = fs::read_to_string(entry.path().join("meminfo")).unwrap_or_default();
        if number >= nodes.len() {
            nodes.resize(number + 1, NodeInfo { memory_bytes: 0 });
        }
        nodes[number].memory_bytes = total(&text);
    }
    nodes
}

/// Returns the memory that a node's `meminfo` states, in bytes.
fn total(meminfo: &str) -> u64 {
    let line = meminfo.lines().find(|line| line.contains("MemTotal:"));
    let kib = line.and_then(|line| line.split_whitespace().nth(3)?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Node 2 has CPUs only, and there is no node 1.
    #[test]
    fn nodes_are_read_from_sysfs() {
        let folder = tempfile();
        for (node, text) in [
            ("node0", "Node 0 MemTotal:  1024 kB\nNode 0 MemFree: 512 kB\n"),
            ("node2", "Node 2 MemTotal: 0 kB\n"),
            ("power", ""),
        ] {
            fs::create_dir_all(folder.join(node)).unwrap();
            fs::write(folder.join(node).join("meminfo"), text).unwrap();
        }
        let sizes: Vec<u64> = of_sysfs(&folder).iter().map(|node| node.memory_bytes).collect();
        assert_eq!(sizes, [1 << 20, 0, 0]);
        fs::remove_dir_all(&folder).unwrap();
    }

    fn tempfile() -> std::path::PathBuf {
        std::env::temp_dir().join(format!("scxlab-nodes-{}", std::process::id()))
    }
}

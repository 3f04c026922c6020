// SPDX-License-Identifier: GPL-2.0-only
//! The standing matrix: the workloads and machines on which `scxlab check` compares two schedulers
//! if the command names none.
//!
//! Owns: the choice. Each entry is a case that schedulers get wrong for a reason of its own.

/// One workload on one machine, in the form of `-w` and `-m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub workload: &'static str,
    pub machine: &'static str,
    /// What the entry is about.
    pub about: &'static str,
    /// Number of CPUs that the workload names, and that another machine must have.
    pub cpus_min: usize,
}

const fn entry(workload: &'static str, machine: &'static str, about: &'static str) -> Entry {
    Entry { workload, machine, about, cpus_min: 1 }
}

/// All entries, in the order in which they run.
pub const ENTRIES: &[Entry] = &[
    entry("matrix/desktop.toml", "laptop-4c8t", "interactive tasks beside a build, SMT"),
    entry("matrix/desktop.toml", "hybrid-8p8e", "fast and small cores"),
    entry("schbench,workers=24,work=1ms,duration=300ms", "2n4l2c1t", "two sockets, eight LLCs"),
    entry("hackbench,groups=2,loops=20", "2n4l2c1t", "many wake-ups across LLCs and nodes"),
    entry("sleepers,duration=300ms", "matrix/one-llc-two-nodes.toml", "one LLC over two nodes"),
    entry("matrix/one-cpu.toml", "1n1c1t", "one CPU, weights"),
    entry("matrix/caps.toml", "1n2c2t", "a cap (cpu.max) beside weights"),
    Entry {
        cpus_min: 4,
        ..entry("matrix/hotplug.toml", "2n2c1t", "CPUs that go off line and come back")
    },
];

/// The files that entries name, with their contents.
pub const FILES: &[(&str, &str)] = &[
    ("matrix/desktop.toml", include_str!("../matrix/desktop.toml")),
    ("matrix/one-cpu.toml", include_str!("../matrix/one-cpu.toml")),
    ("matrix/caps.toml", include_str!("../matrix/caps.toml")),
    ("matrix/hotplug.toml", include_str!("../matrix/hotplug.toml")),
    ("matrix/one-llc-two-nodes.toml", include_str!("../matrix/one-llc-two-nodes.toml")),
];

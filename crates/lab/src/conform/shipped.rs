// SPDX-License-Identifier: GPL-2.0-only
//! The shipped conformance cases, which are all files in `cases/conform`.

macro_rules! cases {
    ($($name:literal,)+) => {
        /// Pairs of case name and file contents.
        pub const SHIPPED: &[(&str, &str)] = &[
            $(($name, include_str!(concat!("../../../../cases/conform/", $name, ".toml")))),+
        ];
    };
}

cases! {
    "affinity_queued",
    "affinity_running",
    "affinity_running_still_allowed",
    "affinity_sleeping",
    "cgroup_move",
    "cgroup_move_sleeping",
    "cgroup_weight",
    "error",
    "exec",
    "fork",
    "hotplug",
    "hotplug_running",
    "nice_running",
    "nice_sleeping",
    "policy",
    "preempt",
    "preempt_kick",
    "real_time_above",
    "slice",
    "stall",
    "wake_busy",
    "wake_idle",
    "wake_sync",
    "wake_unpicked",
    "yield",
    "yield_alone",
}

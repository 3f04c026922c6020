// SPDX-License-Identifier: GPL-2.0-only
//! The tunables of the default class, with the kernel's defaults and where these are defined.
//!
//! Owns: the values.
//! Does not: read them from anywhere; a machine or an experiment sets them.

use scxlab_machine::id::Nanos;

/// Growth of the base slice with the number of CPUs (`sysctl_sched_tunable_scaling`, fair.c).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TunableScaling {
    None,
    /// The base slice is multiplied by `1 + ilog2(min(cpus, 8))`.
    Log,
    /// The base slice is multiplied by `min(cpus, 8)`.
    Linear,
}

/// Rule by which a cgroup's weight becomes the weight of its entity on one CPU (debugfs
/// `sched/cgroup_mode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupMode {
    /// On every CPU, the entity has the group's whole weight.
    Up,
    /// The group's weight is split among its entities in proportion to the group's load on each CPU
    /// (the only rule before 7.x).
    Smp,
    /// The weight of `Smp`, times the number of runnable tasks or of CPUs, whichever is smaller:
    /// weight per concurrent task.
    Concur,
    /// The weight of `Smp`, times the number of CPUs, but at most the weight of nice -20.
    Max,
    /// The weight of `Smp`, times the number of runnable tasks.
    Tasks,
}

/// Switches that change what this module does, mostly those of features.h. The defaults are the
/// kernel's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Features {
    pub place_lag: bool,
    pub place_deadline_initial: bool,
    pub place_rel_deadline: bool,
    pub run_to_parity: bool,
    pub preempt_short: bool,
    pub next_buddy: bool,
    pub pick_buddy: bool,
    pub cache_hot_buddy: bool,
    pub delay_dequeue: bool,
    pub delay_zero: bool,
    pub wakeup_preemption: bool,
    pub sis_util: bool,
    pub attach_age_load: bool,
    pub wa_idle: bool,
    pub wa_weight: bool,
    pub wa_bias: bool,
    pub util_est: bool,
    pub lb_min: bool,
    pub ni_random: bool,
    pub ni_rate: bool,
    /// Debugfs `sched/llc_balancing/enabled` (`sysctl_sched_cache_user`, topology.c).
    pub sched_cache: bool,
}

impl Default for Features {
    fn default() -> Self {
        Features {
            place_lag: true,
            place_deadline_initial: true,
            place_rel_deadline: true,
            run_to_parity: true,
            preempt_short: true,
            next_buddy: false,
            pick_buddy: true,
            cache_hot_buddy: true,
            delay_dequeue: true,
            delay_zero: true,
            wakeup_preemption: true,
            sis_util: true,
            attach_age_load: true,
            wa_idle: true,
            wa_weight: true,
            wa_bias: true,
            util_est: true,
            lb_min: false,
            ni_random: true,
            ni_rate: true,
            sched_cache: true,
        }
    }
}

/// The tunables. `Default` is Linux 7.3 as Debian configures it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Params {
    /// Length of a tick and of a jiffy: `CONFIG_HZ=250`.
    pub tick_ns: Nanos,
    /// `sched_base_slice` before scaling: 0.70 ms (fair.c).
    pub base_slice_ns: Nanos,
    pub tunable_scaling: TunableScaling,
    /// `sysctl_sched_migration_cost`: a task that ran more recently than this is cache hot
    /// (fair.c).
    pub migration_cost_ns: Nanos,
    /// `sysctl_sched_cfs_bandwidth_slice`: quota handed to a CPU at a time (fair.c).
    pub bandwidth_slice_ns: Nanos,
    /// `min_cfs_rq_runtime`: quota that a group's queue keeps when its last task leaves (fair.c).
    pub min_cfs_rq_runtime_ns: Nanos,
    /// `cfs_bandwidth_slack_period`: delay after which returned quota is handed out (fair.c).
    pub slack_period_ns: Nanos,
    /// `min_bandwidth_expiration`: returned quota is not handed out if the next refill is nearer
    /// than this (fair.c).
    pub min_bandwidth_expiration_ns: Nanos,
    /// `sysctl_sched_nr_migrate`: largest number of tasks that one balancing pass examines. The
    /// kernel uses the same number for `SCHED_NR_MIGRATE_BREAK` (sched.h).
    pub nr_migrate: u32,
    /// Rule for the weight of a cgroup's entities: debugfs `sched/cgroup_mode` (debug.c).
    pub cgroup_mode: CgroupMode,
    /// Largest node distance across which fork, exec and wake-up place tasks (mmzone
    /// `node_reclaim_distance`).
    pub node_reclaim_distance: u32,
    /// Cost of examining one CPU in a newidle balance. Not a kernel tunable. It feeds
    /// `max_newidle_lb_cost`.
    pub scan_cost_ns: Nanos,
    /// Seed of the random decisions of newidle balancing (`sched_rng()`).
    pub seed: u64,
    pub features: Features,
}

impl Default for Params {
    fn default() -> Self {
        Params {
            tick_ns: 4_000_000,
            base_slice_ns: 700_000,
            tunable_scaling: TunableScaling::Log,
            migration_cost_ns: 500_000,
            bandwidth_slice_ns: 5_000_000,
            min_cfs_rq_runtime_ns: 1_000_000,
            slack_period_ns: 5_000_000,
            min_bandwidth_expiration_ns: 2_000_000,
            nr_migrate: 32,
            cgroup_mode: CgroupMode::Concur,
            node_reclaim_distance: 30,
            scan_cost_ns: 100,
            seed: 0,
            features: Features::default(),
        }
    }
}

impl Params {
    /// `sysctl_sched_base_slice` on a machine with this many on-line CPUs.
    /// Models: `get_update_sysctl_factor()`.
    pub fn scaled_base_slice(&self, nr_online: u32) -> Nanos {
        let cpus = nr_online.clamp(1, 8);
        let factor = match self.tunable_scaling {
            TunableScaling::None => 1,
            TunableScaling::Log => 1 + cpus.ilog2(),
            TunableScaling::Linear => cpus,
        };
        self.base_slice_ns * Nanos::from(factor)
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! Counters of a scheduler: the kernel's event counters, and calls and cost of each operation.
//!
//! Models: kernel `struct scx_event_stats`, 7.3.

use super::op::Op;
use scxlab_machine::id::Nanos;

/// `SCX_EV_*`, in the kernel's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Ev {
    SelectCpuFallback,
    DispatchLocalDsqOffline,
    DispatchKeepLast,
    EnqSkipExiting,
    EnqSkipMigrationDisabled,
    ReenqImmed,
    ReenqRepeat,
    RefillSliceDfl,
    SliceClamped,
    SliceDenied,
    BypassDuration,
    BypassDispatch,
    BypassActivate,
    InsertNotOwned,
}

impl Ev {
    pub const NAMES: [&str; EventStats::LEN] = [
        "select_cpu_fallback",
        "dispatch_local_dsq_offline",
        "dispatch_keep_last",
        "enq_skip_exiting",
        "enq_skip_migration_disabled",
        "reenq_immed",
        "reenq_repeat",
        "refill_slice_dfl",
        "slice_clamped",
        "slice_denied",
        "bypass_duration",
        "bypass_dispatch",
        "bypass_activate",
        "insert_not_owned",
        "sub_bypass_dispatch",
        "sub_forced_admit",
        "sub_preempt_denied",
        "sub_kick_denied",
        "sub_reenq_denied",
        "sub_cidperf_denied",
        "sub_rescue",
    ];
}

/// Event counts, indexed by `Ev`. The events of sub-schedulers stay 0, as on a kernel that has no
/// sub-scheduler loaded.
#[derive(Clone, Copy, Debug, Default)]
pub struct EventStats {
    counts: [u64; EventStats::LEN],
}

impl EventStats {
    /// Number of counters in `struct scx_event_stats`.
    pub const LEN: usize = 21;

    pub fn add(&mut self, event: Ev, n: u64) {
        self.counts[event as usize] += n;
    }

    pub fn get(&self, event: Ev) -> u64 {
        self.counts[event as usize]
    }

    pub fn all(&self) -> &[u64; EventStats::LEN] {
        &self.counts
    }
}

/// Calls of one operation over the run, and their cost in virtual time and BPF instructions.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpCost {
    pub calls: u64,
    pub ns: Nanos,
    pub insns: u64,
}

/// Costs of all operations, indexed by `Op`.
#[derive(Clone, Copy, Debug)]
pub struct OpStats(pub [OpCost; Op::COUNT]);

impl Default for OpStats {
    fn default() -> Self {
        OpStats([OpCost::default(); Op::COUNT])
    }
}

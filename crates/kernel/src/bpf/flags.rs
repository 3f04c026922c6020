// SPDX-License-Identifier: GPL-2.0-only
//! Flag words, ids and limits that the kernel and BPF programs pass to each other, with the
//! kernel's names.
//!
//! Values: Linux 7.3. `abi/tests.rs` compares them with `abi/enums.h`.

/// `ENQUEUE_*` and `DEQUEUE_*` of kernel/sched/sched.h. A dequeue flag has the value of the enqueue
/// flag with the same meaning.
pub mod queue {
    pub const WAKEUP: u64 = 0x01;
    pub const SLEEP: u64 = 0x01;
    pub const RESTORE: u64 = 0x02;
    pub const SAVE: u64 = 0x02;
    pub const MOVE: u64 = 0x04;
    pub const NOCLOCK: u64 = 0x08;
    pub const CLASS: u64 = 0x40;
    /// Dequeue flag: the task enters a state from which a usual wake-up does not wake it
    /// (TASK_DEAD).
    pub const SPECIAL: u64 = 0x1_0000;
    /// Enqueue flag: the task goes before other tasks of the same priority.
    pub const HEAD: u64 = 0x1_0000;
    pub const MIGRATED: u64 = 0x4_0000;
    pub const INITIAL: u64 = 0x8_0000;
    pub const RQ_SELECTED: u64 = 0x10_0000;
}

/// `WF_*`, also `enum scx_wake_flags`.
pub mod wake {
    pub const EXEC: u64 = 0x02;
    pub const FORK: u64 = 0x04;
    pub const TTWU: u64 = 0x08;
    pub const SYNC: u64 = 0x10;
}

/// `enum scx_enq_flags`
pub mod enq {
    pub const WAKEUP: u64 = 1;
    pub const HEAD: u64 = 1 << 16;
    pub const CPU_SELECTED: u64 = 1 << 20;
    pub const PREEMPT: u64 = 1 << 32;
    pub const IMMED: u64 = 1 << 33;
    pub const RESCUE: u64 = 1 << 34;
    pub const REENQ: u64 = 1 << 40;
    pub const LAST: u64 = 1 << 41;
    pub const INTERNAL_MASK: u64 = 0xff << 56;
    pub const CLEAR_OPSS: u64 = 1 << 56;
    pub const DSQ_PRIQ: u64 = 1 << 57;
    pub const IGNORE_CAPS: u64 = 1 << 60;
    pub const GDSQ_FALLBACK: u64 = 1 << 59;
    pub const APPLY_SLICE: u64 = 1 << 61;
    pub const SLICE_DFL: u64 = 1 << 62;
}

/// `enum scx_deq_flags`
pub mod deq {
    pub const SLEEP: u64 = 1;
    pub const CORE_SCHED_EXEC: u64 = 1 << 32;
    pub const SCHED_CHANGE: u64 = 1 << 33;
}

/// `enum scx_kick_flags`
pub mod kick {
    pub const IDLE: u64 = 1;
    pub const PREEMPT: u64 = 2;
    pub const WAIT: u64 = 4;
}

/// `enum scx_pick_idle_cpu_flags`
pub mod pick_idle {
    pub const CORE: u64 = 1;
    pub const IN_NODE: u64 = 2;
}

/// `enum scx_reenq_flags`
pub mod reenq {
    pub const ANY: u64 = 1;
    pub const USER_MASK: u64 = 1;
    pub const FILTER_MASK: u64 = 0xffff;
}

/// `enum scx_dsq_id_flags`, and the ids of the built-in DSQs
pub mod dsq_id {
    pub const FLAG_BUILTIN: u64 = 1 << 63;
    pub const FLAG_LOCAL_ON: u64 = 1 << 62;
    pub const INVALID: u64 = FLAG_BUILTIN;
    pub const GLOBAL: u64 = FLAG_BUILTIN | 1;
    pub const LOCAL: u64 = FLAG_BUILTIN | 2;
    pub const BYPASS: u64 = FLAG_BUILTIN | 3;
    pub const LOCAL_ON: u64 = FLAG_BUILTIN | FLAG_LOCAL_ON;
    pub const LOCAL_CPU_MASK: u64 = 0xffff_ffff;
    pub const ITER_REV: u64 = 1 << 16;
}

/// `enum scx_ops_flags`
pub mod ops {
    pub const KEEP_BUILTIN_IDLE: u64 = 1;
    pub const ENQ_LAST: u64 = 2;
    pub const ENQ_EXITING: u64 = 4;
    pub const SWITCH_PARTIAL: u64 = 8;
    pub const ENQ_MIGRATION_DISABLED: u64 = 16;
    pub const ALLOW_QUEUED_WAKEUP: u64 = 32;
    pub const BUILTIN_IDLE_PER_NODE: u64 = 64;
    pub const ALWAYS_ENQ_IMMED: u64 = 128;
    pub const TID_TO_TASK: u64 = 256;
    pub const ALL: u64 = 511;
}

/// Flags in `p->scx.flags` (`enum scx_ent_flags`)
pub mod ent {
    pub const QUEUED: u32 = 1 << 0;
    pub const IN_CUSTODY: u32 = 1 << 1;
    pub const RESET_RUNNABLE_AT: u32 = 1 << 2;
    pub const DEQD_FOR_SLEEP: u32 = 1 << 3;
    pub const IMMED: u32 = 1 << 5;
    pub const STATE_SHIFT: u32 = 8;
    pub const STATE_MASK: u32 = 7 << STATE_SHIFT;
    pub const REENQ_REASON_MASK: u32 = 7 << 12;
    pub const REENQ_KFUNC: u32 = 1 << 12;
    pub const REENQ_IMMED: u32 = 2 << 12;
    pub const REENQ_PREEMPTED: u32 = 3 << 12;
}

/// Reason and action bits of an exit code (`enum scx_exit_code`).
pub mod ecode {
    pub const RSN_HOTPLUG: i64 = 1 << 32;
    pub const ACT_RESTART: i64 = 1 << 48;
}

/// `enum scx_exit_flags`
pub mod exit {
    /// Exit flag: `ops.init` returned 0 before the scheduler exited.
    pub const INITIALIZED: u64 = 1;
}

/// `SCX_SLICE_*`, ns
pub mod slice {
    pub const DFL: u64 = 20_000_000;
    pub const BYPASS: u64 = 5_000_000;
    pub const INF: u64 = u64::MAX;
}

/// Limits that `enum scx_consts` and other parts of ext.c define
pub mod limit {
    pub const DSP_DFL_MAX_BATCH: u32 = 32;
    pub const DSP_MAX_LOOPS: u32 = 32;
    pub const REENQ_MAX_REPEAT: u32 = 256;
    pub const EXIT_MSG_LEN: usize = 1024;
    pub const EXIT_DUMP_DFL_LEN: u32 = 32768;
    /// Upper bound on the number of addresses in `scx_exit_info.bt`.
    pub const EXIT_BT_LEN: usize = 64;
    /// `SCX_WATCHDOG_MAX_TIMEOUT`, ms
    pub const WATCHDOG_MAX_MS: u32 = 30_000;
    pub const OPS_NAME_LEN: usize = 128;
}

/// `PF_*` of include/linux/sched.h
pub mod pf {
    pub const IDLE: u32 = 0x0000_0002;
    pub const EXITING: u32 = 0x0000_0004;
    /// Task flag: the task has not called execve since it was forked.
    pub const FORKNOEXEC: u32 = 0x0000_0040;
    pub const KTHREAD: u32 = 0x0020_0000;
}

// SPDX-License-Identifier: GPL-2.0-only
//! The operations of `struct sched_ext_ops`, and what kind of place each is for the code it calls.
//!
//! Owns: names, numbers, contexts. Models: kernel `struct sched_ext_ops` and `scx_kfunc_context_filter()`, 7.3.

/// One member function of `struct sched_ext_ops`, in the kernel's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Op {
    SelectCpu,
    Enqueue,
    Dequeue,
    Dispatch,
    Tick,
    Runnable,
    Running,
    Stopping,
    Quiescent,
    Yield,
    CoreSchedBefore,
    SetWeight,
    SetCpumask,
    UpdateIdle,
    InitTask,
    ExitTask,
    Enable,
    Disable,
    Dump,
    DumpCpu,
    DumpTask,
    CgroupInit,
    CgroupExit,
    CgroupPrepMove,
    CgroupMove,
    CgroupCancelMove,
    CgroupSetWeight,
    CgroupSetBandwidth,
    CgroupSetIdle,
    SubAttach,
    SubDetach,
    SubCapsUpdated,
    SubEcapsUpdated,
    CpuOnline,
    CpuOffline,
    InitCids,
    Init,
    Exit,
    CpuAcquire,
    CpuRelease,
}

impl Op {
    pub const COUNT: usize = 40;

    pub const ALL: [Op; Op::COUNT] = {
        use Op::*;
        [
            SelectCpu,
            Enqueue,
            Dequeue,
            Dispatch,
            Tick,
            Runnable,
            Running,
            Stopping,
            Quiescent,
            Yield,
            CoreSchedBefore,
            SetWeight,
            SetCpumask,
            UpdateIdle,
            InitTask,
            ExitTask,
            Enable,
            Disable,
            Dump,
            DumpCpu,
            DumpTask,
            CgroupInit,
            CgroupExit,
            CgroupPrepMove,
            CgroupMove,
            CgroupCancelMove,
            CgroupSetWeight,
            CgroupSetBandwidth,
            CgroupSetIdle,
            SubAttach,
            SubDetach,
            SubCapsUpdated,
            SubEcapsUpdated,
            CpuOnline,
            CpuOffline,
            InitCids,
            Init,
            Exit,
            CpuAcquire,
            CpuRelease,
        ]
    };

    /// The member's name.
    pub fn name(self) -> &'static str {
        const NAMES: [&str; Op::COUNT] = [
            "select_cpu",
            "enqueue",
            "dequeue",
            "dispatch",
            "tick",
            "runnable",
            "running",
            "stopping",
            "quiescent",
            "yield",
            "core_sched_before",
            "set_weight",
            "set_cpumask",
            "update_idle",
            "init_task",
            "exit_task",
            "enable",
            "disable",
            "dump",
            "dump_cpu",
            "dump_task",
            "cgroup_init",
            "cgroup_exit",
            "cgroup_prep_move",
            "cgroup_move",
            "cgroup_cancel_move",
            "cgroup_set_weight",
            "cgroup_set_bandwidth",
            "cgroup_set_idle",
            "sub_attach",
            "sub_detach",
            "sub_caps_updated",
            "sub_ecaps_updated",
            "cpu_online",
            "cpu_offline",
            "init_cids",
            "init",
            "exit",
            "cpu_acquire",
            "cpu_release",
        ];
        NAMES[self as usize]
    }

    pub fn by_name(name: &str) -> Option<Op> {
        Op::ALL.into_iter().find(|op| op.name() == name)
    }

    /// Whether the kernel calls it without a run queue lock, so that it may sleep and create queues.
    pub fn is_unlocked(self) -> bool {
        use Op::*;
        matches!(
            self,
            InitTask
                | CgroupInit
                | CgroupExit
                | CgroupPrepMove
                | CgroupCancelMove
                | CgroupSetWeight
                | CgroupSetBandwidth
                | CgroupSetIdle
                | CpuOnline
                | CpuOffline
                | InitCids
                | Init
                | Exit
                | SubAttach
                | SubDetach
                | Dump
                | DumpCpu
                | DumpTask
        )
    }
}

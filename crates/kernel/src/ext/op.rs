// SPDX-License-Identifier: GPL-2.0-only
//! The operations of `struct sched_ext_ops`, and the context in which each is called.
//!
//! Owns: names, numbers, contexts.
//! Models: kernel `struct sched_ext_ops` and `scx_kfunc_context_filter()`, 7.3.

/// Defines `Op` from one list of variants and member names, in the kernel's order.
macro_rules! operations {
    ($($variant:ident = $name:literal,)+) => {
        /// One member function of `struct sched_ext_ops`, in the kernel's order.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[repr(u8)]
        pub enum Op {
            $($variant),+
        }

        impl Op {
            pub const ALL: [Op; [$($name),+].len()] = [$(Op::$variant),+];

            /// Returns the name of the operation's member in `struct sched_ext_ops`.
            pub fn name(self) -> &'static str {
                [$($name),+][self as usize]
            }
        }
    };
}

operations! {
    SelectCpu = "select_cpu",
    Enqueue = "enqueue",
    Dequeue = "dequeue",
    Dispatch = "dispatch",
    Tick = "tick",
    Runnable = "runnable",
    Running = "running",
    Stopping = "stopping",
    Quiescent = "quiescent",
    Yield = "yield",
    CoreSchedBefore = "core_sched_before",
    SetWeight = "set_weight",
    SetCpumask = "set_cpumask",
    UpdateIdle = "update_idle",
    InitTask = "init_task",
    ExitTask = "exit_task",
    Enable = "enable",
    Disable = "disable",
    Dump = "dump",
    DumpCpu = "dump_cpu",
    DumpTask = "dump_task",
    CgroupInit = "cgroup_init",
    CgroupExit = "cgroup_exit",
    CgroupPrepMove = "cgroup_prep_move",
    CgroupMove = "cgroup_move",
    CgroupCancelMove = "cgroup_cancel_move",
    CgroupSetWeight = "cgroup_set_weight",
    CgroupSetBandwidth = "cgroup_set_bandwidth",
    CgroupSetIdle = "cgroup_set_idle",
    SubAttach = "sub_attach",
    SubDetach = "sub_detach",
    SubCapsUpdated = "sub_caps_updated",
    SubEcapsUpdated = "sub_ecaps_updated",
    CpuOnline = "cpu_online",
    CpuOffline = "cpu_offline",
    InitCids = "init_cids",
    Init = "init",
    Exit = "exit",
    CpuAcquire = "cpu_acquire",
    CpuRelease = "cpu_release",
}

/// Which of an operation's first two arguments are the tasks that the operation is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TaskArgs {
    Nothing,
    First,
    Second,
    Both,
}

impl Op {
    pub const COUNT: usize = Op::ALL.len();

    pub fn by_name(name: &str) -> Option<Op> {
        Op::ALL.into_iter().find(|op| op.name() == name)
    }

    /// Returns which of the operation's first two arguments are the tasks that it is about.
    pub fn task_args(self) -> TaskArgs {
        use Op::*;
        match self {
            SelectCpu | Enqueue | Dequeue | Tick | Runnable | Running | Stopping | Quiescent
            | SetWeight | SetCpumask | InitTask | ExitTask | Enable | Disable | CgroupPrepMove
            | CgroupMove | CgroupCancelMove => TaskArgs::First,
            Dispatch => TaskArgs::Second,
            Yield | CoreSchedBefore => TaskArgs::Both,
            _ => TaskArgs::Nothing,
        }
    }

    /// Returns whether the operation's program may be sleepable (`bpf_scx_check_member()`).
    pub fn may_be_sleepable(self) -> bool {
        use Op::*;
        matches!(
            self,
            InitTask
                | CgroupInit
                | CgroupExit
                | CgroupPrepMove
                | CgroupSetBandwidth
                | CpuOnline
                | CpuOffline
                | InitCids
                | Init
                | Exit
                | SubAttach
                | SubDetach
        )
    }

    /// Returns whether the operation may call the kfuncs that need a context without a run queue
    /// lock. The kernel holds no run queue lock during these operations, except during `dump_cpu`
    /// and `dump_task`.
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

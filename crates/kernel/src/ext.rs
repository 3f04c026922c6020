// SPDX-License-Identifier: GPL-2.0-only
//! sched_ext: the scheduling class whose policy is a loaded scheduler, usually a BPF object.
//!
//! Owns: all state of sched_ext. Start at `enable.rs` (attach to detach), `enqueue.rs` and
//! `dispatch.rs` (the path of a task from enqueue to pick), `ops.rs` (calls of the scheduler),
//! `kfunc.rs` (functions that the scheduler may call).
//! Models: kernel/sched/ext/*.c, 7.3. Differs: no sub-schedulers or capabilities, no core
//! scheduling; events are atomic, so the races that the kernel must resolve cannot happen.

pub mod bypass;
pub mod cgroup;
pub mod dispatch;
pub mod dsq;
pub mod dump;
pub mod enable;
pub mod enqueue;
pub mod entity;
pub mod exit;
pub mod host;
pub mod idle;
mod insert;
pub mod kfunc;
pub mod kick;
pub mod lifecycle;
pub mod object;
pub mod op;
pub mod op_record;
pub mod ops;
pub mod origin;
pub mod program;
pub mod recent_ops;
pub mod reenq;
mod stall;
pub mod stats;
pub mod tracing;
pub mod watchdog;

use crate::cpu::PerCpu;
use dsq::{DsqId, DsqTable};
use exit::ExitInfo;
use idle::IdleState;
use op::Op;
use origin::{Caller, DeferredVerdict};
use program::ExtProgram;
use recent_ops::RecentOpCounts;
use scxlab_bpf::vm::{FuncId, InstanceId};
use scxlab_machine::id::{CpuId, Nanos, TaskId};
use stats::{EventStats, OpStats};
use std::collections::VecDeque;

/// State of loading and unloading a scheduler (`enum scx_enable_state`).
///
/// ```text
///   Disabled --attach--> Enabling --> Enabled --exit--> Disabling --> Disabled
///                            '-------------error------------^
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EnableState {
    #[default]
    Disabled,
    Enabling,
    Enabled,
    Disabling,
}

/// Data members of `struct sched_ext_ops`, as the frontend set them.
#[derive(Clone, Debug)]
pub struct OpsData {
    pub name: String,
    pub flags: u64,
    pub timeout_ms: u32,
    pub dispatch_max_batch: u32,
    pub exit_dump_len: u32,
    pub hotplug_seq: u64,
}

/// A loaded scheduler.
#[derive(Debug)]
pub struct Sched {
    pub program: ExtProgram,
    pub data: OpsData,
    /// Operations that may be called now, indexed by `Op`. Enabling sets them in steps; disabling
    /// clears them.
    pub active: [bool; Op::COUNT],
    pub has_cpu_preempt: bool,
    pub bypass_depth: u32,
    pub bypass_since: Nanos,
    pub slice_dfl: u64,
    pub watchdog_timeout: Nanos,
    pub exit: Option<ExitInfo>,
    /// `scx_exit_info.flags` (`SCX_EFLAG_*`).
    pub exit_flags: u64,
    /// Whether the kernel has begun to carry out the exit.
    pub disabling: bool,
    pub events: EventStats,
    pub warned_zero_slice: bool,
}

/// Per-CPU state of sched_ext, aligned to the host's cache lines like `Cpu`.
#[derive(Debug, Default)]
#[repr(align(64))]
pub struct ExtCpu {
    pub nr_running: u32,
    pub in_wakeup: bool,
    pub in_dispatch: bool,
    pub in_select_cpu: bool,
    pub balance_pending: bool,
    pub can_stop_tick: bool,
    pub idle_renotify: bool,
    pub bypassing: bool,
    pub cpu_released: bool,
    /// Tasks that the scheduler dispatched directly to another CPU's local DSQ. The kernel moves
    /// them when it holds no run queue lock.
    pub ddsp_deferred: VecDeque<TaskId>,
    pub reenq_local: Option<u64>,
    pub reenq_users: Vec<(DsqId, u64)>,
    pub deferred_posted: bool,
    pub kick_now: Vec<(CpuId, u64)>,
    pub kick_posted: bool,
    /// Number of passes of this CPU through the scheduler. A CPU that kicked this one with
    /// SCX_KICK_WAIT waits until the number changes.
    pub kick_sync: u64,
    pub sync_pending: Vec<(CpuId, u64)>,
    pub dispatch: DispatchBuf,
    pub cpuperf_target: u32,
}

/// One call of `scx_bpf_dsq_insert()` in `ops.dispatch`, buffered until `flush_dispatch`.
#[derive(Clone, Copy, Debug)]
pub struct BufferedInsert {
    pub task: TaskId,
    pub qseq: u64,
    pub dsq_id: u64,
    pub slice: u64,
    pub vtime: u64,
    pub enq_flags: u64,
    pub inserted_by: Option<Caller>,
}

/// Insertions of the current `ops.dispatch` call that are not yet carried out.
#[derive(Debug, Default)]
pub struct DispatchBuf {
    pub entries: Vec<BufferedInsert>,
    /// Number of insertions flushed and of tasks moved to the local DSQ since this `ops.dispatch`
    /// call began. If it is still 0 after the call, `ops.dispatch` is not called again.
    pub nr_tasks: u32,
}

/// Arguments of a program's insertion of a task into a DSQ (a dispatch verdict), other than the
/// DSQ.
#[derive(Clone, Copy, Debug)]
pub struct DirectDispatchArgs {
    pub slice: u64,
    pub vtime: u64,
    pub flags: u64,
}

/// Context of a running program of the scheduler. `op` is None for a timer callback, a syscall
/// program and a tracing program.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpFrame {
    pub op: Option<Op>,
    /// CPU whose run queue lock the kernel holds while the program runs.
    pub locked: Option<CpuId>,
    /// First two arguments of the program. If the operation is about tasks, they are among these.
    pub args: [u64; 2],
    /// What the program is if it is no operation.
    pub outside: Outside,
}

/// A program outside the operations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Outside {
    #[default]
    Tracing,
    Syscall,
    /// A timer's callback, with the rights of the program that set it.
    Timer(u8),
}

impl Outside {
    pub fn name(self) -> &'static str {
        match self {
            Outside::Tracing => "a tracing program",
            Outside::Syscall => "a syscall program",
            Outside::Timer(_) => "a timer callback with the rights of the program that set it",
        }
    }
}

impl OpFrame {
    /// Returns the frame of a program outside the operations.
    pub fn outside(outside: Outside) -> OpFrame {
        OpFrame { outside, ..OpFrame::default() }
    }

    /// Returns the groups of kfuncs that the program may call.
    pub fn rights(&self) -> u8 {
        match (self.op, self.outside) {
            (Some(op), _) => kfunc::context::of_op(op),
            (None, Outside::Tracing) => 0,
            (None, Outside::Syscall) => kfunc::context::OF_SYSCALL,
            (None, Outside::Timer(rights)) => rights,
        }
    }

    /// Returns whether the operation is about the task at guest address `task`.
    pub fn is_about(&self, task: u64) -> bool {
        use op::TaskArgs::*;
        let [first, second] = self.args;
        match self.op.map_or(Nothing, Op::task_args) {
            Nothing => false,
            First => first == task,
            Second => second == task,
            Both => first == task || second == task,
        }
    }
}

/// Task that `scx_bpf_dsq_insert()` may dispatch directly now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectSlot {
    /// No task, because neither `ops.select_cpu` nor `ops.enqueue` runs. The kernel buffers
    /// insertions.
    #[default]
    Closed,
    Open(TaskId),
    Used,
}

/// All state of sched_ext.
pub struct Ext {
    pub dsqs: DsqTable,
    pub cpus: PerCpu<ExtCpu>,
    /// Sum of `nr_running` over all CPUs.
    pub nr_queued: u32,
    pub root: Option<Box<Sched>>,
    pub state: EnableState,
    /// Whether tasks may be in the class sched_ext (`scx_enabled()`).
    pub enabled: bool,
    pub switching_all: bool,
    pub switched_all: bool,
    pub init_task_enabled: bool,
    pub cgroup_enabled: bool,
    pub idle: IdleState,
    /// Context of the operation, timer callback or other program that runs now, if any. A nested
    /// call of a program saves the outer program's context and restores it afterwards.
    pub frame: Option<OpFrame>,
    pub direct: DirectSlot,
    /// Dispatch verdict that the kernel carries out now, after the program's call that gave the
    /// verdict has returned.
    pub deferred_verdict: Option<DeferredVerdict>,
    /// Enqueue flags of the task that is being moved to another CPU's local DSQ
    /// (`rq->scx.remote_activate_enq_flags`).
    pub remote_activate_flags: u64,
    pub runnable_count: u64,
    pub next_tid: u64,
    pub watchdog_gen: u32,
    pub watchdog_checked: Nanos,
    /// Exits of the schedulers of this run, in order.
    pub exits: Vec<ExitInfo>,
    /// The first few faults of programs after an exit was claimed, including those in `ops.exit()`
    /// and `ops.dump()`.
    pub late_faults: Vec<String>,
    pub op_stats: OpStats,
    pub recent_ops: RecentOpCounts,
    pub dump: Option<dump::DumpBuf>,
    pub scratch: host::ArgScratch,
    pub nr_rejected: u64,
    /// Event counters of the last scheduler that left.
    pub last_events: EventStats,
    /// Programs of the loaded scheduler's object on the tracepoint sched_switch.
    pub sched_switch: Vec<(InstanceId, FuncId)>,
    /// Lines printed by the kernel and by `bpf_printk`.
    pub printk: Vec<String>,
    /// Number of CPUs that spin because of SCX_KICK_WAIT.
    pub(crate) nr_sync_waiters: u32,
    /// `scx_hotplug_seq`: number of times that a CPU came on line or went off line.
    pub(crate) hotplug_seq: u64,
    /// Record of every call of an operation; None if recording is off.
    pub op_record: Option<Vec<op_record::OpCall>>,
}

impl Ext {
    /// Returns whether the loaded scheduler implements `op` and the operation may be called now.
    #[inline]
    pub fn has_op(&self, op: Op) -> bool {
        self.root.as_ref().is_some_and(|s| s.active[op as usize])
    }

    /// Flags (`SCX_OPS_*`) of the loaded scheduler; 0 without a scheduler.
    #[inline]
    pub fn flags(&self) -> u64 {
        self.root.as_ref().map_or(0, |s| s.data.flags)
    }

    #[inline]
    pub fn bypassing(&self, cpu: CpuId) -> bool {
        self.cpus[cpu].bypassing
    }

    /// Counts an event of the loaded scheduler (`scx_add_event`).
    pub fn count(&mut self, event: stats::Ev, n: u64) {
        if let Some(sched) = &mut self.root {
            sched.events.add(event, n);
        }
    }

    /// `scx_locked_rq()`: returns the CPU whose run queue lock the kernel holds during the running
    /// program, if it holds one.
    #[inline]
    pub fn locked_rq(&self) -> Option<CpuId> {
        self.frame.as_ref()?.locked
    }
}

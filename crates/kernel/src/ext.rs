// SPDX-License-Identifier: GPL-2.0-only
//! sched_ext: the class whose policy is a loaded scheduler, usually a BPF object.
//!
//! Owns: all state of the class. Start at `enable.rs` (attach to detach), `enqueue.rs` and `dispatch.rs` (the
//! life of a task between them), `ops.rs` (calling the scheduler), `kfunc.rs` (what it may call).
//! Models: kernel/sched/ext/*.c, 7.3. Differs: no sub-schedulers or capabilities, no core scheduling; events are
//! atomic, so races that the kernel must resolve cannot happen.

pub mod activity;
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
pub mod ops;
pub mod origin;
pub mod program;
pub mod reenq;
mod stall;
pub mod stats;
pub mod tracing;
pub mod watchdog;
pub mod witness;

use activity::Activity;
use dsq::{DsqId, DsqTable};
use exit::ExitInfo;
use idle::IdleState;
use op::Op;
use origin::{Acting, Caller};
use program::Program;
use scxlab_bpf::vm::{FuncId, InstanceId};
use scxlab_machine::id::{CpuId, Nanos, TaskId};
use stats::{EventStats, OpStats};
use std::collections::VecDeque;

/// Where loading a scheduler stands (`enum scx_enable_state`).
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

/// Scheduler data of `struct sched_ext_ops`, as the frontend left it.
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
    pub program: Program,
    pub data: OpsData,
    /// Operations that may be called now; filled in steps while enabling, cleared when disabled.
    pub active: [bool; Op::COUNT],
    pub has_cpu_preempt: bool,
    pub bypass_depth: u32,
    pub bypass_since: Nanos,
    pub slice_dfl: u64,
    pub watchdog_timeout: Nanos,
    pub exit: Option<ExitInfo>,
    /// The exit is being carried out.
    pub leaving: bool,
    pub events: EventStats,
    pub warned_zero_slice: bool,
}

/// What the class keeps per CPU; aligned as `Cpu` is.
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
    /// Tasks with a verdict for another CPU's local queue, to be moved once no lock is held.
    pub ddsp_deferred: VecDeque<TaskId>,
    pub reenq_local: Option<u64>,
    pub reenq_users: Vec<(DsqId, u64)>,
    pub deferred_posted: bool,
    pub kick_now: Vec<(CpuId, u64)>,
    pub kick_posted: bool,
    /// Counts passes through the scheduler; SCX_KICK_WAIT waits for it to move.
    pub kick_sync: u64,
    pub sync_pending: Vec<(CpuId, u64)>,
    pub dispatch: DispatchBuf,
    pub cpuperf_target: u32,
}

/// One buffered `scx_bpf_dsq_insert` of `ops.dispatch`.
#[derive(Clone, Copy, Debug)]
pub struct BufferedInsert {
    pub task: TaskId,
    pub qseq: u64,
    pub dsq_id: u64,
    pub slice: u64,
    pub vtime: u64,
    pub enq_flags: u64,
    pub by: Option<Caller>,
}

/// The insertions of the present `ops.dispatch` call, not yet carried out.
#[derive(Debug, Default)]
pub struct DispatchBuf {
    pub entries: Vec<BufferedInsert>,
    /// Tasks dispatched or moved since the call began.
    pub nr_tasks: u32,
}

/// What a verdict says beside the queue.
#[derive(Clone, Copy, Debug)]
pub struct DirectDispatchArgs {
    pub slice: u64,
    pub vtime: u64,
    pub flags: u64,
}

/// One operation being called.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpFrame {
    pub op: Option<Op>,
    /// The CPU whose run queue the kernel holds during the call.
    pub locked: Option<CpuId>,
    /// The first two arguments; among them are the tasks that the call is about.
    pub args: [u64; 2],
}

impl OpFrame {
    /// Whether the call is about the task at this guest address.
    pub fn is_about(&self, task: u64) -> bool {
        use op::Subject::*;
        let [first, second] = self.args;
        match self.op.map_or(Nothing, Op::subject) {
            Nothing => false,
            First => first == task,
            Second => second == task,
            Both => first == task || second == task,
        }
    }
}

/// Whom `scx_bpf_dsq_insert` may dispatch directly now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DirectSlot {
    /// Not in select_cpu or enqueue: inserts are buffered.
    #[default]
    Closed,
    Open(TaskId),
    Used,
}

/// All state of the class.
pub struct Ext {
    pub dsqs: DsqTable,
    pub cpus: Vec<ExtCpu>,
    pub root: Option<Box<Sched>>,
    pub state: EnableState,
    /// Tasks are in the class (`scx_enabled()`).
    pub enabled: bool,
    pub switching_all: bool,
    pub switched_all: bool,
    pub init_task_enabled: bool,
    pub cgroup_enabled: bool,
    pub idle: IdleState,
    /// The operation, timer or program that is being called, if one is. Whoever calls another puts it back.
    pub frame: Option<OpFrame>,
    pub direct: DirectSlot,
    /// Whose verdict is being carried out after its call.
    pub acting: Option<Acting>,
    /// Enqueue flags of the remote move under way (`rq->scx.remote_activate_enq_flags`).
    pub remote_activate_flags: u64,
    pub arrivals: u64,
    pub next_tid: u64,
    pub watchdog_gen: u32,
    pub watchdog_checked: Nanos,
    /// Exits of the schedulers of this run, in order.
    pub exits: Vec<ExitInfo>,
    /// What programs did wrong once an exit had been claimed, in `ops.exit()` and `ops.dump()` too; the first few.
    pub late_faults: Vec<String>,
    pub op_stats: OpStats,
    pub activity: Activity,
    pub dump: Option<dump::DumpBuf>,
    pub scratch: host::Scratch,
    pub nr_rejected: u64,
    /// Event counters of the last scheduler that left.
    pub last_events: EventStats,
    /// Programs of the loaded scheduler's object on the tracepoint sched_switch.
    pub sched_switch: Vec<(InstanceId, FuncId)>,
    /// What the kernel and `bpf_printk` printed.
    pub printk: Vec<String>,
    /// Every call of an operation, if somebody wants to know.
    pub witness: Option<Vec<witness::OpCall>>,
}

impl Ext {
    /// Whether the loaded scheduler implements `op` and may be called.
    #[inline]
    pub fn has_op(&self, op: Op) -> bool {
        self.root.as_ref().is_some_and(|s| s.active[op as usize])
    }

    /// Flags of the loaded scheduler; none when there is none.
    #[inline]
    pub fn flags(&self) -> u64 {
        self.root.as_ref().map_or(0, |s| s.data.flags)
    }

    #[inline]
    pub fn bypassing(&self, cpu: CpuId) -> bool {
        self.cpus[cpu.idx()].bypassing
    }

    /// Counts an event of the loaded scheduler (`scx_add_event`).
    pub fn count(&mut self, event: stats::Ev, n: u64) {
        if let Some(sched) = &mut self.root {
            sched.events.add(event, n);
        }
    }

    /// `scx_locked_rq()`
    #[inline]
    pub fn locked_rq(&self) -> Option<CpuId> {
        self.frame.as_ref()?.locked
    }
}

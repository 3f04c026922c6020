// SPDX-License-Identifier: GPL-2.0-only
//! A task's private sched_ext state. The part of `p->scx` that BPF sees is in guest memory (see
//! `task.rs`).
//!
//! Models: kernel `struct sched_ext_entity`, 7.3. Differs: no locks or atomics, so no DISPATCHING
//! state and no holding CPU.

use super::dsq::DsqId;
use super::origin::Caller;
use crate::bpf::flags::dsq_id;
use scxlab_machine::id::CpuId;

/// State of a task under the loaded scheduler (`SCX_TASK_NONE` to `SCX_TASK_DEAD`).
///
/// ```text
///   None --init_task--> Init --> Ready --enable--> Enabled
///    ^                            |  ^---disable-----|
///    '---------exit_task----------'  (also from Init: cancelled)
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskPhase {
    #[default]
    None = 0,
    Init = 2,
    Ready = 3,
    Enabled = 4,
    Dead = 5,
}

/// Owner of a task while it waits (`SCX_OPSS_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OpsState {
    /// The kernel owns the task. The task is on a DSQ, or is not queued.
    #[default]
    None,
    /// The kernel is calling `ops.enqueue` for the task.
    Queueing,
    /// The BPF scheduler owns the task. The sequence number distinguishes a stale dispatch from a
    /// current one.
    Queued { qseq: u64 },
}

/// A direct-dispatch verdict: the arguments with which `ops.select_cpu` or `ops.enqueue` inserted
/// the task. The kernel applies them when it enqueues the task.
#[derive(Clone, Copy, Debug)]
pub struct DirectDispatch {
    pub dsq_id: u64,
    pub slice: u64,
    pub vtime: u64,
    pub enq_flags: u64,
}

impl Default for DirectDispatch {
    fn default() -> Self {
        DirectDispatch { dsq_id: dsq_id::INVALID, slice: 0, vtime: 0, enq_flags: 0 }
    }
}

impl DirectDispatch {
    pub fn is_set(&self) -> bool {
        self.dsq_id != dsq_id::INVALID
    }
}

/// Private sched_ext state of one task.
#[derive(Clone, Debug, Default)]
pub struct ExtEntity {
    pub phase: TaskPhase,
    /// Flags of the task. Programs see a copy of them in `p->scx.flags`.
    pub flags: u32,
    pub ops_state: OpsState,
    pub qseq: u64,
    pub ddsp: DirectDispatch,
    /// DSQ that the task is on. `dsq_key` is the task's key in that DSQ.
    pub dsq: Option<DsqId>,
    pub dsq_key: (i64, u64),
    pub on_priq: bool,
    /// Program's call that put the task on its DSQ, or that gave the task's pending verdict. None
    /// if the kernel acted by itself.
    pub inserted_by: Option<Caller>,
    /// CPU to which the kernel is moving the task. The enqueue there must use the local DSQ.
    pub sticky_cpu: Option<CpuId>,
    /// Arrival number within the run, if the task is on its run queue's list of runnable tasks.
    pub runnable_seq: Option<u64>,
    pub reenq_count: u32,
    /// Slice that a program set while the run queue's lock was not held. The kernel applies it when
    /// it next charges the task or switches to it.
    pub slice_oob: Option<u64>,
    /// Task id for `scx_bpf_tid_to_task()`; never reused.
    pub tid: u64,
}

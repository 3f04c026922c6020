// SPDX-License-Identifier: GPL-2.0-only
//! A task's private sched_ext state; what BPF can see of `p->scx` is in guest memory (see `task.rs`).
//!
//! Models: kernel `struct sched_ext_entity`, 7.3. Differs: no locks or atomics, so no DISPATCHING state and
//! no holding CPU.

use super::dsq::DsqId;
use super::origin::Caller;
use crate::flags::dsq_id;
use scxlab_machine::id::CpuId;

/// Life of a task as the loaded scheduler sees it (`SCX_TASK_NONE` to `SCX_TASK_DEAD`).
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

/// Who has the task while it waits (`SCX_OPSS_*`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OpsState {
    /// The core: on a DSQ, or not queued.
    #[default]
    None,
    /// `ops.enqueue` is being called.
    Queueing,
    /// The BPF scheduler; the sequence number tells a stale dispatch from a present one.
    Queued { qseq: u64 },
}

/// A verdict of `ops.select_cpu` or `ops.enqueue`, to be applied when it returns.
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
    /// `p->scx.flags`; programs see a copy.
    pub flags: u32,
    pub ops_state: OpsState,
    pub qseq: u64,
    pub ddsp: DirectDispatch,
    /// The queue it is on, and its key there.
    pub dsq: Option<DsqId>,
    pub dsq_key: (i64, u64),
    pub on_priq: bool,
    /// The call that put it there, or gave the verdict that waits; None: the kernel did of its own accord.
    pub by: Option<Caller>,
    /// Set while the core moves it to that CPU: enqueue there must put it on the local DSQ.
    pub sticky_cpu: Option<CpuId>,
    /// On its run queue's list of runnable tasks, as the n-th arrival of the run.
    pub runnable: Option<u64>,
    pub reenq_count: u32,
    /// A slice set by a program that did not hold the run queue's lock, applied at the next check.
    pub slice_oob: Option<u64>,
    /// Never reused; `scx_bpf_tid_to_task`.
    pub tid: u64,
}

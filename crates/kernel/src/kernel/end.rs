// SPDX-License-Identifier: GPL-2.0-only
//! The end of a run: its limits, and the reason why it ended.
//!
//! Owns: the rule that the first reason is kept.
//! Does not: look for reasons (see `event.rs`).

use scxlab_machine::id::{CpuId, Nanos};

/// Bounds of one run.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Number of events after which the run is stopped (`Stop::EventLimit`).
    pub max_events: u64,
    /// Upper bound on the zero-time steps that a task takes in a row, and on the scheduling passes
    /// in one kernel path. A run that exceeds it ends with `Stop::Livelock` or
    /// `Stop::ScheduleLoop`.
    pub max_instant_steps: u32,
    /// Bytes that the loaded object and the workload may make the run allocate
    /// (`Stop::OutOfMemory`).
    pub max_memory: u64,
}

impl Limits {
    pub const MAX_MEMORY: u64 = 1 << 30;
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            max_events: u64::MAX,
            max_instant_steps: 1_000_000,
            max_memory: Limits::MAX_MEMORY,
        }
    }
}

/// Reason for the end of a run, other than an exit of the loaded scheduler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Stop {
    /// The duration passed, or the behaviour called `Sys::finish`.
    Finished,
    /// Every task has exited.
    AllExited,
    /// Tasks remain, but no event can wake or run any of them. `waiting` says for each task what it
    /// waits for.
    Deadlock {
        waiting: Vec<String>,
    },
    EventLimit {
        max: u64,
    },
    /// A task made `max` steps in a row that took no time.
    Livelock {
        task: String,
        max: u32,
    },
    /// A CPU scheduled `max` times in one kernel path, because each pass requested another.
    ScheduleLoop {
        cpu: CpuId,
        max: u32,
    },
    /// A BPF program needs a kernel feature that is not modelled. The text names it.
    Unmodelled(String),
    /// Guest memory or task slots ran out. The text says which.
    OutOfMemory(String),
    /// No node that its policy allows has room for a page of this region.
    MemoryFull {
        region: String,
    },
    /// The caller stopped the run, for this reason.
    Interrupted(String),
}

/// Bounds of the run, and the reason for its end once it has been stopped.
#[derive(Debug)]
pub struct RunEnd {
    pub limits: Limits,
    pub stop: Option<Stop>,
    /// Virtual time up to which the present call of `advance` handles events. Later events stay in
    /// the queue.
    pub(crate) until: Nanos,
    /// Upper bound on the number of events in the run: the limit, or 0 once the run has been
    /// stopped.
    pub(crate) event_limit: u64,
    /// Number of queued events that may wake or run a task. While it is not 0, sleeping tasks are
    /// no deadlock.
    pub(crate) pending_wakeups: usize,
    /// Bytes of the default class's queues that are charged to the run.
    pub(crate) charged_queue_bytes: u64,
}

impl RunEnd {
    pub(crate) fn new(limits: Limits) -> Self {
        RunEnd {
            limits,
            stop: None,
            until: 0,
            event_limit: 0,
            pending_wakeups: 0,
            charged_queue_bytes: 0,
        }
    }

    /// Stops the run. If the run has already been stopped, the first reason stays.
    pub(crate) fn stop_with(&mut self, stop: Stop) {
        self.stop.get_or_insert(stop);
        self.event_limit = 0;
    }

    /// Begins to handle the events up to and including `until`.
    pub(crate) fn advance_to(&mut self, until: Nanos) {
        self.until = until;
        self.event_limit = if self.stop.is_none() { self.limits.max_events } else { 0 };
    }
}

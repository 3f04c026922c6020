// SPDX-License-Identifier: GPL-2.0-only
//! The event schema: the observable events of a run, and their encoding for the trace hash.
//!
//! Owns: the kinds and their meaning. Does not: hold names (see `names.rs`) or text.
//! A new field or kind changes every trace hash, and is a change of the file format; the kinds of
//! `Tracer::note` are outside the hash.

use scxlab_machine::{CgroupId, CpuId, Nanos, TaskId};

use crate::call::Call;
use crate::hash::TraceHash;

/// An event on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Time of the event in ns. The times of the events of one CPU never decrease.
    pub time: Nanos,
    /// CPU on which the event happened.
    pub cpu: CpuId,
    /// Kind of the event, with its data.
    pub kind: EventKind,
}

/// State of a task that left its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrevState {
    /// The task can continue: it was preempted, its slice ended, or it yielded.
    Runnable,
    /// The task waits for something.
    Sleeping,
    /// The task has ended.
    Exited,
    /// The task waits for something and takes no signal, mostly for a disk
    /// (`TASK_UNINTERRUPTIBLE`). Simulated tasks do not have this state.
    Uninterruptible,
}

/// Kind of an event. In a `Switch`, None stands for the CPU's idle task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    /// The CPU switched from one task to another.
    Switch {
        /// Task that was running.
        prev: Option<TaskId>,
        /// Task that runs now.
        next: Option<TaskId>,
        /// State of `prev`; `Runnable` for the idle task.
        prev_state: PrevState,
    },
    /// A sleeping or new task became runnable.
    Wakeup {
        /// Task that became runnable.
        task: TaskId,
        /// CPU chosen for the task.
        target: CpuId,
        /// Task that woke `task`; None if an interrupt did.
        waker: Option<TaskId>,
    },
    /// A task that was not running changed its CPU.
    Migrate {
        /// Task that migrated.
        task: TaskId,
        /// CPU before the migration.
        from: CpuId,
        /// CPU after the migration.
        to: CpuId,
    },
    /// A callback of the scheduler ended at the event's time.
    Op {
        /// Index of the callback, for `Names::op`.
        op: u8,
        /// Duration in ns, including waits for locks.
        cost_ns: Nanos,
        /// Task that the callback was called for; None if the callback concerns no task.
        task: Option<TaskId>,
    },
    /// A task was inserted into a DSQ.
    DsqInsert {
        /// Task that was inserted.
        task: TaskId,
        /// Id of the DSQ.
        dsq: u64,
        /// The enqueue flags.
        flags: u64,
    },
    /// A task was moved from one DSQ to another.
    DsqMove {
        /// Task that was moved.
        task: TaskId,
        /// Id of the source DSQ.
        from: u64,
        /// Id of the destination DSQ.
        to: u64,
    },
    /// The scheduler looked in a DSQ for a task for this CPU, and found none. Such events are
    /// passed to `Tracer::note`.
    DsqMiss {
        /// Id of the DSQ.
        dsq: u64,
        /// Number of tasks in the DSQ; none of them may run on the CPU.
        queued: u32,
    },
    /// The CPU asked another CPU to reschedule.
    Kick {
        /// CPU that was kicked.
        target: CpuId,
        /// The kick flags.
        flags: u64,
    },
    /// The CPU spun on a lock, until the event's time.
    LockWait {
        /// Key of the lock, for `Names::lock`.
        lock: u64,
        /// Duration in ns.
        wait_ns: Nanos,
    },
    /// A cgroup used up its bandwidth on this CPU, or got new bandwidth.
    Throttle {
        /// Cgroup that is throttled or unthrottled.
        cgroup: CgroupId,
        /// Whether the cgroup is throttled from now on.
        on: bool,
    },
    /// A task was created. Its name is set before this event.
    Fork {
        /// Task that created the child; None for the tasks at the start of a run.
        parent: Option<TaskId>,
        /// The new task.
        child: TaskId,
    },
    /// A task ended. The switch away from the task follows.
    Exit {
        /// Task that ended.
        task: TaskId,
    },
    /// The CPU went on line or off line.
    CpuOnline {
        /// Whether the CPU is on line from now on.
        online: bool,
    },
    /// The scheduler exited, because of an error or because it was told to exit.
    SchedExit {
        /// The kernel's exit kind.
        kind: u32,
        /// The exit code.
        code: i64,
    },
    /// A BPF program printed a line. The sink finds the text in `Names::text`; the event holds only
    /// a hash of the text.
    Printk {
        /// Hash of the text, computed by `hash_bytes`.
        text_hash: u64,
    },
    /// Events of this CPU are missing from the trace, because the recorder's buffer was full.
    /// Simulated runs lose no events.
    Lost {
        /// Number of missing events; 0: unknown.
        events: u64,
    },
    /// What a virtual CPU of a guest runs changed. The CPU runs the virtual CPU.
    GuestRun {
        /// Number of the guest.
        guest: u32,
        /// Number of the virtual CPU in its guest.
        vcpu: u32,
        /// Number of the thread in its guest; None if the virtual CPU is idle.
        thread: Option<u32>,
        /// Whether the thread spins.
        spins: bool,
    },
    /// A task made a system call. Such events are passed to `Tracer::note`.
    Call {
        /// Task that made the call. It runs on the CPU.
        task: TaskId,
        /// The call.
        call: Call,
    },
    /// The attributes of a task are set, or changed (`Names::attributes`). Such events are passed
    /// to `Tracer::note`.
    Attributes {
        /// Task with these attributes.
        task: TaskId,
    },
    /// A program of the scheduler that is no callback of its operations, such as that of a timer,
    /// ended at the event's time. Such events are passed to `Tracer::note`.
    Program {
        /// Duration in ns, including waits for locks.
        cost_ns: Nanos,
    },
}

impl Event {
    /// Folds the event's fields into a hash, without padding or addresses. The encoding is
    /// injective: the first word after the time identifies the kind, and each kind has a fixed
    /// number of words.
    #[inline(always)]
    pub fn fold_into(&self, hash: &mut TraceHash) {
        hash.add(self.time);
        // One word holds the CPU, the event's small fields and the tag of its kind.
        let head = |tag: u64, small: u64| u64::from(self.cpu.0) << 32 | small << 8 | tag;
        let mut add = |head: u64, words: &[u64]| {
            hash.add(head);
            words.iter().for_each(|&word| hash.add(word));
        };
        match self.kind {
            EventKind::Switch { prev, next, prev_state } => {
                add(head(0, prev_state as u64), &[opt(prev), opt(next)]);
            }
            EventKind::Wakeup { task, target, waker } => {
                add(head(1, 0), &[pair(task.0, target.0), opt(waker)])
            }
            EventKind::Migrate { task, from, to } => {
                add(head(2, 0), &[u64::from(task.0), pair(from.0, to.0)])
            }
            EventKind::Op { op, cost_ns, task } => {
                add(head(3, u64::from(op)), &[cost_ns, opt(task)])
            }
            EventKind::DsqInsert { task, dsq, flags } => {
                add(head(4, 0), &[u64::from(task.0), dsq, flags])
            }
            EventKind::DsqMove { task, from, to } => {
                add(head(5, 0), &[u64::from(task.0), from, to])
            }
            EventKind::Kick { target, flags } => add(head(6, 0), &[u64::from(target.0), flags]),
            EventKind::LockWait { lock, wait_ns } => add(head(7, 0), &[lock, wait_ns]),
            EventKind::Throttle { cgroup, on } => {
                add(head(8, u64::from(on)), &[u64::from(cgroup.0)])
            }
            EventKind::Fork { parent, child } => {
                add(head(9, 0), &[opt(parent), u64::from(child.0)])
            }
            EventKind::Exit { task } => add(head(10, 0), &[u64::from(task.0)]),
            // The tags 11 and 12 are unused.
            EventKind::CpuOnline { online } => add(head(13, u64::from(online)), &[]),
            EventKind::SchedExit { kind, code } => {
                add(head(14, 0), &[u64::from(kind), code as u64])
            }
            EventKind::Printk { text_hash } => add(head(15, 0), &[text_hash]),
            EventKind::Lost { events } => add(head(16, 0), &[events]),
            EventKind::GuestRun { guest, vcpu, thread, spins } => {
                add(head(17, u64::from(spins)), &[pair(guest, vcpu), opt(thread.map(TaskId))])
            }
            EventKind::DsqMiss { .. }
            | EventKind::Call { .. }
            | EventKind::Attributes { .. }
            | EventKind::Program { .. } => {
                unreachable!("events of `Tracer::note` are outside the hash")
            }
        }
    }
}

/// Encodes an optional task: 0 for None, else the id plus 1. An id has 32 bits, so the sum cannot
/// overflow.
#[inline]
fn opt(task: Option<TaskId>) -> u64 {
    task.map_or(0, |task| u64::from(task.0) + 1)
}

#[inline]
fn pair(a: u32, b: u32) -> u64 {
    u64::from(a) << 32 | u64::from(b)
}

#[cfg(test)]
pub(crate) mod tests;

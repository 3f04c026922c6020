// SPDX-License-Identifier: GPL-2.0-only
//! The event schema: what can be seen of a run, and the words by which an event enters the trace hash.
//!
//! Owns: the kinds and their meaning. Does not: hold names (see `names.rs`) or text.
//! A field or a kind that is added changes every trace hash; that is a change of the file format.

use scxlab_machine::{CgroupId, CpuId, Nanos, TaskId};

use crate::hash::TraceHash;

/// Something that happened on a CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// When. Never decreases from one event of a CPU to its next.
    pub time: Nanos,
    /// The CPU that did it.
    pub cpu: CpuId,
    /// What.
    pub kind: Kind,
}

/// Why a task left its CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PrevState {
    /// It could go on: preempted, or its slice is over, or it yielded.
    Runnable,
    /// It waits for something.
    Sleeping,
    /// It will not come back.
    Exited,
}

/// What happened. "None" as a task is the CPU's idle task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The CPU changes from one task to another.
    Switch {
        /// Who ran.
        prev: Option<TaskId>,
        /// Who runs now.
        next: Option<TaskId>,
        /// What became of `prev`; `Runnable` for the idle task.
        prev_state: PrevState,
    },
    /// A sleeping or new task becomes runnable.
    Wakeup {
        /// Who.
        task: TaskId,
        /// The CPU chosen for it.
        target: CpuId,
        /// Who woke it; none if an interrupt did.
        waker: Option<TaskId>,
    },
    /// A task that does not run changes its CPU.
    Migrate {
        /// Who.
        task: TaskId,
        /// Its CPU until now.
        from: CpuId,
        /// Its CPU from now on.
        to: CpuId,
    },
    /// A scheduler's callback ran, starting at the event's time.
    Op {
        /// Which, an index into the names' table of ops.
        op: u8,
        /// How long it took, waits for locks included.
        cost_ns: Nanos,
        /// Which task it was about.
        task: Option<TaskId>,
    },
    /// A task entered a DSQ.
    DsqInsert {
        /// Who.
        task: TaskId,
        /// Where, as the scheduler numbers it.
        dsq: u64,
        /// The enqueue flags.
        flags: u64,
    },
    /// A task went from one DSQ to another.
    DsqMove {
        /// Who.
        task: TaskId,
        /// From where.
        from: u64,
        /// To where.
        to: u64,
    },
    /// The CPU asked another one to reschedule.
    Kick {
        /// Which one.
        target: CpuId,
        /// The kick flags.
        flags: u64,
    },
    /// The CPU spun for a lock, starting at the event's time.
    LockWait {
        /// Which, as the names' table numbers it.
        lock: u64,
        /// How long.
        wait_ns: Nanos,
    },
    /// A cgroup ran out of its bandwidth on this CPU, or got some again.
    Throttle {
        /// Which.
        cgroup: CgroupId,
        /// Whether it is throttled from now on.
        on: bool,
    },
    /// A task came to be. Its name is known before.
    Fork {
        /// By whom; none for the tasks that a run starts with.
        parent: Option<TaskId>,
        /// Who.
        child: TaskId,
    },
    /// A task ended. Its last switch follows.
    Exit {
        /// Who.
        task: TaskId,
    },
    /// The CPU came or went.
    CpuOnline {
        /// Which way.
        online: bool,
    },
    /// The scheduler left: it was ejected, or asked to.
    SchedExit {
        /// The kernel's exit kind.
        kind: u32,
        /// The exit code.
        code: i64,
    },
    /// A BPF program printed a line; the text is beside the event, its hash in it.
    Printk {
        /// `hash_bytes` of the text.
        text_hash: u64,
    },
    /// From here on the CPU's events are missing: there was no room for them. Simulated runs lose none.
    Lost {
        /// How many.
        events: u64,
    },
}

impl Event {
    /// Folds the event into a hash: the fields, no padding, no addresses. The encoding is injective:
    /// the first word names the kind, a kind has a fixed number of words.
    #[inline(always)]
    pub fn fold_into(&self, hash: &mut TraceHash) {
        hash.add(self.time);
        // Kind and the small fields share a word with the CPU.
        let head = |tag: u64, small: u64| u64::from(self.cpu.0) << 32 | small << 8 | tag;
        let mut add = |head: u64, words: &[u64]| {
            hash.add(head);
            words.iter().for_each(|&word| hash.add(word));
        };
        match self.kind {
            Kind::Switch { prev, next, prev_state } => {
                add(head(0, prev_state as u64), &[opt(prev), opt(next)]);
            }
            Kind::Wakeup { task, target, waker } => {
                add(head(1, 0), &[pair(task.0, target.0), opt(waker)])
            }
            Kind::Migrate { task, from, to } => {
                add(head(2, 0), &[u64::from(task.0), pair(from.0, to.0)])
            }
            Kind::Op { op, cost_ns, task } => add(head(3, u64::from(op)), &[cost_ns, opt(task)]),
            Kind::DsqInsert { task, dsq, flags } => {
                add(head(4, 0), &[u64::from(task.0), dsq, flags])
            }
            Kind::DsqMove { task, from, to } => add(head(5, 0), &[u64::from(task.0), from, to]),
            Kind::Kick { target, flags } => add(head(6, 0), &[u64::from(target.0), flags]),
            Kind::LockWait { lock, wait_ns } => add(head(7, 0), &[lock, wait_ns]),
            Kind::Throttle { cgroup, on } => add(head(8, u64::from(on)), &[u64::from(cgroup.0)]),
            Kind::Fork { parent, child } => add(head(9, 0), &[opt(parent), u64::from(child.0)]),
            Kind::Exit { task } => add(head(10, 0), &[u64::from(task.0)]),
            // 11 and 12 are free: no trace has an event of theirs.
            Kind::CpuOnline { online } => add(head(13, u64::from(online)), &[]),
            Kind::SchedExit { kind, code } => add(head(14, 0), &[u64::from(kind), code as u64]),
            Kind::Printk { text_hash } => add(head(15, 0), &[text_hash]),
            Kind::Lost { events } => add(head(16, 0), &[events]),
        }
    }
}

/// A task that may be none: 0 is none, as an id has only 32 bits.
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

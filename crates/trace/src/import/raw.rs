// SPDX-License-Identifier: GPL-2.0-only
//! Events as a file has them: tasks are thread ids, and what a file leaves out is absent.
//!
//! Owns: the common form of all formats. Does not: know any format.

use std::collections::BTreeSet;
use std::sync::Arc;

use scxlab_machine::Nanos;

use crate::call::Call;
use crate::event::PrevState;
use crate::names::{CgroupAttributes, TaskAttributes};

/// The kernel's `TRACE_FLAG_HARDIRQ`, `TRACE_FLAG_SOFTIRQ` and `TRACE_FLAG_NMI`: the event happened
/// in an interrupt or in the work after one.
pub const IN_INTERRUPT: u32 = 0x08 | 0x10 | 0x40;

/// An event of one CPU.
#[derive(Clone, Debug)]
pub struct Raw {
    pub time: Nanos,
    pub cpu: u32,
    /// The list of the CPU's events that this one is from. The events of a lane are in order of
    /// time, lanes with each other are not.
    pub lane: u8,
    /// Thread id of the task that ran on the CPU, 0 for the idle task; None if the file does not
    /// tell.
    pub running: Option<u32>,
    /// Whether the event happened in an interrupt; None if the file does not tell.
    pub interrupt: Option<bool>,
    pub kind: RawKind,
}

/// A task, and what the event tells about it.
#[derive(Clone, Debug, Default)]
pub struct Who {
    pub tid: u32,
    pub comm: Option<Arc<str>>,
    pub prio: Option<i32>,
}

#[derive(Clone, Debug)]
pub enum RawKind {
    Switch {
        /// None if the file does not tell which task ran before.
        prev: Option<Who>,
        state: PrevState,
        next: Who,
    },
    /// A wake-up, on the waker's CPU (`sched_waking`).
    Waking {
        task: Who,
        target: u32,
    },
    /// A wake-up, on the CPU that queues the task (`sched_wakeup`). It follows `Waking`, if the
    /// file has both.
    Wakeup {
        task: Who,
        target: u32,
    },
    /// The first wake-up of a task.
    WakeupNew {
        task: Who,
        target: u32,
    },
    Migrate {
        task: Who,
        from: u32,
        to: u32,
    },
    /// The running task created a task (`task_newtask`).
    NewTask {
        child: Who,
        /// Whether the child is a thread of its parent's process.
        thread: Option<bool>,
    },
    /// A task created a task (`sched_process_fork`). A file may have both kinds for one task.
    Fork {
        parent: u32,
        child: Who,
    },
    /// A task that exists when the trace starts.
    Start {
        tid: u32,
    },
    Exit {
        task: Who,
    },
    /// The kernel released a task that has ended.
    Free {
        tid: u32,
    },
    /// The task `old` executed a program and has the thread id `tid` from now on.
    Exec {
        tid: u32,
        old: u32,
    },
    Rename {
        task: Who,
    },
    CpuOnline {
        cpu: u32,
        online: bool,
    },
    Call(Call),
    /// A call with an object that each process numbers for itself.
    Private(Call),
    Attributes(Box<(u32, TaskAttributes)>),
    Cgroup(Box<(String, CgroupAttributes)>),
    Lost {
        events: u64,
    },
}

/// Number of lanes of a CPU.
pub const LANES: usize = 3;

impl Raw {
    /// Returns the event's share of the merge's memory, in events of ordinary size.
    pub fn weight(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        1 + match &self.kind {
            RawKind::Attributes(task) => 2 + (task.1.cgroup.len() + text(&task.1.cpus)) / 64,
            RawKind::Cgroup(group) => 2 + (group.0.len() + text(&group.1.cpus)) / 64,
            _ => 0,
        }
    }
}

/// Greatest length of a task's name in bytes. The kernel's own names have at most 15 bytes, those
/// of its workers in lists of processes 63.
const COMM_MAX: usize = 64;
/// Number of names that are kept to be shared.
const COMMS_MAX: usize = 1 << 16;

/// Names of tasks, each in memory once.
#[derive(Default)]
pub struct Comms(BTreeSet<Arc<str>>);

impl Comms {
    pub fn get(&mut self, comm: &str) -> Arc<str> {
        let comm = &comm[..comm.floor_char_boundary(COMM_MAX)];
        if let Some(known) = self.0.get(comm) {
            return known.clone();
        }
        if self.0.len() >= COMMS_MAX {
            self.0.clear();
        }
        let new: Arc<str> = comm.into();
        self.0.insert(new.clone());
        new
    }
}

/// Returns the state of a task that left its CPU, from the bits of `sched_switch`'s `prev_state`
/// (`TASK_REPORT`, Linux 4.14 and later). A stopped or traced task and a kernel thread in
/// `TASK_IDLE` sleep.
pub fn state_of_bits(bits: i64) -> PrevState {
    const UNINTERRUPTIBLE: i64 = 0x02;
    const ENDED: i64 = 0x10 | 0x20;
    const WAITS: i64 = 0xff;
    match bits {
        bits if bits & ENDED != 0 => PrevState::Exited,
        bits if bits & UNINTERRUPTIBLE != 0 => PrevState::Uninterruptible,
        bits if bits & WAITS != 0 => PrevState::Sleeping,
        _ => PrevState::Runnable,
    }
}

/// Returns the call that a line in `trace_marker` stands for: `scxlab: count 5` reports units of
/// work.
pub fn marker(line: &str) -> Option<Call> {
    let units = line.trim().strip_prefix("scxlab: count ")?;
    Some(Call::Count { units: units.trim().parse().ok()? })
}

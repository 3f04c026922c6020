// SPDX-License-Identifier: GPL-2.0-only
//! The history of each task of a recording: work, system calls, waits and wake-ups, in order.
//!
//! Owns: the data types. Time that a task spent in a run queue is not part of its steps, because it
//! belongs to the recording's scheduling.
//! Does not: interpret a wait (see `infer`).

use std::collections::BTreeMap;

use scxlab_machine::Nanos;
use scxlab_trace::{Call, CgroupAttributes, TaskAttributes, TaskName};

/// Number of a task in `History::tasks`.
pub type TaskIndex = u32;

/// All tasks of a recording.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// Time of the first event.
    pub start: Nanos,
    /// Time of the last event, or of the recording's end if that is known.
    pub end: Nanos,
    /// Tasks in the order in which they appeared.
    pub tasks: Vec<TaskHistory>,
    /// Limits of the cgroups of the tasks, by path.
    pub cgroups: BTreeMap<String, CgroupAttributes>,
    /// Time at which the history had as many steps as it may have.
    pub full: Option<Nanos>,
    /// Number of events that the recorder lost.
    pub lost: u64,
    /// Number of events that do not fit the events before them, such as a switch from a task that
    /// did not run.
    pub inconsistent: u64,
    /// Whether the recording has system calls.
    pub has_calls: bool,
    /// Whether the recording has wake-ups.
    pub has_wakeups: bool,
}

/// How a task came into the recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The task existed before the recording.
    Start,
    /// A task of the recording forked it.
    Fork(TaskIndex),
    /// The task came later, and no task of the recording forked it: something outside woke it for
    /// the first time, or its fork is not in the recording.
    Appeared,
}

/// The history of one task.
#[derive(Clone, Debug)]
pub struct TaskHistory {
    /// Name at the end of the task, or of the recording.
    pub name: TaskName,
    /// The first attributes, if the recording has any.
    pub attributes: Option<TaskAttributes>,
    /// Attributes to which the task changed during the recording, in order.
    pub changes: Vec<TaskAttributes>,
    /// Whether the task is in the recorder's scope. The others have no steps and no waits.
    pub in_scope: bool,
    /// How the task came into the recording.
    pub origin: Origin,
    /// Time at which the task came.
    pub born: Nanos,
    /// Time of the task's end.
    pub ended: Option<Nanos>,
    /// Steps, in order.
    pub steps: Vec<Step>,
    /// Waits, in order.
    pub sleeps: Vec<Sleep>,
    /// Time on CPUs in ns, kernel included.
    pub run_ns: Nanos,
    /// Time in run queues in ns.
    pub wait_ns: Nanos,
    /// Number of switches to the task.
    pub switches: u64,
    /// Whether the task is a virtual CPU of a guest.
    pub is_vcpu: bool,
}

/// One step of a task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Work in ns at reference speed, without the costs of the kernel.
    Work(Nanos),
    /// A system call at this time. A wait that belongs to it follows.
    Call(Nanos, Call),
    /// A wait, by its index in `sleeps`.
    Sleep(u32),
    /// The task ended a wait of another task: the task, and the index of the wait.
    Wake(TaskIndex, u32),
    /// The task forked another.
    Fork(TaskIndex),
    /// The task's attributes changed to these, by their index in `changes`.
    Change(u32),
}

/// The source of a wake-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waker {
    /// Another task of the recording.
    Task(TaskIndex),
    /// An interrupt: a timer, a device, another machine.
    Interrupt,
    /// The recording does not tell.
    Unknown,
}

/// A wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sleep {
    /// Time at which the task left its CPU.
    pub from: Nanos,
    /// Time of the wake-up; None: the task slept until the end of the recording.
    pub until: Option<Nanos>,
    /// Source of the wake-up.
    pub by: Waker,
    /// Time in ns by which the machine is late with a wake-up that an interrupt causes: until an
    /// idle CPU is awake, and the kernel's path.
    pub late: u32,
    /// Index of the wait in the task's steps.
    pub step: u32,
    /// Whether the task took no signal (`TASK_UNINTERRUPTIBLE`).
    pub uninterruptible: bool,
}

impl Sleep {
    /// Returns the time of the interrupt that ended the wait, as a timer of the machine would be
    /// set for it; None if the task slept until the end.
    pub fn due(&self) -> Option<Nanos> {
        self.until.map(|until| until.saturating_sub(Nanos::from(self.late)).max(self.from))
    }
}

impl TaskHistory {
    /// Adds time on a CPU. The times of a damaged file can be anything.
    pub(crate) fn add_run(&mut self, ns: Nanos) {
        self.run_ns = self.run_ns.saturating_add(ns);
    }

    /// Adds time in a run queue.
    pub(crate) fn add_wait(&mut self, ns: Nanos) {
        self.wait_ns = self.wait_ns.saturating_add(ns);
    }

    /// Returns the work of all steps, in ns.
    pub fn work(&self) -> Nanos {
        let work = |step: &Step| if let Step::Work(ns) = step { *ns } else { 0 };
        self.steps.iter().map(work).fold(0, Nanos::saturating_add)
    }

    /// Whether the task is a kernel thread. A recording without attributes shows it by the name.
    pub fn is_kthread(&self) -> bool {
        let by_name = || self.name.tgid == self.name.pid && is_kthread_name(&self.name.comm);
        self.attributes.as_ref().map_or_else(by_name, |a| a.kthread)
    }
}

/// First parts of the names of Linux's kernel threads. Names that programs may have, too, such as
/// `loop0` and `nfsd`, are not among them.
const KTHREADS: &[&str] = &[
    "btrfs-",
    "cpuhp/",
    "dmcrypt_write/",
    "ext4-",
    "idle_inject/",
    "irq/",
    "irq_work/",
    "jbd2/",
    "kauditd",
    "kblockd",
    "kcompactd",
    "kcryptd",
    "kdamond.",
    "kdevtmpfs",
    "khugepaged",
    "khungtaskd",
    "ksmd",
    "ksoftirqd/",
    "kswapd",
    "kthreadd",
    "kthrotld",
    "kvm-pit/",
    "kworker/",
    "migration/",
    "napi/",
    "oom_reaper",
    "pr/",
    "psimon",
    "rcu_",
    "rcub/",
    "rcuc/",
    "rcuog/",
    "rcuop/",
    "rcuos/",
    "scsi_eh_",
    "scsi_tmf_",
    "sugov:",
    "txg_sync",
    "vhost-",
    "watchdogd",
    "writeback",
    "xfsaild/",
];

fn is_kthread_name(comm: &str) -> bool {
    KTHREADS.iter().any(|name| comm.starts_with(name))
}

// SPDX-License-Identifier: GPL-2.0-only
//! The names of the ids in events (tasks, callbacks, DSQs, locks, guests), and the text of the
//! current event.
//!
//! Owns: the present name of each id. A task's id is a slot that a later task may reuse.
//! Does not: keep history; a sink that needs a name later copies it.

use std::collections::BTreeMap;

use scxlab_machine::TaskId;

/// The name and priority of a task.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TaskName {
    /// Thread id, never reused within a run and never 0.
    pub pid: u32,
    /// Process id: the thread id of the first thread.
    pub tgid: u32,
    /// Name, as in `comm`.
    pub comm: String,
    /// Priority in the kernel's numbering: 120 is nice 0, below 100 is real time.
    pub prio: i32,
}

/// The scheduling policy of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TaskPolicy {
    /// SCHED_OTHER
    #[default]
    Normal,
    /// SCHED_BATCH
    Batch,
    /// SCHED_IDLE
    Idle,
    /// SCHED_EXT
    Ext,
    /// SCHED_FIFO, with the priority of `sched_setscheduler(2)`
    Fifo(u8),
    /// SCHED_RR, with the priority of `sched_setscheduler(2)`
    RoundRobin(u8),
    /// SCHED_DEADLINE, in ns
    Deadline {
        /// Budget per period.
        runtime: u64,
        /// Deadline after the begin of a period.
        deadline: u64,
        /// Length of a period.
        period: u64,
    },
}

/// The attributes of a task that a scheduler may look at, besides its name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TaskAttributes {
    /// The policy.
    pub policy: TaskPolicy,
    /// The nice value.
    pub nice: i8,
    /// The slice that the task requests (`sched_attr.sched_runtime`), in ns; 0: the default.
    pub slice: u64,
    /// The allowed CPUs as a list such as "0-3,8"; None: all.
    pub cpus: Option<String>,
    /// Path of the cgroup, "/" for the root.
    pub cgroup: String,
    /// Whether the task is a kernel thread.
    pub kthread: bool,
}

/// The limits of a cgroup's cpu controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CgroupAttributes {
    /// `cpu.weight`
    pub weight: u32,
    /// `cpu.max`: quota in ns per period; None: no limit.
    pub quota: Option<u64>,
    /// The period in ns.
    pub period: u64,
    /// `cpu.idle`
    pub idle: bool,
    /// `cpuset.cpus.effective` as a list; None: all.
    pub cpus: Option<String>,
}

/// All names of a run.
#[derive(Clone, Debug, Default)]
pub struct Names {
    tasks: Vec<Option<NameEntry>>,
    attributes: Vec<TaskAttributes>,
    /// Attributes of cgroups by path. A cgroup of a simulated run or a recording is set before the
    /// tasks in it.
    cgroups: BTreeMap<String, CgroupAttributes>,
    ops: Vec<String>,
    locks: BTreeMap<u64, String>,
    /// Names of guests by number, and of their threads by the numbers of guest and thread.
    guests: BTreeMap<(u32, Option<u32>), String>,
    text: String,
    changes: u64,
}

#[derive(Clone, Debug)]
struct NameEntry {
    name: TaskName,
    version: u64,
}

impl Names {
    /// Sets the name of a task that is new, or whose name or priority changed. Call this before the
    /// events that refer to the task.
    pub fn set_task(&mut self, task: TaskId, name: TaskName) {
        if self.tasks.len() <= task.idx() {
            self.tasks.resize(task.idx() + 1, None);
        }
        self.changes += 1;
        self.tasks[task.idx()] = Some(NameEntry { name, version: self.changes });
    }

    /// Returns the name of `task`, if one was set.
    pub fn task(&self, task: TaskId) -> Option<&TaskName> {
        self.tasks.get(task.idx())?.as_ref().map(|entry| &entry.name)
    }

    /// Returns a number that grows whenever `set_task` sets a name for this task id, and that is 0
    /// before the first name.
    pub fn task_version(&self, task: TaskId) -> u64 {
        self.tasks.get(task.idx()).and_then(Option::as_ref).map_or(0, |entry| entry.version)
    }

    /// Sets the attributes of a task. Call this before the event `Attributes`.
    pub fn set_attributes(&mut self, task: TaskId, attributes: TaskAttributes) {
        if self.attributes.len() <= task.idx() {
            self.attributes.resize(task.idx() + 1, TaskAttributes::default());
        }
        self.attributes[task.idx()] = attributes;
    }

    /// Returns the attributes of a task; None if no task of this id has any. They are those of the
    /// task if an event `Attributes` came since the slot's task was forked.
    pub fn attributes(&self, task: TaskId) -> Option<&TaskAttributes> {
        self.attributes.get(task.idx())
    }

    /// Sets the attributes of a cgroup. Call this before the event `Attributes` of a task in it.
    pub fn set_cgroup(&mut self, path: &str, attributes: CgroupAttributes) {
        self.cgroups.insert(path.to_owned(), attributes);
    }

    /// Returns the attributes of the cgroup at a path, if they are known.
    pub fn cgroup(&self, path: &str) -> Option<&CgroupAttributes> {
        self.cgroups.get(path)
    }

    /// Sets the names of the callbacks, in the order of their indices.
    pub fn set_ops<S: Into<String>>(&mut self, ops: impl IntoIterator<Item = S>) {
        self.ops = ops.into_iter().map(Into::into).collect();
    }

    /// Returns the name of the callback with this index.
    pub fn op(&self, op: u8) -> &str {
        self.ops.get(usize::from(op)).map_or("unknown op", String::as_str)
    }

    /// Names a lock. Call this before the events that refer to the lock.
    pub fn set_lock(&mut self, lock: u64, name: impl Into<String>) {
        self.locks.insert(lock, name.into());
    }

    /// Returns a lock's name, or a text with its number if it has no name.
    pub fn lock(&self, lock: u64) -> String {
        self.locks.get(&lock).cloned().unwrap_or_else(|| format!("lock {lock:#x}"))
    }

    /// Names a guest, or a thread of it. Call this before the events that refer to it.
    pub fn set_guest(&mut self, guest: u32, thread: Option<u32>, name: impl Into<String>) {
        self.guests.insert((guest, thread), name.into());
    }

    /// Returns the name of a guest, or of a thread of it, or a text with its number if it has no
    /// name.
    pub fn guest(&self, guest: u32, thread: Option<u32>) -> String {
        let number = || match thread {
            None => format!("guest {guest}"),
            Some(thread) => format!("thread {thread}"),
        };
        self.guests.get(&(guest, thread)).cloned().unwrap_or_else(number)
    }

    /// Returns the text of the event being emitted: a printed line, an exit message.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// Sets the text of the next event. Reuses the buffer of the previous text.
    pub(crate) fn set_text(&mut self, text: &str) {
        self.text.clear();
        self.text.push_str(text);
    }
}

/// Returns a DSQ's name: a description for a DSQ of the kernel (`enum scx_dsq_id_flags`, 7.3), the
/// id for a DSQ of the scheduler.
pub fn dsq(id: u64) -> String {
    const BUILTIN: u64 = 1 << 63;
    const LOCAL_ON: u64 = 1 << 62;
    match (id & BUILTIN != 0, id & LOCAL_ON != 0, id as u32) {
        (false, ..) => format!("DSQ {id:#x}"),
        (true, true, cpu) => format!("local DSQ of CPU {cpu}"),
        (true, false, 1) => "global DSQ".to_owned(),
        (true, false, 2) => "local DSQ".to_owned(),
        (true, false, 3) => "bypass DSQ".to_owned(),
        _ => format!("invalid DSQ {id:#x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reused_slot_gets_a_new_version() {
        let mut names = Names::default();
        let task = |pid| TaskName { pid, tgid: pid, comm: format!("t{pid}"), prio: 120 };
        assert_eq!(names.task_version(TaskId(3)), 0);
        assert_eq!(names.task(TaskId(3)), None);
        names.set_task(TaskId(3), task(10));
        let first = names.task_version(TaskId(3));
        names.set_task(TaskId(3), task(11));
        assert!(names.task_version(TaskId(3)) > first);
        assert_eq!(names.task(TaskId(3)), Some(&task(11)));
        assert_eq!(names.task(TaskId(2)), None);
    }

    #[test]
    fn nameless_things_have_a_name() {
        let mut names = Names::default();
        assert_eq!(names.lock(1), "lock 0x1");
        assert_eq!(names.op(200), "unknown op");
        names.set_ops(["select_cpu"]);
        names.set_lock(1, "rq 0");
        assert_eq!((names.op(0), &*names.lock(1)), ("select_cpu", "rq 0"));
    }

    #[test]
    fn queues_are_called_by_what_they_are() {
        let builtin = 1 << 63;
        assert_eq!(dsq(0x10), "DSQ 0x10");
        assert_eq!(dsq(builtin | 1), "global DSQ");
        assert_eq!(dsq(builtin | 1 << 62 | 12), "local DSQ of CPU 12");
        assert_eq!(dsq(builtin), "invalid DSQ 0x8000000000000000");
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! From the recorder's records to events of the trace schema, in order of time.
//!
//! Owns: the meaning of records, the ids of tasks, the order. CPUs write their records into one
//! ring, so a record may come a little after a later one of another CPU. Records therefore wait
//! until the ring has been drained once more.
//! Does not: keep more than the records of two drains.

use std::collections::{BTreeMap, BTreeSet};

use scxlab_machine::{CpuId, Nanos, TaskId};
use scxlab_trace::{
    Call, ChannelKind, Event, EventKind, Names, PrevState, Sink, TaskAttributes, TaskName,
    TaskPolicy,
};

use super::cgroups::{Cgroups, cpu_list};
use crate::abi::{plain, record as abi};
use crate::probe::text;

/// Counts of a recording.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    pub events: u64,
    pub members: u64,
    pub calls: u64,
    pub lost: u64,
    pub unread: u64,
}

/// Passes records to a sink as events. Time 0 is the start of the recording.
pub struct Converter<'a> {
    sink: &'a mut dyn Sink,
    names: Names,
    cgroups: Cgroups,
    nr_cpus: usize,
    /// Begin and end of the recording on CLOCK_MONOTONIC, ns. Events outside are left out.
    from: u64,
    until: u64,
    /// Records that wait for earlier ones, in the order in which they were taken.
    waiting: Vec<Waiting>,
    /// Time of the last event of each CPU.
    last: Vec<Nanos>,
    /// Ids of the living tasks by pid, and ids of dead tasks for reuse.
    ids: BTreeMap<u32, TaskId>,
    free: Vec<TaskId>,
    /// The latest name of each pid, with the time at which it was recorded.
    known: BTreeMap<u32, (u64, TaskName)>,
    members: BTreeSet<TaskId>,
    counts: Vec<abi::record_counts>,
    totals: Totals,
}

/// A record, and its time.
struct Waiting {
    at: u64,
    record: Record,
}

enum Record {
    Event(abi::record_event),
    Call(abi::record_call),
    Attributes(Box<abi::record_attributes>),
}

impl Record {
    fn read(kind: u32, bytes: &[u8]) -> Option<Record> {
        match kind {
            abi::RECORD_CALL => plain(bytes).map(Record::Call),
            abi::RECORD_ATTRIBUTES => plain(bytes).map(Box::new).map(Record::Attributes),
            _ => plain(bytes).map(Record::Event),
        }
    }
}

impl<'a> Converter<'a> {
    pub fn new(sink: &'a mut dyn Sink, cgroups: Cgroups, nr_cpus: usize) -> Converter<'a> {
        Converter {
            sink,
            names: Names::default(),
            cgroups,
            nr_cpus,
            from: u64::MAX,
            until: u64::MAX,
            waiting: Vec::new(),
            last: vec![0; nr_cpus],
            ids: BTreeMap::new(),
            free: Vec::new(),
            known: BTreeMap::new(),
            members: BTreeSet::new(),
            counts: vec![abi::record_counts { lost: 0, unread: 0 }; nr_cpus],
            totals: Totals::default(),
        }
    }

    /// Sets the begin of the recording. Attributes that were taken before are events of this time.
    pub fn start(&mut self, at: u64) {
        self.from = at;
        let early = std::mem::take(&mut self.waiting);
        for Waiting { record, .. } in early {
            if matches!(record, Record::Attributes(_)) {
                self.convert(&record, 0);
            }
        }
    }

    /// Sets the end of the recording.
    pub fn end(&mut self, at: u64) {
        self.until = at;
    }

    /// Takes a record. Names and paths are learned at once, so that they are known when the events
    /// that need them are converted.
    pub fn take(&mut self, bytes: &[u8]) {
        let Some(head) = plain::<abi::record_head>(bytes) else { return };
        match u32::from(head.kind) {
            abi::RECORD_TASK => self.learn(bytes),
            abi::RECORD_CGROUP => {
                if let Some(record) = plain::<abi::record_cgroup>(bytes) {
                    self.cgroups.learn(record.id, text(&record.path));
                }
            }
            kind => {
                let record = Record::read(kind, bytes);
                self.waiting.extend(record.map(|record| Waiting { at: head.at, record }));
            }
        }
    }

    fn learn(&mut self, bytes: &[u8]) {
        let Some(record) = plain::<abi::record_task>(bytes) else { return };
        let abi::record_task { head, tgid, prio, comm } = record;
        let name = TaskName { pid: head.task, tgid, comm: text(&comm), prio };
        if let Some(id) = self.ids.get(&head.task) {
            self.names.set_task(*id, name.clone());
        }
        self.known.insert(head.task, (head.at, name));
    }

    /// Passes on the records of times before `until`, CLOCK_MONOTONIC in ns.
    pub fn release(&mut self, until: u64) {
        // The sort is stable, and fast because most records are in order.
        self.waiting.sort_by_key(|waiting| waiting.at);
        let due = self.waiting.partition_point(|waiting| waiting.at < until);
        let later = self.waiting.split_off(due);
        for Waiting { at, record } in std::mem::replace(&mut self.waiting, later) {
            if (self.from..=self.until).contains(&at) {
                self.convert(&record, at - self.from);
            }
        }
    }

    /// Takes the counters of each CPU, and passes on how many more events are lost.
    pub fn count(&mut self, counts: &[abi::record_counts]) {
        for (cpu, now) in counts.iter().enumerate().take(self.nr_cpus) {
            let before = std::mem::replace(&mut self.counts[cpu], *now);
            let lost = now.lost - before.lost;
            if lost > 0 {
                self.emit(CpuId(cpu as u32), 0, EventKind::Lost { events: lost });
            }
            self.totals.lost += lost;
            self.totals.unread += now.unread - before.unread;
        }
    }

    /// Passes on that the recorder's programs missed so many events, of any CPU.
    pub fn miss(&mut self, events: u64) {
        if events > 0 {
            self.emit(CpuId(0), 0, EventKind::Lost { events });
        }
    }

    pub fn totals(self) -> Totals {
        self.totals
    }

    fn convert(&mut self, record: &Record, time: Nanos) {
        match record {
            Record::Event(record) => self.event(time, record),
            Record::Call(record) => self.call(time, record),
            Record::Attributes(record) => self.attributes(time, record),
        }
    }

    fn event(&mut self, time: Nanos, record: &abi::record_event) {
        let cpu = CpuId(u32::from(record.head.cpu));
        let abi::record_event { head, arg: [first, second] } = *record;
        let kind = match u32::from(head.kind) {
            abi::RECORD_SWITCH => return self.switch(cpu, time, (head, first), second),
            abi::RECORD_FORK => {
                self.forget(head.task);
                let (parent, child) = (self.id(first), self.id(head.task));
                child.map(|child| EventKind::Fork { parent, child })
            }
            abi::RECORD_WAKEUP => {
                let (waker, target) = (self.id(first), CpuId(second));
                self.id(head.task).map(|task| EventKind::Wakeup { task, target, waker })
            }
            abi::RECORD_MIGRATE => {
                let (from, to) = (CpuId(first), CpuId(second));
                self.id(head.task).map(|task| EventKind::Migrate { task, from, to })
            }
            _ => None,
        };
        if let Some(kind) = kind {
            self.emit(cpu, time, kind);
        }
    }

    fn switch(&mut self, cpu: CpuId, time: Nanos, (head, to): (abi::record_head, u32), state: u32) {
        let (prev, next) = (self.id(head.task), self.id(to));
        let prev_state = match state {
            abi::STATE_SLEEPING => PrevState::Sleeping,
            abi::STATE_UNINTERRUPTIBLE => PrevState::Uninterruptible,
            abi::STATE_DEAD => PrevState::Exited,
            _ => PrevState::Runnable,
        };
        if let Some(task) = prev.filter(|_| prev_state == PrevState::Exited) {
            self.emit(cpu, time, EventKind::Exit { task });
        }
        self.emit(cpu, time, EventKind::Switch { prev, next, prev_state });
        if prev_state == PrevState::Exited {
            self.forget(head.task);
            if self.known.get(&head.task).is_some_and(|(at, _)| *at <= head.at) {
                self.known.remove(&head.task);
            }
        }
    }

    fn call(&mut self, time: Nanos, record: &abi::record_call) {
        let cpu = CpuId(u32::from(record.head.cpu));
        let Some(task) = self.id(record.head.task) else { return };
        let Some(call) = call_of(record, self.from) else { return };
        self.totals.calls += 1;
        self.emit(cpu, time, EventKind::Call { task, call });
    }

    fn attributes(&mut self, time: Nanos, record: &abi::record_attributes) {
        let cpu = CpuId(u32::from(record.head.cpu));
        let Some(task) = self.id(record.head.task) else { return };
        let path = self.cgroups.path(record.cgroup);
        for (group, limits) in self.cgroups.limits(&path) {
            self.names.set_cgroup(&group, limits);
        }
        let attributes = TaskAttributes {
            policy: policy_of(record),
            nice: record.nice.clamp(-20, 19) as i8,
            slice: record.slice,
            cpus: cpu_list(&record.cpus, self.nr_cpus),
            cgroup: path,
            kthread: record.is_kthread != 0,
        };
        self.names.set_attributes(task, attributes);
        self.totals.members += u64::from(self.members.insert(task));
        self.emit(cpu, time, EventKind::Attributes { task });
    }

    fn emit(&mut self, cpu: CpuId, time: Nanos, kind: EventKind) {
        let Some(last) = self.last.get_mut(cpu.idx()) else { return };
        *last = time.max(*last);
        self.totals.events += 1;
        self.sink.event(&Event { time: *last, cpu, kind }, &self.names);
    }

    /// Returns the id of a living task; None for pid 0, the idle task.
    fn id(&mut self, pid: u32) -> Option<TaskId> {
        if pid == 0 {
            return None;
        }
        if let Some(id) = self.ids.get(&pid) {
            return Some(*id);
        }
        let id = self.free.pop().unwrap_or(TaskId(self.ids.len() as u32));
        self.ids.insert(pid, id);
        // The name of a task is missing only if its record was lost.
        let unnamed = || TaskName { pid, tgid: pid, comm: format!("pid {pid}"), prio: 120 };
        let name = self.known.get(&pid).map_or_else(unnamed, |(_, name)| name.clone());
        self.names.set_task(id, name);
        Some(id)
    }

    /// Ends the use of a pid by a task.
    fn forget(&mut self, pid: u32) {
        if let Some(id) = self.ids.remove(&pid) {
            self.members.remove(&id);
            self.free.push(id);
        }
    }
}

fn call_of(record: &abi::record_call, from: u64) -> Option<Call> {
    let abi::record_call { object, value, .. } = *record;
    let timeout = (record.has_value != 0).then_some(value);
    Some(match u32::from(record.call) {
        abi::CALL_FUTEX_WAIT => Call::FutexWait { object, timeout },
        abi::CALL_FUTEX_WAKE => {
            Call::FutexWake { object, most: u32::try_from(value).unwrap_or(u32::MAX) }
        }
        abi::CALL_WRITE => Call::Write { object, kind: channel_of(record)?, bytes: value },
        abi::CALL_READ => Call::Read { object, kind: channel_of(record)?, bytes: value },
        abi::CALL_POLL => Call::Poll { timeout },
        abi::CALL_SLEEP_FOR => Call::SleepFor { length: value },
        abi::CALL_SLEEP_UNTIL => Call::SleepUntil { at: value.saturating_sub(from) },
        abi::CALL_IO => Call::Io { bytes: value },
        abi::CALL_EXEC => Call::Exec,
        abi::CALL_YIELD => Call::Yield,
        abi::CALL_JOIN => Call::Join,
        abi::CALL_COUNT => Call::Count { units: value },
        _ => return None,
    })
}

fn channel_of(record: &abi::record_call) -> Option<ChannelKind> {
    match u32::from(record.channel) {
        abi::CHANNEL_PIPE => Some(ChannelKind::Pipe),
        abi::CHANNEL_SOCKET => Some(ChannelKind::Socket),
        abi::CHANNEL_EVENTFD => Some(ChannelKind::EventFd),
        abi::CHANNEL_OUTSIDE => Some(ChannelKind::Outside),
        _ => None,
    }
}

/// Returns the policy, which has the numbers of `sched_setscheduler(2)`.
fn policy_of(record: &abi::record_attributes) -> TaskPolicy {
    let abi::record_attributes { runtime, deadline, period, .. } = *record;
    let priority = u8::try_from(record.rt_priority).unwrap_or(99);
    match record.policy {
        1 => TaskPolicy::Fifo(priority),
        2 => TaskPolicy::RoundRobin(priority),
        3 => TaskPolicy::Batch,
        5 => TaskPolicy::Idle,
        6 => TaskPolicy::Deadline { runtime, deadline, period },
        7 => TaskPolicy::Ext,
        _ => TaskPolicy::Normal,
    }
}

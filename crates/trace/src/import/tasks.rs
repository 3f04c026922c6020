// SPDX-License-Identifier: GPL-2.0-only
//! Tasks instead of thread ids: the events of a file in order of time become those of the schema.
//!
//! Owns: which thread id is which task at a time, the names of tasks, the task that runs on each
//! CPU.
//! Does not: order events (see `merge.rs`).
//!
//! ```text
//! thread id   --(first event, Fork, Start)-->  task  --(switch away when dead, Free)-->  no task
//!                                                    --(Fork of the same id)--------->   another task
//! ```
//! A task that has ended (`Exit`) still runs until the kernel switches away from it.

use std::collections::BTreeMap;
use std::sync::Arc;

use scxlab_machine::hash::splitmix_finalize;
use scxlab_machine::{CpuId, Nanos, TaskId};

use super::raw::{Raw, RawKind, Who};
use crate::call::Call;
use crate::event::{Event, EventKind, PrevState};
use crate::names::{Names, TaskName};

/// The kernel's priority of nice 0.
const DEFAULT_PRIO: i32 = 120;

#[derive(Default)]
pub struct Tasks {
    names: Names,
    by_tid: BTreeMap<u32, TaskId>,
    /// State of each task, indexed by its id.
    tasks: Vec<Task>,
    /// Facts from lists of processes about thread ids without a task.
    facts: BTreeMap<u32, Fact>,
    /// Task that runs on each CPU, the inner None for the idle task; None if it is not known.
    running: Vec<Option<Option<TaskId>>>,
    pub faults: Faults,
}

/// What does not fit together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Number of switches away from a task that did not run on the CPU by the switch before.
    pub gaps: u64,
    /// Number of switches whose previous task the file does not tell.
    pub without_prev: u64,
    /// Number of tasks whose thread id got another task before the file told that they ended.
    pub replaced: u64,
    /// Number of calls whose task is not known.
    pub unplaced: u64,
}

struct Task {
    comm: Option<Arc<str>>,
    prio: Option<i32>,
    tgid: Option<u32>,
    tid: u32,
    /// The kinds of events that told the task's begin, as a set of bits; 0 once another event was
    /// about the task.
    fresh: u8,
    exited: bool,
    /// Whether `Waking` was the last wake-up, for which `Wakeup` may follow.
    waking: bool,
}

/// Bits of `Task::fresh`.
const BY_NEW_TASK: u8 = 1;
const BY_FORK: u8 = 2;
/// Not a fork: only the task's attributes have been told, which may come before its fork.
const BY_ATTRIBUTES: u8 = 4;

#[derive(Clone, Debug, Default)]
struct Fact {
    tgid: Option<u32>,
    comm: Option<Arc<str>>,
}

impl Tasks {
    /// Returns the number of tasks so far.
    pub fn count(&self) -> usize {
        self.tasks.len()
    }

    /// Returns the number of tasks whose process is not known.
    pub fn without_process(&self) -> usize {
        self.tasks.iter().filter(|task| task.tgid.is_none()).count()
    }

    /// Takes what a list of processes tells about a thread.
    pub fn describe(&mut self, tid: u32, tgid: Option<u32>, comm: Option<Arc<str>>) {
        let fact = Fact { tgid, comm };
        let known = self.by_tid.get(&tid).map(|task| (*task, self.tasks[task.idx()].tgid));
        match known {
            // The fact is about a later task with the same id, whose fork is still to come.
            Some((_, Some(known))) if tgid.is_some_and(|tgid| tgid != known) => {
                self.facts.insert(tid, fact);
            }
            Some((task, known)) => {
                let state = &mut self.tasks[task.idx()];
                state.tgid = known.or(fact.tgid);
                state.comm = state.comm.take().or(fact.comm);
                self.name(task);
            }
            None => {
                self.facts.insert(tid, fact);
            }
        }
    }

    /// Passes the events of the schema to `emit` that an event of the file stands for.
    pub fn translate(&mut self, raw: Raw, emit: &mut impl FnMut(Event, &Names)) {
        let Raw { time, cpu, running, interrupt, kind, .. } = raw;
        let at = Place { time, cpu: CpuId(cpu) };
        match kind {
            RawKind::Switch { prev, state, next } => self.switch(at, prev, state, &next, emit),
            RawKind::Waking { task, target } | RawKind::WakeupNew { task, target } => {
                let waker = self.waker(at, running, interrupt);
                self.wakeup(at, &task, target, waker, emit);
            }
            RawKind::Wakeup { task: who, target } => {
                let Some(task) = self.task(&who) else { return };
                if !std::mem::take(&mut self.tasks[task.idx()].waking) {
                    let waker = self.waker(at, running, interrupt);
                    self.wakeup(at, &who, target, waker, emit);
                    self.tasks[task.idx()].waking = false;
                }
            }
            RawKind::Migrate { task, from, to } => {
                if let Some(task) = self.task(&task) {
                    let (from, to) = (CpuId(from), CpuId(to));
                    emit(at.event(EventKind::Migrate { task, from, to }), &self.names);
                }
            }
            RawKind::NewTask { child, thread } => {
                let parent = self.current(at, running);
                self.fork(at, parent, &child, (BY_NEW_TASK, thread), emit);
            }
            RawKind::Fork { parent, child } => {
                let parent = self.of_tid(parent);
                self.fork(at, parent, &child, (BY_FORK, None), emit);
            }
            RawKind::Start { tid } => {
                if let Some(child) = self.of_tid(tid) {
                    emit(at.event(EventKind::Fork { parent: None, child }), &self.names);
                }
            }
            RawKind::Exit { task } => {
                if let Some(task) = self.task(&task) {
                    self.exit(at, task, emit);
                }
            }
            RawKind::Free { tid } => {
                if let Some(task) = self.by_tid.remove(&tid) {
                    self.exit(at, task, emit);
                }
            }
            RawKind::Exec { tid, old } => self.exec(at, tid, old, emit),
            RawKind::Rename { task } => {
                self.task(&task);
            }
            RawKind::CpuOnline { cpu, online } => {
                let at = Place { cpu: CpuId(cpu), ..at };
                emit(at.event(EventKind::CpuOnline { online }), &self.names);
            }
            RawKind::Call(call) => match self.current(at, running) {
                Some(task) => emit(at.event(EventKind::Call { task, call }), &self.names),
                None => self.faults.unplaced += 1,
            },
            RawKind::Private(call) => match self.current(at, running) {
                Some(task) => {
                    let Task { tgid, tid, .. } = self.tasks[task.idx()];
                    let call = of_process(call, tgid.unwrap_or(tid));
                    emit(at.event(EventKind::Call { task, call }), &self.names);
                }
                None => self.faults.unplaced += 1,
            },
            RawKind::Attributes(attributes) => {
                let (tid, attributes) = *attributes;
                if tid != 0 {
                    let known = self.by_tid.get(&tid).copied();
                    let task = known.unwrap_or_else(|| self.create(tid, BY_ATTRIBUTES));
                    self.names.set_attributes(task, attributes);
                    emit(at.event(EventKind::Attributes { task }), &self.names);
                }
            }
            RawKind::Cgroup(group) => self.names.set_cgroup(&group.0, group.1),
            RawKind::Lost { events } => {
                *self.running_on(at.cpu) = None;
                emit(at.event(EventKind::Lost { events }), &self.names);
            }
        }
    }

    fn switch(
        &mut self,
        at: Place,
        prev: Option<Who>,
        state: PrevState,
        next: &Who,
        emit: &mut impl FnMut(Event, &Names),
    ) {
        let ran = *self.running_on(at.cpu);
        let prev = match prev {
            Some(who) => {
                let prev = self.task(&who);
                self.faults.gaps += u64::from(ran.is_some_and(|ran| ran != prev));
                prev
            }
            None => {
                self.faults.without_prev += u64::from(ran.is_none());
                ran.flatten()
            }
        };
        let next = self.task(next);
        if let Some(next) = next {
            self.tasks[next.idx()].waking = false;
        }
        *self.running_on(at.cpu) = Some(next);
        let prev_state = if prev.is_some() { state } else { PrevState::Runnable };
        let dead = prev.filter(|_| prev_state == PrevState::Exited);
        if let Some(dead) = dead {
            self.exit(at, dead, emit);
        }
        emit(at.event(EventKind::Switch { prev, next, prev_state }), &self.names);
        if let Some(dead) = dead {
            self.forget(dead);
        }
    }

    fn wakeup(
        &mut self,
        at: Place,
        who: &Who,
        target: u32,
        waker: Option<TaskId>,
        emit: &mut impl FnMut(Event, &Names),
    ) {
        let Some(task) = self.task(who) else { return };
        self.tasks[task.idx()].waking = true;
        let kind = EventKind::Wakeup { task, target: CpuId(target), waker };
        emit(at.event(kind), &self.names);
    }

    fn waker(
        &mut self,
        at: Place,
        running: Option<u32>,
        interrupt: Option<bool>,
    ) -> Option<TaskId> {
        if interrupt == Some(true) { None } else { self.current(at, running) }
    }

    fn fork(
        &mut self,
        at: Place,
        parent: Option<TaskId>,
        who: &Who,
        (by, thread): (u8, Option<bool>),
        emit: &mut impl FnMut(Event, &Names),
    ) {
        if who.tid == 0 {
            return;
        }
        // A file may tell a fork twice, by `task_newtask` and `sched_process_fork`, and attributes
        // before it.
        let known = self.by_tid.get(&who.tid).copied();
        let fresh = |task: &TaskId| self.tasks[task.idx()].fresh;
        let again = known.filter(|task| fresh(task) != 0 && fresh(task) & by == 0);
        let told = again.is_some_and(|task| fresh(&task) & (BY_NEW_TASK | BY_FORK) != 0);
        let child = again.unwrap_or_else(|| self.replace(who.tid));
        let of_parent = parent.map(|parent| &self.tasks[parent.idx()]);
        let tgid = match thread {
            Some(true) => of_parent.and_then(|parent| parent.tgid),
            Some(false) => Some(who.tid),
            None => None,
        };
        let prio = of_parent.and_then(|parent| parent.prio);
        let state = &mut self.tasks[child.idx()];
        state.tgid = tgid.or(state.tgid);
        state.prio = state.prio.or(prio);
        self.update(child, who);
        self.name(child);
        self.tasks[child.idx()].fresh |= by;
        if !told {
            emit(at.event(EventKind::Fork { parent, child }), &self.names);
        }
    }

    fn exit(&mut self, at: Place, task: TaskId, emit: &mut impl FnMut(Event, &Names)) {
        if !std::mem::replace(&mut self.tasks[task.idx()].exited, true) {
            emit(at.event(EventKind::Exit { task }), &self.names);
        }
    }

    /// A thread that executes a program takes the thread id of its process's first thread.
    fn exec(&mut self, at: Place, tid: u32, old: u32, emit: &mut impl FnMut(Event, &Names)) {
        let Some(task) = self.of_tid(old).filter(|_| tid != 0) else { return };
        if tid != old {
            self.by_tid.remove(&old);
            self.by_tid.insert(tid, task);
            self.tasks[task.idx()].tid = tid;
            self.name(task);
        }
        emit(at.event(EventKind::Call { task, call: Call::Exec }), &self.names);
    }

    /// Returns the task that runs on a CPU: the one that the event names, or else the one of the
    /// CPU's last switch.
    fn current(&mut self, at: Place, running: Option<u32>) -> Option<TaskId> {
        match running {
            Some(tid) => self.of_tid(tid),
            None => self.running_on(at.cpu).flatten(),
        }
    }

    /// Returns the task of a thread id, which is new if there is none; None for the idle task.
    fn of_tid(&mut self, tid: u32) -> Option<TaskId> {
        if tid == 0 {
            return None;
        }
        let task = self.by_tid.get(&tid).copied().unwrap_or_else(|| self.create(tid, 0));
        self.tasks[task.idx()].fresh = 0;
        Some(task)
    }

    /// As `of_tid`, and updates the task's name.
    fn task(&mut self, who: &Who) -> Option<TaskId> {
        let task = self.of_tid(who.tid)?;
        if self.update(task, who) {
            self.name(task);
        }
        Some(task)
    }

    /// Returns a new task for a thread id, whatever had the id before.
    fn replace(&mut self, tid: u32) -> TaskId {
        if let Some(old) = self.by_tid.remove(&tid) {
            self.faults.replaced += u64::from(!self.tasks[old.idx()].exited);
        }
        self.create(tid, 0)
    }

    fn create(&mut self, tid: u32, fresh: u8) -> TaskId {
        let Fact { tgid, comm } = self.facts.remove(&tid).unwrap_or_default();
        let task = TaskId(self.tasks.len() as u32);
        self.tasks.push(Task { comm, prio: None, tgid, tid, fresh, exited: false, waking: false });
        self.by_tid.insert(tid, task);
        self.name(task);
        task
    }

    fn forget(&mut self, task: TaskId) {
        let tid = self.tasks[task.idx()].tid;
        if self.by_tid.get(&tid) == Some(&task) {
            self.by_tid.remove(&tid);
        }
    }

    /// Stores what an event tells about a task. Returns whether it is new.
    fn update(&mut self, task: TaskId, who: &Who) -> bool {
        let state = &mut self.tasks[task.idx()];
        let renamed = who.comm.is_some() && state.comm != who.comm;
        let reweighed = who.prio.is_some() && state.prio != who.prio;
        if renamed {
            state.comm.clone_from(&who.comm);
        }
        if reweighed {
            state.prio = who.prio;
        }
        renamed || reweighed
    }

    fn name(&mut self, task: TaskId) {
        let Task { comm, prio, tgid, tid, .. } = &self.tasks[task.idx()];
        let name = TaskName {
            pid: *tid,
            tgid: tgid.unwrap_or(*tid),
            // As perf names a task whose name it does not know.
            comm: comm.as_deref().map_or_else(|| format!(":{tid}"), str::to_owned),
            prio: prio.unwrap_or(DEFAULT_PRIO),
        };
        self.names.set_task(task, name);
    }

    fn running_on(&mut self, cpu: CpuId) -> &mut Option<Option<TaskId>> {
        if self.running.len() <= cpu.idx() {
            self.running.resize(cpu.idx() + 1, None);
        }
        &mut self.running[cpu.idx()]
    }
}

/// Replaces the object's number, which counts within a process, by one for the whole recording.
fn of_process(call: Call, process: u32) -> Call {
    let whole = |object| splitmix_finalize(u64::from(process)) ^ object;
    match call {
        Call::FutexWait { object, timeout } => Call::FutexWait { object: whole(object), timeout },
        Call::FutexWake { object, most } => Call::FutexWake { object: whole(object), most },
        other => other,
    }
}

#[derive(Clone, Copy)]
struct Place {
    time: Nanos,
    cpu: CpuId,
}

impl Place {
    fn event(self, kind: EventKind) -> Event {
        Event { time: self.time, cpu: self.cpu, kind }
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! The events of a traced run: as the probe wrote them, and as events of the schema that simulated runs have.
//!
//! Owns: the layout shared with `bpf/live/probe.h`. Does not: make up what tracepoints do not tell: operations, queues,
//! kicks and locks are absent.

use std::collections::BTreeMap;
use std::mem::{offset_of, size_of};

use scxlab_lab::run::{Exit, Traced};
use scxlab_machine::{CpuId, Nanos, TaskId};
use scxlab_trace::{Event, Kind, Names, PrevState, TaskName, Tracer};
use serde::{Deserialize, Serialize};

use crate::exit::kind_number;
use crate::probe::{Plain, plain, text};

/// `enum trace_kind`
const SWITCH: u32 = 0;
const WAKEUP: u32 = 1;
const MIGRATE: u32 = 2;
const FORK: u32 = 3;
/// `enum trace_state`
const SLEEPING: u32 = 1;
const DEAD: u32 = 2;

/// `struct trace_task`
#[repr(C)]
#[derive(Clone, Copy)]
struct Task {
    pid: u32,
    tgid: u32,
    prio: i32,
    comm: [u8; 16],
}

/// `struct trace_record`
#[repr(C)]
#[derive(Clone, Copy)]
struct Record {
    at: u64,
    cpu: u32,
    kind: u32,
    task: Task,
    other: Task,
    arg: [u32; 2],
}

// SAFETY: integers that leave no gaps, as asserted below.
unsafe impl Plain for Record {}

const _: () = assert!(size_of::<Record>() == 80 && offset_of!(Record, arg) == 72);

/// The events of one run. The records travel beside the rest.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Recording {
    /// Index of the scheduler in the request; the run is its first.
    pub scheduler: usize,
    /// What is measured, CLOCK_MONOTONIC: events outside are not part of the trace.
    pub from: u64,
    pub until: u64,
    /// Of each CPU, events that found no room.
    pub lost: Vec<u64>,
    /// Bytes of the records.
    pub len: usize,
    #[serde(skip)]
    pub records: Vec<u8>,
}

impl Recording {
    /// How much of the run is in it.
    pub fn counts(&self) -> Traced {
        Traced { events: self.records().len() as u64, lost: self.lost.iter().sum() }
    }

    /// Gives the events to a tracer, in order of time, which is 0 at the start of what is measured.
    pub fn replay(&self, exit: &Exit, tracer: &mut Tracer) {
        let mut exit = Some(exit).filter(|exit| exit.kind != Exit::NONE);
        let mut tasks = BTreeMap::new();
        let mut now = 0;
        for record in self.records() {
            now = record.at - self.from;
            if let Some(exit) = exit.take_if(|exit| exit.at_ns.is_some_and(|at| at <= now)) {
                emit_exit(exit, now, tracer);
            }
            emit(&record, now, &mut tasks, tracer);
        }
        for (cpu, &events) in self.lost.iter().enumerate().filter(|(_, events)| **events > 0) {
            let cpu = CpuId(cpu as u32);
            tracer.emit(Event { time: now, cpu, kind: Kind::Lost { events } });
        }
        if let Some(exit) = exit {
            emit_exit(exit, exit.at_ns.unwrap_or(now).max(now), tracer);
        }
    }

    /// Those that are measured, in order of time: CPUs meet at the ring in any order.
    fn records(&self) -> Vec<Record> {
        let all = self.records.chunks_exact(size_of::<Record>()).filter_map(plain::<Record>);
        let mut all: Vec<Record> =
            all.filter(|r| (self.from..=self.until).contains(&r.at)).collect();
        all.sort_by_key(|r| r.at);
        all
    }
}

fn emit_exit(exit: &Exit, time: Nanos, tracer: &mut Tracer) {
    let kind = Kind::SchedExit { kind: kind_number(&exit.kind), code: exit.code };
    tracer.emit_with_text(Event { time, cpu: CpuId(0), kind }, &exit.message);
}

fn emit(r: &Record, time: Nanos, tasks: &mut BTreeMap<u32, TaskId>, tracer: &mut Tracer) {
    let cpu = CpuId(r.cpu);
    let task = know(&r.task, tasks, &mut tracer.names);
    let other = know(&r.other, tasks, &mut tracer.names);
    let kind = match (r.kind, task) {
        (SWITCH, _) => {
            if let Some(task) = task.filter(|_| r.arg[0] == DEAD) {
                tracer.emit(Event { time, cpu, kind: Kind::Exit { task } });
            }
            let prev_state = match r.arg[0] {
                SLEEPING => PrevState::Sleeping,
                DEAD => PrevState::Exited,
                _ => PrevState::Runnable,
            };
            Kind::Switch { prev: task, next: other, prev_state }
        }
        (WAKEUP, Some(task)) => Kind::Wakeup { task, target: CpuId(r.arg[0]), waker: other },
        (MIGRATE, Some(task)) => Kind::Migrate { task, from: CpuId(r.arg[0]), to: CpuId(r.arg[1]) },
        (FORK, Some(child)) => Kind::Fork { parent: other, child },
        _ => return,
    };
    tracer.emit(Event { time, cpu, kind });
}

/// The task with this pid, under the name that it has now; none for pid 0.
fn know(task: &Task, tasks: &mut BTreeMap<u32, TaskId>, names: &mut Names) -> Option<TaskId> {
    if task.pid == 0 {
        return None;
    }
    let next = TaskId(tasks.len() as u32);
    let id = *tasks.entry(task.pid).or_insert(next);
    let Task { pid, tgid, prio, comm } = *task;
    let name = TaskName { pid, tgid, comm: text(&comm), prio };
    if names.task(id) != Some(&name) {
        names.set_task(id, name);
    }
    Some(id)
}

#[cfg(test)]
mod tests;

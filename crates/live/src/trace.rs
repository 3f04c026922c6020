// SPDX-License-Identifier: GPL-2.0-only
//! The events of a traced run: as records of the probe, and as events of the trace schema.
//!
//! Owns: the meaning of the probe's records (`abi.rs` has their layout). Does not: invent events
//! that tracepoints do not report; operations, DSQs, kicks and locks are absent.

use std::collections::BTreeMap;

use scxlab_lab::run::{Exit, TraceCounts};
use scxlab_machine::{CpuId, Nanos, TaskId};
use scxlab_trace::{Event, EventKind, Names, PrevState, TaskName, Tracer};
use serde::{Deserialize, Serialize};

use crate::abi::{
    TRACE_DEAD as DEAD, TRACE_FORK as FORK, TRACE_MIGRATE as MIGRATE, TRACE_SLEEPING as SLEEPING,
    TRACE_SWITCH as SWITCH, TRACE_WAKEUP as WAKEUP, plain, trace_record as Record,
    trace_task as Task,
};
use crate::exit::kind_number;
use crate::probe::text;

/// The recorded events of one run. `records` is transported separately from the other fields.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Recording {
    /// Index of the scheduler in the request (`Job`). Only the scheduler's first run is recorded.
    pub scheduler: usize,
    /// Measured period, on CLOCK_MONOTONIC in ns. Events outside it are not part of the trace.
    pub from: u64,
    pub until: u64,
    /// Number of events per CPU for which the ring had no room; indexed by CPU.
    pub lost: Vec<u64>,
    /// Size of `records` in bytes.
    pub len: usize,
    #[serde(skip)]
    pub records: Vec<u8>,
}

impl Recording {
    /// Returns the numbers of recorded and lost events.
    pub fn counts(&self) -> TraceCounts {
        TraceCounts { events: self.records().len() as u64, lost: self.lost.iter().sum() }
    }

    /// Passes the events to a tracer in order of time. Time 0 is the start of the measured period.
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
            tracer.emit(Event { time: now, cpu, kind: EventKind::Lost { events } });
        }
        if let Some(exit) = exit {
            emit_exit(exit, exit.at_ns.unwrap_or(now).max(now), tracer);
        }
    }

    /// Returns the records of the measured period in order of time. The ring mixes the CPUs'
    /// records in any order.
    fn records(&self) -> Vec<Record> {
        let all = self.records.chunks_exact(size_of::<Record>()).filter_map(plain::<Record>);
        let mut all: Vec<Record> =
            all.filter(|r| (self.from..=self.until).contains(&r.at)).collect();
        all.sort_by_key(|r| r.at);
        all
    }
}

fn emit_exit(exit: &Exit, time: Nanos, tracer: &mut Tracer) {
    let kind = EventKind::SchedExit { kind: kind_number(&exit.kind), code: exit.code };
    tracer.emit_with_text(Event { time, cpu: CpuId(0), kind }, &exit.message);
}

fn emit(r: &Record, time: Nanos, tasks: &mut BTreeMap<u32, TaskId>, tracer: &mut Tracer) {
    let cpu = CpuId(r.cpu);
    let task = task_id(&r.task, tasks, &mut tracer.names);
    let other = task_id(&r.other, tasks, &mut tracer.names);
    let kind = match (r.kind, task) {
        (SWITCH, _) => {
            if let Some(task) = task.filter(|_| r.arg[0] == DEAD) {
                tracer.emit(Event { time, cpu, kind: EventKind::Exit { task } });
            }
            let prev_state = match r.arg[0] {
                SLEEPING => PrevState::Sleeping,
                DEAD => PrevState::Exited,
                _ => PrevState::Runnable,
            };
            EventKind::Switch { prev: task, next: other, prev_state }
        }
        (WAKEUP, Some(task)) => EventKind::Wakeup { task, target: CpuId(r.arg[0]), waker: other },
        (MIGRATE, Some(task)) => {
            EventKind::Migrate { task, from: CpuId(r.arg[0]), to: CpuId(r.arg[1]) }
        }
        (FORK, Some(child)) => EventKind::Fork { parent: other, child },
        _ => return,
    };
    tracer.emit(Event { time, cpu, kind });
}

/// Returns the id of a task by its pid, and updates its name; None for pid 0, the idle task.
fn task_id(task: &Task, tasks: &mut BTreeMap<u32, TaskId>, names: &mut Names) -> Option<TaskId> {
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

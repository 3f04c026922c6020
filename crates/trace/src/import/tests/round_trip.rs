// SPDX-License-Identifier: GPL-2.0-only
//! A run's Perfetto file gives back the run's events, in order and with their names.

use proptest::prelude::*;
use scxlab_machine::{CpuId, Machine, Nanos};

use super::*;
use crate::call::Call;
use crate::event::PrevState;
use crate::names::{CgroupAttributes, TaskPolicy};
use crate::perfetto::PerfettoSink;
use crate::sink::Tee;
use crate::tracer::Tracer;

const NR_CPUS: u32 = 4;
/// Number of slots of tasks, which later tasks reuse.
const SLOTS: u32 = 5;

/// One step of a run: the kind, two numbers that choose CPUs and tasks, and the time since the step
/// before.
type Step = (u8, u32, u32, u64);

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let delta = prop_oneof![3 => Just(0u64), 2 => 1u64..4, 1 => 1000u64..2000];
    prop::collection::vec((0u8..12, 0u32..64, 0u32..64, delta), 0..300)
}

fn machine() -> Machine {
    Machine::from_spec("2n2c1t").unwrap()
}

/// A run of random events that fit together.
struct Run {
    tracer: Tracer,
    time: Nanos,
    /// Whether each slot has a task.
    alive: [bool; SLOTS as usize],
    running: [Option<TaskId>; NR_CPUS as usize],
    next_pid: u32,
}

impl Run {
    fn new() -> Run {
        let file = PerfettoSink::new(Vec::new(), &machine());
        let tracer = Tracer::with_sink(Tee(vec![Box::new(file), Box::new(Reader::default())]));
        let (alive, running) = Default::default();
        Run { tracer, time: 1000, alive, running, next_pid: 100 }
    }

    fn emit(&mut self, cpu: u32, kind: EventKind) {
        self.tracer.note(Event { time: self.time, cpu: CpuId(cpu), kind });
    }

    /// Chooses one of the tasks that live.
    fn pick(&self, number: u32) -> Option<TaskId> {
        let alive: Vec<u32> = (0..SLOTS).filter(|slot| self.alive[*slot as usize]).collect();
        let index = number as usize % alive.len().max(1);
        alive.get(index).map(|slot| TaskId(*slot))
    }

    fn idle(&self, number: u32) -> Option<TaskId> {
        self.pick(number).filter(|task| !self.running.contains(&Some(*task)))
    }

    fn step(&mut self, (kind, a, b, delta): Step) {
        self.time += delta;
        let cpu = a % NR_CPUS;
        let on = cpu as usize;
        match kind {
            0 | 1 => self.fork(cpu, b),
            2..=4 => {
                let (prev, next) = (self.running[on], self.idle(b));
                let prev_state = match b % 3 {
                    _ if prev.is_none() => PrevState::Runnable,
                    0 => PrevState::Runnable,
                    1 => PrevState::Sleeping,
                    _ => PrevState::Uninterruptible,
                };
                if prev != next {
                    next.into_iter().for_each(|next| self.rename(next, b));
                    self.running[on] = next;
                    self.emit(cpu, EventKind::Switch { prev, next, prev_state });
                }
            }
            5 => {
                let waker = self.running[on].filter(|_| b % 4 != 0);
                if let Some(task) = self.idle(b) {
                    self.rename(task, a);
                    let target = CpuId(b % NR_CPUS);
                    self.emit(cpu, EventKind::Wakeup { task, target, waker });
                }
            }
            6 => {
                if let Some(task) = self.idle(b) {
                    let (from, to) = (CpuId(a % NR_CPUS), CpuId(b % NR_CPUS));
                    self.emit(cpu, EventKind::Migrate { task, from, to });
                }
            }
            7 => self.end(cpu),
            8 => {
                if let Some(task) = self.running[on] {
                    let call = Call::SleepUntil { at: self.time + u64::from(b) };
                    self.emit(cpu, EventKind::Call { task, call });
                }
            }
            9 => self.set_attributes(cpu, b),
            10 => self.emit(cpu, EventKind::CpuOnline { online: b % 2 == 0 }),
            _ => self.emit(cpu, EventKind::Lost { events: u64::from(b) }),
        }
    }

    fn fork(&mut self, cpu: u32, number: u32) {
        let free = (0..SLOTS).find(|slot| !self.alive[*slot as usize]);
        let Some(slot) = free else { return };
        let child = TaskId(slot);
        let parent = self.running[cpu as usize];
        let of_parent = parent.and_then(|parent| self.tracer.names.task(parent)).cloned();
        let pid = self.next_pid;
        let tgid =
            of_parent.as_ref().filter(|_| number.is_multiple_of(2)).map_or(pid, |name| name.tgid);
        let prio = of_parent.map_or(120, |name| name.prio);
        let comm = format!("task{number}");
        self.tracer.names.set_task(child, TaskName { pid, tgid, comm, prio });
        self.next_pid += 1;
        self.alive[slot as usize] = true;
        if number.is_multiple_of(3) {
            self.set_attributes_of(cpu, child, number);
        }
        self.emit(cpu, EventKind::Fork { parent, child });
    }

    fn rename(&mut self, task: TaskId, number: u32) {
        let mut name = self.tracer.names.task(task).unwrap().clone();
        if number.is_multiple_of(3) {
            name.comm = format!("renamed {number}");
            name.prio = 100 + (number % 40).cast_signed();
            self.tracer.names.set_task(task, name);
        }
    }

    fn end(&mut self, cpu: u32) {
        let Some(task) = self.running[cpu as usize].take() else { return };
        self.emit(cpu, EventKind::Exit { task });
        let prev_state = PrevState::Exited;
        self.emit(cpu, EventKind::Switch { prev: Some(task), next: None, prev_state });
        self.alive[task.idx()] = false;
    }

    fn set_attributes(&mut self, cpu: u32, number: u32) {
        if let Some(task) = self.pick(number) {
            self.set_attributes_of(cpu, task, number);
        }
    }

    fn set_attributes_of(&mut self, cpu: u32, task: TaskId, number: u32) {
        let path = format!("/g{}", number % 3);
        let weight = 1 + number;
        let limits =
            CgroupAttributes { weight, quota: Some(5), period: 100, idle: false, cpus: None };
        self.tracer.names.set_cgroup(&path, limits);
        let attributes = TaskAttributes {
            policy: TaskPolicy::Batch,
            nice: -(number as i8 % 20),
            slice: u64::from(number),
            cpus: Some("0-2".to_owned()),
            cgroup: path,
            kthread: number.is_multiple_of(5),
        };
        self.tracer.names.set_attributes(task, attributes);
        self.emit(cpu, EventKind::Attributes { task });
    }

    /// Returns the file, and what a reader of the run sees.
    fn finish(mut self) -> (Vec<u8>, Vec<Seen>) {
        self.tracer.finish().unwrap();
        let Tee(sinks) = self.tracer.take_sink::<Tee>().unwrap();
        let [file, reader]: [Box<dyn std::any::Any>; 2] = sinks
            .into_iter()
            .map(|sink| sink as Box<dyn std::any::Any>)
            .collect::<Vec<_>>()
            .try_into()
            .unwrap();
        let file = file.downcast::<PerfettoSink<Vec<u8>>>().unwrap().into_inner();
        (file, reader.downcast::<Reader>().unwrap().0)
    }
}

/// Moves the events to time 0, as an import does.
fn from_zero(mut events: Vec<Seen>) -> Vec<Seen> {
    let start = events.first().map_or(0, |seen| seen.event.time);
    for Seen { event, .. } in &mut events {
        event.time -= start;
        if let EventKind::Call { call: Call::SleepUntil { at }, .. } = &mut event.kind {
            *at -= start;
        }
    }
    events
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn a_run_comes_back(steps in steps()) {
        let mut run = Run::new();
        steps.into_iter().for_each(|step| run.step(step));
        let (file, expected) = run.finish();
        let expected = from_zero(expected);
        let (imported, facts) = read(&file);
        for (at, (got, expected)) in imported.iter().zip(&expected).enumerate() {
            prop_assert_eq!(got, expected, "event {}", at);
        }
        prop_assert_eq!(imported.len(), expected.len());
        prop_assert_eq!(facts.events.all(), expected.len() as u64);
        prop_assert_eq!(facts.unknown.count, 0);
        prop_assert_eq!(facts.end, End::Whole);
        let text = facts.machine.unwrap();
        prop_assert_eq!(Machine::from_toml("trace", &text).unwrap(), machine());
        prop_assert_eq!(facts.tasks_faults.replaced, 0);
        prop_assert_eq!(facts.order, Default::default());
    }
}

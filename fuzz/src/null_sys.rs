// SPDX-License-Identifier: GPL-2.0-only
//! A kernel without scheduling: every task that is awake takes its next step in turn.
//!
//! Owns: the contract of `Sys` as far as a workload relies on it (remembered wake-ups, stopped
//! spins).
//! Does not: share CPUs, or run for long: the number of steps is bounded.

use std::collections::{BTreeMap, VecDeque};

use scxlab_kernel::behavior::{Behavior, CgroupSpec, Policy, Sys, SysError, TaskSpec, TaskStep};
use scxlab_machine::cpumask::CpuMask;
use scxlab_machine::id::{CgroupId, CpuId, Nanos, TaskId};

const MAX_STEPS: u32 = 5_000;
const MAX_TASKS: usize = 512;
const MAX_CGROUPS: u32 = 512;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Ready,
    Asleep,
    Spinning,
    Dead,
}

struct Task {
    state: State,
    /// Whether a wake-up (`wake`) or the end of a spin (`stop`) came before the task slept or spun.
    wake: bool,
    stop: bool,
    /// Distinguishes the timer of this sleep from that of an earlier sleep.
    generation: u32,
}

enum Alarm {
    Sleep(TaskId, u32),
    Token(u64),
}

pub struct NullSys {
    nr_cpus: u32,
    now: Nanos,
    tasks: Vec<Task>,
    ready: VecDeque<TaskId>,
    alarms: BTreeMap<(Nanos, u64), Alarm>,
    serial: u64,
    nr_cgroups: u32,
    finished: bool,
}

impl NullSys {
    pub fn new(nr_cpus: u32) -> NullSys {
        NullSys {
            nr_cpus,
            now: 0,
            tasks: Vec::new(),
            ready: VecDeque::new(),
            alarms: BTreeMap::new(),
            serial: 0,
            nr_cgroups: 1,
            finished: false,
        }
    }

    /// Runs a behaviour until it ends, nothing is left to do, or `MAX_STEPS` is reached.
    pub fn run(mut self, behavior: &mut dyn Behavior) {
        behavior.start(&mut self);
        for _ in 0..MAX_STEPS {
            if self.finished {
                return;
            }
            if let Some(task) = self.ready.pop_front() {
                let step = behavior.step(&mut self, task);
                self.take(task, step);
            } else if let Some(((at, _), alarm)) = self.alarms.pop_first() {
                self.now = self.now.max(at);
                match alarm {
                    Alarm::Token(token) => behavior.on_timer(&mut self, token),
                    Alarm::Sleep(task, generation) => self.alarm(task, generation),
                }
            } else {
                break;
            }
        }
        for task in 0..self.tasks.len() as u32 {
            let _text = behavior.waits_for(TaskId(task));
        }
    }

    fn take(&mut self, id: TaskId, step: TaskStep) {
        let task = &mut self.tasks[id.idx()];
        let wake = std::mem::take(&mut task.wake);
        let (state, alarm) = match step {
            TaskStep::Compute { work: time } | TaskStep::ComputeWall { wall: time } => {
                self.now = self.now.saturating_add(time);
                (State::Ready, None)
            }
            TaskStep::Spin if !std::mem::take(&mut task.stop) => (State::Spinning, None),
            TaskStep::Block if !wake => (State::Asleep, None),
            TaskStep::SleepUntil(at) if !wake && at > self.now => (State::Asleep, Some(at)),
            TaskStep::Exit => (State::Dead, None),
            _ => (State::Ready, None),
        };
        task.state = state;
        task.generation += 1;
        let generation = task.generation;
        if state == State::Ready {
            self.ready.push_back(id);
        }
        if let Some(at) = alarm {
            self.post_alarm(at, Alarm::Sleep(id, generation));
        }
    }

    fn alarm(&mut self, id: TaskId, generation: u32) {
        let task = &self.tasks[id.idx()];
        if task.state == State::Asleep && task.generation == generation {
            self.make_ready(id);
        }
    }

    fn make_ready(&mut self, id: TaskId) {
        self.tasks[id.idx()].state = State::Ready;
        self.ready.push_back(id);
    }

    fn post_alarm(&mut self, at: Nanos, alarm: Alarm) {
        self.serial += 1;
        self.alarms.insert((at, self.serial), alarm);
    }

    fn known(&self, task: TaskId) -> Result<(), SysError> {
        let task = self.tasks.get(task.idx()).filter(|task| task.state != State::Dead);
        task.map(|_| ()).ok_or(SysError::NoTask)
    }
}

impl Sys for NullSys {
    fn must_schedule(&self) -> bool {
        false
    }

    fn now(&self) -> Nanos {
        self.now
    }

    fn this_cpu(&self) -> CpuId {
        CpuId(0)
    }

    fn cpu_of(&self, _: TaskId) -> CpuId {
        CpuId(0)
    }

    fn atomic_time(&self, last: Option<CpuId>) -> (CpuId, Nanos) {
        let cpu = self.this_cpu();
        (cpu, if last == Some(cpu) { 1 } else { 10 })
    }

    fn message_time(&self, last: Option<CpuId>, lines: u64, bytes: u64) -> (CpuId, Nanos) {
        let cpu = self.this_cpu();
        (cpu, if last == Some(cpu) { 0 } else { lines.saturating_add(bytes) })
    }

    fn nr_cpus(&self) -> u32 {
        self.nr_cpus
    }

    fn wake(&mut self, id: TaskId, _: bool) -> bool {
        let task = &mut self.tasks[id.idx()];
        if task.state == State::Asleep {
            self.make_ready(id);
            return true;
        }
        task.wake = true;
        false
    }

    fn stop_spin(&mut self, id: TaskId) {
        let task = &mut self.tasks[id.idx()];
        if task.state == State::Spinning {
            self.make_ready(id);
        } else {
            task.stop = true;
        }
    }

    fn fork(&mut self, _: Option<TaskId>, spec: TaskSpec) -> Result<TaskId, SysError> {
        assert!((-20..=19).contains(&spec.nice), "nice {}", spec.nice);
        assert!(spec.cgroup.0 < self.nr_cgroups, "{} does not exist", spec.cgroup);
        if self.tasks.len() >= MAX_TASKS {
            return Err(SysError::NoMemory);
        }
        let id = TaskId(self.tasks.len() as u32);
        self.tasks.push(Task { state: State::Ready, wake: false, stop: false, generation: 0 });
        self.ready.push_back(id);
        Ok(id)
    }

    fn charge(&mut self, cost: Nanos) {
        self.now = self.now.saturating_add(cost);
    }

    fn post(&mut self, at: Nanos, _: CpuId, token: u64) {
        self.post_alarm(at, Alarm::Token(token));
    }

    fn set_affinity(&mut self, task: TaskId, _: &CpuMask) -> Result<(), SysError> {
        self.known(task)
    }

    fn set_nice(&mut self, task: TaskId, nice: i8) -> Result<(), SysError> {
        assert!((-20..=19).contains(&nice), "nice {nice}");
        self.known(task)
    }

    fn set_policy(&mut self, task: TaskId, _: Policy) -> Result<(), SysError> {
        self.known(task)
    }

    fn set_footprint(&mut self, _: TaskId, _: u64) {}

    fn mkdir(&mut self, parent: CgroupId, _: &str, spec: CgroupSpec) -> Result<CgroupId, SysError> {
        assert!(parent.0 < self.nr_cgroups, "{parent} does not exist");
        assert!((1..=10_000).contains(&spec.weight), "weight {}", spec.weight);
        if self.nr_cgroups >= MAX_CGROUPS {
            return Err(SysError::NoMemory);
        }
        self.nr_cgroups += 1;
        Ok(CgroupId(self.nr_cgroups - 1))
    }

    fn rmdir(&mut self, _: CgroupId) -> Result<(), SysError> {
        Ok(())
    }

    fn set_cgroup(&mut self, _: CgroupId, _: CgroupSpec) -> Result<(), SysError> {
        Ok(())
    }

    fn set_cpuset(&mut self, _: CgroupId, _: Option<&CpuMask>) -> Result<(), SysError> {
        Ok(())
    }

    fn set_xattr(&mut self, _: CgroupId, _: &str, _: &[u8]) -> Result<(), SysError> {
        Ok(())
    }

    fn move_to_cgroup(&mut self, task: TaskId, _: CgroupId) -> Result<(), SysError> {
        self.known(task)
    }

    fn set_cpu_online(&mut self, _: CpuId, _: bool) -> Result<(), SysError> {
        Ok(())
    }

    fn random(&mut self, _: &'static str, task: TaskId) -> u64 {
        self.serial += 1;
        (self.serial ^ u64::from(task.0)).wrapping_mul(0x9e37_79b9_7f4a_7c15)
    }

    fn count_work(&mut self, _: TaskId, _: u64) {}

    fn finish(&mut self) {
        self.finished = true;
    }
}

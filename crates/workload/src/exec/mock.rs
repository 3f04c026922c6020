// SPDX-License-Identifier: GPL-2.0-only
//! A kernel for tests: N equal CPUs, one queue, round robin with a 1 ms slice, and no other costs.
//!
//! Owns: a faithful implementation of the contract of `Sys`. For example, a wake-up of a task that
//! does not sleep takes effect at the task's next sleep, and charges delay the caller. The mock
//! also asserts that a behaviour keeps its own side of the contract.
//! Does not: model a real kernel's costs or policies.

use std::collections::{BTreeMap, VecDeque};

use scxlab_kernel::behavior::*;
use scxlab_machine::cpumask::{self, CpuMask};
use scxlab_machine::id::{CgroupId, CpuId, Nanos, TaskId};

const SLICE: Nanos = 1_000_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TaskState {
    Queued,
    Running,
    Blocked,
    Exited,
}

#[derive(Debug)]
pub struct Task {
    pub spec: TaskSpec,
    state: TaskState,
    after: Option<TaskStep>,
    left: Nanos,
    generation: u64,
    wake: bool,
    stop: bool,
    pub run_ns: Nanos,
    pub work: u64,
    pub exited_at: Option<Nanos>,
}

#[derive(Clone, Copy, Debug)]
enum MockEvent {
    /// The work or the slice of a running task ends.
    Check(TaskId, u64),
    Alarm(TaskId, u64),
    Timer(u64),
}

/// The reason why a run ended.
#[derive(Debug, PartialEq, Eq)]
pub enum MockEnd {
    Finished,
    /// No event is left.
    Stuck,
    Events,
}

pub struct Mock {
    pub tasks: Vec<Task>,
    pub calls: Vec<String>,
    pub refuse_forks: bool,
    /// Answer of `next_spinner`.
    pub next_spinner: Option<usize>,
    pub events: u64,
    now: Nanos,
    charged: Nanos,
    caller: Option<TaskId>,
    cpus: Vec<Option<(TaskId, Nanos)>>,
    queue: VecDeque<TaskId>,
    pending: BTreeMap<(Nanos, u64), MockEvent>,
    seq: u64,
    seed: u64,
    finished: bool,
}

impl Mock {
    pub fn new(nr_cpus: usize, seed: u64) -> Self {
        Mock {
            tasks: Vec::new(),
            calls: Vec::new(),
            refuse_forks: false,
            next_spinner: Some(0),
            events: 0,
            now: 0,
            charged: 0,
            caller: None,
            cpus: vec![None; nr_cpus],
            queue: VecDeque::new(),
            pending: BTreeMap::new(),
            seq: 0,
            seed,
            finished: false,
        }
    }

    /// Runs until the behaviour finishes, no event is left, or `max` events have happened.
    pub fn run(&mut self, behavior: &mut dyn Behavior, max: u64) -> MockEnd {
        behavior.start(self);
        loop {
            self.dispatch(behavior);
            if self.finished {
                return MockEnd::Finished;
            }
            let Some(((at, _), event)) = self.pending.pop_first() else {
                return MockEnd::Stuck;
            };
            assert!(at >= self.now, "time runs backwards");
            self.now = at;
            self.events += 1;
            if self.events > max {
                return MockEnd::Events;
            }
            match event {
                MockEvent::Timer(token) => behavior.on_timer(self, token),
                MockEvent::Alarm(t, generation) => {
                    if self.tasks[t.idx()].generation == generation {
                        self.enqueue(t);
                    }
                }
                MockEvent::Check(t, generation) => self.check(behavior, t, generation),
            }
        }
    }

    pub fn time(&self) -> Nanos {
        self.now
    }

    pub fn total_work(&self) -> u64 {
        self.tasks.iter().map(|t| t.work).sum()
    }

    pub fn task(&self, name: &str) -> &Task {
        self.tasks.iter().find(|t| t.spec.name == name).unwrap_or_else(|| panic!("no task {name}"))
    }

    fn at(&mut self, at: Nanos, event: MockEvent) {
        self.seq += 1;
        self.pending.insert((at.max(self.now), self.seq), event);
    }

    fn enqueue(&mut self, t: TaskId) {
        let task = &mut self.tasks[t.idx()];
        assert_ne!(task.state, TaskState::Queued, "queued twice");
        task.state = TaskState::Queued;
        task.generation += 1;
        self.queue.push_back(t);
    }

    fn dispatch(&mut self, behavior: &mut dyn Behavior) {
        for cpu in 0..self.cpus.len() {
            while self.cpus[cpu].is_none() && !self.finished {
                let allowed = |t: &TaskId| {
                    let mask = &self.tasks[t.idx()].spec.affinity;
                    mask.as_ref().is_none_or(|m| cpumask::test(m, CpuId(cpu as u32)))
                };
                let Some(i) = self.queue.iter().position(allowed) else {
                    break;
                };
                let t = self.queue.remove(i).unwrap();
                self.cpus[cpu] = Some((t, self.now));
                self.tasks[t.idx()].state = TaskState::Running;
                self.advance(behavior, t);
            }
        }
    }

    /// Runs a task from now on: the rest of its present step, then further steps until one takes
    /// time.
    fn advance(&mut self, behavior: &mut dyn Behavior, t: TaskId) {
        for _ in 0..100_000 {
            let task = &mut self.tasks[t.idx()];
            if task.stop && task.after == Some(TaskStep::Spin) {
                (task.stop, task.left) = (false, 0);
            }
            if task.left > 0 {
                let (left, generation) = (task.left.min(SLICE), task.generation);
                return self.at(self.now + left, MockEvent::Check(t, generation));
            }
            match self.tasks[t.idx()].after.take() {
                Some(TaskStep::Block) if !self.take_wake(t) => {
                    return self.leave(t, TaskState::Blocked);
                }
                Some(TaskStep::SleepUntil(at)) if !self.take_wake(t) && at > self.now => {
                    self.leave(t, TaskState::Blocked);
                    let generation = self.tasks[t.idx()].generation;
                    return self.at(at, MockEvent::Alarm(t, generation));
                }
                Some(TaskStep::Exit) => return self.leave(t, TaskState::Exited),
                Some(TaskStep::Yield) => {
                    self.leave(t, TaskState::Blocked);
                    return self.enqueue(t);
                }
                _ => {}
            }
            self.next_step(behavior, t);
            if self.finished {
                return;
            }
        }
        panic!("a task takes steps for ever without time passing");
    }

    /// Returns whether a wake-up of the task arrived since its last step, and forgets the wake-up.
    fn take_wake(&mut self, t: TaskId) -> bool {
        std::mem::take(&mut self.tasks[t.idx()].wake)
    }

    fn next_step(&mut self, behavior: &mut dyn Behavior, t: TaskId) {
        (self.caller, self.charged) = (Some(t), 0);
        let step = behavior.step(self, t);
        let length = match step {
            TaskStep::Compute { work } | TaskStep::Memory { work } => work,
            TaskStep::ComputeWall { wall } => wall,
            TaskStep::Spin => Nanos::MAX / 4,
            _ => 0,
        };
        let task = &mut self.tasks[t.idx()];
        task.left = self.charged + length;
        task.after = Some(step);
        if step == TaskStep::Exit {
            task.exited_at = Some(self.now + self.charged);
        }
        (self.caller, self.charged) = (None, 0);
    }

    fn leave(&mut self, t: TaskId, state: TaskState) {
        let slot = self.cpus.iter_mut().find(|c| c.is_some_and(|(on, _)| on == t)).unwrap();
        let (_, since) = slot.take().unwrap();
        let task = &mut self.tasks[t.idx()];
        task.run_ns += self.now - since;
        task.state = state;
        task.generation += 1;
    }

    fn check(&mut self, behavior: &mut dyn Behavior, t: TaskId, generation: u64) {
        let task = &mut self.tasks[t.idx()];
        if task.generation != generation || task.state != TaskState::Running {
            return;
        }
        let slot = self.cpus.iter_mut().flatten().find(|(on, _)| *on == t).unwrap();
        let ran = self.now - slot.1;
        slot.1 = self.now;
        task.run_ns += ran;
        task.left = task.left.saturating_sub(ran);
        task.generation += 1;
        if task.left > 0 && !task.stop && !self.queue.is_empty() {
            self.leave(t, TaskState::Blocked);
            return self.enqueue(t);
        }
        self.advance(behavior, t);
    }
}

impl Sys for Mock {
    fn must_schedule(&self) -> bool {
        false
    }

    fn now(&self) -> Nanos {
        self.now + self.charged
    }
    fn this_cpu(&self) -> CpuId {
        CpuId(0)
    }
    fn cpu_of(&self, _task: TaskId) -> CpuId {
        CpuId(0)
    }
    fn atomic_time(&self, last: Option<CpuId>) -> (CpuId, Nanos) {
        (CpuId(0), if last == Some(CpuId(0)) { 10 } else { 100 })
    }
    fn message_time(&self, last: Option<CpuId>, lines: u64, bytes: u64) -> (CpuId, Nanos) {
        (CpuId(0), if last == Some(CpuId(0)) { 0 } else { lines + bytes })
    }
    fn nr_cpus(&self) -> u32 {
        self.cpus.len() as u32
    }
    fn wake(&mut self, task: TaskId, sync: bool) -> bool {
        self.calls.push(format!("wake {task} sync={sync}"));
        let target = &mut self.tasks[task.idx()];
        if target.state == TaskState::Blocked {
            self.enqueue(task);
            return true;
        }
        target.wake = true;
        false
    }
    fn stop_spin(&mut self, task: TaskId) {
        let target = &mut self.tasks[task.idx()];
        target.stop = true;
        if target.state == TaskState::Running {
            let generation = target.generation;
            self.at(self.now, MockEvent::Check(task, generation));
        }
    }
    fn next_spinner(&self, spinners: &mut dyn Iterator<Item = TaskId>) -> Option<usize> {
        let count = spinners.count();
        assert!(count > 0, "nobody spins");
        self.next_spinner.map(|next| next.min(count - 1))
    }
    fn hold_lock(&mut self, task: TaskId, held: bool) -> bool {
        self.calls.push(format!("hold {task} {held}"));
        false
    }
    fn fork(&mut self, parent: Option<TaskId>, spec: TaskSpec) -> Result<TaskId, SysError> {
        if self.refuse_forks {
            return Err(SysError::NoMemory);
        }
        if let Some(other) = spec.thread_group_of {
            assert!(self.tasks[other.idx()].exited_at.is_none(), "joins a dead thread group");
        }
        self.calls.push(format!("fork {} by {parent:?}", spec.name));
        let id = TaskId(self.tasks.len() as u32);
        self.tasks.push(Task {
            spec,
            state: TaskState::Blocked,
            after: None,
            left: 0,
            generation: 0,
            wake: false,
            stop: false,
            run_ns: 0,
            work: 0,
            exited_at: None,
        });
        self.enqueue(id);
        Ok(id)
    }
    fn charge(&mut self, cost: Nanos) {
        self.charged += cost;
    }
    fn post(&mut self, at: Nanos, _cpu: CpuId, token: u64) {
        self.at(at, MockEvent::Timer(token));
    }
    fn set_affinity(&mut self, task: TaskId, cpus: &CpuMask) -> Result<(), SysError> {
        let list: Vec<_> = cpumask::iter(cpus).map(|c| c.0).collect();
        self.calls.push(format!("affinity {task} {list:?}"));
        self.tasks[task.idx()].spec.affinity = Some(cpus.clone());
        Ok(())
    }
    fn set_nice(&mut self, task: TaskId, nice: i8) -> Result<(), SysError> {
        self.calls.push(format!("nice {task} {nice}"));
        Ok(())
    }
    fn set_policy(&mut self, task: TaskId, policy: Policy) -> Result<(), SysError> {
        self.calls.push(format!("policy {task} {policy:?}"));
        Ok(())
    }
    fn set_footprint(&mut self, _task: TaskId, _bytes: u64) {}
    fn mkdir(
        &mut self,
        parent: CgroupId,
        name: &str,
        spec: CgroupSpec,
    ) -> Result<CgroupId, SysError> {
        self.calls.push(format!("mkdir {parent} {name} weight={}", spec.weight));
        Ok(CgroupId(self.calls.iter().filter(|c| c.starts_with("mkdir")).count() as u32))
    }
    fn set_cpuset(&mut self, cgroup: CgroupId, cpus: Option<&CpuMask>) -> Result<(), SysError> {
        let count = cpus.map_or(0, |c| scxlab_machine::cpumask::weight(c));
        self.calls.push(format!("cpuset {cgroup} cpus={count}"));
        Ok(())
    }
    fn set_xattr(&mut self, cgroup: CgroupId, name: &str, value: &[u8]) -> Result<(), SysError> {
        self.calls.push(format!("xattr {cgroup} {name}={}", String::from_utf8_lossy(value)));
        Ok(())
    }
    fn rmdir(&mut self, _cgroup: CgroupId) -> Result<(), SysError> {
        Ok(())
    }
    fn set_cgroup(&mut self, _cgroup: CgroupId, _spec: CgroupSpec) -> Result<(), SysError> {
        Ok(())
    }
    fn move_to_cgroup(&mut self, task: TaskId, cgroup: CgroupId) -> Result<(), SysError> {
        self.calls.push(format!("move {task} {cgroup}"));
        Ok(())
    }
    fn set_cpu_online(&mut self, _cpu: CpuId, _online: bool) -> Result<(), SysError> {
        Ok(())
    }
    fn random(&mut self, stream: &'static str, task: TaskId) -> u64 {
        self.seed = self.seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.seed ^ u64::from(task.0)).wrapping_add(stream.len() as u64) >> 16
    }
    fn count_work(&mut self, task: TaskId, units: u64) {
        self.tasks[task.idx()].work += units;
    }
    fn finish(&mut self) {
        self.finished = true;
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! The real-time classes: deadline tasks run before FIFO and round-robin tasks.
//!
//! Owns: the per-CPU queues of real-time tasks.
//! Models: kernel/sched/rt.c and deadline.c, 7.3, the parts that a workload sees: strict priority,
//! round-robin slices, earliest deadline first with budgets, placement by priority, pushing of
//! waiting tasks to CPUs that run lower ones, and pulling by a CPU whose real-time task leaves.
//! Differs: no priority inheritance. The servers of the other classes are in `server.rs`.

use crate::bpf::flags::queue;
use crate::kernel::event::Event;
use crate::kernel::{AfterEvent, Kernel};
use crate::task::behavior::Policy;
use crate::task::{Class, TaskState};
use scxlab_machine::cpumask;
use scxlab_machine::id::{CpuId, Nanos, TaskId};
use std::collections::BTreeMap;

/// `RR_TIMESLICE`: 100 ms.
const RR_SLICE: Nanos = 100_000_000;

/// Key of a task in its CPU's queue: (rank, arrival number). The task with the smallest key runs
/// first. Deadline tasks come before FIFO and round-robin tasks.
type Key = (u64, i64);

/// Ranks below this value are absolute deadlines, ns; ranks from this value on stand for
/// priorities.
const PRIO_BASE: u64 = 1 << 63;

/// Budget of a SCHED_DEADLINE task.
#[derive(Clone, Copy, Debug, Default)]
struct Budget {
    /// Time left until the deadline; negative by what the task has overrun until a tick noticed.
    left: i64,
    deadline: Nanos,
    generation: u32,
    throttled: bool,
}

/// Queues of the waiting and running real-time tasks of all CPUs.
#[derive(Debug)]
pub struct RtQueues {
    queues: Vec<BTreeMap<Key, TaskId>>,
    keys: BTreeMap<TaskId, Key>,
    budgets: BTreeMap<TaskId, Budget>,
    rr_left: BTreeMap<TaskId, Nanos>,
    arrivals: i64,
    heads: i64,
    /// A task that is dequeued while its parameters change, and the key that it had. If the change
    /// leaves the task in its place, the enqueue uses this key again.
    kept: Option<(TaskId, Key)>,
}

impl RtQueues {
    pub fn new(nr_cpus: usize) -> Self {
        RtQueues {
            queues: vec![BTreeMap::new(); nr_cpus],
            keys: BTreeMap::new(),
            budgets: BTreeMap::new(),
            rr_left: BTreeMap::new(),
            arrivals: 0,
            heads: 0,
            kept: None,
        }
    }

    pub fn nr_running(&self, cpu: CpuId) -> u32 {
        self.queues[cpu.idx()].len() as u32
    }

    /// Whether a task is in some CPU's queue.
    pub fn any(&self) -> bool {
        !self.keys.is_empty()
    }

    fn insert(&mut self, cpu: CpuId, task: TaskId, rank: u64, head: bool) {
        let order = if head {
            self.heads -= 1;
            self.heads
        } else {
            self.arrivals += 1;
            self.arrivals
        };
        self.insert_at(cpu, task, (rank, order));
    }

    fn insert_at(&mut self, cpu: CpuId, task: TaskId, key: Key) {
        self.keys.insert(task, key);
        self.queues[cpu.idx()].insert(key, task);
    }

    /// Removes a task from its CPU's queue. Returns the task's key; None if the task was not
    /// queued.
    fn remove(&mut self, cpu: CpuId, task: TaskId) -> Option<Key> {
        let key = self.keys.remove(&task)?;
        self.queues[cpu.idx()].remove(&key);
        Some(key)
    }
}

/// Returns whether a change of parameters with the dequeue and enqueue flags `flags` leaves the
/// task in its place in the queue (`move_entity()` of rt.c).
fn keeps_place(flags: u64) -> bool {
    flags & (queue::SAVE | queue::MOVE) == queue::SAVE
}

impl Kernel {
    /// Returns the rank of a task; the task with the smaller rank runs first.
    fn rt_rank(&self, task: TaskId) -> u64 {
        match self.tasks[task].policy {
            Policy::Fifo { prio } | Policy::RoundRobin { prio } => PRIO_BASE + 99 - u64::from(prio),
            _ => self.rt.budgets.get(&task).map_or(0, |b| b.deadline),
        }
    }

    pub(crate) fn rt_enqueue(&mut self, cpu: CpuId, task: TaskId, flags: u64) {
        self.rt_refresh_budget(task, flags);
        if self.rt.budgets.get(&task).is_some_and(|b| b.throttled) {
            return;
        }
        let kept = self.rt.kept.take_if(|(kept, _)| *kept == task);
        match kept.filter(|_| keeps_place(flags)) {
            Some((_, key)) => self.rt.insert_at(cpu, task, key),
            None => {
                let rank = self.rt_rank(task);
                self.rt.insert(cpu, task, rank, flags & queue::HEAD != 0);
            }
        }
    }

    /// Resets the task's budget when the task leaves SCHED_DEADLINE, so that a throttled task can
    /// run under its new policy. A pending replenishment has the old generation and is ignored.
    pub(crate) fn rt_leave_deadline(&mut self, task: TaskId) {
        if let Some(budget) = self.rt.budgets.get_mut(&task) {
            let generation = budget.generation.wrapping_add(1);
            *budget = Budget { generation, ..Budget::default() };
        }
    }

    /// Gives a waking deadline task a new budget and deadline if its deadline has passed, or if the
    /// rest of its budget until the deadline would be more than its bandwidth
    /// (`update_dl_entity()`). Of a task whose deadline comes before the end of its period, only
    /// the budget shrinks in the latter case (`update_dl_revised_wakeup()`).
    fn rt_refresh_budget(&mut self, task: TaskId, flags: u64) {
        let Policy::Deadline { runtime, deadline, period } = self.tasks[task].policy else {
            return;
        };
        let now = self.now;
        let budget = self.rt.budgets.entry(task).or_default();
        if budget.throttled {
            return;
        }
        let laxity = budget.deadline.saturating_sub(now);
        let bandwidth = |time: Nanos| u128::from(time) * u128::from(runtime) / u128::from(deadline);
        let wakes = flags & queue::WAKEUP != 0;
        if laxity == 0 {
            budget.deadline = now + deadline;
            budget.left = runtime as i64;
        } else if wakes && u128::try_from(budget.left).is_ok_and(|left| left > bandwidth(laxity)) {
            if deadline == period {
                budget.deadline = now + deadline;
                budget.left = runtime as i64;
            } else {
                budget.left = bandwidth(laxity) as i64;
            }
        }
    }

    pub(crate) fn rt_dequeue(&mut self, cpu: CpuId, task: TaskId, flags: u64) -> bool {
        if self.tasks[task].on_cpu {
            self.rt_update_curr(cpu);
        }
        let key = self.rt.remove(cpu, task);
        self.rt.kept = key.filter(|_| keeps_place(flags)).map(|key| (task, key));
        if self.tasks[task].state == TaskState::Dead {
            self.rt.budgets.remove(&task);
            self.rt.rr_left.remove(&task);
        }
        false
    }

    #[inline]
    pub(crate) fn rt_pick(&mut self, cpu: CpuId) -> Option<TaskId> {
        if self.rt.keys.is_empty() { None } else { self.rt_pick_one(cpu) }
    }

    fn rt_pick_one(&mut self, cpu: CpuId) -> Option<TaskId> {
        let prev = self.cpus[cpu].curr;
        if self.tasks[prev].class >= Class::Rt && !self.rt.keys.contains_key(&prev) {
            self.rt_pull(cpu);
        }
        self.rt.queues[cpu.idx()].values().next().copied()
    }

    /// Pulls the waiting real-time task that ranks first from other CPUs to a CPU whose real-time
    /// task leaves, if it ranks before all tasks of this CPU (`pull_rt_task()`).
    fn rt_pull(&mut self, cpu: CpuId) {
        if !self.cpus.is_online(cpu) {
            return;
        }
        let others = self.rt.queues.iter().enumerate().filter(|(c, _)| *c != cpu.idx());
        let may = |t: &TaskId| !self.tasks[*t].on_cpu && self.tasks[*t].allowed_on(cpu);
        let waiting = others.filter_map(|(_, queue)| queue.iter().find(|(_, task)| may(task)));
        let first = waiting.min_by_key(|(key, _)| key.0).map(|(key, task)| (key.0, *task));
        if let Some((rank, task)) = first
            && rank < self.rt_rank_on(cpu)
        {
            self.move_queued(task, cpu);
        }
    }

    /// Pushes real-time tasks that wait on a CPU to CPUs on which they rank first
    /// (`push_rt_tasks()`, `push_dl_tasks()`).
    #[inline(always)]
    pub(crate) fn rt_push(&mut self, cpu: CpuId) {
        if self.rt.keys.len() > 1 && self.rt.queues[cpu.idx()].len() > 1 {
            self.rt_push_waiting(cpu);
        }
    }

    #[cold]
    #[inline(never)]
    fn rt_push_waiting(&mut self, cpu: CpuId) {
        let waiting: Vec<TaskId> = self.rt.queues[cpu.idx()].values().skip(1).copied().collect();
        for task in waiting {
            if self.tasks[task].on_cpu {
                continue;
            }
            let target = self.rt_select_cpu(task, cpu);
            if target != cpu && self.tasks[task].allowed_on(target) {
                self.move_queued(task, target);
            }
        }
    }

    /// Returns the deadline of the deadline task that comes first on a CPU.
    pub(crate) fn rt_first_deadline(&self, cpu: CpuId) -> Option<Nanos> {
        let (key, _) = self.rt.queues[cpu.idx()].first_key_value()?;
        (key.0 < PRIO_BASE).then_some(key.0)
    }

    /// Returns the rank of the first task of a CPU. CPUs without real-time tasks have greater ranks
    /// than all such tasks; an idle CPU has the greatest.
    fn rt_rank_on(&self, cpu: CpuId) -> u64 {
        if let Some((key, _)) = self.rt.queues[cpu.idx()].first_key_value() {
            return key.0;
        }
        let curr = self.cpus[cpu].curr;
        match self.tasks[curr].class {
            Class::Idle => u64::MAX,
            _ => u64::MAX - 1,
        }
    }

    pub(crate) fn rt_set_next(&mut self, _cpu: CpuId, _task: TaskId) {}

    pub(crate) fn rt_put_prev(&mut self, cpu: CpuId, _task: TaskId) {
        self.rt_update_curr(cpu);
    }

    /// Charges the running task. A deadline task that has used up its budget waits for the next
    /// period. What it used beyond the budget is taken from the next ones.
    fn rt_update_curr(&mut self, cpu: CpuId) -> Nanos {
        let delta = self.charge_curr(cpu);
        let curr = self.cpus[cpu].curr;
        let Policy::Deadline { deadline, period, .. } = self.tasks[curr].policy else {
            return delta;
        };
        let now = self.now;
        let Some(budget) = self.rt.budgets.get_mut(&curr) else { return delta };
        budget.left = budget.left.saturating_sub_unsigned(delta);
        if budget.left <= 0 && !budget.throttled {
            budget.throttled = true;
            budget.generation = budget.generation.wrapping_add(1);
            // The begin of the next period.
            let at = (budget.deadline + (period - deadline)).max(now);
            let generation = budget.generation;
            self.rt.remove(cpu, curr);
            self.push_wakeup(at, Event::DlReplenish { task: curr, generation });
        }
        delta
    }

    #[inline(never)]
    pub(crate) fn dl_replenish(&mut self, task: TaskId, generation: u32) -> AfterEvent {
        self.end.pending_wakeups -= 1;
        let Some(Policy::Deadline { runtime, deadline, period }) =
            self.tasks.get(task).map(|t| t.policy)
        else {
            return AfterEvent::Nothing;
        };
        let now = self.now;
        let Some(budget) = self.rt.budgets.get_mut(&task).filter(|b| b.generation == generation)
        else {
            return AfterEvent::Nothing;
        };
        budget.throttled = false;
        while budget.left <= 0 {
            budget.left = budget.left.saturating_add_unsigned(runtime);
            budget.deadline = budget.deadline.saturating_add(period);
        }
        if budget.deadline < now {
            (budget.deadline, budget.left) = (now + deadline, runtime as i64);
        }
        let t = &self.tasks[task];
        if !t.on_rq {
            return AfterEvent::Nothing;
        }
        let cpu = t.cpu;
        self.on_cpu_last(cpu, |k| {
            k.charge(k.machine.costs.irq.timer_ns);
            let rank = k.rt_rank(task);
            k.rt.insert(cpu, task, rank, false);
            k.wakeup_preempt(cpu, task, 0);
            k.rt_push(cpu);
        })
    }

    pub(crate) fn rt_tick(&mut self, cpu: CpuId) {
        self.server_start(cpu);
        let delta = self.rt_update_curr(cpu);
        let curr = self.cpus[cpu].curr;
        if self.rt.budgets.get(&curr).is_some_and(|b| b.throttled) {
            self.resched(cpu);
        }
        if let Policy::RoundRobin { .. } = self.tasks[curr].policy {
            let left = self.rt.rr_left.entry(curr).or_insert(RR_SLICE);
            *left = left.saturating_sub(delta);
            if *left == 0 {
                *left = RR_SLICE;
                self.rt_yield(cpu);
                self.resched(cpu);
            }
        }
    }

    /// Moves the current task to the end of its priority's list. A deadline task gives up the rest
    /// of its budget.
    pub(crate) fn rt_yield(&mut self, cpu: CpuId) {
        let curr = self.cpus[cpu].curr;
        if let Policy::Deadline { .. } = self.tasks[curr].policy {
            if let Some(budget) = self.rt.budgets.get_mut(&curr) {
                budget.left = budget.left.min(0);
            }
            self.rt_update_curr(cpu);
        } else if self.rt.keys.contains_key(&curr) {
            self.rt.remove(cpu, curr);
            let rank = self.rt_rank(curr);
            self.rt.insert(cpu, curr, rank, false);
        }
    }

    pub(crate) fn rt_wakeup_preempt(&mut self, cpu: CpuId, task: TaskId) {
        let curr = self.cpus[cpu].curr;
        if self.rt_rank(task) < self.rt_rank(curr) {
            self.resched(cpu);
        }
    }

    /// Requests a scheduling pass if a change of the task's rank requires one: the task now ranks
    /// before the running task, or it runs and no longer ranks first (`prio_changed_rt()`,
    /// `prio_changed_dl()`).
    pub(crate) fn rt_prio_changed(&mut self, cpu: CpuId, task: TaskId) {
        let curr = self.cpus[cpu].curr;
        if curr != task && self.tasks[curr].class >= Class::Rt {
            return self.rt_wakeup_preempt(cpu, task);
        }
        let first = self.rt.queues[cpu.idx()].first_key_value();
        if curr == task && first.is_some_and(|(_, &first)| first != task) {
            self.resched(cpu);
        }
    }

    /// `find_lowest_rq()`: returns `prev` if the task outranks all tasks on `prev`. Else returns
    /// the CPU whose first task ranks lowest; among equal CPUs, the CPU with the lowest number. If
    /// the task outranks the first task of no CPU, returns `prev`.
    pub(crate) fn rt_select_cpu(&mut self, task: TaskId, prev: CpuId) -> CpuId {
        let rank = self.rt_rank(task);
        if self.cpus.is_online(prev)
            && self.tasks[task].allowed_on(prev)
            && self.rt_rank_on(prev) > rank
        {
            return prev;
        }
        cpumask::iter(&self.tasks[task].cpus)
            .filter(|&c| self.cpus.is_online(c))
            .max_by_key(|&c| (self.rt_rank_on(c), std::cmp::Reverse(c)))
            .filter(|&c| self.rt_rank_on(c) > rank)
            .unwrap_or(prev)
    }
}

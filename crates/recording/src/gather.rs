// SPDX-License-Identifier: GPL-2.0-only
//! Gathering of each task's history from the events of a trace.
//!
//! Owns: the state of each task (it runs, it is ready, it sleeps), and the split of its time on a
//! CPU into work and the kernel's time.
//! Does not: interpret waits.
//!
//! ```text
//!            wake-up                 switch to it
//!   asleep ----------> ready ------------------------> running
//!      ^                 ^   <------------------------    |
//!      |                      switch away, runnable       |
//!      '--------------------------------------------------'
//!                      switch away, asleep
//! ```

mod cpu;

use std::collections::BTreeMap;
use std::io;

use scxlab_machine::{CpuId, Machine, Nanos, TaskId};
use scxlab_trace::event::{Event, EventKind, PrevState};
use scxlab_trace::{Call, Names, Sink, TaskAttributes};

use crate::history::{History, Origin, Sleep, Step, TaskHistory, TaskIndex, Waker};
use crate::overhead::{LastUsers, Overhead};
use crate::scope::Scope;
use cpu::{Cpus, WORK_SHIFT};

/// Maximum number of steps of a recording. A step takes 48 bytes, and can become two ops: one of
/// the first pass, and one of the others.
pub const MAX_STEPS: u64 = 6_000_000;

/// Work in ns that is not told from the rest of a system call.
pub(crate) const NOISE: Nanos = 300;

/// Time in ns within which a wake-up belongs to the system call before it.
const CALL_LENGTH: Nanos = 50_000;

/// Time in ns by which an event can come before another that caused it.
const CLOCK_SKEW: Nanos = 1_000_000;

/// Index of a wait that is not in the history.
const NO_SLEEP: u32 = u32::MAX;

/// Time in ns after a task's begin of running within which a read belongs to the wait before it.
const AFTER_WAIT: Nanos = 50_000;

/// Takes the events of a trace, and returns the history of its tasks.
///
/// ```
/// use scxlab_machine::Machine;
/// use scxlab_recording::Recorder;
/// let machine = Machine::resolve("1n2c1t").unwrap();
/// let history = Recorder::new(&machine).history(None);
/// assert!(history.tasks.is_empty());
/// ```
pub struct Recorder {
    history: History,
    tracks: Vec<Track>,
    /// Whether each task's fork was seen.
    forked: Vec<bool>,
    /// Task of each id; a later task can have the same id.
    slots: Vec<Option<TaskIndex>>,
    /// The last task of each thread id.
    by_pid: BTreeMap<u32, TaskIndex>,
    cpus: Cpus,
    overhead: Overhead,
    users: LastUsers,
    scope: Scope,
    /// The task of each CPU before the window.
    before: BTreeMap<CpuId, TaskId>,
    begun: bool,
    nr_steps: u64,
}

/// The present state of a task.
#[derive(Clone, Copy, Debug)]
struct Track {
    state: State,
    /// Work since the last step, in 1/1024 ns.
    open: u64,
    /// Time of the last switch to the task.
    switched_in: Nanos,
    /// Version of the task's name.
    version: u64,
    /// A wake-up while the task ran. The wait that it ends may follow, because the clocks of CPUs
    /// differ, and because a task is on its way off its CPU for a while.
    early: Option<EarlyWake>,
    /// Time in which the last call got what other CPUs wrote.
    message: Nanos,
}

#[derive(Clone, Copy, Debug)]
struct EarlyWake {
    at: Nanos,
    by: Waker,
    /// Index of the wake-up in the waker's steps, if it is there.
    step: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unknown,
    Running,
    Ready { since: Nanos },
    Asleep { sleep: u32 },
    Dead,
}

impl Recorder {
    /// Creates a recorder for a trace of this machine.
    pub fn new(machine: &Machine) -> Recorder {
        Recorder::of(machine, Scope::default())
    }

    /// Creates a recorder for a part of a trace of this machine.
    pub fn of(machine: &Machine, scope: Scope) -> Recorder {
        Recorder {
            history: History::default(),
            tracks: Vec::new(),
            forked: Vec::new(),
            slots: Vec::new(),
            by_pid: BTreeMap::new(),
            cpus: Cpus::new(machine),
            overhead: Overhead::of(machine),
            users: LastUsers::default(),
            scope,
            before: BTreeMap::new(),
            begun: false,
            nr_steps: 0,
        }
    }

    /// Whether the recording has more steps than a workload can have. The further events were
    /// dropped.
    pub fn is_full(&self) -> bool {
        self.nr_steps >= MAX_STEPS
    }

    /// Whether no later event can change the history.
    pub fn is_done(&self) -> bool {
        self.is_full() || self.history.end >= self.scope.until()
    }

    /// Returns the history. `end` is the time of the recording's end, if it is later than the last
    /// event.
    pub fn history(mut self, end: Option<Nanos>) -> History {
        let end = self.history.end.max(end.unwrap_or(0)).min(self.scope.until());
        self.history.end = end;
        for cpu in self.cpus.ids() {
            if let Some(task) = self.cpus.task(cpu) {
                self.run_to(cpu, end);
                let since = self.tracks[task as usize].switched_in;
                self.history.tasks[task as usize].add_run(end.saturating_sub(since));
            }
        }
        // If events are missing, a task that waits while a CPU is idle got one soon, at a switch
        // that is missing.
        let is_whole = self.history.lost == 0 && self.history.inconsistent == 0;
        let all_busy = self.cpus.ids().all(|cpu| self.cpus.task(cpu).is_some());
        for task in 0..self.tracks.len() {
            self.forget_early(task as TaskIndex);
            self.close(task as TaskIndex);
            if let State::Ready { since } = self.tracks[task].state
                && (is_whole || all_busy)
            {
                self.history.tasks[task].add_wait(end.saturating_sub(since));
            }
        }
        self.history
    }

    /// Returns the task with this id. A task that is seen for the first time existed before.
    fn task(&mut self, id: TaskId, names: &Names) -> TaskIndex {
        let known = self.slots.get(id.idx()).copied().flatten();
        let pid = names.task(id).map(|name| name.pid);
        match known {
            Some(task) if pid.is_none_or(|p| p == self.history.tasks[task as usize].name.pid) => {
                self.refresh_name(task, id, names);
                task
            }
            _ => {
                let origin = match self.begun {
                    true if known.is_some() => Origin::Appeared,
                    _ => Origin::Start,
                };
                self.add(id, names, origin, State::Unknown)
            }
        }
    }

    /// Takes over the present name of a task.
    fn refresh_name(&mut self, task: TaskIndex, id: TaskId, names: &Names) {
        let version = names.task_version(id);
        let known = &mut self.tracks[task as usize].version;
        if *known != version {
            *known = version;
            if let Some(name) = names.task(id) {
                let t = &mut self.history.tasks[task as usize];
                t.name = name.clone();
                t.is_vcpu |= is_vcpu(&name.comm);
                self.select(task, names.attributes(id));
            }
        }
    }

    /// Takes a task into the scope once its name and attributes match. A task that has done
    /// something before is in the workload from then on.
    fn select(&mut self, task: TaskIndex, attributes: Option<&TaskAttributes>) {
        let t = &mut self.history.tasks[task as usize];
        if t.in_scope || !self.scope.has(&t.name.comm, attributes) {
            return;
        }
        t.in_scope = true;
        let track = &mut self.tracks[task as usize];
        track.open = 0;
        if t.switches > 0 {
            (t.origin, t.born) = (Origin::Appeared, self.history.end.max(self.history.start));
            (t.run_ns, t.wait_ns, track.switched_in) = (0, 0, t.born);
        }
    }

    fn add(&mut self, id: TaskId, names: &Names, origin: Origin, state: State) -> TaskIndex {
        let task = self.history.tasks.len() as TaskIndex;
        let name = names.task(id).cloned().unwrap_or_else(|| scxlab_trace::TaskName {
            pid: id.0,
            tgid: id.0,
            comm: format!("task {}", id.0),
            prio: 120,
        });
        self.history.tasks.push(TaskHistory {
            name,
            attributes: None,
            changes: Vec::new(),
            in_scope: false,
            origin,
            born: self.history.end.max(self.history.start),
            ended: None,
            steps: Vec::new(),
            sleeps: Vec::new(),
            run_ns: 0,
            wait_ns: 0,
            switches: 0,
            is_vcpu: false,
        });
        self.forked.push(false);
        // The first look at the task's name is that of `refresh_name`.
        self.tracks.push(Track {
            state,
            open: 0,
            switched_in: 0,
            version: u64::MAX,
            early: None,
            message: 0,
        });
        self.by_pid.insert(self.history.tasks[task as usize].name.pid, task);
        self.assign(id, task);
        self.refresh_name(task, id, names);
        task
    }

    /// Adds a step. The steps of tasks that are out of scope take no memory, nor do their wake-ups.
    fn push(&mut self, task: TaskIndex, step: Step) {
        let in_scope = |task: TaskIndex| self.history.tasks[task as usize].in_scope;
        let woken = if let Step::Wake(other, _) = step { in_scope(other) } else { true };
        if in_scope(task) && woken {
            self.nr_steps += 1;
            self.history.tasks[task as usize].steps.push(step);
            if self.is_full() {
                self.history.full.get_or_insert(self.history.end);
            }
        }
    }

    /// Lets the CPU's task work until `at`.
    fn run_to(&mut self, cpu: CpuId, at: Nanos) {
        if let Some((task, work)) = self.cpus.run_to(cpu, at) {
            let open = &mut self.tracks[task as usize].open;
            *open = open.saturating_add(work);
        }
    }

    /// Ends the present piece of work of a task.
    fn close(&mut self, task: TaskIndex) {
        let open = std::mem::take(&mut self.tracks[task as usize].open);
        let work = open >> WORK_SHIFT;
        let after_call = matches!(
            self.history.tasks[task as usize].steps.last(),
            Some(Step::Call(..) | Step::Wake(..) | Step::Sleep(_))
        );
        if work == 0 || after_call && self.history.has_calls && work < NOISE {
            return;
        }
        let steps = &mut self.history.tasks[task as usize].steps;
        match steps.last_mut() {
            Some(Step::Work(before)) => *before = before.saturating_add(work),
            _ => self.push(task, Step::Work(work)),
        }
    }

    /// Takes the time since the task's last step, all of it in the kernel. The replay charges the
    /// path at `charged` ns, and what depends on the moment, such as a wait for a lock, besides. A
    /// longer rest is the time by which the recorded kernel is slower than the machine's costs, and
    /// counts as work.
    fn take_kernel_time(&mut self, task: TaskIndex, charged: Nanos) -> Nanos {
        let rest = std::mem::take(&mut self.tracks[task as usize].open) >> WORK_SHIFT;
        if rest > charged.max(NOISE) { rest } else { 0 }
    }

    /// Adds work to that before the task's last system call, which only wake-ups follow.
    fn work_before_call(&mut self, task: TaskIndex, work: Nanos) {
        let steps = &mut self.history.tasks[task as usize].steps;
        let call = steps.iter().rposition(|step| !matches!(step, Step::Wake(..)));
        let Some(call) = call.filter(|_| work > 0) else { return };
        // The indices of wake-ups stay as they are.
        let is_last = call + 1 == steps.len();
        match steps[..call].last_mut() {
            Some(Step::Work(before)) => *before = before.saturating_add(work),
            _ if is_last => {
                self.nr_steps += 1;
                steps.insert(call, Step::Work(work));
            }
            _ => {}
        }
    }

    /// Subtracts a cost from the task's last piece of work, which included it. Returns the part of
    /// the cost for which there was no work.
    fn correct_last_work(&mut self, task: TaskIndex, cost: Nanos) -> Nanos {
        let steps = &mut self.history.tasks[task as usize].steps;
        let found =
            steps.iter_mut().rev().find(|step| !matches!(step, Step::Wake(..) | Step::Sleep(_)));
        let Some(Step::Work(work)) = found else { return cost };
        let unpaid = cost.saturating_sub(*work);
        *work = work.saturating_sub(cost);
        if *work < NOISE {
            *work = 0;
        }
        unpaid
    }

    fn switch(
        &mut self,
        at: Nanos,
        cpu: CpuId,
        (prev, next): (Option<TaskId>, Option<TaskId>),
        state: PrevState,
        names: &Names,
    ) {
        let tgid = |id: Option<TaskId>| id.and_then(|id| names.task(id)).map_or(0, |n| n.tgid);
        let mm = if tgid(prev) == tgid(next) { 0 } else { self.overhead.switch_mm() };
        match prev {
            Some(prev) => {
                let task = self.task(prev, names);
                self.switch_out(at, cpu, task, state, mm);
                if state == PrevState::Exited {
                    self.slots[prev.idx()] = None;
                }
            }
            None => self.leave_unseen(cpu),
        }
        match next {
            Some(next) => {
                let task = self.task(next, names);
                self.switch_in(at, cpu, task);
            }
            None => self.set_task(at, cpu, None),
        }
    }

    /// Takes a task of which an event shows that it runs on the CPU, although the switch to it is
    /// missing, as running there since it was woken, or from now on. Returns false if the task runs
    /// elsewhere.
    fn run_unseen(&mut self, at: Nanos, cpu: CpuId, task: TaskIndex) -> bool {
        self.history.inconsistent += 1;
        let since = match self.tracks[task as usize].state {
            State::Running | State::Dead => return false,
            State::Ready { since } => since,
            State::Asleep { .. } | State::Unknown => at,
        };
        self.leave_unseen(cpu);
        self.switch_in(since.max(self.cpus.from(cpu)).min(at), cpu, task);
        true
    }

    /// Takes the CPU's task as asleep since its last event, because a later one shows that it no
    /// longer runs, and the switch away from it is missing.
    fn leave_unseen(&mut self, cpu: CpuId) {
        let Some(task) = self.cpus.task(cpu) else { return };
        self.history.inconsistent += 1;
        let at = self.cpus.from(cpu);
        let since = self.tracks[task as usize].switched_in;
        self.history.tasks[task as usize].add_run(at.saturating_sub(since));
        self.tracks[task as usize].state = self.sleep(at, task, false);
        self.set_task(at, cpu, None);
    }

    /// Sets the task that runs on a CPU.
    fn set_task(&mut self, at: Nanos, cpu: CpuId, task: Option<TaskIndex>) {
        for sibling in self.cpus.changes_with(cpu, task.is_some()) {
            self.run_to(sibling, at);
        }
        self.cpus.set_task(cpu, task, at + self.overhead.after_switch);
    }

    fn switch_out(&mut self, at: Nanos, cpu: CpuId, task: TaskIndex, state: PrevState, mm: Nanos) {
        match self.cpus.task(cpu) {
            Some(running) if running == task => {}
            None if self.tracks[task as usize].state == State::Unknown => {
                // The task has run since before the recording.
                let start = self.history.start;
                self.tracks[task as usize].switched_in = start;
                self.cpus.set_task(cpu, Some(task), start);
            }
            _ if self.run_unseen(at, cpu, task) => {}
            _ => return,
        }
        let sleeps = matches!(state, PrevState::Sleeping | PrevState::Uninterruptible);
        let dequeue = if sleeps { self.overhead.dequeue } else { 0 };
        self.run_to(cpu, at.saturating_sub(self.overhead.switch + mm + dequeue));
        let since = self.tracks[task as usize].switched_in;
        self.history.tasks[task as usize].add_run(at.saturating_sub(since));
        self.tracks[task as usize].state = match state {
            PrevState::Runnable => State::Ready { since: at },
            PrevState::Exited => {
                self.close(task);
                self.history.tasks[task as usize].ended.get_or_insert(at);
                State::Dead
            }
            PrevState::Sleeping | PrevState::Uninterruptible => {
                self.sleep(at, task, state == PrevState::Uninterruptible)
            }
        };
        let early = self.tracks[task as usize].early;
        match (early, self.tracks[task as usize].state) {
            (Some(wake), State::Asleep { sleep }) if wake.at.saturating_add(CALL_LENGTH) >= at => {
                self.tracks[task as usize].early = None;
                self.end_sleep(at, task, sleep, (wake.by, 0));
                self.tracks[task as usize].state = State::Ready { since: at };
            }
            _ => self.forget_early(task),
        }
    }

    fn sleep(&mut self, at: Nanos, task: TaskIndex, uninterruptible: bool) -> State {
        let steps = &self.history.tasks[task as usize].steps;
        let last = steps.iter().rev().find(|step| !matches!(step, Step::Wake(..))).copied();
        let short = self.tracks[task as usize].open >> WORK_SHIFT < CALL_LENGTH;
        match last {
            Some(Step::Call(_, call)) if short && can_wait(&call) => {
                let charged = self.overhead.before_sleep(&call)
                    + self.message_of(task, &call)
                    + self.overhead.dequeue;
                let rest = self.take_kernel_time(task, charged);
                self.work_before_call(task, rest);
            }
            _ => self.close(task),
        }
        self.begin_sleep(at, task, uninterruptible)
    }

    fn begin_sleep(&mut self, from: Nanos, task: TaskIndex, uninterruptible: bool) -> State {
        let TaskHistory { sleeps, steps, in_scope, .. } = &mut self.history.tasks[task as usize];
        if !*in_scope {
            return State::Asleep { sleep: NO_SLEEP };
        }
        let (sleep, step) = (sleeps.len() as u32, steps.len() as u32);
        sleeps.push(Sleep {
            from,
            until: None,
            by: Waker::Unknown,
            late: 0,
            step,
            uninterruptible,
        });
        self.push(task, Step::Sleep(sleep));
        State::Asleep { sleep }
    }

    fn switch_in(&mut self, at: Nanos, cpu: CpuId, task: TaskIndex) {
        match self.tracks[task as usize].state {
            State::Ready { since } => {
                self.history.tasks[task as usize].add_wait(at.saturating_sub(since));
            }
            // The recording has no wake-up.
            State::Asleep { sleep } => {
                let late = self.late(at, cpu) + self.overhead.after_wake + self.overhead.switch;
                self.end_sleep(at, task, sleep, (Waker::Unknown, late));
            }
            State::Unknown => {}
            State::Running | State::Dead => self.history.inconsistent += 1,
        }
        self.history.tasks[task as usize].switches += 1;
        let track = &mut self.tracks[task as usize];
        (track.state, track.switched_in) = (State::Running, at);
        self.set_task(at, cpu, Some(task));
    }

    fn end_sleep(&mut self, at: Nanos, task: TaskIndex, sleep: u32, (by, late): (Waker, Nanos)) {
        if let Some(sleep) = self.history.tasks[task as usize].sleeps.get_mut(sleep as usize) {
            (sleep.until, sleep.by) = (Some(at), by);
            sleep.late = u32::try_from(late).unwrap_or(u32::MAX);
        }
    }

    /// Returns the time from an interrupt on this CPU until the wake-up that it causes.
    fn late(&self, at: Nanos, cpu: CpuId) -> Nanos {
        let since = self.cpus.from(cpu).max(self.history.start);
        let idle = self.cpus.task(cpu).is_none().then(|| at.saturating_sub(since));
        idle.map_or(0, |idle| self.overhead.idle_exit(idle)) + self.overhead.before_interrupt_wake
    }

    fn wakeup(
        &mut self,
        at: Nanos,
        cpu: CpuId,
        task: TaskId,
        waker: Option<TaskId>,
        names: &Names,
    ) {
        self.history.has_wakeups = true;
        let task = self.task(task, names);
        let waker = waker.map(|waker| self.task(waker, names));
        if let Some(waker) = waker.filter(|w| self.cpus.task(cpu).is_none() && *w != task) {
            self.run_unseen(at, cpu, waker);
        }
        let by = waker.filter(|w| self.cpus.task(cpu) == Some(*w));
        let late = if waker.is_none() { self.late(at, cpu) } else { 0 };
        match by {
            Some(waker) => self.leave_user_mode(at, cpu, waker),
            None => self.run_to(cpu, at.saturating_sub(self.overhead.before_interrupt_wake)),
        }
        self.cpus.busy_until(cpu, at + self.overhead.after_wake);
        let sleep = match self.tracks[task as usize].state {
            State::Asleep { sleep } => sleep,
            // The task comes to the workload with this wake-up.
            State::Unknown if waker.is_none() => {
                let t = &mut self.history.tasks[task as usize];
                (t.born, t.origin) = (at, Origin::Appeared);
                self.tracks[task as usize].state = State::Ready { since: at };
                return;
            }
            State::Unknown => {
                let start = self.history.start;
                match self.begin_sleep(start, task, false) {
                    State::Asleep { sleep } => sleep,
                    _ => return,
                }
            }
            State::Running => match self.unexplained(at, task) {
                Some(sleep) => return self.wake_late(task, sleep, waker),
                None => return self.wake_early(at, task, waker),
            },
            State::Ready { .. } | State::Dead => return,
        };
        let source = waker.map_or(Waker::Interrupt, Waker::Task);
        self.end_sleep(at, task, sleep, (source, late));
        self.tracks[task as usize].state = State::Ready { since: at };
        if let Some(waker) = waker.filter(|_| sleep != NO_SLEEP) {
            self.push(waker, Step::Wake(task, sleep));
        }
    }

    /// Returns the wait after which a task runs, if it ended shortly before, and no wake-up came.
    fn unexplained(&self, at: Nanos, task: TaskIndex) -> Option<u32> {
        let began = self.tracks[task as usize].switched_in;
        let sleeps = &self.history.tasks[task as usize].sleeps;
        let last = sleeps.last().filter(|s| s.by == Waker::Unknown && s.until == Some(began))?;
        let is_late = at.saturating_sub(began) <= CALL_LENGTH && last.from <= at;
        is_late.then(|| sleeps.len() as u32 - 1)
    }

    /// Notes a wake-up that another CPU recorded after the woken task was running.
    fn wake_late(&mut self, task: TaskIndex, sleep: u32, waker: Option<TaskIndex>) {
        let by = waker.map_or(Waker::Interrupt, Waker::Task);
        self.history.tasks[task as usize].sleeps[sleep as usize].by = by;
        if let Some(waker) = waker {
            self.push(waker, Step::Wake(task, sleep));
        }
    }

    /// Notes a wake-up of a running task.
    fn wake_early(&mut self, at: Nanos, task: TaskIndex, waker: Option<TaskIndex>) {
        self.forget_early(task);
        let sleep = self.history.tasks[task as usize].sleeps.len() as u32;
        let mut step = None;
        if let Some(waker) = waker {
            let next = self.history.tasks[waker as usize].steps.len();
            self.push(waker, Step::Wake(task, sleep));
            step = (self.history.tasks[waker as usize].steps.len() > next).then_some(next);
        }
        let by = waker.map_or(Waker::Interrupt, Waker::Task);
        self.tracks[task as usize].early = Some(EarlyWake { at, by, step });
    }

    /// Takes back an early wake-up that no wait followed.
    fn forget_early(&mut self, task: TaskIndex) {
        if let Some(EarlyWake { by: Waker::Task(waker), step: Some(step), .. }) =
            self.tracks[task as usize].early.take()
        {
            self.history.tasks[waker as usize].steps[step] = Step::Work(0);
        }
    }

    /// Ends the work of a task that wakes another: at its system call, or if the recording has
    /// none, before this wake-up.
    fn leave_user_mode(&mut self, at: Nanos, cpu: CpuId, waker: TaskIndex) {
        let in_call = at < self.cpus.from(cpu).saturating_add(CALL_LENGTH);
        self.run_to(cpu, at.saturating_sub(self.overhead.before_wake));
        match self.history.tasks[waker as usize].steps.last() {
            Some(Step::Call(_, call @ (Call::FutexWake { .. } | Call::Write { .. })))
                if in_call =>
            {
                let call = *call;
                let charged = self.after_call(waker, &call) + self.overhead.before_wake;
                let rest = self.take_kernel_time(waker, charged);
                self.work_before_call(waker, rest);
            }
            // The task may be in the read in which it slept, whose end tells (`read`).
            Some(Step::Sleep(_)) if self.is_after_wait(at, waker) => {}
            // The time between two wake-ups of a call counts as work after the call.
            Some(Step::Wake(..)) if in_call && self.history.has_calls => {
                let rest = self.take_kernel_time(waker, self.overhead.before_wake);
                self.tracks[waker as usize].open = rest << WORK_SHIFT;
            }
            _ => self.close(waker),
        }
    }

    fn fork(
        &mut self,
        at: Nanos,
        cpu: CpuId,
        parent: Option<TaskId>,
        child: TaskId,
        names: &Names,
    ) {
        let known = parent.map(|parent| self.task(parent, names));
        if let Some(parent) = known.filter(|_| self.cpus.task(cpu).is_none()) {
            self.run_unseen(at, cpu, parent);
        }
        // The program of a parent that runs elsewhere does not show where it forks.
        let parent = known.filter(|parent| self.cpus.task(cpu) == Some(*parent));
        let origin = match (parent, known) {
            (Some(parent), _) => Origin::Fork(parent),
            (None, Some(_)) => Origin::Appeared,
            (None, None) => Origin::Start,
        };
        let child = self.forked(at, child, names, origin);
        let Some(parent) = parent else { return };
        self.run_to(cpu, at.saturating_sub(self.overhead.fork));
        self.close(parent);
        self.push(parent, Step::Fork(child));
        self.cpus.busy_until(cpu, at + self.overhead.after_wake);
    }

    /// Returns a task that was forked. The clocks of CPUs differ, so events of the new task can
    /// come before that of its fork; they are then under another id. A task that came during the
    /// recording without a fork is this one, because a thread id is free only after its task's end.
    fn forked(&mut self, at: Nanos, id: TaskId, names: &Names, origin: Origin) -> TaskIndex {
        let pid = names.task(id).map_or(id.0, |name| name.pid);
        let early = |task: &TaskIndex| {
            let t = &self.history.tasks[*task as usize];
            let came = t.born > self.history.start && !self.forked[*task as usize];
            t.ended.is_none() && (came || t.born.saturating_add(CLOCK_SKEW) >= at)
        };
        let Some(task) = self.by_pid.get(&pid).copied().filter(early) else {
            let task = self.add(id, names, origin, State::Ready { since: at });
            self.forked[task as usize] = true;
            return task;
        };
        self.forked[task as usize] = true;
        self.assign(id, task);
        self.refresh_name(task, id, names);
        self.history.tasks[task as usize].origin = origin;
        if self.tracks[task as usize].state == State::Unknown {
            self.tracks[task as usize].state = State::Ready { since: at };
        }
        task
    }

    /// Notes the task that has this id from now on.
    fn assign(&mut self, id: TaskId, task: TaskIndex) {
        if self.slots.len() <= id.idx() {
            self.slots.resize(id.idx() + 1, None);
        }
        self.slots[id.idx()] = Some(task);
    }

    fn call(&mut self, at: Nanos, cpu: CpuId, task: TaskIndex, call: Call) {
        self.history.has_calls = true;
        if self.cpus.task(cpu) != Some(task) {
            self.history.inconsistent += 1;
            return;
        }
        self.tracks[task as usize].message = self.overhead.message(&mut self.users, cpu, &call);
        if matches!(call, Call::Read { .. }) {
            self.read(at, cpu, task, &call);
        } else {
            self.run_to(cpu, at.saturating_sub(self.overhead.before_call(&call)));
            self.close(task);
        }
        self.push(task, Step::Call(at, call));
        self.cpus.busy_until(cpu, at + self.after_call(task, &call));
    }

    /// Returns the costs of a task's last call after its event.
    fn after_call(&self, task: TaskIndex, call: &Call) -> Nanos {
        self.overhead.after_call(call) + self.message_of(task, call)
    }

    /// Returns the costs of the message of a task's last call after its event.
    fn message_of(&self, task: TaskIndex, call: &Call) -> Nanos {
        match call {
            Call::Write { .. } => self.tracks[task as usize].message,
            _ => 0,
        }
    }

    /// Ends the work before a read, whose event is at its end. After a wait, the time until this
    /// end counts as work after the read.
    fn read(&mut self, at: Nanos, cpu: CpuId, task: TaskIndex, call: &Call) {
        let cost = self.overhead.before_call(call);
        let message = self.tracks[task as usize].message;
        let steps = &self.history.tasks[task as usize].steps;
        let before = steps.iter().rev().find(|step| !matches!(step, Step::Wake(..)));
        // What was charged before the wait or the wake-up, and after it.
        let waited = match before {
            Some(Step::Sleep(_)) => self.is_after_wait(at, task).then_some((cost, message)),
            // The read has woken a writer.
            _ if matches!(steps.last(), Some(Step::Wake(..))) => {
                let in_call = at < self.cpus.from(cpu).saturating_add(CALL_LENGTH);
                in_call.then_some((cost + message, 0))
            }
            _ => None,
        };
        match waited {
            Some((before, after)) => {
                self.run_to(cpu, at);
                let rest = self.take_kernel_time(task, after);
                let unpaid = self.correct_last_work(task, before);
                self.tracks[task as usize].open = rest.saturating_sub(unpaid) << WORK_SHIFT;
            }
            None => {
                self.run_to(cpu, at.saturating_sub(cost + message));
                self.close(task);
            }
        }
    }

    /// Whether the task has hardly run since its last wait.
    fn is_after_wait(&self, at: Nanos, task: TaskIndex) -> bool {
        let track = &self.tracks[task as usize];
        at.saturating_sub(track.switched_in) < AFTER_WAIT && track.open >> WORK_SHIFT < AFTER_WAIT
    }

    fn attributes(&mut self, at: Nanos, task: TaskId, names: &Names) {
        let Some(attributes) = names.attributes(task).cloned() else { return };
        let task = self.task(task, names);
        let mut path = attributes.cgroup.as_str();
        while !path.is_empty() {
            if let Some(limits) = names.cgroup(path) {
                self.history.cgroups.insert(path.to_owned(), limits.clone());
            }
            path = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        }
        self.select(task, Some(&attributes));
        let t = &mut self.history.tasks[task as usize];
        let has_acted = t.switches > 0 || !t.steps.is_empty();
        let latest = t.changes.last().or(t.attributes.as_ref());
        match latest {
            Some(latest) if *latest == attributes => {}
            Some(_) if self.begun && has_acted => self.change(at, task, attributes),
            _ => t.attributes = Some(attributes),
        }
    }

    /// Notes new attributes of a task. If it runs, it has set them itself.
    fn change(&mut self, at: Nanos, task: TaskIndex, attributes: TaskAttributes) {
        let mut cpus = self.cpus.ids();
        if let Some(cpu) = cpus.find(|cpu| self.cpus.task(*cpu) == Some(task)) {
            self.run_to(cpu, at.saturating_sub(self.overhead.attributes));
            self.cpus.busy_until(cpu, at);
        }
        self.close(task);
        let t = &mut self.history.tasks[task as usize];
        let change = t.changes.len() as u32;
        if t.in_scope {
            t.changes.push(attributes);
            self.push(task, Step::Change(change));
        }
    }
}

impl Recorder {
    /// Takes an event before the window: only the attributes of tasks and the tasks of the CPUs
    /// matter.
    fn before_window(&mut self, event: &Event, names: &Names) {
        let Event { time: at, cpu, kind } = *event;
        match kind {
            EventKind::Attributes { task } => self.attributes(at, task, names),
            EventKind::Switch { next: Some(next), .. } => _ = self.before.insert(cpu, next),
            EventKind::Switch { next: None, .. } => _ = self.before.remove(&cpu),
            EventKind::Exit { task } if task.idx() < self.slots.len() => {
                self.slots[task.idx()] = None;
            }
            _ => {}
        }
    }

    /// Begins the history at the first event, or at the begin of the window, with the tasks that
    /// run then.
    fn begin(&mut self, at: Nanos, names: &Names) {
        let start = if self.scope.from > 0 { self.scope.from } else { at };
        (self.history.start, self.history.end) = (start, start);
        self.history.tasks.iter_mut().for_each(|task| task.born = start);
        for (cpu, task) in std::mem::take(&mut self.before) {
            let task = self.task(task, names);
            self.history.tasks[task as usize].origin = Origin::Start;
            self.switch_in(start, cpu, task);
        }
    }
}

/// Whether a task is a virtual CPU by its name: KVM's are called `CPU 0/KVM`.
fn is_vcpu(comm: &str) -> bool {
    comm.ends_with("/KVM") || comm.contains("-vcpu")
}

/// Whether a task that sleeps right after this call may wait in it.
fn can_wait(call: &Call) -> bool {
    begins_wait(call) || matches!(call, Call::Write { .. })
}

/// Whether a task that sleeps after this call waits in it.
pub(crate) fn begins_wait(call: &Call) -> bool {
    match call {
        Call::FutexWait { .. }
        | Call::Poll { .. }
        | Call::SleepFor { .. }
        | Call::SleepUntil { .. }
        | Call::Io { .. }
        | Call::Join => true,
        Call::FutexWake { .. }
        | Call::Write { .. }
        | Call::Read { .. }
        | Call::Exec
        | Call::Yield
        | Call::Count { .. } => false,
    }
}

impl Sink for Recorder {
    fn event(&mut self, event: &Event, names: &Names) {
        let Event { time: at, cpu, kind } = *event;
        if self.is_full() || !self.cpus.has(cpu) {
            self.history.inconsistent += u64::from(!self.cpus.has(cpu));
            return;
        }
        if at < self.scope.from {
            return self.before_window(event, names);
        }
        if !std::mem::replace(&mut self.begun, true) {
            self.begin(at, names);
        }
        self.history.end = self.history.end.max(at).min(self.scope.until());
        if at >= self.scope.until() {
            return;
        }
        match kind {
            EventKind::Switch { prev, next, prev_state } => {
                self.switch(at, cpu, (prev, next), prev_state, names);
            }
            EventKind::Wakeup { task, waker, .. } => self.wakeup(at, cpu, task, waker, names),
            EventKind::Fork { parent, child } => self.fork(at, cpu, parent, child, names),
            EventKind::Exit { task } => {
                let task = self.task(task, names);
                if self.cpus.task(cpu) == Some(task) {
                    self.run_to(cpu, at.saturating_sub(self.overhead.exit));
                    self.close(task);
                    self.cpus.busy_until(cpu, Nanos::MAX);
                }
                self.history.tasks[task as usize].ended = Some(at);
            }
            EventKind::Call { task, call } => {
                let task = self.task(task, names);
                self.call(at, cpu, task, call);
            }
            EventKind::Attributes { task } => self.attributes(at, task, names),
            EventKind::GuestRun { .. } => {
                if let Some(task) = self.cpus.task(cpu) {
                    self.history.tasks[task as usize].is_vcpu = true;
                }
            }
            EventKind::Lost { events } => self.history.lost += events,
            _ => {}
        }
    }

    fn finish(&mut self) -> io::Result<()> {
        Ok(())
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! The ops of one pass of a task.
//!
//! Owns: the op for each step, by the meanings of waits, futexes and channels.

use std::collections::BTreeSet;

use scxlab_machine::Nanos;
use scxlab_trace::Call;
use scxlab_workload::program::{Op, TimeSpan, TimerMode};

use super::futexes::{self, Futex};
use super::scale::Copy;
use super::timers::Timers;
use super::units::Unit;
use super::{Plan, Wait};
use super::{attributes, channels};
use crate::history::{Origin, Step, TaskIndex, Waker};

/// An act of a task, with the time of the recording at which it ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    pub at: Nanos,
    pub act: Act,
    /// Task without which the act makes no sense.
    pub with: Option<TaskIndex>,
    /// The copy of the workload to which the act belongs.
    pub copy: Copy,
}

/// A semaphore of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Semaphore {
    /// On which one task waits.
    Of(TaskIndex),
    /// On which one task waits for the ends of its children.
    Exits(TaskIndex),
    /// On which a pool of tasks waits, by the futex that stands for it.
    Shared(u64),
}

impl Semaphore {
    /// Returns the only task that waits.
    pub fn owner(self) -> Option<TaskIndex> {
        match self {
            Semaphore::Of(task) | Semaphore::Exits(task) => Some(task),
            Semaphore::Shared(_) => None,
        }
    }
}

/// A step on the way to an op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Act {
    /// Work in ns.
    Work(Nanos),
    /// An op.
    Op(Op),
    /// The task got this mutex after a wait.
    Acquired(u64),
    /// The task released this mutex, and woke a waiter.
    Released(u64),
    /// The task takes this mutex.
    Lock(u64),
    /// The task releases this mutex.
    Unlock(u64),
    /// The task waits for another one.
    Wait(Semaphore),
    /// The task lets another one go on.
    Post(Semaphore),
}

/// Returns the acts of one pass.
pub fn items(plan: &Plan<'_>, task: TaskIndex) -> Vec<Item> {
    let t = &plan.history.tasks[task as usize];
    let timers = Timers::of(plan, task);
    let at = t.born;
    let mut pass = Pass {
        plan,
        task,
        timers,
        items: Vec::new(),
        at,
        debt: 0,
        polls: None,
        timeouts: timeouts(plan, task),
        polls_again: false,
    };
    for (i, step) in t.steps.iter().enumerate() {
        pass.end_work(step);
        match *step {
            Step::Work(_) if pass.polls_again => {}
            Step::Work(work) => pass.work(work),
            Step::Call(at, call) => {
                pass.polls_again = false;
                pass.at = at;
                pass.call(i, call);
            }
            Step::Sleep(sleep) => pass.sleep(sleep),
            Step::Wake(other, sleep) => pass.wake(other, sleep),
            Step::Fork(child) => pass.fork(child),
            Step::Change(change) => pass.change(change),
        }
    }
    pass.exit();
    pass.end();
    pass.items
}

/// Returns the acts of a later pass, in which only tasks that repeat take part. A child that lived
/// until the end exists already. What a task did for one that does not repeat is not done again.
pub fn again(plan: &Plan<'_>, items: &[Item]) -> Vec<Item> {
    let lives = |t: &TaskIndex| !plan.ends[*t as usize];
    let stays = |item: &Item| match (&item.act, item.with) {
        (Act::Op(Op::Fork(_)), Some(child)) => !lives(&child),
        (Act::Op(Op::Write { .. } | Op::Read { .. } | Op::Poll { .. }), Some(_)) => false,
        (_, Some(with)) => plan.repeats[with as usize],
        (_, None) => true,
    };
    let mut is_gone = false;
    let kept = items.iter().filter(|item| {
        let stays = stays(item);
        if item.act.takes_input() {
            is_gone = !stays;
        }
        stays && !(is_gone && item.act.is_own())
    });
    let mut kept: Vec<Item> = kept.cloned().collect();
    super::locks::sanitize(&mut kept);
    // A pass that takes no time would be endless.
    if kept.iter().any(|item| item.act.takes_time()) { kept } else { Vec::new() }
}

/// Returns the op that waits until the recording's length has passed since the task's begin, or
/// since the op's last turn.
pub fn until_next_recording(plan: &Plan<'_>) -> Op {
    once_in(plan.length())
}

/// Returns the op of a timer with a period of the recording's length, or a task's part of it.
fn once_in(period: Nanos) -> Op {
    Op::Timer {
        name: "recording".to_owned(),
        period: TimeSpan(period),
        mode: TimerMode::Absolute,
        unique: true,
    }
}

/// Whether a pass waits for something but sleeps, or works and sleeps for at least this long, so
/// that it does not begin again at once.
pub fn is_paced(items: &[Item], least: Nanos) -> bool {
    let mut own: Nanos = 0;
    items.iter().any(|item| {
        match &item.act {
            Act::Work(work) => own = own.saturating_add(*work),
            Act::Op(Op::Sleep(length)) => own = own.saturating_add(length.0),
            act => return act.takes_time(),
        }
        false
    }) || own >= least && items.iter().any(|item| matches!(item.act, Act::Op(Op::Sleep(_))))
}

impl Act {
    /// Whether the act waits for what another task sends.
    fn takes_input(&self) -> bool {
        matches!(self, Act::Wait(_) | Act::Op(Op::Read { .. } | Op::Poll { .. }))
    }

    /// Whether the act concerns no other task.
    fn is_own(&self) -> bool {
        matches!(
            self,
            Act::Work(_)
                | Act::Lock(_)
                | Act::Unlock(_)
                | Act::Op(Op::Count(_) | Op::Yield | Op::Exec | Op::Io { .. })
        )
    }

    fn takes_time(&self) -> bool {
        let op = |op: &Op| {
            matches!(op, Op::Sleep(_) | Op::Timer { .. } | Op::Io { .. } | Op::Barrier(_))
        };
        match self {
            Act::Work(_) => true,
            Act::Op(other) => op(other) || self.takes_input(),
            _ => self.takes_input(),
        }
    }
}

/// Work below this part of a poll's timeout is hardly any.
const HARDLY: Nanos = 100;

/// Returns the waits that are a poll's timeout, after which the task does hardly anything but poll
/// again until it reads from a channel. Its op then polls again by itself, because data may come
/// earlier or later than in the recording.
fn timeouts(plan: &Plan<'_>, task: TaskIndex) -> BTreeSet<u32> {
    let steps = &plan.history.tasks[task as usize].steps;
    let mut timeouts = BTreeSet::new();
    // From the step on: whether such a read comes, and the work until the next poll before it.
    let (mut reads, mut work) = (false, None);
    for (i, step) in steps.iter().enumerate().rev() {
        match step {
            Step::Call(_, Call::Read { object, .. }) => {
                (reads, work) = (plan.channels.has(*object), None);
            }
            Step::Call(_, Call::Poll { .. }) => work = Some(0),
            Step::Work(ns) => work = work.map(|work: Nanos| work.saturating_add(*ns)),
            Step::Sleep(sleep) => {
                let before = i.checked_sub(1).map(|before| &steps[before]);
                if let (Some(Step::Call(_, Call::Poll { timeout: Some(timeout) })), Some(work)) =
                    (before, work)
                    && reads
                    && work <= timeout / HARDLY
                {
                    timeouts.insert(*sleep);
                }
            }
            Step::Wake(..) => {}
            Step::Call(..) | Step::Fork(_) | Step::Change(_) => (reads, work) = (false, None),
        }
    }
    timeouts
}

struct Pass<'a> {
    plan: &'a Plan<'a>,
    task: TaskIndex,
    timers: Timers,
    items: Vec<Item>,
    /// Time of the present step.
    at: Nanos,
    /// Costs of ops that the recording did not have, or had as part of its work.
    debt: Nanos,
    /// The task polls before its next read, with this timeout.
    polls: Option<Option<Nanos>>,
    /// Waits that are timeouts of polls, and part of the next poll.
    timeouts: BTreeSet<u32>,
    /// Whether the task is between a poll's timeout and the next poll, which is part of it.
    polls_again: bool,
}

impl Pass<'_> {
    fn op(&mut self, op: Op) {
        self.push(Act::Op(op), None);
    }

    fn push(&mut self, act: Act, with: Option<TaskIndex>) {
        self.items.push(Item { at: self.at, act, with, copy: 0 });
    }

    fn work(&mut self, work: Nanos) {
        let paid = work.min(self.debt);
        self.debt -= paid;
        if work > paid {
            self.push(Act::Work(work - paid), None);
        }
    }

    /// Notes the time at which work ended: when the next step began.
    fn end_work(&mut self, next: &Step) {
        let history = self.plan.history;
        let tasks = &history.tasks;
        let begin = match *next {
            Step::Call(at, _) => Some(at),
            Step::Sleep(sleep) => Some(tasks[self.task as usize].sleeps[sleep as usize].from),
            Step::Wake(other, sleep) => tasks[other as usize].sleeps[sleep as usize].until,
            Step::Fork(child) => Some(tasks[child as usize].born),
            Step::Work(_) | Step::Change(_) => None,
        };
        let last = self.items.last_mut().filter(|item| matches!(item.act, Act::Work(_)));
        if let (Some(last), Some(begin)) = (last, begin) {
            last.at = last.at.max(begin);
        }
    }

    fn fork(&mut self, child: TaskIndex) {
        self.at = self.plan.history.tasks[child as usize].born;
        if self.plan.is_kept(child) {
            let name = self.plan.names[child as usize].clone();
            self.push(Act::Op(Op::Fork(name)), Some(child));
        }
    }

    fn call(&mut self, at: usize, call: Call) {
        match call {
            Call::Write { object, bytes, .. } => self.transfer(at, call, object, bytes),
            Call::Read { object, bytes, .. } => self.transfer(at, call, object, bytes),
            Call::Poll { timeout } => self.polls = Some(timeout),
            Call::SleepUntil { at: end } => {
                match self.timers.call(self.plan.since_birth(self.task, end)) {
                    Some(timer) => self.op(timer),
                    // The call came after that time.
                    None if !self.sleeps_after(at) => self.op(Op::Sleep(TimeSpan(0))),
                    None => {}
                }
            }
            Call::FutexWake { object, .. } => self.futex_wake(at, object),
            Call::Io { bytes } if !self.sleeps_after(at) => {
                self.op(Op::Io { bytes, null: true });
            }
            Call::Exec => self.op(Op::Exec),
            Call::Yield => self.op(Op::Yield),
            Call::Count { units } if self.plan.unit == Unit::Reported => self.op(Op::Count(units)),
            Call::FutexWait { object, .. } if self.is_barging(object) && !self.sleeps_after(at) => {
                self.acquired(object);
            }
            Call::Io { .. }
            | Call::SleepFor { .. }
            | Call::FutexWait { .. }
            | Call::Join
            | Call::Count { .. } => {}
        }
    }

    fn sleeps_after(&self, at: usize) -> bool {
        let steps = &self.plan.history.tasks[self.task as usize].steps;
        matches!(steps.get(at + 1), Some(Step::Sleep(_)))
    }

    fn transfer(&mut self, at: usize, call: Call, object: u64, recorded: u64) {
        let polls = self.polls.take();
        let channels = &self.plan.channels;
        if !channels.has(object) {
            let overhead = &self.plan.overhead;
            let cost = overhead.before_call(&call) + overhead.after_call(&call);
            return self.push(Act::Work(cost), None);
        }
        let repeats = |t: &TaskIndex| self.plan.repeats[*t as usize];
        let with = channels.parties(object).find(|t| !repeats(t));
        let bytes = channels.bytes(self.task, at as u32, recorded);
        let pipe = channels::name(object);
        match (call, polls) {
            _ if bytes == 0 => {}
            (Call::Write { .. }, _) => self.push(Act::Op(Op::Write { pipe, bytes }), with),
            (_, Some(timeout)) => {
                // A poll that does not wait tells nothing of how long the next one may.
                let timeout = timeout.filter(|length| *length > 0).map(TimeSpan);
                let again = timeout.is_some();
                let pipes = channels.polled_with(self.task, object);
                let pipes = pipes.into_iter().map(channels::name).collect();
                self.push(Act::Op(Op::Poll { pipes, bytes, timeout, again }), with);
            }
            (_, None) => self.push(Act::Op(Op::Read { pipe, bytes }), with),
        }
    }

    fn futex_wake(&mut self, at: usize, object: u64) {
        let steps = &self.plan.history.tasks[self.task as usize].steps;
        let waits = futexes::woken(&steps[at + 1..]).map(|(t, s)| self.plan.wait(t, s));
        let mut waits = waits.peekable();
        if waits.peek().is_none() {
            if self.is_barging(object) {
                self.push(Act::Released(object), None);
            }
            return;
        }
        let waits: Vec<Wait> = waits.collect();
        match self.plan.futexes.get(&object) {
            Some(Futex::Barrier(_)) if waits.contains(&Wait::Barrier(object)) => {
                self.barrier(object);
            }
            Some(Futex::Mutex { .. }) => self.push(Act::Released(object), None),
            _ => {
                // Each post charges a call, where the recording had one for all.
                let posts = waits.iter().filter(|w| **w == Wait::Dependency).count() as u64;
                let call = self.plan.overhead.after_call(&Call::FutexWake { object, most: 1 });
                self.debt += posts.saturating_sub(1) * call;
            }
        }
    }

    fn is_barging(&self, object: u64) -> bool {
        self.plan.futexes.get(&object) == Some(&Futex::Mutex { barging: true })
    }

    /// Notes that the task got a mutex. Every release of a barging mutex after a wait is a call, so
    /// that a second wait before a release shows that the task did not get it at the first.
    fn acquired(&mut self, object: u64) {
        if self.is_barging(object) {
            let is_of =
                |act: &Act| matches!(act, Act::Acquired(o) | Act::Released(o) if *o == object);
            let last = self.items.iter().rposition(|item| is_of(&item.act));
            if let Some(last) = last.filter(|i| self.items[*i].act == Act::Acquired(object)) {
                self.items.remove(last);
            }
        }
        self.push(Act::Acquired(object), None);
    }

    fn barrier(&mut self, object: u64) {
        self.op(Op::Barrier(futexes::barrier_name(object)));
    }

    fn sleep(&mut self, sleep: u32) {
        let wait = self.plan.wait(self.task, sleep);
        let recorded = self.plan.history.tasks[self.task as usize].sleeps[sleep as usize];
        self.at = recorded.until.unwrap_or(recorded.from);
        match wait {
            Wait::Open | Wait::Channel | Wait::Timer | Wait::Start => {}
            Wait::Barrier(object) => self.barrier(object),
            Wait::Mutex(object) => self.acquired(object),
            Wait::For(_) if self.timeouts.contains(&sleep) => self.polls_again = true,
            Wait::For(length) => self.op(Op::Sleep(TimeSpan(length))),
            Wait::Dependency => {
                let plan = self.plan;
                if let Some(children) = plan.exits.told_by(self.task, sleep) {
                    let told = Act::Wait(Semaphore::Exits(self.task));
                    children.iter().for_each(|child| self.push(told.clone(), Some(*child)));
                    return;
                }
                let by = match recorded.by {
                    Waker::Task(by) => Some(by),
                    _ => None,
                };
                self.push(Act::Wait(plan.semaphore(self.task, sleep)), by);
            }
            Wait::Io { bytes: 0 } => {
                let due = recorded.due().unwrap_or(self.plan.history.end);
                self.op(Op::Sleep(TimeSpan(due.saturating_sub(recorded.from))));
            }
            Wait::Io { bytes } => self.op(Op::Io { bytes, null: false }),
            Wait::Arrival => {
                let at = recorded.due().unwrap_or(self.plan.history.end);
                let arrival = self.timers.arrival(self.plan.since_birth(self.task, at));
                self.op(arrival);
            }
        }
    }

    fn change(&mut self, change: u32) {
        let t = &self.plan.history.tasks[self.task as usize];
        let before = match change.checked_sub(1) {
            None => t.attributes.as_ref(),
            Some(before) => t.changes.get(before as usize),
        };
        let Some(before) = before else { return };
        attributes::change(before, &t.changes[change as usize])
            .into_iter()
            .for_each(|op| self.op(op));
    }

    fn wake(&mut self, other: TaskIndex, sleep: u32) {
        if self.plan.is_kept(other) && self.plan.wait(other, sleep) == Wait::Dependency {
            let until = self.plan.history.tasks[other as usize].sleeps[sleep as usize].until;
            self.at = until.unwrap_or(self.at);
            let semaphore = match self.plan.exits.told_by(other, sleep) {
                Some(_) => Semaphore::Exits(other),
                None => self.plan.semaphore(other, sleep),
            };
            self.push(Act::Post(semaphore), Some(other));
        }
    }

    /// Tells the parent of the task's end, if the parent counts it and was awake.
    fn exit(&mut self) {
        let task = &self.plan.history.tasks[self.task as usize];
        let Origin::Fork(parent) = task.origin else { return };
        let told = Act::Post(Semaphore::Exits(parent));
        if self.plan.exits.counts(self.task) && !self.items.iter().any(|item| item.act == told) {
            self.at = task.ended.unwrap_or(self.at);
            self.push(told, Some(parent));
        }
    }

    /// Ends the pass. A pass with arrivals, and that of a task that was asleep for long at the
    /// recording's end, lasts as long as the recording.
    fn end(&mut self) {
        let task = &self.plan.history.tasks[self.task as usize];
        if !self.plan.repeats[self.task as usize] || self.plan.ends[self.task as usize] {
            return;
        }
        if let (Some(last), Some(first)) = (task.changes.last(), &task.attributes) {
            attributes::change(last, first).into_iter().for_each(|op| self.op(op));
        }
        self.at = self.plan.history.end;
        let end = self.plan.since_birth(self.task, self.at);
        if let Some(rest) = self.timers.rest(end) {
            self.op(rest);
        } else if self.sleeps_long(end) {
            self.op(once_in(end));
        }
    }

    /// Whether the task slept at the end of the recording for longer than ever before, and for at
    /// least a tenth of the recording.
    fn sleeps_long(&self, length: Nanos) -> bool {
        let task = &self.plan.history.tasks[self.task as usize];
        let end = self.plan.history.end;
        let Some((last, before)) = task.sleeps.split_last() else { return false };
        let longest =
            before.iter().filter_map(|s| Some(s.until?.saturating_sub(s.from))).max().unwrap_or(0);
        let slept = end.saturating_sub(last.from);
        last.until.is_none() && slept > longest && slept > length / 10
    }
}

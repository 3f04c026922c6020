// SPDX-License-Identifier: GPL-2.0-only
//! The meaning of each wait.
//!
//! Owns: the rules, in the order in which they apply.
//!
//! 1. A wait that did not end in the recording has no meaning.
//! 2. A wait that an interrupt ended after a system call that sleeps has the call's meaning. Calls
//!    that sleep until a time are sleeps for a length if most of a task's are made equally long
//!    before that time (`timers.rs`).
//! 3. A wait for a futex that a call on the same futex ended is one for the futex, whatever follows
//!    it.
//! 4. A wait before a read, or after a write, of a channel within the workload belongs to the
//!    channel.
//! 5. A wait after another system call has the call's meaning.
//! 6. A wait that another task of the workload ended is a dependency on that task.
//! 7. A wait of a virtual CPU that an interrupt or a virtual CPU of its guest ended is a sleep of
//!    that length: the timers of a guest are its own, and its scheduler moves work to whichever
//!    virtual CPU is free.
//! 8. A wait that something outside ended is an arrival at that time; if the waits of the task that
//!    ended so had nearly the same length, it is a sleep of that length.
//! 9. A task's only arrival, before anything else that it does and after at most a tenth of the
//!    recording, is the begin of its thread: it may be the rest of a wait from before the
//!    recording, of which nothing tells that it comes again.

use std::collections::BTreeSet;

use scxlab_machine::Nanos;
use scxlab_trace::Call;

use super::futexes::{self, Futex, median};
use super::{Plan, timers};
use crate::history::{Sleep, Step, TaskHistory, TaskIndex, Waker};

/// The meaning of a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The task slept until the end of the recording.
    Open,
    /// For bytes in a channel, or for room in it.
    Channel,
    /// At a barrier.
    Barrier(u64),
    /// For a mutex.
    Mutex(u64),
    /// For the task that ended the wait.
    Dependency,
    /// For this long.
    For(Nanos),
    /// Until a time that the system call names.
    Timer,
    /// For a device.
    Io {
        /// Bytes of the transfer; 0: unknown.
        bytes: u64,
    },
    /// For something outside the workload, which came at the time of the wake-up.
    Arrival,
    /// Before the thread's begin.
    Start,
}

/// Returns the meaning of each wait of each task.
pub fn classify(plan: &Plan<'_>) -> Vec<Vec<Wait>> {
    let tasks = 0..plan.history.tasks.len();
    let by_futex = by_futex(plan);
    tasks.map(|task| of_task(plan, task as TaskIndex, &by_futex)).collect()
}

/// Returns the waits for a futex that a call on the same futex ended. A task that did not wait for
/// the futex may have slept in the call after.
fn by_futex(plan: &Plan<'_>) -> BTreeSet<(TaskIndex, u32)> {
    let mut waits = BTreeSet::new();
    for waker in plan.tasks() {
        let steps = &plan.history.tasks[waker as usize].steps;
        for (i, step) in steps.iter().enumerate() {
            let Step::Call(_, Call::FutexWake { object, .. }) = *step else { continue };
            let is_of = |(task, sleep): &(TaskIndex, u32)| {
                let task = &plan.history.tasks[*task as usize];
                futexes::waited_on(task, *sleep) == Some(object)
            };
            waits.extend(futexes::woken(&steps[i + 1..]).filter(is_of));
        }
    }
    waits
}

/// Facts about a wait that its own steps do not show.
#[derive(Clone, Copy)]
struct Known {
    /// Length of the task's waits that interrupts ended without a system call.
    steady: Option<Nanos>,
    /// Whether the task's sleeps until a time are delays.
    delays: bool,
    /// Whether a call on the futex for which the task waits ended the wait.
    by_futex: bool,
}

fn of_task(plan: &Plan<'_>, task: TaskIndex, by_futex: &BTreeSet<(TaskIndex, u32)>) -> Vec<Wait> {
    let t = &plan.history.tasks[task as usize];
    let (steady, delays) = (steady_length(t), timers::are_delays(t));
    let mut waits = vec![Wait::Open; t.sleeps.len()];
    for (i, step) in t.steps.iter().enumerate() {
        if let Step::Sleep(sleep) = *step {
            let by_futex = by_futex.contains(&(task, sleep));
            let known = Known { steady, delays, by_futex };
            waits[sleep as usize] = meaning(plan, t, i, &t.sleeps[sleep as usize], known);
        }
    }
    let first = t.steps.iter().find(|step| !matches!(step, Step::Work(_)));
    let is_first = first == Some(&Step::Sleep(0)) && waits[0] == Wait::Arrival;
    let arrivals = waits.iter().filter(|wait| **wait == Wait::Arrival).count();
    if is_first && arrivals == 1 && is_short(plan, &t.sleeps[0]) && !plan.is_forked(task) {
        waits[0] = Wait::Start;
    }
    waits
}

/// Whether a wait takes at most a tenth of the recording. A task that waits for longer may do
/// nothing but wait.
fn is_short(plan: &Plan<'_>, sleep: &Sleep) -> bool {
    sleep.until.is_some_and(|until| until.saturating_sub(sleep.from) <= plan.length() / 10)
}

fn meaning(plan: &Plan<'_>, task: &TaskHistory, at: usize, sleep: &Sleep, known: Known) -> Wait {
    let Known { steady, delays, by_futex } = known;
    let Some(until) = sleep.until else { return open(task, at, delays) };
    let length = until.saturating_sub(sleep.from);
    let sibling = |waker: TaskIndex| {
        let waker = &plan.history.tasks[waker as usize];
        task.is_vcpu && waker.is_vcpu && waker.name.tgid == task.name.tgid
    };
    let by_task = matches!(sleep.by, Waker::Task(waker) if plan.is_kept(waker) && !sibling(waker));
    let by_nobody = !matches!(sleep.by, Waker::Task(_));
    // The read may have woken a writer before it ended.
    let after = task.steps[at + 1..].iter().find(|s| !matches!(s, Step::Wake(..)));
    let before = task.steps[..at].iter().rev().find(|s| !matches!(s, Step::Wake(..)));
    let has_cause = by_futex || by_nobody && is_wait(before) && !is_poll(before);
    if let Some(Step::Call(_, Call::Read { object, .. })) = after
        && !has_cause
    {
        return if plan.channels.has(*object) { Wait::Channel } else { Wait::Arrival };
    }
    if after.is_none() && plan.history.has_calls && !is_wait(before) {
        // The wait was in a read whose end the recording does not have.
        return Wait::Open;
    }
    let Some(Step::Call(called, call)) = before else {
        return without_call(by_task, task.is_vcpu, sleep, steady);
    };
    match *call {
        Call::Write { object, .. } if plan.channels.has(object) => Wait::Channel,
        Call::SleepFor { length } if by_nobody => Wait::For(length),
        Call::SleepUntil { at: end } if by_nobody => until_time(delays, *called, end),
        Call::Io { bytes } if by_nobody => Wait::Io { bytes },
        Call::FutexWait { object, .. } if by_task => match plan.futexes.get(&object) {
            Some(Futex::Barrier(_)) => Wait::Barrier(object),
            Some(Futex::Mutex { .. }) => Wait::Mutex(object),
            _ => Wait::Dependency,
        },
        Call::FutexWait { timeout: Some(timeout), .. } | Call::Poll { timeout: Some(timeout) }
            if by_nobody && length.saturating_mul(100) >= timeout.saturating_mul(95) =>
        {
            Wait::For(timeout)
        }
        _ => without_call(by_task, task.is_vcpu, sleep, steady),
    }
}

fn is_poll(step: Option<&Step>) -> bool {
    matches!(step, Some(Step::Call(_, Call::Poll { .. })))
}

/// Whether the step is a system call that waits.
fn is_wait(step: Option<&Step>) -> bool {
    matches!(step, Some(Step::Call(_, call)) if crate::gather::begins_wait(call))
}

/// Returns the meaning of a wait that lasted until the end of the recording.
fn open(task: &TaskHistory, at: usize, delays: bool) -> Wait {
    match task.steps[..at].last() {
        Some(Step::Call(_, Call::SleepFor { length })) => Wait::For(*length),
        Some(Step::Call(called, Call::SleepUntil { at })) => until_time(delays, *called, *at),
        _ => Wait::Open,
    }
}

/// Returns the meaning of a sleep until a time.
fn until_time(delays: bool, called: Nanos, end: Nanos) -> Wait {
    if delays { Wait::For(end.saturating_sub(called)) } else { Wait::Timer }
}

fn without_call(by_task: bool, is_vcpu: bool, sleep: &Sleep, steady: Option<Nanos>) -> Wait {
    let length = sleep.until.unwrap_or(sleep.from).saturating_sub(sleep.from);
    let set = sleep.due().unwrap_or(sleep.from).saturating_sub(sleep.from);
    match (by_task, steady) {
        (true, _) => Wait::Dependency,
        // Not `set`: with it the median of guests' waits is 5.0 % off, and less without. Why is
        // not known, because nothing tells which of a guest's timers ended the sleep.
        (false, _) if is_vcpu => Wait::For(length),
        (false, _) if sleep.uninterruptible => Wait::For(set),
        (false, Some(steady)) if is_near(length, steady) => Wait::For(set),
        _ => Wait::Arrival,
    }
}

/// Returns the length of the task's waits that interrupts ended without a system call, if nine of
/// ten have nearly the same.
fn steady_length(task: &TaskHistory) -> Option<Nanos> {
    let outside = |s: &&Sleep| s.by == Waker::Interrupt && !s.uninterruptible;
    let lengths: Vec<Nanos> = task
        .sleeps
        .iter()
        .filter(outside)
        .filter_map(|s| Some(s.until?.saturating_sub(s.from)))
        .collect();
    let count = lengths.len();
    let middle = median(lengths.clone())?;
    let near = lengths.iter().filter(|l| is_near(**l, middle)).count();
    (count >= 8 && near * 10 >= count * 9).then_some(middle)
}

/// Whether two lengths differ by at most a twentieth.
pub(super) fn is_near(a: Nanos, b: Nanos) -> bool {
    a.abs_diff(b) <= b / 20
}

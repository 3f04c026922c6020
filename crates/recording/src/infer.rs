// SPDX-License-Identifier: GPL-2.0-only
//! Inference of a program from a history: each task becomes a thread with ops.
//!
//! Owns: the order of the analyses, and the tasks that are part of the workload.
//! Does not: measure work (see `gather`).
//!
//! Each wait gets one meaning (`waits`). A wait for a task becomes a dependency on that point of
//! the other task's program, and never on a time. Only waits for something outside the workload
//! keep their times.

mod attributes;
mod channels;
mod futexes;
mod locks;
mod passes;
mod regular;
mod rehearse;
mod roles;
mod task;
mod timers;
mod units;
mod waits;

use std::collections::{BTreeMap, BTreeSet};

use scxlab_machine::{Machine, Nanos};
use scxlab_workload::program::{PipeDef, Program, ThreadTemplate, TimeSpan};

use crate::history::{History, Origin, TaskHistory, TaskIndex};
use crate::overhead::Overhead;
pub use futexes::Futex;
pub use roles::name as role_name;
use task::{Item, Semaphore};
pub use waits::Wait;

/// Wishes of the user.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Name of the program.
    pub name: String,
}

/// Reason why a recording is no workload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InferError {
    /// No task of the recording did anything.
    #[error("the recording has no task that ran")]
    NoTasks,
}

/// A recording as a workload.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The program.
    pub program: Program,
    /// Whether each task of the history is part of the workload.
    pub kept: Vec<bool>,
    /// Meaning of each wait of each task of the history.
    pub waits: Vec<Vec<Wait>>,
    /// Meaning of each futex.
    pub futexes: BTreeMap<u64, Futex>,
}

/// Infers the program of a recording on a machine.
///
/// Posts and waits that the recording does not show are inferred, and pools of tasks share a
/// semaphore. If a rehearsal of that program does not end, the program has only the visible ones,
/// each for its own task.
pub fn infer(
    history: &History,
    machine: &Machine,
    options: &Options,
) -> Result<Replay, InferError> {
    let mut plan = Plan::new(history, Overhead::of(machine));
    if !plan.kept.contains(&true) {
        return Err(InferError::NoTasks);
    }
    let mut program = program(&plan, machine, options, true);
    if !rehearse::ends(&program) {
        plan.shared.clear();
        program = self::program(&plan, machine, options, false);
        if !rehearse::ends(&program) {
            let note = "its threads may come to wait for one another for ever";
            program.notes.push(format!("{}: {note}", options.name));
        }
    }
    Ok(Replay { program, kept: plan.kept, waits: plan.waits, futexes: plan.futexes })
}

/// Returns the program of a plan. `complete`: with inferred posts and waits.
fn program(plan: &Plan<'_>, machine: &Machine, options: &Options, complete: bool) -> Program {
    let history = plan.history;
    let counted = units::has_counts(plan);
    let finite =
        (0..history.tasks.len()).all(|t| !plan.kept[t] || history.tasks[t].ended.is_some());
    let of = |task| (task, task::items(plan, task));
    let visible: BTreeMap<TaskIndex, Vec<Item>> = plan.tasks().map(of).collect();
    let holds = locks::holds(&visible);
    let place = |(task, items)| (task, locks::place(items, task, &holds));
    let mut items: BTreeMap<TaskIndex, Vec<Item>> = visible.into_iter().map(place).collect();
    let semaphores = if complete { regular::complete(plan, &mut items) } else { Vec::new() };
    items.values_mut().for_each(locks::sanitize);
    Program {
        name: options.name.clone(),
        doc: format!("A recording of {} tasks on {}.", items.len(), machine.name),
        unit: if counted { "unit" } else { "step" }.to_owned(),
        duration: (!finite).then_some(TimeSpan(plan.length())),
        cgroups: attributes::cgroups(plan),
        barriers: futexes::barriers(plan),
        mutexes: futexes::mutexes(plan),
        pipes: plan.channels.pipes(),
        semaphores,
        threads: threads(plan, &items, counted),
        ..Program::default()
    }
}

fn threads(
    plan: &Plan<'_>,
    items: &BTreeMap<TaskIndex, Vec<Item>>,
    counted: bool,
) -> Vec<ThreadTemplate> {
    // Thread ids tell the order in which the tasks were made, and so their first CPUs.
    let mut order: Vec<(TaskIndex, &Vec<Item>)> = items.iter().map(|(t, i)| (*t, i)).collect();
    order.sort_by_key(|(task, _)| plan.history.tasks[*task as usize].name.pid);
    let thread = |(task, items): (TaskIndex, &Vec<Item>)| {
        let ops = passes::ops(plan, task, items, counted);
        let used = !ops.is_empty() || plan.is_forked(task);
        used.then(|| attributes::thread(plan, task, ops))
    };
    order.into_iter().filter_map(thread).collect()
}

/// The results of the analyses.
struct Plan<'a> {
    history: &'a History,
    overhead: Overhead,
    /// Whether each task is part of the workload.
    kept: Vec<bool>,
    /// Name of each task's thread.
    names: Vec<String>,
    /// Whether each task begins again after its last step, because it lived until the end.
    repeats: Vec<bool>,
    waits: Vec<Vec<Wait>>,
    futexes: BTreeMap<u64, Futex>,
    channels: channels::Channels,
    /// Role of each task.
    roles: Vec<u32>,
    /// Futexes on which several tasks of one role wait for others.
    shared: BTreeSet<u64>,
}

impl<'a> Plan<'a> {
    fn new(history: &'a History, overhead: Overhead) -> Plan<'a> {
        let kept = workload(history);
        let mut plan = Plan {
            history,
            overhead,
            names: attributes::names(history),
            repeats: repeats(history, &kept),
            waits: Vec::new(),
            futexes: BTreeMap::new(),
            channels: channels::Channels::new(history, &kept),
            roles: roles::roles(history),
            shared: BTreeSet::new(),
            kept,
        };
        plan.futexes = futexes::classify(&plan);
        plan.waits = waits::classify(&plan);
        plan.shared = roles::shared(&plan);
        plan
    }

    /// Returns the tasks of the workload.
    fn tasks(&self) -> impl Iterator<Item = TaskIndex> + '_ {
        (0..self.kept.len()).filter(|t| self.kept[*t]).map(|t| t as TaskIndex)
    }

    fn is_kept(&self, task: TaskIndex) -> bool {
        self.kept[task as usize]
    }

    /// Whether a task of the workload forks this one.
    fn is_forked(&self, task: TaskIndex) -> bool {
        matches!(self.history.tasks[task as usize].origin, Origin::Fork(p) if self.is_kept(p))
    }

    /// Returns the length of the recording.
    fn length(&self) -> Nanos {
        (self.history.end - self.history.start).max(1)
    }

    /// Returns a time of the recording since the begin of a task's thread.
    fn since_birth(&self, task: TaskIndex, at: Nanos) -> Nanos {
        let task = &self.history.tasks[task as usize];
        let base = match task.origin {
            Origin::Start => self.history.start,
            Origin::Fork(_) | Origin::Appeared => task.born,
        };
        at.saturating_sub(base)
    }

    /// Returns the semaphore that stands for a wait for a task.
    fn semaphore(&self, task: TaskIndex, sleep: u32) -> Semaphore {
        let futex = futexes::waited_on(&self.history.tasks[task as usize], sleep);
        match futex.filter(|f| self.shared.contains(f)) {
            Some(futex) => Semaphore::Shared(futex),
            None => Semaphore::Of(task),
        }
    }

    fn semaphore_name(&self, semaphore: Semaphore) -> String {
        match semaphore {
            Semaphore::Of(task) => format!("wake {}", self.names[task as usize]),
            Semaphore::Shared(futex) => format!("futex {futex:#x}"),
        }
    }

    fn wait(&self, task: TaskIndex, sleep: u32) -> Wait {
        self.waits[task as usize][sleep as usize]
    }
}

/// Tells which tasks are the workload: those that ran, without kernel threads. A recording of some
/// of a machine's tasks has attributes of these only; the others are the world around them.
fn workload(history: &History) -> Vec<bool> {
    let chosen = history.tasks.iter().any(|t| t.attributes.is_some());
    let is_in = |t: &TaskHistory| t.attributes.is_some() || !chosen;
    history.tasks.iter().map(|t| is_in(t) && !t.is_kthread() && !t.steps.is_empty()).collect()
}

/// Tells which tasks begin again: those that lived until the end, and the children of those.
fn repeats(history: &History, kept: &[bool]) -> Vec<bool> {
    let mut repeats = vec![false; history.tasks.len()];
    for (i, task) in history.tasks.iter().enumerate() {
        repeats[i] = task.ended.is_none()
            || matches!(task.origin, Origin::Fork(p) if kept[p as usize] && repeats[p as usize]);
    }
    repeats
}

/// Returns a pipe's declaration.
fn pipe(name: String, kind: scxlab_trace::ChannelKind) -> PipeDef {
    use scxlab_trace::ChannelKind;
    use scxlab_workload::program::PipeKind;
    let kind = match kind {
        ChannelKind::Pipe | ChannelKind::EventFd => PipeKind::Pipe,
        ChannelKind::Socket | ChannelKind::Outside => PipeKind::Socket,
    };
    PipeDef::new(&name, kind)
}

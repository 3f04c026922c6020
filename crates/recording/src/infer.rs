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
mod exits;
mod futexes;
mod locks;
mod passes;
mod pools;
mod regular;
mod rehearse;
mod roles;
mod scale;
mod task;
mod timers;
mod together;
mod units;
mod waits;

use std::collections::{BTreeMap, BTreeSet};

use scxlab_machine::{Machine, Nanos};
use scxlab_workload::program::{PipeDef, Program, ThreadTemplate, TimeSpan};

use crate::history::{History, Origin, Step, TaskHistory, TaskIndex};
use crate::overhead::Overhead;
pub use futexes::Futex;
pub use roles::name as role_name;
pub use scale::Scale;
use scale::{Copy, Scaled};
use task::{Item, Semaphore};
use units::Unit;
pub use waits::Wait;

/// Wishes of the user.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Name of the program.
    pub name: String,
    /// The load from outside, compared with the recording.
    pub scale: Scale,
    /// Patterns of the names of the tasks whose work counts, in which `*` stands for any text and
    /// `?` for one character. Without any, all tasks' work counts, or the units that they reported.
    pub steps: Vec<String>,
    /// What waits for mutexes become.
    pub mutexes: Mutexes,
}

/// What waits for mutexes become.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mutexes {
    /// Waits for whoever holds the mutex. Its uses without contention are inferred.
    #[default]
    Used,
    /// Dependencies on the tasks that released it in the recording.
    Dependencies,
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
    /// Units of work that the tasks of the program do in the length of the recording.
    pub units: u64,
}

impl Replay {
    /// Whether tasks of the program wait for whoever holds a mutex.
    pub fn has_mutexes(&self) -> bool {
        self.futexes.values().any(|futex| matches!(futex, Futex::Mutex { .. }))
    }
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
    let mut plan = Plan::new(history, Overhead::of(machine), options);
    if !plan.kept.contains(&true) {
        return Err(InferError::NoTasks);
    }
    let mut tasks = history.tasks.iter().zip(&plan.kept);
    let recorder = tasks.find(|(t, kept)| t.in_scope && !**kept && is_recorder(t));
    let mut complete = true;
    let mut program = program(&plan, machine, options, Copies { complete, ..Copies::ONE });
    if !rehearse::ends(&program) {
        plan.pools.clear();
        complete = false;
        program = self::program(&plan, machine, options, Copies { complete, ..Copies::ONE });
        if !rehearse::ends(&program) {
            let note = "its threads may come to wait for one another for ever";
            program.notes.push(format!("{}: {note}", options.name));
        }
    }
    if let Some((task, _)) = recorder {
        let note = format!("{} made the recording, and is no part of the workload", task.name.comm);
        program.notes.push(format!("{}: {note}", options.name));
    }
    let units = passes::units(&program);
    if !options.scale.is_one() {
        program = scaled(&plan, machine, options, complete, program);
    }
    Ok(Replay { program, kept: plan.kept, waits: plan.waits, futexes: plan.futexes, units })
}

/// Which program a plan becomes.
#[derive(Clone, Copy)]
struct Copies {
    /// With inferred posts and waits.
    complete: bool,
    scale: Scale,
    /// Whether all tasks are copied, so that none serves several copies.
    whole: bool,
    /// Number of the draw of a part of the clients.
    draw: u32,
}

/// Number of draws of a part of the clients.
const DRAWS: u32 = 8;

impl Copies {
    const ONE: Copies =
        Copies { complete: true, scale: Scale { permille: 1000 }, whole: false, draw: 0 };
}

/// Returns the program with more or fewer clients. `one` is the program of the recorded ones.
fn scaled(
    plan: &Plan<'_>,
    machine: &Machine,
    options: &Options,
    complete: bool,
    one: Program,
) -> Program {
    let of = |whole, draw| {
        let copies = Copies { complete, scale: options.scale, whole, draw };
        let mut program = program(plan, machine, options, copies);
        program.notes.splice(0..0, one.notes.iter().cloned());
        program
    };
    // A part of the clients can be one that the servers' order of requests does not suit.
    let draws = if options.scale.permille.is_multiple_of(1000) { 1 } else { DRAWS };
    for draw in 0..draws {
        let program = of(false, draw);
        if rehearse::ends(&program) || !rehearse::ends(&one) {
            return program;
        }
    }
    let mut program = of(true, 0);
    program.notes.push(format!(
        "{}: the servers of the recording cannot serve other clients than the recorded ones in \
         their order, so that all tasks are copied",
        options.name
    ));
    program
}

/// Returns the program of a plan.
fn program(plan: &Plan<'_>, machine: &Machine, options: &Options, copies: Copies) -> Program {
    let history = plan.history;
    let finite =
        (0..history.tasks.len()).all(|t| !plan.kept[t] || history.tasks[t].ended.is_some());
    let of = |task| (task, task::items(plan, task));
    let visible: BTreeMap<TaskIndex, Vec<Item>> = plan.tasks().map(of).collect();
    let holds = locks::holds(&visible);
    let place = |(task, items)| (task, locks::place(items, task, &holds));
    let mut items: BTreeMap<TaskIndex, Vec<Item>> = visible.into_iter().map(place).collect();
    let starts = match copies.complete {
        true => regular::complete(plan, &mut items),
        false => regular::Starts::default(),
    };
    items.values_mut().for_each(locks::sanitize);
    let tasks = items.len();
    let scaled = scale::scale(plan, items, copies);
    let mut program = Program {
        name: options.name.clone(),
        doc: format!("A recording of {tasks} tasks on {}.", machine.name),
        unit: plan.unit.name().to_owned(),
        duration: (!finite).then_some(TimeSpan(plan.length())),
        cgroups: attributes::cgroups(plan),
        barriers: futexes::barriers(plan),
        mutexes: futexes::mutexes(plan),
        pipes: plan.channels.pipes(),
        semaphores: starts.needed,
        notes: scaled.notes.clone(),
        ..Program::default()
    };
    scaled.declare(&mut program);
    program.threads = threads(plan, scaled);
    if copies.scale.is_one() {
        together::begin_together(&mut program);
    }
    if !starts.doubtful.is_empty() && !rehearse::ends(&program) {
        program.semaphores.extend(starts.doubtful);
    }
    program
}

fn threads(plan: &Plan<'_>, mut scaled: Scaled) -> Vec<ThreadTemplate> {
    // Thread ids tell the order in which the tasks were made, and so their first CPUs.
    let mut order: Vec<(Copy, TaskIndex)> = scaled.lists.keys().copied().collect();
    order.sort_by_key(|(copy, task)| (plan.history.tasks[*task as usize].name.pid, *copy));
    let mut thread = |(copy, task): (Copy, TaskIndex)| {
        // The acts are gone before the next task's ops are made, because both are large.
        let items = scaled.lists.remove(&(copy, task))?;
        let ops = passes::ops(plan, task, &items, &scaled);
        let used = !ops.is_empty() || plan.is_forked(task);
        used.then(|| attributes::thread(plan, (copy, task), ops, &scaled))
    };
    order.into_iter().filter_map(&mut thread).collect()
}

/// The results of the analyses.
struct Plan<'a> {
    history: &'a History,
    overhead: Overhead,
    /// Whether each task is part of the workload.
    kept: Vec<bool>,
    /// What the program counts.
    unit: Unit,
    /// Name of each task's thread.
    names: Vec<String>,
    /// Whether a step of another task forks each one. A task that was forked before its parent came
    /// into the scope has a parent whose program does not fork it.
    forked: Vec<bool>,
    /// Whether each task's thread ends after its last step.
    ends: Vec<bool>,
    /// Whether each task begins again after its last step, or is forked again.
    repeats: Vec<bool>,
    waits: Vec<Vec<Wait>>,
    futexes: BTreeMap<u64, Futex>,
    channels: channels::Channels,
    /// Role of each task.
    roles: Vec<u32>,
    /// Futexes on which pools of tasks wait, with the one that stands for the pool.
    pools: BTreeMap<u64, u64>,
    exits: exits::Exits,
}

impl<'a> Plan<'a> {
    fn new(history: &'a History, overhead: Overhead, options: &Options) -> Plan<'a> {
        let kept = workload(history);
        let roles = roles::roles(history);
        let ends = ends(history, &roles);
        let forked = forked(history);
        let mut plan = Plan {
            history,
            overhead,
            unit: Unit::of(history, &kept, &options.steps),
            names: attributes::names(history),
            repeats: repeats(history, &kept, &ends, &forked),
            forked,
            ends,
            waits: Vec::new(),
            futexes: BTreeMap::new(),
            channels: channels::Channels::new(history, &kept),
            roles,
            pools: BTreeMap::new(),
            exits: exits::Exits::default(),
            kept,
        };
        plan.futexes = futexes::classify(&plan, options.mutexes);
        plan.waits = waits::classify(&plan);
        plan.pools = pools::of(&plan);
        plan.exits = exits::Exits::of(&plan);
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
        let origin = self.history.tasks[task as usize].origin;
        self.forked[task as usize] && matches!(origin, Origin::Fork(p) if self.is_kept(p))
    }

    /// Returns the length of the recording.
    fn length(&self) -> Nanos {
        (self.history.end - self.history.start).max(1)
    }

    /// Returns a time of the recording since the begin of a task's thread.
    fn since_birth(&self, task: TaskIndex, at: Nanos) -> Nanos {
        at.saturating_sub(self.begin(task))
    }

    /// Returns the time of the recording at which a task's thread begins.
    fn begin(&self, task: TaskIndex) -> Nanos {
        let t = &self.history.tasks[task as usize];
        match (t.origin, self.waits[task as usize].first()) {
            (_, Some(Wait::Start)) => t.sleeps[0].until.unwrap_or(t.born),
            (Origin::Start, _) => self.history.start,
            (Origin::Fork(_) | Origin::Appeared, _) => t.born,
        }
    }

    /// Returns the semaphore that stands for a wait for a task.
    fn semaphore(&self, task: TaskIndex, sleep: u32) -> Semaphore {
        let futex = futexes::waited_on(&self.history.tasks[task as usize], sleep);
        match futex.and_then(|f| self.pools.get(&f)) {
            Some(&pool) => Semaphore::Shared(pool),
            None => Semaphore::Of(task),
        }
    }

    fn semaphore_name(&self, semaphore: Semaphore) -> String {
        match semaphore {
            Semaphore::Of(task) => format!("wake {}", self.names[task as usize]),
            Semaphore::Exits(task) => format!("children of {}", self.names[task as usize]),
            Semaphore::Shared(futex) => format!("futex {futex:#x}"),
        }
    }

    fn wait(&self, task: TaskIndex, sleep: u32) -> Wait {
        self.waits[task as usize][sleep as usize]
    }
}

/// Tells which tasks are the workload: those that ran, without kernel threads and the recorder. A
/// recording of some of a machine's tasks has attributes of these only; the others are the world
/// around them.
fn workload(history: &History) -> Vec<bool> {
    let chosen = history.tasks.iter().any(|t| t.attributes.is_some());
    let is_in = |t: &TaskHistory| t.in_scope && (t.attributes.is_some() || !chosen);
    let is_kept = |t: &TaskHistory| is_in(t) && !t.is_kthread() && !t.steps.is_empty();
    let all: Vec<bool> = history.tasks.iter().map(is_kept).collect();
    let others = |(t, kept): (&TaskHistory, &bool)| *kept && !is_recorder(t);
    let kept: Vec<bool> = history.tasks.iter().zip(&all).map(others).collect();
    // A user who chose the recorder's tasks alone wants them.
    if kept.contains(&true) { kept } else { all }
}

/// Whether the task is one of a program that records, of which a file without attributes does not
/// tell that it is no part of the workload.
fn is_recorder(task: &TaskHistory) -> bool {
    task.attributes.is_none() && ["perf", "trace-cmd"].contains(&task.name.comm.as_str())
}

/// Tells which tasks' threads end: those that ended, and those that the end of the recording cut
/// off: they were forked during it, and others of their role ended.
fn ends(history: &History, roles: &[u32]) -> Vec<bool> {
    let forked = |t: &TaskHistory| matches!(t.origin, Origin::Fork(_));
    let short = history.tasks.iter().zip(roles).filter(|(t, _)| forked(t) && t.ended.is_some());
    let short: BTreeSet<u32> = short.map(|(_, role)| *role).collect();
    let ends =
        |(t, role): (&TaskHistory, &u32)| t.ended.is_some() || forked(t) && short.contains(role);
    history.tasks.iter().zip(roles).map(ends).collect()
}

/// Tells which tasks are forked by a step of another one.
fn forked(history: &History) -> Vec<bool> {
    let mut forked = vec![false; history.tasks.len()];
    for step in history.tasks.iter().flat_map(|task| &task.steps) {
        if let Step::Fork(child) = step {
            forked[*child as usize] = true;
        }
    }
    forked
}

/// Tells which tasks begin again: those that lived until the end, and the children of those.
fn repeats(history: &History, kept: &[bool], ends: &[bool], forked: &[bool]) -> Vec<bool> {
    let mut repeats = vec![false; history.tasks.len()];
    for (i, task) in history.tasks.iter().enumerate() {
        let by_other = |p: u32| forked[i] && kept[p as usize] && repeats[p as usize];
        repeats[i] = !ends[i] || matches!(task.origin, Origin::Fork(p) if by_other(p));
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

// SPDX-License-Identifier: GPL-2.0-only
//! Tasks whose behaviour is a closure. They stand for the processes and threads that the C file of
//! a test starts.
//!
//! Owns: the map from tasks to closures. Does not: model locks, pipes or files (see the workload
//! crate).

use scxlab_kernel::behavior::{Behavior, Sys, SysError, TaskSpec, TaskStep};
use scxlab_machine::id::{Nanos, TaskId};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

/// Behaviour of one task. The kernel calls the closure for each step of the task, until the closure
/// returns `TaskStep::Exit`.
pub type Script = Box<dyn FnMut(&mut Ctx) -> TaskStep>;

/// Context of a script's step.
pub struct Ctx<'a> {
    pub sys: &'a mut dyn Sys,
    /// The task itself.
    pub me: TaskId,
    threads: &'a Threads,
}

impl Ctx<'_> {
    /// `fork(2)` by this task.
    pub fn fork(&mut self, spec: TaskSpec, script: Script) -> Result<TaskId, SysError> {
        self.threads.fork(self.sys, Some(self.me), spec, script)
    }

    /// Returns the step that sleeps for `ns`, as `nanosleep(2)` does.
    pub fn sleep(&self, ns: Nanos) -> TaskStep {
        TaskStep::SleepUntil(self.sys.now() + ns)
    }
}

/// All scripted tasks of a kernel. Clones share the table, so that a test can add tasks from
/// outside.
#[derive(Clone, Default)]
pub struct Threads(Rc<RefCell<BTreeMap<TaskId, Script>>>);

impl Threads {
    /// Starts a task.
    pub fn fork(
        &self,
        sys: &mut dyn Sys,
        parent: Option<TaskId>,
        spec: TaskSpec,
        script: Script,
    ) -> Result<TaskId, SysError> {
        let id = sys.fork(parent, spec)?;
        self.0.borrow_mut().insert(id, script);
        Ok(id)
    }
}

impl Behavior for Threads {
    fn start(&mut self, _sys: &mut dyn Sys) {}

    fn step(&mut self, sys: &mut dyn Sys, task: TaskId) -> TaskStep {
        // The script is out of the table while it runs, because it may fork, which adds to the
        // table.
        let script = self.0.borrow_mut().remove(&task);
        let Some(mut script) = script else {
            return TaskStep::Exit;
        };
        let step = script(&mut Ctx { sys, me: task, threads: self });
        if step != TaskStep::Exit {
            self.0.borrow_mut().insert(task, script);
        }
        step
    }

    fn on_timer(&mut self, _sys: &mut dyn Sys, _token: u64) {}

    fn unit(&self) -> &str {
        "step"
    }

    fn waits_for(&self, _task: TaskId) -> Option<String> {
        None
    }
}

/// Computes for ever.
pub fn hog() -> Script {
    Box::new(|_| TaskStep::Compute { work: 1_000_000 })
}

/// Computes and sleeps in turn, for ever.
pub fn sleeper(run: Nanos, sleep: Nanos) -> Script {
    let mut awake = false;
    Box::new(move |ctx| {
        awake = !awake;
        if awake { TaskStep::Compute { work: run } } else { ctx.sleep(sleep) }
    })
}

/// Computes and yields in turn, for ever.
pub fn yielder(run: Nanos) -> Script {
    let mut ran = false;
    Box::new(move |_| {
        ran = !ran;
        if ran { TaskStep::Compute { work: run } } else { TaskStep::Yield }
    })
}

/// Sleeps once, then exits, as a short-lived child.
pub fn sleep_and_exit(ns: Nanos) -> Script {
    let mut slept = false;
    Box::new(
        move |ctx| {
            if std::mem::replace(&mut slept, true) { TaskStep::Exit } else { ctx.sleep(ns) }
        },
    )
}

/// Waits for a wake-up from outside, then exits.
pub fn block_and_exit() -> Script {
    let mut waited = false;
    Box::new(
        move |_| {
            if std::mem::replace(&mut waited, true) { TaskStep::Exit } else { TaskStep::Block }
        },
    )
}

/// Exits as soon as it runs.
pub fn exit_at_once() -> Script {
    Box::new(|_| TaskStep::Exit)
}

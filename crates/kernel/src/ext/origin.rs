// SPDX-License-Identifier: GPL-2.0-only
//! The place in the scheduler's programs that caused an event: the call that caused an error, or
//! that put a task on its DSQ.
//!
//! Owns: the knowledge which call of a program the kernel acts for, and the text that names this
//! call in a report. The call may have returned before the kernel acts.
//! Does not: describe the error (see `exit.rs`), or the wait of a stalled task (see `stall.rs`).

use super::OpFrame;
use super::op::{Op, TaskArgs};
use super::program::ExtProgram;
use crate::kernel::Kernel;
use scxlab_bpf::fault::{BacktraceFrame, Fault};
use scxlab_bpf::vm::CallSite;
use scxlab_machine::id::{CpuId, Nanos, TaskId};

/// A call of a kernel function by a program of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    pub site: CallSite,
    /// Operation that made the call; None for a timer callback, a syscall program and a tracing
    /// program.
    pub op: Option<Op>,
}

/// A dispatch verdict that the kernel carries out after the program's call that gave the verdict
/// has returned.
#[derive(Clone, Copy, Debug)]
pub struct DeferredVerdict {
    /// Task of the verdict. The task's `ExtEntity::inserted_by` is the call that gave the verdict.
    task: TaskId,
    /// Number of nested programs when the kernel began to carry out the verdict. An error of a
    /// program that is nested deeper is not due to the verdict.
    level: u32,
}

/// Place in the scheduler that caused an exit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// Text for a report. It does not repeat the exit's message.
    pub lines: Vec<String>,
    /// Frames of the program, innermost first; empty if no program ran.
    pub frames: Vec<BacktraceFrame>,
    /// Registers r0 to r10 at a fault; None for those that no later instruction would have read.
    pub regs: [Option<u64>; 11],
    /// The stalled task, or the task that the program was called for.
    pub task: Option<ExitTask>,
}

/// A task that an exit is about, at the time of the exit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExitTask {
    pub pid: u32,
    pub name: String,
    /// Time since when it is runnable without running; None if it runs or sleeps.
    pub waiting_since: Option<Nanos>,
    /// DSQ in which it waits, as in traces.
    pub dsq: Option<u64>,
    /// On-line CPUs that it may use.
    pub cpus: Vec<CpuId>,
    /// Those of `cpus` that are idle: no task, program of the scheduler or kernel path runs there.
    /// The kernel path of the watchdog does not count.
    pub idle_cpus: Vec<CpuId>,
}

impl Origin {
    /// Returns the origin of a fault. The fault's message names the place itself, so the lines of
    /// the origin name only the callers.
    pub fn of_fault(fault: &Fault) -> Origin {
        let frames = fault.0.backtrace.clone();
        let lines = called_by(&frames).collect();
        Origin { lines, frames, regs: fault.0.regs, ..Origin::default() }
    }
}

fn called_by(frames: &[BacktraceFrame]) -> impl Iterator<Item = String> + '_ {
    frames.iter().skip(1).map(|frame| format!("called by {}", frame.brief()))
}

impl Kernel {
    /// Returns the program's call whose request the kernel carries out now, if there is one.
    fn ext_caller(&self) -> Option<Caller> {
        match self.verdict_now() {
            Some(task) => self.tasks[task].ext.inserted_by,
            None => self.ext_live_caller(),
        }
    }

    /// Returns the task of the earlier dispatch verdict that the kernel carries out now.
    fn verdict_now(&self) -> Option<TaskId> {
        let verdict = self.ext.deferred_verdict;
        verdict.filter(|verdict| self.vm.level() <= verdict.level).map(|verdict| verdict.task)
    }

    /// Returns the kernel function call that the running program is making.
    #[inline]
    pub(crate) fn ext_live_caller(&self) -> Option<Caller> {
        let op = self.ext.frame.and_then(|frame| frame.op);
        self.vm.call_site().map(|site| Caller { site, op })
    }

    /// Marks that the kernel now carries out an earlier dispatch verdict on `task`. Returns the
    /// previous `ext.deferred_verdict`, which the caller restores afterwards.
    #[inline(always)]
    pub(crate) fn begin_verdict_of(&mut self, task: TaskId) -> Option<DeferredVerdict> {
        self.ext.deferred_verdict.replace(DeferredVerdict { task, level: self.vm.level() })
    }

    /// Calls `act`, which carries out an earlier dispatch verdict on `task`. Meanwhile the kernel
    /// acts for the program's call that gave the verdict (`ExtEntity::inserted_by`).
    #[inline(always)]
    pub(crate) fn with_verdict_of<R>(
        &mut self,
        task: TaskId,
        act: impl FnOnce(&mut Kernel) -> R,
    ) -> R {
        let outer = self.begin_verdict_of(task);
        let result = act(self);
        self.ext.deferred_verdict = outer;
        result
    }

    /// Returns the origin of an error that is raised now: the program's call whose request the
    /// kernel carries out now, with the callers of that call.
    pub(super) fn origin(&self) -> Origin {
        let Some(caller) = self.ext_caller() else { return Origin::default() };
        // The stack of a program that has returned is gone, so only the call's own place is known.
        let frames = match self.ext_live_caller() == Some(caller) {
            true => self.vm.backtrace(caller.site),
            false => self.vm.place_of(caller.site).into_iter().collect(),
        };
        let called = called_by(&frames);
        let lines = std::iter::once(format!("in {}", called_in(caller, &frames)));
        let lines = lines.chain(called).collect();
        let task = match self.verdict_now() {
            Some(task) => Some(task),
            None => self.ext.frame.and_then(|frame| self.task_of(&frame)),
        };
        let task = task.map(|task| self.exit_task_of_program(task));
        Origin { lines, frames, task, ..Origin::default() }
    }

    /// Returns the origin of a value that an operation has returned.
    pub(super) fn origin_of_return(&self, op: Op) -> Origin {
        let frames: Vec<BacktraceFrame> = self.first_line(op).into_iter().collect();
        let name = frames.first().map_or(String::new(), |frame| format!(": {}", frame.start()));
        let lines = vec![format!("returned by ops.{}(){name}", op.name())];
        Origin { lines, frames, ..Origin::default() }
    }

    /// Returns the task that an operation was called for.
    pub(super) fn task_of(&self, frame: &OpFrame) -> Option<TaskId> {
        match frame.op?.task_args() {
            TaskArgs::Nothing => None,
            TaskArgs::First | TaskArgs::Both => self.tasks.at(frame.args[0]),
            TaskArgs::Second => self.tasks.at(frame.args[1]),
        }
    }

    pub(super) fn exit_task(&self, task: TaskId) -> ExitTask {
        let t = &self.tasks[task];
        let cpus: Vec<CpuId> = self.online_cpus().filter(|cpu| t.allowed_on(*cpu)).collect();
        let is_idle = |cpu: &CpuId| {
            let c = &self.cpus[*cpu];
            c.is_idle() && c.kernel_until <= self.clock()
        };
        ExitTask {
            pid: t.pid,
            name: t.name.clone(),
            waiting_since: t.account.waiting_since,
            dsq: t.ext.dsq.map(|dsq| self.ext.dsqs.traced_id(dsq)),
            idle_cpus: cpus.iter().copied().filter(is_idle).collect(),
            cpus,
        }
    }

    /// As `exit_task`, for an exit that a program of the scheduler raises now: the CPU that
    /// executes the program is not idle.
    pub(super) fn exit_task_of_program(&self, task: TaskId) -> ExitTask {
        let mut exit_task = self.exit_task(task);
        exit_task.idle_cpus.retain(|cpu| *cpu != self.exec.cpu);
        exit_task
    }

    /// Returns the place where the program of an operation begins.
    pub(super) fn first_line(&self, op: Op) -> Option<BacktraceFrame> {
        let ExtProgram::Bpf { instance, funcs } = &self.ext.root.as_ref()?.program else {
            return None;
        };
        let image = self.vm.instance(*instance)?.image();
        let pc = image.func(funcs[op as usize]?)?.start;
        self.vm.place_of(CallSite { instance: *instance, pc, depth: 0 })
    }

    /// Describes an earlier call, such as
    /// `ops.enqueue(): simple_enqueue at instruction 12 (simple.bpf.c:40: ...)`.
    pub(super) fn describe(&self, caller: Caller) -> String {
        let frames: Vec<BacktraceFrame> = self.vm.place_of(caller.site).into_iter().collect();
        called_in(caller, &frames)
    }
}

/// Describes a call. `frames` are the known frames of the call and of its callers.
fn called_in(caller: Caller, frames: &[BacktraceFrame]) -> String {
    let whole = frames.len() == caller.site.depth as usize + 1;
    let program = match (caller.op, frames.last()) {
        (Some(op), _) => format!("ops.{}()", op.name()),
        (None, Some(outermost)) if whole && outermost.section == "syscall" => {
            "a syscall program".to_owned()
        }
        (None, Some(outermost)) if whole && outermost.section == ".text" => {
            "a timer callback".to_owned()
        }
        (None, Some(outermost)) if whole => outermost.section.clone(),
        _ => "a program that is not an operation".to_owned(),
    };
    frames.first().map_or_else(|| program.clone(), |frame| format!("{program}: {}", frame.brief()))
}

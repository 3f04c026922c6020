// SPDX-License-Identifier: GPL-2.0-only
//! The place in the scheduler's programs that caused an event: the call that caused an error, or
//! that put a task on its DSQ.
//!
//! Owns: the knowledge which call of a program the kernel acts for, and the text that names this
//! call in a report. The call may have returned before the kernel acts.
//! Does not: describe the error (see `exit.rs`), or the wait of a stalled task (see `stall.rs`).

use super::op::Op;
use super::program::ExtProgram;
use crate::kernel::Kernel;
use scxlab_bpf::fault::{BacktraceFrame, Fault};
use scxlab_bpf::vm::CallSite;
use scxlab_machine::id::TaskId;

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
}

impl Origin {
    /// Returns the origin of a fault. The fault's message names the place itself, so the lines of
    /// the origin name only the callers.
    pub fn of_fault(fault: &Fault) -> Origin {
        let frames = fault.0.backtrace.clone();
        Origin { lines: called_by(&frames).collect(), frames }
    }
}

fn called_by(frames: &[BacktraceFrame]) -> impl Iterator<Item = String> + '_ {
    frames.iter().skip(1).map(|frame| format!("called by {}", frame.brief()))
}

impl Kernel {
    /// Returns the program's call whose request the kernel carries out now, if there is one.
    fn ext_caller(&self) -> Option<Caller> {
        match self.ext.deferred_verdict {
            Some(DeferredVerdict { task, level }) if self.vm.level() <= level => {
                self.tasks[task].ext.inserted_by
            }
            _ => self.ext_live_caller(),
        }
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
        Origin { lines: lines.chain(called).collect(), frames }
    }

    /// Returns the origin of a value that an operation has returned.
    pub(super) fn origin_of_return(&self, op: Op) -> Origin {
        let frames: Vec<BacktraceFrame> = self.first_line(op).into_iter().collect();
        let name = frames.first().map_or(String::new(), |frame| format!(": {}", frame.start()));
        Origin { lines: vec![format!("returned by ops.{}(){name}", op.name())], frames }
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

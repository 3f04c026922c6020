// SPDX-License-Identifier: GPL-2.0-only
//! Where in the scheduler's programs something comes from: the call that made an error, or that put a task on its queue.
//!
//! Owns: which call of a program the kernel carries out, also when that has returned, and how it reads in a report.
//! Does not: say what is wrong (see `exit.rs`), or what a stalled task waits for (see `stall.rs`).

use super::op::Op;
use super::program::Program;
use crate::kernel::Kernel;
use scxlab_bpf::fault::{Fault, Place};
use scxlab_bpf::vm::CallSite;
use scxlab_machine::id::TaskId;

/// A call of a kernel function by a program of the scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    pub site: CallSite,
    /// None: by a timer's callback, a syscall or a tracing program.
    pub op: Option<Op>,
}

/// A verdict is carried out after the call that gave it.
#[derive(Clone, Copy, Debug)]
pub struct Acting {
    /// Whose `ExtEntity::by` gave it.
    task: TaskId,
    /// Programs that ran inside of one another then; one that runs inside of those acts for itself.
    level: u32,
}

/// Where in the scheduler an exit comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    /// For a report, in words; what the exit's message says is not repeated.
    pub lines: Vec<String>,
    /// Innermost first; empty if no program ran.
    pub frames: Vec<Place>,
}

impl Origin {
    /// The message names the place itself, and whoever called it is missing.
    pub fn of_fault(fault: &Fault) -> Origin {
        let frames = fault.0.backtrace.clone();
        Origin { lines: called_by(&frames).collect(), frames }
    }
}

fn called_by(frames: &[Place]) -> impl Iterator<Item = String> + '_ {
    frames.iter().skip(1).map(|frame| format!("called by {}", frame.brief()))
}

impl Kernel {
    /// The call that is being carried out, if a program made one.
    fn ext_caller(&self) -> Option<Caller> {
        match self.ext.acting {
            Some(Acting { task, level }) if self.vm.level() <= level => self.tasks[task].ext.by,
            _ => self.ext_live_caller(),
        }
    }

    /// The call that a running program waits for.
    #[inline]
    pub(crate) fn ext_live_caller(&self) -> Option<Caller> {
        let op = self.ext.frame.and_then(|frame| frame.op);
        self.vm.call_site().map(|site| Caller { site, op })
    }

    /// From here on what was said of a task earlier is carried out; what `ext.acting` was before, for afterwards.
    #[inline(always)]
    pub(crate) fn act_for(&mut self, task: TaskId) -> Option<Acting> {
        self.ext.acting.replace(Acting { task, level: self.vm.level() })
    }

    /// Carries out what was said of a task earlier, by `ExtEntity::by`.
    #[inline(always)]
    pub(crate) fn acting_for<R>(&mut self, task: TaskId, act: impl FnOnce(&mut Kernel) -> R) -> R {
        let outer = self.act_for(task);
        let result = act(self);
        self.ext.acting = outer;
        result
    }

    /// Of what is wrong now: the call that is being carried out, with those that led to it.
    pub(super) fn origin(&self) -> Origin {
        let Some(caller) = self.ext_caller() else { return Origin::default() };
        // The stack of a program that has returned is gone.
        let frames = match self.ext_live_caller() == Some(caller) {
            true => self.vm.backtrace(caller.site),
            false => self.vm.place_of(caller.site).into_iter().collect(),
        };
        let called = called_by(&frames);
        let lines = std::iter::once(format!("in {}", called_in(caller, &frames)));
        Origin { lines: lines.chain(called).collect(), frames }
    }

    /// Of what an operation has returned.
    pub(super) fn origin_of_return(&self, op: Op) -> Origin {
        let frames: Vec<Place> = self.first_line(op).into_iter().collect();
        let name = frames.first().map_or(String::new(), |frame| format!(": {}", frame.start()));
        Origin { lines: vec![format!("returned by ops.{}(){name}", op.name())], frames }
    }

    /// Where the program of an operation begins.
    pub(super) fn first_line(&self, op: Op) -> Option<Place> {
        let Program::Bpf { instance, funcs } = &self.ext.root.as_ref()?.program else {
            return None;
        };
        let image = self.vm.instance(*instance)?.image();
        let pc = image.func(funcs[op as usize]?)?.start;
        self.vm.place_of(CallSite { instance: *instance, pc, depth: 0 })
    }

    /// An earlier call in words: `ops.enqueue(): simple_enqueue at instruction 12 (simple.bpf.c:40: ...)`.
    pub(super) fn describe(&self, caller: Caller) -> String {
        let frames: Vec<Place> = self.vm.place_of(caller.site).into_iter().collect();
        called_in(caller, &frames)
    }
}

/// `frames` are the call's and those of its callers, as far as they are known.
fn called_in(caller: Caller, frames: &[Place]) -> String {
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
        _ => "a program that is no operation".to_owned(),
    };
    frames.first().map_or_else(|| program.clone(), |frame| format!("{program}: {}", frame.brief()))
}

// SPDX-License-Identifier: GPL-2.0-only
//! Tracing programs of a scheduler's object that the simulation runs: those on the tracepoint
//! sched_switch.
//!
//! Owns: attaching and calling these programs. Does not: run programs on any other tracepoint or
//! function. Schedulers use those for statistics; in the simulation, attaching them has no effect.
//! Models: kernel `trace_sched_switch()` in `__schedule()`, 7.3. Differs: the programs are detached
//! with their scheduler, not with its process.

use super::OpFrame;
use crate::kernel::Kernel;
use crate::task::TaskState;
use scxlab_loader::link::Loaded;
use scxlab_loader::object::{ProgramKind, TraceKind};
use scxlab_machine::id::TaskId;

/// Returns whether the simulation runs the program.
pub fn runs_tracing(kind: &ProgramKind) -> bool {
    matches!(kind, ProgramKind::Trace { kind: TraceKind::TpBtf, target, .. } if target == "sched_switch")
}

impl Kernel {
    /// Attaches the object's tracing programs, as a frontend does in addition to the scheduler.
    pub(crate) fn attach_tracing(&mut self, loaded: &Loaded) {
        let on_switch = loaded.programs().filter(|(_, _, kind)| runs_tracing(kind));
        self.ext.sched_switch = on_switch.map(|(func, ..)| (loaded.instance, func)).collect();
    }

    /// Runs the sched_switch programs when the executing CPU is about to switch. The CPU's run
    /// queue is locked, but kfuncs treat the programs as running without a run queue lock.
    pub(crate) fn trace_sched_switch(&mut self, prev: TaskId, next: TaskId) {
        let cpu = self.exec.cpu;
        let preempt = u64::from(!self.cpus[cpu].voluntary);
        let state = match self.tasks[prev].state {
            TaskState::Sleeping => TASK_INTERRUPTIBLE,
            TaskState::Dead => TASK_DEAD,
            _ => 0,
        };
        let args = [preempt, self.tasks[prev].addr, self.tasks[next].addr, state];
        for (instance, func) in self.ext.sched_switch.clone() {
            let start = self.clock();
            self.charge(self.machine.costs.bpf.ops_callback_ns);
            let outer = self.ext.frame.replace(OpFrame::default());
            let result = scxlab_bpf::vm::call(self, instance, func, &args);
            self.charge_insns();
            self.note_program(start);
            self.ext.frame = outer;
            if let Err(fault) = result {
                self.program_faulted("tp_btf/sched_switch", None, fault);
            }
        }
    }
}

const TASK_INTERRUPTIBLE: u64 = 1;
const TASK_DEAD: u64 = 0x80;

// SPDX-License-Identifier: GPL-2.0-only
//! The end of a task's step before its time: the behaviour of the task then decides anew.
//!
//! Owns: the rest of a step that was cut, interrupts and timers that cut a step.
//! Does not: know why a behaviour cuts steps (see the crate `guest`).

use crate::kernel::event::Event;
use crate::kernel::{AfterEvent, Kernel};
use crate::task::TaskState;
use crate::task::behavior::TaskStep;
use crate::task::exec::WORK_SHIFT;
use scxlab_machine::id::{CpuId, Nanos, TaskId};

/// Generation of the event for an interrupt; the events of timers have others.
const INTERRUPT: u32 = 0;

/// A task's cuts.
#[derive(Clone, Debug, Default)]
pub struct Cut {
    /// Work that is left of the last step, in the unit of that step, ns.
    left: Nanos,
    /// Cache refill time and memory faults' time that the task still owed at the cut, ns.
    owed: Nanos,
    /// Generation of the present timer.
    generation: u32,
}

impl Kernel {
    /// Executes `Sys::kick` on the executing CPU.
    pub(crate) fn kick_task(&mut self, task: TaskId) {
        let Some(t) = self.tasks.get(task) else { return };
        let cpu = t.cpu;
        if t.state != TaskState::Runnable {
            return;
        }
        if !t.on_cpu || cpu == self.exec.cpu {
            return self.cut(task);
        }
        self.charge(self.machine.costs.irq.ipi_send_ns);
        let at = self.clock() + self.ipi_latency(self.exec.cpu, cpu);
        self.push_wakeup(at, Event::Cut { task, cpu, generation: INTERRUPT });
    }

    /// Executes `Sys::cut_at`.
    pub(crate) fn set_cut(&mut self, task: TaskId, at: Option<Nanos>) {
        if self.tasks.get(task).is_none() {
            return;
        }
        let t = &mut self.tasks[task];
        t.cut.generation = t.cut.generation.wrapping_add(1).max(1);
        let (cpu, generation) = (t.cpu, t.cut.generation);
        if let Some(at) = at {
            let at = at.max(self.now);
            self.push_timer(at, Event::Cut { task, cpu, generation });
        }
    }

    /// Handles an interrupt or a timer that cuts a step. A timer takes no time: a processor's timer
    /// for guests (the VMX preemption timer) needs no interrupt of the host.
    #[inline(never)]
    pub(crate) fn cut_due(&mut self, task: TaskId, cpu: CpuId, generation: u32) -> AfterEvent {
        self.end.pending_wakeups -= 1;
        let interrupt = generation == INTERRUPT;
        let Some(t) = self.tasks.get(task) else { return AfterEvent::Nothing };
        let stale = !interrupt && generation != t.cut.generation;
        if stale || t.state != TaskState::Runnable {
            return AfterEvent::Nothing;
        }
        let runs_on = t.cpu;
        if !t.on_cpu {
            self.cut(task);
            return AfterEvent::Nothing;
        }
        if interrupt && runs_on != cpu {
            let at = self.now + self.ipi_latency(cpu, runs_on);
            self.push_wakeup(at, Event::Cut { task, cpu: runs_on, generation });
            return AfterEvent::Nothing;
        }
        self.on_cpu_last(runs_on, |k| {
            if interrupt {
                k.charge(k.machine.costs.irq.resched_ns);
            }
            k.cut(task);
        })
    }

    /// Ends the step of a task whose progress is settled.
    fn cut(&mut self, task: TaskId) {
        let t = &mut self.tasks[task];
        let left = match t.step {
            Some(TaskStep::Compute { .. }) => t.step_left.div_ceil(1 << WORK_SHIFT),
            Some(TaskStep::ComputeWall { .. } | TaskStep::SpinFor { .. }) => t.step_left,
            Some(TaskStep::Spin) => 0,
            Some(TaskStep::Memory { .. }) => {
                let (left, owed) = self.memory_cut(task);
                self.tasks[task].cut.owed += owed;
                left
            }
            _ => return,
        };
        let t = &mut self.tasks[task];
        t.step = None;
        t.step_left = 0;
        t.cut.left += left;
        t.cut.owed += std::mem::take(&mut t.refill_left);
    }

    /// Executes `Sys::cut_rest`. The end of a spin that is still pending is forgotten too, because
    /// the behaviour decides anew.
    pub(crate) fn take_cut(&mut self, task: TaskId) -> Nanos {
        if self.tasks.get(task).is_none() {
            return 0;
        }
        let t = &mut self.tasks[task];
        t.spin_ended = false;
        t.refill_left += std::mem::take(&mut t.cut.owed);
        std::mem::take(&mut t.cut.left)
    }
}

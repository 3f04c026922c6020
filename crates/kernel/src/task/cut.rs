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
    /// The part of `owed` that is memory faults' time. It stays after `take_cut`.
    faults: Nanos,
    /// Generation of the present timer.
    generation: u32,
}

impl Cut {
    /// Returns the memory faults' time that the task owed at its last cut, ns.
    pub(crate) fn faults(&self) -> Nanos {
        self.faults
    }
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
                let cut = &mut self.tasks[task].cut;
                cut.owed += owed;
                cut.faults += owed;
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
        let owed = std::mem::take(&mut t.cut.owed);
        t.refill_left += owed;
        t.cut.faults = t.cut.faults.min(owed);
        std::mem::take(&mut t.cut.left)
    }
}

#[cfg(test)]
mod tests {
    use crate::kernel::boot::Setup;
    use crate::kernel::{Kernel, Limits};
    use crate::task::behavior::{Behavior, Sys, TaskSpec, TaskStep};
    use proptest::prelude::*;
    use scxlab_machine::Machine;
    use scxlab_machine::cpumask::CpuMask;
    use scxlab_machine::id::{CpuId, Nanos, TaskId};
    use std::sync::Arc;

    const WORK: Nanos = 20_000_000;

    /// A worker with one step, a hog on the same CPU, and a task on another CPU that cuts the
    /// worker's step again and again.
    struct Cutter {
        step: TaskStep,
        /// Waits between cuts; every second cut is a timer.
        waits: Vec<Nanos>,
        cuts: usize,
        begun: bool,
        /// The worker's CPU time at the end of its step, and the number of cuts until then.
        done: Option<(Nanos, usize)>,
    }

    impl Behavior for Cutter {
        fn start(&mut self, sys: &mut dyn Sys) {
            for (name, cpu) in [("worker", 0), ("hog", 0), ("cutter", 1)] {
                let affinity = Some(CpuMask::of(sys.nr_cpus() as usize, [CpuId(cpu)]));
                sys.fork(None, TaskSpec { affinity, ..TaskSpec::normal(name) }).unwrap();
            }
        }

        fn step(&mut self, sys: &mut dyn Sys, task: TaskId) -> TaskStep {
            let worker = TaskId(FIRST);
            match task.0 - FIRST {
                0 => {
                    let rest = sys.cut_rest(task);
                    if !std::mem::replace(&mut self.begun, true) {
                        return self.step;
                    }
                    if rest == 0 {
                        self.done.get_or_insert((sys.now(), self.cuts));
                        return TaskStep::Block;
                    }
                    match self.step {
                        TaskStep::Compute { .. } => TaskStep::Compute { work: rest },
                        TaskStep::ComputeWall { .. } => TaskStep::ComputeWall { wall: rest },
                        _ => TaskStep::SpinFor { max: rest },
                    }
                }
                1 => TaskStep::Compute { work: 1_000_000 },
                _ => {
                    let wait = self.waits[self.cuts % self.waits.len()];
                    match self.cuts.is_multiple_of(2) {
                        true => sys.kick(worker),
                        false => sys.cut_at(worker, Some(sys.now() + wait / 2)),
                    }
                    self.cuts += 1;
                    TaskStep::SleepUntil(sys.now() + wait)
                }
            }
        }

        fn on_timer(&mut self, _: &mut dyn Sys, _: u64) {}

        fn unit(&self) -> &str {
            "nothing"
        }

        fn waits_for(&self, _: TaskId) -> Option<String> {
            None
        }
    }

    /// Number of the first task of a workload on a machine of two CPUs, after the idle tasks and
    /// init.
    const FIRST: u32 = 3;

    fn run(step: TaskStep, waits: Vec<Nanos>) -> (Nanos, Nanos, usize) {
        let setup = Setup {
            machine: Arc::new(Machine::from_spec("2c1t").unwrap()),
            seed: 1,
            limits: Limits::default(),
            tracer: Default::default(),
            mem_size: 1 << 32,
        };
        let cutter = Cutter { step, waits, cuts: 0, begun: false, done: None };
        let mut k = Kernel::boot(setup, Box::new(cutter)).unwrap();
        k.run(Some(100_000_000));
        let (at, cuts) = k.behavior::<Cutter>().unwrap().done.expect("the step ends");
        let t = &k.tasks[TaskId(FIRST)];
        assert_eq!(t.name, "worker");
        (t.account.run_ns, at, cuts)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        /// However often a step is cut, on or off its CPU, its work stays the same. The rest of the
        /// CPU time is time of interrupts and ticks.
        #[test]
        fn cuts_keep_the_work(waits in prop::collection::vec(1_000..3_000_000u64, 1..20)) {
            for step in [
                TaskStep::Compute { work: WORK },
                TaskStep::ComputeWall { wall: WORK },
                TaskStep::SpinFor { max: WORK },
            ] {
                let (ran, _, cuts) = run(step, waits.clone());
                let overhead = 2_000 * cuts as u64 + 500_000;
                prop_assert!((WORK..WORK + overhead).contains(&ran), "{step:?}: {ran}, {cuts} cuts");
            }
        }
    }
}

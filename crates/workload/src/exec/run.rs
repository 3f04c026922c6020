// SPDX-License-Identifier: GPL-2.0-only
//! The loop that executes a thread's instructions from one step to the next.
//!
//! Owns: the few instructions of which nearly every inner loop consists.
//! Does not: execute the other instructions (`ops.rs`). Each of those may make a system call and
//! fail in its own way; they are out of line, so that this loop keeps its state in registers.

use scxlab_kernel::behavior::{Call, Sys, TaskStep};
use scxlab_machine::id::{Nanos, TaskId};

use super::stats::Pending;
use super::thread::{Thread, Wait};
use super::{Executor, Flow};
use crate::compile::insn::Insn;
use crate::timers::TimerTotals;

impl Executor {
    /// Executes `Behavior::step` at `now`, the caller's `Sys::now`: runs the thread until it has a
    /// step for the kernel.
    #[inline]
    pub(super) fn step_at(&mut self, sys: &mut dyn Sys, task: TaskId, mut now: Nanos) -> TaskStep {
        // A task that is not a thread of the program has `NO_THREAD`, which is not a valid index.
        let t = self.by_task.get(task.idx()).map_or(usize::MAX, |&t| t as usize);
        let Some(mut thread) = self.threads.get_mut(t) else {
            return TaskStep::Exit;
        };
        if thread.pending == Pending::Wakes {
            if let Flow::Yield(step) = self.wake_rest(sys, t) {
                return step;
            }
            thread = &mut self.threads[t];
        }
        if let Pending::Read { pipe, bytes, .. } = thread.pending
            && thread.wait == Wait::None
        {
            self.end_wait_for_message(sys, pipe as usize, bytes);
            now = sys.now();
            thread = &mut self.threads[t];
        }
        if let Some(step) = thread.pending_step(sys, now, &mut self.timer_totals) {
            if step != TaskStep::Spin || !self.takes_free_lock(t) {
                return step;
            }
            thread = &mut self.threads[t];
        }
        let mut pc = thread.pc as usize;
        let mut had_pass = false;
        let step = loop {
            let insn = &self.compiled.code[pc];
            pc += 1;
            let start = match *insn {
                Insn::Compute(0) => continue,
                Insn::Compute(work) => {
                    thread.note_run(now, work);
                    let noise = self.perturb.compute_noise_permille;
                    let exact = noise == 0;
                    let work = if exact { work } else { noisy(work, noise, sys, thread.task) };
                    break TaskStep::Compute { work };
                }
                Insn::Sleep(length) => {
                    sys.note_call(Call::SleepFor { length });
                    sys.charge(self.costs.timer);
                    let at = sys.now().saturating_add(length);
                    thread.wait = Wait::Until(at);
                    break TaskStep::SleepUntil(at);
                }
                Insn::Count(units) => {
                    sys.note_call(Call::Count { units });
                    sys.count_work(thread.task, units);
                    continue;
                }
                Insn::LoopNext { slot, start } => {
                    let left = &mut thread.loops[slot as usize];
                    *left -= 1;
                    if *left == 0 {
                        continue;
                    }
                    start
                }
                Insn::Jump(start) => start,
                insn => {
                    thread.pc = pc as u32;
                    if let Flow::Yield(step) = self.exec(sys, t, insn) {
                        return step;
                    }
                    thread = &mut self.threads[t];
                    pc = thread.pc as usize;
                    let before = std::mem::replace(&mut now, sys.now());
                    // A system call takes time. A step without work lets the kernel preempt the
                    // thread on its return, for a task that the call woke up, say, and lets come
                    // what is due on other CPUs.
                    if now != before && (sys.must_schedule() || sys.others_due()) {
                        return TaskStep::Compute { work: 0 };
                    }
                    continue;
                }
            };
            pc = start as usize;
            if let Some(work) = thread.next_pass(now, &mut had_pass, self.costs.empty_loop) {
                break TaskStep::Compute { work };
            }
        };
        thread.pc = pc as u32;
        step
    }
}

impl Thread {
    /// Returns the step (sleep, block or spin) in which the thread still waits, or None if the
    /// thread runs on.
    #[inline(always)]
    fn pending_step(
        &mut self,
        sys: &mut dyn Sys,
        now: Nanos,
        timers: &mut TimerTotals,
    ) -> Option<TaskStep> {
        match self.wait {
            Wait::None => {}
            Wait::Until(at) if now >= at => self.wait = Wait::None,
            Wait::Until(at) => return Some(TaskStep::SleepUntil(at)),
            Wait::On(..) => return Some(TaskStep::Block),
            Wait::Spin(..) => return Some(TaskStep::Spin),
        }
        if self.pending != Pending::None {
            self.settle(sys, now, timers);
        }
        None
    }

    /// Starts another pass of a loop. Returns a small CPU cost if no time has passed since the last
    /// pass, or if this is the second pass within one step. This cost keeps a loop of ops that take
    /// no time from hanging the simulation.
    #[inline(always)]
    fn next_pass(&mut self, now: Nanos, had_pass: &mut bool, empty_loop: Nanos) -> Option<Nanos> {
        let last = std::mem::replace(&mut self.last_pass_at, now);
        if last == now {
            return Some(empty_loop.max(1));
        }
        std::mem::replace(had_pass, true).then_some(1)
    }
}

/// Returns `work`, made longer or shorter by up to `permille` thousandths.
#[cold]
pub(super) fn noisy(work: Nanos, permille: u32, sys: &mut dyn Sys, task: TaskId) -> Nanos {
    let noise = u64::from(permille.min(999));
    let draw = sys.random("workload.compute_noise", task);
    let permille = 1000 - noise + draw % (2 * noise + 1);
    let scaled = u128::from(work) * u128::from(permille) / 1000;
    u64::try_from(scaled).unwrap_or(u64::MAX).max(1)
}

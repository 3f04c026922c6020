// SPDX-License-Identifier: GPL-2.0-only
//! Objects on which threads spin: spin locks and spinning barriers. Cache lines that threads share.
//!
//! Owns: the order in which the spinners came, and which CPU wrote a line last.
//! Does not: decide which spinner gets a lock that is released. The kernel decides
//! (`Sys::next_spinner`); by default, a preempted spinner keeps its ticket, and the spinners behind
//! it wait for it.

use std::collections::VecDeque;

use scxlab_kernel::behavior::{Sys, TaskStep};
use scxlab_machine::id::Nanos;

use super::{Executor, Flow, Wait};
use crate::compile::insn::{ObjectRef, WaitObject};

#[derive(Default)]
pub(super) struct SpinLock {
    pub owner: Option<u32>,
    waiters: VecDeque<u32>,
}

pub(super) struct SpinBarrier {
    pub parties: u32,
    waiters: Vec<u32>,
}

impl SpinBarrier {
    pub fn new(parties: u32) -> Self {
        SpinBarrier { parties, waiters: Vec::new() }
    }
}

impl Executor {
    pub(super) fn spin_lock(&mut self, sys: &mut dyn Sys, t: usize, lock: ObjectRef) -> Flow {
        sys.hold_lock(self.threads[t].task, true);
        let s = lock.index(&self.threads[t].binding);
        let lock = &mut self.spin_locks[s];
        if lock.owner.is_none() {
            lock.owner = Some(t as u32);
            return Flow::Next;
        }
        lock.waiters.push_back(t as u32);
        self.threads[t].wait = Wait::Spin(WaitObject::SpinLock, s as u32);
        Flow::Yield(TaskStep::Spin)
    }

    pub(super) fn spin_unlock(&mut self, sys: &mut dyn Sys, t: usize, lock: ObjectRef) -> Flow {
        let s = lock.index(&self.threads[t].binding);
        let lock = &mut self.spin_locks[s];
        if lock.owner != Some(t as u32) {
            return Flow::Next;
        }
        lock.owner = None;
        let preempt = sys.hold_lock(self.threads[t].task, false);
        // A step without work lets the kernel preempt the thread here.
        let then = if preempt { Flow::Yield(TaskStep::Compute { work: 0 }) } else { Flow::Next };
        if lock.waiters.is_empty() {
            return then;
        }
        let mut spinners = lock.waiters.iter().map(|w| self.threads[*w as usize].task);
        match sys.next_spinner(&mut spinners).and_then(|next| lock.waiters.remove(next)) {
            Some(next) => {
                lock.owner = Some(next);
                self.stop_spin(sys, next);
            }
            // The first waiter that executes finds the lock free (`takes_free_lock`).
            None => {
                for (i, waiter) in lock.waiters.iter().enumerate() {
                    sys.lock_freed(self.threads[*waiter as usize].task, i == 0);
                }
            }
        }
        then
    }

    /// If the thread spins for a spin lock that is free, takes the lock and returns true.
    #[cold]
    pub(super) fn takes_free_lock(&mut self, t: usize) -> bool {
        let Wait::Spin(WaitObject::SpinLock, s) = self.threads[t].wait else { return false };
        let lock = &mut self.spin_locks[s as usize];
        if lock.owner.is_some() {
            return false;
        }
        lock.owner = Some(t as u32);
        lock.waiters.retain(|waiter| *waiter != t as u32);
        self.threads[t].wait = Wait::None;
        true
    }

    pub(super) fn spin_barrier(&mut self, sys: &mut dyn Sys, t: usize, barrier: ObjectRef) -> Flow {
        let s = barrier.index(&self.threads[t].binding);
        let barrier = &mut self.spin_barriers[s];
        if barrier.waiters.len() + 1 < barrier.parties as usize {
            barrier.waiters.push(t as u32);
            self.threads[t].wait = Wait::Spin(WaitObject::SpinBarrier, s as u32);
            return Flow::Yield(TaskStep::Spin);
        }
        let mut others = std::mem::take(&mut barrier.waiters);
        for &other in &others {
            self.stop_spin(sys, other);
        }
        // Put the vector of waiters back, so that the next round of the barrier allocates nothing.
        others.clear();
        self.spin_barriers[s].waiters = others;
        Flow::Next
    }

    /// Charges the caller for atomic instructions on lines that it gets from their last writer.
    pub(super) fn atomic(
        &mut self,
        sys: &mut dyn Sys,
        t: usize,
        lines: ObjectRef,
        count: u32,
    ) -> Flow {
        let writer = &mut self.line_writers[lines.index(&self.threads[t].binding)];
        let (cpu, time) = sys.atomic_time(*writer);
        *writer = Some(cpu);
        sys.charge(time.saturating_mul(Nanos::from(count)));
        Flow::Next
    }

    fn stop_spin(&mut self, sys: &mut dyn Sys, waiter: u32) {
        let thread = &mut self.threads[waiter as usize];
        thread.wait = Wait::None;
        sys.stop_spin(thread.task);
    }
}

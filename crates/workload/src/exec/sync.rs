// SPDX-License-Identifier: GPL-2.0-only
//! Objects on which threads sleep: mutexes, condition variables, barriers, semaphores.
//!
//! Owns: the objects' queues, first come, first served. An unlock hands the mutex to its first
//! waiter. If the mutex is taken, a signalled thread joins the mutex's queue without waking, so no
//! thread is woken only to block again.
//! A barging mutex is not handed over: an unlock wakes the first waiter, which tries again, and
//! joins the end of the queue if a running thread was faster. A thread that finds it taken calls
//! the kernel, and sleeps only if no other thread has changed the futex word until the kernel
//! compares it. A signalled thread wakes up and tries to take the mutex as any other.
//! Models: for barging mutexes, glibc 2.36 `lll_lock` and `lll_unlock`.
//! Does not: model priority inheritance.

use std::collections::VecDeque;

use scxlab_kernel::behavior::{Call, Sys, TaskStep};

use super::stats::Pending;
use super::{Executor, Flow, Wait};
use crate::compile::insn::{ObjectRef, WaitObject};

#[derive(Default)]
pub(super) struct Mutex {
    pub owner: Option<u32>,
    waiters: VecDeque<u32>,
    /// None: the mutex is handed over.
    barging: Option<Barging>,
}

/// The rest of the state of a barging mutex.
#[derive(Default)]
struct Barging {
    /// Whether the next unlock makes a system call: the futex word is 2 in glibc. In a mutex with
    /// an owner the word is 1 otherwise.
    contended: bool,
    /// Threads that an unlock woke and that have not tried again.
    woken: Vec<u32>,
}

impl Mutex {
    pub fn new(barging: bool) -> Self {
        Mutex { barging: barging.then(Barging::default), ..Mutex::default() }
    }

    /// Gives the mutex to the thread if it is free. `called`: the thread has called the kernel to
    /// wait since it began to lock.
    fn try_take(&mut self, t: u32, called: bool) -> bool {
        let free = self.owner.is_none();
        if free {
            self.owner = Some(t);
        }
        if let Some(barging) = &mut self.barging {
            let again = barging.woken.iter().position(|&woken| woken == t);
            again.map(|at| barging.woken.remove(at));
            // A thread that has waited, or was about to, does not know whether it was the last one.
            barging.contended |= free && (called || again.is_some());
        }
        free
    }
}

#[derive(Default)]
pub(super) struct Cond {
    /// Pairs of a waiting thread and the mutex that it takes again after its wait.
    waiters: VecDeque<(u32, u32)>,
    /// Threads that were signalled and have not taken their barging mutex again.
    signalled: Vec<u32>,
}

pub(super) struct Barrier {
    pub parties: u32,
    pub waiters: VecDeque<u32>,
}

pub(super) struct Sem {
    value: u64,
    waiters: VecDeque<u32>,
}

impl Sem {
    pub fn new(value: u64) -> Self {
        Sem { value, waiters: VecDeque::new() }
    }
}

impl Executor {
    pub(super) fn lock(&mut self, sys: &mut dyn Sys, t: usize, mutex: ObjectRef) -> Flow {
        let m = mutex.index(&self.threads[t].binding);
        let called = std::mem::take(&mut self.threads[t].paid);
        let mutex = &mut self.mutexes[m];
        if mutex.try_take(t as u32, called) {
            return Flow::Next;
        }
        let Some(barging) = &mut mutex.barging else {
            mutex.waiters.push_back(t as u32);
            return self.block(sys, t, WaitObject::Mutex, m);
        };
        let unchanged = std::mem::replace(&mut barging.contended, true);
        if !(called && unchanged) {
            sys.note_call(futex_wait(WaitObject::Mutex, m));
            sys.charge(self.costs.futex_check);
            if let Some(step) = self.comes_first(sys, t) {
                return step;
            }
        }
        self.mutexes[m].waiters.push_back(t as u32);
        self.repeat_if_barging(t, m);
        self.threads[t].wait = Wait::On(WaitObject::Mutex, m as u32);
        sys.charge(self.costs.futex_wait.saturating_sub(self.costs.futex_check));
        Flow::Yield(TaskStep::Block)
    }

    /// Makes the thread execute its instruction again after its wait, if the mutex is barging.
    fn repeat_if_barging(&mut self, t: usize, m: usize) {
        if self.mutexes[m].barging.is_some() {
            self.threads[t].pc -= 1;
        }
    }

    pub(super) fn unlock(&mut self, sys: &mut dyn Sys, t: usize, mutex: ObjectRef) -> Flow {
        let m = mutex.index(&self.threads[t].binding);
        self.unlock_index(sys, t, m);
        Flow::Next
    }

    /// Unlocks the mutex, and hands it to the first waiter or wakes that waiter. Does nothing if
    /// the thread does not own the mutex, as in a wait without a lock, which rt-app's files may
    /// contain.
    fn unlock_index(&mut self, sys: &mut dyn Sys, t: usize, m: usize) {
        let mutex = &mut self.mutexes[m];
        if mutex.owner != Some(t as u32) {
            return;
        }
        let next = match &mut mutex.barging {
            Some(barging) => {
                mutex.owner = None;
                if !std::mem::take(&mut barging.contended) {
                    return;
                }
                let next = mutex.waiters.pop_front();
                barging.woken.extend(next);
                next
            }
            None => {
                mutex.owner = mutex.waiters.pop_front();
                if mutex.owner.is_none() {
                    return;
                }
                mutex.owner
            }
        };
        self.wake_futex(sys, WaitObject::Mutex, m, 1);
        if let Some(next) = next {
            self.release(sys, next, false);
        }
    }

    pub(super) fn wait(
        &mut self,
        sys: &mut dyn Sys,
        t: usize,
        cond: ObjectRef,
        mutex: ObjectRef,
    ) -> Flow {
        let binding = &self.threads[t].binding;
        let (c, m) = (cond.index(binding), mutex.index(binding));
        if let Some(at) = self.conds[c].signalled.iter().position(|&w| w as usize == t) {
            let flow = self.lock(sys, t, mutex);
            if matches!(flow, Flow::Next) {
                self.conds[c].signalled.remove(at);
            }
            return flow;
        }
        self.conds[c].waiters.push_back((t as u32, m as u32));
        self.unlock_index(sys, t, m);
        self.repeat_if_barging(t, m);
        self.block(sys, t, WaitObject::Cond, c)
    }

    /// Signals the condition: wakes up to `most` of its waiters, or moves a waiter to the queue of
    /// its mutex if the mutex is taken and not barging. Charges one `futex_wake` call for all of
    /// them.
    pub(super) fn signal(
        &mut self,
        sys: &mut dyn Sys,
        t: usize,
        cond: ObjectRef,
        most: usize,
    ) -> Flow {
        let c = cond.index(&self.threads[t].binding);
        let waiting = self.conds[c].waiters.len().min(most);
        if waiting > 0 {
            self.wake_futex(sys, WaitObject::Cond, c, most);
        }
        for _ in 0..waiting {
            let Some((waiter, m)) = self.conds[c].waiters.pop_front() else {
                break;
            };
            let mutex = &mut self.mutexes[m as usize];
            if mutex.barging.is_some() {
                self.conds[c].signalled.push(waiter);
                self.threads[t].wakes.push_back(waiter);
            } else if mutex.owner.is_none() {
                mutex.owner = Some(waiter);
                self.threads[t].wakes.push_back(waiter);
            } else {
                mutex.waiters.push_back(waiter);
                self.threads[waiter as usize].wait = Wait::On(WaitObject::Mutex, m);
            }
        }
        self.wake_rest(sys, t)
    }

    pub(super) fn barrier(&mut self, sys: &mut dyn Sys, t: usize, barrier: ObjectRef) -> Flow {
        let b = barrier.index(&self.threads[t].binding);
        let barrier = &mut self.barriers[b];
        if barrier.waiters.len() + 1 < barrier.parties as usize {
            barrier.waiters.push_back(t as u32);
            return self.block(sys, t, WaitObject::Barrier, b);
        }
        let others = std::mem::take(&mut barrier.waiters);
        if !others.is_empty() {
            self.wake_futex(sys, WaitObject::Barrier, b, usize::MAX);
        }
        self.threads[t].wakes.extend(others);
        self.wake_rest(sys, t)
    }

    /// Wakes the threads that the thread's last call released. Each wake-up takes time, and what is
    /// due on other CPUs meanwhile comes between them.
    pub(super) fn wake_rest(&mut self, sys: &mut dyn Sys, t: usize) -> Flow {
        while let Some(next) = self.threads[t].wakes.pop_front() {
            self.release(sys, next, false);
            if !self.threads[t].wakes.is_empty() && sys.others_due() {
                self.threads[t].pending = Pending::Wakes;
                return Flow::Yield(TaskStep::Compute { work: 0 });
            }
        }
        self.threads[t].pending = Pending::None;
        Flow::Next
    }

    pub(super) fn sem_post(&mut self, sys: &mut dyn Sys, t: usize, sem: ObjectRef) -> Flow {
        let s = sem.index(&self.threads[t].binding);
        match self.sems[s].waiters.pop_front() {
            None => self.sems[s].value = self.sems[s].value.saturating_add(1),
            Some(waiter) => {
                self.wake_futex(sys, WaitObject::Sem, s, 1);
                self.release(sys, waiter, false);
            }
        }
        Flow::Next
    }

    pub(super) fn sem_wait(&mut self, sys: &mut dyn Sys, t: usize, sem: ObjectRef) -> Flow {
        if self.sem_take(t, sem) {
            return Flow::Next;
        }
        let s = sem.index(&self.threads[t].binding);
        self.sems[s].waiters.push_back(t as u32);
        self.block(sys, t, WaitObject::Sem, s)
    }

    /// Takes one from the semaphore; returns false if it is 0.
    pub(super) fn sem_take(&mut self, t: usize, sem: ObjectRef) -> bool {
        let sem = &mut self.sems[sem.index(&self.threads[t].binding)];
        let left = sem.value.checked_sub(1);
        sem.value = left.unwrap_or(0);
        left.is_some()
    }

    /// Sleeps on a futex until another thread calls `release`.
    fn block(&mut self, sys: &mut dyn Sys, t: usize, object: WaitObject, index: usize) -> Flow {
        self.threads[t].wait = Wait::On(object, index as u32);
        sys.note_call(futex_wait(object, index));
        sys.charge(self.costs.futex_wait);
        Flow::Yield(TaskStep::Block)
    }

    /// Makes the system call that wakes threads from a futex. The caller releases the threads.
    fn wake_futex(&mut self, sys: &mut dyn Sys, object: WaitObject, index: usize, most: usize) {
        // A call that wakes all waiters says so, as glibc does with INT_MAX.
        let most = u32::try_from(most).unwrap_or(i32::MAX as u32);
        sys.note_call(Call::FutexWake { object: object_number(object, index), most });
        sys.charge(self.costs.futex_wake);
    }
}

/// Returns the call by which a thread goes to sleep on an object of the program.
fn futex_wait(object: WaitObject, index: usize) -> Call {
    Call::FutexWait { object: object_number(object, index), timeout: None }
}

/// Returns the number by which a trace identifies an object of the program.
pub(super) fn object_number(object: WaitObject, index: usize) -> u64 {
    (object as u64 + 1) << 32 | index as u64
}

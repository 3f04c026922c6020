// SPDX-License-Identifier: GPL-2.0-only
//! Synchronisation objects for threads of any process: locks, conditions, barriers, semaphores,
//! spin locks.
//!
//! Owns: the objects' queues, with the meaning of `exec/sync.rs` and `exec/spin.rs`: first come,
//! first served; an unlock hands the mutex to its first waiter; a signalled thread joins the
//! mutex's queue without waking if the mutex is taken. A sleeper sleeps on a futex word of its own
//! slot; a spinner spins. A barging mutex is one futex word, on which its waiters sleep, as
//! glibc's.
//! Does not: implement priority inheritance.

use std::convert::Infallible;
use std::hint::spin_loop;
use std::sync::atomic::{
    AtomicU32, AtomicU64,
    Ordering::{AcqRel, Acquire, Relaxed, Release},
};

use super::shared::Slot;
use super::sys::{futex_wait, futex_wake};
use super::worker::{End, Flow, Thread};
use crate::compile::insn::WaitObject;
use crate::program::arg::MAX_LINES;

/// A futex word: 0 if it is free, 1 if it is held, and 2 if it is held and a thread may sleep on
/// it.
#[repr(C)]
struct Word(AtomicU32);

impl Word {
    fn try_take(&self) -> bool {
        self.0.compare_exchange(0, 1, Acquire, Relaxed).is_ok()
    }

    /// Takes the word, for which the thread sleeps as often as another is faster. `stopped` may end
    /// the wait.
    fn take<E>(&self, stopped: impl Fn() -> Result<(), E>) -> Result<(), E> {
        while self.0.swap(2, Acquire) != 0 {
            stopped()?;
            futex_wait(&self.0, 2, None);
        }
        Ok(())
    }

    fn free(&self) {
        if self.0.swap(0, Release) == 2 {
            futex_wake(&self.0, 1);
        }
    }
}

/// A short lock around an object's state. A holder never blocks and never ends while it holds the
/// guard, so the end of the run need not interrupt a wait for the guard. A waiter spins only
/// briefly before it sleeps, because it may have preempted the holder.
#[repr(C)]
pub struct Guard(Word);

impl Guard {
    pub fn lock(&self) -> Held<'_> {
        for _ in 0..50 {
            if self.0.try_take() {
                return Held(self);
            }
            spin_loop();
        }
        let Ok(()) = self.0.take(|| Ok::<(), Infallible>(()));
        Held(self)
    }
}

/// Releases the guard when dropped.
pub struct Held<'a>(&'a Guard);

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.0.free();
    }
}

/// FIFO queue of slots. The guard of the queue's object protects it.
#[repr(C)]
pub struct Queue {
    head: AtomicU32,
    tail: AtomicU32,
}

impl Queue {
    fn push(&self, slots: &[Slot], index: u32) {
        slots[index as usize].next.store(0, Relaxed);
        match self.tail.swap(index + 1, Relaxed) {
            0 => self.head.store(index + 1, Relaxed),
            last => slots[last as usize - 1].next.store(index + 1, Relaxed),
        }
    }

    fn pop(&self, slots: &[Slot]) -> Option<u32> {
        let first = self.head.load(Relaxed).checked_sub(1)?;
        let next = slots[first as usize].next.load(Relaxed);
        self.head.store(next, Relaxed);
        if next == 0 {
            self.tail.store(0, Relaxed);
        }
        Some(first)
    }
}

#[repr(C)]
pub struct Mutex {
    guard: Guard,
    /// Slot of the owner plus one; 0: nobody.
    owner: AtomicU32,
    queue: Queue,
    /// 1 if the mutex is barging. Then `word` is the whole mutex besides `owner`.
    barging: AtomicU32,
    word: Word,
}

impl Mutex {
    pub fn set_barging(&self, barging: bool) {
        self.barging.store(barging.into(), Relaxed);
    }

    fn is_barging(&self) -> bool {
        self.barging.load(Relaxed) != 0
    }

    /// Returns the owner's slot plus one, or 0 if nobody owns the mutex.
    pub fn owner(&self) -> u32 {
        self.owner.load(Relaxed)
    }
}

#[repr(C)]
pub struct Cond {
    guard: Guard,
    queue: Queue,
}

#[repr(C)]
pub struct Barrier {
    guard: Guard,
    pub parties: AtomicU32,
    pub here: AtomicU32,
    /// Futex word: number of completed rounds.
    round: AtomicU32,
}

#[repr(C)]
pub struct Sem {
    guard: Guard,
    pub value: AtomicU64,
    queue: Queue,
}

/// A ticket lock: a spinner that is preempted keeps its ticket.
#[repr(C)]
pub struct SpinLock {
    next: AtomicU32,
    serving: AtomicU32,
    owner: AtomicU32,
}

/// Counters of `atomic`.
#[repr(C)]
pub struct Lines([Line; MAX_LINES as usize]);

#[repr(C, align(64))]
struct Line(AtomicU64);

#[repr(C)]
pub struct SpinBarrier {
    guard: Guard,
    pub parties: AtomicU32,
    here: AtomicU32,
    round: AtomicU32,
}

impl Thread {
    /// Grants a sleeper what it waits for and wakes it.
    fn release(&self, index: u32) {
        let wake = &self.env.shared.slots[index as usize].wake;
        wake.store(1, Release);
        futex_wake(wake, 1);
    }

    /// Resets the thread's wake word (`Slot::wake`). Must be called before the thread enters a
    /// queue.
    fn reset_wake_word(&self) {
        self.slot.wake.store(0, Relaxed);
    }

    /// Sleeps until another thread calls `release`.
    fn sleep_on(&self, what: WaitObject, index: usize) -> Flow {
        self.waiting(what, index);
        while self.slot.wake.load(Acquire) == 0 {
            self.stopped()?;
            futex_wait(&self.slot.wake, 0, None);
        }
        self.waiting(WaitObject::Nothing, 0);
        Ok(())
    }

    /// Records what the thread sleeps on, for the detection of deadlocks.
    pub fn waiting(&self, what: WaitObject, index: usize) {
        self.slot.waits_index.store(index as u32, Relaxed);
        let count = self.slot.nr_waits.load(Relaxed);
        self.slot.nr_waits.store(count.wrapping_add(1), Relaxed);
        self.slot.waits.store(what as u32, Release);
    }

    pub fn lock(&self, m: usize) -> Flow {
        self.lock_mutex(&self.env.shared.mutexes[m], WaitObject::Mutex, m)
    }

    pub fn lock_mutex(&self, mutex: &Mutex, what: WaitObject, index: usize) -> Flow {
        if mutex.is_barging() {
            return self.lock_barging(mutex, what, index);
        }
        let held = mutex.guard.lock();
        if mutex.owner.load(Relaxed) == 0 {
            mutex.owner.store(self.index + 1, Relaxed);
            return Ok(());
        }
        self.reset_wake_word();
        mutex.queue.push(self.env.shared.slots, self.index);
        drop(held);
        self.sleep_on(what, index)
    }

    fn lock_barging(&self, mutex: &Mutex, what: WaitObject, index: usize) -> Flow {
        if !mutex.word.try_take() {
            self.waiting(what, index);
            mutex.word.take(|| self.stopped())?;
            self.waiting(WaitObject::Nothing, 0);
        }
        mutex.owner.store(self.index + 1, Relaxed);
        Ok(())
    }

    pub fn unlock(&self, m: usize) {
        self.unlock_mutex(&self.env.shared.mutexes[m]);
    }

    /// Unlocks the mutex, and hands it to the first waiter or wakes that waiter. Does nothing if
    /// the thread does not own the mutex.
    pub fn unlock_mutex(&self, mutex: &Mutex) {
        if mutex.is_barging() {
            if mutex.owner.load(Relaxed) == self.index + 1 {
                mutex.owner.store(0, Relaxed);
                mutex.word.free();
            }
            return;
        }
        let held = mutex.guard.lock();
        if mutex.owner.load(Relaxed) != self.index + 1 {
            return;
        }
        let next = mutex.queue.pop(self.env.shared.slots);
        mutex.owner.store(next.map_or(0, |n| n + 1), Relaxed);
        drop(held);
        if let Some(next) = next {
            self.release(next);
        }
    }

    pub fn wait(&self, c: usize, m: usize) -> Flow {
        let cond = &self.env.shared.conds[c];
        let held = cond.guard.lock();
        self.reset_wake_word();
        self.slot.retake.store(m as u32, Relaxed);
        cond.queue.push(self.env.shared.slots, self.index);
        drop(held);
        // A signal before the unlock may find the mutex still owned by this thread. This thread
        // then joins the mutex's queue, and the unlock hands the mutex to the queue's first thread.
        self.unlock(m);
        self.sleep_on(WaitObject::Cond, c)?;
        if self.env.shared.mutexes[m].is_barging() {
            return self.lock(m);
        }
        Ok(())
    }

    /// Wakes up to `most` waiters, or moves them to the queues of their mutexes if these are taken
    /// and not barging.
    pub fn signal(&self, c: usize, most: u32) {
        let shared = &self.env.shared;
        let cond = &shared.conds[c];
        let held = cond.guard.lock();
        // The loop ends: a released waiter may wait again before the guard is free, but it cannot
        // enter the queue without the guard.
        for _ in 0..most {
            let Some(waiter) = cond.queue.pop(shared.slots) else { break };
            let m = shared.slots[waiter as usize].retake.load(Relaxed);
            let mutex = &shared.mutexes[m as usize];
            if mutex.is_barging() {
                self.release(waiter);
                continue;
            }
            let taken = mutex.guard.lock();
            if mutex.owner.load(Relaxed) == 0 {
                mutex.owner.store(waiter + 1, Relaxed);
                drop(taken);
                self.release(waiter);
            } else {
                mutex.queue.push(shared.slots, waiter);
            }
        }
        drop(held);
    }

    pub fn barrier(&self, b: usize) -> Flow {
        let barrier = &self.env.shared.barriers[b];
        let held = barrier.guard.lock();
        let round = barrier.round.load(Relaxed);
        let here = barrier.here.load(Relaxed) + 1;
        if here >= barrier.parties.load(Relaxed) {
            barrier.here.store(0, Relaxed);
            barrier.round.store(round.wrapping_add(1), Release);
            drop(held);
            if here > 1 {
                futex_wake(&barrier.round, i32::MAX);
            }
            return Ok(());
        }
        barrier.here.store(here, Relaxed);
        drop(held);
        self.waiting(WaitObject::Barrier, b);
        while barrier.round.load(Acquire) == round {
            self.stopped()?;
            futex_wait(&barrier.round, round, None);
        }
        self.waiting(WaitObject::Nothing, 0);
        Ok(())
    }

    pub fn sem_post(&self, s: usize) {
        let sem = &self.env.shared.sems[s];
        let held = sem.guard.lock();
        match sem.queue.pop(self.env.shared.slots) {
            None => sem.value.store(sem.value.load(Relaxed).saturating_add(1), Relaxed),
            Some(waiter) => {
                drop(held);
                self.release(waiter);
            }
        }
    }

    pub fn sem_wait(&self, s: usize) -> Flow {
        let sem = &self.env.shared.sems[s];
        let held = sem.guard.lock();
        let value = sem.value.load(Relaxed);
        if value > 0 {
            sem.value.store(value - 1, Relaxed);
            return Ok(());
        }
        self.reset_wake_word();
        sem.queue.push(self.env.shared.slots, self.index);
        drop(held);
        self.sleep_on(WaitObject::Sem, s)
    }

    pub fn take_or_exit(&self, s: usize) -> Flow {
        let sem = &self.env.shared.sems[s];
        let _held = sem.guard.lock();
        let value = sem.value.load(Relaxed);
        if value == 0 {
            return Err(End::Exit);
        }
        sem.value.store(value - 1, Relaxed);
        Ok(())
    }

    pub fn spin_lock(&self, s: usize) -> Flow {
        let lock = &self.env.shared.spin_locks[s];
        let ticket = lock.next.fetch_add(1, AcqRel);
        while lock.serving.load(Acquire) != ticket {
            self.stopped()?;
            spin_loop();
        }
        lock.owner.store(self.index + 1, Relaxed);
        Ok(())
    }

    pub fn spin_unlock(&self, s: usize) {
        let lock = &self.env.shared.spin_locks[s];
        if lock.owner.load(Relaxed) == self.index + 1 {
            lock.owner.store(0, Relaxed);
            lock.serving.fetch_add(1, Release);
        }
    }

    pub fn atomic(&self, lines: usize, count: u32) {
        for line in self.env.shared.lines[lines].0.iter().take(count as usize) {
            line.0.fetch_add(1, Relaxed);
        }
    }

    pub fn spin_barrier(&self, s: usize) -> Flow {
        let barrier = &self.env.shared.spin_barriers[s];
        let held = barrier.guard.lock();
        let round = barrier.round.load(Relaxed);
        let here = barrier.here.load(Relaxed) + 1;
        if here >= barrier.parties.load(Relaxed) {
            barrier.here.store(0, Relaxed);
            barrier.round.store(round.wrapping_add(1), Release);
            return Ok(());
        }
        barrier.here.store(here, Relaxed);
        drop(held);
        while barrier.round.load(Acquire) == round {
            self.stopped()?;
            spin_loop();
        }
        Ok(())
    }

    /// Returns an error if the run is over.
    #[inline]
    pub fn stopped(&self) -> Flow {
        match self.env.shared.head().stop.load(Relaxed) {
            0 => Ok(()),
            _ => Err(End::Stop),
        }
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! Compilation on threads of its own, while the interpreter goes on.
//!
//! Owns: the threads and their queue. Does not: decide which functions to compile; results do not
//! depend on when a function gets its code.

use std::collections::VecDeque;
use std::num::NonZero;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;

use super::{Code, lock};
use crate::vm::FuncId;

/// Threads that compile functions in the order in which they came. They end when the last clone of
/// this is dropped.
#[derive(Clone, Debug)]
pub(super) struct Beside(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    /// Largest number of threads: one CPU stays for the run itself.
    threads_max: usize,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// Signalled when a function was added, when the last one is compiled, and at the end.
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    /// Functions to compile, if their code is still in use.
    waiting: VecDeque<(Weak<Code>, FuncId)>,
    /// Number of functions that are being compiled.
    begun: usize,
    threads: usize,
    closed: bool,
}

impl Beside {
    pub fn new() -> Beside {
        // Asked once, because the system reads files for the answer.
        // tidy: allow(environment): results do not depend on the number of threads.
        let cpus = thread::available_parallelism().map_or(1, NonZero::get);
        let threads_max = cpus.saturating_sub(1).clamp(1, 4);
        Beside(Arc::new(Handle { shared: Arc::default(), threads_max }))
    }

    /// Has a thread compile a function. Returns false if the system refused the first thread.
    pub fn compile(&self, code: &Weak<Code>, func: FuncId) -> bool {
        let Handle { shared, threads_max } = &*self.0;
        let mut queue = lock(&shared.queue);
        let busy = queue.begun + queue.waiting.len() >= queue.threads;
        if busy && queue.threads < *threads_max && start(shared) {
            queue.threads += 1;
        }
        if queue.threads == 0 {
            return false;
        }
        queue.waiting.push_back((Weak::clone(code), func));
        shared.changed.notify_all();
        true
    }

    /// Compiles on this thread, too, until all functions of the queue are compiled.
    pub fn finish(&self) {
        let shared = &self.0.shared;
        while let Some((code, func)) = shared.begin(|queue| queue.begun == 0) {
            shared.carry_out(&code, func);
        }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        lock(&self.shared.queue).closed = true;
        self.shared.changed.notify_all();
    }
}

impl Shared {
    /// Takes a function from the queue. Waits for one until the empty queue is `over`.
    fn begin(&self, over: impl Fn(&Queue) -> bool) -> Option<(Weak<Code>, FuncId)> {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(next) = queue.waiting.pop_front() {
                queue.begun += 1;
                return Some(next);
            }
            if over(&queue) {
                return None;
            }
            queue = self.wait(queue);
        }
    }

    fn wait<'a>(&self, queue: MutexGuard<'a, Queue>) -> MutexGuard<'a, Queue> {
        self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner)
    }

    fn carry_out(&self, code: &Weak<Code>, func: FuncId) {
        let _begun = Begun(self);
        if let Some(code) = code.upgrade() {
            code.compile(func);
        }
    }
}

/// A function that is being compiled, until this is dropped.
struct Begun<'a>(&'a Shared);

impl Drop for Begun<'_> {
    fn drop(&mut self) {
        let mut queue = lock(&self.0.queue);
        queue.begun -= 1;
        if queue.begun == 0 {
            self.0.changed.notify_all();
        }
    }
}

fn start(shared: &Arc<Shared>) -> bool {
    let shared = Arc::clone(shared);
    let work = move || {
        while let Some((code, func)) = shared.begin(|queue| queue.closed) {
            shared.carry_out(&code, func);
        }
    };
    thread::Builder::new().name("scxlab-compiler".to_owned()).spawn(work).is_ok()
}

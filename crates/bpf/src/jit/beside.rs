// SPDX-License-Identifier: GPL-2.0-only
//! Compilation on a thread of its own, while the interpreter goes on.
//!
//! Owns: the thread and its queue. Does not: decide which functions to compile; results do not
//! depend on when a function gets its code.

use std::sync::mpsc::{Sender, channel};
// tidy: allow(static): the `OnceLock` belongs to one cache; its state changes no result.
use std::sync::{Arc, OnceLock, Weak};
use std::thread;

use super::Code;
use crate::vm::FuncId;

/// A thread that compiles functions in the order in which they came. It starts with the first one,
/// and ends when the last clone of this is dropped.
#[derive(Clone, Debug, Default)]
// tidy: allow(static): as above.
pub(super) struct Beside(Arc<OnceLock<Option<Sender<Job>>>>);

#[derive(Debug)]
enum Job {
    /// Compile a function, if its code is still in use.
    Compile(Weak<Code>, FuncId),
    /// Drop the sender: everything that was sent before has been compiled.
    Finish(Sender<()>),
}

impl Beside {
    /// Has the thread compile a function. Returns false if the system refused a thread.
    pub fn compile(&self, code: &Weak<Code>, func: FuncId) -> bool {
        let jobs = self.0.get_or_init(start).as_ref();
        jobs.is_some_and(|jobs| jobs.send(Job::Compile(Weak::clone(code), func)).is_ok())
    }

    /// Waits until all functions that were sent are compiled.
    pub fn finish(&self) {
        let Some(Some(jobs)) = self.0.get() else { return };
        let (done, all) = channel();
        if jobs.send(Job::Finish(done)).is_ok() {
            // This fails when the thread drops the other end.
            let _ = all.recv();
        }
    }
}

fn start() -> Option<Sender<Job>> {
    let (jobs, queue) = channel();
    let work = move || {
        for job in queue {
            match job {
                Job::Compile(code, func) => {
                    if let Some(code) = code.upgrade() {
                        code.compile_waiting(func);
                    }
                }
                Job::Finish(done) => drop(done),
            }
        }
    };
    thread::Builder::new().name("scxlab-compiler".to_owned()).spawn(work).ok()?;
    Some(jobs)
}

// SPDX-License-Identifier: GPL-2.0-only
//! The description of what a thread waits for, for the report of a deadlock.

use super::Executor;
use super::thread::Wait;
use crate::compile::insn::ObjectKind;

impl Executor {
    /// Describes a wait and who could end it. None if the thread does not wait for another.
    pub(super) fn describe_wait(&self, wait: Wait) -> Option<String> {
        let name = |kind: ObjectKind, i: u32| &self.compiled.objects.names(kind)[i as usize];
        let who = |t: u32| self.threads[t as usize].name.as_str();
        Some(match wait {
            Wait::None | Wait::Until(_) => return None,
            Wait::Mutex(m) => {
                let owner = self.mutexes[m as usize].owner;
                let held = owner.map_or("nobody".to_owned(), |t| who(t).to_owned());
                format!("mutex \"{}\", held by {held}", name(ObjectKind::Mutex, m))
            }
            Wait::Cond(c) => format!("a signal of condition \"{}\"", name(ObjectKind::Cond, c)),
            Wait::Barrier(b) => {
                let barrier = &self.barriers[b as usize];
                let (here, all) = (barrier.waiters.len(), barrier.parties);
                format!(
                    "barrier \"{}\", {here} of {all} have arrived",
                    name(ObjectKind::Barrier, b)
                )
            }
            Wait::Sem(s) => format!("a post of semaphore \"{}\"", name(ObjectKind::Sem, s)),
            Wait::PipeRead(p) => format!("bytes in pipe \"{}\"", name(ObjectKind::Pipe, p)),
            Wait::PipeWrite(p) => format!("room in pipe \"{}\"", name(ObjectKind::Pipe, p)),
            Wait::SpinLock(s) => {
                let owner = self.spin_locks[s as usize].owner;
                let held = owner.map_or("nobody".to_owned(), |t| who(t).to_owned());
                format!("spin lock \"{}\", held by {held}", name(ObjectKind::SpinLock, s))
            }
            Wait::SpinBarrier(s) => {
                format!("spin barrier \"{}\"", name(ObjectKind::SpinBarrier, s))
            }
            Wait::Join => "its children to exit".to_owned(),
        })
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! The description of what a thread waits for, for the report of a deadlock.

use super::Executor;
use super::thread::Wait;
use crate::compile::insn::{WaitObject, WaitState};

impl Executor {
    /// Describes a wait and the thread that could end it. None if the thread waits for no other
    /// thread.
    pub(super) fn describe_wait(&self, wait: Wait) -> Option<String> {
        let (Wait::On(object, index) | Wait::Spin(object, index)) = wait else {
            return None;
        };
        let i = index as usize;
        let name = |t: u32| self.threads[t as usize].name.clone();
        let mut state = WaitState::default();
        match object {
            WaitObject::Mutex => state.holder = self.mutexes[i].owner.map(name),
            WaitObject::SpinLock => state.holder = self.spin_locks[i].owner.map(name),
            WaitObject::Barrier => {
                let barrier = &self.barriers[i];
                state.arrived = (barrier.waiters.len() as u32, barrier.parties);
            }
            _ => {}
        }
        Some(object.text(&self.compiled.objects, i, state))
    }
}

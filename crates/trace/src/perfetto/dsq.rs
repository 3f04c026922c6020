// SPDX-License-Identifier: GPL-2.0-only
//! How long each DSQ is, from the inserts, moves and switches of the trace.
//!
//! Owns: which queue a task is in as far as the trace tells. Does not: count local DSQs, whose length is
//! what the UI shows as runnable threads of a CPU, nor more queues than a reader can look at.

use std::collections::BTreeMap;

use scxlab_machine::TaskId;

/// Counters at most; a scheduler with a DSQ per cgroup can have thousands.
const DSQS_MAX: usize = 256;

/// SCX_DSQ_FLAG_BUILTIN: the DSQ is the kernel's own.
const BUILTIN: u64 = 1 << 63;
/// SCX_DSQ_GLOBAL, the only built-in one that is counted.
const GLOBAL: u64 = BUILTIN | 1;

/// A DSQ and its new length.
pub(super) type Change = (u64, i64);

#[derive(Default)]
pub(super) struct DsqLengths {
    len: BTreeMap<u64, i64>,
    at: BTreeMap<TaskId, u64>,
}

impl DsqLengths {
    /// The task is in `dsq` now and nowhere else.
    pub fn enter(&mut self, task: TaskId, dsq: u64) -> impl Iterator<Item = Change> + use<> {
        let left = self.leave(task);
        let counted = dsq & BUILTIN == 0 || dsq == GLOBAL;
        let known = self.len.contains_key(&dsq) || self.len.len() < DSQS_MAX;
        let entered = (counted && known).then(|| {
            self.at.insert(task, dsq);
            let len = self.len.entry(dsq).or_default();
            *len += 1;
            (dsq, *len)
        });
        // Moved within one queue: the length did not change in between for anyone to see.
        let left = left.filter(|_| left.map(|l| l.0) != entered.map(|e| e.0));
        left.into_iter().chain(entered)
    }

    /// The task is in no DSQ now.
    pub fn leave(&mut self, task: TaskId) -> Option<Change> {
        let dsq = self.at.remove(&task)?;
        let len = self.len.get_mut(&dsq)?;
        *len -= 1;
        Some((dsq, *len))
    }
}

// SPDX-License-Identifier: GPL-2.0-only
//! Lengths of DSQs, from the inserts, moves and switches of the trace.
//!
//! Owns: the DSQ of each task, as far as the trace shows it. Does not: count local DSQs, whose
//! length the UI shows as runnable threads of a CPU, nor any DSQ after the first `DSQS_MAX`.

use std::collections::BTreeMap;

use scxlab_machine::TaskId;

/// Maximum number of DSQs whose length is counted. A scheduler with a DSQ per cgroup can have
/// thousands of DSQs.
const DSQS_MAX: usize = 256;

/// SCX_DSQ_FLAG_BUILTIN: marks the kernel's own DSQs.
const BUILTIN: u64 = 1 << 63;
/// SCX_DSQ_GLOBAL, the only built-in DSQ that is counted.
const GLOBAL: u64 = BUILTIN | 1;

/// A DSQ's id and new length.
pub(super) type DsqChange = (u64, i64);

#[derive(Default)]
pub(super) struct DsqLengths {
    len: BTreeMap<u64, i64>,
    at: BTreeMap<TaskId, u64>,
}

impl DsqLengths {
    /// Records that the task is now in `dsq` and in no other DSQ. Returns the changed lengths.
    pub fn enter(&mut self, task: TaskId, dsq: u64) -> impl Iterator<Item = DsqChange> + use<> {
        let left = self.leave(task);
        let counted = dsq & BUILTIN == 0 || dsq == GLOBAL;
        let known = self.len.contains_key(&dsq) || self.len.len() < DSQS_MAX;
        let entered = (counted && known).then(|| {
            self.at.insert(task, dsq);
            let len = self.len.entry(dsq).or_default();
            *len += 1;
            (dsq, *len)
        });
        // A move within one DSQ first shortens the DSQ and then lengthens it. Report only the
        // second length.
        let left = left.filter(|_| left.map(|l| l.0) != entered.map(|e| e.0));
        left.into_iter().chain(entered)
    }

    /// Records that the task is in no DSQ.
    pub fn leave(&mut self, task: TaskId) -> Option<DsqChange> {
        let dsq = self.at.remove(&task)?;
        let len = self.len.get_mut(&dsq)?;
        *len -= 1;
        Some((dsq, *len))
    }
}
